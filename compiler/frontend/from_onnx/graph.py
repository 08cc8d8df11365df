"""From a GraphProto to a typed function: one walk over the nodes, folding what is constant."""

from __future__ import annotations

import heapq
from collections import Counter, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from graphlib import CycleError, TopologicalSorter
from typing import Any, TypeVar

import onnx

from compiler.errors import CompilerError, OnnxImportError, TypeInferenceError
from compiler.frontend.from_onnx.branches import defined_names, is_branching, taken_branch
from compiler.frontend.from_onnx.convert.quant import carried
from compiler.frontend.from_onnx.functions import Functions, is_call, opened
from compiler.frontend.from_onnx.graph_inputs import InputShapes, bind_inputs
from compiler.frontend.from_onnx.inlining import MAX_INLINED_NODES
from compiler.frontend.from_onnx.loops import LoopEnd, body_of, is_loop
from compiler.frontend.from_onnx.node import (
    ConstantInputError,
    GraphValues,
    OnnxNode,
    dense,
    refuse_huge,
    typed_call,
    typed_tuple,
)
from compiler.frontend.from_onnx.opsets import find_converter, instead_of, is_kept, plain_domain
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Constant, Expr, Function, Tuple, TupleGetItem, Var
from compiler.ir.ty import TensorType, is_dynamic, is_float
from compiler.ops.evaluate import evaluate_call
from compiler.ops.number_format import Array
from compiler.span import ONNX, Span
from compiler.text_output import abbreviated

_Named = tuple[str, onnx.NodeProto]
"""A node with the name that errors and spans give it."""
_Opsets = Mapping[str, int]
"""Version by domain, "" for the standard one."""
_Waiting = tuple[str, onnx.NodeProto, LoopEnd | None, _Opsets, OnnxNode | None]
"""A named node, the opsets that it is written in, and the call that it is part of; with an end, a
loop whose body is converted."""
Result = TypeVar("Result")

MAX_FOLDED_ELEMENTS = 4096
"""Floats that are folded at most; larger tensors are computed when weights are bound."""
MAX_FOLDED_PLACES = 1 << 20
"""Integers and booleans that are folded at most: attention of images writes to that many places."""
MAX_ERRORS = 20


def import_graph(
    graph: onnx.GraphProto,
    opsets: Mapping[str, int],
    inputs: InputShapes,
    mapped: Mapping[str, Array],
    functions: Functions,
) -> tuple[Function, dict[str, Array], bool]:
    """The graph as a function of its inputs and weights.

    Args:
        graph: its nodes may stand in any order.
        opsets: version by domain ("" for the standard one).
        inputs: values for unknown dimensions.
        mapped: initializers whose data the graph lacks.
        functions: those that its nodes call.
    Returns:
        function whose parameters are the graph inputs, then the weights; the weights by name; and
        whether some of these are stored as integers.
    Raises:
        OnnxImportError: unsupported operators (all of them in one message), an unknown dimension,
            nodes whose types do not fit, or nodes that read each other in a circle.
    """
    unsupported = _unsupported(graph, opsets, functions)
    stored = (*graph.initializer, *map(dense, graph.sparse_initializer))
    initializers = {tensor.name: tensor for tensor in stored}
    uses = Counter(name for node in graph.node for name in node.input)
    values = GraphValues(initializers, uses, mapped)
    params = bind_inputs(graph, inputs, values)
    _convert_nodes(graph, opsets, values, unsupported, functions)
    body = _outputs(graph, values)
    main = Function((*params, *values.param_vars), body)
    return main, values.params, values.integer_weights


def _unsupported(
    graph: onnx.GraphProto, opsets: _Opsets, functions: Functions
) -> OnnxImportError | None:
    """The error about all nodes whose operator has no converter; None where each has one."""
    missing: dict[tuple[str, str], list[str]] = {}
    for index, node in enumerate(graph.node):
        opset = _opset(node, opsets)
        if (
            not (is_branching(node) or is_loop(node) or is_call(node, opset, functions))
            and find_converter(node.op_type, opset, node.domain) is None
        ):
            kind = plain_domain(node.domain), node.op_type
            missing.setdefault(kind, []).append(node_name(node, index))
    if not missing:
        return None
    lines = [
        f"{f'{domain}::' if domain else ''}{name} ({_nodes(nodes)})"
        for (domain, name), nodes in sorted(missing.items())
    ]
    error = OnnxImportError(
        f"unsupported operator{'s' if len(missing) > 1 else ''}: {'; '.join(lines)}",
        where=f"opset {opsets.get('', 1)}",
        fix=instead_of(missing),
    )
    error.nodes = tuple(name for names in missing.values() for name in names)
    return error


def _nodes(names: Sequence[str]) -> str:
    return f"node{'s' if len(names) > 1 else ''} {abbreviated([*map(repr, names)], 5)}"


def _opset(node: onnx.NodeProto, opsets: _Opsets) -> int:
    return opsets.get(plain_domain(node.domain), 1)


def node_name(node: onnx.NodeProto, index: int) -> str:
    """The name that errors and spans give a node."""
    return node.name or f"{node.op_type}_{index}"


def _convert_nodes(
    graph: onnx.GraphProto,
    opsets: _Opsets,
    values: GraphValues,
    unsupported: OnnxImportError | None,
    functions: Functions,
) -> None:
    """Convert every node; what depends on a failed node is left out so that all errors show."""
    errors = [] if unsupported is None else [unsupported]
    foreign = frozenset(errors[0].nodes if errors else ())
    failed: set[str] = set()
    named = [(node_name(proto, index), proto) for index, proto in enumerate(graph.node)]
    pending: deque[_Waiting] = deque((*one, None, opsets, None) for one in in_order(named))
    inside = 0
    while pending:
        name, proto, end, opsets, call = pending.popleft()
        node = OnnxNode(proto, _opset(proto, opsets), Span(ONNX + name, 0, 0, 0, 0), values)
        if name in foreign or failed.intersection(proto.input if end is None else end.reads):
            failed.update(proto.output)
            continue
        try:
            if end is None:
                _check_reads(node)
            if end is None and (is_branching(proto) or is_loop(proto)):
                taken = body_of if is_loop(proto) else taken_branch
                nodes, initializers, end = _guarded(node, partial(taken, name=name))
                values.add_initializers(initializers)
                inlined = in_order([(n.name or f"{name}/{n.op_type}", n) for n in nodes])
                if end is not None:
                    pending.appendleft((name, proto, end, opsets, call))
                pending.extendleft((*one, None, opsets, call) for one in reversed(inlined))
                continue
            if end is None and is_call(proto, node.opset, functions):
                body = _guarded(node, partial(opened, functions=functions))
                inside += len(body.nodes)
                if inside > MAX_INLINED_NODES:
                    raise node.error(f"functions give more than {MAX_INLINED_NODES} nodes")
                called = in_order([(name, inner) for inner in body.nodes])
                pending.extendleft(
                    (*one, None, body.opsets, call or node) for one in reversed(called)
                )
                continue
            results = _guarded(node, _converted if end is None else end.results)
        except OnnxImportError as caught:
            error = caught if call is None else _of_call(call, caught)
            errors.append(error)
            error.nodes = (name,)
            error.declined = {name: error.what.removeprefix(f"{proto.op_type}: ")}
            failed.update(proto.output)
            if len(errors) == MAX_ERRORS:
                break
            continue
        for output, result in zip(proto.output, results):
            if output:
                values.bind(output, result, names_read(proto))
    if errors:
        first = errors[0]
        for other in errors[1:]:
            first.add_note(f"also: {str(other).replace(chr(10), ';')}")
        first.nodes = tuple(name for error in errors for name in error.nodes)
        first.declined = {name: why for error in errors for name, why in error.declined.items()}
        raise first


def _of_call(call: OnnxNode, error: OnnxImportError) -> OnnxImportError:
    """The error of a node in a call; where that must be constant, the size that the call reads."""
    for place in range(call.num_inputs if isinstance(error, ConstantInputError) else 0):
        if call.known(place) is None and not is_float(call.arg(place).tensor_type.dtype):
            try:
                call.require_known(place, "the size")
            except ConstantInputError as better:
                return better
    return error


def in_order(nodes: list[_Named]) -> list[_Named]:
    """The nodes, producers before consumers; otherwise in the order of the file.

    Raises:
        OnnxImportError: nodes read each other in a circle.
    """
    writer = {out: i for i, (_, proto) in enumerate(nodes) for out in proto.output if out}
    reads = [{writer[name] for name in names_read(proto) if name in writer} for _, proto in nodes]
    sorter = TopologicalSorter(dict(enumerate(reads)))
    try:
        sorter.prepare()
    except CycleError as error:
        members = sorted(set(error.args[1]))
        raise OnnxImportError(
            "nodes read each other's results in a circle",
            where=_nodes([nodes[member][0] for member in members]),
            fix="the file is damaged; export it again",
        ) from error
    ready = sorted(sorter.get_ready())
    order: list[_Named] = []
    while ready:
        place = heapq.heappop(ready)
        order.append(nodes[place])
        sorter.done(place)
        for reader in sorter.get_ready():
            heapq.heappush(ready, reader)
    return order


def names_read(proto: onnx.NodeProto) -> Iterator[str]:
    """Inputs of a node, and the names that its subgraphs take from outside."""
    stack: list[tuple[onnx.NodeProto, frozenset[str]]] = [(proto, frozenset())]
    while stack:
        node, own = stack.pop()
        yield from (name for name in node.input if name and name not in own)
        for attribute in node.attribute:
            for graph in (attribute.g, *attribute.graphs):
                inside = own | defined_names(graph)
                yield from (info.name for info in graph.output if info.name not in inside)
                stack.extend((inner, inside) for inner in graph.node)


def _check_reads(node: OnnxNode) -> None:
    for name in node.proto.input:
        if name and not node.values.has(name):
            raise node.error(
                f"reads tensor {name!r}, which no node computes",
                fix="the file is damaged; export it again",
            )


def _converted(node: OnnxNode) -> Sequence[Expr]:
    results = carried(node, _converted)
    if results is not None:
        return results
    if _all_known(node) and not is_kept(node.op_type, node.proto.domain):
        folded = [_fold(r) for r in _run_converter(replace(node, on_constants=True))]
        if all(isinstance(r, Constant) for r in folded):
            return folded
    return _run_converter(node)


def _guarded(node: OnnxNode, made: Callable[[OnnxNode], Result]) -> Result:
    """Convert a node; every error names the node."""
    try:
        return made(node)
    except OnnxImportError:
        raise
    except TypeInferenceError as error:
        raise OnnxImportError(
            f"{node.op_type}: {error.what}", where=error.where, fix=error.fix, span=node.span
        ) from error
    except CompilerError as error:
        raise node.error(error.what, error.fix) from error
    except (TypeError, ValueError, LookupError, ArithmeticError, MemoryError) as error:
        # A converter trusts attributes and constants to be of the kind the operator takes.
        raise node.error(
            f"an attribute or input is not what the operator takes ({type(error).__name__}: "
            f"{str(error)[:200]})",
            "the file is damaged, or not checked by onnx.checker; export it again",
        ) from error


def _run_converter(node: OnnxNode) -> list[Expr]:
    converter = find_converter(node.op_type, node.opset, node.proto.domain)
    if converter is None:  # the nodes of the graph itself were looked through before
        missing = (plain_domain(node.proto.domain), node.op_type)
        raise node.error("unsupported operator in a branch or function", instead_of([missing]))
    result = converter(node)
    results = [result] if isinstance(result, Expr) else list(result)
    if len(results) < len([name for name in node.proto.output if name]):
        raise node.error(
            f"output {len(results)} ({node.proto.output[len(results)]!r}) is not supported"
        )
    return results


def _all_known(node: OnnxNode) -> bool:
    """True when the node computes small constants from small constants."""
    inputs = [i for i in range(node.num_inputs) if node.has_input(i)]
    known = [node.known(i) for i in inputs]
    return bool(inputs) and all(k is not None and _is_small(k.size, str(k.dtype)) for k in known)


def _is_small(elements: int, dtype: str) -> bool:
    return elements <= (MAX_FOLDED_ELEMENTS if is_float(dtype) else MAX_FOLDED_PLACES)


def _fold(expr: Expr) -> Expr:
    """The Constant that an expression over Constants computes; itself when that would be large."""
    ty = expr.checked_type
    if isinstance(expr, Constant) or not isinstance(ty, TensorType):
        return expr
    if is_dynamic(ty) or not _is_small(ty.num_elements, ty.dtype):
        return expr
    memo: dict[Expr, Any] = {}
    for node in post_order(expr):
        if isinstance(node, Constant):
            memo[node] = node.data
        elif isinstance(node, Tuple):
            memo[node] = tuple(memo[f] for f in node.fields)
        elif isinstance(node, TupleGetItem):
            memo[node] = memo[node.tuple][node.index]
        elif isinstance(node, Call):
            refuse_huge(node.checked_type, str(node.span))
            memo[node] = evaluate_call(node, [memo[a] for a in node.args])
    return Constant(memo[expr], span=expr.span)


def _outputs(graph: onnx.GraphProto, values: GraphValues) -> Expr:
    results: list[Expr] = []
    for info in graph.output:
        if not values.has(info.name):
            raise OnnxImportError(
                f"output {info.name!r} is computed by no node",
                fix="the file is damaged; export it again",
            )
        results.append(values.expr(info.name))
    if not results:
        raise OnnxImportError("the graph has no outputs", fix="export the model again")
    # A bare parameter as result would alias an input of the model.
    results = [
        typed_call("copy", (r,), None, Span(ONNX + "output")) if isinstance(r, Var) else r
        for r in results
    ]
    if len(results) == 1:
        return results[0]
    return typed_tuple(results)
