"""Passes: module to module, never modifying their input; pipelines of them, also as text.

``FoldScaleAxis,FuseOps{max_depth=64}`` is a pipeline: names with options in braces.
"""

from __future__ import annotations

import dataclasses
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, ClassVar, Final, Self, TypeVar, overload

from compiler.errors import CompilerError, PassError, WellFormedError, legal_names
from compiler.ir.expr import Function, GlobalVar
from compiler.ir.garbage import collector_rests
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.pass_context import PassContext as PassContext
from compiler.ir.pass_context import PassInfo as PassInfo
from compiler.ir.pass_context import register_config as register_config
from compiler.ir.pass_text import format_value, split_options, split_passes
from compiler.ir.well_formed import well_formed
from compiler.named_table import NamedTable

SKIPPED = ("Compiler", "Extern", "SkipOptimization")

_PASSES: NamedTable[type[Pass]] = NamedTable("pass")
_LOCAL: Final = "_Local"


@contextmanager
def _named_failures(note: str, pass_name: str, function_name: str = "") -> Iterator[None]:
    """Errors inside the block are those of a pass.

    Raises:
        CompilerError: as it was raised, with ``note``.
        PassError: for any other error, which is chained.
    """
    try:
        yield
    except CompilerError as error:
        error.add_note(note)
        raise
    except Exception as error:
        # The line that raised: of a pass, or of an operator's rule.
        frame = traceback.extract_tb(error.__traceback__)[-1]
        place = f" in @{function_name}" if function_name else ""
        raise PassError(
            f"{pass_name} failed{place}: {type(error).__name__}: {error}",
            pass_name=pass_name,
            function_name=function_name,
            where=f"{frame.filename}, line {frame.lineno}: {frame.line}",
        ) from error


class Pass:
    """Base of all passes. ``info`` is set by ``register_pass``."""

    __slots__ = ()
    info: ClassVar[PassInfo]

    @collector_rests
    def __call__(self, mod: IRModule) -> IRModule:
        """Run the required passes, then this one; ``mod`` itself when there is nothing to do.

        Raises:
            CompilerError: as the pass raises it, with a note naming the pass.
            PassError: the pass failed in a way it did not foresee; the cause is chained.
        """
        ctx = PassContext.current()
        info = self.info
        for name in info.required:
            mod = create_pass(name)(mod)
        for instrument in ctx.instruments:
            instrument.before(mod, info)
        with _named_failures(f"in pass {info.name}", info.name):
            result = self.transform(mod, ctx)
        if ctx.verify:
            _verify(result, info)
        for instrument in ctx.instruments:
            instrument.after(result, info)
        return result

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """The work itself, without requirements and instruments."""
        raise NotImplementedError(f"{type(self).__name__} is a kind of pass, not a pass")

    def __str__(self) -> str:
        options: list[str] = []
        if dataclasses.is_dataclass(self):
            for f in dataclasses.fields(self):
                value = getattr(self, f.name)
                if value != f.default:
                    options.append(f"{f.name}={format_value(value)}")
        return self.info.name + (f"{{{','.join(options)}}}" if options else "")


class ModulePass(Pass):
    """A pass over the whole module: implement ``run(mod, ctx)``."""

    __slots__ = ()

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        new = self.run(mod, ctx)
        if not isinstance(new, IRModule):
            raise PassError(
                f"{self.info.name} returned a {type(new).__name__}, not a module",
                pass_name=self.info.name,
            )
        return new

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        """The new module, or ``mod`` itself."""
        raise NotImplementedError(f"{type(self).__name__} does not define run(mod, ctx)")


class FunctionPass(Pass):
    """A pass over one function at a time: implement ``run(fn, mod, ctx)``.

    Functions with Compiler, Extern or SkipOptimization are left alone; types are inferred again
    when all functions are done.
    """

    __slots__ = ()

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        changed: dict[GlobalVar, Function] = {}
        for gv, fn in mod.functions.items():
            if not isinstance(fn, Function) or any(key in fn.attrs for key in SKIPPED):
                continue
            new = self._run_one(gv.name_hint, fn, mod, ctx)
            if new is not fn:
                changed[gv] = new
        return infer_module(mod.updated(changed) if changed else mod)

    def _run_one(self, name: str, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        with _named_failures(f"in function @{name}", self.info.name, name):
            new = self.run(fn, mod, ctx)
        if not isinstance(new, Function):
            raise PassError(
                f"{self.info.name} turned @{name} into a {type(new).__name__}",
                pass_name=self.info.name,
                function_name=name,
            )
        return new

    def run(self, fn: Function, mod: IRModule, ctx: PassContext) -> Function:
        """The new function, or ``fn`` itself; ``mod`` is the module as it was before the pass."""
        raise NotImplementedError(f"{type(self).__name__} does not define run(fn, mod, ctx)")


P = TypeVar("P", bound=type[Pass])
L = TypeVar("L", FunctionPass, ModulePass)


def register_pass(
    name: str, *, opt_level: int = 0, required: tuple[str, ...] = ()
) -> Callable[[P], P]:
    """Class decorator: give a pass its Relay name, level and requirements.

    Raises:
        CompilerError: the name is taken.
    """

    def add(cls: P) -> P:
        cls.info = PassInfo(name, opt_level, required)
        _PASSES.register(name)(cls)
        return cls

    return add


@register_pass("InferType", opt_level=0)
@dataclass(frozen=True, slots=True)
class InferType(ModulePass):
    """Type every function of the module.

    Raises:
        TypeInferenceError: types do not fit or cannot be found out; all independent mistakes of one
            function are in one message.
    """

    def run(self, mod: IRModule, ctx: PassContext) -> IRModule:
        return infer_module(mod)


def registered_passes() -> dict[str, type[Pass]]:
    """Every pass imported so far, by name."""
    return {name: _PASSES.require(name) for name in _PASSES.names()}


def create_pass(spec: str) -> Pass:
    """A pass from text such as ``FuseOps{max_depth=64}``.

    Raises:
        CompilerError: unknown pass or option; the legal ones are listed, nearest first.
    """
    name, options = split_options(spec)
    cls = _PASSES.require(name)
    types: dict[str, object] = {}
    if dataclasses.is_dataclass(cls):
        types = {f.name: f.default for f in dataclasses.fields(cls)}
    for key, value in options.items():
        if key not in types:
            raise CompilerError(
                f"{name} has no option {key!r}",
                where=f"pipeline {spec!r}",
                fix=legal_names(key, types) if types else f"{name} takes no options",
            )
        _check_option(spec, name, key, value, types[key])
    return cls(**options)


def _check_option(spec: str, name: str, key: str, value: object, default: object) -> None:
    """Options with a default of a plain kind take values of that kind; an int is a float too."""
    kind = type(default)
    if kind not in (bool, int, float, str, tuple) or type(value) is kind:
        return
    if kind is float and type(value) is int:
        return
    if kind is tuple:
        wanted = "list in square brackets"
    else:
        wanted = kind.__name__
    raise CompilerError(
        f"{name}: option {key} takes a {wanted}, got {value!r}",
        where=f"pipeline {spec!r}",
        fix=f"the default is {key}={format_value(default)}",
    )


@dataclass(frozen=True, slots=True)
class Sequential(Pass):
    """Passes in order; each runs when the context enables it (opt level, required, disabled).

    Args:
        passes: passes, or their text.
        opt_level: level of the sequence itself when it is nested in another.
        name: shown in errors and to instruments.
    """

    passes: Sequence[Pass | str]
    opt_level: int = 0
    name: str = "sequential"

    @classmethod
    def from_text(cls, pipeline: str) -> Self:
        """Parse ``A,B{option=1}``."""
        return cls([create_pass(spec) for spec in split_passes(pipeline)])

    @property
    def info(self) -> PassInfo:  # type: ignore[override]
        """Name and level of the sequence."""
        return PassInfo(self.name, self.opt_level)

    def transform(self, mod: IRModule, ctx: PassContext) -> IRModule:
        ran: list[str] = []
        for item in self.passes:
            step = create_pass(item) if isinstance(item, str) else item
            if not ctx.enables(step.info):
                continue
            try:
                mod = step(mod)
            except CompilerError as error:
                error.add_note(f"passes before it: {', '.join(ran) or 'none'}")
                raise
            ran.append(step.info.name)
        return mod

    def __str__(self) -> str:
        return ",".join(str(p) for p in self.passes)


def run_named(mod: IRModule, passes: Sequence[Pass | str], name: str = "named") -> IRModule:
    """Run the named passes one after another, of any opt level.

    Only ``disabled_pass`` of the current context leaves a pass out.

    Args:
        mod: the module.
        passes: passes, or their text.
        name: shown in errors and to instruments.
    Raises:
        CompilerError: unknown pass or option; or a pass fails.
    """
    steps = [create_pass(item) if isinstance(item, str) else item for item in passes]
    context = PassContext.current()
    required = (*context.required_pass, *(step.info.name for step in steps))
    with dataclasses.replace(context, required_pass=required):
        return Sequential(steps, name=name)(mod)


OnFunction = Callable[[Function, IRModule, PassContext], Function]
OnModule = Callable[[IRModule, PassContext], IRModule]
_TYPED: Final = ("InferType",)


@overload
def function_pass(
    pass_func: OnFunction,
    opt_level: int = 0,
    name: str | None = None,
    required: tuple[str, ...] = _TYPED,
) -> FunctionPass: ...
@overload
def function_pass(
    pass_func: None = None,
    opt_level: int = 0,
    name: str | None = None,
    required: tuple[str, ...] = _TYPED,
) -> Callable[[OnFunction], FunctionPass]: ...
def function_pass(
    pass_func: OnFunction | None = None,
    opt_level: int = 0,
    name: str | None = None,
    required: tuple[str, ...] = _TYPED,
) -> FunctionPass | Callable[[OnFunction], FunctionPass]:
    """A pass object from ``fn(function, module, ctx) -> function``; without one, a decorator.

    Pipelines know it by ``name`` where that is given.
    """
    make = _local_pass(FunctionPass, opt_level, name, required)
    if pass_func is None:
        return make
    return make(pass_func)


@overload
def module_pass(
    pass_func: OnModule,
    opt_level: int = 0,
    name: str | None = None,
    required: tuple[str, ...] = (),
) -> ModulePass: ...
@overload
def module_pass(
    pass_func: None = None,
    opt_level: int = 0,
    name: str | None = None,
    required: tuple[str, ...] = (),
) -> Callable[[OnModule], ModulePass]: ...
def module_pass(
    pass_func: OnModule | None = None,
    opt_level: int = 0,
    name: str | None = None,
    required: tuple[str, ...] = (),
) -> ModulePass | Callable[[OnModule], ModulePass]:
    """A pass object from ``fn(module, ctx) -> module``; without one, a decorator.

    Pipelines know it by ``name`` where that is given.
    """
    make = _local_pass(ModulePass, opt_level, name, required)
    if pass_func is None:
        return make
    return make(pass_func)


def _local_pass(
    base: type[L], opt_level: int, name: str | None, required: tuple[str, ...]
) -> Callable[[Callable[..., Any]], L]:
    """Decorator: a pass of the kind ``base`` that runs a function; a pass as it is.

    A cell of a notebook may run again: a local pass takes the place of another of its name.

    Raises:
        CompilerError: a registered class of passes has the name.
    """

    def make(fn: Callable[..., Any]) -> L:
        if isinstance(fn, base):
            return fn
        members = {
            "info": PassInfo(name or fn.__name__, opt_level, required),
            "run": staticmethod(fn),
            "__module__": fn.__module__,
            "__doc__": fn.__doc__ or f"A pass of {fn.__module__}.",
        }
        local: type[L] = type(_LOCAL, (base,), members)
        if name is not None:
            if name in _PASSES and _PASSES.require(name).__name__ == _LOCAL:
                _PASSES.discard(name)
            _PASSES.register(name)(local)
        return local()

    return make


def _verify(mod: Any, info: PassInfo) -> None:
    for gv, fn in mod.functions.items():
        problems = well_formed(fn) if isinstance(fn, Function) else []
        if problems:
            raise WellFormedError(
                f"{info.name} left @{gv.name_hint} ill-formed: {problems[0]}",
                where="; ".join(str(p) for p in problems[1:4]) or None,
                fix=f"this is a defect of the pass {info.name}, please report it",
            )
    infer_module(mod)
