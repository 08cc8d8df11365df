"""Place the values of a program: in the caller's memory, in constants, or in the arena.

An elementwise kernel may write its result over an argument that no later step reads. The arena of a
function begins with the arenas of the functions that it calls.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace

from compiler.lir.nodes import PrimFunc
from compiler.targets.c.kernel import may_share
from compiler.targets.c.memory_plan import (
    Lifetime,
    held_bytes,
    lower_bound,
    plan_memory,
    rounded,
)
from compiler.targets.c.product_form import with_scratch
from compiler.targets.c.program import Program, Step, Value


@dataclass(frozen=True, slots=True, eq=False)
class Placement:
    """The memory of one program.

    Attributes:
        program: the program.
        offsets: byte offset in the arena of every value that lies there.
        temps: byte offsets of the temporaries of each step's kernel, or of a loop's next states.
        shared: for each step, the parameter of its kernel whose memory the result takes over, or
            "".
        arena_bytes: of the whole arena, called functions included.
        lower_bound_bytes: the largest set of values alive at once, called functions included; no
            arena can be smaller.
    """

    program: Program
    offsets: Mapping[Value, int]
    temps: tuple[tuple[int, ...], ...]
    shared: tuple[str, ...]
    arena_bytes: int
    lower_bound_bytes: int


def place(
    program: Program, kernels: Mapping[str, PrimFunc], called: Mapping[str, Placement]
) -> Placement:
    """Plan the arena of a program.

    Args:
        program: in order of execution.
        kernels: PrimFuncs by name.
        called: placements of the other functions that it calls, by name.
    """
    last_read = {value: n for n, step in enumerate(program.steps) for value in step.args}
    kept = set(program.results)
    home: dict[Value, int] = {}
    lives: list[Lifetime] = []
    shared: list[str] = []
    temps: list[tuple[int, ...]] = []

    def new(size: int, start: int, end: int) -> int:
        lives.append(Lifetime(size, start, end))
        return len(lives) - 1

    below = 0
    for number, step in enumerate(program.steps):
        kernel = kernels.get(step.callee)
        free = {v for v in step.args if v in home and lives[home[v]].last == number}
        if kernel is None:
            taken = None
        else:
            taken = _taken_over(step, kernel, free, kept)
        shared.append("" if kernel is None or taken is None else kernel.params[taken].name)
        for out in step.outs:
            end = last_read.get(out, number)
            if out in kept:
                continue
            if taken is not None:
                slot = home[out] = home[step.args[taken]]
                lives[slot] = replace(lives[slot], last=max(lives[slot].last, end))
            else:
                home[out] = new(out.nbytes, number, end)
        scratch = kernel.temps if kernel is not None else step.states
        temps.append(tuple(new(buffer.nbytes, number, number) for buffer in scratch))
        if step.callee in called:
            below = max(below, called[step.callee].arena_bytes)
    below = rounded(below)
    plan = plan_memory(lives)
    inner = [
        Lifetime(called[step.callee].lower_bound_bytes, n, n)
        for n, step in enumerate(program.steps)
        if step.callee in called
    ]
    return Placement(
        program,
        {value: below + plan.offsets[slot] for value, slot in home.items()},
        tuple(tuple(below + plan.offsets[slot] for slot in slots) for slots in temps),
        tuple(shared),
        below + plan.arena_bytes,
        lower_bound([*lives, *inner]),
    )


def with_room(program: Program, kernels: Mapping[str, PrimFunc]) -> dict[str, PrimFunc]:
    """Kernels with temporaries: as much as the largest step with few of them leaves to each."""
    last_read = {value: n for n, step in enumerate(program.steps) for value in step.args}
    lives = [
        Lifetime(0 if out in program.results else out.nbytes, number, last_read.get(out, number))
        for number, step in enumerate(program.steps)
        for out in step.outs
    ]
    called = ((step.callee, held) for step, held in zip(program.steps, held_bytes(lives)))
    taken = [(name, held) for name, held in called if name in kernels]
    least = {name: with_scratch(kernels[name], 0).temps for name, _ in taken}
    few = {name: sum(buffer.nbytes for buffer in temps) for name, temps in least.items()}
    most = max((held + few[name] for name, held in taken), default=0)
    room: dict[str, int] = {}
    for name, held in taken:
        room[name] = min(room.get(name, most), most - held)
    return {name: with_scratch(kernels[name], budget) for name, budget in room.items()}


def _taken_over(
    step: Step, kernel: PrimFunc, free: Collection[Value], kept: Collection[Value]
) -> int | None:
    """The number of the parameter whose memory the result takes over, if there is one.

    ``free`` are the arguments in the arena that no later step reads.
    """
    if len(step.outs) != 1 or step.outs[0] in kept:
        return None
    alone = (n for n in may_share(kernel) if step.args.count(step.args[n]) == 1)
    return next((number for number in alone if step.args[number] in free), None)
