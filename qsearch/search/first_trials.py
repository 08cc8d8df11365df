"""Facts in front of the first trial: where a search begins, and what it can gain at most."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final

from compiler.errors import CalibrationError, CompilerError
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Calibration
from qsearch.search.calibration import FirstChoice
from qsearch.search.context import PreparedStudy, StudyContext
from qsearch.search.optuna_study import AUTO
from qsearch.search.sampler import first_points
from qsearch.search.space import Params, input_layer, to_qconfig
from qsearch.search.space_file import faster_layers
from qsearch.search.stages import Base
from workers.errors import BrokenRunError

_FEW_TRIALS: Final = 32
_WORTH_A_SEARCH_DB: Final = 1.0


@dataclass(eq=False)
class FirstTrials:
    """The first points of a study, by its statistics.

    Args:
        context: the study in the store.
        prepared: what is searched.
        calibration: of the float model.
    """

    context: StudyContext
    prepared: PreparedStudy
    calibration: Calibration

    @cached_property
    def chosen(self) -> QConfig | None:
        """What the statistics suggest; stored and printed where the study is new."""
        return FirstChoice.of(self.context, self.prepared, self.calibration).qconfig

    def guesses(self) -> list[Base]:
        """The first good guess of the space and its ranges, where there are both."""
        start = self.prepared.space.params_of(self.prepared.start)
        points = [point for point in self._points() if point != start][:1]
        try:
            guesses = self._quick(points)
            return [(guess, self.calibration.scales_for(guess)) for guess in guesses]
        except BrokenRunError:
            raise
        except CompilerError:
            return []  # its trial will tell

    def predictions(self) -> Iterator[str]:
        """Yield sentences: which layers fewer bits make faster; that a short search of 8 bits can
        only repeat ``compile``."""
        prepared, goal, settings = self.prepared, self.prepared.objective, self.prepared.settings
        if "latency" in goal.minimize and settings.measure is None:
            faster = ", ".join(faster_layers(prepared.module)) or "no layer"
            yield (
                f"prediction: 4 bits can make {faster} faster on this machine; they do so in "
                "products of one row by many weights"
            )
        more_bits = any(input_layer(p.name) for p in prepared.space.parameters)
        other = prepared.layers is not None or goal.minimize or more_bits
        other = other or settings.sampler != AUTO
        if self.chosen is None or other or settings.trials > _FEW_TRIALS:
            return
        try:
            first, *others = self.calibration.predicted_db(self._quick(self._points()))
        except CalibrationError:
            return  # its trial will tell
        if max(others, default=first) < first + _WORTH_A_SEARCH_DB:
            yield (
                "prediction: a search of 8 bits can hardly do more than repeat "
                "what compile chooses; --minimize size finds smaller modules"
            )

    def _points(self) -> Sequence[Params]:
        return first_points(self.prepared.space, self.prepared.start, self.chosen)

    def _quick(self, points: Sequence[Params]) -> list[QConfig]:
        """Configurations without sequential rounding: they are quick to build."""
        found = [to_qconfig(point, self.prepared.start) for point in points]
        corrected = {"weight_rounding": "corrected"}
        return [one.with_overrides(**corrected) if one.sequential else one for one in found]
