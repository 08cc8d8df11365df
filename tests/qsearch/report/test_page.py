"""A page is one file: data are text, nothing is loaded; scripts are joined."""

from __future__ import annotations

import json
import re
from typing import Any

from qsearch.report.page import bundle, page, plot_page


def told(page: str) -> dict[str, Any]:
    found = re.search(r'<script type="application/json" id="data">(.*?)</script>', page, re.S)
    assert found
    return dict(json.loads(found[1]))


def test_names_from_a_model_never_become_markup() -> None:
    evil = '</script><img src=x onerror="alert(1)">'
    written = page(evil, {"title": evil})
    assert "<img" not in written
    assert written.count("</script>") == 2
    assert told(written)["title"] == evil


def test_the_page_refers_to_nothing_outside_itself() -> None:
    written = plot_page("m", {}, [], {})
    assert "default-src 'none'" in written
    assert not re.search(r"""(src|href|@import|url)\s*[=(]\s*["']https?:""", written)


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
