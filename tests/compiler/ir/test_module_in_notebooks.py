"""What notebooks show: small tables in which names of models stay text."""

from __future__ import annotations

from html.parser import HTMLParser

import compiler
from compiler import relay
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.quantize import QConfig
from compiler.runtime.artifact import QModule
from tests.compiler.networks import mobile_net

HOSTILE = "<img src=x onerror=alert(1)>"


class Tags(HTMLParser):
    """Which elements a text has."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        assert not attrs

    def handle_data(self, data: str) -> None:
        self.text += data + "|"


def shown(thing: IRModule | QModule) -> Tags:
    tags = Tags()
    tags.feed(thing._repr_html_())
    return tags


def test_a_module_is_a_row_per_function_with_types_and_operators() -> None:
    x = relay.var("x", (2, 3))
    mod = infer_module(relay.module(relay.Function((x,), relay.op.nn.relu(x + x))))
    tags = shown(mod)
    assert "|@main|x: Tensor[(2, 3), float32]|Tensor[(2, 3), float32]|2 (" in tags.text
    assert "1 nn.relu" in tags.text


def test_names_from_models_are_text_and_never_markup() -> None:
    x = relay.var(HOSTILE, (1,))
    mod = IRModule({"main": relay.Function((x,), x), HOSTILE: relay.Function((x,), x)})
    tags = shown(mod)
    assert tags.seen <= {"table", "caption", "thead", "tbody", "tr", "th", "td"}
    assert tags.text.count(HOSTILE) >= 2
    assert HOSTILE not in mod._repr_html_()


def test_a_module_of_a_thousand_operators_stays_a_small_table() -> None:
    mod, _ = mobile_net()
    assert len(shown(mod).text) < 1000
    assert "and " in shown(mod).text  # more parameters than are listed


def test_a_quantized_module_also_shows_its_configuration() -> None:
    x = relay.var("x", (1, 4))
    module = infer_module(relay.module(relay.Function((x,), relay.op.nn.relu(x))))
    tags = shown(QModule(module, QConfig.recommended()))
    assert "QModule|" in tags.text
    assert "|calibrate_mode|" in tags.text
    assert compiler.text(module)  # the table changes nothing
