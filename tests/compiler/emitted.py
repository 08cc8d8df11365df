"""Emitted = scored: the module in memory, the file read again, and integer ONNX."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.ir.module import IRModule
from compiler.qtypes.layer_choices import POINT_BITS
from compiler.qtypes.qconfig import QConfig
from compiler.runtime.artifact import QModule, load_qmod
from compiler.runtime.executor import Executor
from compiler.targets.reference.executor import ReferenceExecutor

Batch = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True, eq=False)
class Emitted:
    """The number of output elements, and how many differ from the integer reference.

    Attributes:
        elements: of all outputs over all batches.
        loaded: differ when the module was saved and loaded again.
        integer: differ in the integer ONNX.
        outputs: of the reference, first output, batches joined along axis 0.
    """

    elements: int
    loaded: int
    integer: int
    outputs: NDArray[Any]


def compare_emitted(
    module: IRModule, batches: Iterable[Batch], path: str | os.PathLike[str]
) -> Emitted:
    """Run a realised module in every form it takes between its score and its shipment.

    Args:
        module: realised, partitioned or not.
        batches: inputs of ``main``; at least one.
        path: where a .qmod is written.
    Raises:
        ArtifactError, OnnxExportError: a form that cannot be made.
    """
    from compiler.targets.ort.integer_executor import IntegerExecutor

    QModule(module).save(path)
    reference = ReferenceExecutor(module)
    others: tuple[Executor, ...] = (
        ReferenceExecutor(load_qmod(path).module),
        IntegerExecutor(module),
    )
    differing = [0, 0]
    elements = 0
    kept: list[NDArray[Any]] = []
    for batch in batches:
        wanted = reference.run(batch)
        kept.append(wanted[0])
        elements += sum(out.size for out in wanted)
        for index, other in enumerate(others):
            for out, found in zip(wanted, other.run(batch), strict=True):
                differing[index] += int(np.count_nonzero(out != found))
    loaded, integer = differing
    return Emitted(elements, loaded, integer, np.concatenate(kept))


def random_qconfig(rng: np.random.Generator, layers: Sequence[str] = ()) -> QConfig:
    """A legal, fully integral configuration; every field that changes numbers takes part.

    Args:
        layers: names of layers that may get bits of their own.
    """

    def pick(*values: Any) -> Any:
        return values[rng.integers(len(values))]

    # Corrections are finer than 8-bit biases, so QConfig refuses the two together.
    bias_mode = pick("weight", "accumulator", "accumulator")
    corrected = bias_mode == "accumulator" and pick(False, True)
    return QConfig.recommended(
        bias_mode=bias_mode,
        nbit_input=pick(5, 6, 7, 8, 8),
        nbit_weight=pick(4, 5, 6, 7, 8, 8),
        nbit_activation=pick(24, 32, 32),
        calibrate_mode=pick("percentile", "max", "mse", "kl_divergence", "global_scale"),
        percentile=pick(0.999, 0.9999, 0.99999),
        global_scale=pick(2.0, 4.0, 8.0),
        weight_scale=pick("power2", "max", "mse"),
        weight_granularity=pick("tensor", "channel"),
        activation_scheme=pick("symmetric", "unsigned", "asymmetric"),
        rounding=pick("UPWARD", "TONEAREST", "TONEAREST_EVEN"),
        weight_rounding=pick("nearest", "corrected" if corrected else "nearest", "sequential"),
        layers={
            name: {"nbit_input": pick(*POINT_BITS.get(name, (None, 4, 11)))}
            for name in ((*layers, *POINT_BITS) if layers else ())
            if pick(False, False, True)
        },
        requantization=pick("fixed_point", "float_product", "power_of_two"),
        round_for_shift=pick(True, True, False),
        keep_output_wide=pick(True, False),
        avg_pool_round=pick(True, True, False),
        smooth_alpha=pick(None, None, 0.5),
    )
