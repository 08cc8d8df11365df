from __future__ import annotations

import copy
import pickle
from dataclasses import replace

import pytest

from compiler.ir.virtual_device import UNCONSTRAINED, VirtualDevice, default, join
from compiler.targets.target import Target

CPU, GLOBAL = VirtualDevice("cpu"), VirtualDevice(memory_scope="global")


def test_equal_devices_are_one_object() -> None:
    assert VirtualDevice() is UNCONSTRAINED
    assert VirtualDevice(device_type="cpu") is CPU
    assert join(CPU, GLOBAL) is VirtualDevice("cpu", memory_scope="global")
    assert replace(CPU, device_type=None) is UNCONSTRAINED


@pytest.mark.parametrize(
    "remake", [copy.copy, copy.deepcopy, lambda d: pickle.loads(pickle.dumps(d))]
)
def test_copies_of_a_device_are_the_same_object(remake: object) -> None:
    assert remake(CPU) is CPU  # type: ignore[operator]
    assert UNCONSTRAINED.device_type is None


def test_fields_that_differ_do_not_join() -> None:
    assert join(CPU, VirtualDevice("gpu")) is None
    assert join(VirtualDevice("cpu", 0), VirtualDevice("cpu", 1)) is None
    assert default(CPU, VirtualDevice("gpu", 2)) is VirtualDevice("cpu", 2)


def test_what_is_constrained_is_known_by_its_fields() -> None:
    assert UNCONSTRAINED.is_fully_unconstrained
    assert not CPU.is_fully_constrained
    assert VirtualDevice("c", 0, "c -mcpu=native", "global").is_fully_constrained


def test_a_target_of_another_kind_is_refused() -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="does not fit"):
            VirtualDevice("gpu", 0, "c -mcpu=native")


def test_a_target_is_given_by_its_text() -> None:
    target = Target("reference")
    assert VirtualDevice(target=str(target)).target == "reference"
    with pytest.raises(TypeError, match=r"give str\(target\)"):
        VirtualDevice(target=target)  # type: ignore[arg-type]
