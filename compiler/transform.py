"""Every pass under its Relay name, with the context and sequence that run them.

>>> from compiler import transform
>>> pipeline = transform.Sequential([transform.SimplifyInference(), transform.FoldConstant()])
>>> str(pipeline)
'SimplifyInference,FoldConstant'

Written out for type checkers; a test compares it with the registered passes.
"""

from compiler.fusion.fuse_ops import FuseOps
from compiler.fusion.hardware.fuse_op_hw import FuseOpHW
from compiler.fusion.hardware.preparation import RemoveMarkers
from compiler.ir.infer_type import InferType
from compiler.ir.instruments import DumpDir, NodeCountInstrument, PrintIR, TimingInstrument
from compiler.ir.pass_infra import (
    FunctionPass,
    ModulePass,
    Pass,
    PassContext,
    PassInfo,
    Sequential,
    create_pass,
    function_pass,
    module_pass,
    register_pass,
    registered_passes,
    run_named,
)
from compiler.lowering.lower_te import LowerTE
from compiler.passes.cancel_transposes import CancelTransposes
from compiler.passes.canonicalize_cast import CanonicalizeCast
from compiler.passes.canonicalize_ops import CanonicalizeOps
from compiler.passes.convert_layout import ConvertLayout
from compiler.passes.dead_code_elimination import DeadCodeElimination
from compiler.passes.eliminate_common_subexpr import EliminateCommonSubexpr
from compiler.passes.eta_expand import EtaExpand
from compiler.passes.fold_constant import FoldConstant
from compiler.passes.fold_requantize import FoldRequantize
from compiler.passes.fold_scale_axis import (
    BackwardFoldScaleAxis,
    FoldScaleAxis,
    ForwardFoldScaleAxis,
)
from compiler.passes.outline_formulas import OutlineFormulas
from compiler.passes.partition_graph import PartitionGraph
from compiler.passes.plan_devices import PlanDevices
from compiler.passes.recover_layer_norm import RecoverLayerNorm
from compiler.passes.recover_rms_norm import RecoverRmsNorm
from compiler.passes.simplify_expr import SimplifyExpr
from compiler.passes.simplify_inference import SimplifyInference
from compiler.passes.split_concat import SplitConcat
from compiler.quantize.calibration.quantize_calibrate import QuantizeCalibrate
from compiler.quantize.correct_rounding import CorrectRounding
from compiler.quantize.quantize_annotate import QuantizeAnnotate
from compiler.quantize.quantize_partition import QuantizePartition
from compiler.quantize.quantize_realize import QuantizeRealize

__all__ = [
    "BackwardFoldScaleAxis",
    "CancelTransposes",
    "CanonicalizeCast",
    "CanonicalizeOps",
    "ConvertLayout",
    "CorrectRounding",
    "DeadCodeElimination",
    "DumpDir",
    "EliminateCommonSubexpr",
    "EtaExpand",
    "FoldConstant",
    "FoldRequantize",
    "FoldScaleAxis",
    "ForwardFoldScaleAxis",
    "FunctionPass",
    "FuseOpHW",
    "FuseOps",
    "InferType",
    "LowerTE",
    "ModulePass",
    "NodeCountInstrument",
    "OutlineFormulas",
    "PartitionGraph",
    "Pass",
    "PassContext",
    "PassInfo",
    "PlanDevices",
    "PrintIR",
    "QuantizeAnnotate",
    "QuantizeCalibrate",
    "QuantizePartition",
    "QuantizeRealize",
    "RecoverLayerNorm",
    "RecoverRmsNorm",
    "RemoveMarkers",
    "Sequential",
    "SimplifyExpr",
    "SimplifyInference",
    "SplitConcat",
    "TimingInstrument",
    "create_pass",
    "function_pass",
    "module_pass",
    "register_pass",
    "registered_passes",
    "run_named",
]
