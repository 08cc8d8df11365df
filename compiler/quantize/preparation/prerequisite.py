"""Prepare a module for quantization: parameters become constants, inference arithmetic is folded.

Source: prerequisite_optimize in Relay v0.10 quantize/quantize.py.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
from numpy.typing import NDArray

import compiler.passes.cancel_transposes
import compiler.passes.canonicalize_ops
import compiler.passes.fold_constant
import compiler.passes.fold_scale_axis
import compiler.passes.hoist_epilogues
import compiler.passes.recover_points
import compiler.passes.simplify_expr
import compiler.passes.simplify_inference  # noqa: F401  (the passes named below)
from compiler.ir.expr import Call, Constant, Expr, Function, Var
from compiler.ir.garbage import collector_rests
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.loops import opened
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import PassContext, Sequential
from compiler.ir.rebuild import rebuilt, rebuilt_function
from compiler.ir.ty import TensorType, Type, is_float, tensor_fields
from compiler.ir.walk import nodes_of, post_order
from compiler.ops.tensor.cast import CastAttrs
from compiler.qtypes.errors import DuplicateParameterError
from compiler.quantize.layers import named_layers, reads_table
from compiler.quantize.preparation.even_inputs import even_inputs
from compiler.quantize.rewriting import rewritten

Params = Mapping[str, NDArray[Any] | Constant]
"""Weights by the name of the parameter they are bound to."""

SIMPLIFY = ("CancelTransposes", "HoistEpilogues", "SimplifyExpr")
NORMS = ("SimplifyInference", "FoldConstant")
PRODUCTS = ("CanonicalizeOps", "FoldConstant")
PASSES = (*NORMS, "FoldScaleAxis", *PRODUCTS)


@collector_rests
def prerequisite_optimize(
    mod: IRModule,
    params: Params | None = None,
    opt_level: int | None = None,
    *,
    simplify: bool = False,
) -> IRModule:
    """Bind parameters, then simplify, fold and canonicalize as the opt level allows.

    Args:
        mod: a float module.
        params: values by parameter name; names that match nothing are ignored.
        opt_level: at 3 batch norms are folded into weights and bias_add becomes add; None takes
            the level of the current PassContext (default 2).
        simplify: compute in float32 what is float16 or float64, and run CancelTransposes,
            HoistEpilogues and SimplifyExpr behind the first two passes, for models as exporters
            write them: pairs of transposes and reshapes, padding in front of convolutions, neutral
            operands. Columns of tables get factors where they are uneven.

    Raises:
        DuplicateParameterError: two parameters share a name that is bound (also a ValueError).
    """
    if params:
        mod = bind_params(mod, params)
    mod = opened(mod)
    if simplify:
        mod = in_single_precision(mod)
    scope = nullcontext() if opt_level is None else PassContext.current().inner(opt_level=opt_level)
    with scope:
        # Norms as arithmetic with constants, and products by them, first: what SIMPLIFY moves.
        again = ("FoldConstant", "FoldScaleAxis", *PRODUCTS)
        passes = ("RecoverPoints", *NORMS, *PRODUCTS, *SIMPLIFY, *again) if simplify else PASSES
        mod = Sequential(passes, name="prerequisite_optimize")(mod)
    if simplify:
        return even_inputs(with_tied_tables(mod))
    return mod


def with_tied_tables(mod: IRModule) -> IRModule:
    """The module in which a weight with the values of a table is the table: exporters write it
    twice, or as the transpose of a transpose. The very same where there is none."""
    main: Function = mod["main"]
    read = {node.args[0] for node in nodes_of(main) if reads_table(node)}
    tables = {_digest(table): table for table in read if isinstance(table, Constant)}
    shapes = {table.data.shape for table in tables.values()}
    same: dict[Expr, Expr] = {}
    for weight in {layer.args[1] for layer in named_layers(main)} - read:
        if not isinstance(weight, Constant) or weight.data.shape not in shapes:
            continue
        if (table := tables.get(_digest(weight))) is not None:
            same[weight] = table
    return rewritten(mod, lambda node, _: same.get(node))


def _digest(constant: Constant) -> tuple[Any, ...]:
    data = np.ascontiguousarray(constant.data)
    return data.shape, data.dtype.str, hashlib.sha256(data.data).digest()


def bind_params(mod: IRModule, params: Params) -> IRModule:
    """``main`` with these parameters replaced by constants; the others keep their order.

    Raises:
        DuplicateParameterError: two parameters share a name that is bound (also a ValueError).
    """
    main: Function = mod["main"]
    names = Counter(param.name_hint for param in main.params)
    constants: dict[Expr, Expr] = {}
    for param in main.params:
        value = params.get(param.name_hint)
        if value is None:
            continue
        if names[param.name_hint] > 1:
            raise DuplicateParameterError(
                f"Multiple args in the function have name {param.name_hint}",
                where="@main",
                fix="give the parameters of the function distinct names",
            )
        constants[param] = value if isinstance(value, Constant) else Constant(value)
    if not constants:
        return mod
    kept = tuple(param for param in main.params if param not in constants)
    bound = rebuilt_function(main, lambda node, _: constants.get(node), kept)
    return infer_module(mod.with_function("main", bound))


WANTED = "float32"
_OTHERS = ("float16", "float64")


def in_single_precision(mod: IRModule) -> IRModule:
    """The module with a ``main`` in float32; the very same where it is that already.

        before                                            after
        fn (%x: Tensor[(1, 4), float16]) {                fn (%x: Tensor[(1, 4), float32]) {
          nn.dense(cast(%x, dtype="float32"), w) }          nn.dense(%x, w) }

    Quantization is simulated in float32. Weights keep their values, inputs and outputs become
    float32: integers of 8 bits cannot tell the precisions apart, and generated C has no float16.

    Args:
        mod: typed, one function.
    """
    main: Function = mod["main"]
    nodes = list(post_order(main))
    known = (node.checked_type_or_none for node in nodes[:-1])
    if len(mod.functions) > 1 or not any(ty is not None and _is_other(ty) for ty in known):
        return mod
    made = rebuilt(nodes, _in_float32)[main]
    assert isinstance(made, Function)
    return infer_module(mod.with_function("main", made.with_fields(ret_type=None)))


def _in_float32(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
    """The node in float32; None where only its operands change."""
    if isinstance(node, Var) and isinstance(node.checked_type_or_none, TensorType):
        ty = node.tensor_type
        if ty.dtype not in _OTHERS:
            return None
        return Var(node.name_hint, TensorType(ty.shape, WANTED), span=node.span)
    if isinstance(node, Constant):
        other = str(node.data.dtype) in _OTHERS
        if other:
            return Constant(node.data.astype(np.float32), span=node.span)
        return None
    if not isinstance(node, Call) or node.attrs is None:
        return None
    named = {name: WANTED for name, value in node.attrs.items() if value in _OTHERS}
    if isinstance(node.attrs, CastAttrs) and is_float(node.attrs.dtype):
        (data,) = node.args
        if all(is_float(ty.dtype) for ty in tensor_fields(data.checked_type)):
            return new[data]
    if not named:
        return None
    args = tuple(new[arg] for arg in node.args)
    return Call(node.op, args, node.attrs.with_values(**named), span=node.span)


def _is_other(ty: Type) -> bool:
    return any(tensor.dtype in _OTHERS for tensor in tensor_fields(ty))
