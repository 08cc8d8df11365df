"""The files of the page: found from index.html alone, kept by the browser, of one version."""

from __future__ import annotations

import re
from pathlib import Path

from qsearch.dashboard.page_files import PageFiles
from tests.qsearch.dashboard.server import style_of

STATIC = Path(__file__).parents[3] / "qsearch" / "dashboard" / "static"


def test_every_file_that_the_page_names_is_served(client):
    page = client.get("/")
    assert page.headers["cache-control"] == "no-cache"
    named = re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text)
    scripts = {p.relative_to(STATIC / "js").as_posix() for p in (STATIC / "js").rglob("*.js")}
    assert {n.split("/js/")[1] for n in named if n.endswith(".js")} == scripts
    for path in named:
        answer = client.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        file = STATIC / path.split("/", 3)[3]
        if file.name != "plots.css":
            assert answer.content == file.read_bytes()
        if file.suffix == ".js":
            assert answer.headers["content-type"].startswith("text/javascript")


def test_packed_and_plain_hold_the_same(client):
    path = style_of(client)
    packed = client.get(path)
    plain = client.get(path, headers={"Accept-Encoding": "identity"})
    assert packed.headers["content-encoding"] == "gzip"
    assert "content-encoding" not in plain.headers
    assert packed.content == plain.content
    assert 2 * int(packed.headers["content-length"]) < int(plain.headers["content-length"])


def test_a_file_of_another_version_is_not_there(client):
    path = style_of(client)
    version = path.split("/")[2]
    assert client.get(path.replace(version, "0" * 12)).status_code == 404
    assert client.get(f"/static/{version}/js/nothing.js").status_code == 404


def test_addresses_change_with_any_file():
    first = PageFiles(STATIC, {"plots.css": "a"})
    assert first.version == PageFiles(STATIC, {"plots.css": "a"}).version
    assert first.version != PageFiles(STATIC, {"plots.css": "b"}).version
