"""What a worker needs so that ``import`` finds there what it finds here."""

from __future__ import annotations

import os
import sys
from pathlib import Path


def python_path() -> str:
    """PYTHONPATH of workers: our packages first, so that none of the same name hides them."""
    home = str(Path(__file__).resolve().parents[2])
    # In an interactive interpreter the working directory is the empty path.
    return os.pathsep.join(dict.fromkeys([home, *(path or os.getcwd() for path in sys.path)]))
