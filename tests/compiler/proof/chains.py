"""Random modules of several inputs and chains: proved ones are exact, and equal in every form.

Each module has one to three inputs, and chains of operators on them that share constants. Constants
stand where rules are likely to be wrong: entries of tables and addends at the ends of their dtype,
factors of both signs and 0, shifts at their limits, float limits next to what float16 holds.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CompilerError
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.text.parser import parse
from compiler.pipeline import C_LOWERING
from compiler.proof.derive import derive_static
from compiler.proof.replay import c_flags, replay
from compiler.proof.steps import built_in_c
from tests.compiler.proof.exact_integers import Unsupported, ends
from tests.compiler.proof.forged import contradiction

Shape = tuple[int, ...]
Rng = np.random.Generator
WIDE = ("int32", "int64")


@dataclass(frozen=True)
class Value:
    """A value of the core: its name, shape and dtype."""

    name: str
    shape: Shape
    dtype: str

    @property
    def type(self) -> str:
        return f"Tensor[({', '.join(map(str, self.shape))}), {self.dtype}]"


@dataclass
class Core:
    """The body of @quantized_main as it grows."""

    rng: Rng
    values: list[Value]
    lines: list[str] = field(default_factory=list)
    constants: list[NDArray[Any]] = field(default_factory=list)

    def pick(self, *choices: Any) -> Any:
        return choices[int(self.rng.integers(len(choices)))]

    def some(self, *dtypes: str, rank: int | None = None) -> Value | None:
        """A value of one of the dtypes; the latest is as likely as all others."""
        fit = [
            v
            for v in self.values
            if (not dtypes or v.dtype in dtypes) and (rank is None or len(v.shape) == rank)
        ]
        if not fit:
            return None
        return fit[-1] if self.rng.random() < 0.5 else self.pick(*fit)

    def constant(self, array: Any, dtype: str) -> str:
        """The text of a new constant, or of one that is there already."""
        made = np.asarray(array, dtype)
        same = [
            n
            for n, old in enumerate(self.constants)
            if old.dtype == made.dtype and old.shape == made.shape
        ]
        if same and self.rng.random() < 0.3:
            return f"meta[relay.Constant][{self.pick(*same)}]"
        self.constants.append(made)
        return f"meta[relay.Constant][{len(self.constants) - 1}]"

    def edge(self, dtype: str, size: Shape) -> NDArray[Any]:
        """Numbers at the ends of a dtype, near halves of them, and near 0."""
        low, high = ends(dtype)
        edges = [low, low + 1, low // 2, -1 if low else 1, 0, 1, high // 2, high // 2 + 1]
        edges += [high - 1, high]
        small = [max(low, -3), 0, 1, 2, 3]
        chosen = edges if self.rng.random() < 0.3 else small
        return np.array([self.pick(*chosen) for _ in range(int(np.prod(size)))], dtype).reshape(
            size
        )

    def let(self, text: str, shape: Shape, dtype: str) -> None:
        """One more value; a variable of a let, or a number."""
        bound = self.rng.random() < 0.2 and not any(v.name.startswith("%n") for v in self.values)
        name = f"%{len(self.lines)}" if not bound else f"%n{len(self.lines)}"
        self.lines.append(f"let {name} = {text};" if name[1] == "n" else f"{name} = {text};")
        self.values.append(Value(name, shape, dtype))


def _narrowed(core: Core) -> None:
    """A clip, or none, and a cast to another dtype."""
    value = core.some()
    assert value is not None
    dtype = core.pick("int8", "uint8", "int16", "int32", "int64")
    low, high = ends(dtype)
    text = value.name
    if core.rng.random() < 0.8:
        low, high = max(low, -(1 << 31)), min(high, 1 << 31)
        # Limits that meet make a constant.
        low, high = (3, 3) if core.rng.random() < 0.15 else (low, high - core.pick(0, 1))
        text = f"clip({text}, a_min={low}f, a_max={high}f)"
    core.let(f'cast({text}, dtype="{dtype}")', value.shape, dtype)


def _scaled_per_axis(core: Core) -> None:
    value = core.some("int32", "int64", "int16")
    if value is None:
        return
    axis = int(core.rng.integers(len(value.shape)))
    count = value.shape[axis]
    sign = core.rng.choice([-1, 0, 1, 1], count)
    many = core.rng.integers(1 << 30, 1 << 31, count) * sign
    many[core.rng.random(count) < 0.2] = 1 << 30
    shifts = core.rng.integers(core.pick(-33, -8), core.pick(1, 3), count)
    first, second = core.constant(many, "int32"), core.constant(shifts, "int32")
    text = f"fixed_point_multiply_per_axis({value.name}, {first}, {second}, axis={axis})"
    core.let(text, value.shape, value.dtype)


def _scaled(core: Core) -> None:
    value = core.some("int32", "int64", "int16", "int8")
    if value is None:
        return
    m = core.pick(1 << 30, (1 << 31) - 1, int(core.rng.integers(1 << 30, 1 << 31)), 0)
    e = int(core.rng.integers(-33, 3))
    core.let(
        f"fixed_point_multiply({value.name}, multiplier={m}, shift={e})", value.shape, value.dtype
    )


def _shifted(core: Core) -> None:
    value = core.some("int8", "int16", "int32", "int64")
    if value is None:
        return
    name = core.pick("left_shift", "right_shift", "right_shift")
    count = np.asarray(core.pick(0, 1, 2, 7, 8, 15, 31), value.dtype)
    core.let(f"{name}({value.name}, {core.constant(count, value.dtype)})", value.shape, value.dtype)


def _with_constant(core: Core) -> None:
    value = core.some()
    assert value is not None
    shape = core.pick((), value.shape[-1:], (1,) * len(value.shape))
    other = core.constant(core.edge(value.dtype, shape), value.dtype)
    name = core.pick("add", "subtract", "multiply", "maximum", "minimum")
    left, right = (value.name, other) if core.rng.random() < 0.7 else (other, value.name)
    core.let(f"{name}({left}, {right})", value.shape, value.dtype)


def _of_two(core: Core) -> None:
    value = core.some()
    assert value is not None
    same = [v for v in core.values if (v.shape, v.dtype) == (value.shape, value.dtype)]
    other = core.pick(*same)
    name = core.pick("add", "subtract", "multiply", "maximum", "minimum", "where")
    text = f"{name}({value.name}, {other.name})"
    if name == "where":
        text = f"where(less({value.name}, {other.name}), {other.name}, {value.name})"
        core.let(f"less({value.name}, {other.name})", value.shape, "bool")
        condition = core.values.pop()
        text = f"where({condition.name}, {other.name}, {value.name})"
    core.let(text, value.shape, value.dtype)


def _joined(core: Core) -> None:
    """A concatenate of values with other ranges, constants among them."""
    value = core.some()
    assert value is not None
    axis = int(core.rng.integers(1, len(value.shape))) if len(value.shape) > 1 else 0
    rest = (*value.shape[:axis], *value.shape[axis + 1 :])
    fit = [
        v
        for v in core.values
        if v.dtype == value.dtype
        and len(v.shape) == len(value.shape)
        and (*v.shape[:axis], *v.shape[axis + 1 :]) == rest
    ]
    parts = [value, core.pick(*fit)]
    names, size = [p.name for p in parts], sum(p.shape[axis] for p in parts)
    if core.rng.random() < 0.4:
        shape = (*value.shape[:axis], 1, *value.shape[axis + 1 :])
        names.insert(core.pick(0, 1, 2), core.constant(core.edge(value.dtype, shape), value.dtype))
        size += 1
    if size > 8:
        return
    shape = (*value.shape[:axis], size, *value.shape[axis + 1 :])
    core.let(f"concatenate(({', '.join(names)}), axis={axis})", shape, value.dtype)


def _looked_up(core: Core) -> None:
    dtype = core.pick("int8", "uint8", "int16", "int32", "int64")
    if core.rng.random() < 0.5:
        value = core.some("int8", "uint8")
        if value is None:
            return
        table = core.constant(core.edge(dtype, (core.pick(1, 5, 128, 255, 256),)), dtype)
        core.let(f"lookup({value.name}, {table})", value.shape, dtype)
        return
    value = core.some("int8", "uint8", "int16", "int32", "int64")
    if value is None:
        return
    table = core.constant(core.edge(dtype, (core.pick(1, 2, 9),)), dtype)
    core.let(f"take({table}, {value.name}, axis={core.pick('0', 'None')})", value.shape, dtype)


def _reduced(core: Core) -> None:
    value = core.some(*core.pick(("int64", "int32"), ("int8", "int16", "uint8", "int32")))
    if value is None or len(value.shape) < 2:
        return
    axis = int(core.rng.integers(1, len(value.shape)))
    name = core.pick("argmax", "argmin", "max", "min", "sum")
    keep = len(value.shape) == 2 or core.rng.random() < 0.5
    shape = tuple(1 if n == axis else s for n, s in enumerate(value.shape) if keep or n != axis)
    more, dtype = "", value.dtype
    if name in ("argmax", "argmin"):
        dtype = core.pick("int32", "int64")
        last = core.pick("True", "False")
        more = f', dtype="{dtype}", select_last_index={last}'
    text = f"{name}({value.name}, axis=[{axis}], keepdims={keep}{more})"
    core.let(text, shape, dtype)


def _pooled(core: Core) -> None:
    value = core.some(rank=4)
    if value is None or value.shape[2] < 3 or value.shape[3] < 3:
        return
    pad = core.pick([0, 0, 0, 0], [1, 1, 1, 1], [0, 1, 1, 0])
    stride = core.pick(1, 2)
    sizes = [(value.shape[2 + n] + pad[n] + pad[n + 2] - 2) // stride + 1 for n in range(2)]
    steps = [stride, stride]
    text = f"nn.max_pool2d({value.name}, pool_size=[2, 2], strides={steps}, padding={pad})"
    core.let(text, (*value.shape[:2], *sizes), value.dtype)


def _convolved(core: Core) -> None:
    """Dense and grouped convolutions with a requantization right behind them."""
    value = core.some("int8", "uint8", "int16", rank=4)
    if value is None:
        return
    channels = value.shape[1]
    groups = core.pick(1, channels)
    made = groups if groups > 1 else core.pick(1, 4, 5)
    kernel = core.pick(1, 2, 3)
    stride, dilation = core.pick(1, 2), core.pick(1, 1, 2)
    pad = core.pick([0, 0, 0, 0], [1, 1, 1, 1], [1, 0, 0, 2])
    reach = (kernel - 1) * dilation + 1
    sizes = [(value.shape[2 + n] + pad[n] + pad[n + 2] - reach) // stride + 1 for n in range(2)]
    if min(sizes) < 1:
        return
    dtype = core.pick("int8", "int8", "int16", "uint8")
    weight = core.edge(dtype, (made, channels // groups, kernel, kernel))
    text = (
        f"nn.conv2d({value.name}, {core.constant(weight, dtype)}, strides=[{stride}, {stride}], "
        f"padding={pad}, dilation=[{dilation}, {dilation}], groups={groups}, channels={made}, "
        f'kernel_size=[{kernel}, {kernel}], out_dtype="int32")'
    )
    core.let(text, (value.shape[0], made, *sizes), "int32")
    if core.rng.random() < 0.7:
        _requantized(core, made)


def _requantized(core: Core, count: int) -> None:
    """Factors of the channels, a zero point, a relu or none, a clip and a cast."""
    value = core.values[-1]
    signs = core.rng.choice([-1, 0, 1, 1, 1], count)
    factors = core.constant(core.rng.integers(1 << 30, 1 << 31, count) * signs, "int32")
    shifts = core.constant(core.rng.integers(-12, 1, count), "int32")
    text = f"fixed_point_multiply_per_axis({value.name}, {factors}, {shifts}, axis=1)"
    core.let(text, value.shape, "int32")
    if core.rng.random() < 0.5:
        core.let(f"nn.relu({core.values[-1].name})", value.shape, "int32")
    zero = core.constant(core.pick(-128, -3, 0, 7, 128), "int32")
    core.let(f"add({core.values[-1].name}, {zero})", value.shape, "int32")
    dtype = core.pick("int8", "uint8", "int16")
    low, high = ends(dtype)
    core.let(f"clip({core.values[-1].name}, a_min={low}f, a_max={high}f)", value.shape, "int32")
    core.let(f'cast({core.values[-1].name}, dtype="{dtype}")', value.shape, dtype)


def _multiplied(core: Core) -> None:
    value = core.some("int8", "uint8", "int16", rank=2)
    if value is None:
        return
    count = core.pick(1, 4, 5)
    dtype = core.pick(value.dtype, "int8", "int16")
    weight = core.constant(core.edge(dtype, (count, value.shape[1])), dtype)
    out = core.pick("int32", "int32", "int64")
    text = f'nn.dense({value.name}, {weight}, out_dtype="{out}")'
    core.let(text, (value.shape[0], count), out)
    if out == "int32" and core.rng.random() < 0.6:
        _requantized(core, count)


def _moved(core: Core) -> None:
    value = core.some()
    assert value is not None
    if len(value.shape) == 4 and core.rng.random() < 0.5:
        shape = (value.shape[0], int(np.prod(value.shape[1:])))
        core.let(f"nn.batch_flatten({value.name})", shape, value.dtype)
        return
    axes = [0, *(1 + core.rng.permutation(len(value.shape) - 1)).tolist()]
    shape = tuple(value.shape[a] for a in axes)
    core.let(f"transpose({value.name}, axes={axes})", shape, value.dtype)


GROW = (
    _narrowed, _narrowed, _scaled_per_axis, _scaled_per_axis, _scaled, _shifted, _with_constant,
    _with_constant, _of_two, _joined, _joined, _looked_up, _looked_up, _reduced, _reduced, _pooled,
    _convolved, _convolved, _multiplied, _multiplied, _moved,
)  # fmt: skip


def module(rng: Rng) -> IRModule:
    """A typed module.

    Raises:
        CompilerError: it has no type.
    """
    core = Core(rng, [])
    count = int(rng.integers(1, 4))
    made, prefix, given = [], [], []
    for n in range(count):
        shape: Shape = core.pick((1, 5), (1, 4, 4, 4), (2, 3))
        source = core.pick("float32", "float32", "float16")
        dtype = core.pick("int8", "int8", "uint8", "int16", "int32")
        top = core.pick(1, 100, 127, 255, 2047, 2049, 32767, 65504, 1 << 20)
        top = min(top, ends(dtype)[1] - core.pick(0, 1))
        low = 0 if dtype == "uint8" else -core.pick(top, 1, 0)
        unit = "f16" if source == "float16" else "f"
        factor = core.pick("0.5", "1", "16", "1024")
        prefix += [
            f"%{4 * n} = multiply(%x{n}, {factor}{unit});",
            f"%{4 * n + 1} = round(%{4 * n});",
            f"%{4 * n + 2} = clip(%{4 * n + 1}, a_min={low}f, a_max={top}f);",
            f'%{4 * n + 3} = cast(%{4 * n + 2}, dtype="{dtype}");',
        ]
        made.append(Value(f"%x{n}", shape, source))
        given.append(Value(f"%q{n}", shape, dtype))
    core.values = list(given)
    for _ in range(int(rng.integers(2, 9))):
        core.pick(*GROW)(core)
    grown = [v for v in core.values if v not in given] or list(given)
    results = [grown[-1], *(core.pick(*grown) for _ in range(core.pick(0, 1, 2)))]
    results = list(dict.fromkeys(results))
    many = ", ".join(v.name for v in results)
    casts = [f'multiply(cast(%r{n}, dtype="float32"), 0.25f)' for n in range(len(results))]
    passed = rng.random() < 0.3

    def params(values: Sequence[Value]) -> str:
        return ", ".join(f"{v.name}: {v.type}" for v in values)

    taken = [Value(f"%r{n}", v.shape, v.dtype) for n, v in enumerate(results)]
    calls = ", ".join(f"%0.{n}" for n in range(count))
    back = ", ".join(f"%1.{n}" for n in range(len(results)))
    held = [
        {
            "dtype": str(c.dtype),
            "shape": list(c.shape),
            "b64": base64.b64encode(c.tobytes()).decode(),
        }
        for c in core.constants
    ]
    newline = "\n  "
    text = f"""#[version = "0.0.5"]
def @quantize_inputs({params(made)}) {{
  {newline.join(prefix)}
  ({"".join(f"%{4 * n + 3}, " for n in range(count))})
}}
def @quantized_main({params(given)}) {{
  {newline.join([*core.lines, f"({many},)"])}
}}
def @dequantize_outputs({params(taken)}) {{
  ({", ".join(casts)},)
}}
def @main({params(made)}) {{
  %0 = @quantize_inputs({", ".join(v.name for v in made)});
  %1 = @quantized_main({calls});
  %2 = @dequantize_outputs({back});
  ({"".join(f"%2.{n}, " for n in range(len(results)))}{"%x0" if passed else ""})
}}
"""
    if held:
        text += f"\n#[metadata]\n{json.dumps({'relay.Constant': held})}\n"
    mod = infer_module(parse(text))
    return mod.with_attr("passthrough", {str(len(results)): "input:x0"}) if passed else mod


@dataclass
class Found:
    """What a search met.

    Attributes:
        typed, proved, exact: modules with a type, proved ones, those that exact integers know.
        missed: proved though exact integers contradict, or with other bits in one of the forms.
    """

    typed: int = 0
    proved: int = 0
    exact: int = 0
    missed: list[str] = field(default_factory=list)


def search(seed: int, indices: Iterator[int] | range, compiled: bool) -> Found:
    """Judge the modules of a seed.

    Args:
        compiled: also run each proved module as C.
    """
    found = Found()
    for index in indices:
        rng = np.random.default_rng([seed, index])
        try:
            mod = module(rng)
        except CompilerError:
            continue
        found.typed += 1
        proof = derive_static(mod)
        if not proof.holds:
            continue
        found.proved += 1
        place = f"seed {seed}, index {index}"
        try:
            told = contradiction(mod, proof)
            found.exact += 1
        except Unsupported:
            told = None
        if told is not None:
            found.missed.append(f"{place}: {told}")
        ranges = [(low, high) for _, low, high in proof.inputs]
        _, findings = replay(
            mod, ranges, (), rng, built_in_c(mod, c_flags(mod), C_LOWERING) if compiled else None
        )
        found.missed += [f"{place}: {finding}" for finding in findings]
    return found
