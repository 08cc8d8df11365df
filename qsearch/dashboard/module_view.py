"""A .qmod as the dashboard shows it: drawing, text, proof, files; runs in the inspector."""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from compiler.drawing.boxes import graph_of
from compiler.drawing.picture import picture_of
from compiler.ir.module import IRModule
from compiler.ir.text.printer import text
from compiler.proof.derive import derive_static
from compiler.proof.record import compare_record, record_state
from compiler.runtime.artifact import QModule, load_qmod
from compiler.transform import FuseOps
from qsearch.commands.export import export
from qsearch.commands.profiling import profile
from qsearch.dashboard.inspection import InspectionError

MAX_BOXES: Final = 4000
MAX_TEXT: Final = 8 << 20


def drawing_of(file: Path, groups: str) -> dict[str, Any]:
    """Frames of the module's functions, partition by partition.

    Args:
        groups: "none"; "fused", what FuseOps puts together; or an accelerator's name.
    """
    shipped = load_qmod(file)
    picture = picture_of(_grouped(shipped.module, groups))
    if picture.num_boxes > MAX_BOXES:
        raise InspectionError(
            f"the module has {picture.num_boxes} operators, too many to draw",
            where=file.name,
            fix="choose fused groups, or look at the text",
        )
    # The proof numbers the values of the module as it ships; groups number theirs anew.
    ranges = _ranges(shipped) if groups == "none" else {}
    return {"groups": groups, **graph_of(picture, ranges)}


def text_of(file: Path) -> dict[str, Any]:
    """IR text, configuration, provenance, functions."""
    shipped = load_qmod(file)
    constants: dict[str, Any] = {}
    whole = text(shipped.module, external_data=constants, show_spans=False)
    return {
        "text": whole[:MAX_TEXT],
        "cut": len(whole) > MAX_TEXT,
        "functions": shipped.functions,
        "qconfig": None if shipped.qconfig is None else shipped.qconfig.to_dict(),
        "provenance": dict(shipped.provenance),
        "bytes": file.stat().st_size,
        "sha256": hashlib.sha256(file.read_bytes()).hexdigest(),
        "inputs": {name: str(ty) for name, ty in shipped.input_types.items()},
    }


def proof_of(file: Path) -> dict[str, Any]:
    """The static proof, derived here and now, and whether the record of the writer agrees."""
    shipped = load_qmod(file)
    proof = derive_static(shipped.module)
    differs = compare_record(shipped.proof, proof.to_dict())
    record = "disagrees" if differs else record_state(shipped.proof)
    return {"derived": proof.to_dict(), "record": record}


def times_of(file: Path) -> dict[str, Any]:
    """CPU microseconds of every layer on the integer engine."""
    found = profile(file, rounds=5)
    layers = [{"layer": layer.layer, "us": 1e3 * layer.ms} for layer in found.layers]
    return {"isa": found.isa, "layers": layers}


def exported(file: Path, format: str, out: str) -> dict[str, Any]:
    """Write the module in another form and zip it; the zip's name follows from its content."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    target = Path(out) / f"{digest}-{format}.zip"
    with tempfile.TemporaryDirectory(dir=out) as folder:
        made = export(file, format, folder)
        part = Path(folder) / "part.zip"
        with zipfile.ZipFile(part, "w", zipfile.ZIP_DEFLATED) as archive:
            for path in made.files:
                archive.write(path, path.relative_to(folder))
        part.replace(target)
    return {"zip": str(target), "facts": made.facts}


def _grouped(module: IRModule, groups: str) -> IRModule:
    if groups == "none":
        return module
    if groups == "fused":
        fused: IRModule = FuseOps()(module)
        return fused
    from compiler.fusion.hardware.preparation import group_for_hardware
    from qsearch.commands.views import read_hardware

    return group_for_hardware(module, read_hardware(groups))


def _ranges(shipped: QModule) -> dict[str, Mapping[str, Any]]:
    """Return the proved bounds of the values of the integer function, by the value's number."""
    values = derive_static(shipped.module).to_dict()["values"]
    return {str(value["name"]).split(" ")[0]: value for value in values}
