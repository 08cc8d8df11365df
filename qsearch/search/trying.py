"""Configurations that people want tried: asked for in the store, and evaluated next by a driver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from compiler.qtypes.qconfig import QConfig
from qsearch.errors import SettingsError
from qsearch.settings.config import read_config_file
from qsearch.store.records import Event, Study

if TYPE_CHECKING:
    from qsearch.store.repository import Repository

TRY: Final = "try"
"""Kind of the event that holds a wish, and of the command that has drivers look for it."""

MOST_WISHES: Final = 256
"""In one study: nobody fills a server's disk with them."""


def fields_of_text(given: str) -> dict[str, Any]:
    """The fields in a qconfig.json, or of ``k=v,…``.

    Raises:
        UnknownConfigKeyError, ConfigValueError: a field or value that QConfig does not have.
        SettingsError: a qconfig.json that cannot be read.
    """
    if not given.endswith(".json"):
        return QConfig.parse_overrides(given)
    return read_config_file(given)


def wish(repository: Repository, study: Study, fields: Mapping[str, Any], author: str = "") -> None:
    """Have the drivers of a study evaluate a configuration next; a study without one keeps the
    wish for its next driver.

    Args:
        fields: those that differ from the configuration that the search starts from.
        author: of the wish, where the server knows its user.
    Raises:
        UnknownConfigKeyError, ConfigValueError: a field or value that QConfig does not have.
        SettingsError: there are too many already, or calibration measures no such percentile.
    """
    config = QConfig.recommended(**fields)
    measured = study.spec.get("percentiles", [config.percentile])
    if config.calibrate_mode == "percentile" and config.percentile not in measured:
        raise SettingsError(
            f"percentile is {config.percentile}, and this study calibrates {measured}",
            where="try",
            fix="take one of these, or search a space that has it: --space",
        )
    if len(wishes(repository, study.id)) >= MOST_WISHES:
        raise SettingsError(
            f"{MOST_WISHES} configurations were asked for in this study",
            where="try",
            fix="give the search a space of them: --space",
        )
    repository.add_event(study.id, TRY, data={"qconfig": dict(fields), "author": author})
    repository.add_command(study.id, TRY)


def wishes(repository: Repository, study_id: int) -> list[Event]:
    """Every wish for the study, the oldest first."""
    return repository.events_of(study_id, kind=TRY)
