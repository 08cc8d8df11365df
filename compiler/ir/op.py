"""Operator registry and the typed tables that hold one rule per operator and question."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from enum import IntEnum
from typing import Any, Generic, TypeVar, get_type_hints

from compiler.errors import CompilerError, check_known
from compiler.ir.attrs import Attrs
from compiler.ir.expr import OPS, Op, registered_ops
from compiler.ir.type_relation import InferResult, TypeRelation, result_rel


class OpPattern(IntEnum):
    """Fusion class of an operator (Relay's TOpPattern)."""

    ELEMWISE = 0
    BROADCAST = 1
    INJECTIVE = 2
    COMM_REDUCE = 3
    OUT_ELEMWISE_FUSABLE = 4
    TUPLE = 7
    OPAQUE = 8


NON_COMPUTATIONAL = "TNonComputational"
STATEFUL = "TOpIsStateful"
RESHAPE = "TReshapeOp"


def register_op(
    name: str,
    *,
    rel: TypeRelation,
    pattern: OpPattern | None,
    arg_names: tuple[str, ...] = ("data",),
    attrs_type: type[Attrs] | None = None,
    flags: tuple[str, ...] = (),
    doc: str = "",
    optional: int = 0,
) -> Op:
    """Make the singleton of an operator.

    Args:
        arg_names: of the arguments; most operators have one, the data.
        optional: arguments at the end that a call may leave out.
    Raises:
        CompilerError: the name is taken.
    """
    if name in OPS:
        raise CompilerError(
            f"operator {name!r} is registered twice", fix="keep one register_op per name"
        )
    if attrs_type is not None:
        attrs_type.declare()
    kinds = attrs_type, rel, pattern, doc, frozenset(flags), optional
    op = Op(name, arg_names, len(arg_names), *kinds)
    OPS[name] = op
    return op


def define_op(
    name: str,
    *,
    pattern: OpPattern | None,
    arg_names: tuple[str, ...] = ("data",),
    attrs_type: type[Attrs] | None = None,
    flags: tuple[str, ...] = (),
    doc: str = "",
    optional: int = 0,
) -> Callable[[InferResult], Op]:
    """Decorator of ``infer(argument types, attrs) -> result type``: the operator of that result.

    Args:
        attrs_type: None is the annotation of ``attrs``, none where that is Any.
    Raises:
        CompilerError: the name is taken.
    """

    def define(infer: InferResult) -> Op:
        named = get_type_hints(infer).get("attrs")
        said = isinstance(named, type) and issubclass(named, Attrs)
        return register_op(
            name,
            arg_names=arg_names,
            rel=result_rel(infer),
            pattern=pattern,
            attrs_type=named if attrs_type is None and said else attrs_type,
            flags=flags,
            doc=doc,
            optional=optional,
        )

    return define


get_op = Op.get


def has_op(name: str) -> bool:
    """True when an operator of this name is registered."""
    return name in OPS or name in registered_ops()


def all_ops() -> list[Op]:
    """Every registered operator, by name."""
    return [op for _, op in sorted(registered_ops().items())]


R = TypeVar("R", bound=Callable[..., Any])

_RULE_TABLES: dict[str, OpRule[Any]] = {}

DEFAULT_LEVEL = 10


class OpRule(Generic[R]):
    """A table operator → rule that answers one question of one pass.

    Args:
        name: the Relay attribute name, such as "FQPartitionRewrite".
        asked_by: the pass or executor that looks rules up.
        defined_in: where a missing rule would be written, for the error message.
    """

    def __init__(self, name: str, *, asked_by: str, defined_in: str = "compiler/ops") -> None:
        self.name = name
        self.asked_by = asked_by
        self.defined_in = defined_in
        self._rules: dict[str, tuple[int, R]] = {}
        _RULE_TABLES[name] = self

    def register(self, *ops: Op | str, level: int = DEFAULT_LEVEL) -> Callable[[R], R]:
        """Decorator: ``rule`` answers for these operators; a higher level overrides a lower one.

        Raises:
            CompilerError: an operator already has a rule of this level.
        """

        def add(rule: R) -> R:
            for op in ops:
                name = op if isinstance(op, str) else op.name
                held = self._rules.get(name)
                if held is not None and held[0] == level:
                    raise CompilerError(
                        f"{self.name}: {name!r} has a rule of level {level} already",
                        fix="register with a higher level to override it",
                    )
                if held is None or held[0] < level:
                    self._rules[name] = (level, rule)
            return rule

        return add

    def get(self, op: object) -> R | None:
        """The rule of an operator, or None; None too for anything that is not an operator."""
        if not isinstance(op, Op):
            return None
        held = self._rules.get(op.name)
        if held is None:
            return None
        return held[1]

    def level(self, op: Op) -> int | None:
        """Level of the operator's rule; None without one."""
        held = self._rules.get(op.name)
        if held is None:
            return None
        return held[0]

    def require(self, op: object) -> R:
        """The rule of an operator.

        Raises:
            CompilerError: it has none, or ``op`` is no operator; the message names the place to
                write one.
        """
        rule = self.get(op)
        if rule is None:
            name = repr(op.name) if isinstance(op, Op) else repr(op)
            raise CompilerError(
                f"{self.asked_by} needs {self.name} of operator {name}, which has none",
                fix=f"register one beside the operator, in {self.defined_in}",
            )
        return rule

    @contextmanager
    def replaced(self, op: Op, rule: R) -> Iterator[None]:
        """Inside the block ``rule`` answers for ``op``; the table is one per process, so this is
        for tests."""
        before = dict(self._rules)
        self._rules[op.name] = (DEFAULT_LEVEL, rule)
        try:
            yield
        finally:
            self._rules = before

    def __contains__(self, op: Op | str) -> bool:
        registered_ops()
        return (op if isinstance(op, str) else op.name) in self._rules

    def names(self) -> Iterator[str]:
        """Names of the operators that have a rule."""
        registered_ops()
        return iter(sorted(self._rules))


def rule_tables() -> dict[str, OpRule[Any]]:
    """Every rule table by name."""
    registered_ops()
    return dict(_RULE_TABLES)


def register_op_attr(
    op_name: str, table: str, rule: Callable[..., Any] | None = None, level: int = DEFAULT_LEVEL
) -> Callable[[R], R]:
    """Relay's spelling of ``<table>.register(op_name, level=level)(rule)``; without a rule, a
    decorator.

    Raises:
        UnknownOpError: no such operator.
        CompilerError: no such table, or the level is taken.
    """
    add: Callable[[R], R] = _table(table).register(get_op(op_name), level=level)
    if rule is not None:
        add(rule)
    return add


def temp_op_attr(
    op_name: str, table: str, rule: Callable[..., Any]
) -> AbstractContextManager[None]:
    """Inside the block ``rule`` replaces the operator's rule of any level; for tests.

    Raises:
        UnknownOpError: no such operator.
        CompilerError: no such table.
    """
    return _table(table).replaced(get_op(op_name), rule)


def _table(name: str) -> OpRule[Any]:
    registered_ops()
    check_known(name, _RULE_TABLES, f"no rule table {name!r}")
    return _RULE_TABLES[name]
