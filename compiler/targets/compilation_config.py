"""CompilationConfig: where the parts of a module run: plain kernels, host code, accelerators."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from compiler.ir.virtual_device import VirtualDevice
from compiler.targets.target import Target


@dataclass(frozen=True, slots=True)
class CompilationConfig:
    """Devices and targets of one compilation.

    Args:
        default_primitive: the device of every kernel that nothing else places.
        host: the device of conditions and of the code around kernels.
        targets_by_kind: ``Compiler`` attribute → target of its functions; ``ext_dev`` otherwise.
    """

    default_primitive: VirtualDevice
    host: VirtualDevice
    targets_by_kind: Mapping[str, Target] = field(default_factory=dict)

    @staticmethod
    def of(
        target: Target | str, targets_by_kind: Mapping[str, Target] | None = None
    ) -> CompilationConfig:
        """One target for all plain kernels; its ``host``, or itself, for the rest.

        Raises:
            CompilerError: unknown target or option.
        """
        if isinstance(target, str):
            chosen = Target.from_text(target)
        else:
            chosen = target
        return CompilationConfig(
            device_of(chosen), device_of(chosen.host or chosen), targets_by_kind or {}
        )

    def target_of_compiler(self, compiler: str) -> Target:
        """The target of functions with this ``Compiler`` attribute."""
        return self.targets_by_kind.get(compiler) or Target("ext_dev")


def device_of(target: Target) -> VirtualDevice:
    """The first device of a target's kind."""
    return VirtualDevice(target.kind, 0, str(target))
