"""Models in memory: ONNX, PyTorch, Keras. A file is exported, and compared with the model.

torch, keras and tf2onnx are no dependencies: they are there where such an object comes from.
"""

from __future__ import annotations

import contextlib
import copy
import importlib
import inspect
import io
import itertools
import logging
import os
import re
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CompilerError, raised_as
from compiler.targets.ort.session import OrtExecutor
from qsearch.data.object_data import as_array, data_items, labelled
from qsearch.data.prepared_data import check_exists
from qsearch.errors import ModelFileError, SettingsError
from qsearch.process import native_stdout_dropped, quieted
from qsearch.store.artifacts import write_atomically
from workers.datasets.protocol import LABEL_NAMES

COMPARED: Final = 8
"""Samples on which the exported model is compared with the one in memory."""
_CLOSE: Final = {"float16": 2e-2}
_DEFAULT_CLOSE: Final = 2e-3
"""Largest difference by the largest value of an output; exporters fold and reorder floats."""

_WRAPPERS: Final = (
    ("OptimizedModule", "_orig_mod"),
    ("DataParallel", "module"),
    ("DistributedDataParallel", "module"),
)
"""Modules of torch around a module, and its name there."""

Array = NDArray[Any]
Rows = dict[str, Array]
"""Samples by name of an input, in order."""
Run = Callable[[Rows], list[Array]]
Export = Callable[[Path, Rows, bool], None]
"""Writes a file of a model that is shown these inputs, whose batch may be free."""


def model_file(model: Any, samples: Any, folder: Path) -> tuple[str | os.PathLike[str], Any]:
    """The path of a model, and the samples that it is given, of which none is lost.

    Args:
        model: a path as it is; an ONNX ModelProto or its bytes, a torch.nn.Module, a keras.Model;
            or a pair of it and an example: its inputs, as ``torch.onnx.export`` takes them.
        samples: data as of ``launch``; without an example the first of them are the one that a
            module of torch is exported with and compared on.
        folder: where ``model.onnx`` of a model in memory is written.
    Raises:
        ModelFileError: a module cannot be run or exported, or its file computes something else.
        SettingsError: the model is of no kind that is known.
    """
    if isinstance(model, str | os.PathLike):
        return model, samples
    if isinstance(model, tuple) and len(model) == 2 and not isinstance(model[0], tuple):
        model, example = model
        if isinstance(example, tuple):
            example = example[0] if len(example) == 1 else [example]
        return model_file(model, example, folder)[0], samples
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "model.onnx"
    if _is(model, "keras", "Model") or _is(model, "tf_keras", "Model"):
        return path, _exported(path, samples, *_of_keras(model))
    if _is(model, "torch", "Module"):
        with _in_evaluation(model):
            return path, _exported(path, samples, *_of_torch(model))
    model = getattr(model, "model_proto", model)  # of torch.onnx.export
    data = model if isinstance(model, bytes) else b""
    if hasattr(model, "SerializeToString") and not isinstance(model, type):
        data = model.SerializeToString()
    if not data:
        raise SettingsError(
            f"a model of type {type(model).__name__} cannot be used",
            where="model",
            fix="give the path of an .onnx file, a ModelProto or its bytes, a torch.nn.Module or a "
            "keras.Model",
        )
    _write(path, data)
    return path, samples


def _is(model: Any, package: str, name: str) -> bool:
    """Return whether it is a class of a package, which need not be imported for that."""
    return any(
        kind.__name__ == name and kind.__module__.partition(".")[0] == package
        for kind in type(model).__mro__
    )


def _write(path: Path, data: bytes) -> None:
    if not path.is_file() or path.read_bytes() != data:
        write_atomically(path, data)


# The example, the export and the comparison -----------------------------------------------------


def _exported(
    path: Path, samples: Any, names: Mapping[str, bool], run: Run, exporters: Mapping[str, Export]
) -> Any:
    """Write the file with the first exporter whose file computes what the model does.

    Args:
        names: the inputs, and whether each must be given.
    """
    runs, samples = _example(samples, names, run)
    ways = [
        (f"{exporter}, sizes as shown", own, runs[0], False) for exporter, own in exporters.items()
    ]
    if all(len(array) == 1 for array in runs[0].values()):
        # Two samples: an exporter that is shown one may take the batch for the constant 1.
        shown = {name: np.concatenate([array, array]) for name, array in runs[0].items()}
        ways[:0] = [(exporter, own, shown, True) for exporter, own in exporters.items()]
    reasons = []
    with tempfile.TemporaryDirectory(prefix="qsearch-") as folder:
        made = Path(folder) / "model.onnx"
        for way, export, rows, free in ways:
            try:
                with (  # torch prints the graph of what it cannot export, from C++ as well
                    quieted("torch", logging.CRITICAL, Warning),
                    native_stdout_dropped(),
                    contextlib.redirect_stdout(io.StringIO()),
                ):
                    export(made, rows, free)
                data = _plain(made)
            except Exception as error:  # of a framework: anything
                reasons.append(f"{way}: {_line(error)}")
                continue
            reason = _difference(made, runs, run)
            if reason is None:
                _write(path, data)
                return samples
            reasons.append(f"{way}: {reason}")
    raise ModelFileError(
        f"the model cannot be exported as ONNX: {'; '.join(reasons)}",
        where=", ".join(f"{name}: {a.dtype}{list(a.shape)}" for name, a in runs[0].items()),
        fix="give the module in float32, or export it with the tools of its framework, compare, "
        "and give the path of the file",
    )


def _plain(path: Path) -> bytes:
    """The file without lines of sources, so that equal models are equal bytes."""
    import onnx

    model = onnx.load_model(str(path))
    model.doc_string = ""
    for holder in (model, model.graph, *model.graph.node, *model.graph.initializer):
        holder.ClearField("metadata_props")
        holder.doc_string = ""
    return bytes(model.SerializeToString())


def _difference(path: Path, runs: Sequence[Rows], run: Run) -> str | None:
    """Describe the difference between the file and the model on the runs; None where it is
    small."""
    try:
        session = OrtExecutor(path.read_bytes())
        worst = (0.0, "")
        for place, one in enumerate(runs):
            given = [one[name].astype(dtype) for name, dtype, _ in session.inputs if name in one]
            wanted = run(one)
            found = session.run(given)
            if len(wanted) != len(found):
                return f"it gives {len(found)} outputs, the model {len(wanted)}"
            for name, ours, theirs in zip(session.output_names, found, wanted):
                if ours.shape != theirs.shape:
                    return f"output {name} is {list(ours.shape)}, of the model {list(theirs.shape)}"
                if not ours.size:
                    continue
                apart = float(np.max(np.abs(ours.astype(np.float64) - theirs.astype(np.float64))))
                most = float(np.max(np.abs(theirs.astype(np.float64)))) or 1.0
                close = _CLOSE.get(str(theirs.dtype), _DEFAULT_CLOSE)
                if not apart <= close * most:
                    worst = max(worst, (apart, f"sample {place}, output {name}, up to {most:.4g}"))
    except CompilerError as error:
        return _line(error)
    if not worst[1]:
        return None
    return f"it is off by {worst[0]:.4g} ({worst[1]})"


def _line(error: BaseException) -> str:
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(error))  # torch colours what it says
    lines = [line.strip() for line in plain.splitlines() if line.strip()]
    return f"{type(error).__name__}: {(lines or [''])[0][:300]}"


def _example(samples: Any, names: Mapping[str, bool], run: Run) -> tuple[list[Rows], Any]:
    """Inputs of a few runs, of one sample each where axis 0 counts them; and the samples with
    these put back."""
    if samples is None or isinstance(samples, str | os.PathLike):
        items: list[Any] = [_stored(samples)]
    else:
        items, samples = _first(samples)
    single = _is(samples, "torch", "Dataset")
    parts = [_named(item, names) for item in items]
    single = single or any(given_single for _, given_single in parts)
    given = [part for part, _ in parts]
    error: Exception | None = None
    for runs in (_runs(given, alone) for alone in ((True,) if single else (False, True))):
        try:
            run(runs[0])
        except Exception as raised:  # of the user's code: anything
            error = error or raised
        else:
            return runs, samples
    with contextlib.suppress(Exception):
        run(given[0])  # states of layers have no samples on axis 0
        return given[:1], samples
    raise ModelFileError(
        f"the model cannot be run on a sample: {_line(error or ValueError())}",
        where=", ".join(f"{n}: {a.dtype}{list(a.shape)}" for n, a in parts[0][0].items()),
        fix=f"give calib as the model takes it: {', '.join(names)}; samples on axis 0, or one run",
    ) from error


def _stored(path: str | os.PathLike[str] | None) -> Any:
    with raised_as(
        ModelFileError,
        "a model in memory is exported with a few of its inputs; calib gives none",
        OSError,
        ValueError,
        zipfile.BadZipFile,
        where=f"calib is {path!r}",
        fix="give the model as (module, torch.zeros(1, 3, 224, 224)), or calib as "
        "an array, a mapping, a DataLoader, or the path of an .npz",
    ):
        if path is None or Path(path).suffix not in (".npy", ".npz"):
            raise ValueError("it is no array, no iterable, and no path of an .npy or .npz")
        check_exists(Path(path), "calib")
        found = np.load(path, allow_pickle=False)
        if isinstance(found, np.ndarray):
            return found[:COMPARED]
        return dict(found)


def _first(samples: Any) -> tuple[list[Any], Any]:
    """The first items, and samples that still begin with them."""
    if hasattr(samples, "shape"):
        return [samples[:COMPARED]], samples
    stream = data_items(samples)
    once = hasattr(samples, "get_next") or (
        isinstance(samples, Iterable) and iter(samples) is samples
    )
    taken: list[Any] = []
    for item in stream:
        taken.append(item)
        if len(taken) == COMPARED or _length(item) >= COMPARED:
            break
    if not taken:
        raise ModelFileError("calib holds no sample", where="calib", fix="give at least one sample")
    return taken, itertools.chain(taken, stream) if once else samples


def _length(item: Any) -> int:
    """Samples of a batch of pairs of tensors, as far as one look shows."""
    if isinstance(item, Mapping):
        first = next(iter(item.values()), ())
    else:
        first = item
    if isinstance(first, tuple | list) and len(first):
        first = first[0]
    shape = np.shape(first) if hasattr(first, "shape") else ()
    if len(shape) > 1:
        return int(shape[0])
    return 0


def _named(item: Any, names: Mapping[str, bool]) -> tuple[Rows, bool]:
    """Arrays by name without labels; whether they are of one sample, as far as it is known."""
    single = False
    if not _are_inputs(item, names):
        item, label = labelled(item, sum(names.values()))
        single = label is not None and np.ndim(as_array(label)) == 0
    if isinstance(item, Mapping):
        labels = [item[name] for name in LABEL_NAMES if name in item and name not in names]
        single = any(np.ndim(as_array(label)) == 0 for label in labels)
        rows = {name: as_array(item[name]) for name in names if name in item}
        others = [name for name in item if name not in LABEL_NAMES]
        if not rows and len(others) == 1:
            rows = {next(iter(names)): as_array(item[others[0]])}
        return rows, single
    row = item if _are_inputs(item, names) else [item]
    return {name: as_array(part) for name, part in zip(names, row)}, single


def _are_inputs(item: Any, names: Mapping[str, bool]) -> bool:
    """Return whether it is a row of inputs, and not an input, or a pair of one and a label."""
    if not isinstance(item, tuple | list) or not len(names) >= len(item) > 1:
        return False
    if any(isinstance(part, Mapping | tuple | list) for part in item):
        return False
    return len(item) == sum(names.values()) or len({np.shape(part) for part in item}) == 1


def _runs(parts: Sequence[Rows], alone: bool) -> list[Rows]:
    """The first samples of items that have the sizes of the first one, one a run."""
    fitting = [
        {name: array[None] if alone else array for name, array in part.items()} for part in parts
    ]
    sizes = {name: array.shape[1:] for name, array in fitting[0].items()}
    same = [part for part in fitting if {n: a.shape[1:] for n, a in part.items()} == sizes]
    rows = {n: np.concatenate([part[n] for part in same])[:COMPARED] for n in sizes}
    count = len(next(iter(rows.values())))
    return [{n: array[place : place + 1] for n, array in rows.items()} for place in range(count)]


# PyTorch ----------------------------------------------------------------------------------------


@contextlib.contextmanager
def _in_evaluation(module: Any) -> Iterator[None]:
    """Without dropout, without a cache of keys and values (which is no tensor), and without the
    encoder's one operator that ONNX does not have."""
    mha = importlib.import_module("torch").backends.mha
    parts = [(part, part.training, getattr(part, "config", None)) for part in module.modules()]
    caching = [c for *_, c in parts if c is not None and getattr(c, "use_cache", False)]
    fast = mha.get_fastpath_enabled()
    module.eval()
    mha.set_fastpath_enabled(False)
    for config in caching:
        config.use_cache = False
    try:
        yield
    finally:
        for part, training, _ in parts:
            part.training = training
        for config in caching:
            config.use_cache = True
        mha.set_fastpath_enabled(fast)


def _of_torch(module: Any) -> tuple[dict[str, bool], Run, dict[str, Export]]:
    torch = importlib.import_module("torch")
    for wrapper, inner in _WRAPPERS:
        if _is(module, "torch", wrapper):
            module = getattr(module, inner)
    weight = next((p for p in module.parameters() if p.is_floating_point()), None)
    if weight is not None and weight.dtype in (torch.bfloat16, torch.float64):
        # No runtime of ONNX has all operators in these.
        module = copy.deepcopy(module).float()
        weight = next(p for p in module.parameters() if p.is_floating_point())
    names = _inputs_of(module)

    def tensors(rows: Rows) -> dict[str, Any]:
        found = {name: torch.as_tensor(array) for name, array in rows.items()}
        if weight is None:
            return found
        return {
            name: tensor.to(weight.device, weight.dtype if tensor.is_floating_point() else None)
            for name, tensor in found.items()
        }

    def arguments(given: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """In a row where none is left out: what was traced has no names."""
        in_order = list(given) == list(names)[: len(given)]
        if in_order:
            return (tuple(given.values()), {})
        return ((), given)

    def run(rows: Rows) -> list[Array]:
        row, named = arguments(tensors(rows))
        with torch.no_grad():
            return [tensor.cpu().numpy() for tensor in _leaves(module(*row, **named))]

    def traced(path: Path, rows: Rows, free: bool) -> None:
        given = tensors(rows)
        row, named = arguments(given)
        axes = {name: {0: "batch"} for name in given if free}
        args = row or (named,)  # a mapping at the end is of keywords
        with torch.no_grad():
            torch.onnx.export(
                module, args, str(path), dynamo=False, input_names=list(given), dynamic_axes=axes
            )

    def dynamo(path: Path, rows: Rows, free: bool) -> None:
        given = tensors(rows)
        shapes = {name: {0: torch.export.Dim("batch")} for name in given}
        with torch.no_grad():
            torch.onnx.export(
                module,
                kwargs=given,
                f=str(path),
                dynamo=True,
                dynamic_shapes=shapes if free else None,
                external_data=False,
                verbose=False,
            )

    return names, run, {"traced": traced, "dynamo": dynamo}


def _inputs_of(module: Any) -> dict[str, bool]:
    """Names of what ``forward`` takes, and whether each must be given."""
    try:
        taken = inspect.signature(module.forward).parameters.values()
    except ValueError:  # a trace has none
        return {one.debugName(): True for one in list(module.graph.inputs())[1:]}
    named = [own for own in taken if own.kind not in (own.VAR_POSITIONAL, own.VAR_KEYWORD)]
    # What transformers computes a loss of is no input.
    return {
        own.name: own.default is own.empty
        for own in named
        if own.name not in LABEL_NAMES or own.default is own.empty
    }


def _leaves(value: Any) -> list[Any]:
    """The tensors of an answer in order."""
    found = []
    waiting = [value]
    while waiting:
        one = waiting.pop()
        if isinstance(one, Mapping):
            waiting.extend(reversed(list(one.values())))
        elif isinstance(one, tuple | list):
            waiting.extend(reversed(one))
        elif one is not None:
            found.append(one)
    return found


# Keras ------------------------------------------------------------------------------------------


def _of_keras(model: Any) -> tuple[dict[str, bool], Run, dict[str, Export]]:
    names = {str(tensor.name).partition(":")[0]: True for tensor in model.inputs}

    def run(rows: Rows) -> list[Array]:
        given = [rows[name] for name in names]
        found = model(given[0] if len(given) == 1 else given, training=False)
        return [as_array(tensor) for tensor in _leaves(found)]

    def own(path: Path, rows: Rows, free: bool) -> None:
        model.export(str(path), format="onnx", verbose=False)

    def tf2onnx(path: Path, rows: Rows, free: bool) -> None:
        importlib.import_module("tf2onnx.convert").from_keras(model, output_path=str(path))

    return names, run, {"export": own, "tf2onnx": tf2onnx}
