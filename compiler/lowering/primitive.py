"""From a primitive function to a PrimFunc: operators answer through FLower (spec section 5.6).

    fn(p0, p1, p2) {                         o0[n, o, y, x] for (n<1, o<4, y<8, x<8) =
      relu(add(conv2d(p0, p1), p2))              sum(0f; c<3, i<3, j<3) p0[…] * p1[…]
    }                                            |> max(acc + p2[o, 0, 0], 0f)

Nodes are lowered in post-order into views; what is read twice and costs work is stored once;
outputs become blocks; epilogues join the reduction they follow (``compiler.lowering.epilogue``).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from compiler.core.legalize import forget, words_of
from compiler.core.words import FBody
from compiler.errors import CompilerError, DynamicShapeError, LoweringError
from compiler.ir.analysis import count_uses
from compiler.ir.attrs import DictAttrs
from compiler.ir.dataflow import Step, Value
from compiler.ir.expr import Call, Constant, Expr, Function, Op, Tuple, TupleGetItem, Var, describe
from compiler.ir.op import OpPattern
from compiler.ir.ty import TensorType, TupleType, is_dynamic, tensor_fields
from compiler.ir.walk import nodes_of, post_order
from compiler.lir.builder import RECOMPUTED_COST, LirBuilder, TensorView
from compiler.lir.nodes import Compute, PrimFunc
from compiler.lir.scalars import Buffer, literal
from compiler.lir.verify import verify
from compiler.lowering.epilogue import join_epilogues, renumbered
from compiler.ops.evaluate import definition_of
from compiler.ops.number_format import storage_dtype
from compiler.ops.rules.lower import FLower
from compiler.ops.rules.simplify import FDefinition, FSimplifyInference, SimplifyRule

Views = list[TensorView]

# An expression grows at most so far by one operator's repeated reading of its operands.
_GROWTH = 48


def lower_primitive(func: Function, name: str, target: object) -> PrimFunc:
    """The loops of a function that fusion has made.

    Args:
        func: typed, with static shapes; its body is operator calls, tuples, constants, parameters.
        name: of the PrimFunc.
        target: whose text becomes attribute ``target``.
    Raises:
        DynamicShapeError: a parameter or the result has an unknown dimension.
        LoweringError: the body holds what is no tensor code, such as a closure.
        CompilerError: an operator has neither an FLower rule nor a body in words.
    """
    if is_dynamic(func.checked_type):
        raise DynamicShapeError(
            f"@{name} has type {func.checked_type}: loops need known sizes",
            fix="give every dimension a size before lowering",
            span=func.span,
        )
    builder = LirBuilder()
    params, views = _parameters(func)
    uses = count_uses(func.body)
    uses[func.body] += 1
    for node in nodes_of(func):
        if node not in views:
            views[node] = _lowered(node, views, uses, builder)
    outputs = _outputs(views[func.body], builder)
    lowered = PrimFunc(
        name,
        tuple(params),
        tuple(outputs),
        tuple(builder.temps),
        tuple(builder.consts),
        tuple(builder.blocks),
        DictAttrs({"target": str(target)}),
    )
    finished = renumbered(join_epilogues(lowered))
    verify(finished)
    return finished


def _parameters(func: Function) -> tuple[list[Buffer], dict[Expr, Views]]:
    """A buffer per tensor of the parameters, tuples flattened left to right."""
    buffers: list[Buffer] = []
    views: dict[Expr, Views] = {}
    for param in func.params:
        mine = [
            Buffer(f"p{len(buffers) + k}", ty.concrete_shape, str(storage_dtype(ty.dtype)), "param")
            for k, ty in enumerate(tensor_fields(param.checked_type))
        ]
        buffers += mine
        views[param] = [TensorView.of_buffer(buffer) for buffer in mine]
    return buffers, views


def _lowered(
    node: Expr, views: dict[Expr, Views], uses: Counter[Expr], builder: LirBuilder
) -> Views:
    if isinstance(node, Constant):
        return [_constant(node, builder)]
    if isinstance(node, Tuple):
        return [view for part in node.fields for view in views[part]]
    if isinstance(node, TupleGetItem):
        return _field(node, views)
    if isinstance(node, Op):
        return []
    if isinstance(node, Call) and isinstance(node.op, Op):
        return _call(node, node.op, views, uses, builder)
    if isinstance(node, Var):
        what = f"variable {node.name_hint}"
    else:
        what = describe(node)
    raise LoweringError(
        f"{what} cannot stand in a primitive function",
        fix="lower calls of operators on parameters, constants and tuples only",
        span=node.span,
    )


def _constant(node: Constant, builder: LirBuilder) -> TensorView:
    if node.data.size == 1:
        value = literal(node.data.item(), str(node.data.dtype))
        return TensorView.of(node.data.shape, lambda at: value)
    return builder.constant(node.data)


def _field(node: TupleGetItem, views: dict[Expr, Views]) -> Views:
    fields = node.tuple.checked_type
    assert isinstance(fields, TupleType)
    start = sum(len(tensor_fields(ty)) for ty in fields.fields[: node.index])
    return views[node.tuple][start : start + len(tensor_fields(node.checked_type))]


def _call(
    call: Call, op: Op, views: dict[Expr, Views], uses: Counter[Expr], builder: LirBuilder
) -> Views:
    inputs = [view for arg in call.args for view in views[arg]]
    if op.pattern is None or op.pattern >= OpPattern.COMM_REDUCE:
        inputs = [builder.finished(view) for view in inputs]
    out_types = tensor_fields(call.checked_type)
    try:
        if is_dynamic(call.checked_type):
            raise DynamicShapeError(f"{op.name} has the type {call.checked_type}")
        rule = FLower.get(op)
        if rule is None:
            found = None
        else:
            found = rule(call, inputs, out_types, builder)
        definition = FDefinition.get(op) or FSimplifyInference.get(op)
        if found is None and definition is not None:
            found = _by_definition(call, op, definition, inputs, builder)
        elif found is None:
            found = _in_words(call, op, inputs, builder)
    except CompilerError as error:
        error.add_note(f"while lowering {describe(call)}")
        raise
    _check(op, found, out_types)
    spent = sum(view.cost for view in inputs)
    repeated = uses[call] > 1
    return [_kept(view, repeated, spent, builder) for view in found]


def _by_definition(
    call: Call, op: Op, definition: SimplifyRule, inputs: Views, builder: LirBuilder
) -> Views:
    """The loops of the calls that an operator stands for; float16 is widened inside."""
    wide = [view.cast({"float16": "float32"}.get(view.dtype, view.dtype)) for view in inputs]
    types = [TensorType(view.shape, view.dtype) for view in wide]
    defined = definition_of(definition, op, call.attrs, types, call.span)
    body = defined.body
    uses = count_uses(defined.body)
    views: dict[Expr, Views] = {
        param: [builder.reusable(view) if uses[param] > 1 else view]
        for param, view in zip(defined.params, wide)
    }
    for node in post_order(body):
        if node in views:
            continue
        if (
            isinstance(node, Call)
            and isinstance(node.op, Op)
            and node.op.pattern == OpPattern.BROADCAST
        ):
            # What is spread over more elements is computed once, at the end of the sum it is of.
            for arg in node.args:
                if arg.tensor_type.num_elements < node.tensor_type.num_elements:
                    views[arg] = [builder.store(v) if v.cost else v for v in views[arg]]
        found = _lowered(node, views, uses, builder)
        repeated = uses[node] > 1
        views[node] = [
            builder.store(v) if repeated and v.has_transcendental() else v for v in found
        ]
    dtypes = [str(storage_dtype(ty.dtype)) for ty in tensor_fields(call.checked_type)]
    return [view.cast(dtype) for view, dtype in zip(views[body], dtypes, strict=True)]


def _in_words(call: Call, op: Op, inputs: Views, builder: LirBuilder) -> Views:
    """The loops of the words of an operator that has none of its own, of floats as well.

    Raises:
        CompilerError: it has no body either, or none for what is computed.
    """
    args = tuple(
        Value(ty, data=arg.data if isinstance(arg, Constant) else None)
        for arg in call.args
        for ty in tensor_fields(arg.checked_type)
    )
    step = Step(op, call.attrs, args, span=call.span)
    results = tensor_fields(call.checked_type)
    step.results = tuple(Value(ty, step, index) for index, ty in enumerate(results))
    words, made = words_of(step, floats=True)
    if words == [step]:
        if FBody.get(op) is None:
            FLower.require(op)
        computed = [name for name, arg in zip(op.arg_names, args) if arg.data is None]
        raise CompilerError(
            f"{op.name} has no loops where {', '.join(computed)} vary at run time",
            where=str(call.span) if call.span else None,
            fix="give all but its data as constants (FoldConstant)",
        )
    nodes: dict[Value, Expr] = {}
    views: dict[Expr, Views] = {}
    for value, view in zip(args, inputs):
        var = nodes[value] = Var("x", value.type)
        var.set_checked_type(value.type)
        views[var] = [view]
    read = Counter(arg for word in words for arg in word.args) + Counter(made)
    for word in words:
        for arg in word.args:
            if arg not in nodes:
                assert arg.data is not None, "a word was written before what it reads"
                constant = nodes[arg] = Constant(arg.data)
                views[constant] = [_constant(constant, builder)]
        node = Call(word.op, tuple(nodes[arg] for arg in word.args), word.attrs, span=call.span)
        node.set_checked_type(word.result.type)
        views[node] = _call(node, word.op, views, Counter({node: read[word.result]}), builder)
        nodes[word.result] = node
    forget(words, step)
    step.results = ()
    return [views[nodes[value]][0] for value in made]


def _kept(view: TensorView, repeated: bool, spent: int, builder: LirBuilder) -> TensorView:
    """The view itself, or stored where reading it again and again would repeat its work."""
    cost = view.cost
    if cost > RECOMPUTED_COST and (repeated or cost > spent + _GROWTH):
        return builder.store(view)
    return view


def _check(op: Op, found: Sequence[TensorView], wanted: Sequence[TensorType]) -> None:
    got = [(view.shape, view.dtype) for view in found]
    need = [(ty.concrete_shape, str(storage_dtype(ty.dtype))) for ty in wanted]
    if got != need:
        raise LoweringError(
            f"the lowering of {op.name} has results {got}, its type says {need}",
            fix=f"correct the FLower rule of {op.name}",
        )


def _outputs(found: Views, builder: LirBuilder) -> list[Buffer]:
    """One block per tensor of the result that copies its view into an output."""
    outputs: list[Buffer] = []
    for view in found:
        held = Buffer(f"o{len(outputs)}", view.shape, view.dtype, "out")
        builder.blocks.append(Compute(held, view.axes, view.expr, view.axes))
        outputs.append(held)
    return outputs
