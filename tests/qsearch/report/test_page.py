"""The page of a module: its graph by kernels and operators, its text, and nothing that runs."""

from __future__ import annotations

import json
import re
from typing import Any

import compiler.ops  # noqa: F401  (registers the operators)
from compiler.drawing.layout import BOX_HEIGHT
from compiler.ir.expr import Function, Var, call_op
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.ty import TensorType
from compiler.span import Span
from qsearch.report.page import bundle, graph_page


def chain(name: str = "x", node: str = "Relu_7") -> IRModule:
    x = Var(name, TensorType((2,)))
    body = call_op("exp", call_op("nn.relu", x, span=Span(f"onnx:{node}")))
    return infer_module(IRModule({"main": Function((x,), body)}))


def told(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found
    return dict(json.loads(found[1]))


def test_layers_come_first_and_steps_can_be_chosen() -> None:
    found = told(graph_page("m", chain(), fused=True))
    assert [name for name, _ in found["groups"]] == ["fused", "none"]
    _, kernel = found["graphs"]["fused"]["frames"][0]["boxes"]
    assert [row["title"] for row in kernel["rows"]] == [
        "nn.relu  (2,) float32",
        "exp  (2,) float32",
    ]
    assert kernel["rows"][0]["detail"]["source"] == "Relu_7"
    assert kernel["title"] == "%0  Relu_7"
    assert kernel["height"] == BOX_HEIGHT  # its steps are opened by a click
    _, relu, _ = found["graphs"]["none"]["frames"][0]["boxes"]
    assert relu["detail"]["text"] == "%0 = nn.relu(%x)"
    assert "%0 = nn.relu(%x)" in found["text"]


def test_a_module_after_named_passes_is_drawn_as_it_is() -> None:
    assert list(told(graph_page("m", chain()))["graphs"]) == ["none"]


def test_a_module_that_cannot_be_fused_is_drawn_by_operators() -> None:
    x = Var("x")
    untyped = IRModule({"main": Function((x,), call_op("exp", x))})
    assert list(told(graph_page("m", untyped, fused=True))["graphs"]) == ["none"]


def test_names_from_a_model_never_become_markup() -> None:
    evil = '</script><img src=x onerror="alert(1)">'
    page = graph_page(evil, chain(evil, evil))
    assert "<img" not in page
    assert page.count("</script>") == 2
    assert told(page)["graphs"]["none"]["frames"][0]["boxes"][0]["detail"]["text"].startswith("%<")


def test_the_page_refers_to_nothing_outside_itself() -> None:
    page = graph_page("m", chain(), fused=True)
    assert "default-src 'none'" in page
    assert not re.search(r"""(src|href|@import|url)\s*[=(]\s*["']https?:""", page)


def test_a_bundle_holds_each_file_once_in_a_scope_of_its_own() -> None:
    sources = {
        "a/entry.js": 'import { one as first } from "../b.js";\nimport "./c.js";\n'
        'export const told = [first(), import("../d.js")];\n',
        "b.js": 'import { two } from "./a/c.js";\nexport function one() { return two; }\n',
        "a/c.js": "const own = 2;\nexport const two = own;\n",
    }
    found = bundle(sources, "a/entry.js")
    places = [found.index(f"const ${name} = ") for name in ("a_c_js", "b_js", "a_entry_js")]
    assert places == sorted(places)
    assert found.count("=> {\n") == len(sources)
    assert "const { one: first } = $b_js;" in found
    assert 'import("./../d.js")' in found
    assert found.endswith("export const { told } = $a_entry_js;\n")
    assert len(re.findall(r"^(import|export) ", found, re.M)) == 1
