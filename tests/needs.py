"""What tests need from the system, and the package that brings it: the table of CONTRIBUTING.md.

Reasons of skips are made here, so that every one says what ends it.
"""

from __future__ import annotations

from typing import Any, Final, NoReturn

import onnxruntime
import pytest

from compiler.targets.c.toolchain import find_compiler
from compiler.targets.engine.library import adds_pairs

PACKAGES: Final = {
    "a C compiler": "apt-get install gcc libc6-dev, or pip install ziglang",
    "gcc": "apt-get install gcc libc6-dev",
    "a 32-bit C compiler": "apt-get install gcc-multilib, or pip install ziglang",
    "aarch64-linux-gnu-gcc": "apt-get install gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
    "qemu-aarch64": "apt-get install qemu-user",
    "qemu-x86_64": "apt-get install qemu-user",
    "qemu-system-arm": "apt-get install qemu-system-arm",
    "arm-none-eabi-gcc": "apt-get install gcc-arm-none-eabi libnewlib-arm-none-eabi",
    "sshd": "apt-get install openssh-server",
    "Chromium": "apt-get install chromium-headless-shell, or chromium",
    "the Python packages of the tests": "pip install '.[test]'",
    "the onnx of the table": "pip install -c .ci/constraints.txt onnx",
}
"""What is needed -> the command that brings it."""


def missing(*needs: str) -> str:
    """The reason of a skip."""
    commands = dict.fromkeys(PACKAGES[need] for need in needs)
    return f"needs {', '.join(needs)}: {'; '.join(commands)}"


NO_INSTRUCTIONS: Final = "this processor has no"
"""Beginning of the reason of a skip that nothing can be installed for."""


def skip_without(instructions: str) -> NoReturn:
    """Skip the test that runs: the processor lacks instructions that cannot be emulated on it."""
    pytest.skip(f"{NO_INSTRUCTIONS} {instructions}")


def skip(*needs: str) -> NoReturn:
    """Skip the test that runs, for lack of these."""
    pytest.skip(missing(*needs))


def exact_products() -> Any:
    """Options of an onnxruntime session whose integer operators saturate on no processor.

    Kernels of x86 processors without VNNI add pairs in 16 bits; an optimizer replaces them.
    """
    options = onnxruntime.SessionOptions()
    if adds_pairs():
        options.add_session_config_entry("session.x64quantprecision", "1")
        return options
    return unoptimized()


def unoptimized() -> Any:
    """Options of an onnxruntime session that runs a graph as it is written."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    return options


NEEDS_C: Final = pytest.mark.skipif(find_compiler() is None, reason=missing("a C compiler"))
