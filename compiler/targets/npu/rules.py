"""A QDQ file as a compiler of an NPU sees it, and rules that several such compilers have.

    DequantizeLinear -> operator -> (Relu, Clip) -> QuantizeLinear

is what they take for one integer operator. A rule yields what breaks it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from compiler.errors import OnnxExportError
from compiler.ops.number_format import Array

if TYPE_CHECKING:
    import onnx

WEIGHTED: Final = ("Conv", "ConvTranspose", "Gemm", "MatMul")
LIMITS: Final = ("Relu", "Clip")
MOVES: Final = ("MaxPool", "GlobalMaxPool", "Concat", "Slice", "Pad")
_BORDERS: Final = ("QuantizeLinear", "DequantizeLinear")
_DOMAINS: Final = ("", "ai.onnx")
_ONE_NUMBER: Final = 1e-4
"""Scales of a bias and of the sums that it joins differ by no more of themselves."""


@dataclass(frozen=True, slots=True)
class Broken:
    """A rule that a file breaks.

    Attributes:
        rule: what the profile calls it.
        where: the node or tensor.
        what: one clause.
    """

    rule: str
    where: str
    what: str

    def __str__(self) -> str:
        return f"{self.rule}: {self.where}: {self.what}"


class Levels:
    """Grid of a tensor: number = (integer - zero) * scale.

    Attributes:
        scale, zero: float32 and integers; rank 0, or one for each channel. None where a file
            computes them.
        dtype: of the integers; "" where it is not known.
        axis: of the channels.
        held: constants; None for what is computed.
    """

    def __init__(self, node: onnx.NodeProto, file: QdqFile) -> None:
        self.scale = file.arrays.get(node.input[1])
        self.held = file.arrays.get(node.input[0]) if node.op_type == _BORDERS[1] else None
        zero = file.arrays.get(node.input[2]) if len(node.input) > 2 and node.input[2] else None
        known = zero if zero is not None else self.held
        self.dtype = "" if known is None else known.dtype.name
        self.zero = np.zeros((), known.dtype) if zero is None and known is not None else zero
        self.axis = file.attribute(node, "axis", 1)

    @property
    def one(self) -> float | None:
        """The scale, where it is one number."""
        if self.scale is None or self.scale.size != 1:
            return None
        return float(self.scale.reshape(()))


class QdqFile:
    """Nodes, constants and quantized tensors of a model; O(nodes).

    Attributes:
        model: as it was read.
        arrays: constants by name.
        makers: the node that computes a tensor.
        readers: the nodes that read a tensor.
        levels: of what each quantizing or dequantizing node gives, or reads.
    """

    def __init__(self, model: onnx.ModelProto) -> None:
        from onnx import numpy_helper

        self.model = model
        graph = model.graph
        self.arrays: dict[str, Array] = {
            one.name: numpy_helper.to_array(one) for one in graph.initializer
        }
        for node in graph.node:
            if node.op_type == "Constant" and node.attribute[0].name == "value":
                self.arrays[node.output[0]] = numpy_helper.to_array(node.attribute[0].t)
        self.makers = {name: node for node in graph.node for name in node.output if name}
        self.readers: dict[str, list[onnx.NodeProto]] = {}
        for node in graph.node:
            for name in node.input:
                self.readers.setdefault(name, []).append(node)
        self.levels = {
            node.output[0]: Levels(node, self) for node in graph.node if node.op_type in _BORDERS
        }

    def operators(self, *kinds: str) -> Iterator[onnx.NodeProto]:
        """The operators between quantized tensors, of some kinds or of all."""
        for node in self.model.graph.node:
            if node.op_type not in (*_BORDERS, "Constant") and (not kinds or node.op_type in kinds):
                yield node

    def borders(self) -> Iterator[tuple[onnx.NodeProto, Levels]]:
        """The quantizing and dequantizing nodes."""
        for name, levels in self.levels.items():
            yield self.makers[name], levels

    def read(self, name: str) -> Levels | None:
        """Return the grid of an operator's operand, where it is dequantized."""
        maker = self.makers.get(name)
        if maker is not None and maker.op_type == _BORDERS[1]:
            return self.levels[name]
        return None

    def limits(self, node: onnx.NodeProto) -> bool:
        """Return whether a node stands behind an operator in float: a limit, or a factor of an
        average."""
        factor = node.op_type == "Mul" and any(name in self.arrays for name in node.input)
        return factor or node.op_type in LIMITS

    def written(self, name: str) -> Levels | None:
        """Return the grid of an operator's result, behind its limits; None where it is not
        quantized."""
        while True:
            found = self.readers.get(name, [])
            if len(found) == 1 and self.limits(found[0]):
                name = found[0].output[0]
                continue
            held = found and all(one.op_type == _BORDERS[0] for one in found)
            if held:
                return self.levels[found[0].output[0]]
            return None

    @staticmethod
    def attribute(node: onnx.NodeProto, name: str, default: int) -> int:
        """A number of a node."""
        return next((one.i for one in node.attribute if one.name == name), default)


Rule = Callable[[QdqFile], Iterator[tuple[str, str]]]
"""``rule(file)`` yields where and what, for each time that it is broken."""


@dataclass(frozen=True, slots=True)
class Profile:
    """Dtypes and operators that a compiler takes.

    Attributes:
        name: as ``--for`` has it.
        fields: of a QConfig, which every module has whose file it takes.
        rules: by name.
    """

    name: str
    fields: Mapping[str, Any]
    rules: Mapping[str, Rule]


def broken(model: onnx.ModelProto, profile: Profile) -> tuple[Broken, ...]:
    """All that a file breaks; O(nodes) for each rule."""
    file = QdqFile(model)
    return tuple(
        Broken(name, where, what)
        for name, rule in profile.rules.items()
        for where, what in rule(file)
    )


def require(model: onnx.ModelProto, profile: Profile) -> None:
    """Refuse a file that breaks a rule.

    Raises:
        OnnxExportError: with the first that it breaks, and how to make a module that keeps all.
    """
    found = broken(model, profile)
    if found:
        raise OnnxExportError(
            f"the file breaks {len(found)} times what {profile.name} takes, first {found[0]}",
            where=f"--for {profile.name}",
            fix=f"search with --for {profile.name}, or compile with --qconfig auto,for="
            f"{profile.name}; what stays in float needs another model, or --until in front of it",
        )


def told(node: onnx.NodeProto) -> str:
    """A node for a message."""
    return f"{node.op_type} {node.output[0] if node.output else node.name}"


def opset(least: int, most: int) -> Rule:
    """The opset of the standard operators."""

    def rule(file: QdqFile) -> Iterator[tuple[str, str]]:
        for one in file.model.opset_import:
            if one.domain in _DOMAINS and not least <= one.version <= most:
                yield "opset_import", f"opset {one.version}, not {least} to {most}"

    return rule


def static_shapes(file: QdqFile) -> Iterator[tuple[str, str]]:
    """Inputs and outputs have sizes that are known."""
    for info in (*file.model.graph.input, *file.model.graph.output):
        dims = info.type.tensor_type.shape.dim
        if any(dim.dim_param or dim.dim_value < 1 for dim in dims):
            yield info.name, "a size is not known before it runs"


def operators(names: str) -> Rule:
    """Operators that run on the NPU, with spaces between; others are copied to and fro."""
    known = {*names.split(), *_BORDERS, "Constant"}

    def rule(file: QdqFile) -> Iterator[tuple[str, str]]:
        for node in file.model.graph.node:
            own = node.domain in _DOMAINS or node.op_type in _BORDERS
            if not own or node.op_type not in known:
                yield told(node), "it does not run on the NPU"

    return rule


def constant_scales(file: QdqFile) -> Iterator[tuple[str, str]]:
    """Scales are positive constants, zero points constants."""
    for node, levels in file.borders():
        scale = levels.scale
        if scale is None or (len(node.input) > 2 and node.input[2] and levels.zero is None):
            yield told(node), "its scale or zero point is no constant"
        elif not np.all(np.isfinite(scale) & (scale > 0)):
            yield told(node), "a scale is not positive"


def one_scale(file: QdqFile) -> Iterator[tuple[str, str]]:
    """A computed tensor has one scale and zero point, for who quantizes and for all readers."""
    for node, levels in file.borders():
        if levels.held is None and levels.scale is not None and levels.scale.size != 1:
            yield told(node), "a computed tensor has several scales"
        maker = file.makers.get(node.input[0])
        if node.op_type == _BORDERS[1] and maker is not None and maker.op_type == _BORDERS[0]:
            theirs = file.levels[node.input[0]]
            if theirs.one != levels.one or not np.array_equal(theirs.zero, levels.zero):  # type: ignore[arg-type]
                yield told(node), "it has another scale or zero point than what it reads"


def dtypes(activations: Mapping[str, int | None], weights: tuple[str, ...]) -> Rule:
    """Check the dtypes of tensors.

    Args:
        activations: dtypes of computed tensors, with the zero point that each must have; None: any.
        weights: dtypes of constants that operators read as weights, with zero point 0.
    """

    def rule(file: QdqFile) -> Iterator[tuple[str, str]]:
        for node, levels in file.borders():
            if levels.held is not None or levels.zero is None:
                continue
            if levels.dtype not in activations:
                yield told(node), f"{levels.dtype} where it takes {', '.join(activations)}"
            elif activations[levels.dtype] not in (None, int(levels.zero.reshape(-1)[0])):
                yield told(node), f"zero point {levels.zero}, not {activations[levels.dtype]}"
        for node in file.operators(*WEIGHTED):
            weight = file.read(node.input[1])
            if weight is None or weight.held is None:
                continue
            if weight.dtype not in weights or np.any(weight.zero):
                yield told(node), f"weights of {weight.dtype}, or a zero point that is not 0"

    return rule


def biases(of: tuple[str, ...]) -> Rule:
    """Biases have zero point 0; those of int32 the scale of the sums that they join."""

    def rule(file: QdqFile) -> Iterator[tuple[str, str]]:
        for node in file.operators(*WEIGHTED):
            if len(node.input) < 3 or not node.input[2]:
                continue
            data, weight, bias = map(file.read, node.input[:3])
            if bias is None or bias.held is None or bias.dtype not in of or np.any(bias.zero):
                yield told(node), f"its bias is not {' or '.join(of)} with zero point 0"
            elif bias.dtype == "int32" and data is not None and weight is not None:
                if data.one is None or weight.scale is None or bias.scale is None:
                    continue
                wanted = data.one * weight.scale.astype(np.float64)
                if not np.allclose(bias.scale, wanted, _ONE_NUMBER, 0):
                    yield told(node), "its bias has another scale than the sums"

    return rule


def quantized(file: QdqFile) -> Iterator[tuple[str, str]]:
    """Operators read and write quantized tensors; only limits stand behind them in float."""
    outside = {info.name for info in (*file.model.graph.input, *file.model.graph.output)}
    for node in file.operators():
        behind = file.makers.get(node.input[0]) if file.limits(node) else None
        joined = behind is not None and behind.op_type not in _BORDERS
        for name in node.input:
            if name and name not in file.arrays and file.read(name) is None and not joined:
                yield told(node), f"it reads {name} in float"
        for name in node.output:
            if name in outside or (name and file.written(name) is None):
                yield told(node), f"it gives {name} in float"


def moves_keep_scale(file: QdqFile) -> Iterator[tuple[str, str]]:
    """Check that moves of elements, and maxima, have one scale on both sides."""
    for node in file.operators(*MOVES):
        written = file.written(node.output[0])
        computed = [file.read(name) for name in node.input if name not in file.arrays]
        for read in computed:
            if read is not None and written is not None and read.one != written.one:
                yield told(node), "its result has another scale than what it reads"
