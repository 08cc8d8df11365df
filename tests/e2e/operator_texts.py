"""Relay text with every operator that no ONNX model leads to."""

from __future__ import annotations

import base64
import json
from typing import Final

import numpy as np

from tests.e2e.operator_cases import Array, weights

CORES: Final[dict[str, str]] = {
    "abs": "abs(%w)",
    "bitwise_and": "bitwise_and(%w, 15)",
    "ceil": "ceil(%w)",
    "copy": "copy(%w)",
    "equal": "where(equal(%w, 3), %w, 5)",
    "floor": "floor(%w)",
    "fixed_point_multiply": "fixed_point_multiply(%w, multiplier=1518500250, shift=1)",
    "fixed_point_multiply_per_axis": "fixed_point_multiply_per_axis(%w, "
    "meta[relay.Constant][4], meta[relay.Constant][5], axis=1)",
    "gather_nd": "add(%w, gather_nd(%w, meta[relay.Constant][0]))",
    "greater_equal": "where(greater_equal(%w, 3), %w, 5)",
    "less": "where(less(%w, 3), %w, 5)",
    "less_equal": "where(less_equal(%w, 3), %w, 5)",
    "logical_and": "where(logical_and(less(%w, 9), greater(%w, -9)), %w, 5)",
    "logical_not": "where(logical_not(less(%w, 9)), %w, 5)",
    "logical_or": "where(logical_or(less(%w, -9), greater(%w, 9)), %w, 5)",
    "logical_xor": "where(logical_xor(less(%w, 9), greater(%w, -9)), %w, 5)",
    "nn.bias_add": "nn.bias_add(%w, meta[relay.Constant][1])",
    "nn.matmul": "reshape(nn.matmul(reshape(%w, newshape=[24, 6]), meta[relay.Constant][2]), "
    "newshape=[1, 4, 6, 6])",
    "nn.upsampling": "strided_slice(nn.upsampling(%w, scale_h=2f, scale_w=2f), "
    "begin=[0, 0, 1, 3], end=[1, 4, 7, 9])",
    "not_equal": "where(not_equal(%w, 3), %w, 5)",
    "repeat": "strided_slice(repeat(%w, repeats=2, axis=2), begin=[0, 0, 3, 0], end=[1, 4, 9, 6])",
    "reshape_like": "reshape_like(reshape(%w, newshape=[4, 36]), %w)",
    "reverse": "reverse(%w, axis=3)",
    "right_shift": "right_shift(%w, 2)",
    "round": "round(%w)",
    "round_even": "round_even(%w)",
    "stack": "sum(stack((%w, %w), axis=2), axis=[2])",
    "trunc": "trunc(%w)",
    "device_copy": "device_copy(%w)",
    "on_device": "on_device(%w)",
    "all": "where(all(less(%w, 9), axis=[1], keepdims=True), %w, 5)",
    "any": "where(any(less(%w, -9), axis=[1], keepdims=True), %w, 5)",
    "bitwise_not": "bitwise_not(%w)",
    "bitwise_or": "bitwise_or(%w, right_shift(%w, 3))",
    "bitwise_xor": "bitwise_xor(%w, 77)",
    "floor_divide": "floor_divide(%w, 7)",
    "isqrt": 'cast(isqrt(cast(abs(%w), dtype="int64")), dtype="int32")',
    "layout_transform": 'layout_transform(layout_transform(%w, src_layout="NCHW", '
    'dst_layout="NHWC"), src_layout="NHWC", dst_layout="NCHW")',
    "floor_mod": "floor_mod(%w, 7)",
    "mod": "mod(%w, 7)",
    "trunc_mod": "trunc_mod(%w, 8)",
    "annotation.cast_hint": 'annotation.cast_hint(%w, dtype="int8")',
}
"""Operators that no ONNX model leads to: what quantized_main computes from the int32 tensor %w."""

_TEXT: Final = """#[version = "0.0.5"]
def @quantize_inputs(%x: Tensor[(1, 4, 6, 6), float32]) {
  %0 = multiply(%x, 16f);
  %1 = round(%0);
  %2 = clip(%1, a_min=-127f, a_max=127f);
  let %q = cast(%2, dtype="int8");
  (%q,)
}
def @quantized_main(%x: Tensor[(1, 4, 6, 6), int8]) {
  let %w = cast(%x, dtype="int32");
  BODY
}
def @dequantize_outputs(%input: Tensor[(1, 4, 6, 6), int32]) {
  %0 = cast(%input, dtype="float32");
  multiply(%0, 0.0625f)
}
def @main(%x: Tensor[(1, 4, 6, 6), float32]) {
  let %a = @quantize_inputs(%x);
  %0 = %a.0;
  let %b = @quantized_main(%0);
  let %c = @dequantize_outputs(%b);
  %c
}
#[metadata]
"""


def core_text(operator: str) -> str:
    """A partitioned module whose core holds the operator, as Relay text."""
    return _with_constants(
        _TEXT.replace("BODY", CORES[operator]),
        np.zeros((4, 1, 4, 6, 6), np.int64),
        np.arange(4, dtype=np.int32),
        np.eye(6, dtype=np.int32) * 3,
        np.arange(144).reshape(1, 4, 6, 6) * 7 % 6,
        np.linspace(1 << 30, (1 << 31) - 1, 4, dtype=np.int32),
        np.array([2, 0, 1, -1], np.int32),
    )


FLOATS: Final[dict[str, str]] = {
    "divide": "divide(%0, 3f)",
    "image.resize2d": "strided_slice(concatenate((image.resize2d(%0, size=[6, 6], "
    'layout="NCHW", method="linear", coordinate_transformation_mode="half_pixel"), '
    "nn.relu(%0)), axis=1), begin=[0, 2, 0, 0], end=[1, 6, 6, 6])",
    "nn.adaptive_avg_pool2d": "nn.adaptive_avg_pool2d(%0, output_size=[2, 2])",
}
"""Operators that no ONNX model leads to: what a float model computes from the convolution %0."""

_FLOAT_TEXT: Final = """#[version = "0.0.5"]
def @main(%x: Tensor[(1, 4, 6, 6), float32]) {
  %0 = nn.conv2d(%x, meta[relay.Constant][0]);
  %1 = BODY;
  nn.conv2d(%1, meta[relay.Constant][0])
}
#[metadata]
"""


def float_text(operator: str) -> str:
    """A float model that holds the operator, as Relay text."""
    return _with_constants(_FLOAT_TEXT.replace("BODY", FLOATS[operator]), weights(4, 4, 1, 1))


def _with_constants(text: str, *constants: Array) -> str:
    rows = [
        {
            "dtype": str(array.dtype),
            "shape": list(array.shape),
            "b64": base64.b64encode(array.tobytes()).decode(),
        }
        for array in constants
    ]
    return text + json.dumps({"relay.Constant": rows})
