"""A convolutional network as calls of CMSIS-NN, to count the instructions that they take.

The runner has the shapes of an ONNX model (Conv, MatMul with Add, Add, GlobalAveragePool, Relu) and
made-up weights and scales: instructions hardly depend on values. Every layer goes through the
function that CMSIS-NN offers for all shapes (``…_wrapper_s8``), which chooses its kernel. int8
throughout, a multiplier a channel for convolutions, one for a dense layer.

Source: https://github.com/ARM-software/CMSIS-NN (Apache-2.0); its folder is an argument, none of
its code is here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, shape_inference

FOLDERS = (
    "BasicMathFunctions", "ConvolutionFunctions", "FullyConnectedFunctions", "NNSupportFunctions",
    "PoolingFunctions",
)  # fmt: skip
_HEAD = """
#include "arm_nnfunctions.h"
static int8_t scratch[1 << 17];
static int32_t most_scratch, failed;
static cmsis_nn_context with(int32_t size)
{
    cmsis_nn_context context = {scratch, size};
    if (size > most_scratch) most_scratch = size;
    return context;
}
"""


@dataclass
class Runner:
    """A network as C.

    Attributes:
        text: declarations and ``static void network(void)``; ``most_scratch`` and ``failed`` are
            known after a call.
        activation_bytes: the largest set of activations alive at once.
        constant_bytes: of weights, biases, multipliers and shifts.
    """

    text: str
    activation_bytes: int
    constant_bytes: int


def sources(folder: Path) -> list[Path]:
    """Files of CMSIS-NN that networks of int8 need."""
    return sorted(
        file
        for name in FOLDERS
        for file in (folder / "Source" / name).glob("*.c")
        if not any(word in file.stem for word in ("f16", "f32", "_s4", "s16_s8"))
    )


def runner(model: onnx.ModelProto) -> Runner:
    """The calls for a network.

    Raises:
        ValueError: it has an operator that is not listed above.
    """
    return _Writer(model).written()


@dataclass
class _Writer:
    model: onnx.ModelProto
    lines: list[str] = field(default_factory=list)
    held: list[str] = field(default_factory=list)
    constant_bytes: int = 0

    def __post_init__(self) -> None:
        graph = shape_inference.infer_shapes(self.model).graph
        self._shapes = {
            value.name: tuple(d.dim_value or 1 for d in value.type.tensor_type.shape.dim)
            for value in (*graph.input, *graph.value_info, *graph.output)
        }
        self._weights = {tensor.name: tuple(tensor.dims) for tensor in graph.initializer}
        self._rng = np.random.default_rng(0)
        # Reshapes and Relu are another name of what they read: activations are clipped anyway.
        self._alias: dict[str, str] = {}

    def written(self) -> Runner:
        """The whole network."""
        graph = self.model.graph
        steps: list[tuple[list[str], str]] = []
        for node in graph.node:
            source = [self._alias.get(name, name) for name in node.input]
            (out,) = node.output
            bias = node.op_type == "Add" and node.input[1] in self._weights
            if node.op_type in ("Relu", "Flatten", "Reshape") or bias:
                self._alias[out] = source[0]
                continue
            write = getattr(self, f"_{node.op_type.lower()}", None)
            if write is None:
                raise ValueError(f"no call of CMSIS-NN for {node.op_type} here")
            write(node, source, out)
            steps.append(([name for name in source if name in self._shapes], out))
        last = {name: n for n, (names, out) in enumerate(steps) for name in (*names, out)}
        most, alive = 0, {graph.input[0].name}
        for n, (names, out) in enumerate(steps):
            alive |= {*names, out}
            most = max(most, sum(math.prod(self._shapes[name]) for name in alive))
            alive = {name for name in alive if last[name] > n}
        values = {name for names, out in steps for name in (*names, out)}
        self.held += [
            f"static int8_t {_word(name)}[{math.prod(self._shapes[name])}];"
            for name in sorted(values)
        ]
        body = "\n".join(f"    {line}" for line in self.lines)
        text = _HEAD + "\n".join(self.held) + f"\nstatic void network(void)\n{{\n{body}\n}}\n"
        return Runner(text, most, self.constant_bytes)

    def _array(self, kind: str, count: int, low: int, high: int) -> str:
        name = f"constant{len(self.held)}"
        values = ",".join(map(str, self._rng.integers(low, high, count)))
        self.held.append(f"static const {kind} {name}[{count}] = {{{values}}};")
        self.constant_bytes += count * (1 if kind == "int8_t" else 4)
        return name

    def _call(self, function: str, *arguments: str) -> None:
        self.lines.append(f"failed += {function}({', '.join(arguments)}) != 0;")

    def _conv(self, node: onnx.NodeProto, source: list[str], out: str) -> None:
        x, y = self._shapes[source[0]], self._shapes[out]
        outs, inner, height, width = self._weights[node.input[1]]
        given = {a.name: helper.get_attribute_value(a) for a in node.attribute}
        stride, pads = given.get("strides", [1, 1]), given.get("pads", [0] * 4)
        depthwise = given.get("group", 1) == x[1] == outs
        multipliers = self._array("int32_t", outs, 1 << 30, (1 << 31) - 1)
        shifts = self._array("int32_t", outs, -9, -6)
        bias = self._array("int32_t", outs, -1000, 1000)
        weight = self._array("int8_t", outs * inner * height * width, -127, 128)
        kind, extra = ("dw_conv", " .ch_mult = 1,") if depthwise else ("conv", "")
        filters = (1, height, width, outs) if depthwise else (outs, height, width, inner)
        function = "arm_depthwise_conv_wrapper_s8" if depthwise else "arm_convolve_wrapper_s8"
        self.lines += [
            "{",
            f"const cmsis_nn_{kind}_params p = {{.input_offset = 128, .output_offset = -128,{extra}"
            f" .stride = {{{stride[1]}, {stride[0]}}}, .padding = {{{pads[1]}, {pads[0]}}},"
            " .dilation = {1, 1}, .activation = {-128, 127}};",
            f"const cmsis_nn_per_channel_quant_params q = {{(int32_t *){multipliers}, "
            f"(int32_t *){shifts}}};",
            f"const cmsis_nn_dims x = {_dims(x)}, w = {{{', '.join(map(str, filters))}}}, "
            f"b = {{1, 1, 1, {outs}}}, y = {_dims(y)};",
            f"const cmsis_nn_context c = with({function}_get_buffer_size(&p, &x, &w, &y));",
        ]
        self._call(
            function, "&c", "&p", "&q", "&x", _word(source[0]), "&w", weight, "&b", bias, "&y",
            _word(out),
        )  # fmt: skip
        self.lines.append("}")

    def _matmul(self, node: onnx.NodeProto, source: list[str], out: str) -> None:
        deep, wide = self._weights[node.input[1]]
        bias = self._array("int32_t", wide, -1000, 1000)
        weight = self._array("int8_t", deep * wide, -127, 128)
        self.lines += [
            "{",
            "const cmsis_nn_fc_params p = {.input_offset = 128, .filter_offset = 0, "
            ".output_offset = -128, .activation = {-128, 127}};",
            "const cmsis_nn_per_tensor_quant_params q = {1 << 30, -7};",
            f"const cmsis_nn_dims x = {{1, 1, 1, {deep}}}, w = {{{deep}, 1, 1, {wide}}}, "
            f"b = {{1, 1, 1, {wide}}}, y = {{1, 1, 1, {wide}}};",
            "const cmsis_nn_context c = with(arm_fully_connected_s8_get_buffer_size(&w));",
        ]
        self._call(
            "arm_fully_connected_s8", "&c", "&p", "&q", "&x", _word(source[0]), "&w", weight, "&b",
            bias, "&y", _word(out),
        )  # fmt: skip
        self.lines.append("}")

    def _add(self, _: onnx.NodeProto, source: list[str], out: str) -> None:
        size = math.prod(self._shapes[out])
        self._call(
            "arm_elementwise_add_s8", _word(source[0]), _word(source[1]), "128", "1 << 30", "-1",
            "128", "1 << 30", "-1", "20", _word(out), "-128", "1 << 30", "-18", "-128", "127",
            str(size),
        )  # fmt: skip

    def _globalaveragepool(self, _: onnx.NodeProto, source: list[str], out: str) -> None:
        x = self._shapes[source[0]]
        self.lines += [
            "{",
            "const cmsis_nn_pool_params p = {.stride = {1, 1}, .padding = {0, 0}, "
            ".activation = {-128, 127}};",
            f"const cmsis_nn_dims x = {_dims(x)}, w = {{1, {x[2]}, {x[3]}, 1}}, "
            f"y = {{1, 1, 1, {x[1]}}};",
            f"const cmsis_nn_context c = with(arm_avgpool_s8_get_buffer_size(1, {x[1]}));",
        ]
        self._call("arm_avgpool_s8", "&c", "&p", "&x", _word(source[0]), "&w", "&y", _word(out))
        self.lines.append("}")


def _dims(shape: Any) -> str:
    batch, channels, height, width = shape
    return f"{{{batch}, {height}, {width}, {channels}}}"


def _word(name: str) -> str:
    return f"v_{name}"


def objects(
    folder: Path, build: Path, command: tuple[str, ...]
) -> Iterator[tuple[Path, list[str]]]:
    """Each source with the command that compiles it."""
    for source in sources(folder):
        target = build / f"{source.stem}.o"
        words = [*command, "-ffunction-sections", f"-I{folder / 'Include'}", "-c", str(source)]
        yield target, [*words, "-o", str(target)]
