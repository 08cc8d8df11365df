"""The inputs that a calibration keeps beside its statistics."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from typing import Final

import numpy as np

from compiler.ir.expr import Function
from compiler.ir.module import IRModule
from compiler.qtypes.input_sample import InputSample
from compiler.quantize.calibration.collect_stats import Batch, inputs_of, no_data

_MOST_SAMPLES: Final = 256
_MOST_ELEMENTS: Final = 1 << 24


def batch_size(mod: IRModule) -> int:
    """Samples of one run: the first axis of the first input, 1 for none."""
    params = mod["main"].params
    shape = params[0].tensor_type.concrete_shape if params else ()
    return shape[0] if shape else 1


def sample_inputs(mod: IRModule, batches: Iterable[Batch]) -> InputSample:
    """The sample of one shard: at most 256 images, and at most 2^24 values of the inputs.

    Args:
        mod: its ``main`` takes the inputs.
    Raises:
        CalibrationError: there is no batch, or one lacks an input.
    """
    main: Function = mod["main"]
    images = batch_size(mod)
    values = sum(param.tensor_type.num_elements for param in main.params)
    most = max(min(_MOST_SAMPLES // max(images, 1), _MOST_ELEMENTS // max(values, 1)), 1)
    found = InputSample(most, (), ())
    for batch in batches:
        inputs = inputs_of(batch, [param.name_hint for param in main.params])
        run = tuple(np.ascontiguousarray(inputs[param.name_hint]) for param in main.params)
        digest = hashlib.sha256(b"".join(array.tobytes() for array in run)).hexdigest()
        found = found.merge(InputSample(most, (digest,), (run,)))
    if not found.runs:
        raise no_data()
    return found
