"""scan as rows that are run again: the steps of its body stand once in the table.

    loop                      where a turn begins
    part   xs[t] → x          one step of each input
    …                         the body, which reads x and the states
    copy   next → state
    part   y → ys[t]
    repeat                    back to the loop, until all steps are done

States lie in the dtype that the module gives them, so their bounds hold in every turn.
"""

from __future__ import annotations

from math import prod

from compiler.ir.dataflow import Step
from compiler.targets.engine.planner import RAW_DTYPES, Planner, bounds_of, rule
from compiler.targets.engine.values import Item
from compiler.targets.engine.views import Buffer, View, row_major


@rule("scan")
def scan(planner: Planner, step: Step, args: list[Item]) -> bool:
    """One turn for each step."""
    body, attrs, emitter = step.body, step.attrs, planner.emitter
    if body is None or any(value.type.dtype not in RAW_DTYPES for value in body.inputs):
        return False
    states, moving = attrs.borders(len(body.outputs))
    inner = Planner(body, planner.library, emitter)
    steps = inner.distinct_steps()
    held = [
        _memory(value.type.concrete_shape, RAW_DTYPES[value.type.dtype])
        for value in body.inputs[:states]
    ]
    for item, state in zip(args, held):
        planner.write(item, state)
    sources = [_row_major(planner, item) for item in args[states:moving]]
    parts = [_memory(one.shape[1:], (one.buffer.type, one.buffer.zero)) for one in sources]
    for place, (value, item) in enumerate(zip(body.inputs, args, strict=True)):
        low, high = bounds_of(value.type.dtype) if place < states else (item.low, item.high)
        data = item.data if place >= moving else None
        view: View | None = [*held, *parts][place] if place < moving else None
        if view is None and data is None:
            view = planner.materialise(item)
        inner.enter(value, Item(value.type.concrete_shape, low, high, data, view))
    token = f"loop{len(emitter.actions)}"  # never left out
    emitter.step("loop", [], [token])
    for source, part, back in zip(sources, parts, attrs.reverse_inputs):
        _move(planner, source, part, attrs.length, back, takes=True)
    emitter.turns = attrs.length
    for one in steps:
        emitter.span = one
        inner.plan(one)
    emitter.span = step
    found = [inner.item(inner.root(value)) for value in body.outputs]
    following = [_memory(one.shape, (one.buffer.type, one.buffer.zero)) for one in held]
    for item, after in zip(found, following):
        inner.write(item, after)
    results = list(held)
    for item, back in zip(found[states:], attrs.reverse_outputs):
        made = _row_major(inner, item)
        whole = _memory((attrs.length, *made.shape), (made.buffer.type, made.buffer.zero))
        _move(planner, whole, made, attrs.length, back, takes=False)
        results.append(whole)
    for after, state in zip(following, held):
        emitter.copy(after, state)
    emitter.turns = 1
    emitter.step("repeat", [state.buffer for state in held], [token], count=attrs.length)
    for place, (item, lies) in enumerate(zip(found, results, strict=True)):
        stored = lies.buffer.type, lies.buffer.zero
        made_of = Item(lies.shape, item.low, item.high, view=lies, stored=stored)
        planner.define(step, made_of, place)
    return True


def _memory(shape: tuple[int, ...], stored: tuple[str, int]) -> View:
    buffer = Buffer(0, *stored)
    buffer.size = max(1, prod(shape)) * buffer.item
    return View(buffer, 0, shape, row_major(shape, buffer.item))


def _row_major(planner: Planner, item: Item) -> View:
    """The elements one behind the other, in the arena."""
    view = planner.materialise(item)
    return planner.emitter.contiguous(view, always=planner.emitter.is_constant(view))


def _move(planner: Planner, whole: View, part: View, length: int, back: int, takes: bool) -> None:
    """One step of ``whole``, from it or to it."""
    planner.emitter.step(
        "part",
        [whole if takes else part],
        [part if takes else whole],
        bytes=prod(part.shape) * part.buffer.item,
        count=length,
        takes=int(takes),
        back=back,
    )
