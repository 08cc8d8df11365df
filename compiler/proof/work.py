"""How much work a module declares, added up before anything of it runs.

A file of 2 kB can declare a tensor of a terabyte, a product of 10^15 terms, or functions that call
each other 2^60 times. Types and attributes say so without running anything: ``declared_work`` adds
up one run of ``main``; ``check_work`` refuses what no honest module of the file's size needs.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from compiler.errors import ArtifactError
from compiler.ir.adt import Match, RefCreate, RefRead, RefWrite
from compiler.ir.analysis import post_order
from compiler.ir.expr import Call, Constant, Function, GlobalVar, If, Op
from compiler.ir.module import IRModule
from compiler.ir.op import OpRule
from compiler.ir.ty import TensorType, bits, tensor_fields

MAX_MACS = 50 * 10**9
MAX_STEPS = 10_000
"""Operators of one run: a deep quantized network has some thousands."""
MAX_EXTRA_BYTES = 1 << 30
BYTES_PER_FILE_BYTE = 4

USUAL_SAMPLES = 4
"""Samples that qsearch writes. Verifying runs as many more inputs, of its own, as RUNS."""
RUNS = 40

_WINDOW = 16
"""Multiplications that take as long as one element of a window: products run blockwise."""
_RUN_STEPS = 50
"""Steps that take as long as a run has to be begun and compared."""
_MOST = 1 << 80
_BRANCHES = (If, Match, RefCreate, RefRead, RefWrite)
_CHARACTERS = 5
"""Of C text per byte of a constant: "-127," and the end of a line."""
_STEP_CHARACTERS = 2000
"""Of C text per operator, its loops unrolled."""


@dataclass(frozen=True, slots=True)
class Work:
    """What one run computes.

    Attributes:
        bytes: of all constants, once per use, and of all results.
        macs: multiplications with their additions, or comparisons and copies of elements.
        steps: calls of operators.
        c_text: characters of C that the module becomes, about.
    """

    bytes: int = 0
    macs: int = 0
    steps: int = 0
    c_text: int = 0

    def plus(self, other: Work) -> Work:
        """The sum of both, at most _MOST."""
        return Work(
            min(self.bytes + other.bytes, _MOST),
            min(self.macs + other.macs, _MOST),
            min(self.steps + other.steps, _MOST),
            min(self.c_text + other.c_text, _MOST),
        )


MacRule = Callable[[Call, Sequence[TensorType], int], int]

FMacs: OpRule[MacRule] = OpRule("FMacs", asked_by="proof.work", defined_in="compiler/proof/work.py")
"""Operator → its multiplications, of the call, the types of its tensors and its result's elements.

Without a rule an operator touches each element of its operands and results once."""


@FMacs.register("nn.conv2d")
def _convolution(call: Call, types: Sequence[TensorType], out: int) -> int:
    weight = types[1].concrete_shape
    channels = weight[call.attrs.kernel_layout.index("O")]  # type: ignore[union-attr]
    return out * (math.prod(weight) // max(channels, 1))


@FMacs.register("nn.conv2d_transpose")
def _transposed_convolution(call: Call, types: Sequence[TensorType], out: int) -> int:
    weight = types[1].concrete_shape
    return types[0].num_elements * math.prod(weight[1:])


@FMacs.register("nn.dense")
def _dense(call: Call, types: Sequence[TensorType], out: int) -> int:
    return out * types[1].concrete_shape[-1]


@FMacs.register("nn.batch_matmul", "nn.matmul")
def _matmul(call: Call, types: Sequence[TensorType], out: int) -> int:
    turned = bool(getattr(call.attrs, "transpose_a", False))
    return out * types[0].concrete_shape[-2 if turned else -1]


@FMacs.register("einsum")
def _einsum(call: Call, types: Sequence[TensorType], out: int) -> int:
    return math.prod(ty.num_elements for ty in types)


@FMacs.register("nn.max_pool2d", "nn.avg_pool2d")
def _pool(call: Call, types: Sequence[TensorType], out: int) -> int:
    return _WINDOW * out * math.prod(call.attrs.pool_size)  # type: ignore[union-attr]


@FMacs.register("vision.non_max_suppression")
def _boxes(call: Call, types: Sequence[TensorType], out: int) -> int:
    return sum(ty.num_elements for ty in types) ** 2


@FMacs.register("sort", "argsort", "topk")
def _sort(call: Call, types: Sequence[TensorType], out: int) -> int:
    return 64 * sum(ty.num_elements for ty in types)


def declared_work(mod: IRModule, function: str = "main") -> Work:
    """What one run of a function computes, without running it.

    Args:
        mod: typed, of static shapes.
    Raises:
        ArtifactError: functions call each other in a circle, or a node has no bound, such as a
            closure or a branch.
    """
    functions = {gv.name_hint: fn for gv, fn in mod.functions.items()}
    done: dict[str, Work] = {}
    waiting: list[str] = [function]
    open_: set[str] = set()
    while waiting:
        name = waiting[-1]
        fn = functions.get(name)
        if name in done or not isinstance(fn, Function):
            done.setdefault(name, Work())
            waiting.pop()
            continue
        callees = [n.name_hint for n in post_order(fn) if isinstance(n, GlobalVar)]
        missing = [callee for callee in callees if callee not in done]
        if not missing:
            done[name] = _of_function(name, fn, done)
            open_.discard(name)
            waiting.pop()
        elif name in open_:
            raise _unbounded(f"@{name} calls itself, by way of @{missing[0]}")
        else:
            open_.add(name)
            waiting.extend(dict.fromkeys(missing))
    return done[function]


def _of_function(name: str, fn: Function, done: dict[str, Work]) -> Work:
    total = Work()
    for node in post_order(fn):
        if isinstance(node, Call):
            if isinstance(node.op, GlobalVar):
                total = total.plus(done[node.op.name_hint])
            elif isinstance(node.op, Op):
                total = total.plus(_of_call(node, node.op))
            elif not isinstance(node.op, Function):
                raise _unbounded(f"@{name} calls a value")
        elif isinstance(node, _BRANCHES):
            raise _unbounded(f"@{name} holds a {type(node).__name__}")
    return total


def _of_call(call: Call, op: Op) -> Work:
    operands = [ty for arg in call.args for ty in tensor_fields(arg.checked_type)]
    results = tensor_fields(call.checked_type)
    if any(not isinstance(dim, int) for ty in (*operands, *results) for dim in ty.shape):
        raise _unbounded(f"{op.name} has a result of unknown shape")
    constants = sum(arg.data.nbytes for arg in call.args if isinstance(arg, Constant))
    out = sum(ty.num_elements for ty in results)
    touched = max(out, *(ty.num_elements for ty in operands), 0)
    rule = FMacs.get(op)
    macs = touched if rule is None else max(touched, rule(call, operands, out))
    size = constants + sum(ty.num_elements * max(1, bits(ty.dtype) // 8) for ty in results)
    return Work(size, macs, 1, _CHARACTERS * constants + _STEP_CHARACTERS)


def _unbounded(what: str) -> ArtifactError:
    return ArtifactError(
        f"how much work the module is cannot be told: {what}",
        fix="--allow-large runs it all the same, for as long as it takes",
    )


def check_work(work: Work, samples: int, file_bytes: int) -> None:
    """Refuse what no honest file needs.

    Args:
        work: of one run.
        samples: stored in the file; more than USUAL_SAMPLES count in proportion.
        file_bytes: size of the file.
    Raises:
        ArtifactError: more than MAX_MACS, MAX_STEPS, or 4 times the file and 1 GB of memory or C.
    """
    share = (RUNS + max(samples, USUAL_SAMPLES)) / (RUNS + USUAL_SAMPLES)
    room = BYTES_PER_FILE_BYTE * file_bytes + MAX_EXTRA_BYTES
    limits = (
        ("bytes of results and constants", work.bytes, room),
        ("characters of C", work.c_text, room),
        ("multiplications", round(work.macs * share), MAX_MACS),
        ("steps", round((work.steps + _RUN_STEPS) * share), MAX_STEPS + _RUN_STEPS),
    )
    for what, amount, most in limits:
        if amount > most:
            raise ArtifactError(
                f"the module declares {amount:.3g} {what}, more than the {most:.3g} that a file "
                f"of {file_bytes} bytes may",
                fix="--allow-large runs it all the same, if you trust where it comes from",
            )
