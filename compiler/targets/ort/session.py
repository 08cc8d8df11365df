"""OrtExecutor: one onnxruntime session, single-threaded by default, batch after batch."""

from __future__ import annotations

import re
import tempfile
import threading
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Any, Final

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.capi import onnxruntime_pybind11_state

from compiler.errors import CodegenError, EvaluationError
from compiler.runtime.executor import Inputs, ordered_inputs

_NUMPY_TYPES = {
    "tensor(float)": "float32",
    "tensor(double)": "float64",
    "tensor(float16)": "float16",
    "tensor(bool)": "bool",
}

_NO_NUMPY_TYPES = ("tensor(bfloat16", "tensor(float8", "tensor(float4")

# 4 = what ends the process: errors arrive as exceptions, and a warning per folded node would drown
# the service's own log.
_LOG_SEVERITY = 4


ORT_ERRORS: tuple[type[Exception], ...] = (
    RuntimeError,
    *(
        error
        for error in vars(onnxruntime_pybind11_state).values()
        if isinstance(error, type) and issubclass(error, Exception)
    ),
)
"""Errors of onnxruntime: its classes, one a status code, share no base but Exception."""
_NO_MEMORY: Final = ("bad_alloc", "bfc_arena", "Failed to allocate memory")


MOST_S: Final = 60
"""Upper limit of the time of one limited run, in seconds."""
_LOOK_S: Final = 0.25
"""Seconds between two looks at the limited runs of a process."""
MOST_BYTES: Final = 4 << 30
"""Upper limit of the memory of all limited sessions of a process."""


class OrtExecutor:
    """Runs an ONNX model; implements ``runtime.executor.Executor``.

    Args:
        model: ModelProto or its bytes, or the path of its file.
        names: of the inputs as callers give them, in order; None are those in the model.
        threads: threads within one operator; 1 makes CPU time comparable.
        optimize: False runs the graph exactly as written, for comparison.
        arena: memory stays with the session, for its next run; False is faster where the outputs of
            many runs are held, and then dropped one after the other.
        fused_grids: False computes what stands between DequantizeLinear and QuantizeLinear in
            float, as it is written.
        large: constants whose data the model lacks, by name.
        copies: whether it may copy them, which makes it faster.
        limited: a run ends after MOST_S, and the memory of all such sessions at MOST_BYTES: the
            model came with a file of anybody.
        folds: whether constants are computed when the model is opened, which has no limits.
    Attributes:
        input_names, output_names: in order; two inputs may have one name.
    Raises:
        CodegenError: onnxruntime refuses the model.
    """

    def __init__(
        self,
        model: onnx.ModelProto | bytes | Path,
        names: Sequence[str] | None = None,
        *,
        threads: int = 1,
        optimize: bool = True,
        arena: bool = True,
        fused_grids: bool = True,
        large: Mapping[str, NDArray[Any]] | None = None,
        copies: bool = True,
        limited: bool = False,
        folds: bool = True,
    ) -> None:
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.log_severity_level = _LOG_SEVERITY
        options.enable_cpu_mem_arena = arena
        apart = str(int(not fused_grids))
        options.add_session_config_entry("session.disable_quant_qdq", apart)
        options.add_session_config_entry("session.disable_double_qdq_remover", apart)
        if not optimize:
            level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            options.graph_optimization_level = level
        self._given: dict[str, NDArray[Any]] = {}
        if large and not copies:
            assert isinstance(model, onnx.ModelProto)
            model = _with_inputs(model, large)
            self._given = dict(large)
        elif large:
            values = map(onnxruntime.OrtValue.ortvalue_from_numpy, large.values())
            options.add_external_initializers(list(large), list(values))
        if isinstance(model, onnx.ModelProto):
            model = model.SerializeToString()
        data = model.read_bytes() if isinstance(model, Path) else model
        # It takes the zeros of a Pad in front of a MaxPool for padding, which no maximum sees.
        if b"Pad" in data and b"MaxPool" in data:
            wrong = ["Pad_Fusion"]
        else:
            wrong = []
        del data
        wrong += [] if folds else ["ConstantFolding"]
        self._limited = limited
        if limited:
            _bound_memory()
            options.add_session_config_entry("session.use_env_allocators", "1")
        try:
            self._session = onnxruntime.InferenceSession(
                model, options, providers=["CPUExecutionProvider"], disabled_optimizers=wrong
            )
        except ORT_ERRORS as error:
            raise _refused(str(error)) from error
        for info in self._session.get_outputs():
            if info.type.startswith(_NO_NUMPY_TYPES):
                raise CodegenError(
                    f"{info.name!r} is {info.type} between parts of the model, and numpy has no "
                    "such type",
                    fix="export the model with float16 or float32 there",
                )
        self._dtypes = {
            i.name: _NUMPY_TYPES.get(i.type, i.type[len("tensor(") : -1])
            for i in self._session.get_inputs()
            if i.name not in self._given
        }
        self._shapes = {i.name: tuple(i.shape) for i in self._session.get_inputs()}
        # Calibration runs small graphs a hundred thousand times. onnxruntime takes a while to tell
        # names, and numpy to name a dtype.
        self._singletons: dict[str, np.dtype[Any]] = {}
        for name, dtype in self._dtypes.items():
            with suppress(TypeError, ValueError):  # no dtype of numpy
                self._singletons[name] = np.dtype(dtype)
        self.input_names = tuple(self._dtypes if names is None else names)
        self.output_names = tuple(o.name for o in self._session.get_outputs())

    @property
    def inputs(self) -> list[tuple[str, str, tuple[int | str, ...]]]:
        """Name, dtype and sizes of every input; a size without number is a name."""
        return [(name, dtype, self._shapes[name]) for name, dtype in self._dtypes.items()]

    @property
    def metadata(self) -> dict[str, str]:
        """``metadata_props`` of the model."""
        return dict(self._session.get_modelmeta().custom_metadata_map)

    def run(self, inputs: Inputs) -> list[NDArray[Any]]:
        """Run once.

        Args:
            inputs: an array per input, by name or in order, of the declared shape and dtype.
        Returns:
            One array per output.
        Raises:
            LimitError: a limited run takes too long, or too much memory.
            EvaluationError: names, shapes or dtypes differ from what the model declares.
        """
        arrays = self._given.copy()
        for name, value in zip(self._dtypes, ordered_inputs(self.input_names, inputs)):
            arrays[name] = np.asarray(value)
            self._check(name, arrays[name])
        try:
            results = self._run(arrays)
        except ORT_ERRORS as error:
            _check_memory(str(error))
            raise EvaluationError(f"onnxruntime failed: {error}") from error
        return [np.asarray(r) for r in results]

    def _run(self, arrays: dict[str, NDArray[Any]]) -> Any:
        if not self._limited:
            return self._session.run(self.output_names, arrays)
        options = onnxruntime.RunOptions()
        watchdog = _watchdog()
        watchdog.watch(options)
        try:
            return self._session.run(self.output_names, arrays, options)
        except ORT_ERRORS as error:
            if options.terminate:
                raise _beyond(f"takes more than {MOST_S} s") from error
            if "bfc_arena" in str(error):
                raise _beyond(f"needs more than {MOST_BYTES >> 30} GiB") from error
            raise
        finally:
            watchdog.forget(options)

    def _check(self, name: str, array: NDArray[Any]) -> None:
        declared = self._shapes[name]
        # Of a rank that the file does not say, nothing is declared.
        fits = declared in ((), array.shape) or (
            len(declared) == array.ndim
            and all(not isinstance(d, int) or d == n for d, n in zip(declared, array.shape))
        )
        same = array.dtype is self._singletons.get(name) or str(array.dtype) == self._dtypes[name]
        if not fits or not same:
            raise EvaluationError(
                f"input {name!r} is {array.dtype} {array.shape}",
                where=f"the model takes {self._dtypes[name]} {declared}",
                fix="give inputs of these, or the model that the inputs are for",
            )


class _Watchdog:
    """Ends the limited runs of this process that exceed MOST_S.

    One thread looks at all running calls a few times in a second, and ends after a second without
    any: a thread for each call would take longer than most calls.
    """

    def __init__(self) -> None:
        self._deadlines: dict[onnxruntime.RunOptions, float] = {}
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None

    def watch(self, options: onnxruntime.RunOptions) -> None:
        """End the run of these options MOST_S from now."""
        with self._lock:
            self._deadlines[options] = time.monotonic() + MOST_S
            if self._thread is None or not self._thread.is_alive():
                self._thread = threading.Thread(target=self._look, daemon=True)
                self._thread.start()

    def forget(self, options: onnxruntime.RunOptions) -> None:
        """Leave a run alone that has ended."""
        with self._lock:
            del self._deadlines[options]

    def _look(self) -> None:
        idle_since = time.monotonic()
        while True:
            time.sleep(_LOOK_S)
            now = time.monotonic()
            with self._lock:
                for options, deadline in self._deadlines.items():
                    if now > deadline:
                        options.terminate = True
                if self._deadlines:
                    idle_since = now
                elif now > idle_since + 1:
                    self._thread = None
                    return


@cache
def _watchdog() -> _Watchdog:
    return _Watchdog()


class LimitError(EvaluationError):
    """A model that came with a file takes longer, or more memory, than such models may."""


def _beyond(what: str) -> LimitError:
    return LimitError(
        f"what stays in float of the model {what} in one run",
        fix="run the integers alone (core=True), or give smaller inputs",
    )


@cache
def _bound_memory() -> None:
    """Limit the memory of all limited sessions of this process, once."""
    where = onnxruntime.OrtMemoryInfo(
        "Cpu",
        onnxruntime.OrtAllocatorType.ORT_ARENA_ALLOCATOR,
        0,
        onnxruntime.OrtMemType.DEFAULT,
    )
    most = onnxruntime.OrtArenaCfg({"max_mem": MOST_BYTES})
    onnxruntime.create_and_register_allocator(where, most)


def open_part(model: onnx.ModelProto) -> OrtExecutor:
    """A limited session of a float part of a file, which anybody may have written.

    onnxruntime computes constants when it opens a model, without limits. So the part runs once
    before, as it is written: what does not get through that is opened without computing them.

    Raises:
        CodegenError: onnxruntime refuses the part.
        LimitError: it takes too long, or too much memory.
    """
    first = OrtExecutor(model, limited=True, optimize=False)
    try:
        first.run(
            {
                name: np.zeros([n if isinstance(n, int) else 1 for n in shape], dtype)
                for name, dtype, shape in first.inputs
            }
        )
    except LimitError:
        raise
    except (EvaluationError, TypeError):  # sizes that do not fit, an input that is no array
        return OrtExecutor(model, limited=True, folds=False)
    return OrtExecutor(model, limited=True)


def optimized_model(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return the graph that onnxruntime runs in place of a model.

    Raises:
        CodegenError: onnxruntime refuses the model.
    """
    options = onnxruntime.SessionOptions()
    options.log_severity_level = _LOG_SEVERITY
    with tempfile.TemporaryDirectory(prefix="qsearch-") as folder:
        options.optimized_model_filepath = str(Path(folder) / "optimized.onnx")
        try:
            onnxruntime.InferenceSession(
                model.SerializeToString(),
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=["Pad_Fusion"],
            )
        except ORT_ERRORS as error:
            raise _refused(str(error)) from error
        return onnx.load(options.optimized_model_filepath)


def _check_memory(told: str) -> None:
    """Raise MemoryError if a text of onnxruntime says that there is not enough memory."""
    if any(words in told for words in _NO_MEMORY):
        raise MemoryError(f"onnxruntime: {told}")


def _refused(told: str) -> CodegenError:
    """Return the error for a text of onnxruntime that refuses a model."""
    _check_memory(told)
    name = f"onnxruntime {onnxruntime.__version__}"
    if unknown := re.search(r"([\w.]*):(\w+)\(-?\d+\) is not a registered function/op", told):
        domain, op_type = unknown.groups()
        return CodegenError(
            f"{name} runs what stays in float, and has no operator "
            f"{f'{domain}::' if domain else ''}{op_type}",
            fix="export the model without it, or the part of the model in front of it or behind it "
            "(onnx.utils.extract_model)",
        )
    return CodegenError(
        f"{name} refuses the model: {told}",
        fix="check it with onnx.checker; the exporter may lack a form for one operator",
    )


def _with_inputs(model: onnx.ModelProto, large: Mapping[str, NDArray[Any]]) -> onnx.ModelProto:
    """The model with constants as inputs; onnxruntime reads those where they are."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    kept = [tensor for tensor in made.graph.initializer if tensor.name not in large]
    made.graph.input.extend(
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in made.graph.initializer
        if tensor.name in large
    )
    del made.graph.initializer[:]
    made.graph.initializer.extend(kept)
    return made


def with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """The model with further values as outputs, as far as it does not take or give them."""
    made = onnx.ModelProto()
    made.CopyFrom(model)
    own = {info.name for info in (*made.graph.input, *made.graph.output)}
    made.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names if name not in own)
    return made
