"""The profiles by name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from compiler.targets.npu import NPUS
from compiler.targets.npu.qnn import QNN
from compiler.targets.npu.rules import Profile
from compiler.targets.npu.ryzenai import RYZENAI

PROFILES: Final[Mapping[str, Profile]] = dict(zip(NPUS, (RYZENAI, QNN), strict=True))
