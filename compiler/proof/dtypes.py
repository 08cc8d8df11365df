"""No float between entry and exit: the dtypes of everything in quantized_main, and what may stand
around it.

quantize_inputs and dequantize_outputs may hold conversions only: every result of theirs comes from
one tensor, element by element, by one affine map, rounding, clip, cast and layout. Sums of elements
and products of values are work for the core. ``wiring`` checks main. Inside
quantized_main there are operators on integer and bool tensors, nothing else: no float constant, no
float result, no closure, no branch. Scales are integer multipliers and shifts there; the only float
attributes are bounds of clip, which count as the integers they are truncated to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any

from compiler.errors import CompilerError
from compiler.ir.dataflow import Step, Value, dataflow
from compiler.ir.expr import (
    Call,
    Constant,
    Function,
    Let,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    describe,
)
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType, TupleType, Type, is_float, is_integer
from compiler.ir.walk import nodes_of, post_order
from compiler.proof.wiring import CORE, PREFIX, SUFFIX
from compiler.ranges.finding import Finding
from compiler.ranges.reals import LAYOUT

_OFFSETS = frozenset(("add", "subtract"))
_SCALES = frozenset(("fixed_point_multiply", "left_shift", "multiply", "right_shift"))
_ROUNDING = frozenset(("clip", "round", "round_even"))
CONVERSIONS = frozenset((*LAYOUT, *_OFFSETS, *_SCALES, *_ROUNDING, "cast"))
"""Operators that quantize_inputs and dequantize_outputs may be made of."""

# Bounds of clip are truncated to integers when they run. Resizing integers picks elements (their
# relation refuses interpolation), so its numbers are geometry.
_FLOAT_ATTRS = {
    "clip": ("a_min", "a_max"),
    "image.resize2d": ("cubic_alpha",),
    "nn.upsampling": ("scale_h", "scale_w"),
    "nn.fixed_point_softmax": ("scale",),  # for LiteRT files; no integer depends on it
}

_PLAIN = (Call, Constant, Function, Let, Op, Tuple, TupleGetItem, Var)


def check_dtypes(mod: IRModule) -> tuple[Finding, ...]:
    """Everything in a partitioned module that is not integers between conversions.

    Args:
        mod: typed.
    """
    functions = {
        gv.name_hint: function
        for gv, function in mod.functions.items()
        if isinstance(function, Function)
    }
    missing = [name for name in (PREFIX, CORE, SUFFIX, "main") if name not in functions]
    if missing:
        return tuple(
            Finding("dtypes", f"@{name}", "is missing, so the module is not partitioned")
            for name in missing
        )
    findings = list(_check_core(functions[CORE]))
    for name in (PREFIX, SUFFIX):
        foreign = list(_check_conversions(name, functions[name]))
        findings.extend(foreign or _check_maps(mod, name))
    return tuple(findings)


def _check_core(core: Function) -> Iterator[Finding]:
    number = 0
    for node in post_order(core):
        wrong: list[str] = []
        if isinstance(node, Call):
            number += 1
            if not isinstance(node.op, Op):
                wrong.append("calls something that is no operator")
            else:
                wrong += _float_attrs(node.op.name, node.attrs)
        elif not isinstance(node, _PLAIN):
            wrong.append(f"a {type(node).__name__} is no arithmetic on tensors")
        if isinstance(node, _PLAIN) and not isinstance(node, (Op, Function)):
            for dtype in dtypes_of(node.checked_type):
                if not _is_whole(dtype):
                    wrong.append(f"is {dtype}, not an integer")
        if wrong:
            place = f"%{number - 1} " if isinstance(node, Call) else ""
            name = f"{place}{describe(node)}"
            yield from (Finding("dtypes", name, what) for what in wrong)


def _float_attrs(op: str, attrs: Any) -> Iterator[str]:
    if attrs is None:
        return
    for key, value in attrs.items():
        entries = value if isinstance(value, tuple) else (value,)
        for entry in entries:
            if isinstance(entry, float) and key not in _FLOAT_ATTRS.get(op, ()):
                yield f"has the float attribute {key}={value}"
                break


def _check_conversions(name: str, function: Function) -> Iterator[Finding]:
    for node in nodes_of(function):
        if isinstance(node, Call):
            if not isinstance(node.op, Op) or node.op.name not in CONVERSIONS:
                what = "is no conversion; it belongs into @quantized_main, on integers"
                yield Finding("dtypes", f"@{name}, {describe(node)}", what)
        elif not isinstance(node, _PLAIN):
            yield Finding("dtypes", f"@{name}, {describe(node)}", "is no conversion")


def _check_maps(mod: IRModule, name: str) -> Iterator[Finding]:
    """Results that are no element-by-element conversion of one parameter.

    No two values are joined, so no sum over elements and no product of values can be built. Factors
    are numbers or vectors, and stand in front of the rounding. Of results nothing is rounded.
    """
    try:
        flow = dataflow(mod, name)
    except CompilerError as error:
        yield Finding("dtypes", f"@{name}", f"cannot be followed: {error.what}")
        return
    rounded = dict.fromkeys(flow.inputs, False)
    for step in flow.steps:
        read = [value for value in step.args if value in rounded]
        if not read:
            continue
        wrong = _no_map(step, read, rounded[read[0]], name)
        if wrong:
            yield Finding("dtypes", f"@{name}, {step.name} of {read[0].type}", wrong)
        whole = step.name == "cast" and is_float(read[0].type.dtype)
        whole = whole and not is_float(step.result.type.dtype)
        rounds = step.name in ("round", "round_even") or whole
        rounded |= dict.fromkeys(step.results, rounds or rounded[read[0]])
    for place, value in enumerate(flow.outputs):
        if value not in rounded:
            yield Finding("dtypes", f"@{name}", f"result {place} comes from no parameter")
    flow.unlink()


def _no_map(step: Step, read: Sequence[Value], rounded: bool, name: str) -> str:
    """Explain why a step is no conversion of one value; "" where it is one."""
    value = read[0]
    made = step.result.type
    if len(read) > 1:
        return f"joins {len(read)} values; a conversion reads one, beside constants"
    if step.name.endswith("_shift") and step.args[0] is not value:
        return "shifts a constant by a value, which is a power and no conversion"
    if name == SUFFIX and step.name in _ROUNDING:
        return "bounds or rounds a result; it belongs into @quantized_main, on integers"
    if step.name in _SCALES and rounded:
        return "scales what is rounded already; a conversion is one affine map"
    shapes = [arg.type.concrete_shape for arg in step.args if arg is not value]
    long = max((sum(size > 1 for size in shape) for shape in shapes), default=0)
    if step.name in _SCALES and long > 1:
        return f"multiplies by constants of shape {shapes[0]}; a factor is a number or a vector"
    # The frequencies of an embedding of time: one element, times a vector.
    repeated = name == PREFIX and step.name == "multiply" and long == 1
    if made.num_elements != value.type.num_elements and not repeated:
        return f"makes {made} of it: elements are repeated"
    return ""


def dtypes_of(ty: Type) -> list[str]:
    """Dtypes of all tensors in a type; the type's own text where it is neither tensor nor tuple."""
    found: list[str] = []
    stack: list[Type] = [ty]
    while stack:
        one = stack.pop()
        if isinstance(one, TensorType):
            found.append(one.dtype)
        elif isinstance(one, TupleType):
            stack.extend(reversed(one.fields))
        else:
            found.append(str(one))
    return found


def _is_whole(dtype: str) -> bool:
    return dtype == "bool" or is_integer(dtype)


def count_values(mod: IRModule) -> dict[str, int]:
    """Count the tensors of each dtype in quantized_main: parameters, constants and results."""
    nodes = (node for node in post_order(mod[CORE]) if isinstance(node, (Var, Constant, Call)))
    counts = Counter(dtype for node in nodes for dtype in dtypes_of(node.checked_type))
    return dict(sorted(counts.items()))
