"""A small ONNX model for every operator that a quantized module may hold.

``CASES`` names each model. Most have the form Conv → operator → Conv: the operator reads and writes
activations that are quantized.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, helper, numpy_helper

Array = NDArray[Any]

CHANNELS: Final = 4
SHAPE: Final = (1, CHANNELS, 6, 6)
"""Of the input, and of what the operator of ``between`` reads."""
node = helper.make_node


@dataclass(frozen=True, slots=True)
class Case:
    """One model.

    Attributes:
        nodes: of the graph.
        constants: initializers by name.
        inputs: shape and dtype by name.
        outputs: names.
        opset: version of the standard operators.
        high: of integer inputs, exclusive.
        qconfig: what differs from the recommended configuration.
    """

    nodes: Sequence[NodeProto]
    constants: Mapping[str, Array]
    inputs: Mapping[str, tuple[tuple[int, ...], str]] = field(
        default_factory=lambda: {"x": (SHAPE, "float32")}
    )
    outputs: Sequence[str] = ("y",)
    opset: int = 21
    high: int = 4
    qconfig: Mapping[str, Any] = field(default_factory=dict)

    def model(self) -> onnx.ModelProto:
        """The ONNX file."""
        graph = helper.make_graph(
            list(self.nodes),
            "case",
            [
                helper.make_tensor_value_info(n, helper.np_dtype_to_tensor_dtype(np.dtype(d)), s)
                for n, (s, d) in self.inputs.items()
            ],
            [helper.make_empty_tensor_value_info(name) for name in self.outputs],
            [numpy_helper.from_array(array, name) for name, array in self.constants.items()],
        )
        domains = sorted({one.domain for one in self.nodes} - {""})
        opsets = [
            helper.make_opsetid("", self.opset),
            *(helper.make_opsetid(d, 3) for d in domains),
        ]
        model = helper.make_model(graph, opset_imports=opsets, ir_version=10)
        return onnx.shape_inference.infer_shapes(model)

    def batches(self, count: int = 3) -> dict[str, Array]:
        """Calibration data: an array per input, samples on a new axis 0."""
        rng = np.random.default_rng(7)
        return {
            name: (
                rng.normal(size=(count, *shape)).astype(dtype)
                if np.dtype(dtype).kind == "f"
                else rng.integers(0, self.high, (count, *shape)).astype(dtype)
            )
            for name, (shape, dtype) in self.inputs.items()
        }


def weights(*shape: int, seed: int = 3) -> Array:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def between(*nodes: NodeProto, channels: int = CHANNELS, **constants: Array) -> Case:
    """Conv → ``nodes`` → Conv; ``nodes`` read "a" and write "b" of ``channels`` channels."""
    return Case(
        [node("Conv", ["x", "w0"], ["a"]), *nodes, node("Conv", ["b", "w1"], ["y"])],
        {"w0": weights(4, 4, 1, 1), "w1": weights(3, channels, 1, 1), **constants},
    )


def after(*nodes: NodeProto, outputs: Sequence[str] = ("y",), **constants: Array) -> Case:
    """Conv → ``nodes``; ``nodes`` read "a" and write the outputs."""
    first = node("Conv", ["x", "w0"], ["a"])
    return Case([first, *nodes], {"w0": weights(4, 4, 1, 1), **constants}, outputs=outputs)


def two(*nodes: NodeProto, **constants: Array) -> Case:
    """Two convolutions write "a" and "c"; ``nodes`` write "b", which a convolution reads."""
    case = between(node("Conv", ["x", "w2"], ["c"]), *nodes, w2=weights(4, 4, 1, 1, seed=5))
    return replace(case, constants={**case.constants, **constants})


def _body(
    inputs: Sequence[tuple[str, int]],
    first: Sequence[NodeProto],
    outputs: Sequence[tuple[str, int]],
) -> onnx.GraphProto:
    """A step of Scan or Loop that reads "now" and the state "h"."""
    cell = [
        node("MatMul", ["h", "r"], ["hr"]),
        node("Add", ["hr", "now"], ["sum"]),
        node("Tanh", ["sum"], ["next"]),
        node("Relu", ["sum"], ["seen"]),
    ]
    ends = [
        [helper.make_tensor_value_info(name, kind, None) for name, kind in names]
        for names in (inputs, outputs)
    ]
    return helper.make_graph([*first, *cell], "body", *ends)


_REAL, _WHOLE, _TRUTH = TensorProto.FLOAT, TensorProto.INT64, TensorProto.BOOL
_STEP = _body([("h", _REAL), ("now", _REAL)], [], [("next", _REAL), ("seen", _REAL)])
_TURN = _body(
    [("i", _WHOLE), ("on", _TRUTH), ("h", _REAL)],
    [node("Gather", ["s", "i"], ["now"], axis=0), node("Identity", ["on"], ["goes_on"])],
    [("goes_on", _TRUTH), ("next", _REAL), ("seen", _REAL)],
)


def unary(op: str, **attributes: Any) -> Case:
    """Conv → ``op`` → Conv."""
    return between(node(op, ["a"], ["b"], **attributes))


def ints(*values: int) -> Array:
    """An int64 vector."""
    return np.array(values, np.int64)


def floats(*values: float) -> Array:
    """A float32 vector."""
    return np.array(values, np.float32)


def scalar(value: float, dtype: str = "float32") -> Array:
    """An array of rank 0."""
    return np.array(value, dtype)


_TABLE = (
    "Sigmoid",
    "Tanh",
    "Softplus",
    "Softsign",
    "HardSigmoid",
    "HardSwish",
    "Elu",
    "Selu",
    "Celu",
    "Gelu",
    "Mish",
    "Erf",
    "Exp",
    "Sin",
    "Cos",
    "Atan",
    "Asinh",
    "Sinh",
    "Cosh",
    "Abs",
    "Floor",
    "Ceil",
    "Round",
    "Sign",
    "LeakyRelu",
    "ThresholdedRelu",
    "Shrink",
    "Tan",
    "Relu",
    "Neg",
    "Identity",
    "Dropout",
    "GlobalAveragePool",
    "GlobalMaxPool",
)

_INTEGER_TABLE: Final = Case(
    [
        node("Gather", ["table", "x"], ["e"]),
        node("Cast", ["e"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["f", "s"], ["g"]),
        node("MatMul", ["g", "k"], ["y"]),
    ],
    {"table": np.arange(28).reshape(7, 4), "s": scalar(0.37), "k": weights(4, 5)},
    inputs={"x": ((1, 5), "int64")},
    high=7,
)


CASES: Final[dict[str, Case]] = {
    **{op: unary(op) for op in _TABLE},
    "Sqrt": between(node("Abs", ["a"], ["p"]), node("Sqrt", ["p"], ["b"])),
    "Log": between(node("Exp", ["a"], ["p"]), node("Log", ["p"], ["b"])),
    "Reciprocal": between(node("Exp", ["a"], ["p"]), node("Reciprocal", ["p"], ["b"])),
    "Pow": between(node("Pow", ["a", "e"], ["b"]), e=scalar(2)),
    "Cast to integers and back": between(
        node("Cast", ["a"], ["i"], to=TensorProto.UINT8),
        node("Cast", ["i"], ["b"], to=TensorProto.FLOAT),
    ),
    "Clip": between(node("Clip", ["a", "lo", "hi"], ["b"]), lo=scalar(-0.5), hi=scalar(1.5)),
    "Relu6": between(node("Clip", ["a", "lo", "hi"], ["b"]), lo=scalar(0), hi=scalar(6)),
    "PRelu": between(
        node("PRelu", ["a", "s"], ["b"]), s=floats(0.1, -0.2, 0.3, 1.5).reshape(4, 1, 1)
    ),
    "PRelu scalar": between(node("PRelu", ["a", "s"], ["b"]), s=floats(0.25)),
    "Add": two(node("Add", ["a", "c"], ["b"])),
    "Add constant": between(node("Add", ["a", "k"], ["b"]), k=weights(1, 4, 1, 1)),
    "Sub": two(node("Sub", ["a", "c"], ["b"])),
    "Sub from constant": between(node("Sub", ["k", "a"], ["b"]), k=weights(1, 4, 1, 1)),
    "Mul": two(node("Mul", ["a", "c"], ["b"])),
    "Mul constant": between(node("Mul", ["a", "k"], ["b"]), k=weights(1, 4, 1, 1)),
    "Div constant": between(node("Div", ["a", "k"], ["b"]), k=weights(1, 4, 1, 1)),
    "Max": two(node("Max", ["a", "c"], ["b"])),
    "Min": two(node("Min", ["a", "c"], ["b"])),
    "Max constant": between(node("Max", ["a", "k"], ["b"]), k=weights(1, 4, 1, 1)),
    "Max -inf": between(node("Max", ["a", "k"], ["b"]), k=scalar(-np.inf)),
    "Min inf": between(node("Min", ["a", "k"], ["b"]), k=scalar(np.inf)),
    "Mean": two(node("Mean", ["a", "c"], ["b"])),
    "Sum": two(node("Sum", ["a", "c", "a"], ["b"])),
    "Concat": two(
        node("Concat", ["a", "c"], ["d"], axis=1),
        node("Conv", ["d", "w3"], ["b"]),
        w3=weights(4, 8, 1, 1),
    ),
    "Split": two(
        node("Split", ["a"], ["e", "f"], axis=1, num_outputs=2),
        node("Concat", ["f", "e"], ["b"], axis=1),
    ),
    "Slice": between(
        node("Slice", ["a", "s", "e", "ax"], ["b"]), s=ints(1, 1), e=ints(5, 6), ax=ints(2, 3)
    ),
    "Slice backwards": between(
        node("Slice", ["a", "s", "e", "ax", "st"], ["b"]),
        s=ints(-1),
        e=ints(-100),
        ax=ints(3),
        st=ints(-1),
    ),
    "Gather": between(node("Gather", ["a", "i"], ["b"], axis=2), i=ints(0, 2, 5)),
    "Gather scalar": between(
        node("Gather", ["a", "i"], ["c"], axis=2),
        node("Unsqueeze", ["c", "ax"], ["b"]),
        i=scalar(1, "int64"),
        ax=ints(2),
    ),
    "GatherElements": between(
        node("GatherElements", ["a", "i"], ["b"], axis=3),
        i=np.arange(4 * 6 * 3).reshape(1, 4, 6, 3) % 6,
    ),
    "ReduceProd": between(
        node("ReduceProd", ["a", "ax"], ["p"], keepdims=1),
        node("Add", ["a", "p"], ["b"]),
        ax=ints(3),
    ),
    "ScatterND of rows": two(
        node("Transpose", ["c"], ["t"], perm=[2, 3, 0, 1]),
        node("Slice", ["t", "s", "e", "ax"], ["u"]),
        node("Transpose", ["a"], ["d"], perm=[2, 3, 0, 1]),
        node("ScatterND", ["d", "i", "u"], ["f"]),
        node("Transpose", ["f"], ["b"], perm=[2, 3, 0, 1]),
        s=ints(0),
        e=ints(3),
        ax=ints(0),
        i=np.array([[2], [-3], [4]]),
    ),
    **{
        f"ScatterElements, {mode}": two(
            node("Slice", ["c", "s", "e", "ax"], ["u"]),
            node("ScatterElements", ["a", "i", "u"], ["b"], axis=3, reduction=mode),
            s=ints(0),
            e=ints(3),
            ax=ints(3),
            i=np.arange(72).reshape(1, 4, 6, 3) % 5,
        )
        for mode in ("add", "mul", "max", "min")
    },
    **{
        f"ScatterND computed, {mode}": replace(
            two(
                node("Transpose", ["c"], ["t"], perm=[2, 3, 0, 1]),
                node("Slice", ["t", "s", "e", "s"], ["u"]),
                node("Transpose", ["a"], ["d"], perm=[2, 3, 0, 1]),
                node("Squeeze", ["i", "s"], ["j"]),
                node("ScatterND", ["d", "j", "u"], ["f"], reduction=mode),
                node("Transpose", ["f"], ["b"], perm=[2, 3, 0, 1]),
                s=ints(0),
                e=ints(2),
            ),
            inputs={"x": (SHAPE, "float32"), "i": ((1, 2, 1), "int64")},
        )
        for mode in ("none", "add", "max", "min")
    },
    **{
        f"ScatterElements of rows, {mode}": replace(
            two(
                node("Slice", ["c", "s", "e", "ax"], ["u"]),
                node("Reshape", ["i", "row"], ["r"]),
                node("Expand", ["r", "all"], ["j"]),
                node("ScatterElements", ["a", "j", "u"], ["b"], axis=2, reduction=mode),
                row=ints(1, 1, 3, 1),
                all=ints(1, 4, 3, 6),
                s=ints(0),
                e=ints(3),
                ax=ints(2),
            ),
            inputs={"x": (SHAPE, "float32"), "i": ((1, 3), "int64")},
        )
        for mode in ("add", "max")
    },
    "MaxUnpool": between(
        node("MaxPool", ["a"], ["p", "q"], kernel_shape=[2, 2], strides=[2, 2]),
        node("MaxUnpool", ["p", "q"], ["b"], kernel_shape=[2, 2], strides=[2, 2]),
    ),
    "TensorScatter": replace(
        two(
            node("Slice", ["c", "s", "e", "ax"], ["u"]),
            node("TensorScatter", ["a", "u", "i"], ["b"], axis=2),
            s=ints(0),
            e=ints(2),
            ax=ints(2),
        ),
        inputs={"x": (SHAPE, "float32"), "i": ((1,), "int64")},
        opset=24,
    ),
    "ReverseSequence": replace(
        between(node("ReverseSequence", ["a", "n"], ["b"], time_axis=1, batch_axis=0)),
        inputs={"x": (SHAPE, "float32"), "n": ((1,), "int64")},
    ),
    "Compress": between(
        node("Compress", ["a", "m"], ["b"], axis=2), m=np.array([1, 0, 1, 1, 0, 0], bool)
    ),
    "CenterCropPad": between(node("CenterCropPad", ["a", "s"], ["b"], axes=[2, 3]), s=ints(4, 9)),
    **{
        f"GridSample {mode}": between(
            node("GridSample", ["a", "g"], ["b"], mode=mode),
            g=np.tanh(weights(1, 5, 5, 2)) * 1.2,
        )
        for mode in ("linear", "nearest", "cubic")
    },
    "Col2Im": between(
        node("Reshape", ["a", "s"], ["d"]),
        node("Col2Im", ["d", "i", "k"], ["b"], pads=[1, 1, 1, 1]),
        s=ints(1, 16, 9),
        i=ints(2, 2),
        k=ints(2, 2),
    ),
    "Reshape": between(node("Reshape", ["a", "s"], ["b"]), s=ints(1, 4, 4, 9)),
    "Flatten": after(
        node("Flatten", ["a"], ["b"]),
        node("Gemm", ["b", "k", "c"], ["y"]),
        k=weights(144, 5),
        c=weights(5),
    ),
    "Gemm transB": after(
        node("Flatten", ["a"], ["b"]),
        node("Gemm", ["b", "k"], ["y"], transB=1, alpha=0.5),
        k=weights(5, 144),
    ),
    "Squeeze": between(
        node("GlobalAveragePool", ["a"], ["g"]),
        node("Squeeze", ["g", "ax"], ["q"]),
        node("Unsqueeze", ["q", "ax"], ["b"]),
        ax=ints(2, 3),
    ),
    "Transpose": between(node("Transpose", ["a"], ["b"], perm=[0, 1, 3, 2])),
    "Tile": between(node("Tile", ["a", "r"], ["b"]), r=ints(1, 1, 2, 1)),
    "Expand": between(
        node("GlobalAveragePool", ["a"], ["g"]),
        node("Expand", ["g", "s"], ["b"]),
        s=ints(1, 4, 3, 3),
    ),
    "Pad": between(node("Pad", ["a", "p"], ["b"]), p=ints(0, 0, 1, 1, 0, 0, 1, 2)),
    "Pad value": between(
        node("Pad", ["a", "p", "v"], ["b"]), p=ints(0, 0, 1, 1, 0, 0, 1, 2), v=scalar(0.75)
    ),
    "Pad reflect": between(
        node("Pad", ["a", "p"], ["b"], mode="reflect"), p=ints(0, 0, 1, 1, 0, 0, 1, 2)
    ),
    "Pad edge": between(
        node("Pad", ["a", "p"], ["b"], mode="edge"), p=ints(0, 0, 1, 1, 0, 0, 1, 2)
    ),
    "DepthToSpace": replace(between(node("DepthToSpace", ["a"], ["b"], blocksize=2), channels=1)),
    "SpaceToDepth": between(node("SpaceToDepth", ["a"], ["b"], blocksize=2), channels=16),
    "Resize": between(node("Resize", ["a", "", "s"], ["b"], mode="nearest"), s=floats(1, 1, 2, 2)),
    "Resize linear": between(
        node("Resize", ["a", "", "s"], ["b"], mode="linear"), s=floats(1, 1, 2, 2)
    ),
    "Resize cubic": between(
        node("Resize", ["a", "", "s"], ["b"], mode="cubic"), s=floats(1, 1, 2, 2)
    ),
    "Resize to the same size, joined": two(
        node("Resize", ["a", "", "s"], ["d"], mode="linear"),
        node("Relu", ["c"], ["e"]),
        node("Concat", ["d", "e"], ["f"], axis=1),
        node("Conv", ["f", "w3"], ["b"]),
        s=floats(1, 1, 1, 1),
        w3=weights(4, 8, 1, 1),
    ),
    "Scores of one unit and of several, added": Case(
        [
            node("Gemm", ["x", "w0"], ["h"]),
            node("Relu", ["h"], ["a"]),
            node("Gemm", ["a", "v", "c"], ["b"]),
            node("Gemm", ["a", "w1", "d"], ["e"]),
            node("Add", ["b", "e"], ["y"]),
        ],
        {
            "w0": weights(6, 8),
            "v": weights(8, 1),
            "c": weights(1),
            "w1": weights(8, 4),
            "d": weights(4),
        },
        inputs={"x": ((2, 6), "float32")},
    ),
    "Upsample": replace(
        between(node("Upsample", ["a", "s"], ["b"]), s=floats(1, 1, 2, 2)), opset=9
    ),
    "MaxPool": between(node("MaxPool", ["a"], ["b"], kernel_shape=[2, 2], strides=[2, 2])),
    "AveragePool": between(
        node("AveragePool", ["a"], ["b"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], strides=[2, 2])
    ),
    "AveragePool pads counted": between(
        node(
            "AveragePool", ["a"], ["b"], kernel_shape=[3, 3], pads=[1, 1, 1, 1], count_include_pad=1
        )
    ),
    "Conv grouped": between(
        node("Conv", ["a", "k", "c"], ["b"], group=2, pads=[1, 1, 1, 1]),
        k=weights(4, 2, 3, 3),
        c=weights(4),
    ),
    "Conv depthwise": between(
        node("Conv", ["a", "k"], ["b"], group=4, pads=[1, 1, 1, 1], strides=[2, 2]),
        k=weights(4, 1, 3, 3),
    ),
    "ConvTranspose": between(
        node("ConvTranspose", ["a", "k"], ["b"], strides=[2, 2]), k=weights(4, 4, 2, 2)
    ),
    "BatchNormalization": between(
        node("BatchNormalization", ["a", "g", "o", "m", "v"], ["b"]),
        g=floats(1, -2, 1e-43, 0),
        o=floats(0, 1, 2, -3),
        m=weights(4),
        v=np.abs(weights(4)),
    ),
    "InstanceNormalization": between(
        node("InstanceNormalization", ["a", "g", "o"], ["b"]), g=weights(4), o=weights(4, seed=9)
    ),
    "GroupNormalization": between(
        node("GroupNormalization", ["a", "g", "o"], ["b"], num_groups=2),
        g=weights(4),
        o=weights(4, seed=9),
    ),
    "LayerNormalization": between(
        node("LayerNormalization", ["a", "g", "o"], ["b"], axis=-1),
        g=weights(6),
        o=weights(6, seed=9),
    ),
    "RMSNormalization": replace(
        between(node("RMSNormalization", ["a", "g"], ["b"], axis=-1), g=weights(6)), opset=23
    ),
    "LRN": unary("LRN", size=3, alpha=0.5),
    "Softmax": unary("Softmax", axis=1),
    "Softmax as TFLM computes it": replace(
        unary("Softmax", axis=1), qconfig={"requantization": "tflite"}
    ),
    "Softmax opset 7": replace(after(node("Softmax", ["a"], ["y"])), opset=7),
    "LogSoftmax": unary("LogSoftmax", axis=1),
    "LogSoftmax opset 7": replace(after(node("LogSoftmax", ["a"], ["y"])), opset=7),
    "MatMul": between(node("MatMul", ["a", "k"], ["b"]), k=weights(6, 5)),
    "MatMul of activations": two(node("MatMul", ["a", "c"], ["b"])),
    "MatMul batched": two(
        node("Reshape", ["a", "s"], ["d"]),
        node("Reshape", ["c", "s"], ["e"]),
        node("MatMul", ["d", "e"], ["f"]),
        node("Unsqueeze", ["f", "ax"], ["b"]),
        s=ints(4, 6, 6),
        ax=ints(0),
    ),
    "Einsum": two(node("Einsum", ["a", "c"], ["b"], equation="bhij,bhjk->bhik")),
    "ReduceMean": between(node("ReduceMean", ["a", "ax"], ["b"]), ax=ints(2, 3)),
    "ReduceSum": between(node("ReduceSum", ["a", "ax"], ["b"]), ax=ints(3)),
    "CumSum": between(node("CumSum", ["a", "ax"], ["b"]), ax=scalar(3, "int64")),
    "CumSum exclusive, from the end": between(
        node("CumSum", ["a", "ax"], ["b"], exclusive=1, reverse=1), ax=scalar(1, "int64")
    ),
    "Places of tokens": Case(
        [
            node("Equal", ["x", "pad"], ["e"]),
            node("Not", ["e"], ["n"]),
            node("Cast", ["n"], ["i"], to=TensorProto.INT32),
            node("CumSum", ["i", "ax"], ["c"]),
            node("Mul", ["c", "i"], ["p"]),
            node("Cast", ["p"], ["q"], to=TensorProto.INT64),
            node("Gather", ["table", "q"], ["t"]),
            node("MatMul", ["t", "k"], ["y"]),
        ],
        {
            "pad": scalar(1, "int64"),
            "ax": scalar(1, "int64"),
            "table": weights(7, 8),
            "k": weights(8, 5),
        },
        inputs={"x": ((1, 5), "int64")},
    ),
    "ReduceMax": between(node("ReduceMax", ["a", "ax"], ["b"]), ax=ints(3)),
    "ReduceMin": between(node("ReduceMin", ["a", "ax"], ["b"]), ax=ints(3)),
    "ReduceL1": between(node("ReduceL1", ["a", "ax"], ["b"]), ax=ints(3)),
    "ReduceSumSquare": between(node("ReduceSumSquare", ["a", "ax"], ["b"]), ax=ints(3)),
    "ReduceL2": between(node("ReduceL2", ["a", "ax"], ["b"]), ax=ints(3)),
    "ArgMax": after(node("ArgMax", ["a"], ["y"], axis=1, keepdims=0)),
    "ArgMin": after(node("ArgMin", ["a"], ["y"], axis=3)),
    "TopK": between(
        node("TopK", ["a", "k"], ["t", "places"], axis=2),
        node("Cast", ["places"], ["c"], to=onnx.TensorProto.FLOAT),
        node("Add", ["t", "c"], ["b"]),
        k=ints(3),
    ),
    "OneHot": between(
        node("ArgMax", ["a"], ["i"], axis=1, keepdims=0),
        node("OneHot", ["i", "n", "v"], ["b"], axis=1),
        n=scalar(4, "int64"),
        v=np.array([0, 1], np.float32),
    ),
    "Where constant": between(
        node("Where", ["m", "a", "k"], ["b"]),
        m=np.arange(36).reshape(1, 1, 6, 6) % 3 == 0,
        k=scalar(-1.5),
    ),
    "Where masked": replace(
        between(
            node("Greater", ["t", "z"], ["m"]),
            node("Where", ["m", "a", "k"], ["b"]),
            z=scalar(1, "int64"),
            k=scalar(-1.5),
        ),
        inputs={"x": (SHAPE, "float32"), "t": ((1, 1, 6, 6), "int64")},
    ),
    **{
        f"Where {op} constant": two(
            node(op, ["a", "t"], ["m"]), node("Where", ["m", "a", "c"], ["b"]), t=scalar(0.3)
        )
        for op in ("Greater", "GreaterOrEqual", "Less", "LessOrEqual")
    },
    "Where of two comparisons": two(
        node("Greater", ["t", "a"], ["m"]),
        node("Less", ["a", "c"], ["n"]),
        node("Equal", ["a", "z"], ["o"]),
        node("And", ["m", "n"], ["p"]),
        node("Not", ["o"], ["q"]),
        node("Xor", ["p", "q"], ["r"]),
        node("Where", ["r", "a", "c"], ["b"]),
        t=scalar(0.5),
        z=scalar(0),
    ),
    "Mask that multiplies": two(
        node("Less", ["a", "c"], ["m"]),
        node("Cast", ["m"], ["f"], to=TensorProto.FLOAT),
        node("Mul", ["f", "a"], ["b"]),
    ),
    "Embedding": Case(
        [node("Gather", ["table", "x"], ["e"]), node("MatMul", ["e", "k"], ["y"])],
        {"table": weights(7, 8), "k": weights(8, 5)},
        inputs={"x": ((1, 5), "int64")},
        high=7,
    ),
    **{
        f"BatchNormalization {gamma:g}, then {op}": two(
            node("BatchNormalization", ["a", "g", "o", "m", "v"], ["d"]),
            node(op, ["d", "c"], ["b"]),
            g=np.full(4, gamma, np.float32),
            o=np.zeros(4, np.float32),
            m=np.zeros(4, np.float32),
            v=np.ones(4, np.float32),
        )
        for gamma in (1e-20, 1e-39, 1e-43)
        for op in ("Add", "Mul", "Max")
    },
    "BatchNormalization first": replace(
        between(),
        nodes=[
            node("BatchNormalization", ["x", "g", "o", "m", "v"], ["n"]),
            node("Relu", ["n"], ["a"]),
            node("Conv", ["a", "w1"], ["y"]),
        ],
        constants={
            "w1": weights(3, 4, 1, 1),
            "g": floats(1, 1e-43, 0, 2),
            "o": floats(0.1, 1, 2, -3),
            "m": weights(4),
            "v": np.abs(weights(4)),
        },
    ),
    "Table of integers": _INTEGER_TABLE,
    "Table of integers, summed": Case(
        [
            node("Gather", ["table", "x"], ["e"]),
            node("ReduceSum", ["e", "ax"], ["r"], keepdims=0),
            node("Cast", ["r"], ["f"], to=TensorProto.FLOAT),
            node("Mul", ["f", "s"], ["y"]),
        ],
        {"table": np.arange(28).reshape(7, 4) * 1000, "s": scalar(0.37), "ax": ints(1)},
        inputs={"x": ((1, 5), "int64")},
        high=7,
    ),
    "Input and constant as outputs": Case(
        [
            node("Conv", ["x", "w0"], ["y"]),
            node("Identity", ["x"], ["z"]),
            node("Relu", ["y"], ["v"]),
        ],
        {"w0": weights(4, 4, 1, 1), "k": weights(2, 3)},
        outputs=("x", "y", "k", "v", "z"),
    ),
    "Unused input as output": Case(
        [node("Conv", ["x", "w0"], ["y"])],
        {"w0": weights(4, 4, 1, 1)},
        inputs={"x": (SHAPE, "float32"), "t": ((1, 3), "int64")},
        outputs=("t", "y"),
    ),
    "Empty tensors": Case(
        [
            node("Conv", ["x", "w0"], ["a"]),
            node("Slice", ["a", "s", "s", "s"], ["z"]),
            node("Concat", ["a", "z", "e"], ["b"], axis=0),
            node("Conv", ["b", "w0"], ["y"]),
        ],
        {"w0": weights(4, 4, 1, 1), "s": ints(0), "e": np.zeros((0, 4, 6, 6), np.float32)},
    ),
    "LSTM": after(
        node("Reshape", ["a", "by_step"], ["s"]),
        node(
            "LSTM",
            ["s", "w", "r", "b"],
            ["y", "last", "cell"],
            hidden_size=5,
            direction="bidirectional",
        ),
        outputs=("y", "last", "cell"),
        by_step=ints(6, 1, 24),
        w=0.2 * weights(2, 20, 24),
        r=0.4 * weights(2, 20, 5, seed=6),
        b=weights(2, 40, seed=7),
    ),
    "GRU": after(
        node("Reshape", ["a", "by_step"], ["s"]),
        node("GRU", ["s", "w", "r"], ["", "y"], hidden_size=5, linear_before_reset=1),
        by_step=ints(6, 1, 24),
        w=0.2 * weights(1, 15, 24),
        r=0.4 * weights(1, 15, 5, seed=6),
    ),
    "Scan": after(
        node("Reshape", ["a", "by_step"], ["s"]),
        node("Scan", ["h", "s"], ["y", "all"], body=_STEP, num_scan_inputs=1),
        outputs=("y", "all"),
        by_step=ints(6, 1, 24),
        h=weights(1, 24),
        r=0.2 * weights(24, 24, seed=6),
    ),
    "Loop": after(
        node("Reshape", ["a", "by_step"], ["s"]),
        node("Loop", ["count", "", "h"], ["y", "all"], body=_TURN),
        outputs=("y", "all"),
        by_step=ints(6, 1, 24),
        count=np.array(6),
        h=weights(1, 24),
        r=0.2 * weights(24, 24, seed=6),
    ),
    "Conv, rounded twice": Case(
        [node("Conv", ["x", "w0"], ["a"]), node("Add", ["a", "x"], ["y"])],
        {"w0": weights(4, 4, 1, 1)},
        qconfig={"requantization": "tflite"},
    ),
    "Relu alone": Case([node("Relu", ["x"], ["y"])], {}),
    "Relu behind Add first": Case(
        [
            node("Add", ["x", "k"], ["p"]),
            node("Relu", ["p"], ["a"]),
            node("Conv", ["a", "w0"], ["c"]),
            node("Add", ["a", "c"], ["y"]),
        ],
        {"w0": weights(4, 4, 1, 1), "k": weights(1, 4, 1, 1)},
    ),
    "Relu first": Case(
        [node("Relu", ["x"], ["a"]), node("Conv", ["a", "w0"], ["y"])], {"w0": weights(4, 4, 1, 1)}
    ),
}
