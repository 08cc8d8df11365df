"""Calibration: the one order in which a float module becomes a quantized one.

    channel statistics → partition and annotate → statistics → scales → build

Everything that quantizes calls ``Calibration``: ``quantize()``, and in a service the commands that
compile, examine and search. They differ in where the batches are (``CalibrationData``), and in
what is kept for another day (``StatisticsStore``).
"""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

import numpy as np

from compiler.errors import CalibrationError, NotFullyIntegralError
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import PassContext, Sequential
from compiler.ir.walk import mentions, operators_of
from compiler.lru_cache import LRUCache
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.layer_choices import layer_choices
from compiler.qtypes.qconfig import QConfig
from compiler.quantize.bits.predicted_error import predicted_sqnr_db
from compiler.quantize.calibration.channel_stats import ChannelStats
from compiler.quantize.calibration.kept_batches import Batch
from compiler.quantize.calibration.measurement import (
    CalibrationData,
    LocalData,
    Mark,
    Measurement,
    Ranges,
    Statistics,
    merged_channels,
    merged_points,
    with_sample,
)
from compiler.quantize.calibration.profile_function import profile_function
from compiler.quantize.calibration.statistics_store import (
    CHANNELS,
    SCALES,
    STATISTICS,
    Arrays,
    StatisticsStore,
    channel_fields,
    scale_fields,
    statistics_fields,
)
from compiler.quantize.calibration.stats import CalibrationStats, PointMap
from compiler.quantize.candidate import Candidate, build_candidate, mark
from compiler.quantize.choice import SMOOTH_ALPHA, Decision, choose
from compiler.quantize.preparation.prerequisite import Params, prerequisite_optimize
from compiler.quantize.run_context import context_or_new
from compiler.quantize.scales.activation_scales import activation_scales
from compiler.quantize.scales.bind_scales import measured_points
from compiler.quantize.scales.given_points import given_points
from compiler.quantize.smoothing.rescaled_tensors import CommonReading, rescaled_tensors
from compiler.quantize.smoothing.rescaling import rescaled
from compiler.quantize.weighted_calls import weighted_calls

_VARIANTS: Final = 16
"""The number of graph variants with stored statistics; the others are measured again."""

_SCALES: Final = 1024
"""The same for the scales that were chosen from them."""

_JOINS: Final = ("concatenate", "stack", "scatter_nd")
"""Operators that bring fields to one storage."""


class NoData:
    """Calibration data without batches."""

    def collect(self, measurement: Measurement) -> Sequence[Statistics]:
        """Refuse to measure.

        Raises:
            CalibrationError: always.
        """
        needs = f"calibrate_mode {measurement.qconfig.calibrate_mode!r} needs a dataset"
        fix = "pass dataset=[{input name: array}, …], or use calibrate_mode='global_scale'"
        if measurement.step == "channels":
            needs = "smooth_alpha and weight_rounding need a dataset"
            fix = "pass dataset=[{input name: array}, …], or unset these fields"
        raise CalibrationError(needs, fix=fix)


def _with_last(mark: Mark) -> Mark:
    """``mark`` of one module, which keeps its last result."""
    last: LRUCache[tuple[IRModule, QuantizeContext]] = LRUCache(1)
    return lambda mod, qconfig, channels: last.get(qconfig, lambda: mark(mod, qconfig, channels))


class Calibration:
    """Scales and modules of configurations of one module; each thing is measured once.

    Args:
        mod: result of ``prerequisite_optimize``.
        data: batches (input name → array); or where else they are. None is
            enough for calibrate_mode "global_scale".
        percentiles: fractions that configurations may ask for; None measures the one that is asked
            for.
        store: keeps statistics and scales.
        mark: partitions and annotates.
        variants: values of fields such as ``smooth_alpha``, and of ``layers`` whether sums
            are wide, that configurations may ask for; the statistics of all of them are taken in
            the same passes.

    Example:
        >>> import numpy as np
        >>> from compiler import relay
        >>> from compiler.qtypes.qconfig import QConfig
        >>> weight = relay.const(np.ones((4, 3, 1, 1), "float32"))
        >>> conv = relay.op.nn.conv2d(relay.var("x", (1, 3, 8, 8)), weight)
        >>> batches = [{"x": np.ones((1, 3, 8, 8), "float32")}]
        >>> calibration = Calibration(relay.module(conv), batches)
        >>> calibration.candidate(QConfig.recommended()).partitioned is not None
        True
    """

    def __init__(
        self,
        mod: IRModule,
        data: CalibrationData | Iterable[Batch] | None = None,
        *,
        percentiles: Sequence[float] | None = None,
        store: StatisticsStore | None = None,
        mark: Mark = mark,
        variants: Sequence[Mapping[str, Any]] = (),
    ) -> None:
        self._mod = mod
        self._variants = tuple(variants)
        if percentiles is None:
            self._percentiles = None
        else:
            self._percentiles = tuple(percentiles)
        self._store = store
        self._marks = mark
        self._mark = _with_last(mark)
        self._data: CalibrationData = NoData()
        if isinstance(data, CalibrationData):
            self._data = data
        elif data is not None:
            self._data = LocalData(mod, data, mark=self._mark)
        self._channels: ChannelStats | None = None
        self._stats: LRUCache[CalibrationStats] = LRUCache(_VARIANTS)
        self._scales: LRUCache[Ranges] = LRUCache(_SCALES)

    def channels(self, qconfig: QConfig) -> ChannelStats:
        """Channel statistics of the float module; the same for every configuration.

        Args:
            qconfig: a sample of the inputs is added if it needs one.
        Raises:
            CalibrationError: there are no data, they do not fit, or no layer has a weight.
        """
        stored = self._stored_channels
        known = self._channels or stored(sample=False) or stored(sample=True)
        if known is None:
            known = merged_channels(self._data, qconfig)
            self._save(CHANNELS, channel_fields(sample=False), known)
        if qconfig.sequential and known.sample is None:
            found = self._stored_channels(sample=True)
            if found is None:
                found = with_sample(self._data, qconfig, known)
                self._save(CHANNELS, channel_fields(sample=True), found)
            known = found
        self._channels = known
        return known

    def _stored_channels(self, sample: bool) -> ChannelStats | None:
        arrays = self._load(CHANNELS, channel_fields(sample))
        if arrays is None:
            return None
        return ChannelStats.from_arrays(arrays)

    def channels_for(self, qconfig: QConfig) -> ChannelStats | None:
        """``channels`` where the configuration needs them, else None; raises alike."""
        if qconfig.needs_channels:
            return self.channels(qconfig)
        return None

    def stats_for(self, qconfig: QConfig) -> CalibrationStats:
        """The statistics that the scales of a configuration are chosen from.

        Raises:
            CalibrationError: there are no data, they do not fit, or values are not finite.
        """
        fields = statistics_fields(qconfig)
        key = self._key(fields, qconfig)
        return self._stats.get(key, lambda: self._stored_stats(qconfig, fields))

    def scales_for(self, qconfig: QConfig) -> Ranges | None:
        """Range S of every measured point, and ends behind them, as ``activation_scales`` gives
        them; None for calibrate_mode "global_scale", which needs no data.

        What the configuration needs of the channels is measured here, too.

        Raises:
            CalibrationError: as for ``stats_for``, or the statistics give no scale.
        """
        self.channels_for(qconfig)
        if not qconfig.needs_ranges:
            return None
        fields = scale_fields(qconfig)
        key = self._key(fields, qconfig)
        return self._scales.get(key, lambda: self._stored_scales(qconfig, fields))

    def choose(self) -> tuple[QConfig, tuple[Decision, ...]]:
        """The configuration that the statistics suggest, with reasons; see ``choice.choose``.

        Raises:
            CalibrationError: there are no data, or they do not fit.
        """
        weighted = weighted_calls(self._mod["main"]) and not given_points(self._mod).count
        corrected = QConfig.recommended(weight_rounding="corrected")
        channels = self.channels(corrected) if weighted else None
        return choose(self._mod, channels, self._gain_of_smoothing)

    def _gain_of_smoothing(self, qconfig: QConfig) -> float:
        """dB that smoothing is predicted to gain; both networks are measured in the same passes."""
        both = [qconfig.with_overrides(smooth_alpha=alpha) for alpha in (SMOOTH_ALPHA, None)]
        smoothed, plain = self.predicted_db(both)
        return smoothed - plain

    def predicted_db(self, qconfigs: Sequence[QConfig]) -> list[float]:
        """SQNR in dB that statistics predict of configurations, measured in the same passes.

        Raises:
            CalibrationError: as for ``scales_for``.
        """
        alphas = ({"smooth_alpha": one.smooth_alpha} for one in qconfigs)
        self._variants = (*self._variants, *alphas)
        channels = [self.channels_for(one) for one in qconfigs]
        # A rescaled network has weights of its own: none waits while another is measured.
        stats = [self.stats_for(one) for one in qconfigs]
        found = []
        for one, known, of_one in zip(qconfigs, channels, stats, strict=True):
            module, ranges = rescaled(self._mod, one, known)
            found.append(predicted_sqnr_db(module, of_one, _measured_as(one), ranges))
        return found

    def candidate(self, qconfig: QConfig, context: QuantizeContext | None = None) -> Candidate:
        """The module of a configuration.

        Args:
            context: the run to work in; a new one without it.
        Raises:
            CompilerError: as for ``scales_for`` and ``build_candidate``.
        """
        scales = self.scales_for(qconfig)
        channels = self.channels_for(qconfig)
        return build_candidate(self._mod, qconfig, scales, channels, context)

    def zero_points_matter(self, qconfig: QConfig) -> bool:
        """Tell whether "asymmetric" may make other integers than "unsigned".

        With the same ranges every point has the same grid; only where fields of both signs meet
        does one storage of all of them need a zero point.

        Raises:
            CalibrationError: as for ``scales_for``.
        """
        schemes = ("asymmetric", "unsigned")
        one, other = (
            self.scales_for(qconfig.with_overrides(activation_scheme=scheme)) for scheme in schemes
        )
        return one != other or mentions(self._mod["main"], _JOINS)

    def _load(self, kind: str, fields: Mapping[str, Any]) -> Arrays | None:
        if self._store is None:
            return None
        return self._store.load(kind, fields)

    def _save(
        self, kind: str, fields: Mapping[str, Any], found: ChannelStats | CalibrationStats
    ) -> None:
        if self._store is not None:
            self._store.save(kind, fields, found.to_arrays())

    def _stored_scales(self, qconfig: QConfig, fields: Mapping[str, Any]) -> Ranges:
        arrays = self._load(SCALES, fields)
        if arrays is None:
            chosen = activation_scales(self.stats_for(qconfig), qconfig)
            arrays = {"scales": chosen.astype(np.float64)}
            if self._store is not None:
                self._store.save(SCALES, fields, arrays)
        if "scales" not in arrays:
            raise CalibrationError("the arrays hold no scales")
        return tuple(arrays["scales"].tolist())

    def _stored_stats(self, qconfig: QConfig, fields: Mapping[str, Any]) -> CalibrationStats:
        arrays = self._load(STATISTICS, fields)
        if arrays is not None:
            return CalibrationStats.from_arrays(arrays)
        together = self._measured_together(qconfig)
        for other, found in together:
            fields = statistics_fields(other)
            self._save(STATISTICS, fields, found)
            self._stats.put(self._key(fields, qconfig), found)
        return together[0][1]

    def _measured_together(self, qconfig: QConfig) -> list[tuple[QConfig, CalibrationStats]]:
        """Both rounds for a configuration, which comes first, and for other variants of it."""
        first = _measured_as(qconfig)
        narrow = first.layers.with_sums(wide=False)
        plain = first.with_overrides(smooth_alpha=None, layers=narrow)
        asked = [first]
        for values in self._variants:
            sums = layer_choices("layers", values.get("layers", first.layers)).wide_sums
            changed = {"smooth_alpha": None, **values, "layers": first.layers.with_sums(sums)}
            other = first.with_overrides(**changed)
            known = self._load(STATISTICS, statistics_fields(other))
            if other not in asked and known is None:
                asked.append(other)
        if asked == [plain] or self._marks is not mark:
            return [(qconfig, self._measured(qconfig))]
        annotated, _ = self._mark(self._mod, plain, None)
        if not measured_points(annotated):
            return [(qconfig, CalibrationStats.of_nothing())]
        networks = {plain: profile_function(annotated, whole=True)}
        common = CommonReading(networks[plain][0])
        read: list[tuple[QConfig, PointMap, list[int]]] = []
        for one in asked:
            own = one.with_overrides(smooth_alpha=None)
            if own not in networks:
                networks[own] = profile_function(self._marks(self._mod, own, None)[0], whole=True)
            network, points = networks[own]
            channels = self.channels_for(one)
            rescaled = network
            if one != own:
                rescaled = profile_function(self._marks(self._mod, one, channels)[0], whole=True)[0]
            ranges = [] if channels is None else channels.ranges()
            tensors = rescaled_tensors(network, rescaled, one.smooth_alpha, ranges)
            if tensors is None:
                places = None
            else:
                places = common.places_of(network, tensors)
            if places is not None:
                read.append((one, points, places))
            elif one is first:
                del rescaled, network, networks
                return [(qconfig, self._measured(qconfig))]
        percentiles = self._percentiles or (qconfig.percentile,)
        reading = Measurement("ranges", plain, percentiles, counted=tuple(common.counted))
        stats = merged_points(self._data, reading)
        return [(one, stats.of_points(points, places)) for one, points, places in read]

    def _measured(self, qconfig: QConfig) -> CalibrationStats:
        """Both rounds, on the network of this configuration alone."""
        channels = self.channels_for(qconfig)
        annotated, _ = self._mark(self._mod, qconfig, channels)
        if not measured_points(annotated):
            return CalibrationStats.of_nothing()
        percentiles = self._percentiles or (qconfig.percentile,)
        reading = Measurement("ranges", qconfig, percentiles, channels)
        return merged_points(self._data, reading)

    def _key(self, fields: Mapping[str, Any], qconfig: QConfig) -> str:
        if self._percentiles is not None:
            own = None
        else:
            own = qconfig.percentile
        return json.dumps([fields, own], sort_keys=True)


def _measured_as(qconfig: QConfig) -> QConfig:
    """Return the configuration to measure: the rounding of weights does not change it."""
    return qconfig.with_overrides(weight_rounding="nearest")


def settings_in_the_way(mod: IRModule, qconfig: QConfig) -> list[str]:
    """Name the settings of the configuration, or of the PassContext, that keep operators in float.

    Args:
        mod: result of ``prerequisite_optimize``.
    """
    names = {op.name for op in operators_of(mod["main"])}
    found = []
    if "nn.bias_add" in names and (qconfig.prerequisite_level or 0) < 3:
        found.append(
            "nn.bias_add becomes an add at level 3 only: give prerequisite_level=3, or quantize "
            f"within PassContext(opt_level=3), now {PassContext.current().opt_level}"
        )
    if "nn.conv2d" in names and qconfig.skip_conv_layers:
        found.append(f"skip_conv_layers={list(qconfig.skip_conv_layers)}: give []")
    if "nn.dense" in names and qconfig.skip_dense_layer:
        found.append("skip_dense_layer=True leaves nn.dense in float: give False")
    if "nn.global_avg_pool2d" in names and qconfig.stop_after_global_pool:
        found.append(
            "stop_after_global_pool=True leaves what follows nn.global_avg_pool2d in float: "
            "give False"
        )
    return found


def quantize(
    mod: IRModule,
    params: Params | None = None,
    dataset: Iterable[Any] | None = None,
    context: QuantizeContext | None = None,
    qconfig: QConfig | Literal["auto"] | None = None,
) -> IRModule:
    """Quantize a float module after a QConfig.

    Args:
        mod: the module; ``main`` is quantized.
        params: weights by parameter name, bound as constants.
        dataset: calibration batches (input name → array): a list, a loader, or a generator, whose
            batches are kept.
        context: a run of one's own, to read its ``report`` afterwards; its QConfig counts.
        qconfig: the configuration; None is that of ``context`` or the current one; "auto" is what
            ``choose`` decides from the statistics of the dataset.

    Returns:
        The integer module, partitioned as ``partition_conversions`` says; with do_simulation the
        float module with simulated_quantize.

    Raises:
        CalibrationError: data are missing or do not fit (also a ValueError).
        NotFullyIntegralError: "fully_integral" was asked for and float is left.
        IntegerOverflowError: a sum may leave its dtype (also a ValueError).
        QuantizeError: layers of the model multiply integers already.
    """
    if qconfig == "auto":
        prepared = prerequisite_optimize(mod, params, QConfig.recommended().prerequisite_level)
        calibration = Calibration(prepared, dataset)
        return calibration.candidate(calibration.choose()[0]).module
    if qconfig is None:
        run = context_or_new(context)
    else:
        run = QuantizeContext(qconfig)
    cfg = run.qconfig
    if cfg.partition_conversions == "fully_integral" and cfg.skip_conv_layers:
        warnings.warn(
            f"fully_integral with skip_conv_layers={list(cfg.skip_conv_layers)}: skipped "
            "convolutions stay float; give skip_conv_layers=[] to quantize all",
            stacklevel=2,
        )
    mod = prerequisite_optimize(mod, params, cfg.prerequisite_level)
    try:
        made = Calibration(mod, dataset).candidate(cfg, run)
    except NotFullyIntegralError as error:
        causes = settings_in_the_way(mod, cfg)
        if causes:
            error.fix = "; ".join([*causes, "QConfig.recommended() has all of it"])
        raise
    if made.module is made.simulated:
        return Sequential(["FoldConstant"], name="quantize")(made.simulated)
    return made.module
