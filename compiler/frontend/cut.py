"""cut: an ONNX model becomes a float part in front, the core that is quantized, and a float head.

    image -> [Resize, Sub] -> [Conv ... Conv] -> [decode, NonMaxSuppression] -> boxes
                before             core                    after

A value that two parts need crosses between them: it is an output of one part and an input of the
others, under its own name. What depends on constants only, and integers (shapes) that another part
reads, are computed in each part that needs them, so that a part keeps its free axes. Whoever
runs the parts keeps one table of values by name: inputs, then what each part adds.
"""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final

import numpy as np
import onnx
import onnx.version_converter
from onnx import TensorProto, helper, numpy_helper

from compiler.errors import OnnxExportError, OnnxImportError, legal_names
from compiler.export.to_onnx.interface import declared
from compiler.frontend.cut_graph import PRODUCTS, Graph
from compiler.frontend.from_onnx.branches import renamed_node, renamed_tensor
from compiler.frontend.from_onnx.model_file import read_model
from compiler.frontend.from_onnx.opsets import STANDARD_DOMAINS
from compiler.runtime.pipeline import Pipeline
from compiler.text_output import abbreviated

_INTEGERS: Final = frozenset(
    (TensorProto.INT64, TensorProto.INT32, TensorProto.BOOL, TensorProto.UINT8)
)
_SHOWN: Final = 6
"""Nodes at a border that are named."""
_LONGEST: Final = 60
"""Characters of a name in a sentence; --json has all of them."""
_NAMED: Final = 3
"""Causes of a cut that are named."""


@dataclass(frozen=True, slots=True)
class Parts:
    """A model in up to three parts.

    Attributes:
        before, after: the float parts as ONNX files; None where there is none.
        core: what is quantized.
        multiplications: of the core, and of the whole model, for one sample.
        first, last: nodes at the borders of the core, for people.
        why: of a cut that nobody asked for, the nodes that caused it; see ``caused_by``.
    """

    before: bytes | None
    core: bytes
    after: bytes | None
    multiplications: tuple[int, int]
    first: tuple[str, ...] = ()
    last: tuple[str, ...] = ()
    why: tuple[str, ...] = ()

    @property
    def around(self) -> tuple[bytes | None, bytes | None]:
        """The float parts."""
        return self.before, self.after

    @property
    def sha256(self) -> str:
        """SHA-256 of all three parts."""
        digest = hashlib.sha256()
        for part in (self.before, self.core, self.after):
            digest.update(hashlib.sha256(part or b"").digest())
        return digest.hexdigest()

    @property
    def share(self) -> float:
        """Share of the multiplications that the core has."""
        inside, whole = self.multiplications
        if whole:
            return inside / whole
        return 1.0

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        inside, whole = self.multiplications
        return {
            "from": list(self.first) if self.before is not None else [],
            "until": list(self.last) if self.after is not None else [],
            "multiplications_in_core": inside,
            "multiplications": whole,
            **({"why": list(self.why)} if self.why else {}),
        }

    def __str__(self) -> str:
        where = []
        if self.before is not None:
            where.append(f"from {abbreviated([*map(_short, self.first)], _SHOWN)}")
        if self.after is not None:
            where.append(f"until {abbreviated([*map(_short, self.last)], _SHOWN)}")
        inside, whole = self.multiplications
        if self.why:
            why = f", because of {abbreviated(self.why, _NAMED)}"
        else:
            why = ""
        return (
            f"quantized {' '.join(where)}: {inside:,} of {whole:,} multiplications "
            f"({self.share:.1%}); the rest of the model stays in float around it{why}"
        )


def caused_by(graph: Graph, reasons: Mapping[str, str]) -> tuple[str, ...]:
    """Name nodes with their operators and the reasons why a core cannot hold them.

    Args:
        reasons: by name of the node; of a node inside a branch as the importer names it.
    """
    operators = {node.name: f"{node.op_type} " for node in graph.nodes}
    return tuple(
        f"{operators.get(name, '')}{_short(name)!r} ({why})" for name, why in reasons.items()
    )


def _short(name: str) -> str:
    """A name for a sentence: those of TensorFlow may have hundreds of characters."""
    if len(name) <= _LONGEST:
        return name
    return f"{name[: _LONGEST // 2]}…{name[-_LONGEST // 2 :]}"


def cut(graph: Graph, until: Sequence[str] = (), from_: Sequence[str] = ()) -> Parts:
    """Cut where the user says.

    Args:
        until: nodes or tensors that the core ends with; what reads them is the head.
        from_: nodes that the core begins with, or tensors that it takes.
    Raises:
        OnnxImportError: a name that the model does not have, or a cut that leaves no product.
    """
    ends = list(graph.named(until, "--until"))
    kept = {place for place, _ in ends if place is not None}
    values = [name for place, name in ends if place is None]
    after = graph.below(kept, values) - kept
    if ends:
        written = {graph.writer[name] for name in values if name in graph.writer}
        after |= graph.floats_behind(graph.products() - after | kept | written)
    before = _in_front(graph, from_)
    after -= before - graph.below(kept, values)
    if mixed := before & after:
        raise OnnxImportError(
            f"--from stands behind --until: {graph.nodes[min(mixed)].name} would be in both parts",
            fix="name a node of --from that --until depends on",
        )
    return _parts(graph, before, after)


def _in_front(graph: Graph, from_: Sequence[str]) -> set[int]:
    """Return the nodes and tensors that ``--from`` needs."""
    writers = [
        graph.writer[name]
        for place, given in graph.named(from_, "--from")
        for name in ((given,) if place is None else graph.reads[place])
        if name in graph.writer
    ]
    return graph.above(writers)


def cut_around(graph: Graph, left_out: Collection[str], from_: Sequence[str] = ()) -> Parts | None:
    """The cut that keeps most multiplications in a core without some nodes.

    Nodes in front of all products stay in front, and those behind all products in the head; where
    nodes stand between products, the core is what lies between two of them with most
    multiplications, but for a core that reads as many rows as the data say, such as the regions
    that a detector proposes. The head begins behind the last products that it needs.

    Args:
        left_out: names of nodes that cannot be in the core.
        from_: what the user says that the core begins with; the head is found.
    Returns:
        None where no product would be left.
    """
    bad = {place for place in graph.places(left_out) if graph.live[place]}
    if not bad:
        return None
    products = graph.products()
    behind = graph.below(products)
    in_front = graph.above(products)
    before = _with_preparation(graph, graph.above((bad & in_front) - behind), behind)
    before |= _in_front(graph, from_)
    levels = _levels(graph, before, bad - before, in_front)
    if not any(most for _, most in levels.found):
        return None
    level = max(range(len(levels.found)), key=levels.found.__getitem__)
    before |= {place for place, first in enumerate(levels.first) if first <= level}
    after = {p for p, depth in enumerate(levels.depth) if depth > level and graph.live[p]} - before
    if after:
        after |= graph.floats_behind(products - before - after | before)
    return _parts(graph, before, after, bad)


@dataclass(frozen=True, slots=True)
class _Levels:
    """Places of a core among nodes that it cannot hold: behind those of the first levels, in front
    of the others. A node can be in the core of the levels from its depth up to its first.

    Attributes:
        depth: the most nodes left out on a path to a node and with it.
        first: the least depth of a node left out that needs a node, or is it; -1 in front.
        found: for each level whether its core reads sizes that are known, and its multiplications.
    """

    depth: list[int]
    first: list[int]
    found: list[tuple[bool, int]]


def _levels(graph: Graph, before: set[int], bad: set[int], in_front: set[int]) -> _Levels:
    """Weigh all levels in one pass over the nodes.

    Args:
        before: nodes that are in front of every core.
        bad: nodes that are in no core; those that no product needs are behind every core.
    """
    count = len(graph.nodes)
    depth = [0] * count
    for place in range(count):
        if place not in before and graph.live[place]:
            if place in bad:
                own = 1 if place in in_front else count
            else:
                own = 0
            depth[place] = max((depth[w] for w in graph.writers(place)), default=0) + own
    first = [-1 if place in before else count for place in range(count)]
    for place in reversed(range(count)):
        if place in bad:
            first[place] = min(first[place], depth[place])
        for writer in graph.writers(place) if graph.live[place] else ():
            first[writer] = min(first[writer], first[place])
    last = max((depth[p] for p in bad if p in in_front), default=0)
    products = [0] * (last + 2)
    varying = [0] * (last + 2)
    open_names = _open_names(graph)
    for place in range(count):
        if depth[place] < first[place] and graph.live[place]:
            ends = (depth[place], min(first[place], last + 1))
            _add(products, ends, graph.multiplications(place))
            for name in open_names.intersection(graph.reads[place]):
                begin = max(first[graph.writer[name]], ends[0])
                _add(varying, (begin, ends[1]), 1)
    sums = zip(accumulate(varying[:-1]), accumulate(products[:-1]), strict=True)
    return _Levels(depth, first, [(not varies, most) for varies, most in sums])


def _add(steps: list[int], ends: tuple[int, int], value: int) -> None:
    """Add a value to the levels of a range, to be summed up."""
    if ends[0] < ends[1]:
        steps[ends[0]] += value
        steps[ends[1]] -= value


_PREPARES: Final = frozenset(
    (
        "Abs",
        "Add",
        "And",
        "Cast",
        "Clip",
        "Concat",
        "Div",
        "Equal",
        "Exp",
        "Flatten",
        "Greater",
        "GreaterOrEqual",
        "Identity",
        "Less",
        "LessOrEqual",
        "Log",
        "Max",
        "Min",
        "Mul",
        "Neg",
        "Not",
        "Or",
        "Pow",
        "Reciprocal",
        "Reshape",
        "Scaler",
        "Slice",
        "Sqrt",
        "Squeeze",
        "Sub",
        "Transpose",
        "Unsqueeze",
        "Where",
    )
)


def _with_preparation(graph: Graph, before: set[int], behind: set[int]) -> set[int]:
    """The part in front with what only prepares its values for the first products: these read
    columns of like ranges, as scalers make them, and not what scalers read."""
    moved: set[int] = set()
    prepares: set[int] = set()
    for place, node in enumerate(graph.nodes):
        if node.op_type not in _PREPARES or place in behind or not graph.live[place]:
            continue
        writers = graph.writers(place)
        if writers <= before | prepares:
            prepares.add(place)
            if not writers.isdisjoint(before | moved):
                moved.add(place)
    return before | graph.above(moved)


def logarithms(graph: Graph) -> tuple[list[str], list[str]]:
    """Find logarithms of what fixed steps make of the inputs, in front of products: the mel
    spectrum of a sound, a column of a table. What they read spans decades, which narrow integers do
    not; and what scales their results for the first products loses what 8 bits do not hold.

    Returns:
        nodes: the logarithms.
        begins: the tensors that the first products behind them read, for ``from_``.
    """
    fixed: set[int] = set()
    real = {n for n in graph.inputs if graph.tensor(n).elem_type not in _INTEGERS}
    found: list[int] = []
    for place, node in enumerate(graph.nodes):
        writers = graph.writers(place)
        reads = graph.reads[place]
        product = node.op_type in PRODUCTS
        computed = len(writers) + sum(name in graph.inputs for name in reads)
        if not writers <= fixed or node.op_type not in _FIXED or (product and computed > 1):
            continue
        fixed.add(place)
        if node.op_type not in ("Shape", "Size") and not real.isdisjoint(reads):
            real.update(node.output)
            found += [place] if node.op_type == "Log" else ()
    products = graph.products()
    needed = graph.above(products)
    found = [place for place in found if place in needed]
    behind = graph.below(products - graph.above(found))
    before = graph.above(graph.below(found) - behind)
    read = (name for place in sorted(behind) for name in graph.reads[place])
    begins = dict.fromkeys(n for n in (*read, *graph.outputs) if graph.writer.get(n) in before)
    return [graph.nodes[place].name for place in found], list(begins)


_MONOTONE: Final = frozenset(("Exp", "HardSigmoid", "LogSoftmax", "Sigmoid", "Softmax", "Tanh"))
_MOVES: Final = frozenset(
    ("Cast", "Flatten", "Gather", "Identity", "Reshape", "Slice", "Squeeze", "Transpose")
)


def last_function(graph: Graph) -> tuple[str, str] | None:
    """Find a function that keeps the order of its operands and computes the first output.

    Returns:
        the operator with its name, and the node in front of it, for ``until``; None for others.
    """
    place = graph.writer.get(graph.outputs[0])
    while place is not None and graph.nodes[place].op_type in _MOVES:
        place = graph.writer.get(graph.nodes[place].input[0])
    if place is None or graph.nodes[place].op_type not in _MONOTONE:
        return None
    node = graph.nodes[place]
    front = graph.writer.get(graph.nodes[place].input[0])
    if front is None or not graph.above((front,)) & graph.products():
        return None
    return f"{node.op_type} {node.name!r}", graph.nodes[front].name


def _open_names(graph: Graph) -> set[str]:
    """Computed values that have no sizes in front of a run, beside the model's free axes."""
    free = {dim.dim_param for name in graph.inputs for dim in graph.tensor(name).shape.dim} - {""}
    return {
        name
        for name in graph.writer
        if any(
            not dim.dim_value and dim.dim_param not in free for dim in graph.tensor(name).shape.dim
        )
    }


def _parts(
    graph: Graph, before: set[int], after: set[int], bad: Collection[int] = frozenset()
) -> Parts:
    """The three models of a partition of the live nodes, which is closed: no part reads a later.

    Args:
        bad: nodes that no other part computes again.
    """
    places = range(len(graph.nodes))
    core = {p for p in places if graph.live[p]} - before - after
    whole = sum(graph.multiplications(p) for p in places if graph.live[p])
    inside = sum(map(graph.multiplications, core))
    if core.isdisjoint(graph.products()):
        raise OnnxImportError(
            "the cut leaves no product (Conv, MatMul, Gemm, …) to quantize",
            where=f"{len(core)} of {len(graph.nodes)} nodes are left",
            fix="move --until towards the outputs, or --from towards the inputs",
        )
    written_by = (graph.writer[name] for name in graph.outputs if name in graph.writer)
    after = after | {place for place in written_by if not graph.live[place]}  # constants
    part_of = {p: part for part, held in enumerate((before, core, after)) for p in held}
    bodies = [_body(graph, part_of, part, bad) for part in range(3)]
    wanted = [
        {n for _, reads in bodies[part + 1 :] for n in reads} | set(graph.outputs)
        for part in range(3)
    ]
    made: list[bytes | None] = []
    for part, (nodes, reads) in enumerate(bodies):
        own = [graph.nodes[p].output for p in sorted(nodes) if part_of.get(p) == part]
        written = {out: None for outs in own for out in outs if out in wanted[part]}
        written = dict.fromkeys([*(n for n in graph.outputs if n in written), *written])
        held = (before, core, after)[part]
        made.append(_model(graph, nodes, reads, [*written]) if held else None)
    assert made[1] is not None
    first, final = (_borders(graph, core, part_of, part) for part in (0, 2))
    return Parts(made[0], made[1], made[2], (inside, whole), first, final)


def _body(
    graph: Graph, part_of: Mapping[int, int], part: int, bad: Collection[int]
) -> tuple[set[int], list[str]]:
    """Nodes of a part with what it computes again, and the values that it takes, in order."""
    nodes: set[int] = set()
    taken: set[str] = set()
    stack = [p for p, held in part_of.items() if held == part]
    while stack:
        place = stack.pop()
        if place in nodes:
            continue
        nodes.add(place)
        for name in graph.reads[place]:
            writer = graph.writer.get(name)
            if writer is None:
                if name in graph.inputs:
                    taken.add(name)
            elif part_of.get(writer, part) == part or (
                writer not in bad and _computed_again(graph, name, writer)
            ):
                stack.append(writer)
            else:
                taken.add(name)
    order = {name: place for place, name in enumerate((*graph.inputs, *graph.writer))}
    return nodes, sorted(taken, key=order.__getitem__)


def _computed_again(graph: Graph, name: str, writer: int) -> bool:
    """Shapes and what is made of them: cheap, and constants where the sizes are known."""
    integer = graph.tensor(name).elem_type in _INTEGERS
    return integer and graph.nodes[writer].op_type in _SHAPE_ARITHMETIC


_SHAPE_ARITHMETIC: Final = frozenset(
    (
        "Shape",
        "Size",
        "Gather",
        "Slice",
        "Concat",
        "Cast",
        "Unsqueeze",
        "Squeeze",
        "Add",
        "Sub",
        "Mul",
        "Div",
        "Mod",
        "Neg",
        "Min",
        "Max",
        "Range",
        "Reshape",
        "Identity",
        "ConstantOfShape",
        "Expand",
        "Equal",
        "Where",
        "ReduceProd",
        "Floor",
        "Ceil",
    )
)

_FIXED: Final = (PRODUCTS | _PREPARES | _SHAPE_ARITHMETIC) - {"Exp"} | {
    "DFT",
    "Pad",
    "ReduceL2",
    "ReduceMax",
    "ReduceMean",
    "ReduceSum",
    "ReduceSumSquare",
    "STFT",
    "Split",
}
"""Steps of a transform that nobody learns; Exp would be a softplus, log(1 + exp x)."""


def _borders(
    graph: Graph, core: set[int], part_of: Mapping[int, int], other: int
) -> tuple[str, ...]:
    """Nodes of the core that read values of the part in front, or that the part behind reads."""
    found: dict[str, None] = {}
    for place in sorted(part_of):
        for name in graph.reads[place]:
            writer = graph.writer.get(name)
            if writer is None or {part_of.get(place), part_of.get(writer)} != {1, other}:
                continue
            if not (other == 2 and _computed_again(graph, name, writer)):
                found[graph.nodes[place if other == 0 else writer].name] = None
    return tuple(found)


def _model(graph: Graph, places: set[int], reads: Sequence[str], written: Sequence[str]) -> bytes:
    source = graph.model.graph
    nodes = [graph.nodes[place] for place in sorted(places)]
    used = {name for place in places for name in graph.reads[place]}
    made = helper.make_model(
        helper.make_graph(
            nodes,
            source.name or "part",
            [_info(graph, name) for name in reads],
            [_info(graph, name) for name in written],
            [tensor for tensor in source.initializer if tensor.name in used],
            sparse_initializer=[t for t in source.sparse_initializer if t.values.name in used],
        ),
        opset_imports=graph.model.opset_import,
        ir_version=graph.model.ir_version,
        functions=graph.model.functions,
    )
    return bytes(made.SerializeToString(deterministic=True))


def _info(graph: Graph, name: str) -> onnx.ValueInfoProto:
    info = onnx.ValueInfoProto(name=name)
    if name in graph.types:
        info.type.CopyFrom(graph.types[name])
    else:
        info.type.tensor_type.elem_type = TensorProto.FLOAT
    return info


def with_sizes(core: bytes, sizes: Mapping[str, Sequence[int]], leading: str) -> bytes:
    """The core with sizes of inputs that ONNX could not infer.

    Args:
        sizes: by input, for one sample.
        leading: name of the dimension of samples, for axes that have one of them; "" is none.
    """
    made = onnx.ModelProto.FromString(core)
    for info in made.graph.input:
        tensor = info.type.tensor_type
        known = [d.dim_value or d.dim_param for d in tensor.shape.dim]
        if info.name not in sizes:
            continue
        declared_first = bool(known) and (isinstance(known[0], int) or known[0] == leading)
        if declared_first and all(isinstance(size, int) for size in known[1:]):
            continue
        found: list[int | str] = list(sizes[info.name])
        if found and found[0] == 1 and leading:
            found[0] = known[0] if known and known[0] else leading
        info.CopyFrom(helper.make_tensor_value_info(info.name, tensor.elem_type, found))
    return bytes(made.SerializeToString(deterministic=True))


def joined(core: onnx.ModelProto, pipeline: Pipeline, leading: int | None) -> onnx.ModelProto:
    """One model of the core and the float parts around it, with the interface of the whole model.

    Args:
        core: exported, with the names of the cut.
        leading: samples that it takes at a time; None is any number.
    Raises:
        OnnxImportError: a part is no ONNX that stands alone.
        OnnxExportError: a part has no form of the newer of their two opsets.
    """
    models = [None if part is None else read_model(part) for part in pipeline.around]
    parts = [part for part in (models[0], core, models[1]) if part is not None]
    newest = max(_opset(part) for part in parts)
    parts = [_upgraded(part, newest) for part in parts]
    ports = {i.name for part in parts for i in (*part.graph.input, *part.graph.output)}
    ports.update(port.name for port in (*pipeline.whole.inputs, *pipeline.whole.outputs))
    taken = set(ports)
    nodes = []
    tensors: list[onnx.TensorProto] = []
    domains = {entry.domain: entry.version for part in parts for entry in part.opset_import}
    for number, part in enumerate(parts):
        given = {info.name for info in part.graph.output}
        own = [tensor.name for tensor in part.graph.initializer]
        own += [out for node in part.graph.node for out in node.output if out not in given]
        renamed = {name: name for name in own if name}
        for name in renamed:
            while renamed[name] in taken:
                renamed[name] = f"{renamed[name]}/part{number}"
            taken.add(renamed[name])
        renamed = {old: new for old, new in renamed.items() if old != new}
        nodes += [renamed_node(node, renamed, "") for node in part.graph.node]
        tensors += [renamed_tensor(t, {t.name: t.name, **renamed}) for t in part.graph.initializer]
    sides = (pipeline.whole.inputs, pipeline.whole.outputs)
    infos = [[declared(port) for port in side] for side in sides]
    if leading is not None:  # how many boxes a head keeps is no number of samples
        samples = {port.dims[0] for port in pipeline.whole.inputs if port.dims}
        for port, info in zip((*sides[0], *sides[1]), (*infos[0], *infos[1]), strict=True):
            if port.dims and isinstance(port.dims[0], str):
                first = info.type.tensor_type.shape.dim[0]
                first.Clear()
                if port.dims[0] in samples:
                    first.dim_value = leading
    return helper.make_model(
        helper.make_graph(nodes, core.graph.name or "model", infos[0], infos[1], tensors),
        opset_imports=[helper.make_opsetid(*entry) for entry in sorted(domains.items())],
        ir_version=max(part.ir_version for part in parts),
    )


def _opset(model: onnx.ModelProto) -> int:
    return max((e.version for e in model.opset_import if e.domain in STANDARD_DOMAINS), default=1)


def _upgraded(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    if _opset(model) == opset:
        return model
    try:
        return onnx.version_converter.convert_version(model, opset)
    except (RuntimeError, ValueError, onnx.version_converter.ConvertError) as error:
        raise OnnxExportError(
            f"a part of the model of opset {_opset(model)} has no form of opset {opset}: "
            f"{str(error).splitlines()[0]}",
            fix=f"export the float model for opset {opset} and quantize it again",
        ) from error


def set_inputs(model: onnx.ModelProto, given: Mapping[str, Any]) -> onnx.ModelProto:
    """The model with some of its inputs as constants.

    Args:
        given: a number, or an array of the input's shape, by name.
    Raises:
        OnnxImportError: there is no such input, or a value that it does not take.
    """
    made = deepcopy(model)
    stored = {tensor.name for tensor in made.graph.initializer}
    infos = {info.name: info for info in made.graph.input if info.name not in stored}
    for name, value in given.items():
        if name not in infos:
            raise OnnxImportError(
                f"--set-input {name}: the model has no such input", fix=legal_names(name, infos)
            )
        tensor = infos[name].type.tensor_type
        shape = [dim.dim_value or 1 for dim in tensor.shape.dim]
        try:
            dtype = helper.tensor_dtype_to_np_dtype(tensor.elem_type)
            array = np.broadcast_to(np.asarray(value).astype(dtype), shape)
            exact = bool(np.all(array == np.asarray(value)) or array.dtype.kind == "f")
        except (TypeError, ValueError, KeyError):
            exact = False
        if not exact:
            raise OnnxImportError(
                f"--set-input {name}={value}: the input takes other values",
                where=f"{name}: {TensorProto.DataType.Name(tensor.elem_type)}{shape}",
                fix="give a number of its type",
            )
        made.graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(array), name))
        made.graph.input.remove(infos[name])
    return made
