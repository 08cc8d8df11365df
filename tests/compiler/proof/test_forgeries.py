"""Modules that claim more than holds: each was once proved, and none may be again."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.errors import TypeInferenceError
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.text.parser import parse
from compiler.proof.derive import Proof, derive_static
from compiler.proof.ranges import analyse

TEXT = """#[version = "0.0.5"]
def @quantize_inputs(%x: Tensor[(1, 2), FLOAT]) {
  PREFIX
}
def @quantized_main(%q: Tensor[(1, 2), GIVEN]) {
  CORE
}
def @dequantize_outputs(%r: Tensor[SHAPE]) {
  SUFFIX
}
def @main(%x: Tensor[(1, 2), FLOAT]) {
  let %a = @quantize_inputs(%x);
  let %b = @quantized_main(%a.0);
  let %c = @dequantize_outputs(%b);
  %c
}
"""
PLAIN = {
    "PREFIX": '(cast(clip(round(%x), a_min=-127f, a_max=127f), dtype="int8"),)',
    "CORE": 'cast(%q, dtype="int32")',
    "SUFFIX": 'cast(%r, dtype="float32")',
    "GIVEN": "int8",
    "FLOAT": "float32",
    "SHAPE": "(1, 2), int32",
}


def module(tensors: dict[str, np.ndarray] | None = None, **parts: str) -> IRModule:
    source = TEXT
    for key, value in {**PLAIN, **parts}.items():
        source = source.replace(key, value)
    if tensors:
        places = ", ".join(f'{{"npz": "{name}"}}' for name in tensors)
        source += f'\n#[metadata]\n{{"relay.Constant": [{places}]}}\n'
    return infer_module(parse(source, external_data=tensors))


HALVED = '(cast(cast(clip(%x, a_min={}, a_max={}), dtype="float16"), dtype="int32"),)'


def inputs(**parts: str) -> tuple[int, int]:
    (given,) = analyse(module(**parts), "quantize_inputs").outputs
    assert given is not None
    return given.lowest, given.highest


def found(proof: Proof) -> list[str]:
    return [str(finding) for finding in proof.findings]


def test_the_plain_module_is_proved() -> None:
    proof = derive_static(module())
    assert found(proof) == []
    assert proof.inputs == (("q", -127, 127),)


def clipped(then: str, dtype: str = "int32") -> str:
    return f"""%0 = clip(round(%x), a_min=-127f, a_max=127f);
  (cast({then}, dtype="{dtype}"),)"""


def test_a_sum_that_float32_rounds_up_is_bounded_as_it_is_computed() -> None:
    """2^30 + 127 is no float32; the sum is 2^30 + 128."""
    prefix = clipped("add(%0, 1073741824f)")
    low, high = inputs(PREFIX=prefix, GIVEN="int32")
    assert high >= (1 << 30) + 128
    assert low <= (1 << 30) - 128
    core = "add(%q, 1073741696)"
    proof = derive_static(module(PREFIX=prefix, GIVEN="int32", CORE=core))
    assert any("may reach" in one for one in found(proof))


def test_a_limit_that_float32_rounds_up_is_the_limit_that_runs() -> None:
    """1073741951 lies between two floats; the data are clipped to the upper one."""
    prefix = '(cast(clip(round(%x), a_min=0f, a_max=1073741951f), dtype="int32"),)'
    assert inputs(PREFIX=prefix, GIVEN="int32") == (0, 1073741952)
    core = "add(%q, 1073741696)"
    assert not derive_static(module(PREFIX=prefix, GIVEN="int32", CORE=core)).holds


@pytest.mark.parametrize("weight", [1 << 62, -(1 << 62), (1 << 63) - 1, -(1 << 63), 3 << 60])
@pytest.mark.parametrize("dtype", ["int64", "uint64"])
@pytest.mark.parametrize(
    "product", ["nn.conv2d(%1, KERNEL, kernel_size=[2, 1])", "nn.dense(%0, KERNEL)"]
)
def test_weights_whose_sums_leave_int64_do_not_wrap_into_a_proof(
    weight: int, dtype: str, product: str
) -> None:
    shape = (1, 1, 2, 1) if "conv" in product else (1, 2)
    kernel = np.full(shape, weight % (1 << 64) if dtype == "uint64" else weight, dtype)
    call = product.replace("KERNEL", "meta[relay.Constant][0]")
    core = f"""%0 = cast(%q, dtype="{dtype}");
  %1 = reshape(%0, newshape=[1, 1, 2, 1]);
  reshape({call}, newshape=[1])"""
    proof = derive_static(module({"k0": kernel}, CORE=core, SHAPE=f"(1), {dtype}"))
    assert any("the accumulator" in one for one in found(proof)), found(proof)


@pytest.mark.parametrize(
    ("core", "what"),
    [
        # Four taps of one channel: their sum in int64 is 0.
        ("nn.conv2d(%1, KERNEL, kernel_size=[2, 2], padding=[1, 1, 1, 1])", "the accumulator"),
    ],
)
def test_taps_that_cancel_by_wrapping_are_counted_one_by_one(core: str, what: str) -> None:
    kernel = np.full((1, 1, 2, 2), 1 << 62, "int64")
    call = core.replace("KERNEL", "meta[relay.Constant][0]")
    text = f"""%0 = cast(%q, dtype="int64");
  %1 = reshape(%0, newshape=[1, 1, 2, 1]);
  strided_slice(reshape({call}, newshape=[6]), begin=[0], end=[1])"""
    proof = derive_static(module({"k0": kernel}, CORE=text, SHAPE="(1), int64"))
    assert any(what in one for one in found(proof)), found(proof)


@pytest.mark.parametrize(
    ("prefix", "given", "ends"),
    [
        (clipped("%0"), "int32", (-127, 127)),
        (clipped("add(%0, 3f)"), "int32", (-124, 130)),
        (clipped("subtract(%0, 0.5f)"), "int32", (-127, 126)),
        (clipped("multiply(%0, 1.5f)"), "int32", (-190, 190)),
        (clipped("multiply(%0, -3f)"), "int32", (-381, 381)),
        (clipped("multiply(%0, 3e38f)"), "int32", (-(1 << 31), (1 << 31) - 1)),
        (clipped("add(%0, 16777216f)"), "int32", (0, 16777346)),
        (clipped("%0", "uint8"), "uint8", (0, 127)),
        (clipped("multiply(%0, 9f)", "int8"), "int8", (-128, 127)),
        ('(cast(clip(%x, a_min=3.2f, a_max=90.5f), dtype="int8"),)', "int8", (0, 90)),
        ('(cast(clip(%x, a_min=9f, a_max=3f), dtype="int8"),)', "int8", (0, 9)),
        ('(cast(round(%x), dtype="int8"),)', "int8", (-128, 127)),
        (HALVED.format("-9f", "9f"), "int32", (-9, 9)),
        (HALVED.format("2049f", "2051f"), "int32", (0, 2054)),
    ],
)
def test_inputs_are_bounded_by_the_arithmetic_that_runs(
    prefix: str, given: str, ends: tuple[int, int]
) -> None:
    assert inputs(PREFIX=prefix, GIVEN=given) == ends


@pytest.mark.parametrize("limit", ["70000f16", "2049f16", "-2049f16", "65519f16"])
def test_float16_limits_are_those_that_float16_holds(limit: str) -> None:
    prefix = f'(cast(clip(round(%x), a_min=-1e9f, a_max={limit[:-3]}f), dtype="int32"),)'
    low, high = inputs(PREFIX=prefix, GIVEN="int32", FLOAT="float16")
    with np.errstate(over="ignore"):
        value = float(np.float16(float(limit[:-3])))
    assert low == -(1 << 31)
    assert high == ((1 << 31) - 1 if np.isinf(value) else max(int(value), 0))


def test_a_limit_that_is_no_number_bounds_nothing() -> None:
    prefix = '(cast(clip(round(%x), a_min=-9f, a_max=nanf), dtype="int32"),)'
    low, high = inputs(PREFIX=prefix, GIVEN="int32")
    assert low <= 0 <= high


@pytest.mark.parametrize(
    ("core", "suffix", "function"),
    [
        ("left_shift(%q, 20)", "", "quantize_inputs"),
        ("%q", "add(%r, 2147483600)", "dequantize_outputs"),
        ("%q", "left_shift(%r, 30)", "dequantize_outputs"),
        ("%q", "right_shift(%r, 32)", "dequantize_outputs"),
        ("%q", "multiply(%r, 99999999)", "dequantize_outputs"),
    ],
)
def test_integers_that_wrap_in_a_conversion_are_found(
    core: str, suffix: str, function: str
) -> None:
    prefix = clipped("%0").replace("(cast", "%1 = cast").replace('2"),)', '2");')
    after = core.replace("%q", "%1") if not suffix else "%1"
    ending = f'cast({suffix or "%r"}, dtype="float32")'
    mod = module(
        PREFIX=f"{prefix}\n  (left_shift({after}, 20),)" if not suffix else clipped("%0"),
        CORE="%q",
        SUFFIX=ending,
        GIVEN="int32",
    )
    proof = derive_static(mod)
    assert any(f"@{function}, %" in one for one in found(proof)), found(proof)


@pytest.mark.parametrize("name", ["take", "gather"])
def test_positions_that_int64_does_not_hold_are_refused(name: str) -> None:
    """As int64 they are negative: the first entry, where the bounds have the last."""
    data = 'cast(%q, dtype="int32")' if name == "gather" else "meta[relay.Constant][0]"
    tensors = {"k0": np.array([1 << 63], "uint64")}
    places = f'add(cast(%q, dtype="uint64"), meta[relay.Constant][{name == "take":d}])'
    if name == "take":
        tensors = {"k0": np.array([100, 1, 2], "int32"), "k1": tensors["k0"]}
    with pytest.raises(TypeInferenceError, match="positions are counted in int64"):
        module(tensors, CORE=f"{name}({data}, {places}, axis=0)")
