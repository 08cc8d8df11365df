"""What ``--hw`` shows: the groups of a model on a described accelerator, with or without data."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from compiler.drawing import draw
from compiler.errors import NotFullyIntegralError
from compiler.fusion.hardware.command_list import register_command_list
from compiler.fusion.hardware.description import load_hdfg
from compiler.fusion.hardware.hdfg import HDFG
from compiler.fusion.hardware.preparation import group_for_hardware
from compiler.fusion.hardware.report import HardwareReport, hw_report
from compiler.ir.module import IRModule
from compiler.qtypes.qconfig import QConfig
from compiler.quantize import Calibration, without_data
from qsearch.model_source import find_model
from qsearch.module_file import read_module
from qsearch.run_folder import RunFolder
from qsearch.single import import_model, named_dims


def read_hardware(hw: str) -> HDFG:
    """The description that ``--hw`` names; its groups can be compiled to command lists.

    Raises:
        HDFGError: it is wrong or not there.
    """
    hdfg = load_hdfg(hw)
    register_command_list(hdfg.name)
    return hdfg


def show_hardware(
    path: Path, hw: str, matcher: str, format: str, after: str | None, dim: Any
) -> str:
    """See ``qsearch.api.show_hardware``."""
    hdfg = read_hardware(hw)
    module = _module(path, after, dim)
    if format == "text":
        return str(hw_report(module, hdfg, matcher))
    if format == "json":
        return json.dumps(hw_report(module, hdfg, matcher).to_dict())
    return draw(group_for_hardware(module, hdfg, matcher), format)


def _module(path: Path, after: str | None, dim: Any) -> IRModule:
    """A file's module with its weights as constants, norms folded unless passes were named."""
    is_model = path.suffix not in (".qmod", ".relay") and not RunFolder(path).module.is_file()
    if after is None and is_model:
        return import_model(find_model(path), dim)
    return read_module(path, dims=named_dims(dim), after=after, closed=True)


def report_without_data(
    module: IRModule, qconfig: QConfig, hw: str, matcher: str = "greedy"
) -> HardwareReport:
    """The groups of a model once it is quantized, before there are data to quantize it with.

    Ranges decide numbers, and hardly which operators there are; so ``global_scale`` stands in.

    Args:
        module: the float module after prerequisite_optimize.
        qconfig: what it will be quantized with; fields that need data are not looked at.
        hw: as ``--hw``.

    Raises:
        HDFGError: the description is wrong or not there.
        CompilerError: the model cannot be quantized.
    """
    hdfg = read_hardware(hw)
    plain, calibration = without_data(qconfig), Calibration(module)
    try:
        candidate = calibration.candidate(plain)
    except NotFullyIntegralError:
        candidate = calibration.candidate(plain.with_overrides(partition_conversions="disabled"))
    return hw_report(candidate.module, hdfg, matcher)
