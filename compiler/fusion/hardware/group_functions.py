"""Each group becomes a function, and the surrounding function calls the functions of its groups."""

from __future__ import annotations

from dataclasses import dataclass

from compiler.fusion.hardware.groups import Partition
from compiler.fusion.hardware.stage import Group
from compiler.ir.attrs import DictAttrs
from compiler.ir.expr import Call, Constant, Expr, Function, GlobalVar, Op, Var
from compiler.ir.rebuild import with_operands


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
    stack: list[tuple[Expr, bool]] = [(root, False)]
    while stack:
        expr, operands_made = stack.pop()
        if expr in made:
            continue
        operands = expr.operands()
        if operands_made:
            made[expr] = with_operands(expr, [_inside(o, made, inputs) for o in operands])
        else:
            stack.append((expr, True))
            stack.extend((o, False) for o in reversed(operands) if o in members)
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
    function: Function,
    partition: Partition,
    functions: dict[Group, GroupFunction],
    literals: dict[Expr, Expr],
) -> Function:
    """``function`` with each group replaced by one call; itself where there is nothing to replace.

    Args:
        partition: its groups.
        functions: the function of every group.
        literals: function literals of its body that have changed.
    """
    group_of_root = partition.group_of_root
    made: dict[Expr, Expr] = dict(literals)
    stack: list[tuple[Expr, bool]] = [(function.body, False)]
    while stack:
        expr, needed_made = stack.pop()
        if expr in made:
            continue
        group = group_of_root.get(expr)
        called = None if group is None else functions[group]
        needed = expr.operands() if called is None else called.inputs
        if isinstance(expr, Function):
            made[expr] = expr
        elif not needed_made:
            stack.append((expr, True))
            stack.extend((o, False) for o in reversed(needed) if o not in made)
        elif called is None:
            made[expr] = with_operands(expr, [made[o] for o in needed])
        else:
            made[expr] = Call(
                called.function,
                tuple(made[o] for o in needed),
                span=expr.span,
                virtual_device=expr.virtual_device,
            )
    return function.with_fields(body=made[function.body])
