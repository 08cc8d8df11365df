"""Every pass under its Relay name, with the context and sequence that run them.

>>> from compiler import transform
>>> pipeline = transform.Sequential([transform.SimplifyInference(), transform.FoldConstant()])
>>> str(pipeline)
'SimplifyInference,FoldConstant'

Written out for type checkers; a test compares it with the registered passes.
"""

from compiler.fusion.fuse_ops import FuseOps as FuseOps
from compiler.fusion.hardware.fuse_op_hw import FuseOpHW as FuseOpHW
from compiler.fusion.hardware.preparation import RemoveMarkers as RemoveMarkers
from compiler.ir.instruments import DumpDir as DumpDir
from compiler.ir.instruments import NodeCountInstrument as NodeCountInstrument
from compiler.ir.instruments import PrintIR as PrintIR
from compiler.ir.instruments import TimingInstrument as TimingInstrument
from compiler.ir.pass_infra import FunctionPass as FunctionPass
from compiler.ir.pass_infra import InferType as InferType
from compiler.ir.pass_infra import ModulePass as ModulePass
from compiler.ir.pass_infra import Pass as Pass
from compiler.ir.pass_infra import PassContext as PassContext
from compiler.ir.pass_infra import PassInfo as PassInfo
from compiler.ir.pass_infra import Sequential as Sequential
from compiler.ir.pass_infra import create_pass as create_pass
from compiler.ir.pass_infra import function_pass as function_pass
from compiler.ir.pass_infra import module_pass as module_pass
from compiler.ir.pass_infra import register_pass as register_pass
from compiler.ir.pass_infra import registered_passes as registered_passes
from compiler.ir.pass_infra import run_named as run_named
from compiler.lowering.lower_te import LowerTE as LowerTE
from compiler.passes.cancel_transposes import CancelTransposes as CancelTransposes
from compiler.passes.canonicalize_cast import CanonicalizeCast as CanonicalizeCast
from compiler.passes.canonicalize_ops import CanonicalizeOps as CanonicalizeOps
from compiler.passes.convert_layout import ConvertLayout as ConvertLayout
from compiler.passes.dead_code_elimination import DeadCodeElimination as DeadCodeElimination
from compiler.passes.eliminate_common_subexpr import (
    EliminateCommonSubexpr as EliminateCommonSubexpr,
)
from compiler.passes.eta_expand import EtaExpand as EtaExpand
from compiler.passes.fold_constant import FoldConstant as FoldConstant
from compiler.passes.fold_scale_axis import BackwardFoldScaleAxis as BackwardFoldScaleAxis
from compiler.passes.fold_scale_axis import FoldScaleAxis as FoldScaleAxis
from compiler.passes.fold_scale_axis import ForwardFoldScaleAxis as ForwardFoldScaleAxis
from compiler.passes.hoist_epilogues import HoistEpilogues as HoistEpilogues
from compiler.passes.inline_requantize import InlineRequantize as InlineRequantize
from compiler.passes.merge_requantize import MergeRequantize as MergeRequantize
from compiler.passes.outline_formulas import OutlineFormulas as OutlineFormulas
from compiler.passes.plan_devices import PlanDevices as PlanDevices
from compiler.passes.recover_layer_norm import RecoverLayerNorm as RecoverLayerNorm
from compiler.passes.recover_points import RecoverPoints as RecoverPoints
from compiler.passes.recover_rms_norm import RecoverRmsNorm as RecoverRmsNorm
from compiler.passes.select_by_place import SelectByPlace as SelectByPlace
from compiler.passes.simplify_expr import SimplifyExpr as SimplifyExpr
from compiler.passes.simplify_inference import SimplifyInference as SimplifyInference
from compiler.quantize.quantize_annotate import QuantizeAnnotate as QuantizeAnnotate
from compiler.quantize.quantize_calibrate import QuantizeCalibrate as QuantizeCalibrate
from compiler.quantize.quantize_partition import QuantizePartition as QuantizePartition
from compiler.quantize.quantize_realize import QuantizeRealize as QuantizeRealize
