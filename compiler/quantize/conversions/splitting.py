"""Cut the conversions of inputs and of outputs off a quantized function.

    before                                   quantize_inputs            quantized_main
    %0 = clip(round(%x * 16f), -127, 127);   let %x1 = cast(clip(…));   fn (%x: int8) {
    nn.conv2d(cast(%0, "int8"), w)           (%x1,)                       nn.conv2d(%x, w) }

The first cut is at the casts from float to integer nearest to the inputs: everything below them is
a conversion of inputs and constants. Equal conversions give one parameter of the core.

    before                                          quantized_main        dequantize_outputs
    %9 = annotation.stop_fusion(…) /* int8 */;      annotation            fn (%input: int8) {
    multiply(cast(%9, "float32"), 0.0625f)          .stop_fusion(…)         multiply(cast(…), …) }

The second cut is at the first integer tensors that are met from the result downward.
Source: PrefixCutter and partition_suffix in Relay v0.10 quantize/_partition_conversions.py.
"""

from __future__ import annotations

from collections.abc import Sequence, Set
from dataclasses import dataclass, field
from itertools import chain, count
from typing import Any

from compiler.ir.expr import (
    Call,
    Constant,
    Expr,
    Function,
    Let,
    Op,
    Quant,
    Tuple,
    TupleGetItem,
    Var,
)
from compiler.ir.rebuild import rebuilt
from compiler.ir.ty import TensorType, Type, holds_float, tensor_fields
from compiler.ir.walk import nodes_of, ordered, post_order
from compiler.quantize.conversions.operators import converts_one, is_integer_tensor, rounds


@dataclass(slots=True)
class _Cuts:
    """End of the prefix, found in one walk.

    Attributes:
        known: conversions of one input each, and constants that they read, with numbers: equal
            values have equal ones.
        cut: number → the first conversion to integers that has it.
        cut_of: every conversion to integers with the first equal one.
        input_of: every conversion with the input that it reads.
    """

    params: frozenset[Expr]
    known: dict[Expr, int] = field(default_factory=dict)
    numbers: dict[Any, int] = field(default_factory=dict)
    cut: dict[int, Expr] = field(default_factory=dict)
    cut_of: dict[Expr, Expr] = field(default_factory=dict)
    input_of: dict[Expr, Var] = field(default_factory=dict)
    rounded: set[Expr] = field(default_factory=set)

    def visit(self, node: Expr) -> None:
        """Classify a node whose operands have been visited."""
        key = self._key(node)
        if key is None:
            return
        number = self.numbers.setdefault(key, len(self.numbers))
        read = (self.input_of[each] for each in node.operands() if each in self.input_of)
        self.input_of[node] = node if isinstance(node, Var) else next(read)
        if isinstance(node, Call) and (rounds(node) or not self.rounded.isdisjoint(node.args)):
            self.rounded.add(node)
        if isinstance(node, Call) and _becomes_integer(node):
            self.cut_of[node] = self.cut.setdefault(number, node)
        else:
            self.known[node] = number

    def _key(self, node: Expr) -> Any:
        """Return the value that a conversion depends on; None when it is no conversion."""
        if isinstance(node, Var):
            if node in self.params:
                return ("input", node)
            return None
        if isinstance(node, TupleGetItem):
            whole = self.known.get(node.tuple)
            if whole is None:
                return None
            return ("field", whole, node.index)
        if not isinstance(node, Call) or not converts_one(node, self.rounded):
            return None
        assert isinstance(node.op, Op)
        if any(arg not in self.known for arg in node.args if not isinstance(arg, Constant)):
            return None
        return ("call", node.op.name, node.attrs, *map(self._number_of, node.args))

    def _number_of(self, value: Expr) -> int:
        """Return the number of a known value, or of a constant: only those that conversions read
        are hashed."""
        if isinstance(value, Constant) and value not in self.known:
            key = ("constant", str(value.data.dtype), value.data.shape, value.data.tobytes())
            self.known[value] = self.numbers.setdefault(key, len(self.numbers))
        return self.known[value]


def _quant_of(value: Expr) -> Quant | None:
    """The scale and zero point of the integers that a conversion ends in."""
    while isinstance(value, Call) and value.quant is None and len(value.args) == 1:
        value = value.args[0]
    return value.quant


def _becomes_integer(call: Call) -> bool:
    return is_integer_tensor(call.checked_type) and any(
        holds_float(arg.checked_type) for arg in call.args
    )


def split_prefix(main: Function) -> tuple[Function, Function]:
    """(quantize_inputs, the rest as a function of what quantize_inputs returns).

    quantize_inputs takes all parameters of ``main`` in their order and always returns a tuple;
    inputs that the rest reads unconverted are passed on.
    """
    cuts = _Cuts(frozenset(main.params))
    for node in nodes_of(main):
        cuts.visit(node)
    sources: dict[Expr, Expr] = {**cuts.cut_of, **{param: param for param in main.params}}
    core_nodes = list(
        post_order(main.body, lambda node: () if node in sources else node.operands())
    )
    taken: set[str] = set()
    core_vars: dict[Expr, Var] = {}
    lets: list[tuple[Var, Expr]] = []
    fields: list[Expr] = []
    for source in dict.fromkeys(sources[node] for node in core_nodes if node in sources):
        read = cuts.input_of[source]
        hint = read.name_hint
        numbered = (f"{hint}_{number}" for number in count(1))
        name = next(each for each in chain((hint,), numbered) if each not in taken)
        taken.add(name)
        core_vars[source] = Var(name, source.checked_type, quant=_quant_of(source))
        if source is not read:
            lets.append((Var(hint), source))
        fields.append(source if source is read else lets[-1][0])
    replaced = {node: core_vars[one] for node, one in sources.items() if one in core_vars}
    new = rebuilt(core_nodes, lambda node, _: replaced.get(node))
    core = Function(tuple(core_vars.values()), new[main.body], main.ret_type)
    result: Expr = Tuple(tuple(fields))
    for let_var, value in reversed(lets):
        result = Let(let_var, value, result)
    return Function(main.params, result), ordered(core, dict.fromkeys(new.values()))


def split_suffix(main: Function, quantized_dtypes: Set[str]) -> tuple[Function, Function]:
    """(the core, dequantize_outputs as a function of what the core returns).

    The core returns its one border as a tensor, several as a tuple in visiting order, followed by
    the parameters that dequantize_outputs reads besides. Without any border the core is all of
    ``main`` and dequantize_outputs the identity.
    """
    ends = _border_nodes(main, quantized_dtypes)
    nodes = list(post_order(main.body, lambda node: () if node in ends else node.operands()))
    borders = [node for node in nodes if node in ends]
    threaded = [node for node in nodes if isinstance(node, Var) and node not in ends]
    if not borders:
        whole = Var("input", main.body.checked_type)
        return main, Function((whole,), whole, main.ret_type)
    outputs = borders + threaded
    if len(outputs) == 1:
        inputs = [Var("input", outputs[0].checked_type)]
        core_body = outputs[0]
    else:
        inputs = [Var(f"input{i}", out.checked_type) for i, out in enumerate(outputs)]
        core_body = Tuple(tuple(outputs))
    core = _begun(main, core_body, nodes)
    replaced = dict(zip(outputs, inputs))
    new = rebuilt(nodes, lambda node, _: replaced.get(node))
    suffix = Function(tuple(inputs), new[main.body], main.ret_type)
    return core, ordered(suffix, dict.fromkeys(new.values()))


def _begun(main: Function, end: Expr, behind: Sequence[Expr]) -> Function:
    """The function of what ``end`` reads, in the order of ``main``, where it comes first there.

    Args:
        behind: the nodes of ``main`` that may stand in front of ``end`` without being read by it.
    """
    begun = Function(main.params, end)
    inside = nodes_of(main)
    if end not in behind:
        return begun  # several ends
    inside = inside[: inside.index(end) + 1]
    others = set(behind[: behind.index(end)])
    if not all(type(node) is Op for node in others):
        return begun
    called = {node.op for node in inside if type(node) is Call}
    return ordered(begun, (node for node in inside if node in called or node not in others))


def _border_nodes(main: Function, quantized_dtypes: Set[str]) -> set[Expr]:
    """Tensors of these dtypes, calls that return a tuple of such, and tensors that only integer
    operators compute from integers of any width, as an argmax does."""
    integral: set[Expr] = set()
    borders: set[Expr] = set()
    for node in nodes_of(main):
        if isinstance(node, Op):
            continue
        ty: Type = node.checked_type
        if not holds_float(ty) and all(
            child in integral or isinstance(child, Op) for child in node.operands()
        ):
            integral.add(node)
        if isinstance(node, Constant):
            continue
        dtypes = {tensor.dtype for tensor in tensor_fields(ty)}
        quantized = bool(dtypes) and dtypes <= quantized_dtypes
        if isinstance(ty, TensorType):
            ends = quantized or node in integral
        else:
            ends = quantized and isinstance(node, Call)
        if ends:
            borders.add(node)
    return borders
