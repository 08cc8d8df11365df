"""A search space whose trials take a tenth of a second, for tests of what is around a search."""

from __future__ import annotations

from typing import Any

QUICK_SPACE: dict[str, Any] = {
    "fields": {
        "weight_granularity": ["channel", "tensor"],
        "weight_scale": ["max", "power2", "mse"],
        "calibrate_mode": ["max", "percentile", "mse"],
    }
}
