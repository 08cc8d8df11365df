"""onnxruntime's static quantization, in the configurations that users try."""

from __future__ import annotations

import io
import logging
import time
from collections.abc import Iterator
from contextlib import contextmanager, redirect_stdout
from dataclasses import dataclass
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.capi.onnxruntime_pybind11_state import Fail
from onnxruntime.quantization import (
    CalibrationDataReader,
    CalibrationMethod,
    QuantFormat,
    QuantType,
    quantize_static,
)
from onnxruntime.quantization.calibrate import CalibraterBase, EntropyCalibrater
from onnxruntime.quantization.shape_inference import quant_pre_process

METHODS = ("MinMax", "Entropy", "Entropy512", "Percentile")
"""With its default of 128 bins Entropy has one candidate and finds what MinMax finds; Entropy512
is the same method given 512 bins."""


@dataclass(frozen=True, slots=True)
class Peer:
    """Calibration method, weight granularity, types, and zero points of activations."""

    method: str
    per_channel: bool
    unsigned: bool
    symmetric: bool = False
    unsigned_weights: bool = False

    @property
    def name(self) -> str:
        """As tables show it."""
        granularity = "per-channel" if self.per_channel else "per-tensor"
        scheme = f"{'u8' if self.unsigned else 's8'}{', symmetric' if self.symmetric else ''}"
        weights = ", u8 weights" if self.unsigned_weights else ""
        return f"{self.method}, {granularity}, {scheme}{weights}"


def all_peers(methods: tuple[str, ...] = METHODS) -> list[Peer]:
    """Every combination."""
    return [Peer(m, c, u) for m, c, u in product(methods, (False, True), (True, False))]


class Reader(CalibrationDataReader):  # type: ignore[misc]
    """Images batch by batch, as calibration asks for them."""

    def __init__(self, name: str, images: NDArray[np.float32], batch: int = 1) -> None:
        self._name = name
        self._images = images
        self._batch = batch
        self.rewind()

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        image = next(self._waiting, None)
        return None if image is None else {self._name: image}

    def rewind(self) -> None:
        """Start over."""
        starts = range(0, len(self._images), self._batch)
        self._waiting = iter([self._images[i : i + self._batch] for i in starts])


def prepare(model: Path, folder: Path) -> Path:
    """The model after onnxruntime's own preprocessing, as its guide asks for."""
    target = folder / f"{model.stem}.prepared.onnx"
    quant_pre_process(str(model), str(target), skip_symbolic_shape=True)
    return target


def quantize(
    prepared: Path, peer: Peer, images: NDArray[np.float32], folder: Path, batch: int = 1
) -> tuple[Path, float]:
    """The quantized model, QDQ, and the CPU seconds it took."""
    target = folder / f"{prepared.stem}.{peer.name.replace(', ', '.')}.onnx"
    reader = Reader(session(prepared).get_inputs()[0].name, images, batch)
    begin = time.process_time()
    logging.disable(logging.WARNING)
    bins = 512 if peer.method == "Entropy512" else None
    # It prints one line per step and tensor.
    with _one_thread(), _bins(bins), redirect_stdout(io.StringIO()):
        quantize_static(
            str(prepared),
            str(target),
            reader,
            quant_format=QuantFormat.QDQ,
            per_channel=peer.per_channel,
            activation_type=QuantType.QUInt8 if peer.unsigned else QuantType.QInt8,
            weight_type=QuantType.QUInt8 if peer.unsigned_weights else QuantType.QInt8,
            calibrate_method=getattr(CalibrationMethod, peer.method.removesuffix("512")),
            extra_options={"ActivationSymmetric": peer.symmetric},
        )
    logging.disable(logging.NOTSET)
    return target, time.process_time() - begin


def session(model: Path) -> Any:
    """A session with default options on one thread, exact on every processor.

    Without VNNI onnxruntime's kernels for uint8 by int8 saturate; it is told to use exact ones
    there. Where VNNI is, the option changes nothing but the passes from int8 to uint8, which fail
    on a weight that two nodes read ("Attempt to replace the existing tensor"): such a model, the
    transformer in int8, is loaded without these passes.
    """
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.x64quantprecision", "1")
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 4
    load = partial(
        onnxruntime.InferenceSession, str(model), options, providers=["CPUExecutionProvider"]
    )
    try:
        return load()
    except Fail:
        return load(disabled_optimizers=["Avx2WeightS8ToU8Transformer", "QDQS8ToU8Transformer"])


@contextmanager
def _one_thread() -> Iterator[None]:
    """Calibrate on one thread, as all else is measured: threads that wait burn CPU time."""
    original = CalibraterBase.create_inference_session

    def on_one(self: Any) -> None:
        options = onnxruntime.SessionOptions()
        options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.intra_op_num_threads = options.inter_op_num_threads = 1
        self.infer_session = onnxruntime.InferenceSession(
            self.augmented_model_path, options, providers=self.execution_providers
        )

    CalibraterBase.create_inference_session = on_one
    try:
        yield
    finally:
        CalibraterBase.create_inference_session = original


@contextmanager
def _bins(count: int | None) -> Iterator[None]:
    """Give EntropyCalibrater another default; quantize_static offers no way to set it."""
    original = EntropyCalibrater.__init__

    def with_bins(self: Any, *args: Any, **named: Any) -> None:
        named["num_bins"] = count
        original(self, *args, **named)

    if count is not None:
        EntropyCalibrater.__init__ = with_bins
    try:
        yield
    finally:
        EntropyCalibrater.__init__ = original
