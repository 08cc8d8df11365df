"""einsum(tuple; equation): Einstein summation over the fields of a tuple, as "bij,bjk->bik"."""

from __future__ import annotations

from typing import Any

import numpy as np

from compiler.errors import TypeInferenceError
from compiler.ir.expr import Call
from compiler.ir.op import OpPattern, define_op
from compiler.ir.ty import Dim, TensorType, Type
from compiler.lir.builder import LirBuilder, Reduction, TensorView
from compiler.lir.scalars import Bin, Cast, Scalar, literal
from compiler.ops.arg_types import Types, merge_dim, same_dtype, tensor_tuple
from compiler.ops.number_format import working
from compiler.ops.op_attrs import OpAttrs
from compiler.ops.reduce.reduction_loops import total_dtype
from compiler.ops.rules.lower import FLower, Lowered, OutTypes, Views
from compiler.ops.rules.numpy_compute import Arrays, FNumpyCompute


class EinsumAttrs(OpAttrs):
    """One letter per axis; without "->" the letters that occur once are kept, in order."""

    equation: str


def _terms(equation: str) -> tuple[list[str], str]:
    text = equation.replace(" ", "")
    inputs, arrow, output = text.partition("->")
    terms = inputs.split(",")
    if not arrow:
        letters = inputs.replace(",", "")
        output = "".join(sorted(c for c in set(letters) if letters.count(c) == 1))
    legal = set("".join(terms))
    if not all(c.isalpha() for c in legal | set(output)) or not set(output) <= legal:
        raise TypeInferenceError(f"einsum: equation {equation!r} is not understood")
    return terms, output


@define_op("einsum", pattern=OpPattern.INJECTIVE)
def einsum(types: Types, attrs: EinsumAttrs) -> Type:
    """One size per letter.

    Raises:
        TypeInferenceError: the equation does not fit the operands.
    """
    fields = tensor_tuple("einsum", types, 0, "data")
    terms, output = _terms(attrs.equation)
    if len(terms) != len(fields):
        raise TypeInferenceError(f"einsum: {len(fields)} operands for {attrs.equation!r}")
    sizes: dict[str, Dim] = {}
    for term, field in zip(terms, fields):
        same_dtype("einsum", fields[0], field)
        if len(term) != len(field.shape):
            raise TypeInferenceError(f"einsum: term {term!r} does not name the axes of {field}")
        for letter, size in zip(term, field.shape):
            sizes[letter] = merge_dim(
                "einsum", sizes.get(letter, size), size, f"size of {letter!r}"
            )
    return TensorType(tuple(sizes[c] for c in output), fields[0].dtype)


@FNumpyCompute.register(einsum)
def einsum_numpy(attrs: EinsumAttrs, args: Arrays, out_type: Type) -> list[Any]:
    """Compute with numpy, in the operands' dtype (float16 in float32)."""
    terms, output = _terms(attrs.equation)
    equation = f"{','.join(terms)}->{output}"
    return [np.einsum(equation, *(working(a) for a in args)).astype(args[0].dtype, copy=False)]


@FLower.register(einsum)
def einsum_lower(call: Call, inputs: Views, out_types: OutTypes, b: LirBuilder) -> Lowered:
    """One reduction over the letters that the result does not have."""
    attrs = EinsumAttrs.of(call)
    terms, output = _terms(attrs.equation)
    dtype = inputs[0].dtype
    work = total_dtype(dtype)
    views = [view.cast(work) for view in inputs]
    sizes = {c: n for term, view in zip(terms, views) for c, n in zip(term, view.shape)}
    summed = sorted(set(sizes) - set(output))
    times = "and" if dtype == "bool" else "*"

    def element(at: tuple[Scalar, ...], r: tuple[Scalar, ...]) -> Scalar:
        letters = dict(zip((*output, *summed), (*at, *r)))
        value: Scalar | None = None
        for term, view in zip(terms, views):
            factor = view.at([letters[c] for c in term])
            value = factor if value is None else Bin(times, value, factor)
        assert value is not None
        return value

    if not summed:
        found = TensorView.of(out_types[0].concrete_shape, lambda at: element(at, ()))
        return [found.cast(dtype)]
    sums = b.reduce(
        out_types[0].concrete_shape,
        Reduction(
            "max" if dtype == "bool" else "sum",
            literal(0, work),
            post=None if work == dtype else lambda acc, at: Cast(dtype, acc),
            dtype=dtype,
        ),
        [(f"r{k}", sizes[c]) for k, c in enumerate(summed)],
        element,
    )
    return [sums]
