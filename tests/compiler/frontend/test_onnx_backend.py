"""ONNX's own node tests: what OPERATORS.md says of each operator is true."""

from __future__ import annotations

import functools

import onnx
import pytest

from tests.compiler.frontend import onnx_backend as backend
from tests.needs import skip

pytestmark = pytest.mark.slow  # 1,400 cases

CLAIMED_OPERATORS = 165
PASSING_SHARE = 0.99


INTEGRAL = ("LSTM", "GRU", "RNN", "SwiGLU", "LayerNormalization", "RMSNormalization", "Greater")


@functools.cache
def results() -> tuple[tuple[backend.Case, backend.Outcome], ...]:
    return tuple(backend.run_all())


def test_enough_operators_are_claimed() -> None:
    assert len(backend.table(results())) >= CLAIMED_OPERATORS


def test_nearly_all_cases_of_claimed_operators_pass() -> None:
    rows = backend.table(results())
    passed, counted = sum(r.passed for r in rows), sum(r.counted for r in rows)
    assert passed / counted >= PASSING_SHARE


def test_no_claimed_operator_fails_more_often_than_it_passes() -> None:
    weak = [r.operator for r in backend.table(results()) if r.counted and r.passed * 2 < r.counted]
    assert not weak


def test_what_integers_compute_with_constant_weights_is_quantizable() -> None:
    integral = {row.operator for row in backend.table(results()) if row.quantizable}
    assert integral.issuperset(INTEGRAL)


def test_whatever_is_not_supported_is_refused_with_an_error_of_ours() -> None:
    raised = [c.name for c, o in results() if o.why.startswith("import raised")]
    assert not raised


def test_the_table_of_operators_is_up_to_date() -> None:
    text = backend.OPERATORS.read_text("utf-8")
    if f"(onnx {onnx.__version__})" not in text:
        skip("the onnx of the table")
    wanted = backend.text_with(text, backend.markdown(backend.table(results())))
    assert text == wanted, "run python -m tests.compiler.frontend.onnx_backend --write"


def test_a_wrong_result_fails() -> None:
    case = next(c for c in backend.cases() if c.name == "test_add")
    inputs, outputs = case.data_sets[0]
    broken = backend.Case(case.name, case.model, [(inputs, [outputs[0] + 1])], case.rtol, case.atol)
    assert backend.run_case(case).status == "passed"
    assert backend.run_case(broken).status == "failed"


@pytest.mark.parametrize("name", ["test_reshape_reordered_all_dims", "test_constant_pad"])
def test_an_input_that_must_be_constant_becomes_an_initializer(name: str) -> None:
    case = next((c for c in backend.cases() if c.name == name), None)
    if case is None:
        skip("the onnx of the table")
    assert backend.run_case(case).status == "passed"
