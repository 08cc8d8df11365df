"""TFLM's interpreter, LiteRT's reference kernels and XNNPACK, which run a LiteRT file.

The first two are to give the module's integers. XNNPACK rounds otherwise; its count is shown.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from typing import Any, Final

import numpy as np

from compiler.errors import TfliteExportError
from compiler.export.to_tflite.inputs import TFLITE, Taken, firsts, taken_by
from compiler.ir.dataflow import dataflow
from compiler.ir.module import IRModule
from compiler.ops.number_format import Array
from compiler.targets.reference.executor import ReferenceExecutor

Run = Callable[[Sequence[Array]], list[Array]]

JUDGES: Final = ("TFLM", "LiteRT's reference kernels")
"""Interpreters that give the module's integers."""
SHOWN: Final = "XNNPACK"
"""… and what need not."""
_SPARE: Final = 1 << 20
"""Bytes of TFLM's arena beside the tensors."""


def available() -> tuple[str, ...]:
    """The judges that are installed."""
    packages = zip(JUDGES, ("tflite_micro", "ai_edge_litert"))
    return tuple(name for name, package in packages if find_spec(package) is not None)


def interpreter(name: str, data: bytes) -> tuple[Run, tuple[str, ...]]:
    """Return the run of a file, and the dtypes that it takes.

    Args:
        name: one of ``JUDGES``, or ``SHOWN``.
    Raises:
        TfliteExportError: it is not installed, or refuses the file.
    """
    try:
        if name == JUDGES[0]:
            return _tflm(data)
        return _litert(data, name == SHOWN)
    except (ImportError, RuntimeError, ValueError) as error:
        lines = str(error).strip().splitlines() or [type(error).__name__]
        missing = isinstance(error, ImportError)
        raise TfliteExportError(
            f"{name} does not run the file: {lines[-1]}",
            fix="pip install 'qsearch[tflite]'"
            if missing
            else "give a file that `qsearch export --format tflite` wrote",
        ) from error


def _litert(data: bytes, xnnpack: bool) -> tuple[Run, tuple[str, ...]]:
    made = _loaded(data, xnnpack)
    takes = made.get_input_details()
    gives = made.get_output_details()

    def run(inputs: Sequence[Array]) -> list[Array]:
        for port, array in zip(takes, inputs, strict=True):
            made.set_tensor(port["index"], array)
        made.invoke()
        return [np.array(made.get_tensor(port["index"])) for port in gives]

    return run, tuple(np.dtype(port["dtype"]).name for port in takes)


def _loaded(data: bytes, xnnpack: bool = False) -> Any:
    litert = import_module("ai_edge_litert.interpreter")
    kinds = litert.OpResolverType
    kind = kinds.AUTO if xnnpack else kinds.BUILTIN_REF
    made = litert.Interpreter(model_content=data, experimental_op_resolver_type=kind)
    made.allocate_tensors()
    return made


def _tflm(data: bytes) -> tuple[Run, tuple[str, ...]]:
    runtime = import_module("tflite_micro.python.tflite_micro.runtime")
    loaded = _loaded(data)
    tensors = loaded.get_tensor_details()
    sizes = (int(np.prod(t["shape"])) * np.dtype(t["dtype"]).itemsize for t in tensors)
    arena = sum(sizes) + len(tensors) * 1024 + _SPARE
    made = runtime.Interpreter.from_bytes(data, arena_size=arena)
    outputs = len(loaded.get_output_details())

    def run(inputs: Sequence[Array]) -> list[Array]:
        for place, array in enumerate(inputs):
            made.set_input(array, place)
        made.invoke()
        return [np.array(made.get_output(place)) for place in range(outputs)]

    return run, tuple(np.dtype(port["dtype"]).name for port in loaded.get_input_details())


@dataclass(slots=True)
class FileJudge:
    """Counts the integers in which a file differs from its module.

    Attributes:
        module: partitioned; its reference executor says what is right.
        data: the file.
        names: of the interpreters.
        runs, elements: how many inputs were compared, and how many results each gave in sum.
        differing: of these, by interpreter.
    """

    module: IRModule
    data: bytes
    names: Sequence[str]
    runs: int = 0
    elements: int = 0
    differing: dict[str, int] = field(default_factory=dict)
    _interpreters: dict[str, tuple[Run, tuple[str, ...]]] = field(default_factory=dict)
    _taken: list[Taken] = field(default_factory=list)
    _firsts: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._taken = taken_by(self.module)
        self._firsts = firsts(self._taken)
        for name in self.names:
            self._interpreters[name] = interpreter(name, self.data)
            self.differing[name] = 0
        kinds = {kind for _, takes in self._interpreters.values() for kind in takes}
        if not kinds <= {"int8", "int16", "uint8", "int32"}:
            raise TfliteExportError(
                f"the file takes {', '.join(sorted(kinds))}, whose integers look alike",
                fix="export it with --io int8 or uint8",
            )

    @property
    def judges(self) -> list[str]:
        """Those whose integers are to be the module's."""
        return [name for name in self.differing if name in JUDGES]

    def compare(self, inputs: Mapping[str, Array]) -> None:
        """Run the module and the file on the same inputs of the module."""
        taken = ReferenceExecutor(self.module, "quantize_inputs").run(inputs)
        self.compare_integers(taken)

    def compare_integers(self, taken: Sequence[Array]) -> None:
        """The same for integers that quantized_main takes."""
        wanted = ReferenceExecutor(self.module, "quantized_main").run(taken)
        self.runs += 1
        self.elements += sum(array.size for array in wanted)
        once = [_narrow(taken[place], self._taken[place]) for place in sorted(set(self._firsts))]
        for name, (run, kinds) in self._interpreters.items():
            given = [_moved(array, kind) for array, kind in zip(once, kinds, strict=True)]
            try:
                found = run(given)
                same = [
                    _moved(ours, theirs.dtype.name).reshape(theirs.shape)
                    for ours, theirs in zip(wanted, found, strict=True)
                ]
            except (RuntimeError, ValueError) as error:
                raise TfliteExportError(
                    f"{name} does not take the module's integers: {error}",
                    fix="give the file that was exported from this module",
                ) from error
            counts = (int((a != b).sum()) for a, b in zip(same, found))
            self.differing[name] += sum(counts)

    def compare_noise(self, count: int, seed: int = 0) -> None:
        """Inputs of even noise over all that they can be, of places over what every table has."""
        rng = np.random.default_rng(seed)
        types = [param.tensor_type for param in self.module["quantized_main"].params]
        flow = dataflow(self.module, "quantized_main", TFLITE)
        tables = [s.args[0].data for s in flow.steps if s.name == "take"]
        rows = min((len(table) for table in tables if table is not None), default=1)
        for _ in range(count):
            drawn: list[Array] = []
            for first, ty in zip(self._firsts, types, strict=True):
                part = self._taken[first]
                ends = (0, rows - 1) if part.grid is None else part.ends
                if first < len(drawn):
                    drawn.append(drawn[first].reshape(ty.concrete_shape).astype(ty.dtype))
                else:
                    drawn.append(rng.integers(*ends, ty.concrete_shape, ty.dtype, endpoint=True))
            self.compare_integers(drawn)


def _narrow(array: Array, part: Taken) -> Array:
    """Return an operand of the core, which has 32 bits, in the 8 or 16 bits of the file."""
    if part.grid is None:
        return array
    return array.astype(part.stored(array.dtype.name), copy=False)


def _moved(array: Array, dtype: str) -> Array:
    """8-bit integers in the other sign: 128 apart."""
    if array.dtype.name == dtype or dtype == "int32":
        return array.astype(dtype, copy=False)
    return (array.astype(np.int16) + (128 if dtype == "uint8" else -128)).astype(dtype)
