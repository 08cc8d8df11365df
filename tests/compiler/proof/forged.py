"""Random modules with one change each that a proof has to notice, and whether one was missed.

A module is falsely proved where derive_static holds and exact evaluation, at the ends of the inputs
of @main and of the stated ranges of @quantized_main, leaves a dtype or a stated bound, or @main
returns what dequantize_outputs did not compute.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from fractions import Fraction
from itertools import product
from math import inf, nan
from typing import Any

import numpy as np

from compiler.errors import CompilerError
from compiler.ir.expr import Call, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.text.parser import parse
from compiler.ir.ty import is_float
from compiler.proof.derive import Proof, derive_static
from tests.compiler.proof.exact_integers import (
    MOST_ELEMENTS,
    Escape,
    Evaluator,
    Tensor,
    Unsupported,
    ends,
)

WIDTH = 3
MOST_CORNERS = 64
RANDOM_CORNERS = 4
TEXT = """#[version = "0.0.5"]
def @quantize_inputs(%x: Tensor[(1, 3), GIVEN]) {
  PREFIX
}
def @quantized_main(%q: Tensor[(1, 3), Q]) {
  CORE
}
def @dequantize_outputs(%r: Tensor[(1, OUT), R]) {
  SUFFIX
}
def @main(%x: Tensor[(1, 3), GIVEN]) {
  %0 = @quantize_inputs(%x);
  %1 = @quantized_main(%0.0);
  %2 = @dequantize_outputs(%1);
  %2
}
"""
Parts = dict[str, Any]
Forge = Callable[[np.random.Generator], Parts]
CLASSES: dict[str, Forge] = {}


def forged(name: str) -> Callable[[Forge], Forge]:
    """Register one class of changes."""

    def add(function: Forge) -> Forge:
        CLASSES[name] = function
        return function

    return add


def near(rng: np.random.Generator, first: int, last: int) -> int:
    """A number near a power of two, of either parity."""
    return int(2 ** rng.integers(first, last + 1)) + int(rng.integers(-200, 200))


def _pick(rng: np.random.Generator, *choices: Any) -> Any:
    return choices[rng.integers(len(choices))]


@forged("wiring of @main")
def wiring(rng: np.random.Generator) -> Parts:
    """Raw integers for the core, or inputs for the caller; the core overflows on raw integers."""
    limit = int(rng.integers(2, 120))
    factor = ((1 << 31) - 1) // (limit + int(rng.integers(0, 3)))
    main = _pick(
        rng,
        "%0 = (@quantize_inputs(%x), %x); %1 = @quantized_main(%0.1); @dequantize_outputs(%1)",
        "let %a = @quantize_inputs(%x); %1 = @quantized_main(%x); @dequantize_outputs(%1)",
        "%0 = @quantize_inputs(%x); %1 = @quantized_main(%0.0); (@dequantize_outputs(%1), %x).1",
        "%0 = @quantize_inputs(%x); %1 = @quantized_main(%0.0); (@dequantize_outputs(%1), %1)",
        "%0 = @quantize_inputs(%x); %1 = @quantized_main(%0.0); @dequantize_outputs(%1)",
    )
    return {
        "GIVEN": "int32",
        "PREFIX": f"""%0 = clip(cast(%x, dtype="float32"), a_min=-{limit}f, a_max={limit}f);
  (cast(%0, dtype="int32"),)""",
        "CORE": f"multiply(%q, {factor})",
        "MAIN": main.replace("; ", ";\n  "),
    }


def _constants(rng: np.random.Generator, given: str, first: int, last: int) -> Parts:
    """A limit or a sum that the float dtype may not hold; the core has room for the exact one."""
    number = near(rng, first, last)
    low, high, then = -100, 100, "%1"
    if rng.random() < 0.5:
        low, high = 0, number
    else:
        then = f"add(%1, {number}f{given[5:] if given != 'float32' else ''})"
    reach = high if then == "%1" else high + number
    room = (1 << 31) - 1 - reach - int(rng.integers(0, 3))
    return {
        "GIVEN": given,
        "PREFIX": f"""%0 = round(%x);
  %1 = clip(%0, a_min={low}f, a_max={high}f);
  (cast({then}, dtype="int32"),)""",
        "CORE": f"add(%q, {max(room, 0)})",
    }


@forged("constants in float32")
def constants32(rng: np.random.Generator) -> Parts:
    """Beyond 2^24 float32 holds no odd number, beyond 2^30 multiples of 128 only."""
    return _constants(rng, "float32", 23, 30)


@forged("constants in float16")
def constants16(rng: np.random.Generator) -> Parts:
    """Beyond 2^11 float16 holds no odd number, beyond 65504 nothing but infinity."""
    return _constants(rng, "float16", 11, 16)


@forged("dtypes of weights and sums")
def dtypes(rng: np.random.Generator) -> Parts:
    """Weights near the ends of their dtype, whose sums may wrap."""
    dtype = _pick(rng, "int8", "int16", "int32", "int64", "uint8", "uint64")
    out = _pick(rng, "int16", "int32", "int64", "uint64")
    low, high = ends(dtype)
    edge = [high, low, high // 2 + 1, low // 2, high // 4 + 1, low // 4, 0, 1]
    numbers = [edge[i] for i in rng.integers(len(edge), size=2 * WIDTH)]
    weight = np.array(numbers, dtype).reshape(2, WIDTH)
    limit = _pick(rng, 1, 2, 3, 127)
    given = "int8" if out[0] != "u" else "uint8"
    least = 0 if given == "uint8" else -limit
    return {
        "PREFIX": f"""%0 = clip(round(%x), a_min={least}f, a_max={limit}f);
  (cast(%0, dtype="{given}"),)""",
        "Q": given,
        "CORE": f'nn.dense(%q, meta[relay.Constant][0], out_dtype="{out}")',
        "OUT": 2,
        "R": out,
        "tensors": {"k0": weight},
    }


@forged("shifts")
def shifts(rng: np.random.Generator) -> Parts:
    """Shifts in the core and around it, and multipliers of both signs with their shifts."""
    count, limit = int(rng.integers(0, 40)), int(rng.integers(1, 1 << 12))
    parts: Parts = {
        "PREFIX": f"""%0 = clip(round(%x), a_min=-{limit}f, a_max={limit}f);
  (cast(%0, dtype="int32"),)"""
    }
    kind = rng.integers(4)
    if kind == 0:
        return {**parts, "SUFFIX": f'cast(left_shift(%r, {count}), dtype="float32")'}
    if kind == 1:
        return {**parts, "CORE": f"left_shift(%q, {count})"}
    if kind == 2:
        m = int(rng.integers(1 << 30, 1 << 31))
        e = int(rng.integers(-40, 25))
        return {**parts, "CORE": f"fixed_point_multiply(%q, multiplier={m}, shift={e})"}
    m = rng.integers(-(1 << 31), 1 << 31, WIDTH).astype("int32")
    e = rng.integers(-33, 3, WIDTH).astype("int32")
    scale = int(rng.integers(1, 1 << 33))
    core = f"""%0 = multiply(cast(%q, dtype="int64"), {scale}i64);
  fixed_point_multiply_per_axis(%0, meta[relay.Constant][0], meta[relay.Constant][1], axis=1)"""
    return {**parts, "CORE": core, "R": "int64", "tensors": {"k0": m, "k1": e}}


@forged("clips left out")
def clips(rng: np.random.Generator) -> Parts:
    """A cast to fewer bits, in the core or in the conversion, behind a clip or behind none."""
    narrow = _pick(rng, "int8", "int16", "uint8")
    low, high = ends(narrow)
    limit = int(rng.integers(1, 1 << 17))
    clip = "%1" if rng.random() < 0.7 else f"clip(%1, a_min={low}f, a_max={high}f)"
    rows = f'%1 = cast(clip(round(%x), a_min=-{limit}f, a_max={limit}f), dtype="int32");'
    if rng.random() < 0.5:
        prefix = f'{rows}\n  %2 = {clip};\n  (cast(%2, dtype="{narrow}"),)'
        return {"PREFIX": prefix, "Q": narrow, "CORE": 'cast(%q, dtype="int32")'}
    core = f'%1 = add(%q, {int(rng.integers(-200, 200))});\n  cast({clip}, dtype="{narrow}")'
    return {"PREFIX": f"{rows}\n  (%1,)", "CORE": core, "R": narrow}


def build(parts: Parts) -> IRModule:
    """The typed module of the parts; what is not given is plain.

    Raises:
        CompilerError: it has no type.
    """
    plain = {
        "PREFIX": '(cast(clip(round(%x), a_min=-127f, a_max=127f), dtype="int32"),)',
        "CORE": "%q",
        "SUFFIX": 'cast(%r, dtype="float32")',
        "GIVEN": "float32",
        "OUT": WIDTH,
        "Q": "int32",
        "R": "int32",
    }
    values = {**plain, **parts}
    tensors = values.pop("tensors", {})
    source = TEXT
    body = values.pop("MAIN", None)
    if body is not None:
        source = source[: source.index("  %0 = @quantize_inputs")] + f"  {body}\n}}\n"
    for key in ("PREFIX", "CORE", "SUFFIX", "GIVEN", "OUT"):
        source = source.replace(key, str(values[key]))
    source = source.replace(", Q]", f", {values['Q']}]").replace(", R]", f", {values['R']}]")
    if tensors:
        places = ", ".join(f'{{"npz": "{name}"}}' for name in tensors)
        source += f'\n#[metadata]\n{{"relay.Constant": [{places}]}}\n'
    return infer_module(parse(source, external_data=tensors or None))


def falsely_proved(mod: IRModule) -> str | None:
    """What contradicts the proof of a module; None where it is refuted, or right."""
    proof = derive_static(mod)
    if not proof.holds:
        return None
    return contradiction(mod, proof)


def contradiction(mod: IRModule, proof: Proof) -> str | None:
    """The first number at the ends of the inputs that the proof excludes.

    Raises:
        Unsupported: the module holds what ``exact_integers`` does not compute.
    """
    stated = [(v.op, v.low, v.high) for v in proof.values if v.op]
    given = {name: (low, high) for name, low, high in proof.inputs}
    main, core = mod["main"].params, mod["quantized_main"].params
    declared = mod.attrs.get("passthrough", {})
    try:
        for args in _corners(main, [_main_ends(param) for param in main]):
            result = _Checked(mod, stated, given).run("main", args)
            for number, one in enumerate(result if isinstance(result, list) else [result]):
                if not one.computed and str(number) not in declared:
                    return "@main returns what dequantize_outputs did not compute"
        for args in _corners(core, [given[param.name_hint] for param in core]):
            _Checked(mod, stated, given).run("quantized_main", args)
    except Escape as error:
        return str(error)
    return None


def _corners(params: Sequence[Var], ends_of: Sequence[Sequence[Any]]) -> Iterator[list[Tensor]]:
    """Every element at one of its ends; of many elements all at one end, mixed, and at random."""
    shapes = [param.tensor_type.concrete_shape for param in params]
    sizes = [math.prod(shape) for shape in shapes]
    if sum(sizes) > MOST_ELEMENTS:
        raise Unsupported(f"inputs of {sum(sizes)} elements")
    rows: Iterable[Sequence[Any]]
    of_each = [ends for ends, size in zip(ends_of, sizes) for _ in range(size)]
    if math.prod(len(ends) for ends in of_each) <= MOST_CORNERS:
        rows = product(*of_each)
    else:
        rng = np.random.default_rng(len(of_each))
        rows = [[e[min(k, len(e) - 1)] for e in of_each] for k in range(max(map(len, ends_of)))]
        rows += [[e[i % 2] for i, e in enumerate(of_each)]]
        rows += [[e[rng.integers(len(e))] for e in of_each] for _ in range(RANDOM_CORNERS)]
    for row in rows:
        parts = np.split(np.array(list(row), object), np.cumsum(sizes)[:-1])
        yield [
            Tensor(part.reshape(shape), param.tensor_type.dtype)
            for part, shape, param in zip(parts, shapes, params)
        ]


class _Checked(Evaluator):
    """Compares every value of the core, and its inputs, with the stated bounds."""

    def __init__(
        self,
        mod: IRModule,
        stated: list[tuple[str, int, int]],
        given: dict[str, tuple[int, int]],
    ) -> None:
        super().__init__(mod, self._compare)
        self._stated, self._given, self._count = stated, given, 0

    def run(self, name: str, args: Any) -> Any:
        if name == "quantized_main":
            for param, arg in zip(self.mod[name].params, args):
                _inside(arg, self._given[param.name_hint], f"%{param.name_hint}")
        return super().run(name, args)

    def _compare(self, call: Call, result: Tensor) -> None:
        op, *bounds = self._stated[self._count]
        assert op == call.op.name, f"%{self._count} is {call.op}, the proof says {op}"  # type: ignore[union-attr]
        _inside(result, (bounds[0], bounds[1]), f"%{self._count} {op}")
        self._count += 1


def _inside(value: Tensor, bounds: tuple[int, int], what: str) -> None:
    if is_float(value.dtype):
        return
    for number in value.array.reshape(-1):
        if not bounds[0] <= number <= bounds[1]:
            raise Escape(f"{what}: {number} is outside the stated {bounds}")


def _main_ends(param: Var) -> list[Any]:
    dtype = param.tensor_type.dtype
    return [-inf, inf, nan, Fraction(1, 3)] if is_float(dtype) else list(ends(dtype))


def search(name: str, seed: int, count: int) -> tuple[int, int, list[str]]:
    """(modules that are typed, proved ones, contradictions) of one class."""
    typed = proved = 0
    missed: list[str] = []
    for index in range(count):
        rng = np.random.default_rng([seed, *name.encode(), index])
        try:
            mod = build(CLASSES[name](rng))
        except CompilerError:
            continue
        typed += 1
        proof = derive_static(mod)
        if not proof.holds:
            continue
        proved += 1
        found = contradiction(mod, proof)
        if found is not None:
            missed.append(f"{name}, seed {seed}, index {index}: {found}")
    return typed, proved, missed
