"""partition_conversions: quantize_inputs, quantized_main, dequantize_outputs, and main over them.

    def @main(%x) {
      let %quantized_inputs = @quantize_inputs(%x);
      let %quantized_outputs = @quantized_main(%quantized_inputs.0);
      let %dequantized_outputs = @dequantize_outputs(%quantized_outputs);
      %dequantized_outputs
    }

An output that is a parameter or a constant is computed by none of the three: @main returns it
beside the results, and the module attribute ``passthrough`` declares it: {"1": "input:x"}.

Source: Relay v0.10 quantize/_partition_conversions.py.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from compiler.errors import NotFullyIntegralError
from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    GlobalVar,
    Let,
    Op,
    Tuple,
    TupleGetItem,
    Var,
    describe,
    is_op_call,
)
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import rebuilt
from compiler.ir.ty import TensorType, TupleType, bits, holds_float, is_float, tensor_fields
from compiler.ir.walk import behind, nodes_of, post_order
from compiler.ops.rules.realize import WIDE_INPUT
from compiler.qtypes.errors import ModuleShapeError
from compiler.qtypes.qconfig import QConfig
from compiler.quantize.conversions.operators import is_conversion
from compiler.quantize.conversions.splitting import split_prefix, split_suffix

PREFIX = "quantize_inputs"
CORE = "quantized_main"
SUFFIX = "dequantize_outputs"


def partition_conversions(
    mod: IRModule, quantized_dtypes: Iterable[str], ensure_fully_integral: bool
) -> IRModule:
    """Cut a quantized module into conversions of inputs, integer core, conversions of outputs.

    Args:
        mod: a module with ``main`` only.
        quantized_dtypes: dtypes that count as quantized at the border to the outputs.
        ensure_fully_integral: refuse a module whose core computes in float.

    Raises:
        ModuleShapeError: more than one function, or a polymorphic or attributed one.
        NotFullyIntegralError: see ``ensure_fully_integral``; names the offending operators.
    """
    dtypes = frozenset(quantized_dtypes)
    computing, passed = _without_passed(_plain_main(mod))
    pre_mod, rest = partition_prefix(_module(computing), dtypes)
    mid_mod, post_mod = partition_suffix(rest, dtypes)
    if ensure_fully_integral:
        check_fully_integral(
            {PREFIX: pre_mod["main"], CORE: mid_mod["main"], SUFFIX: post_mod["main"]}
        )
    return fuse_partitions(pre_mod, mid_mod, post_mod, passed)


def _without_passed(main: Function) -> tuple[Function, dict[int, Var | Constant]]:
    """``main`` without the outputs that are a parameter or a constant, and these by position.

    Such an output needs no integers: @main returns what its caller has, or what is known.
    """
    if isinstance(main.body, Tuple):
        fields = main.body.fields
    else:
        fields = (main.body,)
    names = Counter(param.name_hint for param in main.params)
    passed: dict[int, Var | Constant] = {}
    for position, field in enumerate(fields):
        source = behind(field, ("copy",))[1]
        if isinstance(source, Constant) or (
            isinstance(source, Var) and source in main.params and names[source.name_hint] == 1
        ):
            passed[position] = source
    flat = all(isinstance(field.checked_type, TensorType) for field in fields)
    if not passed or not flat or len(passed) == len(fields):
        return main, {}
    left = tuple(field for place, field in enumerate(fields) if place not in passed)
    return Function(main.params, left[0] if len(left) == 1 else Tuple(left)), passed


def partition_prefix(mod: IRModule, quantized_dtypes: Iterable[str]) -> tuple[IRModule, IRModule]:
    """(module that converts the inputs to a tuple, module of the rest).

    Raises:
        ModuleShapeError: more than one function, or a polymorphic or attributed one.
    """
    prefix, core = split_prefix(_plain_main(mod))
    return _module(prefix), _module(core)


def partition_suffix(mod: IRModule, quantized_dtypes: Iterable[str]) -> tuple[IRModule, IRModule]:
    """(module without the conversions of its outputs, module of these conversions).

    Raises:
        ModuleShapeError: more than one function, or a polymorphic or attributed one.
    """
    core, suffix = split_suffix(_plain_main(mod), frozenset(quantized_dtypes))
    return _module(core), _module(suffix)


def fuse_partitions(
    pre_mod: IRModule,
    mid_mod: IRModule,
    post_mod: IRModule,
    passed: Mapping[int, Var | Constant] | None = None,
) -> IRModule:
    """One module of the three parts, with a ``main`` that calls them in order.

    Args:
        passed: outputs of ``main`` that no part computes, by position: a parameter, by its
            name, or a constant. The module attribute ``passthrough`` declares them.
    """
    prefix, core, suffix = (m["main"] for m in (pre_mod, mid_mod, post_mod))
    names = {name: GlobalVar(name) for name in (PREFIX, CORE, SUFFIX)}
    params = tuple(Var(p.name_hint, p.checked_type) for p in prefix.params)
    inputs = Var("quantized_inputs")
    outputs = Var("quantized_outputs")
    results = Var("dequantized_outputs")
    arguments = tuple(TupleGetItem(inputs, i) for i in range(len(core.params)))
    returned: tuple[Expr, ...] = (outputs,)
    if len(suffix.params) > 1:
        returned = tuple(TupleGetItem(outputs, i) for i in range(len(suffix.params)))
    body, declared = _returned(results, suffix, params, passed or {})
    body = Let(results, Call(names[SUFFIX], returned), body)
    body = Let(outputs, Call(names[CORE], arguments), body)
    body = Let(inputs, Call(names[PREFIX], params), body)
    functions: dict[GlobalVar, Function] = {
        names[PREFIX]: prefix,
        names[CORE]: core,
        names[SUFFIX]: suffix,
        GlobalVar("main"): Function(params, body),
    }
    return infer_module(IRModule(functions, attrs=declared))


def _returned(
    results: Var, suffix: Function, params: Sequence[Var], passed: Mapping[int, Var | Constant]
) -> tuple[Expr, dict[str, dict[str, str]]]:
    """Return the body of ``main``, and the attributes of the module."""
    if not passed:
        return results, {}
    ty = suffix.func_type.ret_type
    fields: list[Expr] = [results]
    if isinstance(ty, TupleType):
        fields = [TupleGetItem(results, index) for index in range(len(ty.fields))]
    by_name = {param.name_hint: param for param in params}
    declared: dict[str, str] = {}
    for position in sorted(passed):
        source = passed[position]
        if isinstance(source, Var):
            declared[str(position)] = f"input:{source.name_hint}"
            fields.insert(position, by_name[source.name_hint])
        else:
            declared[str(position)] = "constant"
            fields.insert(position, source)
    return Tuple(tuple(fields)), {"passthrough": declared}


def check_fully_integral(functions: Mapping[str, Function]) -> None:
    """Refuse float inside quantized_main, and other than conversions around it.

    Raises:
        NotFullyIntegralError: names the function, operators and dtypes that offend.
    """
    problems: list[str] = []
    returned = _returned_inputs(functions)
    for name in (PREFIX, SUFFIX):
        nodes = nodes_of(functions[name])
        foreign = [n for n in nodes if isinstance(n, Call) and not is_conversion(n)]
        if returned:
            foreign = [n for n in foreign if not is_op_call(n, "copy")]
        if foreign:
            problems.append(f"@{name} holds {_kinds(foreign)}, no conversion")
    floats = [
        node
        for node in (*functions[CORE].params, *nodes_of(functions[CORE]))
        if not isinstance(node, (Op, GlobalVar, Function)) and holds_float(node.checked_type)
    ]
    # Dequantization around a float operator is a consequence; the operator is the cause.
    causes = [n for n in floats if isinstance(n, Call) and not is_conversion(n)]
    if floats and (causes or not returned):
        tensors = (t.dtype for node in floats for t in tensor_fields(node.checked_type))
        dtypes = ", ".join(sorted({dtype for dtype in tensors if is_float(dtype)}))
        problems.append(f"@{CORE} computes in {dtypes}: {_kinds(causes or floats)}")
    fix = (
        "`qsearch doctor` says what stays float and why, QuantizeContext.report in Python; "
        "partition_conversions='enabled' allows float"
    )
    if returned and not problems:  # beside others: what is float behind reads the input
        names = ", ".join(f"%{name}" for name in returned)
        fix = "partition_conversions='enabled' lets it through in float"
        problems.append(
            f"an output of the model is its input {names}, only converted; no integer "
            "stands between them, so leave this output out of the model: its caller has the values"
        )
    if problems:
        raise NotFullyIntegralError(
            "the module is not on integers only: " + "; ".join(problems), fix=fix
        )


def _returned_inputs(functions: Mapping[str, Function]) -> tuple[str, ...]:
    """Names of float inputs that quantized_main returns as they are."""
    core = functions[CORE]
    if isinstance(core.body, Tuple):
        fields = core.body.fields
    else:
        fields = (core.body,)
    given = functions[PREFIX].body
    while isinstance(given, Let):
        given = given.body
    assert isinstance(given, Tuple)
    return tuple(
        source.name_hint
        for param, source in zip(core.params, given.fields)
        if param in fields and isinstance(source, Var) and holds_float(param.checked_type)
    )


def _kinds(nodes: Sequence[Expr]) -> str:
    """``3 x call of sigmoid (first: ONNX node 'Sigmoid_4')``, for at most five kinds of node."""
    groups: dict[str, list[Expr]] = {}
    for node in nodes:
        groups.setdefault(describe(node), []).append(node)
    shown = []
    for kind, members in list(groups.items())[:5]:
        count = f"{len(members)} x " if len(members) > 1 else ""
        source = next((f" (first: {m.span})" for m in members if m.span is not None), "")
        shown.append(f"{count}{kind}{source}")
    return ", ".join(shown) + (f" and {len(groups) - 5} more" if len(groups) > 5 else "")


def _module(function: Function) -> IRModule:
    return infer_module(IRModule({"main": function}))


def _plain_main(mod: IRModule) -> Function:
    """The one function of the module, typed and without lets."""
    functions = mod.functions
    if len(functions) != 1 or "main" not in mod:
        names = ", ".join(f"@{gv.name_hint}" for gv in functions)
        raise ModuleShapeError(
            f"partition_conversions needs a module with @main only, this one has {names}",
            fix="inline or remove the other functions first",
        )
    main = infer_module(mod)["main"]
    if not isinstance(main, Function) or main.type_params or len(main.attrs):
        raise ModuleShapeError(
            "partition_conversions needs a plain function: no type parameters, no attributes",
            where="@main",
        )
    if not any(type(node) is Let for node in nodes_of(main)):
        return main
    plain = Function(main.params, _without_lets(main.body), main.ret_type, span=main.span)
    flat: Function = infer_module(IRModule({"main": plain}))["main"]
    return flat


def _without_lets(body: Expr) -> Expr:
    """Every let-bound variable replaced by its value, which stays shared."""
    value_of = {node.var: node.value for node in post_order(body) if isinstance(node, Let)}

    def plain(node: Expr, new: Mapping[Expr, Expr]) -> Expr | None:
        if isinstance(node, Let):
            return new[node.body]
        if isinstance(node, Var) and node in value_of:
            return new[value_of[node]]
        return None

    # A value comes before the body that names it.
    order = post_order(body, lambda node: node.operands()[isinstance(node, Let) :])
    return rebuilt(order, plain)[body]


def integer_dtypes(cfg: QConfig) -> set[str]:
    """Return the dtypes that hold the integers of a quantized module."""
    dtypes = {cfg.dtype_input, cfg.dtype_weight, cfg.dtype_activation}
    if cfg.most_input_bits > bits(cfg.dtype_input):
        dtypes.add(WIDE_INPUT)
    return dtypes
