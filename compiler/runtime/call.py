"""Call: a module that is ready to run; what can be decided before there are inputs is decided."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

import numpy as np

from compiler.errors import EvaluationError
from compiler.ir.expr import Array
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import TensorType
from compiler.ops.number_format import storage_dtype
from compiler.runtime.executor import BatchExecutor, Executor, Inputs, ordered_inputs
from compiler.runtime.interface import Interface


class Call:
    """A module and its executor as one function of the inputs; threads may call it together.

    Args:
        executor: of the module's ``main``.
        types: of its parameters, by name.
        interface: of the model it was made from.
        threads: that share the samples of a batch, or the steps of one sample.
        joins: whether all outputs have an axis along which those of samples are joined.
    """

    def __init__(
        self,
        executor: Executor,
        types: Sequence[tuple[str, TensorType]],
        interface: Interface | None,
        threads: int = 1,
        joins: bool = True,
    ) -> None:
        self.executor = executor
        self.threads = threads
        self._joins = joins
        self._names = [name for name, _ in types]
        self._types = [ty for _, ty in types]
        # Two parameters may have one name; then no name tells them apart.
        self._known = set(self._names) if len(set(self._names)) == len(self._names) else None
        self._taken, self._given = (
            ([], []) if interface is None else interface.converted(self._names)
        )
        self._fitting: Callable[[list[Array]], list[Array]] = executor.run
        if isinstance(executor, BatchExecutor):
            self._fitting = executor.run_arrays
            if threads > 1:
                self._fitting = partial(executor.run_arrays, threads=threads)
        # None for sizes that are not known: such inputs never fit as they are.
        shapes = [
            None if any(isinstance(d, AnyDim) for d in t.shape) else t.shape for t in self._types
        ]
        self._one = list(zip(shapes, (storage_dtype(t.dtype) for t in self._types)))

    def __call__(self, inputs: Inputs) -> list[Array]:
        """The outputs of one sample, or of a batch.

        Raises:
            EvaluationError: as ``QModule.run``.
        """
        if type(inputs) is dict and inputs.keys() == self._known:
            arrays = [inputs[name] for name in self._names]
        else:
            arrays = ordered_inputs(self._names, inputs)
        if self._fits(arrays):
            return self._fitting(arrays)
        arrays = [np.asarray(array) for array in arrays]
        own = [dtype is not None and a.dtype == dtype for a, dtype in zip(arrays, self._taken)]
        if not any(own):
            return self._run(arrays)
        arrays = [a.astype(np.float32) if so else a for a, so in zip(arrays, own, strict=True)]
        if self._fits(arrays):
            outputs = self._fitting(arrays)
        else:
            outputs = self._run(arrays)
        return [
            a.astype(dtype) if dtype is not None and a.dtype == np.float32 else a
            for a, dtype in zip(outputs, self._given, strict=True)
        ]

    def _fits(self, arrays: Sequence[Any]) -> bool:
        """One sample, of arrays as the module takes them."""
        for array, (shape, dtype) in zip(arrays, self._one):
            if type(array) is not np.ndarray or array.shape != shape or array.dtype != dtype:
                return False
        return True

    def _run(self, arrays: list[Array]) -> list[Array]:
        """Run as often as the batch needs it."""
        pieces = self._pieces(arrays)
        if pieces == 1:
            return self.executor.run(arrays)
        if isinstance(self.executor, BatchExecutor):
            return self.executor.run_batch(arrays, pieces, self.threads)
        split = [np.split(array, pieces) for array in arrays]
        results = [self.executor.run(list(parts)) for parts in zip(*split, strict=True)]
        return [np.concatenate(parts, axis=0) for parts in zip(*results, strict=True)]

    def _pieces(self, arrays: Sequence[Array]) -> int:
        """Count the runs that a batch needs; 1 also where the executor will name the misfit."""
        counts: set[int] = set()
        if not self._joins:
            return 1
        for ty, array in zip(self._types, arrays, strict=True):
            if not ty.shape or isinstance(ty.shape[0], AnyDim):
                return 1
            fits = array.ndim == len(ty.shape) and array.shape[1:] == tuple(ty.shape[1:])
            if not fits or not array.shape[0] or not ty.shape[0] or array.shape[0] % ty.shape[0]:
                return 1
            counts.add(array.shape[0] // ty.shape[0])
        if len(counts) > 1:
            raise EvaluationError(
                "the inputs hold different numbers of samples",
                where=", ".join(f"{n}: {len(a)}" for n, a in zip(self._names, arrays)),
            )
        if counts:
            return counts.pop()
        return 1
