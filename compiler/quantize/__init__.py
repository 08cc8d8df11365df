"""Post-training quantization: partition, annotate, calibrate, realize."""

from compiler.ops.annotation.attach_simulated_quantize import attach_simulated_quantize
from compiler.ops.rules.annotate import QAnnotateExpr
from compiler.ops.rules.partition import QPartitionExpr
from compiler.ops.rules.realize import QRealizeIntExpr
from compiler.qtypes.context import QuantizeContext
from compiler.qtypes.kind import QAnnotateKind, kind2str
from compiler.qtypes.qconfig import QConfig, current_qconfig, qconfig, qconfig_from_text
from compiler.qtypes.report import CallRecord, PointRecord, QuantizeReport
from compiler.quantize._bias_correction import correct_biases
from compiler.quantize._conversion_ops import has_only_conversion_ops
from compiler.quantize._cost import FLOAT_BITS, LayerCost, ModuleCost, module_cost
from compiler.quantize._equalization import equalize
from compiler.quantize._given_points import GivenPoints, given_points, ungiven_weights
from compiler.quantize._layers import layer_names
from compiler.quantize._prerequisite import bind_params, prerequisite_optimize
from compiler.quantize._registration import (
    register_annotate_function,
    register_partition_function,
    register_realize_function,
)
from compiler.quantize._smoothing import smooth
from compiler.quantize.calibration.activation_scales import activation_scales
from compiler.quantize.calibration.bind_scales import bind_scales, measured_points, quantize_points
from compiler.quantize.calibration.channel_stats import ChannelStats
from compiler.quantize.calibration.collect_stats import collect_stats
from compiler.quantize.calibration.flow import Calibration, quantize, without_data
from compiler.quantize.calibration.kl_divergence import find_scale_by_kl
from compiler.quantize.calibration.measurement import calibration_stats, channel_stats
from compiler.quantize.calibration.modes import find_scale_by_percentile
from compiler.quantize.calibration.quantize_calibrate import QuantizeCalibrate, calibrate
from compiler.quantize.candidate import Candidate, build_candidate, mark
from compiler.quantize.conversions import (
    fuse_partitions,
    partition_conversions,
    partition_prefix,
    partition_suffix,
)
from compiler.quantize.diagnosis import Diagnosis, OperatorDiagnosis, diagnose
from compiler.quantize.quantize_annotate import QuantizeAnnotate, annotate
from compiler.quantize.quantize_partition import QuantizePartition, partition
from compiler.quantize.quantize_realize import QuantizeRealize, realize

__all__ = [
    "FLOAT_BITS",
    "Calibration",
    "CallRecord",
    "Candidate",
    "ChannelStats",
    "Diagnosis",
    "GivenPoints",
    "LayerCost",
    "ModuleCost",
    "OperatorDiagnosis",
    "PointRecord",
    "QAnnotateExpr",
    "QAnnotateKind",
    "QConfig",
    "QPartitionExpr",
    "QRealizeIntExpr",
    "QuantizeAnnotate",
    "QuantizeCalibrate",
    "QuantizeContext",
    "QuantizePartition",
    "QuantizeRealize",
    "QuantizeReport",
    "activation_scales",
    "annotate",
    "attach_simulated_quantize",
    "bind_params",
    "bind_scales",
    "build_candidate",
    "calibrate",
    "calibration_stats",
    "channel_stats",
    "collect_stats",
    "correct_biases",
    "current_qconfig",
    "diagnose",
    "equalize",
    "find_scale_by_kl",
    "find_scale_by_percentile",
    "fuse_partitions",
    "given_points",
    "has_only_conversion_ops",
    "kind2str",
    "layer_names",
    "mark",
    "measured_points",
    "module_cost",
    "partition",
    "partition_conversions",
    "partition_prefix",
    "partition_suffix",
    "prerequisite_optimize",
    "qconfig",
    "qconfig_from_text",
    "quantize",
    "quantize_points",
    "realize",
    "register_annotate_function",
    "register_partition_function",
    "register_realize_function",
    "smooth",
    "ungiven_weights",
    "without_data",
]
