from __future__ import annotations

import random
from typing import Any

import pytest

import compiler
from compiler import relay
from compiler.ir.expr import Call, Op
from compiler.ir.op import all_ops

VALUES: dict[str, list[Any]] = {
    "int": [3, -1, 0],
    "float": [0.1, -127.0, 1e-5, 3.0],
    "bool": [True, False],
    "tuple[int, ...]": [(1, 2), (2,)],
    "Axes": [None, 1, (0, 1)],
    "Count": [2],
    "Size": [3, 1],
    "Sizes": [(1, 2), (2,)],
    "Count | Sizes": [2, (1, 2)],
    "tuple[Sizes, ...]": [((0, 1), (2, 3))],
    "int | None": [None, 4],
    "Size | None": [None, 4],
    "Sizes | None": [None, (3, 3)],
    "float | None": [None, 0.5],
    "tuple[int, ...] | None": [None, (3, 3)],
}
PAIRS = ("strides", "dilation", "kernel_size", "pool_size", "size", "output_size")


def sample(op: Op, rng: random.Random) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name, field in (op.attrs_type.__dataclass_fields__ if op.attrs_type else {}).items():
        if name == "dtype" or name.endswith("_dtype"):
            values[name] = rng.choice(["int8", "float32"])
        elif name in PAIRS and str(field.type).startswith(("tuple", "Sizes")):
            values[name] = (2, 3)
        elif name == "padding":
            values[name] = (1, 2, 3, 4)
        elif str(field.type) in VALUES:
            values[name] = rng.choice(VALUES[str(field.type)])
        elif str(field.type) == "str":
            values[name] = "NHWC"
    return {
        k: v for k, v in values.items() if not (k in ("num_newaxis", "output_padding") or v is None)
    } | ({"num_newaxis": 2} if "num_newaxis" in values else {})


@pytest.mark.parametrize("op", all_ops(), ids=lambda op: op.name)
def test_attributes_survive_the_text_form(op: Op) -> None:
    rng = random.Random(op.name)
    for _ in range(5):
        values = sample(op, rng)
        attrs = op.attrs_type.make(**values) if op.attrs_type else None
        variables = tuple(relay.var(f"x{k}", (2,)) for k in range(op.num_inputs))
        call = Call(op, variables, attrs)
        text = compiler.text(call, show_types=False)
        back = compiler.parse_expr(text)
        assert isinstance(back, Call)
        assert back.op is op
        assert back.attrs == attrs, text
