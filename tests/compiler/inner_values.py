"""Proved modules of which a form once computed other integers, on values that few inputs meet."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.text.parser import parse

Array = NDArray[Any]
VERSION = '#[version = "0.0.5"]\n'


@dataclass(frozen=True)
class Case:
    """A core, and integers on which a form was wrong.

    Attributes:
        core: text of the body of @quantized_main; a NAME in capitals is a constant.
        given: what the parameters are, by name; ``main`` takes the same.
        constants: by name.
    """

    core: str
    given: Mapping[str, Array]
    constants: Mapping[str, Array] = field(default_factory=dict)

    @property
    def mod(self) -> IRModule:
        """The typed module: conversions that change nothing around the core."""
        return whole_module(self.core, self.given, self.constants)


def whole_module(core: str, given: Mapping[str, Array], constants: Mapping[str, Array]) -> IRModule:
    """A typed, partitioned module of one output; its inputs are the integers of the core."""
    held = []
    for place, (name, array) in enumerate(constants.items()):
        core = core.replace(name, f"meta[relay.Constant][{place}]")
        data = base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()
        held.append({"dtype": str(array.dtype), "shape": list(array.shape), "b64": data})
    params = ", ".join(
        f"%{name}: Tensor[({''.join(f'{n}, ' for n in array.shape)}), {array.dtype}]"
        for name, array in given.items()
    )
    names = [f"%{name}" for name in given]
    body = f"def @quantized_main({params}) {{\n{core}\n}}\n"
    tail = f"\n#[metadata]\n{json.dumps({'relay.Constant': held})}\n" if held else ""
    alone = infer_module(parse(VERSION + body + tail))["quantized_main"]
    result = alone.checked_type.ret_type  # type: ignore[attr-defined]  # a function's
    parts = ", ".join(f"%0.{n}" for n in range(len(names)))
    text = f"""{VERSION}def @quantize_inputs({params}) {{
  ({"".join(f"{name}, " for name in names)})
}}
{body}def @dequantize_outputs(%r: {result}) {{
  cast(%r, dtype="float32")
}}
def @main({params}) {{
  %0 = @quantize_inputs({", ".join(names)});
  %1 = @quantized_main({parts});
  @dequantize_outputs(%1)
}}
"""
    return infer_module(parse(text + tail))


def _int(values: Any, dtype: str = "int64") -> Array:
    return np.asarray(values, dtype)


_IMAGES = np.random.default_rng(2).integers(-128, 128, (2, 3, 4, 4))

ENGINE: dict[str, Case] = {
    "an unsigned value, shifted by all its bits": Case(
        """  %0 = clip(%q, a_min=0f, a_max=191f);
  fixed_point_multiply(%0, multiplier=1073741824, shift=-7)""",
        {"q": np.arange(256, dtype="uint8")},
    ),
    "a power of two of int64 that int32 does not hold": Case(
        """  %0 = clip(cast(%q, dtype="int64"), a_min=0f, a_max=2147483647f);
  %1 = add(add(%0, %0), 1i64);
  fixed_point_multiply(%1, multiplier=1073741824, shift=0)""",
        {"q": _int([(1 << 31) - 1, 5], "int32")},
    ),
    "an average of a window of padding": Case(
        """  %0 = clip(%q, a_min=9f, a_max=100f);
  %1 = nn.avg_pool2d(%0, pool_size=[1, 1], padding=[2, 2, 2, 2]);
  cast(less(%1, LIMIT), dtype="int32")""",
        {"q": np.full((1, 1, 2, 2), 50, "uint8")},
        {"LIMIT": _int(9, "uint8")},
    ),
    "ties along an axis that is not the channels'": Case(
        """  %0 = nn.dense(%q, WEIGHT, out_dtype="int32");
  qnn.requantize(add(%0, BIAS), FACTOR, SHIFT, rounding="away", out_dtype="int64")""",
        {"q": _int([[-128, 0], [-128, -128], [127, 1]], "int8")},
        {
            "WEIGHT": _int([[1, 0], [100, 27], [2, 0]], "int8"),
            "BIAS": _int([[[0], [5], [5]]], "int32"),
            "FACTOR": _int([3 << 28] * 3, "int32"),
            "SHIFT": _int([-6, -13, -9], "int32"),
        },
    ),
    "a rounded product of more than 32 bits": Case(
        """  %0 = multiply(cast(%q, dtype="int64"), 512i64);
  %1 = multiply(maximum(%0, cast(%q, dtype="int64")), 3i64);
  right_shift(add(%1, 16i64), 5i64)""",
        {"q": _int([(1 << 31) - 1, 1 << 25, -7], "int32")},
    ),
    "a mean of a batch in front of a window": Case(
        """  %0 = mean(%q, axis=[0], keepdims=True);
  nn.conv2d(%0, WEIGHT, padding=[1, 1, 1, 1], out_dtype="int32")""",
        {"q": _IMAGES.astype("int16")},
        {"WEIGHT": (_IMAGES[:, :, :3, :3] // 8).astype("int8")},
    ),
    "a sum of a batch in front of a window": Case(
        """  %0 = sum(cast(%q, dtype="int32"), axis=[0], keepdims=True);
  nn.max_pool2d(%0, pool_size=[2, 2])""",
        {"q": _IMAGES.astype("int8")},
    ),
    "factors along rows behind limits of channels": Case(
        """  %0 = minimum(nn.dense(%q, WEIGHT, out_dtype="int32"), LIMIT);
  fixed_point_multiply_per_axis(%0, FACTOR, SHIFT, axis=0)""",
        {"q": _int([[-100, 3], [127, 127]], "int8")},
        {
            "WEIGHT": _int([[1, 5], [100, 27], [127, 127]], "int8"),
            "LIMIT": _int([5, 600, 7000], "int32"),
            "FACTOR": _int([3 << 29, 5 << 28], "int32"),
            "SHIFT": _int([-3, -2], "int32"),
        },
    ),
    "a choice by a difference from a number that is not 1": Case(
        """  %0 = subtract(5i16, clip(%q, a_min=4f, a_max=5f));
  where(%0, %q, 77i16)""",
        {"q": _int([3, 4, 5, 6], "int16")},
    ),
    "limits in 8 bits of numbers at the end of int32": Case(
        "  stack((clip(%q, a_min=-9f, a_max=1048577f), clip(%q, a_min=-2f, a_max=3f)))",
        {"q": _int([(1 << 31) - 1, -(1 << 31), 1, -1], "int32")},
    ),
    "a negative factor in front of an average with padding": Case(
        """  %0 = multiply(clip(cast(%q, dtype="int32"), a_min=9f, a_max=100f), -127);
  %1 = nn.avg_pool2d(%0, pool_size=[2, 2], padding=[1, 1, 1, 1], count_include_pad=True);
  cast(less(%1, -2000), dtype="int32")""",
        {"q": np.full((1, 1, 2, 2), 50, "uint8")},
    ),
    "a dense layer of images in front of a window": Case(
        """  %0 = nn.dense(%q, WEIGHT, out_dtype="int32");
  %1 = cast(clip(%0, a_min=-128f, a_max=127f), dtype="int8");
  nn.conv2d(%1, TAPS, padding=[1, 1, 1, 1], data_layout="NHWC", out_dtype="int32")""",
        {"q": _IMAGES.astype("int8")},
        {"WEIGHT": np.eye(3, 4, dtype="int8"), "TAPS": _IMAGES[:, :, :3, :3].astype("int8")},
    ),
    "rounded products of a constant by factors of an axis": Case(
        """  %0 = lookup(%q, TABLE);
  %1 = multiply(%0, FACTOR);
  %2 = add(add(%1, BELOW), bitwise_and(right_shift(%1, BITS), ONE));
  right_shift(%2, BITS)""",
        {"q": np.arange(4, dtype="uint8")},
        {
            "TABLE": np.ones(256, "int32"),
            "FACTOR": _int([100, 110, 100, 108], "int32"),
            "BELOW": _int([3, 3, 3, 3], "int32"),
            "BITS": _int([3, 3, 3, 3], "int32"),
            "ONE": _int([1, 1, 1, 1], "int32"),
        },
    ),
}
"""What the engine planned otherwise."""

ONNX: dict[str, Case] = {
    "the nearest element at a whole position": Case(
        """  image.resize2d(%q, size=[1, 39], method="nearest_neighbor",
    coordinate_transformation_mode="half_pixel", rounding_method="floor")""",
        {"q": np.arange(7, dtype="int8").reshape(1, 1, 1, 7)},
    ),
    "elements of blocks, in 32 bits": Case(
        "  nn.space_to_depth(nn.depth_to_space(%q, block_size=2), block_size=2)",
        {"q": np.arange(32, dtype="int16").reshape(1, 8, 2, 2)},
    ),
}
"""What integer ONNX computed otherwise, or did not run."""

_SQUARES = np.random.default_rng(3).integers(-128, 128, (1, 3, 16, 16)).astype("int8")
_ONE_BY_ONE = np.random.default_rng(4).integers(-127, 128, (16, 3, 1, 1)).astype("int8")

OTHERS: dict[str, Case] = {
    "the smaller of limits of channels, then others, then a relu": Case(
        """  %0 = minimum(cast(%q, dtype="int32"), LIMIT);
  nn.relu(maximum(%0, OTHER))""",
        {"q": _SQUARES},
        {
            "LIMIT": _int([[[-300]], [[0]], [[300]]], "int32"),
            "OTHER": _int([[[200]], [[0]], [[-300]]], "int32"),
        },
    ),
    "the larger of limits of channels, then a relu": Case(
        """  %0 = maximum(cast(%q, dtype="int32"), LIMIT);
  nn.relu(%0)""",
        {"q": _SQUARES},
        {"LIMIT": _int([[[-300]], [[0]], [[300]]], "int32")},
    ),
    **{
        f"factors along axis {axis} of an image of as many channels": Case(
            f"""  %0 = nn.conv2d(%q, WEIGHT, out_dtype="int32");
  %1 = fixed_point_multiply_per_axis(%0, FACTOR, SHIFT, axis={axis});
  clip(%1, a_min=-128f, a_max=127f)""",
            {"q": _SQUARES},
            {
                "WEIGHT": _ONE_BY_ONE,
                "FACTOR": np.linspace(1 << 30, (1 << 31) - 1, 16).astype("int32") & ~127,
                "SHIFT": -12 + np.arange(16, dtype="int32") // 8,
            },
        )
        for axis in (2, 3)
    },
    **{
        f"an average without a window of padding, count_include_pad={counted}": Case(
            f"""  %0 = cast(%q, dtype="int32");
  nn.avg_pool2d(%0, pool_size=[2, 2], strides=[3, 3], padding=[1, 1, 3, 3], ceil_mode=True,
    count_include_pad={counted})""",
            {"q": _SQUARES},
        )
        for counted in (False, True)
    },
}
"""What a form that is gone computed otherwise."""
