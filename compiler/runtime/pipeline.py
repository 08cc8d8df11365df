"""A module between the float parts of its model: what stands in front of it and behind it.

A .qmod of a model that was cut keeps these parts as ``before.onnx`` and ``after.onnx``. Values go
by the names of the model: its inputs, what the part in front adds, what the module adds, and what
the head makes of them. onnxruntime runs the float parts; nothing of them is proved.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pkgutil import resolve_name
from typing import Any, Final

import numpy as np

from compiler.errors import EvaluationError
from compiler.ir.expr import Array
from compiler.runtime.interface import Interface

KEY: Final = "pipeline"
"""Key of the provenance: inputs and outputs of the whole model, as of ``Interface``."""
BEFORE: Final = "before.onnx"
AFTER: Final = "after.onnx"
MAX_PART_BYTES: Final = 512 << 20
"""Upper limit of the bytes of a float part in a .qmod."""
# Imported when a part is run. The reader refuses parts that name other files.
_READER: Final = "compiler.frontend.from_onnx.model_file:read_model"
_SESSION: Final = "compiler.targets.ort.session:open_part"


@dataclass(frozen=True, slots=True, eq=False)
class Pipeline:
    """The float parts around a module.

    Args:
        whole: inputs and outputs of the model.
        core: inputs and outputs of the module.
        before, after: ONNX files; None where there is none.
    """

    whole: Interface
    core: Interface
    before: bytes | None = field(default=None, repr=False)
    after: bytes | None = field(default=None, repr=False)
    _sessions: dict[str, Any] = field(default_factory=dict, repr=False)

    @property
    def around(self) -> tuple[bytes | None, bytes | None]:
        """The float parts."""
        return self.before, self.after

    def prepare(self, inputs: Mapping[str, Array]) -> dict[str, Array]:
        """The inputs of the model, and what the part in front makes of them.

        Raises:
            EvaluationError, CodegenError: onnxruntime is not there, or refuses the part or inputs.
        """
        return self._ran(BEFORE, self.before, dict(inputs))

    def finish(self, values: Mapping[str, Array], outputs: Sequence[Array]) -> list[Array]:
        """The outputs of the model.

        Args:
            values: of ``prepare``.
            outputs: of the module.
        Raises:
            EvaluationError, CodegenError: as ``prepare``.
        """
        names = [port.name for port in self.core.outputs]
        found = {**values, **dict(zip(names, outputs, strict=True))}
        found = self._ran(AFTER, self.after, found)
        return [found[port.name] for port in self.whole.outputs]

    def pack(self) -> bytes:
        """Pack the data of ``finish`` as bytes that ``unpack`` reads."""
        part = base64.b64encode(self.after or b"").decode()
        found = {"whole": self.whole.to_dict(), "core": self.core.to_dict(), "after": part}
        return json.dumps(found).encode()

    @staticmethod
    def unpack(data: bytes) -> Pipeline:
        """The head of a packed pipeline, without the part in front."""
        found = json.loads(data)
        whole = Interface.read(found["whole"])
        core = Interface.read(found["core"])
        assert whole is not None
        assert core is not None
        return Pipeline(whole, core, None, base64.b64decode(found["after"]) or None)

    @property
    def beside(self) -> tuple[str, ...]:
        """Values that the head reads and the module does not give."""
        if self.after is None:
            needed = [port.name for port in self.whole.outputs]
        else:
            needed = list(self._session(AFTER, self.after).input_names)
            given = set(self._session(AFTER, self.after).output_names)
            needed += [p.name for p in self.whole.outputs if p.name not in given]
        own = {port.name for port in self.core.outputs}
        return tuple(dict.fromkeys(name for name in needed if name not in own))

    @property
    def sampled(self) -> tuple[bool, ...]:
        """For each output of the model, whether its leading axis is that of the samples."""
        first = {port.dims[0] for port in self.whole.inputs if port.dims}
        return tuple(bool(p.dims) and p.dims[0] in first | {1} for p in self.whole.outputs)

    @property
    def gives_classes(self) -> bool:
        """Return whether the first output of the model can be answers of a classifier, or their
        scores."""
        return self.sampled[0] and len(self.whole.outputs[0].dims) <= 2

    def open(self) -> None:
        """Open the float parts, which may have been written by anybody.

        Raises:
            EvaluationError, CodegenError: as ``prepare``; a part takes too long or too much memory.
        """
        for name, part in zip((BEFORE, AFTER), self.around):
            if part is not None:
                self._session(name, part)

    def _session(self, name: str, part: bytes) -> Any:
        if name not in self._sessions:
            try:
                read = resolve_name(_READER)
                made = resolve_name(_SESSION)
            except ImportError as error:
                raise EvaluationError(
                    f"{name}, the float part of the model, needs onnxruntime",
                    fix="pip install onnxruntime, or run the integers alone with core=True",
                ) from error
            self._sessions[name] = made(read(part))
        return self._sessions[name]

    def _ran(self, name: str, part: bytes | None, values: dict[str, Array]) -> dict[str, Array]:
        if part is None:
            return values
        session = self._session(name, part)
        taken = {}
        for wanted, dtype, _ in session.inputs:
            if wanted not in values:
                raise EvaluationError(f"{name} reads {wanted!r}, which nothing computes")
            array = np.asarray(values[wanted])
            cast = array.dtype.kind == "f" and str(array.dtype) != dtype
            taken[wanted] = array.astype(dtype) if cast else array
        return {**values, **dict(zip(session.output_names, session.run(taken), strict=True))}
