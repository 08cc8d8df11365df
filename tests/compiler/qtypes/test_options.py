"""An option is declared in one place, and all that is told of it is read there."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import pytest

from compiler.qtypes.config_checks import flag, integer
from compiler.qtypes.errors import ConfigValueError
from compiler.qtypes.options import option, options_of
from compiler.qtypes.qconfig import QConfig
from compiler.qtypes.relay_config import RelayConfig
from compiler.quantize.calibration.statistics_store import scale_fields
from qsearch.search.space import default_space


@dataclass(frozen=True)
class More(QConfig):
    rows: int = option(2, partial(integer, 1, 4), recommended=3, measured=True)
    turned: bool = option(False, flag, ranged=True)


def test_a_declared_option_is_checked_advised_and_part_of_the_key_of_statistics() -> None:
    with pytest.raises(ConfigValueError, match=r"rows cannot be 5.*\n?.*1 to 4"):
        More(rows=5)
    assert More().rows == 2
    assert More.recommended().rows == 3
    assert More.recommended(turned=True).turned
    assert More(rows=4).calibration_fields()["rows"] == 4
    assert "turned" not in More().calibration_fields()
    assert scale_fields(More(turned=True))["turned"]
    assert "rows" not in scale_fields(More())
    assert More.from_dict(More(rows=4).to_dict()) == More(rows=4)


def test_every_field_is_declared_and_the_default_space_is_what_they_say() -> None:
    options = options_of(QConfig)
    assert options.keys() == QConfig().to_dict().keys()
    space = {one.name: one for one in default_space().parameters}
    assert space.keys() == {name for name, one in options.items() if one.searched}
    for name, one in space.items():
        assert one.choices == options[name].searched
        for value in one.choices:
            assert getattr(QConfig.recommended(**{name: value}), name) == value


def test_relays_fields_stand_apart() -> None:
    own = options_of(QConfig).keys() - options_of(RelayConfig).keys()
    assert len(own) <= 12
