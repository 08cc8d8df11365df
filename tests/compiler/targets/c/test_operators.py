"""Every operator's loops in C: integers bit for bit, also at the ends of their range."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from compiler.core.words import FBody
from compiler.errors import CompilerError
from compiler.ir.op import all_ops
from compiler.ir.ty import is_dynamic, tensor_fields
from compiler.lir.nodes import PrimFunc
from compiler.lir.scalars import Buffer
from compiler.ops.rules.lower import FLower
from compiler.ops.rules.simplify import FDefinition, FSimplifyInference
from compiler.targets.c.kernel_library import KernelLibrary
from tests.compiler.lowered_calls import lower_call
from tests.compiler.random_graphs import accepted_calls
from tests.needs import NEEDS_C

pytestmark = NEEDS_C

FLAGS = (
    "-O0", "-ffp-contract=off", "-fsanitize=undefined", "-fno-sanitize-recover=all",
    "-Wall", "-Wextra", "-Werror", "-pedantic",
)  # fmt: skip
CALLS = 6
LOOPS = (FLower, FBody, FDefinition, FSimplifyInference)
# Integer routines and intrinsics that promise nothing outside of their contracts.
SMALL_VALUES_ONLY = {
    "fixed_point_multiply", "fixed_point_multiply_per_axis", "nn.integer_softmax",
    "nn.fixed_point_softmax",
    "nn.integer_standardize", "power", "take", "gather", "gather_nd",
    "scatter_nd", "one_hot", "isqrt",
}  # fmt: skip


def lowered_operators() -> list[tuple[str, PrimFunc]]:
    """A few calls of every operator, float16 left out: C99 has no such type."""
    found: list[tuple[str, PrimFunc]] = []
    for op in all_ops():
        if not any(op in table for table in LOOPS):
            continue
        plain, _ = accepted_calls(op, seed=11, tries=120, vary_attrs=False)
        varied, _ = accepted_calls(op, seed=12, tries=120)
        kept = 0
        for attrs, types, result in plain[: CALLS // 2] + varied:
            if kept == CALLS or any(is_dynamic(ty) for ty in (*types, result)):
                continue
            shapes = [ty.concrete_shape for t in (*types, result) for ty in tensor_fields(t)]
            if any(0 in shape for shape in shapes):
                continue
            try:
                func = lower_call(op, attrs, types)
                func.evaluate([values(op.name, b, np.random.default_rng(0)) for b in func.params])
            except CompilerError:
                continue
            buffers = (*func.params, *func.outputs, *func.temps)
            if not any(b.dtype == "float16" for b in buffers):
                found.append((op.name, replace(func, name=f"f{len(found)}")))
                kept += 1
    return found


def values(operator: str, buffer: Buffer, rng: np.random.Generator) -> np.ndarray[Any, Any]:
    """Any value of the dtype, its ends among them; floats of size about 1."""
    dtype = np.dtype(buffer.dtype)
    if dtype.kind == "b":
        return np.asarray(rng.integers(0, 2, buffer.shape)).astype(bool)
    if dtype.kind == "f":
        return np.asarray(rng.uniform(0.1, 2.0, buffer.shape)).astype(dtype)
    if operator in SMALL_VALUES_ONLY:
        return np.asarray(rng.integers(0, 3, buffer.shape)).astype(dtype)
    info = np.iinfo(dtype)
    drawn = np.asarray(rng.integers(info.min, info.max, buffer.shape, dtype, endpoint=True))
    edge = rng.random(buffer.shape)
    return np.where(edge < 0.2, info.min, np.where(edge > 0.8, info.max, drawn)).astype(dtype)


@pytest.mark.slow
def test_every_operator_gives_the_bits_of_the_reference() -> None:
    operators = lowered_operators()
    assert len({name for name, _ in operators}) > 100
    library = KernelLibrary([func for _, func in operators], FLAGS)
    for name, func in operators:
        rng = np.random.default_rng(1)
        for _ in range(2):
            args = [values(name, buffer, rng) for buffer in func.params]
            for mine, wanted in zip(library.run(func.name, args), func.evaluate(args), strict=True):
                assert (mine.shape, mine.dtype) == (wanted.shape, wanted.dtype), name
                if mine.dtype.kind != "f":
                    np.testing.assert_array_equal(mine, wanted, err_msg=name)
                    continue
                # Sums in another order, and another mathematical library.
                finite = np.abs(wanted[np.isfinite(wanted)]).max(initial=1.0)
                np.testing.assert_allclose(
                    mine, wanted, rtol=2e-5, atol=2e-6 * finite, err_msg=name
                )
