"""From an evaluation request to something that runs: build, export, open a session."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import QuantizeError
from compiler.ir.module import IRModule
from compiler.lru_cache import LRUCache
from compiler.qtypes.channel_ranges import FloatSide
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Candidate, ChannelStats, build_candidate
from compiler.quantize.calibration.collect_stats import float_executor
from compiler.runtime.artifact import AUTO, QModule, load_qmod
from compiler.runtime.exact_executor import exact_executor
from compiler.runtime.executor import Executor, Inputs
from workers.datasets.protocol import InputSpec
from workers.datasets.registry import input_specs
from workers.messages import Build, EvaluatorName
from workers.metrics.size import size_figures
from workers.object_store import ObjectStore
from workers.process import Stopwatch


@dataclass(frozen=True, slots=True, eq=False)
class Runnable:
    """A candidate, or the float model, ready to run at the model's batch size.

    Attributes:
        inputs: the model's inputs.
        run: from inputs by name to outputs in order, real values.
        cost: bytes of its packed constants and its bit operations; empty for the float model.
        module: what ships; None where nothing was realised.
        rounding: what rounding of its weights has found, as arrays.
        integer: the integer function that the reference runs, too; None where the executor
            computes no integers, or is asked to be the reference.
    """

    inputs: tuple[InputSpec, ...]
    run: Callable[[Inputs], list[NDArray[Any]]]
    cost: Mapping[str, float] = field(default_factory=dict)
    module: IRModule | None = None
    rounding: Mapping[str, NDArray[Any]] | None = None
    integer: IRModule | None = None


class Builder:
    """Makes runnables in one process; the last modules and candidates stay in memory.

    Args:
        values: where handles of requests are looked up.
    """

    def __init__(self, values: ObjectStore) -> None:
        self._values = values
        self._shipped: LRUCache[QModule] = LRUCache(1)
        self._made: LRUCache[Runnable] = LRUCache(2)
        self._channels: LRUCache[ChannelStats] = LRUCache(1)
        self._ranges: LRUCache[NDArray[np.float32] | None] = LRUCache(8)
        self._float_sides: LRUCache[FloatSide] = LRUCache(1)

    def runnable(self, build: Build) -> tuple[Runnable, float]:
        """Candidate that was asked for, and CPU seconds spent on it now (0: it was held).

        Raises:
            CompilerError: it cannot be quantized, realised or exported.
        """
        watch = Stopwatch()
        if build.evaluator == "float":
            settings = ""
        else:
            settings = repr(sorted(build.qconfig.items()))
        keys = map(self._values.key, (build.blob, build.channels, build.module))
        key = (*keys, settings, build.activation_scales, build.evaluator, build.form)
        made = self._made.get(key, lambda: self._make(build))
        return made, watch.cpu_s

    def _channel_stats(self, build: Build) -> ChannelStats | None:
        """The same for all candidates of a study."""
        given = build.channels
        if given is None:
            return None
        key = self._values.key(given)
        return self._channels.get(key, lambda: ChannelStats.from_arrays(self._values.value(given)))

    def _make(self, build: Build) -> Runnable:
        if build.module is not None and build.evaluator == "onnxruntime":
            from compiler.targets.ort.session import OrtExecutor

            inputs = input_specs(self._values.module(build.blob))
            exported = OrtExecutor(self._values.value(build.module), [one.name for one in inputs])
            return Runnable(inputs, exported.run)
        if build.module is not None:
            file = build.module
            key = self._values.key(file)
            shipped = self._shipped.get(key, lambda: load_qmod(self._values.value(file)))
            if build.evaluator == "reference":
                executor = "reference"
            else:
                executor = AUTO
            run_module = partial(shipped.run, executor=executor, core=True)
            return Runnable(input_specs(shipped.module), run_module)
        mod = self._values.module(build.blob)
        inputs = input_specs(mod)
        if build.evaluator == "float":
            return Runnable(inputs, float_executor(mod).run)
        qconfig = QConfig.from_dict(dict(build.qconfig))
        if qconfig.needs_channels:
            channels = self._channel_stats(build)
        else:
            channels = None
        whole = qconfig.with_whole_weights()
        keys = map(self._values.key, (build.blob, build.channels))
        ranges_key = (*keys, whole, build.activation_scales)
        run = QuantizeContext(qconfig)
        if whole != qconfig:
            run.rounded.ranges = self._ranges.get(ranges_key, lambda: None)
            run.rounded.float_side = self._float_sides.get(ranges_key, FloatSide)
        candidate = build_candidate(mod, qconfig, build.activation_scales, channels, run)
        self._ranges.put(ranges_key, run.rounded.ranges)
        return Runnable(
            inputs,
            _executor(candidate, build.evaluator).run,
            size_figures(candidate, build.form),
            None if candidate.integer is None else candidate.module,
            candidate.context.rounded.to_arrays(),
            candidate.integer if build.evaluator == "engine" else None,
        )


def _executor(candidate: Candidate, evaluator: EvaluatorName) -> Executor:
    """Executor of a candidate; without the engine another one gives the same bits."""
    if evaluator == "simulated":
        return float_executor(candidate.simulated)
    if candidate.integer is None:
        raise QuantizeError(
            "the candidate was not realised (do_simulation), so there are no integers to evaluate",
            fix="use the evaluator 'simulated', or do_simulation=False",
        )
    if evaluator == "engine":
        return exact_executor(candidate.integer).executor
    from compiler.targets.reference.executor import ReferenceExecutor

    return ReferenceExecutor(candidate.integer)
