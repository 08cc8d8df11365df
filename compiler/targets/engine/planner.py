"""A module as a step table: values in the order of the module, steps where a value must lie.

An elementwise operator waits until somebody needs its result in memory. It then joins the product
before it (bias, requantization and clip of a convolution), or becomes one program together with the
elementwise operators around it. What has no rule of its own is planned word by word.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, Final

import numpy as np

from compiler.core.legalize import is_integral, words_of
from compiler.core.words import WORDS
from compiler.errors import EvaluationError, PlanError
from compiler.ir.dataflow import Dataflow, Form, Step, flatten_function
from compiler.ir.dataflow import Value as FlowValue
from compiler.ir.expr import Call, Constant, Function, Var
from compiler.ir.garbage import collector_rests
from compiler.ir.inference.infer_type import infer_expr
from compiler.ir.module import IRModule
from compiler.ir.ty import integer_range
from compiler.ops.evaluate import evaluate_step
from compiler.ops.number_format import Array, storage_dtype
from compiler.ops.qnn.requantize import RESCALING, factors_in
from compiler.ops.rules.simplify import FDefinition
from compiler.targets.engine.elementwise import BLOCK, emit_program
from compiler.targets.engine.epilogue import scaled_epilogue
from compiler.targets.engine.layouts import MOVES, factors_moved, moved, pad_of
from compiler.targets.engine.library import Library
from compiler.targets.engine.pairing import pair_channels
from compiler.targets.engine.plan import Emitter, Plan
from compiler.targets.engine.transposed import transposed
from compiler.targets.engine.values import (
    INT32,
    INT64,
    RAW_DTYPES,
    Chain,
    Epilogue,
    Item,
    bits_of,
    chain_bounds,
    constant,
    constants,
    is_integer,
    spread,
)
from compiler.targets.engine.views import Shape, View

FORM: Final = Form(
    "step table", PlanError, fix='run it with executor="reference", which has control flow'
)

Rule = Callable[["Planner", Step, list[Item]], bool]
"""``rule(planner, step, operands)`` plans a step; False where it cannot."""

rules: Final[dict[str, Rule]] = {}
"""Rules by operator of integers; one without a rule, or whose rule says False, runs in words."""
general: Final[dict[str, Rule]] = {}
"""Rules of words whose own rule says False: they take all that the words take."""
reals: Final[dict[str, Rule]] = {}
"""Rules of conversions, which read or write float32."""

_ASKED: Final = 32
"""Readers of a value whose layout and border are considered."""
_MOST_DEPTH: Final = 16
"""Elementwise operators that wait at most: programs stay short, and nothing recurses deeply."""
_MOST_IN_LOOP: Final = 40
"""The same of few elements in a loop, also where more than one operator reads a value: what its
turn ends with is one program."""


_ANY_LAYOUT: Final = ("nn.conv2d", "nn.max_pool2d", "nn.matmul", "nn.batch_matmul")
"""Words whose kernels take other orders of axes, too."""


def rule(*names: str, of: dict[str, Rule] = rules) -> Callable[[Rule], Rule]:
    """Register the rule of operators."""

    def register(function: Rule) -> Rule:
        of.update(dict.fromkeys(names, function))
        return function

    return register


@collector_rests
def plan_function(mod: IRModule, function: str, library: Library) -> tuple[Planner, Plan]:
    """The step table of one function, and what made it; the functions that it calls are inlined.

    Args:
        mod: typed, static shapes.
        function: a global function.
        library: the kernels it is planned for.
    Raises:
        PlanError: control flow or closures; far more memory than the values take; numbers that the
            step table cannot hold; a defect of the rules, which the reference does not have.
    """
    flow = flatten_function(mod[function], mod, form=FORM)
    planner = Planner(flow, library)
    try:
        pair_channels(flow, library)
        planner.run()
        return planner, planner.emitter.finish()
    except (AssertionError, EvaluationError, LookupError, TypeError, ValueError) as error:
        at = planner.emitter.span
        raise PlanError(
            f"the engine cannot plan {at.name if at else function}: {error!r}",
            where=str(at.span) if at and at.span else None,
            fix='run it with executor="reference"',
        ) from error


@dataclass(frozen=True, slots=True, eq=False)
class Loop:
    """A loop of a plan.

    Attributes:
        body: what planned its body.
        action: the number of the action with which it begins.
        states: where its states lie.
        views: where the operands of the body lie in front of a turn; None for constants.
    """

    body: Planner
    action: int
    states: Sequence[View]
    views: Sequence[View | None]


class Planner:
    """The state of one planning.

    Attributes:
        items: what is known of the values of ``flow``.
        folded: what is computed here, of values that bounds have made constant.
        placed: an item and its view -> how many actions there were when it lay there.
        in_loop: this is the body of a loop, whose steps go to the emitter of what is around it.
        loops: those that were planned.
    """

    def __init__(self, flow: Dataflow, library: Library, emitter: Emitter | None = None) -> None:
        self.flow = flow
        self.library = library
        if emitter is None:
            self.emitter = Emitter(library, flow)
        else:
            self.emitter = emitter
        self.in_loop = emitter is not None
        self.items: dict[FlowValue, Item] = {}
        self.folded: set[FlowValue] = set()
        self.placed: dict[tuple[Item, View], int] = {}
        self.loops: list[Loop] = []

    def run(self) -> None:
        """Plan every step, then the outputs."""
        steps = self.distinct_steps()
        for number, value in enumerate(self.flow.inputs):
            self.items[value] = self._input(number, value)
        for step in steps:
            self.emitter.span = step
            self.plan(step)
        # All lie in memory before one is written, so that each is read after all of them.
        outputs = [
            (number, *self._output(value))
            for number, value in enumerate(self.flow.outputs)
            if all(value.type.concrete_shape)
        ]
        for number, view, scale in outputs:
            self.emitter.dequantize(number, view, scale)

    # ---- values ----------------------------------------------------------------------------

    def _input(self, number: int, value: FlowValue) -> Item:
        """A copy in the arena, of floats their bits; who quantizes an input reads itself."""
        dtype = value.type.dtype
        shape = value.type.concrete_shape
        stored = dtype[1:] if dtype in _UNSIGNED else dtype
        item = Item(shape, *bounds_of(stored), stored=RAW_DTYPES.get(stored))
        if not all(shape):
            return constants(np.zeros(shape, np.int64))
        item.readers = self.behind.get(value, [])
        item.uses = self._uses(value)
        item.view = self.emitter.allocate(item)
        self.emitter.quantize(number, item.view)
        if stored != dtype:
            item = self.compose("WRAP", (item,), dtype)
            item.readers = self.behind.get(value, [])
            item.uses = self._uses(value)
        self.lies(item)
        return item

    def item(self, value: FlowValue) -> Item:
        """Return the item of a value."""
        if value not in self.items:
            assert value.data is not None
            bounds_of(value.type.dtype)
            self.items[value] = constants(bits_of(value.data))
        return self.items[value]

    def distinct_steps(self) -> list[Step]:
        """The steps that are needed, equal steps once; counts the readers of each value.

        A step that only moves or casts shares the item of its operand, so equal steps after it are
        equal as well.
        """
        self._root: dict[FlowValue, FlowValue] = {}
        seen: dict[Any, Step] = {}
        kept: list[Step] = []
        for step in self._in_words():
            args = tuple(self.root(a) for a in step.args)
            types = tuple(str(result.type) for result in step.results)
            if step.attrs is None:
                attrs = None
            else:
                attrs = (type(step.attrs).__name__, repr(step.attrs))
            key = (step.name, attrs, args, types, step.body)
            first = seen.get(key)
            if first is not None:
                for mine, other in zip(step.results, first.results):
                    self._root[mine] = self.root(other)
                continue
            seen[key] = step
            kept.append(step)
        needed = {self.root(v) for v in self.flow.outputs}
        alive: list[Step] = []
        self.readers: dict[FlowValue, list[Step]] = {}
        for step in reversed(kept):
            if any(r in needed for r in step.results):
                alive.append(step)
                for arg in step.args:
                    needed.add(self.root(arg))
                    self.readers.setdefault(self.root(arg), []).append(step)
        self._needed_outside = {self.root(v) for v in self.flow.outputs}
        # Layouts and borders are asked for by what stands behind casts, pads and zeros in between.
        self.behind = {v: steps[:_ASKED] for v, steps in self.readers.items()}
        for step in alive:
            spread = transposed(step)
            if spread is not None:
                source = self.root(spread.value)
                self.behind[source] = (self.behind[source] + [step])[:_ASKED]
        for step in alive:
            if step.name == "cast" or pad_of(step) is not None:
                after = self.behind.get(step.results[0], [])
                source = self.root(step.args[0])
                self.behind[source] = (self.behind[source] + after)[:_ASKED]
        return alive[::-1]

    def _in_words(self) -> Iterator[Step]:
        """The steps of the flow; what has no kernel of its own, in words."""
        kept = {name for name in rules if name not in WORDS or name in _ANY_LAYOUT}
        for step in self.flow.steps:
            words, same = _renamed(step, kept)
            yield from words
            self._root |= {value: self.root(made) for value, made in same.items()}

    def _uses(self, value: FlowValue) -> int:
        """Count the reads of a value."""
        return len(self.readers.get(value, [])) + (value in self._needed_outside)

    def root(self, value: FlowValue) -> FlowValue:
        """The value that ``value`` is another name of."""
        while value in self._root:
            value = self._root[value]
        return value

    def equal(self) -> Iterator[tuple[FlowValue, FlowValue]]:
        """Values that are other names, with the value that is computed."""
        return ((value, self.root(value)) for value in self._root)

    def define(self, step: Step, item: Item, index: int = 0) -> Item:
        """Say what a result of a step is."""
        value = step.results[index]
        item.readers = self.behind.get(value, [])
        item.uses = self._uses(value)
        self.items[value] = item
        return item

    def alias(self, step: Step, item: Item) -> bool:
        """A result that is its operand: its readers are the operand's."""
        value = step.results[0]
        item.uses += self._uses(value) - 1
        self.items[value] = item
        return True

    # ---- steps -----------------------------------------------------------------------------

    def enter(self, value: FlowValue, item: Item) -> None:
        """Say what an input of the flow is that another planner computes."""
        item.readers = self.behind.get(value, [])
        item.uses = self._uses(value)
        if item.view is not None:
            item.stored = item.view.buffer.storage
        self.items[value] = item

    def plan(self, step: Step) -> None:
        """Plan one step."""
        args = [self.item(self.root(a)) for a in step.args]
        some = any(all(value.type.concrete_shape) for value in step.results)
        if some and step.name == "concatenate":
            args = [arg for arg in args if all(arg.shape)]
        known = step.body is None and all(arg.data is not None for arg in args)
        if known or not some:
            self._fold(step, args)
            return
        if not all(all(arg.shape) for arg in args):
            self._plan_without_elements(step, args)
            return
        for arg in args:
            # Products of 64 bits are computed again rather than stored.
            waits = self.in_loop and arg.chain is not None and prod(arg.shape) <= BLOCK
            again = arg.uses > 1 and arg.fits_int32 and not waits
            if again or arg.depth > (_MOST_IN_LOOP if waits else _MOST_DEPTH):
                self.materialise(arg)
        own, words = (rules, general) if is_integral(step) else (reals, {})
        if self._ruled(own, step, args) or self._planned_in_words(step):
            return
        if not self._ruled(words, step, args):
            varies = step.name in RESCALING and factors_in(step) is None
            if varies:
                by = ", whose multipliers, shifts or biases are computed"
            else:
                by = ""
            raise PlanError(
                f"the engine has no kernel for {step.name} of {step.args[0].type}{by}",
                where=str(step.span) if step.span else None,
                fix="fold them to constants" if varies else FORM.fix,
            )

    def _ruled(self, table: Mapping[str, Rule], step: Step, args: list[Item]) -> bool:
        """Plan a step by the rule of a table, if it has one that can."""
        planned = table.get(step.name)
        if planned is None or not planned(self, step, args):
            return False
        if not all(map(self._holds, step.results)):
            return False
        for result in step.results:
            self.lies(self.items[result])
        return True

    def _plan_without_elements(self, step: Step, args: Sequence[Item]) -> None:
        """Plan a step one of whose operands is empty: its result depends on no other operand, or
        it is a scatter without updates.

        Raises:
            PlanError: a computed operand decides the result.
        """
        if step.name == "scatter_nd":
            self.alias(step, args[0])
        elif any(arg.data is None and all(arg.shape) for arg in args):
            raise PlanError(f"the engine has no kernel for {step.name} of an empty operand")
        else:
            self._fold(step, args)

    def _fold(self, step: Step, args: Sequence[Item]) -> None:
        """Compute steps whose operands bounds have made constant, by numpy, here and now."""
        arrays = [_known(arg, value.type.dtype) for arg, value in zip(args, step.args)]
        for index, data in enumerate(evaluate_step(step, arrays)):
            self.define(step, constants(bits_of(data)), index)
        self.folded |= set(step.results)

    def _planned_in_words(self, step: Step) -> bool:
        """Plan the words of an operator whose own rule cannot; False for a word."""
        words, same = _renamed(step, ())
        if words == [step]:
            return False
        inner = {result for word in words for result in word.results} - set(step.results)
        for word in words:
            for arg in word.args:
                if arg in inner:
                    self.readers.setdefault(arg, []).append(word)
        self.behind |= {value: self.readers.get(value, [])[:_ASKED] for value in inner}
        for arg in step.args:
            self.item(self.root(arg)).uses += sum(word.args.count(arg) for word in words) - 1
        for word in words:
            self.plan(word)
        for value, made in same.items():
            self.items[value] = self.item(made)
        return True

    def lies(self, item: Item) -> None:
        """Note where an item lies, if it does."""
        if item.view is not None:
            self.placed.setdefault((item, item.view), len(self.emitter.actions))

    def _holds(self, result: FlowValue) -> bool:
        """Return whether the dtype holds the bounds."""
        item, (low, high) = self.items[result], bounds_of(result.type.dtype)
        return low <= item.low and item.high <= high

    def elementwise(self, step: Step, op: str, args: Sequence[Item], *params: Any) -> bool:
        """Define the result as an elementwise operator."""
        return self.settle(step, self.compose(op, args, *params))

    def compose(self, op: str, args: Sequence[Item], *params: Any) -> Item:
        """An elementwise operator on values, broadcast, in integers of 64 bits.

        A result that the bounds decide is a constant; see ``values.Chain`` for the operators.
        """
        args = tuple(a.as_scalar() for a in args)
        low, high = chain_bounds(op, args, params)
        if low == high:
            return constant((low - INT64[0]) % (1 << 64) + INT64[0])
        if low < INT64[0] or high > INT64[1]:
            low, high = INT64
        shape = np.broadcast_shapes(*(a.shape for a in args))
        item = Item(shape, int(low), int(high), chain=Chain(op, args, params), uses=1)
        item.image_layout = next((a.image_layout for a in args if a.image_layout), "")
        item.depth = 1 + max((a.depth for a in args if a.view is None), default=0)
        return item

    def settle(self, step: Step, item: Item) -> bool:
        """Define the result of a step as an item, wrapped as its dtype wraps."""
        (value,) = step.results
        self.define(step, self.wrapped(item, value.type.dtype, value.type.concrete_shape))
        return True

    def wrapped(self, item: Item, dtype: str, shape: Shape) -> Item:
        """An item broadcast to a shape, within what a dtype holds."""
        low, high = bounds_of(dtype)
        if item.low < low or item.high > high:
            item = self.compose("WRAP", (item,), dtype)
        if item.data is not None:
            return replace(item, shape=shape, data=np.broadcast_to(item.data, shape), view=None)
        return spread(item, shape)

    def narrowed(self, item: Item) -> Item:
        """The item in the type of its bounds; some kernels write int32 always."""
        view = self.materialise(item)
        same = Chain("CLIP", (item,), (item.low, item.high))
        made = replace(item, view=None, data=None, product=None, chain=same, stored=None)
        if view.buffer.type == made.storage[0]:
            return item
        self.materialise(made)
        return made

    def write(self, item: Item, target: View) -> None:
        """Copy an item into memory of its shape, or compute it there; one number fills it."""
        stored = target.buffer.storage
        if item.view is None and item.chain is not None and item.storage == stored:
            item.view = emit_program(self, item, target)
            item.depth = 0
            self.lies(item)
            return
        number = item.data is not None and item.low == item.high
        view = None if number else self.materialise(item)
        if view is not None and view.buffer.storage == stored:
            self.emitter.copy(view, target)
        else:
            same = Chain("CLIP", (item.as_scalar(),), item.bounds)
            emit_program(self, Item(target.shape, *item.bounds, chain=same), target)

    def materialise(self, item: Item) -> View:
        """Return the view of the item; computes it if it was not yet."""
        if item.view is not None:
            return item.view
        if item.data is not None:
            item.view = self.emitter.constant_view(item)
        elif item.product is not None:
            item.view = item.product.emit(item, Epilogue(np.zeros(1, np.int64)))
        else:
            fused = scaled_epilogue(item)
            if fused is not None:
                item.view = fused[0].emit(item, fused[1])
            else:
                item.view = emit_program(self, item)
        item.depth = 0
        self.lies(item)
        return item.view

    def behind_moves(self, value: FlowValue) -> tuple[list[Step], FlowValue]:
        """The operators of ``MOVES`` that a value ends with, last one first, and what they move."""
        path: list[Step] = []
        value = self.root(value)
        while value.producer is not None and value.producer.name in MOVES:
            path.append(value.producer)
            value = self.root(value.producer.args[0])
        return path, value

    def moved(self, view: View, path: Sequence[Step]) -> View:
        """A view as ``path`` moves it, last one first; of a copy where that needs one."""
        for move in reversed(path):
            found = moved(view, move) or moved(self.emitter.contiguous(view), move)
            assert found is not None
            view = found
        return view

    # ---- outputs ---------------------------------------------------------------------------

    def _output(self, value: FlowValue) -> tuple[View, Array | None]:
        """Return the view of an output, and the factors of its integers; None for a copied one."""
        root = self.root(value)
        dtype = value.type.dtype
        scaled = dequantized(self, root) if dtype == "float32" else None
        if scaled is not None:
            return scaled
        item = self.item(root)
        if dtype in _UNSIGNED:
            item = self.wrapped(item, dtype[1:], item.shape)
        return self._raw_view(item, RAW_DTYPES[dtype]), None

    def _raw_view(self, item: Item, stored: tuple[str, int]) -> View:
        """Return the view of an item in the storage of an output's dtype; no table writes int64."""
        no_table = item.chain is None or item.chain.op != "TABLE" or stored[0] != "S64"
        if no_table and item.view is None and item.stored is None and item.product is None:
            item.stored = stored
        view = self.materialise(item)
        if view.buffer.storage == stored:
            return view
        same = Chain("CLIP", (item,), (item.low, item.high))
        return self.materialise(Item(item.shape, item.low, item.high, chain=same, stored=stored))


def dequantized(planner: Planner, value: FlowValue) -> tuple[View, Array] | None:
    """The integers and scales of ``multiply(cast(x, "float32"), scale)``, moved as an output is;
    None for others."""
    path, start = planner.behind_moves(value)
    step = start.producer
    factor: Array = np.ones((), np.float32)
    if step is not None and step.name == "multiply":
        inner, scale = (planner.root(a) for a in step.args)
        if scale.data is None:
            inner, scale = scale, inner
        if scale.data is None or inner.type.concrete_shape != step.results[0].type.concrete_shape:
            return None
        step = inner.producer
        factor = scale.data
    if step is None or step.name != "cast" or not is_integer(step.args[0].type.dtype):
        return None
    source = planner.item(planner.root(step.args[0]))
    if source.data is not None or not source.fits_int32:
        return None
    view = planner.materialise(source)
    if factor.size > 1:
        factor = np.broadcast_to(factor, view.shape)
        for move in reversed(path):
            factor = factors_moved(factor, move)
    return planner.moved(view, path), factor.reshape(-1)


def _known(item: Item, dtype: str) -> Array:
    """Return the known value of an operand, zeros for the others, in its dtype."""
    if item.data is None:
        data = np.zeros(item.shape, np.int64)
    else:
        data = item.data
    if dtype == "float32":
        return np.ascontiguousarray(data.astype(np.int32)).view(np.float32)
    return data.astype(storage_dtype(dtype))


def _renamed(step: Step, kept: Container[str]) -> tuple[list[Step], dict[FlowValue, FlowValue]]:
    """The words of an operator, the last of which compute its own results; and those of its
    results that are another value."""
    words, results = words_of(step, kept)
    if words == [step] and is_integral(step) and FDefinition.get(step.op) is not None:
        words, results = _defined(step)
    names: dict[FlowValue, FlowValue] = {}
    same: dict[FlowValue, FlowValue] = {}
    if words == [step]:
        return words, same
    own = {result for word in words for result in word.results}
    for made, value in zip(results, step.results):
        if made in own and made not in names:
            names[made] = value
        else:
            same[value] = names.get(made, made)
    for word in words:
        word.args = tuple(names.get(arg, arg) for arg in word.args)
        word.results = tuple(names.get(result, result) for result in word.results)
    return words, same


def _defined(step: Step) -> tuple[list[Step], list[FlowValue]]:
    """The steps of what an operator without words is defined as, and its results."""
    args = [Var("x", a.type) if a.data is None else Constant(a.data) for a in step.args]
    call = infer_expr(Call(step.op, tuple(args), step.attrs, span=step.span))
    assert isinstance(call, Call)
    body = infer_expr(FDefinition.require(step.op)(call, call.args))
    params = tuple(arg for arg in call.args if isinstance(arg, Var))
    flow = flatten_function(Function(params, body), IRModule(), form=FORM)
    given = (arg for arg in step.args if arg.data is None)
    names = dict(zip(flow.inputs, given, strict=True))
    for inner in flow.steps:
        inner.args = tuple(names.get(arg, arg) for arg in inner.args)
    return list(flow.steps), [names.get(value, value) for value in flow.outputs]


_UNSIGNED: Final = ("uint16", "uint32")
"""Dtypes whose bytes are those of the signed one, wrapped."""


def bounds_of(dtype: str) -> tuple[int, int]:
    """Bounds of what buffers hold of a dtype.

    Raises:
        PlanError: they hold no such values.
    """
    if dtype not in RAW_DTYPES:
        raise PlanError(f"the engine has no kernels for {dtype}", fix=FORM.fix)
    return {"bool": (0, 1), "float32": INT32}.get(dtype) or integer_range(dtype)
