"""Hide the passwords and tokens of URLs: every setting that leaves the process passes through here.

Reports, config.resolved.yaml, trackers, logs, error messages and the answers of the API use it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final

_URL: Final = re.compile(r"(?:[\w-]{1,40}[=:])?[a-z][a-z0-9+.-]{0,30}://", re.IGNORECASE)
_LOGIN: Final = re.compile(r"(\b[a-z][a-z0-9+.-]{0,30}://[^\s/:@]*:).*", re.IGNORECASE | re.DOTALL)
_FIELD: Final = re.compile(
    r"([?&][\w.-]{0,40}(?:passw|secret|token|key|signature)[\w.-]{0,40}=)[^\s&#]*", re.IGNORECASE
)
HIDDEN: Final = "***"


def masked(text: str) -> str:
    """Return the text with the passwords of the URLs in it hidden. O(length of the text).

    A text that begins with a URL counts as one URL, whose password may hold spaces.
    """
    words = [text] if _URL.match(text) else re.split(r"(\s+)", text)
    shown: list[str] = []
    for word in words:
        # A password ends at the last @ of its word, however long it is.
        before, at, host = word.rpartition("@")
        shown += (_LOGIN.sub(rf"\1{HIDDEN}", before), at, host)
    return _FIELD.sub(rf"\1{HIDDEN}", "".join(shown))


def masked_values(value: Any) -> Any:
    """Return plain values, such as JSON, with every text in them masked."""
    if isinstance(value, str):
        return masked(value)
    if isinstance(value, Mapping):
        return {masked(str(name)): masked_values(each) for name, each in value.items()}
    if isinstance(value, list | tuple):
        return [masked_values(each) for each in value]
    return value
