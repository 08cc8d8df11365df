"""What ``qsearch doctor`` says of a model before a search, without data."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from compiler.errors import CompilerError
from compiler.frontend.from_onnx.declared_inputs import DeclaredInput, declared_inputs
from compiler.frontend.from_onnx.saturation import saturation_warnings
from compiler.fusion.hardware.report import HardwareReport
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Diagnosis, diagnose
from qsearch.hardware import report_without_data
from qsearch.model_source import ModelSource, find_model
from qsearch.single import import_model, resolve_qconfig
from qsearch.store.artifacts import write_atomically
from workers.datasets.protocol import InputSpec
from workers.datasets.registry import input_specs


@dataclass(frozen=True, slots=True)
class ModelDiagnosis:
    """A diagnosis and the inputs it holds for.

    Attributes:
        model: what the user called it.
        declared: the inputs as the file declares them.
        inputs: the inputs with the sizes the diagnosis was made for.
        diagnosis: operator by operator.
        hardware: the groups of the quantized model, where an accelerator was named.
        warnings: where onnxruntime may compute something else from the file than qsearch.
    """

    model: str
    declared: tuple[DeclaredInput, ...]
    inputs: tuple[InputSpec, ...]
    diagnosis: Diagnosis
    hardware: HardwareReport | None = None
    warnings: tuple[str, ...] = ()

    def hints(self) -> list[str]:
        """One line per dimension that the file leaves open: what was assumed, how to change it."""
        shapes = {spec.name: spec.shape for spec in self.inputs}
        lines: dict[str, None] = {}
        for entry in self.declared:
            for axis in entry.unknown_axes:
                name, size = entry.dims[axis], shapes[entry.name][axis]
                if name == "?":
                    change = "the file gives it no name, so no option changes it"
                else:
                    change = f"--dim {name}=… changes it"
                lines[f"axis {axis} of {entry.name} ({name}) was taken as {size}; {change}"] = None
        return list(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain JSON values."""
        return {
            "model": self.model,
            "inputs": [
                {"name": s.name, "dtype": s.dtype, "shape": list(s.shape), "declared": list(d.dims)}
                for s, d in zip(self.inputs, self.declared)
            ],
            "hints": self.hints(),
            "warnings": list(self.warnings),
            **self.diagnosis.to_dict(),
            **({} if self.hardware is None else {"hardware": self.hardware.to_dict()}),
        }


def diagnose_model(
    model: str | os.PathLike[str],
    qconfig: QConfig | Mapping[str, Any] | str | None,
    dim: Any,
    hw: str | None = None,
    space_out: str | os.PathLike[str] | None = None,
) -> ModelDiagnosis:
    """See ``qsearch.api.doctor``."""
    config = resolve_qconfig(qconfig)
    source = find_model(model)
    warnings = saturation_warnings(source.path)
    try:
        return _diagnosed(source, config, dim, hw, space_out, warnings)
    except CompilerError as error:
        # A model that is quantized already may be refused; the user runs it with onnxruntime.
        for warning in warnings:
            error.add_note(warning)
        raise


def _diagnosed(
    source: ModelSource,
    config: QConfig,
    dim: Any,
    hw: str | None,
    space_out: str | os.PathLike[str] | None,
    warnings: tuple[str, ...],
) -> ModelDiagnosis:
    module = import_model(source, dim)
    if space_out is not None:
        from qsearch.search.space_file import described_space

        write_atomically(Path(space_out), described_space(module, source.name).encode())
    return ModelDiagnosis(
        source.name,
        declared_inputs(source.path),
        tuple(input_specs(module)),
        diagnose(module, config),
        None if hw is None else report_without_data(module, config, hw),
        warnings,
    )
