"""Share between the parts of one run: the study in the store, the workers, budget and control."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

from numpy.typing import NDArray

from compiler.ir.blob import ModuleBlob
from compiler.ir.expr import Tuple, is_op_call
from compiler.ir.module import IRModule
from compiler.ir.ty import is_float, tensor_fields
from compiler.ops.annotation.narrow_move import MOVES
from compiler.qtypes.qconfig import QConfig
from qsearch.data.prepared_data import NUMBERS, SEVERAL, PreparedData, content_hash
from qsearch.opening.model_file import ModelSource
from qsearch.run.progress import Progress
from qsearch.search.layer_space import LayerSpace
from qsearch.search.objectives import Objective
from qsearch.search.space import Space
from qsearch.settings.launch_settings import Settings
from qsearch.store.artifacts import ArtifactStore, npz_bytes
from qsearch.store.records import StoredArtifact, Study, Trial
from workers.batching import batch_size
from workers.datasets.protocol import InputSpec
from workers.metrics.top_k import is_lone
from workers.pool.queued_pool import WorkerPool
from workers.user_code import UserCode

if TYPE_CHECKING:
    from qsearch.store.repository import Repository


@dataclass(frozen=True, slots=True)
class StudyContext:
    """The study that a run works on, and what the run works with.

    Attributes:
        repository: the store.
        study: the row of the study when the run began.
        pool: workers; the caller that made the pool closes it.
        progress: what the user sees.
    """

    repository: Repository
    study: Study
    pool: WorkerPool
    progress: Progress


@dataclass(frozen=True, slots=True)
class StudyArtifacts:
    """Large values of one study: files, and rows that say what they were made from.

    Attributes:
        repository, study_id: where the rows are.
        files: where the values are.
    """

    repository: Repository
    study_id: int
    files: ArtifactStore

    def keep(
        self, kind: str, key: str, value: bytes | Mapping[str, NDArray[Any]], cpu_s: float = 0.0
    ) -> None:
        """Store bytes or named arrays.

        Args:
            kind: what the value is; a study may have several of a kind.
            key: what it was made from.
            cpu_s: CPU seconds that making it took.
        """
        data = value if isinstance(value, bytes) else npz_bytes(value)
        row = StoredArtifact(kind, key, self.files.put(kind, data), len(data), cpu_s)
        self.repository.save_artifact(self.study_id, row)

    def arrays(self, kind: str, key: str) -> dict[str, NDArray[Any]] | None:
        """The arrays that this study keeps under the kind and key; None where there are none."""
        for row in self.repository.artifacts_of(self.study_id, kind):
            if row.key == key and self.files.has(kind, row.sha256):
                return self.files.get_arrays(kind, row.sha256)
        return None


TIMEOUT: Final = "timeout"
"""Reason of a search that ended because its time was over."""


@dataclass(slots=True)
class Budget:
    """Trials in total over all runs, and seconds of this run.

    Args:
        trials: finished trials the study shall have.
        timeout_s: None is unlimited.
        clock: monotonic seconds.
        patience: trials in a row without a better one; "auto" see ``TrialQueue``; None is any
            number.
    """

    trials: int
    timeout_s: float | None = None
    clock: Callable[[], float] = time.monotonic
    patience: int | str | None = None
    _start: float = field(init=False)

    def __post_init__(self) -> None:
        self._start = self.clock()

    @property
    def seconds_left(self) -> float:
        """Seconds until the timeout, at least 0; infinite without one."""
        limit = math.inf if self.timeout_s is None else self.timeout_s
        return max(0.0, limit - (self.clock() - self._start))


Callback = Callable[[Trial], Any]
"""Called with every trial that ended, after it was stored; a true answer stops the search."""


@dataclass(frozen=True, slots=True)
class Control:
    """Callbacks of one run, the event that stops it, and checks that its files are still there.

    Attributes:
        callbacks: called in order, in the driver's thread.
        stop: set it from any thread.
        checks: each raises once something that the run stands on is gone or was changed.
    """

    callbacks: Sequence[Callback] = ()
    stop: threading.Event = field(default_factory=threading.Event)
    checks: tuple[Callable[[], None], ...] = ()

    def check(self) -> None:
        """Look at the run folder, the database and the model.

        Raises:
            SearchError: the first one that is not as it was.
        """
        for check in self.checks:
            check()

    def on_trial(self, trial: Trial) -> None:
        """Tell every callback."""
        answers = [callback(trial) for callback in self.callbacks]
        if any(answers):
            self.stop.set()


_POOLS: Final = ("mean", "nn.avg_pool2d", "nn.global_avg_pool2d")
_FEATURES: Final = ("clip", "concatenate", "divide", "nn.relu")
"""Operators whose results are no scores: rectified or divided by their norm, or joined."""
_OF_NUMBERS: Final = ("workers.metrics.regression:", "workers.metrics.restored:")
"""Metrics of outputs that are no scores of classes."""


def _sides(shape: Sequence[int]) -> list[int]:
    """Return the sizes of a sample, but for sizes of 1."""
    return [side for side in shape[1:] if side > 1]


@dataclass(frozen=True, slots=True, eq=False)
class PreparedStudy:
    """Everything a search needs beside workers and a store.

    Attributes:
        settings: checked options.
        source: the ONNX file.
        module: after prerequisite_optimize; its inputs are the parameters of @main.
        blob: the module as workers get it.
        calib, evaluation: data; the same where no evaluation data was given.
        has_labels: top-1 is scored.
        metric: what is maximised.
        space, start: what is searched, and from where.
        spec: see ``qsearch.search.preparation``.
        warnings: what the score is not, in sentences for the user.
        hardware: text and name of the description that ``--hw`` names.
        layers: what single layers may choose, where stages search it; else it is in ``space``.
        code: the user's modules.
    """

    settings: Settings
    source: ModelSource
    module: IRModule
    blob: ModuleBlob
    inputs: tuple[InputSpec, ...]
    calib: PreparedData
    evaluation: PreparedData
    has_labels: bool
    metric: str
    space: Space
    start: QConfig
    spec: Mapping[str, Any]
    warnings: tuple[str, ...]
    hardware: tuple[str, str] | None = None
    layers: LayerSpace | None = None
    code: UserCode = ()

    @property
    def run_samples(self) -> int:
        """Samples of one run of the model."""
        return batch_size(self.inputs, self.evaluation.whole)

    @property
    def decides(self) -> bool:
        """Tell whether the highest value of the first output is an answer, as far as is known.

        It is none where labels judge each value, in a lone number, in a signal of the size of an
        input (a sound without its noise), in joined outputs (boxes beside scores) and in features.
        """
        if self.has_labels or self.metric == "agreement":
            return True
        if self.evaluation.label_kind in (SEVERAL, NUMBERS):
            return False
        first = self.module["main"].body
        output = tensor_fields(first.checked_type)[0]
        first = first.fields[0] if isinstance(first, Tuple) else first
        while is_op_call(first, *MOVES, *_POOLS):
            first = first.args[0]
        given = [_sides(s.shape) for s in self.inputs if is_float(s.dtype)]
        lone = is_lone(output.concrete_shape, output.dtype)
        number = self.metric.startswith(_OF_NUMBERS)
        features = lone or number or is_op_call(first, *_FEATURES)
        return not (features or _sides(output.concrete_shape) in given)

    @property
    def objective(self) -> Objective:
        """Objective that the search maximises, and its limits."""
        return Objective.of(self.spec)

    @property
    def spec_hash(self) -> str:
        """sha256 of the spec."""
        return content_hash(self.spec)
