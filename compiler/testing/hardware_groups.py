"""Hardware groups of a module as plain lists, for tests."""

from __future__ import annotations

from compiler.fusion.hardware.group_calls import group_functions, host_nodes
from compiler.ir.module import IRModule

HardwareGroup = tuple[list[str], list[str], int]
"""Units, operators, number of parameters."""


def hw_groups(mod: IRModule, name: str) -> list[HardwareGroup]:
    """The groups that ``FuseOpHW`` made for description ``name``, in order of creation."""
    return [
        (
            list(function.get_attr("hdfg_stages")),
            list(function.get_attr("hdfg_ops")),
            len(function.params),
        )
        for function in group_functions(mod, name)
    ]


def hw_host_ops(mod: IRModule) -> list[str]:
    """Operators called outside every group, in post-order, function by function; markers such as
    ``annotation.stop_fusion`` left out."""
    return [node.op_name or "" for _, node in host_nodes(mod)]
