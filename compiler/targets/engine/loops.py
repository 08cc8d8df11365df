"""scan as rows that are run again: the steps of its body stand once in the table.

    loop                      where a turn begins
    part   xs[t] → x          one step of each input
    …                         the body, which reads x and the states
    copy   next → state       not where the last program of the body writes the states themselves
    part   y → ys[t]
    repeat                    back to the loop, until all steps are done

A state lies in the narrowest type that holds its dtype, so its bounds hold in every turn: one of
uint16 in S32.
"""

from __future__ import annotations

from collections import Counter
from math import prod

from compiler.ir.dataflow import Step
from compiler.targets.engine.elementwise import emit_together
from compiler.targets.engine.epilogue import scaled_epilogue
from compiler.targets.engine.planner import Loop, Planner, bounds_of, rule
from compiler.targets.engine.values import RAW_DTYPES, Item
from compiler.targets.engine.views import View, compact


@rule("scan")
def scan(planner: Planner, step: Step, args: list[Item]) -> bool:
    """One turn for each step."""
    body = step.body
    attrs = step.attrs
    emitter = planner.emitter
    if body is None or any(value.type.dtype not in RAW_DTYPES for value in body.inputs):
        return False
    states, moving = attrs.borders(len(body.outputs))
    inner = Planner(body, planner.library, emitter)
    steps = inner.distinct_steps()
    held = []
    for value in body.inputs[:states]:
        whole = Item(value.type.concrete_shape, *bounds_of(value.type.dtype))
        held.append(compact(whole.storage, whole.shape))
    for item, state in zip(args, held):
        planner.write(item, state)
    sources = [_row_major(planner, item) for item in args[states:moving]]
    parts = [compact(one.buffer.storage, one.shape[1:]) for one in sources]
    views: list[View | None] = [*held, *parts]
    for place, (value, item) in enumerate(zip(body.inputs, args, strict=True)):
        low, high = bounds_of(value.type.dtype) if place < states else (item.low, item.high)
        data = item.data if place >= moving else None
        if place >= moving:
            views.append(planner.materialise(item) if data is None else None)
        inner.enter(value, Item(value.type.concrete_shape, low, high, data, views[place]))
    token = f"loop{len(emitter.actions)}"  # never left out
    planner.loops.append(Loop(inner, len(emitter.actions), held, views))
    emitter.step("loop", [], [token])
    for source, part, back in zip(sources, parts, attrs.reverse_inputs):
        _move(planner, source, part, attrs.length, back, takes=True)
    emitter.turns = attrs.length
    for one in steps:
        emitter.span = one
        inner.plan(one)
    emitter.span = step
    found = [inner.item(inner.root(value)) for value in body.outputs]
    together = _together(found, held)
    following: list[tuple[View, View]] = []
    results: dict[int, View] = dict(enumerate(held))
    # What else reads a state stands in front of the program that writes it.
    for joint in (False, True):
        written = joint and emit_together(inner, together)
        for item in together if written else ():
            inner.lies(item)
        for place, item in enumerate(found):
            if (item in together) is not joint:
                continue
            if place >= states:
                back = attrs.reverse_outputs[place - states]
                made = _row_major(inner, item)
                every = compact(made.buffer.storage, (attrs.length, *made.shape))
                _move(planner, every, made, attrs.length, back, takes=False)
                results[place] = every
            elif not written:
                state = held[place]
                after = compact(state.buffer.storage, state.shape)
                inner.write(item, after)
                following.append((after, state))
    for after, state in following:
        emitter.copy(after, state)
    emitter.turns = 1
    emitter.step("repeat", [state.buffer for state in held], [token], count=attrs.length)
    for place, item in enumerate(found):
        lies = results[place]
        made_of = Item(lies.shape, item.low, item.high, view=lies, stored=lies.buffer.storage)
        planner.define(step, made_of, place)
    return True


def _together(found: list[Item], held: list[View]) -> dict[Item, View | None]:
    """Return the values that one program computes at the end of a turn, and the states that lie
    where they did."""
    waiting = [
        item
        for item in found
        if item.view is None and item.chain is not None and scaled_epilogue(item) is None
    ]
    made: dict[Item, View | None] = {i: None for i in waiting if i.shape == waiting[0].shape}
    times = Counter(found[: len(held)])
    for item, state in zip(found, held):
        if times[item] > 1 or state.buffer.type == "S64":
            made.pop(item, None)
        elif item in made:
            made[item] = state
    return made


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
