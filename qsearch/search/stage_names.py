"""Names of the stages of a search, as the store and the progress line show them."""

from __future__ import annotations

from typing import Final

SENSITIVITY: Final = "sensitivity"
GLOBAL: Final = "global"
LAYERS: Final = "layers"
STAGES: Final = (SENSITIVITY, GLOBAL, LAYERS)
