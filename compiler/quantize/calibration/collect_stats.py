"""Run the profile function over a dataset: whole arrays, or statistics that stream."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CalibrationError, OnnxExportError
from compiler.ir.loops import closed
from compiler.ir.module import IRModule
from compiler.quantize.calibration.kept_batches import Batch as Batch
from compiler.quantize.calibration.kept_batches import repeatable
from compiler.quantize.calibration.profile_function import profile_function
from compiler.runtime.executor import Executor

ExecutorFactory = Callable[[IRModule], Executor]

_log = logging.getLogger("compiler.quantize.calibrate")


def float_executor(mod: IRModule, *, arena: bool = True) -> Executor:
    """Fastest executor of a float module: onnxruntime, else the numpy reference.

    Args:
        arena: as of ``OrtExecutor``.
    """
    from compiler.export.to_onnx.float.model import to_onnx
    from compiler.targets.ort.segments import SegmentedExecutor
    from compiler.targets.reference.executor import ReferenceExecutor

    mod = closed(mod)
    try:
        large: dict[str, NDArray[Any]] = {}
        return SegmentedExecutor(to_onnx(mod, large=large), arena=arena, large=large)
    except OnnxExportError as error:
        _log.info("the profile function runs in the numpy reference executor: %s", error.what)
        return ReferenceExecutor(mod)


def collect_stats(
    mod: IRModule,
    dataset: Iterable[Batch],
    chunk_by: int = -1,
    executor: ExecutorFactory = float_executor,
) -> Iterator[NDArray[np.float32]]:
    """Every value of every quantize point, flattened: float32 rows in binding order.

    Holds the values of ``chunk_by`` points (-1: all) of the whole dataset at a time and runs the
    network once per chunk. ``calibration_stats`` needs neither.

    Raises:
        CalibrationError: the dataset is empty or lacks an input.
    """
    profile, points = profile_function(mod)
    chunk = points.point_tensor.size if chunk_by == -1 else chunk_by
    starts = range(0, points.point_tensor.size, chunk)
    if len(starts) > 1:
        dataset = repeatable(dataset)
    run = executor(profile)
    for start in starts:
        wanted = points.point_tensor[start : start + chunk]
        rows: list[list[NDArray[np.float32]]] = [[] for _ in wanted]
        for outputs in profile_outputs(run, dataset):
            for row, tensor in zip(rows, wanted, strict=True):
                row.append(np.asarray(outputs[tensor], np.float32).reshape(-1))
        if not all(rows):
            raise no_data()
        yield from (np.concatenate(row) for row in rows)


def profile_outputs(run: Executor, dataset: Iterable[Batch]) -> Iterator[list[NDArray[Any]]]:
    """Outputs of the profile function, batch after batch.

    Raises:
        CalibrationError: a batch lacks an input; both sides are named.
    """
    for batch in dataset:
        yield run.run(inputs_of(batch, run.input_names))


def inputs_of(batch: Batch, names: Sequence[str]) -> dict[str, NDArray[Any]]:
    """The arrays of a batch that a network takes.

    Raises:
        CalibrationError: the batch lacks one; both sides are named.
    """
    missing = [name for name in names if name not in batch]
    if missing:
        raise CalibrationError(
            f"a batch lacks the input {missing[0]!r}",
            where=f"the batch has {', '.join(map(repr, batch)) or 'nothing'}; "
            f"the network takes {', '.join(map(repr, names))}",
            fix="name the arrays as the network's inputs",
        )
    return {name: batch[name] for name in names}


def no_data() -> CalibrationError:
    """The error of a dataset without batches."""
    return CalibrationError("the dataset is empty", fix="give at least one batch")
