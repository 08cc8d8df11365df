"""PassContext: what passes may do in the current task: levels, configuration, instruments."""

from __future__ import annotations

from collections.abc import Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Protocol

from compiler.errors import CompilerError
from compiler.named_table import NamedTable

if TYPE_CHECKING:
    from compiler.ir.module import IRModule


@dataclass(frozen=True, slots=True)
class PassInfo:
    """Name of a pass, the lowest opt level it runs at, and the passes that must run before it."""

    name: str
    opt_level: int = 0
    required: tuple[str, ...] = ()


class Instrument(Protocol):
    """An observer of passes; it must not change the module."""

    def before(self, mod: IRModule, info: PassInfo) -> None:
        """Called before a pass runs."""

    def after(self, mod: IRModule, info: PassInfo) -> None:
        """Called with the module the pass returned."""


@dataclass(frozen=True, slots=True)
class ConfigKey:
    """A registered configuration key: its type and its default value."""

    type: type
    default: Any


_CONFIG: NamedTable[ConfigKey] = NamedTable("configuration key")

_stack: ContextVar[tuple[PassContext, ...]] = ContextVar("pass_contexts", default=())


def register_config(key: str, type: type, default: Any) -> None:
    """Declare a key that ``PassContext(config=...)`` may set.

    Raises:
        CompilerError: the key is declared already.
    """
    _CONFIG.register(key)(ConfigKey(type, default))


@dataclass(frozen=True, slots=True)
class PassContext:
    """Settings of the passes run inside ``with PassContext(...)``; local to the thread and task.

    Args:
        opt_level: a Sequential runs passes whose level is at most this.
        required_pass: names of passes that run at any level.
        disabled_pass: names that never run in a Sequential.
        config: values by registered key, see register_config.
        instruments: observers, called in order.
        verify: check well-formedness and types after every pass.
    """

    opt_level: int = 2
    required_pass: tuple[str, ...] = ()
    disabled_pass: tuple[str, ...] = ()
    config: Mapping[str, Any] = field(default_factory=dict)
    instruments: tuple[Instrument, ...] = ()
    verify: bool = False

    def __post_init__(self) -> None:
        for name in ("required_pass", "disabled_pass", "instruments"):
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if isinstance(self.opt_level, bool) or not isinstance(self.opt_level, int):
            raise CompilerError(
                f"opt_level must be an integer, got {self.opt_level!r}", where="PassContext(...)"
            )
        for key, value in self.config.items():
            known = _CONFIG.require(key)
            if not isinstance(value, known.type):
                raise CompilerError(
                    f"{key} must be {known.type.__name__}, got {value!r}",
                    where="PassContext(config=...)",
                )

    @staticmethod
    def current() -> PassContext:
        """The innermost context, or one with the defaults."""
        stack = _stack.get()
        if stack:
            return stack[-1]
        return _DEFAULT

    def inner(self, *, opt_level: int, required_pass: tuple[str, ...] = ()) -> PassContext:
        """For a driver that decides itself which passes run: its own choice of passes under the
        configuration, instruments and verification of this context."""
        return replace(self, opt_level=opt_level, required_pass=required_pass, disabled_pass=())

    def get_config(self, key: str) -> Any:
        """Value of a registered key.

        Raises:
            CompilerError: the key is not registered.
        """
        return self.config.get(key, _CONFIG.require(key).default)

    def enables(self, info: PassInfo) -> bool:
        """True when a Sequential runs this pass."""
        if info.name in self.disabled_pass:
            return False
        return info.opt_level <= self.opt_level or info.name in self.required_pass

    def __enter__(self) -> PassContext:
        _stack.set((*_stack.get(), self))
        return self

    def __exit__(self, *_error: object) -> None:
        _stack.set(_stack.get()[:-1])


_DEFAULT = PassContext()
