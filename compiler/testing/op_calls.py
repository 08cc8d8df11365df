"""Random calls of any operator: attributes, argument types and values, legal or not.

Suites that compare executors, printers or relations over all operators draw from here.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import AttrError, TypeInferenceError
from compiler.ir.attrs import Attrs
from compiler.ir.expr import Op
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import IncompleteType, TensorType, TupleType, Type
from compiler.ops.evaluate import Value
from compiler.ops.number_format import storage_dtype

# Values for attributes that have no default.
REQUIRED: dict[str, dict[str, Any]] = {
    "nn.max_pool2d": {"pool_size": (2, 2)},
    "nn.avg_pool2d": {"pool_size": (2, 2)},
    "nn.group_norm": {"num_groups": 1},
    "nn.l2_normalize": {"eps": 1e-6, "axis": (1,)},
    "nn.pad": {"pad_width": ((0, 1), (1, 0))},
    "clip": {"a_min": -1.0, "a_max": 1.0},
    "cast": {"dtype": "int8"},
    "zeros": {"shape": (2,)},
    "ones": {"shape": (2,)},
    "full": {"shape": (2,)},
    "fixed_point_multiply": {"multiplier": 1 << 30, "shift": 1},
    "unary_formula": {"formula": "x x sigmoid multiply"},
    "einsum": {"equation": "ij,ij->ji"},
    "reshape": {"newshape": (-1,)},
    "expand_dims": {"axis": 0},
    "split": {"indices_or_sections": 1},
    "strided_slice": {"begin": (0,), "end": (1,)},
    "gather": {"axis": 0},
    "broadcast_to": {"shape": (2, 3)},
    "tile": {"reps": (2,)},
    "repeat": {"repeats": 2},
    "reverse": {"axis": 0},
    "layout_transform": {"src_layout": "NCHW", "dst_layout": "NHWC"},
    "one_hot": {"depth": 3},
    "image.resize2d": {"size": (3, 3)},
    "annotation.cast_hint": {"dtype": "int8"},
    "relay.op.annotation.simulated_quantize": {"kind": 1},
}
SHAPES = ((), (1,), (2,), (3,), (2, 3), (3, 2), (1, 2, 3), (2, 3, 3), (1, 2, 3, 3), (2, 2, 1, 1))
DTYPES = ("float32", "float16", "int8", "int32", "int64", "uint8", "bool")
_TAKES_TUPLE = ("concatenate", "stack", "einsum")
_INTS = (-5, -2, -1, 0, 1, 2, 3, 4)
_FLOATS = (0.0, 1.0, -1.0, 2.5, float("nan"), float("inf"))
_WORDS = (
    "NCHW", "NHWC", "OIHW", "", "clip", "update", "linear", "nearest_neighbor", "both", "end",
    "size", "constant", "edge", "reflect", "ij->ji", "half_pixel", "DCR", "round", "nonsense",
)  # fmt: skip


def plain_attrs(op: Op) -> Attrs | None:
    """Default attributes, with something simple for the required ones."""
    return op.attrs_type.make(**REQUIRED.get(op.name, {})) if op.attrs_type else None


def random_attrs(op: Op, rng: random.Random) -> Attrs | None:
    """Attributes of which about a third are random, sensible or not.

    Raises:
        AttrError: the record itself refused the values.
    """
    if op.attrs_type is None:
        return None
    values = dict(REQUIRED.get(op.name, {}))
    for name, field in op.attrs_type.__dataclass_fields__.items():
        if name != "type_key" and rng.random() < 0.35:
            known, value = _random_field(name, str(field.type), rng)
            if known:
                values[name] = value
    return op.attrs_type.make(**values)


def _random_field(name: str, annotation: str, rng: random.Random) -> tuple[bool, Any]:
    if name == "dtype" or name.endswith("_dtype"):
        return True, rng.choice(("int8", "float32", "int32", "", "float16", "bool"))
    if annotation.endswith(" | None") and rng.random() < 0.4:
        return True, None
    kind = annotation.removesuffix(" | None")
    some = tuple(rng.choice(_INTS) for _ in range(rng.randrange(5)))
    choices: dict[str, Any] = {
        "int": rng.choice(_INTS),
        "float": rng.choice(_FLOATS),
        "bool": rng.random() < 0.5,
        "str": rng.choice(_WORDS),
        "tuple[int, ...]": some,
        "tuple[tuple[int, ...], ...]": tuple((i, rng.choice(_INTS)) for i in some),
        "int | tuple[int, ...]": rng.choice((rng.choice(_INTS), some)),
        "Axes": rng.choice((None, rng.choice(_INTS), some[:2])),
    }
    return kind in choices, choices.get(kind)


def random_types(op: Op, rng: random.Random) -> tuple[Type, ...]:
    """One type per argument; mostly of one dtype, some with unknown or zero dimensions.

    Later arguments are often the scalars, vectors or equals of the first that operators ask for.
    """
    dtype = rng.choice(DTYPES) if rng.random() < 0.7 else None
    types = [_random_type(op, dtype, rng) for _ in op.arg_names]
    first = types[0] if types else None
    if isinstance(first, TensorType) and rng.random() < 0.6:
        axis = rng.choice(first.shape) if first.shape else 1
        # One choice for all: normalisations want vectors, quantization scalars.
        shape = rng.choice((first.shape, (axis,), ()))
        types[1:] = [TensorType(shape, dtype or first.dtype) for _ in types[1:]]
    return tuple(types)


def _random_type(op: Op, dtype: str | None, rng: random.Random) -> Type:
    shape: Sequence[Any] = rng.choice(SHAPES)
    if rng.random() < 0.1:
        shape = [AnyDim() if rng.random() < 0.5 else d for d in shape]
    elif rng.random() < 0.05:
        shape = [0 if rng.random() < 0.5 else d for d in shape]
    ty = TensorType(tuple(shape), dtype or rng.choice(DTYPES))
    if op.name in _TAKES_TUPLE and rng.random() < 0.9:
        other = TensorType(rng.choice(SHAPES), rng.choice(DTYPES))
        return TupleType((ty, ty if rng.random() < 0.7 else other))
    return TupleType((ty,)) if rng.random() < 0.05 else ty


class _Equality:
    """A solver that only knows equality: all that a relation of known types needs."""

    def __init__(self) -> None:
        self.found: dict[int, Type] = {}

    def assign(self, dst: Type, src: Type) -> None:
        """Fill the hole, or compare."""
        if isinstance(dst, IncompleteType):
            self.found[id(dst)] = src
        elif dst != src:
            raise TypeInferenceError(f"{dst} is not {src}")


def result_type(op: Op, attrs: Attrs | None, types: Sequence[Type]) -> Type | None:
    """What the operator's relation says about known argument types; None when it cannot say.

    Raises:
        TypeInferenceError: the types do not fit.
    """
    hole, solver = IncompleteType(), _Equality()
    if not op.rel((*types, hole), len(types), attrs, solver):
        return None
    return solver.found.get(id(hole))


def random_value(ty: Type, rng: np.random.Generator) -> Value:
    """Small non-negative whole numbers, legal for every operator and dtype."""
    if isinstance(ty, TupleType):
        return tuple(random_value(f, rng) for f in ty.fields)
    assert isinstance(ty, TensorType)
    values: NDArray[Any] = rng.integers(0, 3, ty.concrete_shape)
    return np.asarray(values).astype(storage_dtype(ty.dtype))


def accepted_calls(
    op: Op, seed: int, tries: int, vary_attrs: bool = True
) -> tuple[list[tuple[Attrs | None, tuple[Type, ...], Type]], int]:
    """Random (attrs, argument types, result type) it accepts, and the number it refuses."""
    rng = random.Random(f"{op.name} {seed}")
    accepted: list[tuple[Attrs | None, tuple[Type, ...], Type]] = []
    refused = 0
    for _ in range(tries):
        try:
            attrs = random_attrs(op, rng) if vary_attrs else plain_attrs(op)
            types = random_types(op, rng)
            result = result_type(op, attrs, types)
        except (AttrError, TypeInferenceError):
            refused += 1
            continue
        if result is not None:
            accepted.append((attrs, types, result))
    return accepted, refused
