"""A lowered module as a C package: one .h, one .c, and a main.c that checks itself.

    model.h   sizes, the arena type, a declaration per function of the module
    model.c   arithmetic, constants, one function per kernel, one per function of the module
    main.c    the only ``main``: runs an embedded sample, exits 0 if the outputs are equal, else 1

C99 with <stdint.h> and nothing else, except that float operators such as exp need <math.h>. No
allocation, no state: the caller owns the arena, so calls with different arenas may run at once.
Equal modules give equal bytes.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import Literal

import numpy as np

from compiler.errors import CodegenError
from compiler.ir.garbage import collector_rests
from compiler.ir.module import IRModule
from compiler.lir.nodes import PrimFunc
from compiler.ops.number_format import Array
from compiler.runtime.files import replaced
from compiler.runtime.packed import Form
from compiler.targets.c.arithmetic import Arithmetic
from compiler.targets.c.c_types import c_type, int_literal, suffix
from compiler.targets.c.constants import ConstantPool, array_text, packed_form
from compiler.targets.c.entry import Entry, call_lines, signature
from compiler.targets.c.integer_functions import SHORT_BITS
from compiler.targets.c.joining import joined
from compiler.targets.c.kernel import head_of, kernel_of
from compiler.targets.c.memory_plan import rounded
from compiler.targets.c.names import Names, c_name
from compiler.targets.c.picking import picked
from compiler.targets.c.placement import Placement, place, with_room
from compiler.targets.c.program import Program, Step, Value, callees, program_of
from compiler.targets.c.source_file import comment, kernel_comment, source_text
from compiler.targets.c.work import Counts, Work, work_of

Unpack = Literal["run", "load"]
"""Time at which packed constants are unpacked: each in front of its reader, or all of them once."""

MOST_ELEMENTS = 1 << 11
"""Upper limit of the elements of a sample's inputs, and of its outputs, in main.c: some 30 kB of
text each."""
TOLERANCE = 1e-4
"""Tolerance of floats that need not be exact: relative above 1, absolute below."""


def self_check(
    package: str,
    entry: Entry,
    inputs: Sequence[Array],
    outputs: Sequence[Array],
    exact: bool = True,
    load: str = "",
) -> str:
    """Text of main.c.

    Args:
        package: its name.
        entry: the function it runs.
        inputs: of the sample; one with fewer elements than its parameter repeats them.
        outputs: what they have to give; together beyond MOST_ELEMENTS, main.c holds a hash of each,
            or some elements where floats are compared within TOLERANCE.
        exact: floats are compared bit by bit; else within TOLERANCE.
        load: function that is called first.
    Raises:
        CodegenError: the sample does not fit the function.
    """
    count = len(entry.params)
    if len(inputs) != count or len(outputs) != len(entry.results):
        raise CodegenError(
            f"a sample of @{entry.function} has {len(inputs)} inputs and {len(outputs)} "
            f"outputs, the function {count} and {len(entry.results)}"
        )
    rough = [not exact and value.dtype == "float32" for value in entry.results]
    how = f"to {TOLERANCE:g}" if any(rough) else "bit by bit"
    size = sum(array.size for array in outputs)
    short = size <= MOST_ELEMENTS
    stride = 1 if short else size // MOST_ELEMENTS + 1
    names = Names(["arena", "differs", "digest", "i"])
    arena = ["&arena"] if entry.placement.arena_bytes else []
    constants: list[str] = []
    declared: list[str] = []
    lines: list[str] = []
    checks: list[str] = []
    args: list[str] = []
    for word, value, array in zip(entry.names, entry.params, inputs):
        name = begin = names.fresh(f"sample_{word}")
        if array.size < value.size:
            begin = names.fresh(f"begin_of_{word}")
            declared.append(_declared(name, value))
            loop = f"for (int32_t i = 0; i < {value.size}; ++i)"
            lines.append(f"{loop} {name}[i] = {begin}[i % {array.size}];")
        constants.append(array_text(begin, array))
        args.append(name)
    for word, value, array, loose in zip(entry.names[count:], entry.results, outputs, rough):
        name = names.fresh(f"actual_{word}")
        wanted = names.fresh(f"expected_{word}")
        if short or loose:
            constants.append(array_text(wanted, array if short else array.reshape(-1)[::stride]))
        if loose:
            checks.append(f"differs({name}, {wanted}, {-(-value.size // stride)}, {stride})")
        elif short:
            checks.append(f"memcmp({name}, {wanted}, sizeof {wanted}) != 0")
        else:
            call = f"digest({name}, {value.size}, sizeof *{name})"
            checks.append(f"{call} != UINT64_C({_digest(array):#x})")
        declared.append(_declared(name, value))
        args.append(name)
    declared += [f"static {package}_arena arena;" for _ in arena]
    lines += call_lines(load, []) if load else []
    lines += call_lines(entry.symbol, [*arena, *args])
    lines.append("return " + "\n        || ".join(checks or ["0"]) + ";")
    macros = any(word in text for text in constants for word in ("INFINITY", "NAN"))
    system = ["<string.h>"] if not all(rough) else []
    system += ["<math.h>"] if macros else []
    return "\n".join(
        [
            comment(
                "main.c: runs one sample; exits 0 if the outputs are those of the reference,\n"
                f"{how}, else 1."
            ),
            f'#include "{package}.h"\n',
            "".join(f"#include {header}\n" for header in system),
            *constants,
            "\n".join(declared) + "\n",
            *([_DIFFERS] if any(rough) else []),
            *([_DIGEST] if not short and not all(rough) else []),
            "int main(void)\n{\n" + "\n".join(f"    {line}" for line in lines) + "\n}\n",
        ]
    )


def _declared(name: str, value: Value) -> str:
    return f"static {c_type(value.dtype)} {name}[{max(value.size, 1)}];"


def _digest(array: Array) -> int:
    """The hash that ``digest`` of main.c computes."""
    value = 14695981039346656037
    for element in np.ascontiguousarray(array).reshape(-1).view(f"u{array.itemsize}").tolist():
        value = (value ^ element) * 1099511628211 % 2**64
    return value


_DIGEST = """/* FNV-1a, of elements in place of bytes: the same for either order of bytes. */
static uint64_t digest(const void *data, int32_t count, size_t size)
{
    uint64_t hash = UINT64_C(14695981039346656037);
    for (int32_t i = 0; i < count; ++i) {
        const unsigned char *at = (const unsigned char *)data + (size_t)i * size;
        uint64_t value = *at;
        uint32_t four;
        uint16_t two;
        if (size == sizeof value) memcpy(&value, at, sizeof value);
        if (size == sizeof four) { memcpy(&four, at, sizeof four); value = four; }
        if (size == sizeof two) { memcpy(&two, at, sizeof two); value = two; }
        hash = (hash ^ value) * UINT64_C(1099511628211);
    }
    return hash;
}
"""

_DIFFERS = f"""/* Float sums may be added up in another order. */
static int differs(const float *actual, const float *expected, int32_t count, int32_t step)
{{
    for (int32_t i = 0; i < count; ++i, actual += step) {{
        const float size = expected[i] < 0 ? -expected[i] : expected[i];
        const float error = *actual - expected[i];
        const float limit = {TOLERANCE!r}f * (size > 1 ? size : 1);
        if (*actual == expected[i]) continue;
        if (!(error <= limit && error >= -limit)) return 1;
    }}
    return 0;
}}
"""


@dataclass(frozen=True, slots=True, eq=False)
class CPackage:
    """Generated files.

    Attributes:
        name: base of the file names and of the symbols.
        files: text by file name.
        entries: the functions, callees first, by name in the module.
        kernels: number of kernels.
        constant_bytes: of all weights and tables, packed.
        loaded_bytes: memory beside the arena, for constants that are unpacked once.
        uses_libm: whether linking needs -lm.
        functions: C function of every kernel, by name in the module.
    """

    name: str
    files: Mapping[str, str]
    entries: Mapping[str, Entry]
    kernels: int
    constant_bytes: int
    loaded_bytes: int
    uses_libm: bool
    functions: Mapping[str, str]

    @property
    def arena_bytes(self) -> int:
        """Size of the arena type."""
        return _arena_bytes(self.entries)

    def write(self, folder: Path) -> list[Path]:
        """Write the files; existing ones of these names are replaced.

        Raises:
            CodegenError: the folder cannot be written.
        """
        try:
            folder.mkdir(parents=True, exist_ok=True)
            paths = [folder / name for name in self.files]
            for path, text in zip(paths, self.files.values()):
                with replaced(path) as file:
                    file.write(text.encode())
        except OSError as error:
            raise CodegenError(f"{folder} cannot be written: {error.strerror}") from error
        return paths


@collector_rests
def c_package(
    mod: IRModule,
    name: str,
    sample: tuple[Sequence[Array], Sequence[Array]] | None = None,
    function: str = "main",
    exact: bool = True,
    remark: str = "",
    unpack: Unpack = "run",
) -> CPackage:
    """Generate C for a function and everything it calls.

    Args:
        mod: after LowerTE, typed.
        name: of the files and of the symbols; made legal.
        sample: inputs and outputs of ``function``, for main.c; None: no main.c.
        function: ``main`` becomes ``<name>_run``, any other ``<name>_<function>``.
        exact: main.c compares floats bit by bit, as integers always are; else within a tolerance,
            for modules whose float sums another executor adds up in another order.
        remark: for the reader of the header.
        unpack: "run" unpacks packed constants into the arena in front of each step that reads them,
            "load" all of them once, into memory of their own, by ``<name>_load``.
    Raises:
        CodegenError: something in the module has no C form.
    """
    return _Writer(mod, c_name(name), remark, unpack).package(function, sample, exact)


def arena_bytes(mod: IRModule, function: str = "main") -> int:
    """``CPackage.arena_bytes`` of a lowered module, without its files.

    Raises:
        CodegenError: a step has no C form.
    """
    return _Writer(mod, "module", "", "run").planned(function)


@dataclass(frozen=True, slots=True)
class Footprint:
    """Bytes of a module as C; nothing is compiled for it.

    Attributes:
        arena_bytes: as ``CPackage.arena_bytes``.
        constant_bytes: of all weights and tables, packed.
        work: ``times`` of one call of the function, ``places`` of all of the file.
    """

    arena_bytes: int
    constant_bytes: int
    work: Work


@collector_rests
def footprint(mod: IRModule, function: str = "main") -> Footprint:
    """Memory and work of the C that ``c_package`` gives for a function.

    Raises:
        CodegenError: something in the module has no C form.
    """
    return _Writer(mod, "module", "", "run").footprint(function)


class _Writer:
    """Collects the parts of the files."""

    def __init__(self, mod: IRModule, name: str, remark: str, unpack: Unpack) -> None:
        self._mod = mod
        self._remark = remark
        self._unpack = unpack
        self._placed: dict[str, dict[str, Placement]] = {"run": {}, "load": {}}
        self._loaded: dict[tuple[str, bytes], tuple[str, Array]] = {}
        self._name = name
        self._names = Names([name, f"{name}_arena"])
        self._use = Arithmetic()
        self._pool = ConstantPool(self._names)
        self._entries: dict[str, Entry] = {}
        self._kernels: dict[str, PrimFunc] = {}
        self._programs: dict[str, Program] = {}
        self._symbols: dict[str, str] = {}
        # Parameters of each callee whose memory a result takes over in some step.
        self._shared: defaultdict[str, set[str]] = defaultdict(set)

    def package(
        self, function: str, sample: tuple[Sequence[Array], Sequence[Array]] | None, exact: bool
    ) -> CPackage:
        self.planned(function)
        bodies = [self._entry_text(entry) for entry in self._entries.values()]
        kernels = [self._kernel_text(name) for name in self._kernels]
        load = self._load_text()
        title = f"{self._name}.c: a quantized network as C99; see {self._name}.h."
        text = source_text(
            title, self._use, self._pool, [*kernels, *load, *bodies], f"{self._name}.h"
        )
        files = {f"{self._name}.h": self._header(), f"{self._name}.c": text}
        if sample is not None:
            entry = self._entries[function]
            first = f"{self._name}_load" if load else ""
            files["main.c"] = self_check(self._name, entry, *sample, exact, first)
        return CPackage(
            self._name,
            files,
            self._entries,
            len(self._kernels),
            self._pool.nbytes,
            self._loaded_bytes if load else 0,
            self._use.uses_libm,
            dict(self._symbols),
        )

    def footprint(self, function: str) -> Footprint:
        arena = self.planned(function)
        bodies = {entry.symbol: self._entry_text(entry) for entry in self._entries.values()}
        kernels = {self._symbols[name]: self._kernel_text(name) for name in self._kernels}
        whole = Work()
        known = dict[str, Counts]()
        for symbol, text in {**kernels, **bodies}.items():
            work = work_of(text, known)
            known[symbol] = whole.times = work.times
            for kind, count in work.places.items():
                whole.places[kind] += count
        return Footprint(arena, self._pool.nbytes, whole)

    def planned(self, function: str) -> int:
        """Bytes of the arena, after the memory of all functions is planned."""
        for callee in self._callees_first(function):
            self._plan(callee)
        return _arena_bytes(self._entries)

    def _callees_first(self, root: str) -> list[str]:
        """Functions reachable from ``root``, callees before callers; kernels are noted aside."""
        called: dict[str, list[str]] = {}
        waiting = [root]
        while waiting:
            name = waiting.pop()
            if name in called:
                continue
            names = callees(self._program(name))
            called[name] = [callee for callee in names if callee not in self._kernels]
            waiting += reversed(called[name])
        try:
            return list(TopologicalSorter(called).static_order())
        except CycleError as error:
            name = error.args[1][0]
            raise CodegenError(
                f"@{name} calls itself", fix="C is generated without recursion"
            ) from error

    def _program(self, name: str) -> Program:
        """The steps of a function, kernels joined; kernels are noted aside."""
        plain = program_of(self._mod, name)
        kernels = {
            callee: function
            for callee in callees(plain)
            if isinstance(function := self._mod[callee], PrimFunc)
        }
        program, made = joined(plain, kernels)
        program, reading = picked(program, kernels | made)
        found = with_room(_with_unpacking(program), kernels | made | reading)
        self._kernels = found | self._kernels
        self._programs[name] = program
        return program

    def _plan(self, function: str) -> None:
        plain = self._programs[function]
        for when, program in (("run", _with_unpacking(plain)), ("load", plain)):
            self._placed[when][function] = place(program, self._kernels, self._placed[when])
        placement = self._placed[self._unpack][function]
        for step, taken in zip(placement.program.steps, placement.shared):
            self._shared[step.callee] |= {taken} - {""}
        word = "run" if function == "main" else function
        symbol = self._names.fresh(f"{self._name}_{word}")
        scope = Names(["arena", "t"])
        outputs = ["output"] if len(program.results) == 1 else []
        outputs = outputs or [f"output{n}" for n in range(len(program.results))]
        names = [scope.fresh(value.name) for value in program.params]
        names += [scope.fresh(output) for output in outputs]
        self._entries[function] = Entry(function, symbol, placement, tuple(names))

    def _head(self, entry: Entry) -> str:
        if entry.placement.arena_bytes:
            parameters = [f"{self._name}_arena *arena"]
        else:
            parameters = []
        count = len(entry.params)
        for number, (name, value) in enumerate(zip(entry.names, (*entry.params, *entry.results))):
            const = "const " if number < count else ""
            parameters.append(f"{const}{c_type(value.dtype)} {name}[{max(value.size, 1)}]")
        return head_of(f"void {entry.symbol}", parameters)

    def _kernel_text(self, name: str) -> str:
        func = self._kernels[name]
        symbol = self._symbols[name]
        held = {b.name: self._pool.name_of(a, f"{symbol}_{b.name}") for b, a in func.consts}
        shared = self._shared[name]
        text = kernel_comment(func)
        return kernel_of(func, symbol, held, self._use, shared=shared, comment=text)

    def _entry_text(self, entry: Entry) -> str:
        placement = entry.placement
        where = dict(zip((*entry.params, *entry.results), entry.names))
        read = {value for step in placement.program.steps for value in step.args}
        lines = [f"(void){where[value]};" for value in entry.params if value not in read]
        for number, step in enumerate(placement.program.steps):
            for value in (*step.args, *step.outs):
                if value not in where:
                    where[value] = self._place_of(value, placement, step, number)
            lines += self._step_lines(step, number, placement, where)
        body = "\n".join(f"    {line}" if line else "" for line in lines)
        return f"{self._head(entry)}\n{{\n{body}\n}}\n"

    def _place_of(self, value: Value, placement: Placement, step: Step, number: int) -> str:
        if value.packed is not None:
            return self._pool.packed(*value.packed)
        if value.place == "const":
            assert value.data is not None
            index = next(i for i, arg in enumerate(step.args) if arg is value)
            if placement.program.name == "main":
                word = ""
            else:
                word = placement.program.name
            wanted = f"{word}_step{number}_p{index}".lstrip("_")
            if packed_form(value.data) is None:
                return self._pool.name_of(value.data, wanted)
            if step.callee:
                return self._loaded_name(value.data, wanted)
            return ""
        return _arena_place(value.dtype, placement.offsets[value])

    def _step_lines(
        self, step: Step, number: int, placement: Placement, where: Mapping[Value, str]
    ) -> list[str]:
        made = ", ".join(f"{value.dtype}{list(value.shape)}" for value in step.outs)
        source = f", from {step.comment}" if step.comment else ""
        lines = comment(f"{number}: {made}{source}").splitlines()
        args = [where[value] for value in (*step.args, *step.outs)]
        if not step.callee:
            array = step.args[0].data
            form = None if array is None else packed_form(array)
            if array is not None and form is not None:
                return [*lines, *self._unpack_lines(array, form, args[1])]
            self._use.uses_memcpy = True
            lines.append(f"memcpy({args[1]}, {args[0]}, {step.outs[0].nbytes});")
            return lines
        kernel = self._kernels.get(step.callee)
        if kernel is None:
            callee = self._entries[step.callee]
            first = ["arena"] if callee.placement.arena_bytes else []
            if step.loop is not None:
                temps = placement.temps[number]
                return [*lines, *self._loop_lines(callee.symbol, first, step, args, temps)]
            return [*lines, *call_lines(callee.symbol, [*first, *args])]
        if step.callee not in self._symbols:
            self._symbols[step.callee] = self._names.fresh(step.callee)
        for buffer, offset in zip(kernel.temps, placement.temps[number]):
            args.append(_arena_place(buffer.dtype, offset))
        return [*lines, *call_lines(self._symbols[step.callee], args)]

    def _loop_lines(
        self,
        symbol: str,
        first: Sequence[str],
        step: Step,
        words: Sequence[str],
        temps: Sequence[int],
    ) -> list[str]:
        """A call for each step; states go from the results of one to the operands of the next."""
        loop = step.loop
        assert loop is not None
        states, moving = loop.borders(len(step.outs))
        self._use.uses_memcpy = True
        given = words[: len(step.args)]
        made = words[len(step.args) :]
        following = [_arena_place(v.dtype, at) for v, at in zip(step.states, temps, strict=True)]

        def turn(word: str, value: Value, back: int) -> str:
            place = f"({loop.length - 1} - t)" if back else "t"
            return f"{word} + {place} * {value.size // loop.length}"

        operands = [
            *first,
            *made[:states],
            *map(turn, given[states:], step.args[states:], loop.reverse_inputs),
            *given[moving:],
            *following,
            *map(turn, made[states:], step.outs[states:], loop.reverse_outputs),
        ]

        def moved(targets: Sequence[str], sources: Sequence[str]) -> list[str]:
            return [
                f"memcpy({target}, {source}, {value.nbytes});"
                for target, source, value in zip(targets, sources, step.states)
            ]

        body = [*call_lines(symbol, operands), *moved(made, following)]
        return [
            *moved(made, given),
            f"for (int32_t t = 0; t < {loop.length}; ++t) {{",
            *(f"    {line}" for line in body),
            "}",
        ]

    def _unpack_lines(self, array: Array, form: Form, target: str) -> list[str]:
        dtype = str(array.dtype)
        packed = self._pool.packed(array, form)
        low = int_literal(form.low, dtype)
        signs = -(-len(form.negated) // 8)
        behind = f"{packed} + {signs}" if signs else packed
        facts = [behind, f"{array.size}", f"{form.bits}", f"{form.shift}", low, target]
        if form.bits <= SHORT_BITS:
            operation = "unpack_short"
        else:
            operation = "unpack"
        lines = call_lines(self._use(operation, dtype), facts)
        if form.axis is not None:
            inner = math.prod(array.shape[form.axis + 1 :])
            facts = [packed, f"{array.shape[form.axis]}", f"{inner}", f"{array.size}", target]
            lines += call_lines(self._use("negate_rows", dtype), facts)
        return lines

    def _loaded_name(self, array: Array, wanted: str) -> str:
        key = str(array.dtype), np.ascontiguousarray(array).tobytes()
        if key not in self._loaded:
            self._loaded[key] = self._names.fresh(wanted), array
        return self._loaded[key][0]

    @cached_property
    def _loaded_bytes(self) -> int:
        """Bytes of all packed constants, unpacked."""
        held = {
            (value.dtype, value.data.tobytes())
            for placement in self._placed["load"].values()
            for step in placement.program.steps
            for value in step.args
            if step.callee and value.place == "const" and value.data is not None
            if packed_form(value.data) is not None
        }
        return sum(len(content) for _, content in held)

    def _load_text(self) -> list[str]:
        """Memory for constants that are unpacked once, and the function that does so."""
        if not self._loaded:
            return []
        held = [
            f"static {c_type(str(array.dtype))} {name}[{array.size}];"
            for name, array in self._loaded.values()
        ]
        lines: list[str] = []
        for name, array in self._loaded.values():
            form = packed_form(array)
            assert form is not None
            lines += self._unpack_lines(array, form, name)
        body = "\n".join(f"    {line}" for line in lines)
        return ["\n".join(held) + "\n", f"void {self._name}_load(void)\n{{\n{body}\n}}\n"]

    def _header(self) -> str:
        guard = f"{self._name.upper()}_H"
        size = _arena_bytes(self._entries)
        parts = [comment(self._overview(size))]
        parts.append(f"#ifndef {guard}\n#define {guard}\n\n#include <stdint.h>\n")
        parts.append('#ifdef __cplusplus\nextern "C" {\n#endif\n')
        if size:
            parts.append(self._arena_type(size))
        if self._loaded:
            note = "Unpacks the constants; to be called once, before any other function."
            parts.append(comment(note) + f"void {self._name}_load(void);\n")
        for entry in self._entries.values():
            parts.append(comment(signature(entry)) + self._head(entry) + ";\n")
        parts.append("#ifdef __cplusplus\n}\n#endif\n\n#endif\n")
        return "\n".join(parts)

    def _overview(self, size: int) -> str:
        libm = " -lm" if self._use.uses_libm else ""
        return (
            f"{self._name}.h: a quantized network as C99.\n\n"
            f"    cc -std=c99 -O3 {self._name}.c main.c -o {self._name}{libm}\n\n"
            f"{len(self._kernels)} kernels, {self._pool.nbytes} bytes of constants, "
            f"an arena of {size} bytes.\n"
            + self._memory()
            + "Nothing is allocated and no state is kept: calls with arenas of their own may\n"
            "run at the same time. An arena need not be cleared between calls."
            + (f"\n\n{self._remark}" if self._remark else "")
        )

    def _memory(self) -> str:
        """Describe the memory of packed constants when they are unpacked at either time."""
        loaded = self._loaded_bytes
        if not loaded:
            return ""
        run, load = (
            max(rounded(one.arena_bytes) for one in self._placed[when].values())
            for when in ("run", "load")
        )
        return (
            f"Constants are packed. Unpacked in every run (--unpack run), the module takes {run}\n"
            f"bytes of RAM; unpacked once (--unpack load), {load + loaded}, and less time. This "
            f"file: {self._unpack}.\n"
        )

    def _arena_type(self, size: int) -> str:
        dtypes = {"uint8"}
        for entry in self._entries.values():
            placement = entry.placement
            dtypes |= {value.dtype for value in placement.offsets}
            for step in placement.program.steps:
                dtypes |= {value.dtype for value in step.states}  # the next ones lie there
                kernel = self._kernels.get(step.callee)
                dtypes |= {buffer.dtype for buffer in kernel.temps} if kernel is not None else set()
        members = {suffix(d): f"{c_type(d)} {suffix(d)}" for d in dtypes}
        upper = self._name.upper()
        lines = [f"#define {upper}_ARENA_BYTES {size}", "", "typedef union {"]
        for key in sorted(members, key=lambda k: (int(k[1:]), k)):
            width = int(key[1:]) // 8
            count = f"{upper}_ARENA_BYTES" + (f" / {width}" if width > 1 else "")
            lines.append(f"    {members[key]}[{count}];")
        return "\n".join([*lines, f"}} {self._name}_arena;"]) + "\n"


def _arena_bytes(entries: Mapping[str, Entry]) -> int:
    return max((rounded(e.placement.arena_bytes) for e in entries.values()), default=0)


def _with_unpacking(program: Program) -> Program:
    """The program with a step for each packed constant that a step reads, in front of it."""
    steps: list[Step] = []
    for step in program.steps:
        made = {
            arg: Value(arg.dtype, arg.shape, "computed", arg.data)
            for arg in step.args
            if step.callee and arg.place == "const" and arg.data is not None
            if packed_form(arg.data) is not None
        }
        steps += [Step("", (arg,), (copy,), "packed constants") for arg, copy in made.items()]
        steps.append(replace(step, args=tuple(made.get(arg, arg) for arg in step.args)))
    return replace(program, steps=steps)


def _arena_place(dtype: str, offset: int) -> str:
    index = offset // np.dtype(dtype).itemsize
    return f"arena->{suffix(dtype)}" + (f" + {index}" if index else "")
