"""best.qmod: the module that ships, with its configuration, provenance and samples, as one file.

manifest.json     format version, sha256 of every member
module.relay      text; holds ``def @quantized_main`` when it is partitioned
tensors.bin       its constants, packed (packed)
spans.json        the ONNX nodes that its calls came from, where there are any
qconfig.json      the QConfig it was made with
provenance.json   hashes of model and data, versions, seed; no time, host or path
before.onnx, after.onnx   the float parts of a model that was cut, if it was (pipeline)
samples/*.npy     a few inputs of the module with its outputs; see ``_packed`` and ``repeated``
samples/*.json    outputs of them that would be large, as ``OutputHash``
proof.json        what was proved of the module when it was written (compiler.proof), if it was
"""

from __future__ import annotations

import hashlib
import importlib
import json
import math
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, Final, cast

import numpy as np

from compiler.errors import (
    ArtifactError,
    CompilerError,
    EvaluationError,
    TypeInferenceError,
    check_known,
    raised_as,
)
from compiler.ir.analysis import post_order
from compiler.ir.call_spans import restore_spans, spans_of
from compiler.ir.expr import Array, Constant, Function, GlobalVar, Op, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.text.literals import scalar_literal
from compiler.ir.text.parser import parse
from compiler.ir.text.printer import text
from compiler.ir.text.printer_body import ScalarUses
from compiler.ir.ty import TensorType, holds_float, is_dynamic, tensor_fields
from compiler.ir.walk import nodes_of
from compiler.qtypes.qconfig import QConfig
from compiler.runtime.archive import json_bytes, read_archive, read_json, write_archive
from compiler.runtime.call import Call
from compiler.runtime.exact_executor import (
    EXECUTOR_FACTORIES,
    Chosen,
    exact_executor,
    executor_named,
)
from compiler.runtime.executor import Inputs, ordered_inputs
from compiler.runtime.interface import Interface
from compiler.runtime.npy import array_of, npy_bytes
from compiler.runtime.packed import member_bytes, pack, unpack
from compiler.runtime.pipeline import AFTER, BEFORE, MAX_PART_BYTES, Pipeline
from compiler.runtime.pipeline import KEY as PIPELINE
from compiler.text_output import html_table

Sample = tuple[dict[str, Array], list[Array]]
"""Inputs by name, and the outputs the exact reference gave."""


@dataclass(frozen=True, slots=True)
class OutputHash:
    """The shape, dtype and SHA-256 of an output, in place of its values."""

    shape: tuple[int, ...]
    dtype: str
    sha256: str

    @classmethod
    def of(cls, array: Array) -> OutputHash:
        """The hash of an array's elements, row-major."""
        return cls(array.shape, str(array.dtype), hashlib.sha256(array.tobytes()).hexdigest())


StoredSample = tuple[dict[str, Array], list[Array | OutputHash]]
"""A sample of which a file holds large outputs as hashes."""

SPANS = "spans.json"
TENSORS = "tensors.bin"

_FIRST_BYTES: Final = 1 << 16
_SAMPLES_BYTES: Final = 1 << 12
_SAMPLES_SHARE: Final = 0.05
"""Share of the packed constants that samples may take. The first sample takes this or
``_FIRST_BYTES``, all of them this or ``_SAMPLES_BYTES``, at most."""
PERIOD: Final = 1 << 11
"""Elements of an input that a sample repeats where the whole input would be too large."""
_CODES: Final = 256
_MOST_ELEMENTS: Final = 1 << 26
"""Upper limit of the elements of all inputs of a file, where it repeats the beginning of one."""
AUTO: Final = "auto"
"""The executor that is fast where it is exact: see ``QModule.run``."""
_CORE: Final = "quantized_main"
_NO_VALUES: Final = (Op, GlobalVar, Function)


@dataclass(frozen=True, slots=True, eq=False)
class QModule:
    """A quantized module that can be run, printed and saved.

    Args:
        module: typed; ``main`` takes and returns what the float model does.
        qconfig: what it was made with, or None when unknown.
        provenance: plain JSON values; no time, host or path, which would differ between equal runs.
        samples: a few inputs by name, with the outputs of the exact reference.
        proof: what ``compiler.proof`` recorded, as plain JSON values; None where it did not.
        before, after: float parts of the model in front of the module and behind it, as ONNX.
    """

    module: IRModule
    qconfig: QConfig | None = None
    # What these hold is as long as the module: a person who prints one sees what it is.
    provenance: Mapping[str, Any] = field(default_factory=dict, repr=False)
    samples: Sequence[StoredSample] = field(default=(), repr=False)
    proof: Mapping[str, Any] | None = field(default=None, repr=False)
    before: bytes | None = field(default=None, repr=False)
    after: bytes | None = field(default=None, repr=False)
    _pipelines: list[Pipeline] = field(default_factory=list, repr=False)
    _executors: dict[str, Chosen] = field(default_factory=dict, repr=False)
    _calls: dict[tuple[str, int], Call] = field(default_factory=dict, repr=False)

    def __deepcopy__(self, memo: dict[int, Any]) -> QModule:
        """Return a module of the same frozen records, without executors and sessions."""
        return replace(self, _pipelines=[], _executors={}, _calls={})

    @property
    def functions(self) -> list[str]:
        """Names of the functions, sorted; "quantized_main" among them when it is partitioned."""
        return [gv.name_hint for gv in self.module.functions]

    @property
    def main(self) -> Function:
        """The function that ``run`` runs."""
        return cast(Function, self.module["main"])

    @property
    def input_types(self) -> dict[str, TensorType]:
        """Type of every input by name, for one sample."""
        return {p.name_hint: p.tensor_type for p in self.main.params}

    @property
    def interface(self) -> Interface | None:
        """Inputs and outputs of the model it was made from; None where they are not known."""
        count = len(tensor_fields(self.main.func_type.ret_type))
        names = [param.name_hint for param in self.main.params]
        return Interface.of(self.provenance, names, count)

    @property
    def pipeline(self) -> Pipeline | None:
        """The float parts around the module; None where it is the whole model.

        Raises:
            ArtifactError: there are such parts, and the provenance does not say of which model.
        """
        if self.before is None and self.after is None:
            return None
        if not self._pipelines:
            whole = Interface.read(self.provenance.get(PIPELINE))
            core = self.interface
            if whole is None or core is None:
                raise ArtifactError(
                    "the module has float parts around it and does not say what they take and give",
                    where="provenance.json",
                    fix="write it anew, or run the integers alone with core=True",
                )
            self._pipelines.append(Pipeline(whole, core, self.before, self.after))
        return self._pipelines[0]

    @property
    def input_names(self) -> tuple[str, ...]:
        """Names of the inputs, in order."""
        return tuple(self.input_types)

    def run(
        self, inputs: Inputs, executor: str = AUTO, threads: int = 1, *, core: bool = False
    ) -> list[Array]:
        """Run on a batch: the whole model, its float parts by onnxruntime.

        Args:
            inputs: an array per input, by name or in order, or that of an only input. An
                input that the model had in float16 or float64 may come so; then the outputs have
                the model's dtypes as well. Where the leading axis is longer than the
                module's, the samples are run one after the other and the outputs joined along their
                first axis.
            executor: "auto", where ``quantized_main`` holds integers only that of
                ``exact_executor`` (the engine, if it can), else the reference; the bits are the
                same, and a warning says what makes it slower. "reference", the exact integers on
                numpy; "engine", the same by kernels compiled once per machine; "integer", the same
                on onnxruntime (slow; an independent check); "c", the same compiled from the C of
                ``qsearch export``.
            threads: that share the samples of a batch on the engine, or the steps of one sample.
            core: run the module alone: its inputs and outputs are those at the cut.
        Raises:
            EvaluationError: names, shapes or dtypes do not fit; both sides are named.
        """
        pipeline = None if core else self.pipeline
        if pipeline is not None:
            return self._run_whole(pipeline, inputs, executor, threads)
        return self._call(executor, threads)(inputs)

    def __call__(self, *inputs: Any, **named: Any) -> Any:
        """The output, or a tuple of several, of inputs in order or by name; see ``run``.

        Names are keywords or a mapping. Tensors of torch give tensors.
        """
        if len(inputs) == 1 and isinstance(inputs[0], Mapping):
            named = {**inputs[0], **named}
            inputs = ()
        given = [*inputs, *named.values()]
        tensors = any(hasattr(each, "detach") for each in given)
        arrays = [
            each.detach().cpu().numpy() if hasattr(each, "detach") else each for each in given
        ]
        outputs: list[Any] = self.run(dict(zip(named, arrays)) if not inputs else arrays)
        if tensors:
            outputs = list(map(importlib.import_module("torch").from_numpy, outputs))
        if len(outputs) == 1:
            return outputs[0]
        return tuple(outputs)

    def _run_whole(
        self, pipeline: Pipeline, inputs: Inputs, executor: str, threads: int
    ) -> list[Array]:
        """The part in front, the module, the head; sample by sample where the model is made so."""
        ports = pipeline.whole.inputs
        names = [port.name for port in ports]
        given = dict(zip(names, map(np.asarray, ordered_inputs(names, inputs)), strict=True))
        sizes = [p.dims[0] for p in ports if p.dims and isinstance(p.dims[0], int)]
        size = sizes[0] if sizes else 0
        count = next((len(array) for array in given.values() if array.ndim), size)
        if not size or count <= size or count % size:
            values = pipeline.prepare(given)
            core = {name: values[name] for name in self.input_names}
            lengths = [{np.shape(v)[:1] for v in side.values()} for side in (given, core)]
            joins = all(ty.shape for ty in tensor_fields(self.main.func_type.ret_type))
            alike = joins and lengths[0] == lengths[1]
            if size or count < 2 or lengths[0] != {(count,)} or alike:
                return pipeline.finish(values, self.run(core, executor, threads, core=True))
            size = 1  # the part in front joins samples, or the core gives a scalar
        parts = [
            self._run_whole(
                pipeline,
                {n: array[start : start + size] for n, array in given.items()},
                executor,
                threads,
            )
            for start in range(0, count, size)
        ]
        return [np.concatenate([*map(np.atleast_1d, outs)]) for outs in zip(*parts, strict=True)]

    def prepare(self, executor: str = AUTO, threads: int = 1) -> Callable[[Inputs], list[Array]]:
        """``run`` for a loop: a function of the inputs, with all decided that can be.

        Args:
            executor, threads: as for ``run``.
        Raises:
            EvaluationError: there is no such executor.
        """
        if (pipeline := self.pipeline) is not None:
            return lambda inputs: self._run_whole(pipeline, inputs, executor, threads)
        return self._call(executor, threads)

    def form(self, executor: str = AUTO) -> tuple[str, str]:
        """The executor that ``run`` takes, and why it is no faster one; "" for the engine.

        Raises:
            EvaluationError: there is no such executor.
        """
        name, _, note = self._executor(executor)
        return name, note

    def _call(self, executor: str, threads: int) -> Call:
        known = self._calls.get((executor, threads))
        if known is None:
            types = [(param.name_hint, param.tensor_type) for param in self.main.params]
            joins = all(ty.shape for ty in tensor_fields(self.main.func_type.ret_type))
            run = self._executor(executor).executor
            known = Call(run, types, self.interface, threads, joins)
            self._calls[executor, threads] = known
        return known

    def _executor(self, name: str) -> Chosen:
        legal = (AUTO, *EXECUTOR_FACTORIES)
        check_known(name, legal, f"unknown executor {name!r}", EvaluationError)
        if name not in self._executors:
            if name == AUTO and self._computes_integers_only():
                chosen = exact_executor(self.module)
            else:
                found = "reference" if name == AUTO else name
                if name == AUTO:
                    note = "quantized_main holds floats"
                else:
                    note = "asked for"
                known = self._executors.get(found)
                if known:
                    executor = known.executor
                else:
                    executor = executor_named(found, self.module)
                chosen = Chosen(found, executor, note)
            self._executors[name] = chosen
            self._executors.setdefault(chosen.name, chosen)
        return self._executors[name]

    def _computes_integers_only(self) -> bool:
        core = {var.name_hint: fn for var, fn in self.module.functions.items()}.get(_CORE)
        if not isinstance(core, Function):
            return False
        values = (node for node in post_order(core) if not isinstance(node, _NO_VALUES))
        return not any(holds_float(node.checked_type) for node in values)

    def text(self, show_types: bool = True) -> str:
        """Relay text of the module."""
        return text(self.module, show_types)

    def _repr_html_(self) -> str:
        """Return the table of functions and provenance that a notebook shows."""
        shown = self.module.html("QModule")
        if self.qconfig is None:
            return shown
        return shown + html_table("QConfig", (), self.qconfig.to_dict().items())

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write the module as one file; equal modules write equal bytes.

        Raises:
            ArtifactError: the file cannot be written, or is called .onnx.
        """
        refuse_onnx_name(path)
        tensors: dict[str, Array] = {}
        # Places in texts say where a module was read from, which must not show in its bytes.
        shown = text(self.module, show_types=False, external_data=tensors, show_spans=False)
        members = {"module.relay": shown.encode(), TENSORS: pack(tensors)}
        spans = spans_of(self.module, onnx_only=True)
        if spans["spans"]:
            members[SPANS] = json.dumps(spans, separators=(",", ":")).encode()
        config = {} if self.qconfig is None else self.qconfig.to_dict()
        members["qconfig.json"] = json_bytes(config)
        members["provenance.json"] = json_bytes(dict(self.provenance))
        if self.proof is not None:
            members["proof.json"] = json_bytes(dict(self.proof))
        parts = ((BEFORE, self.before), (AFTER, self.after))
        members.update({name: part for name, part in parts if part is not None})
        members.update(self._sample_members())
        write_archive(path, members)

    def _sample_members(self) -> dict[str, bytes]:
        names = [param.name_hint for param in self.main.params]
        if self.samples and len(set(names)) < len(names):
            raise ArtifactError(
                "samples are kept by input name, and two inputs have one name",
                where=f"inputs {', '.join(names)}",
                fix="rename one of them, or save the module without samples",
            )
        members: dict[str, bytes] = {}
        for number, (inputs, outputs) in enumerate(self.samples):
            # Input names may hold any character; members go by the number of the parameter.
            for index, param in enumerate(self.main.params):
                name = f"samples/s{number}_input{index}"
                members.update(_members(name, _packed_input(param, inputs[param.name_hint])))
            for index, output in enumerate(outputs):
                name = f"samples/s{number}_output{index}"
                if isinstance(output, OutputHash):
                    members[f"{name}.json"] = json_bytes(asdict(output))
                else:
                    members.update(_members(name, _packed(output)))
        return members


def _members(name: str, parts: Mapping[str, Array]) -> dict[str, bytes]:
    return {f"{name}{suffix}.npy": npy_bytes(part) for suffix, part in parts.items()}


def refuse_onnx_name(path: str | os.PathLike[str]) -> None:
    """Keep a module from the name of an ONNX file, which is often the model it was made from.

    Raises:
        ArtifactError: the name ends in .onnx.
    """
    name = os.fspath(path)
    if name.lower().endswith(".onnx"):
        raise ArtifactError(
            f"{name} would not be ONNX: what is written is a .qmod",
            fix=f"name it {name[:-5]}.qmod; `qsearch export` writes ONNX from it",
        )


def constants_of(module: IRModule) -> list[Array]:
    """The arrays of the member ``tensors.bin`` but for scales of channels: all constants but the
    scalars that the text holds."""
    functions = list(module.functions.values())
    uses = ScalarUses(*functions)
    nodes = (node for function in functions for node in post_order(function))
    return [
        one.data
        for one in dict.fromkeys(node for node in nodes if isinstance(node, Constant))
        if not one.is_scalar or uses.of(one) > 1 or scalar_literal(one.data) is None
    ]


def fitting_samples(
    module: IRModule,
    inputs: Iterable[Mapping[str, Array]],
    run: Callable[[Mapping[str, Array]], Sequence[Array]],
) -> list[StoredSample]:
    """The first sample, and those behind it that a file has room for.

    An input that is too large for the first sample becomes one that repeats its beginning; an
    output beyond 64 KiB, or without room, becomes a hash. What is not kept is not run.

    Args:
        run: the reference.
    """
    share = _SAMPLES_SHARE * member_bytes(constants_of(module))
    most = max(_FIRST_BYTES, share)
    room = max(_SAMPLES_BYTES, share)
    params = module["main"].params
    kept: list[StoredSample] = []
    for given in inputs:
        taken = dict(given)
        size = sum(_bytes(_packed_input(p, taken[p.name_hint])) for p in params)
        if size > most:
            taken = all_repeated(taken, PERIOD)
            size = sum(_bytes(_packed_input(p, taken[p.name_hint])) for p in params)
        outputs: list[Array | OutputHash] = []
        for output in run(taken):
            length = _bytes(_packed(output))
            hashed = output.nbytes > _FIRST_BYTES or size + length > most
            outputs.append(OutputHash.of(output) if hashed else output)
            size += 0 if hashed else length
        room -= size
        if kept and room < 0:
            break
        kept.append((taken, outputs))
        if room < size:  # samples of a model are alike
            break
    return kept


def repeated(array: Array, period: int) -> Array:
    """An array of this shape that repeats the first ``period`` elements."""
    return np.resize(array.reshape(-1)[:period], array.shape)


def all_repeated(arrays: Mapping[str, Array], period: int) -> dict[str, Array]:
    """Inputs of which a file holds a beginning only: all repeat their first elements."""
    return {name: repeated(array, period) for name, array in arrays.items()}


def period_of(array: Array, most: int = PERIOD) -> int:
    """1 or ``most`` where an array repeats so many elements, as states of zeros do; else 0."""
    flat = array.reshape(-1)
    for period in (1, most):
        if flat.size > 2 * period and repeated(flat, period).tobytes() == flat.tobytes():
            return period
    return 0


def _bytes(parts: Mapping[str, Array]) -> int:
    return sum(part.nbytes for part in parts.values())


def _packed_input(param: Var, array: Array) -> dict[str, Array]:
    """Pack an input as ``_packed``; the beginning ("_begin") of an input that repeats it."""
    array = np.asarray(array)
    known = _static_shape(param) == array.shape
    period = period_of(array) if known else 0
    if period:
        return {"_begin": array.reshape(-1)[:period]}
    return _packed(array)


def _static_shape(param: Var) -> tuple[int, ...] | None:
    ty = param.checked_type
    if not isinstance(ty, TensorType) or is_dynamic(ty):
        return None
    return ty.concrete_shape


def _packed(array: Array) -> dict[str, Array]:
    """Return the arrays that are stored for an array, by the end of a member's name: its values
    (""), or where each channel (axis 1) has at most 256 of them, as pictures and dequantized
    outputs do, their table ("_values", by channel) and a uint8 for each element ("_codes")."""
    array = np.asarray(array)
    plain = {"": array}
    if array.dtype != np.float32 or array.ndim < 3 or array.size < 8 * _CODES * array.shape[1]:
        return plain
    rows = np.moveaxis(array, 1, 0).reshape(array.shape[1], -1).view(np.int32)
    if any(len(np.unique(row[: 8 * _CODES])) > _CODES for row in rows):
        return plain
    values = np.zeros((len(rows), _CODES), np.int32)
    codes = np.empty(rows.shape, np.uint8)
    for row, table, code in zip(rows, values, codes):
        found, places = np.unique(row, return_inverse=True)
        if len(found) > _CODES:
            return plain
        table[: len(found)], code[:] = found, places
    moved = (array.shape[1], array.shape[0], *array.shape[2:])
    back = np.moveaxis(codes.reshape(moved), 0, 1)
    return {"_values": values.view(np.float32), "_codes": np.ascontiguousarray(back)}


def _unpacked(members: Mapping[str, bytes], name: str) -> Array | None:
    """Inverse of ``_packed``; None where there is no such member."""
    if f"{name}.npy" in members:
        return array_of(members[f"{name}.npy"], f"{name}.npy")
    parts = [f"{name}_{part}.npy" for part in ("values", "codes")]
    if not all(part in members for part in parts):
        return None
    values, codes = (array_of(members[part], part) for part in parts)
    if codes.dtype != np.uint8 or codes.ndim < 3 or values.shape != (codes.shape[1], _CODES):
        raise ArtifactError(f"member {parts[1]!r} does not fit {parts[0]!r}", fix="write it anew")
    channel = np.arange(len(values)).reshape(-1, *[1] * (codes.ndim - 2))
    return values[channel, codes]


def load_qmod(path: str | os.PathLike[str] | bytes) -> QModule:
    """Read a file written by ``QModule.save``, or its content.

    Raises:
        ArtifactError: the file is missing, damaged, changed, or no .qmod of this version.
    """
    members = read_archive(path)
    path = "module.qmod" if isinstance(path, bytes) else path
    for name in ("module.relay", TENSORS, "qconfig.json", "provenance.json"):
        if name not in members:
            raise ArtifactError(f"{path} lacks {name!r}", fix="write it anew")
    tensors = unpack(members[TENSORS], TENSORS)
    with raised_as(
        ArtifactError,
        f"{path} holds a module that this qsearch cannot read",
        CompilerError,
        TypeError,
        UnicodeDecodeError,
        KeyError,
        fix="use the qsearch that wrote it",
    ):
        source = members["module.relay"].decode()
        parsed = parse(source, source_name="module.relay", external_data=tensors)
        if SPANS in members:
            # For people only: a list that does not fit the module says nothing about it.
            restore_spans(parsed, read_json(members[SPANS], SPANS), keep_others=True)
        module = infer_module(parsed)
        _check_scales(module)
        values = read_json(members["qconfig.json"], "qconfig.json")
        qconfig = QConfig.stored(values) if values else None
        parameters = module["main"].params
    provenance = read_json(members["provenance.json"], "provenance.json")
    samples = _samples(members, parameters)
    if "proof.json" in members:
        proof = read_json(members["proof.json"], "proof.json")
    else:
        proof = None
    parts = (members.get(BEFORE), members.get(AFTER))
    for name, part in zip((BEFORE, AFTER), parts):
        if part is not None and len(part) > MAX_PART_BYTES:
            raise ArtifactError(
                f"{name} has {len(part)} bytes; the limit is {MAX_PART_BYTES}", where=str(path)
            )
    return QModule(module, qconfig, provenance, samples, proof, *parts)


def _check_scales(module: IRModule) -> None:
    """Refuse scales that lie along no axis of their value.

    Raises:
        TypeInferenceError: such scales.
    """
    for function in module.functions.values():
        for node in nodes_of(function) if isinstance(function, Function) else ():
            quant = node.quant
            if quant is None or all(
                quant.fits(ty.shape) for ty in tensor_fields(node.checked_type)
            ):
                continue
            raise TypeInferenceError(
                f"scales of shape {quant.scales.shape} lie along no axis of {node.checked_type}"
            )


def _samples(members: Mapping[str, bytes], params: Sequence[Var]) -> tuple[StoredSample, ...]:
    samples: list[StoredSample] = []
    stored = {name.partition("_")[0] for name in members if name.startswith("samples/s")}
    left = _MOST_ELEMENTS
    while f"samples/s{len(samples)}" in stored:
        prefix = f"samples/s{len(samples)}_"
        inputs = {}
        for index, param in enumerate(params):
            array = _unpacked_input(members, f"{prefix}input{index}", param, left)
            if array is None:
                raise ArtifactError(f"member '{prefix}input{index}.npy' is missing")
            inputs[param.name_hint], left = array, left - array.size
        outputs: list[Array | OutputHash] = []
        while (output := _output(members, f"{prefix}output{len(outputs)}")) is not None:
            outputs.append(output)
        samples.append((inputs, outputs))
    return tuple(samples)


def _unpacked_input(members: Mapping[str, bytes], name: str, param: Var, most: int) -> Array | None:
    begin = f"{name}_begin.npy"
    if begin not in members:
        return _unpacked(members, name)
    shape = _static_shape(param)
    if shape is None or math.prod(shape) > most:
        raise ArtifactError(f"member {begin!r} does not fit the module", fix="write it anew")
    return np.resize(array_of(members[begin], begin).reshape(-1), shape)


def _output(members: Mapping[str, bytes], name: str) -> Array | OutputHash | None:
    if f"{name}.json" not in members:
        return _unpacked(members, name)
    facts = read_json(members[f"{name}.json"], f"{name}.json")
    try:
        return OutputHash(tuple(facts["shape"]), str(facts["dtype"]), str(facts["sha256"]))
    except (KeyError, TypeError) as error:
        raise ArtifactError(
            f"member '{name}.json' is not an output", fix="write it anew"
        ) from error
