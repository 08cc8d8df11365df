"""The files of the page: found from index.html alone, kept by the browser, of one version."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

from qsearch.dashboard.page_files import PageFiles
from tests.qsearch.dashboard.server import style_of

QSEARCH = Path(__file__).parents[3] / "qsearch"
STATIC = QSEARCH / "dashboard" / "static"
WEB = QSEARCH / "report" / "web"
LATER = "web/charts.js"
"""Asked for by pages with plots only."""


def test_every_file_that_the_page_names_is_served(client):
    page = client.get("/")
    assert page.headers["cache-control"] == "no-cache"
    named = re.findall(r'(?:href|src)="(/static/[^"]+)"', page.text)
    assert [name.split("/", 3)[3] for name in named if name.endswith(".js")] == ["js/app.js"]
    for path in [*named, later_of(client)]:
        answer = client.get(path)
        assert answer.status_code == 200
        assert "immutable" in answer.headers["cache-control"]
        name = path.split("/", 3)[3]
        if name.endswith(".js"):
            assert answer.headers["content-type"].startswith("text/javascript")
            assert not re.search(r"^import ", answer.text, re.M), "not bundled"
        else:
            file = WEB / name.removeprefix("web/") if name.startswith("web/") else STATIC / name
            assert answer.content == file.read_bytes()


def later_of(client):
    """Where the script of the plots is, as the page's own script asks for it."""
    script = re.search(r'src="(/static/[^"]+/js/)app.js"', client.get("/").text)[1]
    asked = set(re.findall(r'import\("\./([^"]+)"\)', client.get(f"{script}app.js").text))
    assert asked == {f"../{LATER}"}
    return script.removesuffix("js/") + LATER


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


def test_a_mistyped_address_shows_the_page_to_browsers_and_json_to_programs(client):
    shown = client.get("/studeis", headers={"Accept": "text/html,*/*"})
    assert (shown.status_code, shown.content) == (404, client.get("/").content)
    told = client.get("/studeis")
    assert (told.status_code, told.json()["what"]) == (404, "Not Found")


def test_pages_without_plots_are_small_and_those_with_plots_bearable(client):
    page = client.get("/").text
    named = re.findall(r'(?:href|src)="(/static/[^"]+)"', page)

    def sent(paths):
        return sum(int(client.get(path).headers["content-length"]) for path in paths)

    assert sent(named) <= 60_000
    assert sent({*named, later_of(client)}) <= 300_000


def test_addresses_change_with_any_file(tmp_path):
    web = shutil.copytree(WEB, tmp_path / "web")
    first = PageFiles({"": STATIC, "web/": web})
    assert first.version == PageFiles({"": STATIC, "web/": web}).version
    (web / "style.css").write_text("b")
    assert first.version != PageFiles({"": STATIC, "web/": web}).version
