"""The files of the page, read and bundled once.

Twenty small scripts cost a server and a browser more than a study, so the page gets two: its own,
and that of the plots. Addresses hold a hash of all files, so a browser keeps them for good and a
new version of qsearch is seen at once.
"""

from __future__ import annotations

import hashlib
import mimetypes
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fastapi import Response
from starlette.exceptions import HTTPException

from qsearch.report.page import bundle

INDEX: Final = "index.html"
SCRIPTS: Final = ("js/app.js", "web/charts.js")
"""Scripts that a page asks for by itself; each holds all that it imports."""
_FOR_GOOD: Final = "public, max-age=31536000, immutable"
_ASK_AGAIN: Final = "no-cache"


class PageFiles:
    """Files that a browser loads besides the API.

    Args:
        folders: where its files lie, by the beginning of their names; ``/static/`` in index.html
            becomes their address.
    """

    def __init__(self, folders: Mapping[str, Path]) -> None:
        found: dict[str, bytes] = {}
        for prefix, folder in folders.items():
            for path in sorted(path for path in folder.rglob("*") if path.is_file()):
                found[prefix + path.relative_to(folder).as_posix()] = path.read_bytes()
        digest = hashlib.sha256()
        for name, body in sorted(found.items()):
            digest.update(f"{name}\0{len(body)}\0".encode() + body)
        self.version = digest.hexdigest()[:12]
        index = found[INDEX].decode()
        found[INDEX] = index.replace("/static/", f"/static/{self.version}/").encode()
        scripts = {name: found.pop(name).decode() for name in [*found] if name.endswith(".js")}
        self._files = found | {name: bundle(scripts, name).encode() for name in SCRIPTS}

    async def index(self) -> Response:
        """The one page of every address; small, and asked for anew each time."""
        return self._answer(INDEX, _ASK_AGAIN)

    async def favicon(self) -> Response:
        """Answer the request for an icon, which browsers send without being told of it."""
        return self._answer("favicon.svg", _ASK_AGAIN)

    async def named(self, version: str, name: str) -> Response:
        """A file of this version.

        Raises:
            HTTPException: 404, no such version or file.
        """
        if version != self.version or name not in self._files:
            raise HTTPException(404, "there is no such file")
        return self._answer(name, _FOR_GOOD)

    def _answer(self, name: str, keep: str) -> Response:
        # JavaScript's type differs between systems' tables; browsers refuse modules of another.
        kind = "text/javascript" if name.endswith(".js") else mimetypes.guess_type(name)[0]
        return Response(self._files[name], headers={"Cache-Control": keep}, media_type=kind)
