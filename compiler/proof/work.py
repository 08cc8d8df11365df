"""Add up the work that a module declares, before anything of it runs.

A file of 2 kB can declare a tensor of a terabyte, a product of 10^15 terms, or functions that call
each other 2^60 times. Types and attributes say so without running anything: ``declared_work`` adds
up one run of ``main``; ``check_work`` refuses what does not run once within MAX_CPU_S and
4 times the file and MAX_EXTRA_BYTES; ``replay_inputs`` says how many inputs verifying runs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from compiler.errors import ArtifactError, CompilerError
from compiler.ir.adt import Match, RefCreate, RefRead, RefWrite
from compiler.ir.expr import Call, Constant, Expr, Function, GlobalVar, If, Op, Tuple, TupleGetItem
from compiler.ir.module import IRModule
from compiler.ir.op import OpRule
from compiler.ir.ty import TensorType, bits, tensor_fields
from compiler.ir.walk import nodes_of, post_order
from compiler.ops.lowered.call_lowered import CallLoweredAttrs
from compiler.ops.nn.conv2d import Conv2DTransposeAttrs
from compiler.ops.nn.window import extent
from compiler.ops.rules.product_shape import FQProductShape
from compiler.ops.transform.scan import ScanAttrs

MAX_CPU_S = 60
"""Upper limit of CPU seconds of one run in every form, and of reading, proving and building a
module without weights."""
MAX_EXTRA_BYTES = 4 << 30
BYTES_PER_FILE_BYTE = 4
RUN_S_PER_UNIT = 1.3e-9
"""CPU seconds of one run in every form; two to four times what a network takes."""
RUN_S_PER_STEP = 1e-4
"""To call an operator in every form, however small."""
RUN_S_PER_TURN = 1e-5
"""The same within a loop, which calls nothing but the operators of its body."""
STEP_S = 1e-3
"""CPU seconds of an operator, however small: 0.6 to 1.4 ms to parse, prove, build and compile
it."""
FILE_BYTES_PER_STEP = 512
"""A network with more operators than MAX_CPU_S allows has weights: this many bytes for each."""
MAX_TEXT_BYTES = 8 << 20
"""Upper limit of the bytes of module.relay, which is parsed and typed before work is counted, in
about 0.8 CPU s per MB."""
FILE_BYTES_PER_TEXT_BYTE = 4
"""A network with more text than MAX_TEXT_BYTES has weights: this many bytes for each more."""
REPLAY_CPU_S = 15
"""Upper limit of CPU seconds of all inputs that verifying runs; one of each important kind runs in
any case."""
KINDS = 3
"""Important kinds of inputs: a real one, special floats, and the ends of the core's ranges."""

MAX_INPUTS = 64
"""Largest number of inputs where they take no time: a small module has some 30, four stored samples
included."""

_RUN_STEPS = 12
"""Operators that take as long as a run has to be begun and compared."""
_MOST = 1 << 80
_BRANCHES = (If, Match, RefCreate, RefRead, RefWrite)
_CHARACTERS = 5
"""Characters of C text per byte of a constant: "-127," and the end of a line."""
_STEP_CHARACTERS = 2000
"""Characters of C text per operator, its loops unrolled."""

# Units: what a multiplication of efficientnet_lite0 and its share of the other operators cost in 17
# runs of the reference, 13 of the integer ONNX and 13 of the C: 18 ns of CPU time. The figures are
# measured by tests/benchmarks/bench_work.py and rounded up.
_UNITS = {
    4: (
        "add subtract multiply nn.bias_add maximum minimum clip nn.relu negative abs cast round "
        "equal not_equal less less_equal greater greater_equal bitwise_and "
        "logical_and logical_or logical_xor logical_not zeros ones full arange reverse concatenate "
        "stack split strided_slice broadcast_to nn.pad one_hot max min "
        "prod cumsum nn.global_max_pool2d nn.depth_to_space"
    ),
    9: "sum mean nn.global_avg_pool2d transpose layout_transform argmax argmin",
    16: "where take gather scatter_nd",
    20: "fixed_point_multiply fixed_point_multiply_per_axis left_shift right_shift",
    60: "qnn.requantize",
    48: "lookup",
    110: "nn.integer_softmax nn.integer_standardize",
    # Nothing is computed: a view, or a copy at most.
    1: "reshape squeeze expand_dims nn.batch_flatten copy annotation.stop_fusion",
}
_UNITS_OF = {name: units for units, names in _UNITS.items() for name in names.split()}
_OTHER_UNITS = 36
"""Units of an element that an operator without a figure touches; power and shifts come near it."""
_WIDE = 2
"""Elements of 8 bytes, and floats, take as often as long."""
_SCRATCH = 16
"""Bytes per element of operands and results: executors widen to int64, or make an int64 index."""
_BLOCK = 1 << 18
"""Bytes of an image run of a depthwise convolution, as nn/convolve.py cuts them."""
_TAP_BYTES = 20_000
"""Bytes of a window element, as two nodes of the integer ONNX."""
_INPUT_BYTES = 96
"""Per element of a parameter: inputs of a dozen kinds, and float64 of which they are drawn."""


@dataclass(frozen=True, slots=True)
class Work:
    """Work of one run.

    Attributes:
        macs: multiplications with their additions, or comparisons within windows.
        units: cost of all, in honest multiplications.
        memory: bytes at the fullest moment: constants, live values and temporaries of an operator.
        steps: operators that every form holds.
        calls: operators that one run calls; those of a loop in each of its steps.
        c_text: characters of C that the module becomes, about.
    """

    macs: int = 0
    units: int = 0
    memory: int = 0
    steps: int = 0
    calls: int = 0
    c_text: int = 0

    def plus(self, other: Work) -> Work:
        """The work of both, one after the other; each number is at most _MOST."""
        names = ("macs", "units", "steps", "calls", "c_text")
        sums = {n: min(getattr(self, n) + getattr(other, n), _MOST) for n in names}
        return Work(memory=max(self.memory, other.memory), **sums)

    def repeated(self, times: int) -> Work:
        """The work of a loop whose body this is; a form holds the body once."""
        names = ("macs", "units", "calls")
        return replace(self, **{n: min(getattr(self, n) * times, _MOST) for n in names})


@dataclass(frozen=True, slots=True)
class OpWork:
    """Work of one call: multiplications, units, and bytes of temporaries beside operands and
    results."""

    macs: int
    units: int
    scratch: int = 0


WorkRule = Callable[[Call, Sequence[TensorType], int], OpWork]

FWork: OpRule[WorkRule] = OpRule(
    "FWork", asked_by="proof.work", defined_in="compiler/proof/work.py"
)
"""Operator → its work, of the call, the types of its tensors and its result's elements.

Without a rule an operator touches each element of its operands and results once."""


def _product(macs: int, out: int, types: Sequence[TensorType], calls: int = 0) -> OpWork:
    """A product of 8 bits is one matrix product on BLAS; wider ones are several, or none.

    Args:
        calls: matrix products or numpy operations that it is made of.
    """
    widest = max(bits(ty.dtype) for ty in types)
    per_mac, per_out = (0.25, 8) if widest <= 8 else (10, 40) if widest <= 32 else (50, 60)
    return OpWork(macs, int(per_mac * macs) + per_out * out + 2000 * calls)


def _padded(ty: TensorType, layout: str, padding: Sequence[int]) -> int:
    """Elements of an image with padding around it; 0 without padding, for nothing is copied."""
    if not any(padding):
        return 0
    size = dict(zip(layout, ty.concrete_shape))
    top, left, bottom, right = padding
    return size["N"] * size["C"] * (size["H"] + top + bottom) * (size["W"] + left + right)


def _with_image(made: OpWork, elements: int) -> OpWork:
    """``made`` with an image that is filled and read beside operands and results."""
    scratch = made.scratch + _SCRATCH * elements
    return replace(made, units=made.units + 4 * elements, scratch=scratch)


@FWork.register("nn.conv2d")
def _convolution(call: Call, types: Sequence[TensorType], out: int) -> OpWork:
    attrs: Any = call.attrs
    weight = types[1].concrete_shape
    channels, depth, height, width = (weight[attrs.kernel_layout.index(x)] for x in "OIHW")
    taps = height * width
    terms = math.prod(weight) // max(channels, 1)
    batch = types[0].concrete_shape[attrs.data_layout.index("N")]
    padded = _padded(types[0], attrs.data_layout, attrs.padding)
    if depth == 1 and attrs.groups > 1:
        images = types[0].concrete_shape
        area = math.prod(images[attrs.data_layout.index(x)] for x in "HW")
        runs = -(-channels // max(1, _BLOCK // max(1, 8 * area)))
        made = _product(out * terms, out, types, taps * runs)
        return _with_image(OpWork(made.macs, made.units + 12 * out), padded)
    made = _product(out * terms, out, types, taps + batch * attrs.groups)
    columns = out // max(channels, 1) * attrs.groups * terms
    copied = 0 if taps == 1 and max(attrs.strides) == 1 else columns
    return _with_image(OpWork(made.macs, made.units + 4 * copied, 12 * copied), padded)


@FWork.register("nn.conv2d_transpose")
def _transposed_convolution(call: Call, types: Sequence[TensorType], out: int) -> OpWork:
    """The result is computed whole, and cut by the padding."""
    weight = types[1].concrete_shape
    data = types[0].concrete_shape
    attrs = call.attrs
    assert isinstance(attrs, Conv2DTransposeAttrs)
    rows, columns = (
        (data[attrs.data_layout.index(axis)] - 1) * stride
        + extent(weight[attrs.kernel_layout.index(axis)], dilation)
        for axis, stride, dilation in zip("HW", attrs.strides, attrs.dilation)
    )
    layout = attrs.out_layout or attrs.data_layout
    size = dict(zip(layout, call.tensor_type.concrete_shape))
    whole = size["N"] * size["C"] * rows * columns
    macs = types[0].num_elements * math.prod(weight[1:])
    made = _product(macs, out, types, math.prod(weight[2:]))
    pixels = _elements(types[0]) // max(1, min(data[1:]))
    found = OpWork(macs, 6 * made.units, 24 * pixels * math.prod(weight[1:]))
    return _with_image(found, whole)


@FWork.register("nn.dense", "nn.batch_matmul", "nn.matmul")
def _matmul(call: Call, types: Sequence[TensorType], out: int) -> OpWork:
    terms = FQProductShape.require(call.op)(call).terms
    matrices = max(math.prod(ty.concrete_shape[:-2]) for ty in types)
    return _product(out * terms, out, types, matrices)


@FWork.register("nn.max_pool2d", "nn.avg_pool2d")
def _pool(call: Call, types: Sequence[TensorType], out: int) -> OpWork:
    """Every tap of the window is a numpy operation, and two nodes that onnxruntime keeps alive.

    onnxruntime's time grows with the square of the nodes that read one value.
    """
    attrs: Any = call.attrs
    taps = math.prod(attrs.pool_size)
    units = 4 * taps * out + taps * (9000 + 17 * taps)
    found = OpWork(0, units, taps * (16 * out + _TAP_BYTES))
    return _with_image(found, _padded(types[0], attrs.layout, attrs.padding))


_SPREADS = {"repeat": 16}
_SPREADS |= dict.fromkeys(("nn.pad", "image.resize2d", "nn.upsampling", "tile"), 4)
"""Units for each element of the result."""

# A repeat is a Gather whose int64 indices are a constant of the integer ONNX, in several copies.
# Places that are known are int64 of every element while the engine plans them.
_TEMPORARIES = {"repeat": 56, "nn.pad": 20, "take": 24}
_TEMPORARIES |= dict.fromkeys(("image.resize2d", "nn.upsampling", "tile"), 72)
"""Bytes for each element of the result, beside ``_SCRATCH``."""


@FWork.register(*_SPREADS)
def _spread(call: Call, types: Sequence[TensorType], out: int) -> OpWork:
    return OpWork(0, _SPREADS[getattr(call.op, "name", "")] * out)


@FWork.register("image.mix")
def _mixed(call: Call, types: Sequence[TensorType], out: int) -> OpWork:
    taps = sum(ty.concrete_shape[1] for ty in types[1::2])
    return OpWork(0, 40 * taps * max(out, _elements(types[0])), 24 * out)


@FWork.register("topk")
def _sorted(call: Call, types: Sequence[TensorType], out: int) -> OpWork:
    elements = sum(_elements(ty) for ty in types)
    return OpWork(0, 64 * elements, 32 * elements)


_Named = str | Function


def declared_work(mod: IRModule, function: str = "main") -> Work:
    """Add up the work of one run of a function, without running it.

    Args:
        mod: typed, of static shapes.
    Raises:
        ArtifactError: functions call each other in a circle, or a node has no bound, such as a
            closure or a branch.
    """
    functions = {gv.name_hint: fn for gv, fn in mod.functions.items()}
    done: dict[_Named, Work] = {}
    waiting: list[_Named] = [function]
    open_: set[_Named] = set()
    while waiting:
        name = waiting[-1]
        fn = functions.get(name) if isinstance(name, str) else name
        if name in done or not isinstance(fn, Function):
            done.setdefault(name, Work())
            waiting.pop()
            continue
        nodes = nodes_of(fn)
        if any(type(node) is Function for node in nodes):
            nodes = tuple(
                post_order(fn.body, lambda n: () if type(n) is Function else n.operands())
            )
        callees = [_named(n) for n in nodes if isinstance(n, GlobalVar | Function)]
        missing = [callee for callee in callees if callee not in done]
        if not missing:
            done[name] = _of_function(fn, nodes, done)
            open_.discard(name)
            waiting.pop()
        elif name in open_:
            raise _unbounded(f"@{name} calls itself, by way of @{missing[0]}")
        else:
            open_.add(name)
            waiting.extend(dict.fromkeys(missing))
    total = done[function]
    given = (ty for param in functions[function].params for ty in tensor_fields(param.checked_type))
    return replace(total, memory=total.memory + _INPUT_BYTES * sum(_elements(ty) for ty in given))


def _named(function: GlobalVar | Function) -> _Named:
    """Global functions go by their names, functions inside them by themselves."""
    if isinstance(function, GlobalVar):
        return function.name_hint
    return function


def known_work(mod: IRModule) -> Work | None:
    """Return the work of one run of main; None where it is not known and --allow-large was
    given."""
    try:
        return declared_work(mod)
    except CompilerError:
        return None


def _of_function(fn: Function, nodes: Sequence[Expr], done: Mapping[_Named, Work]) -> Work:
    """The work of one call, whose nodes are those outside the functions inside it."""
    total = Work()
    last_use = _last_uses(nodes, fn)
    dying: dict[int, list[Expr]] = {}
    for value, at in last_use.items():
        dying.setdefault(at, []).append(value)
    held: dict[Expr, int] = {node: node.data.nbytes for node in nodes if isinstance(node, Constant)}
    held |= {param: _bytes(tensor_fields(param.checked_type)) for param in fn.params}
    live = sum(held.values())
    for at, node in enumerate(nodes):
        inner = Work()
        if isinstance(node, Call):
            if isinstance(node.op, Op):
                inner = _of_call(node, node.op)
                for arg in node.args:
                    if isinstance(arg, GlobalVar | Function):
                        inner = inner.plus(done[_named(arg)].repeated(_turns(node)))
            elif isinstance(node.op, GlobalVar | Function):
                inner = done[_named(node.op)]
            else:
                raise _unbounded("it calls a value")
            held[node] = _bytes(tensor_fields(node.checked_type))
            live += held[node]
        elif isinstance(node, _BRANCHES):
            raise _unbounded(f"it holds a {type(node).__name__}")
        total = total.plus(replace(inner, memory=live + inner.memory))
        live -= sum(held.get(value, 0) for value in dying.get(at, ()))
    return total


def _last_uses(nodes: Sequence[Expr], fn: Function) -> dict[Expr, int]:
    """Return the last reader of each call's result; what a variable, a tuple or the result holds
    stays.

    Constants and parameters stay as long as the function runs.
    """
    kept = {id(fn.body)}
    last: dict[Expr, int] = {}
    for at in range(len(nodes) - 1, -1, -1):
        node = nodes[at]
        until = at
        if isinstance(node, Tuple | TupleGetItem):
            until = last.get(node, len(nodes) if id(node) in kept else at)
        elif not isinstance(node, Call):
            until = len(nodes)
        for operand in node.operands():
            last[operand] = max(last.get(operand, at), until)
    return {
        node: at
        for node, at in last.items()
        if isinstance(node, Call) and at < len(nodes) and id(node) not in kept
    }


def _turns(loop: Call) -> int:
    """Return the number of calls of a function that an operator takes."""
    if isinstance(loop.attrs, ScanAttrs):
        return loop.attrs.length
    if isinstance(loop.attrs, CallLoweredAttrs):
        return 1
    raise _unbounded(f"{getattr(loop.op, 'name', 'a value')} takes a function")


def _elements(ty: TensorType) -> int:
    """Elements of a tensor; an axis of 0 counts as 1, since operators index the others."""
    return math.prod(max(size, 1) for size in ty.concrete_shape)


def _is_wide(dtype: str) -> bool:
    return bits(dtype) > 32 or dtype.startswith("float")


def _bytes(types: Sequence[TensorType]) -> int:
    return sum(_elements(ty) * max(1, bits(ty.dtype) // 8) for ty in types)


def _of_call(call: Call, op: Op) -> Work:
    operands = [ty for arg in call.args for ty in tensor_fields(arg.checked_type)]
    results = tensor_fields(call.checked_type)
    if any(not isinstance(dim, int) for ty in (*operands, *results) for dim in ty.shape):
        raise _unbounded(f"{op.name} has a result of unknown shape")
    constants = sum(arg.data.nbytes for arg in call.args if isinstance(arg, Constant))
    out = sum(_elements(ty) for ty in results)
    touched = max(out, *(_elements(ty) for ty in operands), 0)
    if any(_is_wide(ty.dtype) for ty in (*operands, *results)):
        wide = _WIDE
    else:
        wide = 1
    units = touched * _UNITS_OF.get(op.name, _OTHER_UNITS) * wide
    rule = FWork.get(op)
    if rule is None:
        found = OpWork(0, units)
    else:
        found = rule(call, operands, out)
    scratch = found.scratch + _TEMPORARIES.get(op.name, 0) * out
    scratch += _SCRATCH * (out + sum(_elements(ty) for ty in operands))
    return Work(
        macs=found.macs,
        units=found.units,
        memory=scratch,
        steps=1,
        calls=1,
        c_text=_CHARACTERS * constants + _STEP_CHARACTERS,
    )


def _unbounded(what: str) -> ArtifactError:
    return ArtifactError(
        f"how much work the module is cannot be told: {what}",
        fix="--allow-large runs it all the same, for as long as it takes",
    )


def check_text(text_bytes: int, file_bytes: int) -> None:
    """Refuse a text that would take longer to read than all else.

    Raises:
        ArtifactError: module.relay has more than MAX_TEXT_BYTES and the file has few others.
    """
    most = MAX_TEXT_BYTES + file_bytes // FILE_BYTES_PER_TEXT_BYTE
    if text_bytes > most:
        raise ArtifactError(
            f"module.relay has {text_bytes} bytes, more than the {most} that a file of "
            f"{file_bytes} bytes may",
            fix="--allow-large reads it all the same, if you trust where it comes from",
        )


def refusal_expected(mod: IRModule) -> str:
    """Explain why ``check_work`` will refuse the module of a float module; "" where it probably
    will not.

    Args:
        mod: typed; weights become 8 bits.
    """
    held = sum(node.data.nbytes for node in post_order(mod["main"]) if isinstance(node, Constant))
    try:
        work = declared_work(mod)
        bytes_of_c = work.c_text // 4
        check_work(replace(work, units=work.units - 9 * work.macs, c_text=bytes_of_c), held // 4)
    except ArtifactError as error:
        return f"`qsearch verify` will refuse the module without --allow-large: {error.what}"
    return ""


def run_seconds(work: Work) -> float:
    """CPU seconds of one run in every form that ships, about."""
    calls = RUN_S_PER_STEP * (work.steps + _RUN_STEPS) + RUN_S_PER_TURN * (work.calls - work.steps)
    return RUN_S_PER_UNIT * work.units + calls


def replay_inputs(work: Work) -> int:
    """Return the number of inputs that verifying runs at most; 1 where one takes longer than
    MAX_CPU_S."""
    seconds = run_seconds(work)
    least = max(1, min(KINDS, int(MAX_CPU_S / seconds)))
    return min(MAX_INPUTS, max(least, int(REPLAY_CPU_S / seconds)))


def planned_seconds(work: Work) -> float:
    """CPU seconds of the replay and the stepped forms of a verification, at most."""
    return 2 * run_seconds(work) * replay_inputs(work)


def check_work(work: Work, file_bytes: int) -> None:
    """Refuse what does not run once.

    Args:
        work: of one run.
        file_bytes: size of the file.
    Raises:
        ArtifactError: more than MAX_CPU_S, or 4 times the file and 4 GB of memory or C.
    """
    room = BYTES_PER_FILE_BYTE * file_bytes + MAX_EXTRA_BYTES
    steps = round(MAX_CPU_S / STEP_S) + file_bytes // FILE_BYTES_PER_STEP
    limits = (
        ("bytes of memory with temporaries", work.memory, room),
        ("characters of C", work.c_text, room),
        ("operators", work.steps, steps),
        ("CPU seconds for one run in every form", run_seconds(work), MAX_CPU_S),
    )
    for what, amount, most in limits:
        if amount > most:
            raise ArtifactError(
                f"the module declares {amount:.3g} {what}, more than the {most:.3g} that a file "
                f"of {file_bytes} bytes may",
                fix="--allow-large runs it all the same, if you trust where it comes from",
            )
