"""What somebody from TVM types first: Relay's own Python, as Relay v0.10 and its guides have it.

A block runs as it stands, or ends in an error for which DIFFERENCES.md has a row. The names in
front of the blocks are those of TVM's modules and private helpers.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import compiler as tvm
import compiler.transform as passes
from compiler import assert_structural_equal, evaluate, quantize, relay, text
from compiler.errors import ParseError
from compiler.ir import analysis
from compiler.ir.expr import is_op_call
from compiler.ir.functor import UseVarVisitor
from compiler.ir.module import IRModule
from compiler.ir.walk import nodes_of
from compiler.ops.rules.annotate import FQAnnotateRewrite, kind_of, unannotated, with_args
from compiler.ops.rules.partition import FQPartitionRewrite, QPartitionExpr
from tests.compiler import networks

DIFFERENCES = Path(tvm.__file__).with_name("DIFFERENCES.md").read_text("utf-8")


def bind_params(function: relay.Function, params: Any) -> relay.Function:
    bound: relay.Function = quantize.bind_params(IRModule.from_expr(function), params)["main"]
    return bound


NAMES = {
    "tvm": tvm,
    "relay": relay,
    "_quantize": passes,
    "_transform": passes,
    "_analysis": analysis,
    "_bind_params": bind_params,
    "_forward_op": with_args,
    "_get_expr_kind": lambda expr: (unannotated(expr), kind_of(expr)),
    **{name: getattr(quantize, name) for name in quantize.__all__},
}
"""TVM's modules and private helpers, and ``from tvm.relay.quantize import *``."""


def run(block: str, **more: Any) -> dict[str, Any]:
    names = {**NAMES, **more}
    exec(block, names)
    return names


def row(words: str) -> None:
    """The list of differences has a row with these words."""
    rows = [line for line in DIFFERENCES.splitlines() if line.startswith("|")]
    assert any(words in line for line in rows), words


@pytest.fixture(autouse=True)
def _own_tables(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a test registers is forgotten behind it, and levels are free for it."""
    for table in (FQPartitionRewrite, FQAnnotateRewrite):
        free = {name: (-1, rule) for name, (_, rule) in table._rules.items()}
        monkeypatch.setattr(table, "_rules", free)


@pytest.fixture
def residual() -> tuple[IRModule, dict[str, Any]]:
    return networks.residual_net()


def dataset() -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(3)
    for _ in range(2):
        yield {"x": rng.normal(0, 1, (1, 3, 8, 8)).astype(np.float32)}


# ---- the how-to: quantize a model ----------------------------------------------------------------

QUANTIZE = """
with relay.quantize.qconfig(calibrate_mode="kl_divergence", weight_scale="max"):
    mod = relay.quantize.quantize(mod, params, dataset=calibrate_dataset())
print(mod["main"])
"""


def test_the_first_lines_of_the_how_to_run(residual: Any, capsys: Any) -> None:
    mod, params = residual
    made = run(QUANTIZE, mod=mod, params=params, calibrate_dataset=dataset)["mod"]
    assert 'out_dtype="int32"' in capsys.readouterr().out
    config = relay.quantize.qconfig(calibrate_mode="kl_divergence", weight_scale="max")
    listed = quantize.quantize(mod, params, [*dataset()], qconfig=config)
    assert_structural_equal(made, listed)


# ---- quantize.py ---------------------------------------------------------------------------------

PREREQUISITE = '''
def prerequisite_optimize(mod, params=None):
    """Prerequisite optimization passes for quantization. Perform
    "SimplifyInference", "FoldScaleAxis", "FoldConstant", and
    "CanonicalizeOps" optimization before quantization."""
    optimize = tvm.transform.Sequential(
        [
            _transform.SimplifyInference(),
            _transform.FoldConstant(),
            _transform.FoldScaleAxis(),
            _transform.CanonicalizeOps(),
            _transform.FoldConstant(),
        ]
    )

    if params:
        mod["main"] = _bind_params(mod["main"], params)

    mod = optimize(mod)
    return mod


def partition():
    return _quantize.QuantizePartition()
'''


def test_the_passes_in_front_of_quantization_run(residual: Any) -> None:
    mod, params = residual
    own = run(PREREQUISITE)
    with tvm.transform.PassContext(opt_level=3):
        assert_structural_equal(
            own["prerequisite_optimize"](IRModule(mod.functions), params),
            quantize.prerequisite_optimize(mod, params),
        )
        assert str(own["partition"]()) == "QuantizePartition"


QUANTIZE_BODY = """
def quantize(mod, params=None, dataset=None):
    mod = prerequisite_optimize(mod, params)

    calibrate_pass = tvm.transform.module_pass(
        calibrate(dataset), opt_level=1, name="QuantizeCalibrate"
    )
    quant_passes = [partition(), annotate(), calibrate_pass, tvm.relay.transform.InferType()]
    if not current_qconfig().do_simulation:
        quant_passes.append(realize())
    quant_passes.append(_transform.FoldConstant())
    quantize_seq = tvm.transform.Sequential(quant_passes)

    with tvm.transform.PassContext(
        opt_level=3, required_pass=["QuantizeAnnotate", "QuantizeCalibrate", "QuantizeRealize"]
    ):
        with quantize_context():
            mod = quantize_seq(mod)

    q_cfg = current_qconfig()
    assert q_cfg.partition_conversions in ["disabled", "enabled", "fully_integral"]
    if q_cfg.partition_conversions != "disabled":
        quantized_dtypes = {q_cfg.dtype_input, q_cfg.dtype_weight, q_cfg.dtype_activation}
        ensure_fully_integral = q_cfg.partition_conversions == "fully_integral"
        return partition_conversions(mod, quantized_dtypes, ensure_fully_integral)

    return mod
"""


@pytest.mark.parametrize("conversions", ["disabled", "enabled"])
def test_the_body_of_quantize_runs_without_a_global_run(residual: Any, conversions: str) -> None:
    mod, params = residual
    row("`with quantize_context():`")
    here = QUANTIZE_BODY.replace("        with quantize_context():\n    ", "    ")
    own = run(here)["quantize"]
    qconfig = relay.quantize.qconfig(partition_conversions=conversions)
    with tvm.transform.PassContext(opt_level=3), qconfig:
        made = own(mod, params, dataset())
        assert_structural_equal(made, quantize.quantize(mod, params, dataset()))


def test_the_global_run_is_told_where_runs_are() -> None:
    with pytest.raises(ImportError, match="rules get it as ctx"):
        run("from compiler.quantize import quantize_context")


# ---- _partition.py -------------------------------------------------------------------------------

REGISTER_PARTITION = '''
def register_partition_function(op_name, frewrite=None, level=10):
    return tvm.ir.register_op_attr(op_name, "FQPartitionRewrite", frewrite, level)


def partition_expr_check(expr):
    if isinstance(expr, QPartitionExpr):
        return True, expr.expr
    return False, expr


@register_partition_function("nn.conv2d")
def conv2d_partition_function(ref_call, new_args, ctx):
    """Rewrite function for conv2d for partition"""
    data_cond, data = partition_expr_check(new_args[0])
    kernel_cond, kernel = partition_expr_check(new_args[1])

    assert not kernel_cond
    if data_cond:
        data = new_args[0].realize()
    ret = _forward_op(ref_call, [data, kernel])
    return QPartitionExpr(ret)


def add_partition_generic(ref_call, new_args, ctx):
    """Rewrite function for ewise add for partition for generic devices"""
    lhs_cond, lhs = partition_expr_check(new_args[0])
    rhs_cond, rhs = partition_expr_check(new_args[1])
    if lhs_cond and rhs_cond:
        lhs = new_args[0].realize()
        rhs = new_args[1].realize()
        return QPartitionExpr(_forward_op(ref_call, [lhs, rhs]))
    if not lhs_cond and rhs_cond:
        rhs = new_args[1].realize()
        return _forward_op(ref_call, [lhs, rhs])
    if lhs_cond and not rhs_cond:
        if _analysis.check_constant(rhs):
            return QPartitionExpr(_forward_op(ref_call, [lhs, rhs]))
        lhs = new_args[0].realize()
        return _forward_op(ref_call, [lhs, rhs])
    if not lhs_cond and not rhs_cond:
        # trivial case
        return None

    raise ValueError


register_partition_function("add", add_partition_generic)
'''


def quantized(mod: IRModule, params: Any) -> IRModule:
    config = relay.quantize.qconfig(skip_conv_layers=[])
    return quantize.quantize(mod, params, qconfig=config)


def test_partition_rules_of_relay_give_what_ours_give(residual: Any) -> None:
    expected = quantized(*residual)
    rules = run(REGISTER_PARTITION)
    assert FQPartitionRewrite.get(relay.Op.get("add")) is rules["add_partition_generic"]
    assert_structural_equal(quantized(*residual), expected)


PARTITION_EXPR = """
@tvm._ffi.register_object("relay.QPartitionExpr")
class QPartitionExpr(_expr.TempExpr):
    def __init__(self, expr):
        self.__init_handle_by_constructor__(_quantize.make_partition_expr, expr)
"""


def test_objects_of_the_ffi_are_classes_of_python() -> None:
    row("`tvm._ffi.register_object`")
    with pytest.raises(AttributeError, match="_ffi"):
        run(PARTITION_EXPR)
    assert issubclass(QPartitionExpr, relay.TempExpr)
    assert is_op_call(QPartitionExpr(relay.var("x", (1,))).realize(), "annotation.stop_fusion")


# ---- _annotate.py --------------------------------------------------------------------------------

ANNOTATE = '''
def register_annotate_function(op_name, frewrite=None, level=10):
    ...
    def _register(func):
        def frewrite_with_guard(ref_call, new_args, ctx):
            ...
            return func(ref_call, new_args, ctx)
        return tvm.ir.register_op_attr(op_name, "FQAnnotateRewrite", frewrite_with_guard, level)
    return _register(frewrite) if frewrite is not None else _register

@register_annotate_function("nn.conv2d")
def conv2d_rewrite(ref_call, new_args, ctx):
    """Rewrite function for conv2d. Lhs of conv will be quantized to
    input field, and rhs of conv will be quantized to weight field.
    Output would be in activation field"""
    if quantize_context().check_to_skip(ref_call):
        return None

    lhs_expr, lhs_kind = _get_expr_kind(new_args[0])
    rhs_expr, rhs_kind = _get_expr_kind(new_args[1])
    if lhs_kind is None or lhs_kind == QAnnotateKind.ACTIVATION:
        lhs_expr = attach_simulated_quantize(lhs_expr, QAnnotateKind.INPUT)
    assert rhs_kind is None
    rhs_expr = attach_simulated_quantize(rhs_expr, QAnnotateKind.WEIGHT)

    expr = _forward_op(ref_call, [lhs_expr, rhs_expr])

    return QAnnotateExpr(expr, QAnnotateKind.ACTIVATION)

def identity_rewrite(ref_call, new_args, ctx):
    ...
    x_expr, x_kind = _get_expr_kind(new_args[0])
    if x_kind is None:
        return None
    ret_expr = _forward_op(ref_call, [x_expr])
    return QAnnotateExpr(ret_expr, x_kind)

register_annotate_function("reshape", identity_rewrite)
register_annotate_function("clip", identity_rewrite)
'''


def test_annotate_rules_of_relay_give_what_ours_give(residual: Any) -> None:
    expected = quantized(*residual)
    row("`quantize_context()` in a rule")
    run(ANNOTATE.replace("quantize_context().check_to_skip", "ctx.check_to_skip"))
    assert_structural_equal(quantized(*residual), expected)


SIMULATED = """
dom_scale = _expr.var("dom_scale")
clip_min = _expr.var("clip_min")
clip_max = _expr.var("clip_max")
qnode = _quantize.simulated_quantize(data, dom_scale, clip_min, clip_max, kind, sign, rounding)
"""


def test_a_point_is_made_by_attach_simulated_quantize() -> None:
    row("`_quantize.simulated_quantize(…)`")
    data = relay.var("x", (1,))
    with pytest.raises(AttributeError, match="simulated_quantize"):
        run(SIMULATED, _expr=relay, data=data, kind=1, sign=True, rounding="round")
    point = quantize.attach_simulated_quantize(data, quantize.QAnnotateKind.INPUT)
    assert [arg.name_hint for arg in point.args[1:]] == ["dom_scale", "clip_min", "clip_max"]  # type: ignore[attr-defined]


# ---- text ----------------------------------------------------------------------------------------

LOWERED = """
def @main /* id=139556496 */(%data: Tensor[(10), float32], hash="090f2034c3f28d6e") -> Tensor[(10), float32] {
  %2 = fn (%p0: Tensor[(10), float32], %p1: Tensor[(10), float32], Primitive=1, hash="300cd5f77d071fde") -> Tensor[(10), float32] {
    %0 = divide(%p0, %p1) /* ty=Tensor[(10), float32] */;
    %1 = multiply(%0, 2f /* ty=float32 */) /* ty=Tensor[(10), float32] */;
    nn.relu(%1) /* ty=Tensor[(10), float32] */
  };
  %2(%data, meta[relay.Constant][0] /* ty=Tensor[(10), float32] */) /* ty=Tensor[(10), float32] */
}
"""  # noqa: E501
DEVICES = "param_se_scopes=[SEScope(device_type=20, virtual_device_id=0)], hash="


def test_a_primitive_function_as_relay_prints_it_is_read() -> None:
    numbers = base64.b64encode(np.arange(1, 11, dtype=np.float32).tobytes()).decode()
    constant = {"dtype": "float32", "shape": [10], "b64": numbers}
    metadata = json.dumps({"relay.Constant": [constant]})
    mod = tvm.parse(f'#[version = "0.0.5"]{LOWERED}\n#[metadata]\n{metadata}')
    (found,) = evaluate(relay.transform.InferType()(mod), [np.ones(10, np.float32)])
    np.testing.assert_array_equal(
        found, np.float32(2) * (np.float32(1) / np.arange(1, 11, dtype="f4"))
    )


def test_devices_of_a_function_in_text_are_refused_by_the_place() -> None:
    row("`param_se_scopes=[SEScope(…)]`")
    with pytest.raises(ParseError, match="SEScope"):
        tvm.parse(f'#[version = "0.0.5"]{LOWERED.replace("hash=", DEVICES, 1)}')


# ---- single words --------------------------------------------------------------------------------


def test_operators_are_names_of_relay_itself() -> None:
    x = relay.var("x", (2, 3))
    assert relay.nn.relu(relay.add(x, x)).op.name == "nn.relu"
    assert relay.transform.FoldConstant is passes.FoldConstant
    assert relay.quantize is quantize
    any_value = relay.dataflow_pattern.wildcard()
    pattern = relay.dataflow_pattern.is_op("add")(any_value, any_value)
    assert pattern.match(x + x)


@pytest.mark.parametrize(
    ("line", "cure"),
    [
        ("relay.build(mod)", "compiler.lower"),
        ("relay.frontend.from_onnx(model)", "compiler.frontend.from_onnx.load"),
        ("relay.create_executor('graph', mod)", "compiler.evaluate"),
        ("relay.build_module.bind_params_by_name", "bind_params"),
        ("from compiler.quantize import partition_expr_check", "is_partitioned"),
        ("from compiler.quantize import _forward_op", "with_args"),
        ("from compiler.quantize import _get_expr_kind", "unannotated"),
    ],
)
def test_a_word_that_is_another_one_here_names_it(line: str, cure: str) -> None:
    with pytest.raises(ImportError, match=re.escape(cure)):
        run(line)


def test_fields_of_builders_are_subscripts_and_dropout_is_a_tensor() -> None:
    x = relay.var("x", (1, 4, 2, 2))
    ones = relay.const(np.ones(4, "float32"))
    norm = relay.nn.batch_norm(x, ones, ones, ones, ones)[0]
    mod = relay.module(relay.nn.dropout(norm, 0.5))
    assert mod["main"].body.checked_type == x.type_annotation
    simple = relay.transform.SimplifyInference()(mod)
    assert not any(is_op_call(n, "nn.dropout", "nn.batch_norm") for n in nodes_of(simple["main"]))
    assert (
        tvm.parse_expr("free_var %x: Tensor[(2), float32]; nn.dropout(%x)").op.name == "nn.dropout"
    )
    with pytest.raises(TypeError, match="not iterable"):
        iter(norm.tuple)


def test_a_module_takes_functions_by_name() -> None:
    x = relay.var("x", (2,))
    mod = relay.module(relay.exp(x))
    shown = text(mod)
    mod["main"] = relay.Function([x], relay.tanh(x))
    mod["other"] = relay.Function([x], x)
    assert "tanh" in text(mod) != shown
    assert [gv.name_hint for gv in mod.functions] == ["main", "other"]


def test_rules_are_registered_by_keyword() -> None:
    def own(ref_call: Any, args: Any, ctx: Any) -> None:
        return None

    for register in (quantize.register_partition_function, quantize.register_annotate_function):
        register("nn.pad", frewrite=own, level=12)
    assert FQPartitionRewrite.get(relay.Op.get("nn.pad")) is own


def test_a_visitor_of_one_variable_is_called() -> None:
    x, y = relay.var("x", (2,)), relay.var("y", (2,))
    visitor = UseVarVisitor(x)
    visitor(relay.add(y, y))
    assert not visitor.used
    visitor(relay.exp(x))
    assert visitor.used
    assert UseVarVisitor.use_var(x, x)
