"""A detector with decode and NMS inside, quantized by one command, beside onnxruntime's own tool.

    python -m tests.benchmarks.bench_detector [--images N] [--calib N]

needs pycocotools (its own COCO evaluation gives mAP at IoU 0.5 to 0.95). The model is
``tests/models/shapes_detector.onnx``; ``shapes_detector.py`` draws its images and trained it.
Compared: float; ``qsearch compile`` without a node name, as a module and as exported ONNX;
``quantize_static`` of all nodes, and its best list of nodes left in float that is made by hand.
Goals, which set the exit code: mAP within 0.5 points of float, and 95 % of the multiplications
integral.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from numpy.typing import NDArray
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, quantize_static

import qsearch
from qsearch.commands.analysis import doctor
from tests.benchmarks.shapes_detector import CLASSES, draw, images

MODEL = Path(__file__).parent.parent / "models" / "shapes_detector.onnx"
Run = Callable[[NDArray[np.float32]], Sequence[NDArray[Any]]]
_BATCH = 50
_CALIB_SEED, _EVAL_SEED = 2_000_000, 3_000_000


def mean_average_precision(run: Run, count: int) -> tuple[float, int]:
    """mAP in percent over held-out images, by pycocotools, and how many objects they have."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    truth: list[dict[str, Any]] = []
    found: list[dict[str, Any]] = []
    for first in range(0, count, _BATCH):
        drawn = [draw(_EVAL_SEED + first + place) for place in range(min(_BATCH, count - first))]
        for place, (_, boxes, kinds) in enumerate(drawn):
            for box, kind in zip(boxes, kinds):
                truth.append({**_row(first + place, box, kind), "id": len(truth) + 1, "iscrowd": 0})
        boxes, scores, selected = run(np.stack([image for image, _, _ in drawn]))
        for image, kind, box in selected:
            row = _row(first + int(image), boxes[image, box], kind)
            found.append({**row, "score": float(scores[image, kind, box])})
    data = {
        "images": [{"id": place} for place in range(count)],
        "annotations": truth,
        "categories": [{"id": place, "name": name} for place, name in enumerate(CLASSES)],
    }
    with contextlib.redirect_stdout(io.StringIO()):
        coco = COCO()
        coco.dataset = {"info": {}, **data}
        coco.createIndex()
        judge = COCOeval(coco, coco.loadRes(found), "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return 100 * float(judge.stats[0]), len(truth)


def _row(image: int, box: NDArray[np.float32], kind: Any) -> dict[str, Any]:
    x, y, right, low = map(float, box)
    sides = [x, y, right - x, low - y]
    area = sides[2] * sides[3]
    return {"image_id": image, "category_id": int(kind), "bbox": sides, "area": area}


class _Images(CalibrationDataReader):  # type: ignore[misc]  # onnxruntime has no types
    def __init__(self, calib: NDArray[np.float32]) -> None:
        self._left = iter(calib)

    def get_next(self) -> dict[str, NDArray[np.float32]] | None:
        image = next(self._left, None)
        return None if image is None else {"image": image[None]}


def by_hand(model: onnx.ModelProto) -> dict[str, list[str]]:
    """Lists that people write: nothing; the decode; the decode and the last convolutions."""
    convolutions = [place for place, n in enumerate(model.graph.node) if n.op_type == "Conv"]
    behind = [node.name for node in model.graph.node[convolutions[-1] + 1 :]]
    last = [model.graph.node[place].name for place in (convolutions[-3], convolutions[-1])]
    return {"default": [], "decode left out": behind, "heads and decode": [*last, *behind]}


def session(path: Path) -> Run:
    """onnxruntime on a file."""
    made = onnxruntime.InferenceSession(path)
    return lambda batch: made.run(None, {"image": batch})


def main(words: Sequence[str] | None = None) -> int:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--images", type=int, default=600)
    parser.add_argument("--calib", type=int, default=100)
    options = parser.parse_args(words)
    calib = images(_CALIB_SEED, options.calib)
    base, objects = mean_average_precision(session(MODEL), options.images)
    print(f"{options.images} held-out images, {objects} objects, {options.calib} for calibration")
    print(f"float                              mAP {base:6.2f}")
    cut = doctor(MODEL).cut
    assert cut is not None
    print(cut)
    with tempfile.TemporaryDirectory() as folder:
        module = qsearch.quantize(MODEL, calib)
        module.save(Path(folder) / "m.qmod")
        ours, _ = mean_average_precision(module.run, options.images)
        print(f"qsearch compile, run()             mAP {ours:6.2f}")
        for form in ("onnx", "qdq"):
            if form == "qdq":
                qsearch.quantize(MODEL, calib, "auto,for=qdq").save(Path(folder) / "m.qmod")
            made = qsearch.export(Path(folder) / "m.qmod", form, Path(folder) / f"{form}.onnx")
            found, _ = mean_average_precision(session(made.files[0]), options.images)
            print(f"qsearch export --format {form:<10} mAP {found:6.2f}")
        for title, left_out in by_hand(onnx.load(MODEL)).items():
            path = Path(folder) / "peer.onnx"
            quantize_static(
                MODEL,
                path,
                _Images(calib),
                quant_format=QuantFormat.QDQ,
                per_channel=True,
                nodes_to_exclude=left_out,
            )
            found, _ = mean_average_precision(session(path), options.images)
            print(f"quantize_static, {title:<17} mAP {found:6.2f}")
    return 0 if ours >= base - 0.5 and cut.share >= 0.95 else 1


if __name__ == "__main__":
    sys.exit(main())
