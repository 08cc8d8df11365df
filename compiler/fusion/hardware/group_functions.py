"""Each group becomes a function, and the surrounding function calls the functions of its groups."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from compiler.fusion.hardware.stage import Group
from compiler.ir.attrs import DictAttrs
from compiler.ir.expr import Call, Constant, Expr, Function, GlobalVar, Op, Var
from compiler.ir.rebuild import rebuilt, with_operands
from compiler.ir.walk import post_order


@dataclass(frozen=True, slots=True, eq=False)
class GroupFunction:
    """A group as a function, and the expressions its parameters stand for, in order."""

    function: Function
    inputs: tuple[Expr, ...]


def group_function(group: Group, hdfg_name: str, symbol: str) -> GroupFunction:
    """The function of a group; parameters ``p0 …`` in the order in which its body needs them.

    Args:
        group: not empty; its nodes are typed.
        hdfg_name: the value of ``Compiler``.
        symbol: the value of ``global_symbol``, unique in the module.
    """
    members = {node.ref for node in group.members}
    root = group.root.ref
    made: dict[Expr, Expr] = {}
    inputs: dict[Expr, Var] = {}
    for expr in post_order(root, lambda node: [o for o in node.operands() if o in members]):
        made[expr] = with_operands(expr, [_inside(o, made, inputs) for o in expr.operands()])
    attrs = DictAttrs(
        {
            "Primitive": 1,
            "Compiler": hdfg_name,
            "global_symbol": symbol,
            "hdfg_stages": group.stage_names,
            "hdfg_ops": group.op_names,
        }
    )
    function = Function(
        tuple(inputs.values()), made[root], root.checked_type, attrs=attrs, span=root.span
    )
    return GroupFunction(function, tuple(inputs))


def _inside(operand: Expr, made: dict[Expr, Expr], inputs: dict[Expr, Var]) -> Expr:
    """An operand as the body sees it: a member, a constant, an operator, or a parameter."""
    if operand in made:
        return made[operand]
    if isinstance(operand, (Constant, Op, GlobalVar)):
        return operand
    if operand not in inputs:
        inputs[operand] = Var(f"p{len(inputs)}", operand.checked_type)
    return inputs[operand]


def with_group_calls(
    function: Function, groups: Mapping[Expr, GroupFunction], literals: Mapping[Expr, Expr]
) -> Function:
    """``function`` with each group replaced by one call; itself where there is nothing to replace.

    Args:
        groups: the function of every group, by the expression it computes.
        literals: function literals of its body that have changed.
    """

    def needed(expr: Expr) -> Sequence[Expr]:
        if isinstance(expr, Function):
            return ()
        if expr in groups:
            return groups[expr].inputs
        return expr.operands()

    def called(expr: Expr, made: Mapping[Expr, Expr]) -> Expr | None:
        if isinstance(expr, Function):
            return literals.get(expr, expr)
        if expr not in groups:
            return None
        return Call(
            groups[expr].function,
            tuple(made[o] for o in groups[expr].inputs),
            span=expr.span,
            virtual_device=expr.virtual_device,
        )

    made = rebuilt(post_order(function.body, needed), called)
    return function.with_fields(body=made[function.body])
