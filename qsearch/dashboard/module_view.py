"""A .qmod as the dashboard shows it: drawing, text, proof, files; runs in the inspector."""

from __future__ import annotations

import hashlib
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from compiler.drawing.layout import place
from compiler.drawing.picture import Box, Frame, picture_of
from compiler.drawing.svg import curve
from compiler.ir.module import IRModule
from compiler.ir.printer import text
from compiler.proof.derive import derive_static
from compiler.proof.record import compare_record, record_state
from compiler.runtime.artifact import QModule, load_qmod
from compiler.transform import FuseOps
from qsearch.dashboard.inspection import InspectionError
from qsearch.modules.export import export

MAX_BOXES: Final = 4000
_ONNX: Final = "ONNX node "
MAX_TEXT: Final = 8 << 20
PARTS: Final[Mapping[str, str]] = {
    "quantize_inputs": "prefix",
    "quantized_main": "integer main",
    "dequantize_outputs": "suffix",
    "main": "whole",
}


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
    frames = [_frame(frame, ranges, shipped) for frame in picture.frames]
    return {"groups": groups, "frames": frames}


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
    differs = compare_record(shipped.proof, proof)
    record = "disagrees" if differs else record_state(shipped.proof)
    return {"derived": proof.to_dict(), "record": record}


def exported(file: Path, format: str, out: Path) -> dict[str, Any]:
    """Write the module in another form and zip it; the zip's name follows from its content."""
    digest = hashlib.sha256(file.read_bytes()).hexdigest()[:16]
    target = out / f"{digest}-{format}.zip"
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
    from qsearch.modules.views import read_hardware

    return group_for_hardware(module, read_hardware(groups))


def _ranges(shipped: QModule) -> dict[str, Mapping[str, Any]]:
    """What is proved of the values of the integer function, by the value's number."""
    values = () if shipped.proof is None else shipped.proof.get("values", ())
    return {str(value["name"]).split(" ")[0]: value for value in values}


def _frame(frame: Frame, ranges: Mapping[str, Any], shipped: QModule) -> dict[str, Any]:
    layout = place(frame)
    name = frame.title.lstrip("@").split(" ")[0]
    known = ranges if name == "quantized_main" else {}
    return {
        "title": frame.title,
        "part": PARTS.get(name, ""),
        "width": layout.width,
        "height": layout.height,
        "boxes": [
            {
                **{k: getattr(layout.places[box.key], k) for k in ("x", "y", "width", "height")},
                **_box(box, known, shipped),
            }
            for box in frame.boxes
        ],
        "edges": [
            {"path": curve(route), "label": edge.label, "quantized": edge.quantized}
            for edge, route in zip(frame.edges, layout.routes)
        ],
    }


def _box(box: Box, ranges: Mapping[str, Any], shipped: QModule) -> dict[str, Any]:
    return {
        "key": box.key,
        "title": box.title,
        "subtitle": box.subtitle,
        "kind": box.kind.value,
        "detail": _detail(box.detail, ranges, shipped),
        "rows": [
            {"title": row, "detail": _detail(detail, ranges, shipped)}
            for row, detail in zip(box.rows, box.row_details)
        ],
    }


def _detail(
    detail: Mapping[str, str], ranges: Mapping[str, Any], shipped: QModule
) -> dict[str, str]:
    shown = {k: v for k, v in detail.items() if k not in ("span", "operators")}
    value = ranges.get(detail["text"].split(" ")[0].rstrip(":"))
    if value is not None:
        shown["range"] = f"{value['low']} … {value['high']} ({value['dtype']}), proved"
    span = detail.get("span", "")
    if span:
        known = span.startswith(_ONNX)
        shown["source" if known else "at"] = span.replace(_ONNX, "").strip("'") if known else span
    return shown
