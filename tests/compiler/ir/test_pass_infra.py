from __future__ import annotations

import io
import threading
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler.errors import CompilerError, PassError, TypeInferenceError, WellFormedError
from compiler.ir.expr import Constant, Function, Var, call_op
from compiler.ir.instruments import DumpDir, NodeCountInstrument, PrintIR, TimingInstrument
from compiler.ir.module import IRModule
from compiler.ir.pass_infra import (
    FunctionPass,
    PassContext,
    Sequential,
    create_pass,
    function_pass,
    module_pass,
    register_config,
    register_pass,
    run_named,
)
from compiler.ir.ty import TensorType


def module(**attrs: int) -> IRModule:
    x = Var("x", TensorType((2,)))
    fn = Function((x,), call_op("nn.relu", x), attrs=attrs)  # type: ignore[arg-type]
    return IRModule({"main": fn})


@register_pass("TestWrap", opt_level=3, required=("InferType",))
@dataclass(frozen=True, slots=True)
class Wrap(FunctionPass):
    """Put an operator around every body."""

    op: str = "exp"
    times: int = 1

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        body = fn.body
        assert body.checked_type is not None
        for _ in range(self.times):
            body = call_op(self.op, body)
        return fn.with_fields(body=body)


@function_pass(name="Nothing")
def nothing(fn: Function, mod: IRModule, ctx: PassContext) -> Function:
    return fn


def shown(mod: IRModule) -> str:
    return compiler.text(mod, show_types=False)


class TestContext:
    def test_the_innermost_context_is_current_and_ends_with_its_block(self) -> None:
        assert PassContext.current().opt_level == 2
        with PassContext(opt_level=3), PassContext(opt_level=1):
            assert PassContext.current().opt_level == 1
        assert PassContext.current().opt_level == 2

    def test_another_thread_does_not_see_the_context(self) -> None:
        seen = []
        with PassContext(opt_level=4):
            thread = threading.Thread(target=lambda: seen.append(PassContext.current().opt_level))
            thread.start()
            thread.join()
        assert seen == [2]

    def test_config_keys_are_registered_with_type_and_default(self) -> None:
        register_config("test.depth", int, 7)
        assert PassContext().get_config("test.depth") == 7
        assert PassContext(config={"test.depth": 9}).get_config("test.depth") == 9
        with pytest.raises(CompilerError, match=r"test\.depth"):
            PassContext(config={"test.dept": 9})
        with pytest.raises(CompilerError, match="must be int"):
            PassContext(config={"test.depth": "9"})


class TestPasses:
    def test_requirements_run_first_and_types_are_inferred_again(self) -> None:
        mod = module()
        after = Wrap()(mod)
        assert after["main"].body.checked_type == TensorType((2,))
        assert shown(mod) == shown(module())

    def test_nothing_to_do_returns_the_same_module(self) -> None:
        mod = compiler.infer_module(module())
        assert nothing(mod) is mod

    @pytest.mark.parametrize("attribute", ["Compiler", "Extern", "SkipOptimization"])
    def test_some_functions_are_left_alone(self, attribute: str) -> None:
        mod = compiler.infer_module(module(**{attribute: 1}))
        assert Wrap()(mod) is mod

    def test_an_unforeseen_failure_names_pass_and_function(self) -> None:
        @function_pass(name="Broken")
        def broken(fn: Function, mod: IRModule, ctx: PassContext) -> Function:
            raise KeyError("oops")

        with pytest.raises(PassError, match=r"Broken failed in @main: KeyError") as caught:
            broken(module())
        assert (caught.value.pass_name, caught.value.function_name) == ("Broken", "main")
        assert isinstance(caught.value.__cause__, KeyError)

    def test_an_error_of_the_input_keeps_its_class_and_gets_notes(self) -> None:
        x = Var("x", TensorType((2,)))
        bad = IRModule({"main": Function((x,), x + Constant(np.zeros(3, "float32")))})
        with pytest.raises(TypeInferenceError) as caught:
            Sequential(["InferType", "TestWrap"])(bad)
        assert any("InferType" in note for note in caught.value.notes)
        assert any("passes before it" in note for note in caught.value.notes)

    def test_verify_names_the_pass_that_left_ill_formed_code(self) -> None:
        @module_pass(name="Leaky")
        def leaky(mod: IRModule, ctx: PassContext) -> IRModule:
            return IRModule({"main": Function((), Var("y", TensorType(())))})

        with PassContext(verify=False):
            leaky(module())
        with PassContext(verify=True), pytest.raises(WellFormedError, match="Leaky"):
            leaky(module())


class TestSequential:
    def test_levels_and_names_decide_what_runs(self) -> None:
        passes = Sequential([Wrap()])

        def ran(**context: object) -> bool:
            with PassContext(**context):  # type: ignore[arg-type]
                return "exp" in shown(passes(module()))

        assert not ran(opt_level=2)
        assert ran(opt_level=3)
        assert ran(opt_level=0, required_pass=("TestWrap",))
        assert not ran(opt_level=3, disabled_pass=("TestWrap",))

    def test_a_pipeline_is_text_and_comes_back(self) -> None:
        text = 'InferType,TestWrap{op="tanh",times=2}'
        passes = Sequential.from_text(text)
        assert str(passes) == text
        with PassContext(opt_level=3):
            assert shown(passes(module())).count("tanh") == 2

    def test_named_passes_run_at_any_level_unless_disabled(self) -> None:
        ran: list[str] = []

        @module_pass(opt_level=9, name="Nine")
        def nine(mod: IRModule, ctx: PassContext) -> IRModule:
            ran.append("Nine")
            return mod

        mod = module()
        Sequential([nine])(mod)
        assert ran == []
        run_named(mod, [nine, "InferType"])
        assert ran == ["Nine"]
        with PassContext(disabled_pass=("Nine",)):
            run_named(mod, [nine])
        assert ran == ["Nine"]

    def test_a_pass_of_a_function_is_known_by_the_name_that_it_is_given(self) -> None:
        for count in (1, 2):  # a cell of a notebook that runs twice

            @function_pass(name="TanhOnTop")
            def tanh_on_top(
                fn: Function, mod: IRModule, ctx: PassContext, count: int = count
            ) -> Function:
                body = fn.body
                for _ in range(count):
                    body = call_op("tanh", body)
                return fn.with_fields(body=body)

            before = shown(module()).count("tanh")
            assert shown(create_pass("TanhOnTop")(module())).count("tanh") == before + count
        with pytest.raises(CompilerError, match="'InferType' is registered twice"):
            function_pass(name="InferType")(lambda fn, mod, ctx: fn)

    def test_a_function_may_be_given_at_once(self) -> None:
        same = module_pass(lambda mod, ctx: mod, opt_level=1)
        assert same.info.opt_level == 1
        assert module_pass(same) is same

    def test_unknown_passes_and_options_list_the_legal_ones(self) -> None:
        with pytest.raises(CompilerError, match="did you mean 'TestWrap'"):
            create_pass("TestWarp")
        with pytest.raises(CompilerError, match="did you mean 'times'"):
            create_pass("TestWrap{time=2}")
        with pytest.raises(CompilerError, match="option=value"):
            create_pass("TestWrap{2}")


class TestInstruments:
    def test_timing_printing_and_dumping(self, tmp_path: Path) -> None:
        timing, out = TimingInstrument(), io.StringIO()
        printing = PrintIR("before", names=("TestWrap",), file=out)
        with PassContext(opt_level=3, instruments=(timing, printing, DumpDir(tmp_path))):
            Sequential(["TestWrap"])(module())
        assert set(timing.seconds) >= {"InferType", "TestWrap", "sequential"}
        assert "// before TestWrap" in out.getvalue()
        assert "exp" not in out.getvalue()
        dumped = sorted(p.name for p in tmp_path.iterdir())
        # The input was typed already, so InferType changed nothing and has no file.
        assert dumped == ["000_input.relay", "001_TestWrap.relay"]
        assert "exp" not in (tmp_path / "000_input.relay").read_text()
        assert "exp" in (tmp_path / "001_TestWrap.relay").read_text()

    def test_node_counts_are_taken_before_and_after(self) -> None:
        counting = NodeCountInstrument()
        with PassContext(opt_level=3, instruments=(counting,)):
            Sequential(["TestWrap"])(module())
        name, before, after = counting.rows[1]
        assert name == "TestWrap"
        assert after.calls == before.calls + 1
        assert [row[0] for row in counting.rows] == ["InferType", "TestWrap", "sequential"]

    def test_an_inner_context_keeps_observers_and_verification(self) -> None:
        timing = TimingInstrument()
        with PassContext(opt_level=0, instruments=(timing,), verify=True):
            inner = PassContext.current().inner(opt_level=3, required_pass=("TestWrap",))
        assert (inner.opt_level, inner.required_pass) == (3, ("TestWrap",))
        assert (inner.instruments, inner.verify) == ((timing,), True)
