"""ONNX's own node tests through import and reference executor.

    python -m tests.compiler.frontend.onnx_backend             counts and the table per operator
    python -m tests.compiler.frontend.onnx_backend -k Resize   one operator, each case that fails
    python -m tests.compiler.frontend.onnx_backend --write     compiler/frontend/OPERATORS.md

Taken are the cases of one node whose inputs and outputs are tensors. Inputs the importer needs
constant become initializers that hold the case's values. A case is *refused* when the importer says
so with an error of ours, *failed* when the numbers differ or anything else is raised.
"""

from __future__ import annotations

import argparse
import re
import warnings
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import numpy_helper
from onnx.backend.test.case.node import collect_testcases

import compiler
from compiler.core.words import WORDS, FBody
from compiler.errors import CompilerError
from compiler.frontend.from_onnx.functions import is_call
from compiler.frontend.from_onnx.load import load
from compiler.frontend.from_onnx.node import ConstantInputError
from compiler.frontend.from_onnx.opsets import OLDEST_OPSET, find_converter, versions_of
from compiler.ir.expr import Function, Tuple
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.rebuild import substitute
from compiler.ir.ty import holds_float
from compiler.ops.op_call import op_call
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import prerequisite_optimize
from compiler.quantize.diagnosis import diagnose

OPERATORS = Path(__file__).resolve().parents[3] / "compiler" / "frontend" / "OPERATORS.md"
BEGIN, END = "<!-- operators: begin -->", "<!-- operators: end -->"

# Element types the IR has no arrays for; OPERATORS.md names them.
UNSUPPORTED_TYPES = frozenset(
    {
        "STRING",
        "COMPLEX64",
        "COMPLEX128",
        "BFLOAT16",
        "FLOAT8E4M3FN",
        "FLOAT8E4M3FNUZ",
        "FLOAT8E5M2",
        "FLOAT8E5M2FNUZ",
        "FLOAT8E8M0",
        "FLOAT4E2M1",
        "INT4",
        "UINT4",
        "INT2",
        "UINT2",
    }
)


@dataclass(frozen=True)
class Case:
    """One node test: a model of one node, and inputs with the outputs they must give."""

    name: str
    model: onnx.ModelProto
    data_sets: Sequence[tuple[Sequence[Any], Sequence[Any]]]
    rtol: float
    atol: float

    @property
    def node(self) -> onnx.NodeProto:
        return self.model.graph.node[0]

    @property
    def operator(self) -> str:
        return f"{self.node.domain}::{self.node.op_type}" if self.node.domain else self.node.op_type

    @property
    def opset(self) -> int:
        return next((o.version for o in self.model.opset_import if o.domain in ("", "ai.onnx")), 1)

    @property
    def claimed(self) -> bool:
        known = find_converter(self.node.op_type, self.opset, self.node.domain) is not None
        return known or is_call(self.node, self.opset, {})

    def unsupported_types(self) -> set[str]:
        """Element types of the case, those an attribute names included, that we do not have."""
        used = [
            info.type.tensor_type.elem_type
            for info in (*self.model.graph.input, *self.model.graph.output)
        ]
        used += [a.i for a in self.node.attribute if a.name in ("to", "dtype", "output_dtype")]
        used += [a.t.data_type for a in self.node.attribute if a.HasField("t")]
        return UNSUPPORTED_TYPES & {onnx.TensorProto.DataType.Name(t) for t in used}


@dataclass(frozen=True)
class Outcome:
    """What became of a case; ``quantizable`` when integers compute it."""

    status: str
    why: str = ""
    quantizable: bool = False


@cache
def cases() -> tuple[Case, ...]:
    """Every single-node case with tensor inputs and outputs, by name."""
    with warnings.catch_warnings():
        # Some cases compute their expectation with overflow on purpose.
        warnings.simplefilter("ignore")
        collected = collect_testcases(None)
    found: list[Case] = []
    for case in collected:
        graph = case.model.graph
        infos = [*graph.input, *graph.output]
        if len(graph.node) == 1 and all(i.type.HasField("tensor_type") for i in infos):
            found.append(Case(case.name, case.model, case.data_sets, case.rtol, case.atol))
    return tuple(sorted(found, key=lambda c: c.name))


def run_case(case: Case, probed: bool = True) -> Outcome:
    """Import the case and compare every output with what ONNX expects.

    Args:
        probed: ask for the integer form as well.
    """
    quantizable = False
    for inputs, expected in case.data_sets:
        named = dict(zip((i.name for i in case.model.graph.input), map(as_array, inputs)))
        try:
            mod, params, inputs_left = import_case(case.model, named)
        except CompilerError as error:
            return Outcome("refused", str(error).splitlines()[0])
        except Exception as error:
            return Outcome("failed", f"import raised {type(error).__name__}: {error}")
        try:
            results = compiler.evaluate(mod, {**inputs_left, **params})
            compare(results, [as_array(e) for e in expected], case.rtol, case.atol)
        except Exception as error:
            return Outcome("failed", f"{type(error).__name__}: {one_line(error)}")
        quantizable = probed and has_integer_form(mod, {**inputs_left, **params})
    return Outcome("passed", "", quantizable)


def import_case(
    model: onnx.ModelProto, inputs: dict[str, Any]
) -> tuple[IRModule, dict[str, Any], dict[str, Any]]:
    """Import with as few constant inputs as the importer asks for, one more at a time."""
    model = onnx.ModelProto.FromString(model.SerializeToString())
    inputs = dict(inputs)
    while True:
        try:
            shapes = {name: value.shape for name, value in inputs.items()}
            return *load(model.SerializeToString(), input_shapes=shapes), inputs
        except ConstantInputError as error:
            if error.input_name not in inputs:
                raise
            value = inputs.pop(error.input_name)
            model.graph.initializer.append(numpy_helper.from_array(value, error.input_name))
            left = [i for i in model.graph.input if i.name != error.input_name]
            del model.graph.input[:]
            model.graph.input.extend(left)


def compare(results: Sequence[Any], expected: Sequence[Any], rtol: float, atol: float) -> None:
    """Dtype, shape and values as ONNX's own runner compares them."""
    assert len(results) == len(expected), f"{len(results)} outputs, {len(expected)} expected"
    for result, want in zip(results, expected):
        assert result.dtype == want.dtype, f"dtype {result.dtype}, {want.dtype} expected"
        assert result.shape == want.shape, f"shape {result.shape}, {want.shape} expected"
        np.testing.assert_allclose(result, want, rtol=rtol, atol=atol)


def as_array(value: Any) -> Any:
    """A case's value: an array, a numpy scalar, or a TensorProto."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    return np.asarray(value)


def has_integer_form(mod: IRModule, values: dict[str, Any]) -> bool:
    """True when integers compute the first output from a value that they computed.

    All other inputs are constants: that is how networks use operators.
    """
    main = mod["main"]
    assert isinstance(main, Function)
    weights = {p.name_hint: values[p.name_hint] for p in main.params[1:]}
    body = main.body.fields[0] if isinstance(main.body, Tuple) else main.body
    real = bool(main.params) and holds_float(main.params[0].checked_type)
    if real:
        body = substitute(body, {main.params[0]: op_call("nn.relu", main.params[0])})
    mod = infer_module(mod.with_function("main", Function(main.params, body)))
    try:
        tidy = prerequisite_optimize(mod, weights, opt_level=3, simplify=True)
        found = diagnose(tidy, QConfig.recommended())
    except CompilerError:
        return False
    names = {one.op for one in found.operators}
    whole = real or names <= {*WORDS, *FBody.names()}  # what never was real has no rules to ask
    return found.fully_integral and bool(names) and whole


def one_line(error: BaseException) -> str:
    return " ".join(str(error).split())[:200]


@dataclass(frozen=True)
class Row:
    """One claimed operator: opsets its converters begin at, and counts of its cases."""

    operator: str
    since: tuple[int, ...]
    passed: int
    failed: int
    refused: int
    unsupported: int
    types: tuple[str, ...]
    quantizable: bool

    @property
    def counted(self) -> int:
        """Cases that count: all but those of an element type named as unsupported."""
        return self.passed + self.failed + self.refused


def table(results: Iterable[tuple[Case, Outcome]]) -> list[Row]:
    """A row per claimed operator that has cases, by name."""
    grouped: dict[str, list[tuple[Case, Outcome]]] = defaultdict(list)
    for case, outcome in results:
        if case.claimed:
            grouped[case.operator].append((case, outcome))
    rows: list[Row] = []
    for operator, group in sorted(grouped.items()):
        counts: Counter[str] = Counter()
        types: set[str] = set()
        for case, outcome in group:
            unsupported = case.unsupported_types()
            if outcome.status != "passed" and unsupported:
                counts["unsupported"] += 1
                types |= unsupported
            else:
                counts[outcome.status] += 1
        node = group[0][0].node
        rows.append(
            Row(
                operator,
                versions_of(node.op_type, node.domain) or first_version(node.op_type),
                counts["passed"],
                counts["failed"],
                counts["refused"],
                counts["unsupported"],
                tuple(sorted(types)),
                any(outcome.quantizable for _, outcome in group),
            )
        )
    return rows


def first_version(operator: str) -> tuple[int, ...]:
    """The opset that brought a standard operator."""
    schemas = onnx.defs.get_all_schemas_with_history()
    return (min(s.since_version for s in schemas if s.name == operator and not s.domain),)


def markdown(rows: Sequence[Row]) -> str:
    """The table of OPERATORS.md."""
    passed, counted = sum(r.passed for r in rows), sum(r.counted for r in rows)
    lines = [
        f"{len(rows)} operators, {passed} of {counted} of ONNX's single-node cases pass "
        f"(onnx {onnx.__version__}).",
        "",
        "| operator | opsets | cases passed | element types left out | quantizable |",
        "|---|---|---|---|---|",
    ]
    for row in rows:
        since = ", ".join(f"{max(v, OLDEST_OPSET)}+" for v in row.since)
        types = ", ".join(t.lower() for t in row.types) or "—"
        lines.append(
            f"| {row.operator} | {since} | {row.passed} of {row.counted} | {types} "
            f"| {'yes' if row.quantizable else 'no'} |"
        )
    return "\n".join(lines)


def text_with(text: str, new_table: str) -> str:
    """The text with the table between the markers replaced."""
    pattern = re.compile(f"{re.escape(BEGIN)}.*?{re.escape(END)}", re.S)
    assert pattern.search(text), f"{OPERATORS.name} has no markers {BEGIN} … {END}"
    return pattern.sub(lambda _: f"{BEGIN}\n{new_table}\n{END}", text)


def run_all(pattern: str = "") -> Iterator[tuple[Case, Outcome]]:
    """Outcome of every case whose operator or name holds ``pattern``."""
    integral: set[str] = set()  # one case that is says it of the operator
    for case in cases():
        if pattern.lower() in f"{case.operator} {case.name}".lower():
            outcome = run_case(case, case.operator not in integral)
            if outcome.quantizable:
                integral.add(case.operator)
            yield case, outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("-k", default="", help="operators or cases whose name holds this")
    parser.add_argument("-v", action="store_true", help="every case that does not pass")
    parser.add_argument("--unclaimed", action="store_true", help="also operators without converter")
    parser.add_argument("--write", action="store_true", help="write the table into OPERATORS.md")
    options = parser.parse_args()
    results = list(run_all(options.k))
    for case, outcome in results:
        shown = case.claimed and outcome.status != "passed" and not case.unsupported_types()
        if shown and (options.v or options.k):
            print(f"{outcome.status:8} {case.name}: {outcome.why}")
    rows = table(results)
    for row in rows:
        print(
            f"{row.operator:32} passed {row.passed:3} failed {row.failed:3} refused {row.refused:3}"
            f" unsupported type {row.unsupported:3}  quantizable: {row.quantizable}"
        )
    unclaimed = Counter(case.operator for case, _ in results if not case.claimed)
    if options.unclaimed:
        print("without converter:", ", ".join(f"{o} ({n})" for o, n in sorted(unclaimed.items())))
    passed, counted = sum(r.passed for r in rows), sum(r.counted for r in rows)
    statuses = Counter(outcome.status for _, outcome in results)
    print(
        f"all {len(results)} cases: {statuses['passed']} passed, {statuses['failed']} failed, "
        f"{statuses['refused']} refused\nclaimed: {len(rows)} operators, {passed} of {counted} "
        f"cases pass ({100 * passed / max(counted, 1):.1f} %)"
    )
    if options.write:
        OPERATORS.write_text(text_with(OPERATORS.read_text("utf-8"), markdown(rows)), "utf-8")


if __name__ == "__main__":
    main()
