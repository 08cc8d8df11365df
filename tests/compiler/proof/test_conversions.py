"""What stands around the core converts each tensor by itself; whatever computes is refuted."""

from __future__ import annotations

import re
from collections.abc import Callable

import numpy as np
import pytest

from compiler import relay
from compiler.ir.analysis import free_vars
from compiler.ir.expr import Expr
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.text.parser import parse
from compiler.ops.number_format import Array
from compiler.pipeline import evaluate
from compiler.proof.derive import derive, derive_static
from compiler.quantize import QConfig
from tests.compiler.quantize.candidates import calibrated

op = relay.op

CONSTANTS: dict[str, Array] = {
    "SCALAR": np.float32(0.5),
    "VECTOR": np.array([0.5, 2, 1, 3], "float32"),
    "ROWS": np.linspace(1, 2, 3, dtype="float32").reshape(1, 3, 1),
    "FULL": np.linspace(-1, 1, 12, dtype="float32").reshape(1, 3, 4),
    "DIAGONAL": np.linspace(-1, 1, 12, dtype="float32").reshape(3, 4),
    "WEIGHTS": np.linspace(-1, 1, 16, dtype="float32").reshape(1, 4, 4),
    "TABLE": np.linspace(-1, 1, 256, dtype="float32"),
    "SHIFT": np.int32(1),
    "ONES": np.ones((1, 3, 4), "int32"),
}
X = "Tensor[(1, 3, 4), float32]"
HONEST_IN = """  %0 = multiply(%x, SCALAR);
  %1 = clip(round(%0), a_min=-100f, a_max=100f);
  (cast(%1, dtype="int8"),)"""
HONEST_OUT = '  multiply(cast(%r0, dtype="float32"), SCALAR)'


def typed(source: str) -> IRModule:
    """The module of a text in which names in capitals are constants."""
    used = [name for name in CONSTANTS if re.search(rf"\b{name}\b", source)]
    for place, name in enumerate(used):
        source = re.sub(rf"\b{name}\b", f"meta[relay.Constant][{place}]", source)
    listed = ", ".join(f'{{"npz": "{name}"}}' for name in used)
    tail = f'#[metadata]\n{{"relay.Constant": [{listed}]}}\n' if used else ""
    return infer_module(parse(f'#[version = "0.0.5"]\n{source}{tail}', external_data=CONSTANTS))


def module(prefix: str, suffix: str, *, inputs: str = f"%x: {X}", results: int = 1) -> IRModule:
    """A module of three parts whose core returns ``results`` copies of its parameters as int32."""
    start = f"def @quantize_inputs({inputs}) {{\n{prefix}\n}}\n"
    alone = typed(start)["quantize_inputs"].checked_type
    fields = alone.ret_type.fields  # type: ignore[attr-defined]  # of a function that gives a tuple
    params = ", ".join(f"%q{place}: {field}" for place, field in enumerate(fields))
    core = [f'cast(%q{place % len(fields)}, dtype="int32")' for place in range(results)]
    types = [str(fields[place % len(fields)]) for place in range(results)]
    types = [re.sub(r"\w+\]$", "int32]", name) for name in types]
    read = ", ".join(f"%r{place}: {name}" for place, name in enumerate(types))
    given = ", ".join(re.findall(r"%\w+", inputs))
    made = ", ".join(f"%b.{place}" for place in range(results)) if results > 1 else "%b"
    return typed(f"""{start}def @quantized_main({params}) {{
  {core[0] if results == 1 else f"({', '.join(core)})"}
}}
def @dequantize_outputs({read}) {{
{suffix}
}}
def @main({inputs}) {{
  let %a = @quantize_inputs({given});
  let %b = @quantized_main({", ".join(f"%a.{place}" for place in range(len(fields)))});
  @dequantize_outputs({made})
}}
""")


def refuted(mod: IRModule, what: str) -> None:
    findings = [f for f in derive_static(mod).findings if f.check == "dtypes"]
    assert findings
    assert any(what in finding.what for finding in findings), findings


ROUNDED = 'cast(clip(round(VALUE), a_min=-100f, a_max=100f), dtype="int8")'
TWO = f"%x: {X}, %z: {X}"


def rounded(value: str) -> str:
    return f"  ({ROUNDED.replace('VALUE', value)},)"


FORGED_IN = {
    "two inputs summed": (rounded("add(%x, %z)"), TWO, "joins 2 values"),
    "two inputs multiplied": (rounded("multiply(%x, %z)"), TWO, "joins 2 values"),
    "a square": (rounded("multiply(%x, %x)"), TWO, "joins 2 values"),
    "a hat, |x| by two bounds": (
        rounded("subtract(clip(%x, a_min=0f, a_max=9f), clip(%x, a_min=-9f, a_max=0f))"),
        TWO,
        "joins 2 values",
    ),
    "a float perceptron": (
        "  %0 = multiply(expand_dims(%x, axis=3), WEIGHTS);\n"
        "  %1 = clip(reshape(%0, newshape=[1, 3, 16]), a_min=0f, a_max=9f);\n" + rounded("%1"),
        TWO,
        "constants of shape (1, 4, 4)",
    ),
    "a diagonal product": (rounded("multiply(%x, FULL)"), TWO, "constants of shape (1, 3, 4)"),
    "a diagonal product that broadcasts": (
        rounded("multiply(%x, DIAGONAL)"),
        TWO,
        "constants of shape (3, 4)",
    ),
    "a second affine map": (
        '  %0 = multiply(cast(cast(%x, dtype="int32"), dtype="float32"), SCALAR);\n'
        + rounded("%0"),
        TWO,
        "scales what is rounded already",
    ),
    "a second affine map behind round": (
        rounded("multiply(round(multiply(%x, SCALAR)), VECTOR)"),
        TWO,
        "scales what is rounded already",
    ),
    "an offset that repeats elements": (
        rounded("add(expand_dims(%x, axis=3), WEIGHTS)"),
        TWO,
        "elements are repeated",
    ),
    "a power": (
        '  (left_shift(SHIFT, clip(cast(round(%x), dtype="int32"), a_min=0f, a_max=7f)),)',
        TWO,
        "shifts a constant by a value",
    ),
    "a constant": ('  (cast(FULL, dtype="int8"),)', TWO, "comes from no parameter"),
    "a table in float": (
        rounded('take(TABLE, cast(%x, dtype="int32"))'),
        TWO,
        "is no conversion",
    ),
    "gathered by data": (
        rounded('take(%x, cast(%z, dtype="int32"), mode="clip")'),
        TWO,
        "is no conversion",
    ),
    "a concatenation": (rounded("concatenate((%x, %z), axis=1)"), TWO, "is no conversion"),
    "a sum over an axis": (rounded("sum(%x, axis=[2])"), TWO, "is no conversion"),
    "a nonlinearity": (rounded("tanh(%x)"), TWO, "is no conversion"),
    "a slice": (
        rounded("strided_slice(%x, begin=[0, 0, 0], end=[1, 2, 4])"),
        TWO,
        "is no conversion",
    ),
}


@pytest.mark.parametrize("name", FORGED_IN)
def test_inputs_that_are_computed_and_not_converted_refute(name: str) -> None:
    prefix, inputs, what = FORGED_IN[name]
    refuted(module(prefix, HONEST_OUT, inputs=inputs), what)


FLOAT = 'cast(%r0, dtype="float32")'
OTHER = 'cast(%r1, dtype="float32")'
FORGED_OUT = {
    "two results summed": (f"  add({FLOAT}, {OTHER})", "joins 2 values"),
    "a result times itself": (f"  %0 = {FLOAT};\n  multiply(%0, %0)", "joins 2 values"),
    "a float perceptron of one layer": (
        f"  %0 = multiply(expand_dims({FLOAT}, axis=3), WEIGHTS);\n  clip(%0, a_min=0f, a_max=9f)",
        "constants of shape (1, 4, 4)",
    ),
    "a relu": (f"  clip({FLOAT}, a_min=0f, a_max=9f)", "bounds or rounds a result"),
    "a rounding": (f"  round(multiply({FLOAT}, SCALAR))", "bounds or rounds a result"),
    "a diagonal product": (f"  multiply({FLOAT}, DIAGONAL)", "constants of shape (3, 4)"),
    "a result repeated by a vector": (
        f"  multiply(expand_dims({FLOAT}, axis=3), VECTOR)",
        "elements are repeated",
    ),
    "a second affine map": (
        f'  %0 = cast(multiply({FLOAT}, SCALAR), dtype="int32");\n'
        '  multiply(cast(%0, dtype="float32"), VECTOR)',
        "scales what is rounded already",
    ),
    "a constant": ("  FULL", "comes from no parameter"),
    "a shift by a result": (
        '  cast(right_shift(SHIFT, %r0), dtype="float32")',
        "shifts a constant by a value",
    ),
    "a float product": (
        f"  nn.dense(reshape({FLOAT}, newshape=[3, 4]), DIAGONAL)",
        "no conversion",
    ),
    "a softmax": (f"  nn.softmax({FLOAT})", "is no conversion"),
    "a concatenation that mixes": (
        f"  concatenate(({FLOAT}, {OTHER}), axis=1)",
        "is no conversion",
    ),
    "a slice": (f"  strided_slice({FLOAT}, begin=[0, 0, 0], end=[1, 1, 4])", "is no conversion"),
    "a table in float": ("  take(TABLE, %r0)", "is no conversion"),
}


@pytest.mark.parametrize("name", FORGED_OUT)
def test_results_that_are_computed_and_not_converted_refute(name: str) -> None:
    suffix, what = FORGED_OUT[name]
    refuted(module(HONEST_IN, suffix, results=2), what)


HONEST = {
    "a number": (HONEST_IN, HONEST_OUT),
    "channels": (
        rounded("multiply(subtract(%x, ROWS), VECTOR)"),
        f"  add(multiply({FLOAT}, ROWS), VECTOR)",
    ),
    "layouts": (
        rounded("transpose(multiply(reshape(%x, newshape=[3, 2, 2]), SCALAR), axes=[2, 0, 1])"),
        f"  squeeze(expand_dims(transpose({FLOAT}, axes=[0, 2, 1]), axis=0), axis=[0])",
    ),
    "a mean of every pixel": (rounded("subtract(%x, FULL)"), HONEST_OUT),
    "a zero point": (
        '  (cast(add(clip(round(%x), a_min=-9f, a_max=9f), VECTOR), dtype="int32"),)',
        '  multiply(cast(subtract(%r0, SHIFT), dtype="float32"), SCALAR)',
    ),
    "several parameters of one input": (
        f"  %0 = multiply(%x, SCALAR);\n  ({ROUNDED.replace('VALUE', '%0')}, "
        f"{ROUNDED.replace('VALUE', '%x')})",
        HONEST_OUT,
    ),
    "a wider integer": (
        HONEST_IN,
        '  multiply(cast(cast(%r0, dtype="int64"), dtype="float32"), SCALAR)',
    ),
    "what a clip leaves": (
        rounded("multiply(clip(%x, a_min=-1f, a_max=1f), VECTOR)"),
        HONEST_OUT,
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_conversions_of_single_tensors_are_proved(name: str) -> None:
    assert derive_static(module(*HONEST[name])).findings == ()


def test_token_ids_and_states_pass_through() -> None:
    inputs = f"%x: {X}, %ids: Tensor[(1, 5), int64], %state: Tensor[(1, 4), int8]"
    prefix = HONEST_IN.replace(",)", ", %ids, %state)")
    suffix = f"  (multiply({FLOAT}, SCALAR), %r1, reshape(%r2, newshape=[4]))"
    mod = module(prefix, suffix, inputs=inputs, results=3)
    findings = derive_static(mod).findings
    # Without an embedding an int64 does not fit the core's int32: that is all.
    assert {finding.check for finding in findings} <= {"ranges"}


def test_the_frequencies_of_a_time_embedding_repeat_one_element() -> None:
    inputs = "%t: Tensor[(1, 1), float32]"
    mod = module(rounded("multiply(%t, VECTOR)"), HONEST_OUT, inputs=inputs)
    assert derive_static(mod).findings == ()


PIXELS = relay.const(np.random.default_rng(4).uniform(0.5, 2, (1, 3, 6, 6)).astype("float32"))
FIRST: dict[str, Callable[[relay.Var, relay.Var], Expr]] = {
    "a sum of two inputs": op.add,
    "a product of two inputs": op.multiply,
    "a square": lambda x, z: op.add(op.multiply(x, x), z),
    "a factor of every pixel": lambda x, z: op.multiply(x, PIXELS),
    "a mean of every pixel": lambda x, z: op.subtract(x, PIXELS),
    "two inputs behind factors": lambda x, z: op.subtract(
        op.multiply(x, relay.const(np.float32(2))), op.multiply(z, PIXELS)
    ),
    "a factor behind a rounding": lambda x, z: op.multiply(op.round(x), relay.const(np.float32(3))),
}


@pytest.mark.parametrize("name", FIRST)
def test_what_computes_on_inputs_becomes_part_of_the_core(name: str) -> None:
    """The quantizer takes for conversions what the proof does, so what it writes is proved."""
    rng = np.random.default_rng(8)
    x, z = (relay.var(which, (1, 3, 6, 6)) for which in "xz")
    weight = relay.const(rng.normal(0, 0.3, (4, 3, 3, 3)).astype("float32"))
    body = op.nn.conv2d(FIRST[name](x, z), weight)
    mod = infer_module(relay.module(relay.Function(tuple(free_vars(body)), body)))
    names = [param.name_hint for param in mod["main"].params]
    batches = [
        {which: rng.normal(0, 2, (1, 3, 6, 6)).astype("float32") for which in names}
        for _ in range(8)
    ]
    found = calibrated(mod, QConfig.recommended(calibrate_mode="max"), batches).partitioned
    assert found is not None
    (ours,), (floats,) = evaluate(found, batches[0]), evaluate(mod, batches[0])
    assert derive(found, [(batches[0], [ours])]).findings == ()
    assert ((ours - floats) ** 2).sum() < 0.01 * (floats**2).sum()
