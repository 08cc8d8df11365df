"""Post-training quantization: partition, annotate, calibrate, realize.

The names below are loaded when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from compiler.lazy_names import lazy_names

if TYPE_CHECKING:
    from compiler.ops.annotation.attach_simulated_quantize import (
        attach_simulated_quantize as attach_simulated_quantize,
    )
    from compiler.ops.rules.annotate import QAnnotateExpr as QAnnotateExpr
    from compiler.ops.rules.partition import QPartitionExpr as QPartitionExpr
    from compiler.ops.rules.realize import QRealizeIntExpr as QRealizeIntExpr
    from compiler.qtypes.context import QuantizeContext as QuantizeContext
    from compiler.qtypes.qconfig import QAnnotateKind as QAnnotateKind
    from compiler.qtypes.qconfig import QConfig as QConfig
    from compiler.qtypes.qconfig import current_qconfig as current_qconfig
    from compiler.qtypes.qconfig import kind2str as kind2str
    from compiler.qtypes.qconfig import qconfig as qconfig
    from compiler.qtypes.qconfig import qconfig_from_text as qconfig_from_text
    from compiler.quantize.bits.cost import FLOAT_BITS as FLOAT_BITS
    from compiler.quantize.bits.cost import LayerCost as LayerCost
    from compiler.quantize.bits.cost import module_cost as module_cost
    from compiler.quantize.bits.own_points import point_names as point_names
    from compiler.quantize.bits.own_points import takes_bits as takes_bits
    from compiler.quantize.calibration.channel_stats import ChannelStats as ChannelStats
    from compiler.quantize.calibration.collect_stats import collect_stats as collect_stats
    from compiler.quantize.calibration.flow import Calibration as Calibration
    from compiler.quantize.calibration.flow import quantize as quantize
    from compiler.quantize.calibration.measurement import calibration_stats as calibration_stats
    from compiler.quantize.calibration.measurement import channel_stats as channel_stats
    from compiler.quantize.candidate import Candidate as Candidate
    from compiler.quantize.candidate import build_candidate as build_candidate
    from compiler.quantize.candidate import mark as mark
    from compiler.quantize.candidate import without_data as without_data
    from compiler.quantize.choice import Decision as Decision
    from compiler.quantize.choice import choose as choose
    from compiler.quantize.conversions.operators import (
        has_only_conversion_ops as has_only_conversion_ops,
    )
    from compiler.quantize.conversions.partition_conversions import (
        fuse_partitions as fuse_partitions,
    )
    from compiler.quantize.conversions.partition_conversions import (
        partition_conversions as partition_conversions,
    )
    from compiler.quantize.conversions.partition_conversions import (
        partition_prefix as partition_prefix,
    )
    from compiler.quantize.conversions.partition_conversions import (
        partition_suffix as partition_suffix,
    )
    from compiler.quantize.diagnosis import Diagnosis as Diagnosis
    from compiler.quantize.diagnosis import diagnose as diagnose
    from compiler.quantize.layers import layer_names as layer_names
    from compiler.quantize.preparation.masks import masked_inputs as masked_inputs
    from compiler.quantize.preparation.prerequisite import bind_params as bind_params
    from compiler.quantize.preparation.prerequisite import (
        prerequisite_optimize as prerequisite_optimize,
    )
    from compiler.quantize.quantize_annotate import QuantizeAnnotate as QuantizeAnnotate
    from compiler.quantize.quantize_annotate import annotate as annotate
    from compiler.quantize.quantize_calibrate import QuantizeCalibrate as QuantizeCalibrate
    from compiler.quantize.quantize_calibrate import calibrate as calibrate
    from compiler.quantize.quantize_partition import QuantizePartition as QuantizePartition
    from compiler.quantize.quantize_partition import partition as partition
    from compiler.quantize.quantize_realize import QuantizeRealize as QuantizeRealize
    from compiler.quantize.quantize_realize import realize as realize
    from compiler.quantize.registration import (
        register_annotate_function as register_annotate_function,
    )
    from compiler.quantize.registration import (
        register_partition_function as register_partition_function,
    )
    from compiler.quantize.registration import (
        register_realize_function as register_realize_function,
    )
    from compiler.quantize.scales.activation_scales import (
        activation_scales as activation_scales,
    )
    from compiler.quantize.scales.bind_scales import bind_scales as bind_scales
    from compiler.quantize.scales.bind_scales import measured_points as measured_points
    from compiler.quantize.scales.bind_scales import quantize_points as quantize_points
    from compiler.quantize.scales.given_points import given_note as given_note
    from compiler.quantize.scales.given_points import given_points as given_points
    from compiler.quantize.scales.given_points import ungiven_weights as ungiven_weights
    from compiler.quantize.scales.kl_divergence import find_scale_by_kl as find_scale_by_kl
    from compiler.quantize.scales.modes import (
        find_scale_by_percentile as find_scale_by_percentile,
    )
    from compiler.quantize.smoothing.channel_groups import (
        fields_without_effect as fields_without_effect,
    )
    from compiler.quantize.smoothing.smoothing import smooth as smooth
    from compiler.quantize.weight_rounding.sequential_rounding import (
        sequential_seconds as sequential_seconds,
    )

__getattr__, __all__ = lazy_names(
    __name__,
    {
        "quantize_context": "a run is no global state; rules get it as ctx, their third argument",
        "partition_expr_check": "write is_partitioned(e), inner(e) of compiler.ops.rules.partition",
        "_forward_op": "write with_args(ref_call, args) of compiler.ops.rules.annotate",
        "_get_expr_kind": "write unannotated(e), kind_of(e) of compiler.ops.rules.annotate",
    },
)
