from __future__ import annotations

import sys
from pathlib import Path

# Worker processes import the runner of these tests by name.
sys.path.insert(0, str(Path(__file__).parent))
