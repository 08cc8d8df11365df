"""Scan, and Loop with a trip count that the importer knows: their bodies stand in their place.

What the body reads of its state and of a step are the marks of an open loop (``ir/loops.py``); its
nodes are converted among the others, under the loop's name, and ``LoopEnd`` then joins what they
give. Counters, and what else a Loop hands on that depends on no input of the model, are computed
here: they tell how many steps there are, and a step reads them. Source: ONNX operators Scan, Loop.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import onnx
from onnx import helper, numpy_helper
from onnx.reference import ReferenceEvaluator

from compiler.frontend.from_onnx.branches import inner_graph, renamed_node, renamed_tensor
from compiler.frontend.from_onnx.model_file import within
from compiler.frontend.from_onnx.node import OnnxNode, to_array
from compiler.frontend.from_onnx.opsets import STANDARD_DOMAINS
from compiler.ir.expr import Expr
from compiler.ops.number_format import Array
from compiler.ops.transform.scan import MOST_STEPS

_SCAN_SINCE: Final = 9
"""Before, Scan had a batch of sequences of different lengths."""
_MOST_COMPUTED: Final = 1 << 16
_MOST_ELEMENTS: Final = 1 << 12
"""Steps of a Loop that the importer computes, and elements of what it hands on."""
_LOOPS: Final = ("GRU", "LSTM", "Loop", "RNN", "Scan")
_COUNTING: Final = frozenset(
    (
        "Add",
        "And",
        "Cast",
        "Constant",
        "Div",
        "Equal",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "Less",
        "LessOrEqual",
        "Max",
        "Min",
        "Mod",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "Squeeze",
        "Sub",
        "Unsqueeze",
        "Where",
    )
)
"""Operators that counters and conditions are made of."""
_FIX: Final = "give it a constant number of steps, or end the model in front of it (--until)"


def is_loop(proto: onnx.NodeProto) -> bool:
    """True for the standard Scan and Loop."""
    return proto.op_type in ("Loop", "Scan") and proto.domain in STANDARD_DOMAINS


@dataclass(frozen=True, slots=True, eq=False)
class LoopEnd:
    """Joins the results of the turns of a body.

    Attributes:
        states: in front of each step; what the importer knows is none.
        last: what the node gives of each of its states; None for the next of ``states``.
        reads: names of the tensors that a step gives: next states, outputs.
        length: steps.
        axes: of each output, where its steps lie.
        reverse: whether each output is written from its end to its beginning.
    """

    states: Sequence[Expr]
    last: Sequence[Expr | None]
    reads: Sequence[str]
    length: int
    axes: Sequence[int]
    reverse: Sequence[int]

    def results(self, node: OnnxNode) -> list[Expr]:
        """Last states, then all steps of each output.

        Raises:
            OnnxImportError: a step gives a state of another type than it takes.
        """
        given = [node.values.expr(name) for name in self.reads]
        count = len(self.states)
        for state, following in zip(self.states, given):
            if state.tensor_type != following.tensor_type:
                raise node.error(
                    f"a state is {state.tensor_type} in front of a step and "
                    f"{following.tensor_type} behind it",
                    "write the steps out before the export",
                )
        groups = (self.states, given[:count], given[count:])
        marks = {**_marks(node, self.length), "reverse": tuple(self.reverse)}
        end = node.call("scan.end", *map(node.tuple, groups), **marks)
        fields = iter([node.field(end, place) for place in range(len(given))])
        found = [next(fields) if known is None else known for known in self.last]
        for axis, field in zip(self.axes, fields, strict=True):
            found.append(node.moved(field, 0, node.axis(axis, node.rank(field))))
        return found


def body_of(
    node: OnnxNode, name: str
) -> tuple[list[onnx.NodeProto], list[onnx.TensorProto], LoopEnd]:
    """Nodes and initializers of a step, whose inputs are bound, and what stands behind them.

    Args:
        node: a Scan or Loop.
        name: a name no other node has.
    Raises:
        OnnxImportError: the number of steps is not known, or the body does not fit the node.
    """
    body, renamed = inner_graph(node, "body", name)
    inner = next((one for one in within(body, onnx.NodeProto) if one.op_type in _LOOPS), None)
    if inner is not None:
        raise node.error(
            f"the {inner.op_type} in it is a loop within a loop, which has no integer form",
            "write the steps of one of them out before the export",
        )
    nodes = [renamed_node(inner, renamed, name) for inner in body.node]
    begun = _scan if node.op_type == "Scan" else _loop
    end = begun(node, body, renamed)
    return nodes, [renamed_tensor(tensor, renamed) for tensor in body.initializer], end


def _scan(node: OnnxNode, body: onnx.GraphProto, renamed: Mapping[str, str]) -> LoopEnd:
    if node.opset < _SCAN_SINCE:
        raise node.error(
            f"Scan of opset {node.opset} is not supported",
            "convert the model with onnx.version_converter.convert_version(model, 17)",
        )
    inputs = int(node.attr("num_scan_inputs"))
    count = node.num_inputs - inputs
    outputs = len(body.output) - count
    if not 0 < inputs <= node.num_inputs or len(body.input) != node.num_inputs or outputs < 0:
        raise node.error("the body does not take or give what the node does")
    axes = node.attr("scan_input_axes", [0] * inputs)
    backwards = node.attr("scan_input_directions", [0] * inputs)
    arrays = []
    for place, axis in enumerate(axes):
        array = node.arg(count + place)
        arrays.append(node.moved(array, node.axis(axis, node.rank(array)), 0))
    lengths = {node.size(array, 0) for array in arrays}
    if len(lengths) != 1:
        raise node.error(f"inputs of {sorted(lengths)} steps")
    length = _checked(node, lengths.pop())
    marks = _marks(node, length)
    states = [node.call("scan.state", node.arg(place), **marks) for place in range(count)]
    steps = [
        node.call("scan.step", array, **marks, reverse=(back,))
        for array, back in zip(arrays, backwards, strict=True)
    ]
    for info, value in zip(body.input, (*states, *steps)):
        node.values.bind(renamed[info.name], value)
    return LoopEnd(
        states,
        [None] * count,
        [renamed.get(info.name, info.name) for info in body.output],
        length,
        node.attr("scan_output_axes", [0] * outputs),
        node.attr("scan_output_directions", [0] * outputs),
    )


def _loop(node: OnnxNode, body: onnx.GraphProto, renamed: Mapping[str, str]) -> LoopEnd:
    count = node.num_inputs - 2
    outputs = len(body.output) - 1 - count
    if len(body.input) != count + 2 or outputs < 0:
        raise node.error("the body does not take or give what the node does")
    try:
        length, known = _computed(node, body)
    except (AttributeError, RuntimeError) as error:  # the evaluator trusts the file
        raise node.error(f"its steps cannot be counted ({error})", _FIX) from error
    marks = _marks(node, length)
    numbers = node.const(np.arange(length), "int64")
    number = node.call("scan.step", numbers, **marks, reverse=(0,))
    inputs = [renamed[info.name] for info in body.input]
    node.values.bind(inputs[0], number)
    node.values.bind(inputs[1], node.const(np.array(True)))
    states: list[Expr] = []
    last: list[Expr | None] = []
    reads: list[str] = []
    for place in range(count):
        taken = body.input[2 + place].name
        made = body.output[1 + place].name
        last.append(None)
        if taken in known:
            values = known[taken]
            value: Expr = node.const(values[-1])
            last[-1] = value
            if any((one != values[0]).any() for one in values):
                steps = node.const(np.stack(values[:-1]))
                value = node.call("scan.step", steps, **marks, reverse=(0,))
        elif taken == made:  # no step changes it
            last[-1] = value = node.arg(2 + place)
        else:
            value = node.call("scan.state", node.arg(2 + place), **marks)
            states.append(value)
            reads.append(renamed.get(made, made))
        node.values.bind(inputs[2 + place], value)
    reads += [renamed.get(info.name, info.name) for info in list(body.output)[1 + count :]]
    return LoopEnd(states, last, reads, length, [0] * outputs, [0] * outputs)


@dataclass(frozen=True, slots=True, eq=False)
class _Counting:
    """The part of a Loop that depends on no input of the model.

    Attributes:
        states: by their names in the body, what they are in front of the first step.
        nodes: of the body, in its order.
        stored: what they read beside the states, the number of the step and the condition.
    """

    states: Mapping[str, Array]
    nodes: Sequence[onnx.NodeProto]
    stored: Mapping[str, Array]

    @staticmethod
    def of(node: OnnxNode, body: onnx.GraphProto) -> _Counting:
        names, results = ([info.name for info in infos] for infos in (body.input, body.output))
        made = {out for one in body.node for out in one.output}
        read = {*results, *(name for one in body.node for name in one.input)} - {""}
        stored = {
            tensor.name: to_array(tensor)
            for tensor in body.initializer
            if tensor.name in read and math.prod(tensor.dims) <= _MOST_ELEMENTS
        }
        for name in read - made - {*names, *(tensor.name for tensor in body.initializer)}:
            array = node.values.known(name)
            if array is not None and array.size <= _MOST_ELEMENTS:
                stored[name] = array
        given = ((name, node.known(place)) for place, name in enumerate(names[2:], start=2))
        states = {n: a for n, a in given if a is not None and a.size <= _MOST_ELEMENTS}
        # What depends on a tensor, in the same step or in the next.
        below: dict[str, list[str]] = {}
        for result, taken in zip(results[1:], names[2:]):
            below.setdefault(result, []).append(taken)
        waiting = [*(read - made - {*names, *stored}), *(n for n in names[2:] if n not in states)]
        for one in body.node:
            waiting += () if one.op_type in _COUNTING else one.output
            for name in one.input:
                below.setdefault(name, []).extend(one.output)
        varies: set[str] = set()
        while waiting:
            name = waiting.pop()
            if name and name not in varies:
                varies.add(name)
                waiting += below.get(name, ())
        if results[0] in varies:
            raise node.error(f"when it ends depends on the inputs (condition {results[0]!r})", _FIX)
        nodes = [one for one in body.node if varies.isdisjoint(one.output)]
        return _Counting({n: a for n, a in states.items() if n not in varies}, nodes, stored)

    def step(self, opset: int, inputs: Sequence[str], outputs: Sequence[str]) -> ReferenceEvaluator:
        """Return an evaluator of the outputs of one step from its inputs."""
        ends = [[onnx.ValueInfoProto(name=name) for name in names] for names in (inputs, outputs)]
        tensors = [numpy_helper.from_array(array, name) for name, array in self.stored.items()]
        graph = helper.make_graph(self.nodes, "step", ends[0], ends[1], tensors)
        opsets = [helper.make_opsetid("", opset)]
        return ReferenceEvaluator(helper.make_model(graph, opset_imports=opsets))


def _computed(node: OnnxNode, body: onnx.GraphProto) -> tuple[int, dict[str, list[Array]]]:
    """Steps of a Loop; and by their names the states that depend on no input of the model, in
    front of each step and behind the last.

    Raises:
        OnnxImportError: the number of steps depends on the inputs, or is too large to be counted.
    """
    goes_on: Any = True
    if node.has_input(1):
        goes_on = node.require_known(1, "the condition to begin", _FIX).all()
    most = MOST_STEPS + 1
    if node.has_input(0):
        most = int(node.require_known(0, "the number of steps", _FIX).reshape(()))
    counting = _Counting.of(node, body)
    states = dict(counting.states)
    number, going, *names = (info.name for info in body.input)
    made = dict(zip(names, [info.name for info in body.output][1:]))
    wanted = [body.output[0].name, *(made[name] for name in states)]
    step = counting.step(node.opset, [number, going, *states], wanted)
    counts = bool(states) or any(number in one.input for one in counting.nodes)
    found = {name: [array] for name, array in states.items()}
    length = 0
    while goes_on and length < most:
        if length and not counts:
            length = most  # every step goes on
            break
        if length == _MOST_COMPUTED or any(a.size > _MOST_ELEMENTS for a in states.values()):
            raise node.error(f"what counts its steps is too large after {length} of them", _FIX)
        before = {number: np.array(length, np.int64), going: np.array(True), **states}
        goes_on, *values = step.run(None, before)
        states = dict(zip(states, map(np.asarray, values)))
        for name, array in states.items():
            found[name].append(array)
        length += 1
    return _checked(node, length), found


def _checked(node: OnnxNode, length: int) -> int:
    if length < 1:
        raise node.error("it takes no step", "remove it from the model")
    if length > MOST_STEPS:
        raise node.error(f"it takes more than {MOST_STEPS} steps", _FIX)
    return length


def _marks(node: OnnxNode, length: int) -> dict[str, Any]:
    name = next((output for output in node.proto.output if output), "")
    return {"loop": name, "length": length}
