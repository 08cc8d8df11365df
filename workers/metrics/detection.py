"""Metric "map": mean average precision at IoU 0.5 to 0.95 by pycocotools.

Labels are those of the dataset kind "detection". The outputs are one of
    (samples, boxes, 6)                      left, top, right, bottom, score, class
    boxes (samples, n, 4), scores (floats) and classes (integers), both (samples, n), in any order
    boxes, scores (samples, classes, n), and rows (image, class, box) of ONNX' NonMaxSuppression
in pixels of the input. Images are matched one by one; what parts add are detections by score and
match, and the number of objects, which is all that the curve of precision needs.
"""

from __future__ import annotations

import contextlib
import io
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval

from workers.metrics.library import Sums, needed
from workers.metrics.protocol import Outputs, State

_OBJECTS = "objects"
_FOUND = "found"
_NEITHER = 2
"""Beside 0 and 1, missed and hit: what was found of a crowd counts as neither."""


class MeanAveragePrecision(Sums):
    """Mean average precision of all samples; at most 100 boxes of an image, as COCO counts."""

    def update(
        self, state: State, outputs: Outputs, reference: Outputs | None, labels: NDArray[Any] | None
    ) -> None:
        """Match the boxes of each image."""
        for boxes, scores, classes, wanted in zip(*_detections(outputs), needed(labels)):
            truth = [_row(row[1:], int(row[0])) for row in wanted if row[0] != -1]
            kept = np.isfinite(boxes).all(axis=1) & (classes >= 0) & (scores > 0)
            found = [
                _row(box, int(kind)) | {"score": float(score)}
                for box, kind, score in zip(boxes[kept], classes[kept], scores[kept])
            ]
            kinds = sorted({row["category_id"] for row in (*truth, *found)})
            judge = _judge(truth, found, kinds)
            for kind, image in zip(kinds, judge.evalImgs):
                if image is None:
                    continue
                key = f"{_OBJECTS}:{kind}"
                state[key] = state.get(key, 0.0) + np.count_nonzero(image["gtIgnore"] == 0)
                hits = np.where(image["dtIgnore"], _NEITHER, np.asarray(image["dtMatches"]) > 0).T
                for score, hit in zip(image["dtScores"], hits):
                    key = f"{_FOUND}:{kind}:{score.hex()}:{''.join(map(str, hit))}"
                    state[key] = state.get(key, 0.0) + 1.0

    def result(self, state: Mapping[str, float]) -> float | None:
        """The mean over classes that have objects and over thresholds."""
        kinds = sorted(int(key.split(":")[1]) for key in state if key.startswith(_OBJECTS))
        if not kinds:
            return None
        judge = _judge([], [], kinds)
        judge.params.imgIds = [0]
        judge.params.maxDets = [1 << 30]
        judge._paramsEval = judge.params
        judge.evalImgs = []
        # Equal scores stand in an order of their own, not in that of parts.
        rows = [(key.split(":"), int(count)) for key, count in sorted(state.items())]
        for kind in kinds:
            own = [(parts, n) for parts, n in rows if parts[0] == _FOUND and int(parts[1]) == kind]
            scores = [float.fromhex(parts[2]) for parts, n in own for _ in range(n)]
            hits = [[int(one) for one in parts[3]] for parts, n in own for _ in range(n)]
            matches = np.asarray(hits, np.float64).reshape(len(hits), len(judge.params.iouThrs)).T
            objects = int(state[f"{_OBJECTS}:{kind}"])
            image = {
                "dtScores": scores,
                "dtMatches": matches,
                "dtIgnore": matches == _NEITHER,
                "gtIgnore": np.zeros(objects),
            }
            judge.evalImgs.append(image)
        with contextlib.redirect_stdout(io.StringIO()):
            judge.accumulate()
        precision = judge.eval["precision"]
        told = precision[precision > -1]
        if told.size:
            return float(told.mean())
        return None


def _judge(truth: list[dict[str, Any]], found: list[dict[str, Any]], kinds: list[int]) -> Any:
    """pycocotools on one image, objects of all sizes."""
    with contextlib.redirect_stdout(io.StringIO()):
        made = []
        for rows in (truth, found):
            coco = COCO()
            numbered = [{**row, "id": place} for place, row in enumerate(rows, 1)]
            names = [{"id": kind} for kind in kinds]
            coco.dataset = {"images": [{"id": 0}], "annotations": numbered, "categories": names}
            coco.createIndex()
            made.append(coco)
        judge = COCOeval(*made, "bbox")
        judge.params.catIds = kinds
        judge.params.imgIds = [0]
        judge.params.areaRng = judge.params.areaRng[:1]
        judge.params.areaRngLbl = ["all"]
        judge.evaluate()
    return judge


def _row(box: NDArray[Any], kind: int) -> dict[str, Any]:
    left, top, right, low = map(float, box)
    sides = [left, top, right - left, low - top]
    row = {"image_id": 0, "category_id": max(kind, -2 - kind), "bbox": sides}
    return {**row, "area": sides[2] * sides[3], "iscrowd": int(kind < -1)}


def _detections(outputs: Outputs) -> tuple[Any, Any, Any]:
    """Boxes, scores and classes, samples on axis 0."""
    first = outputs[0]
    if len(outputs) == 1 and first.ndim == 3 and first.shape[-1] == 6:
        return first[..., :4], first[..., 4], first[..., 5]
    boxes = [each for each in outputs if each.ndim == 3 and each.shape[-1] == 4]
    rows = [each for each in outputs if each.dtype.kind == "i" and each.shape[-1:] == (3,)]
    if boxes and len(rows) == 1 and len(outputs) == 3:
        return _selected(boxes[0], outputs, rows[0].reshape(-1, 3))
    rest = [each for each in outputs if boxes and each.shape == boxes[0].shape[:2]]
    scores = [each for each in rest if each.dtype.kind == "f"]
    classes = [each for each in rest if each.dtype.kind in "iu"]
    if not boxes or not scores or not classes:
        shapes = ", ".join(f"{each.dtype}{list(each.shape)}" for each in outputs)
        raise ValueError(
            f"outputs {shapes} are no detections: (n, boxes, 6), or boxes (n, k, 4), float scores "
            "and integer classes (n, k)"
        )
    return boxes[0], scores[0], classes[0]


def _selected(boxes: NDArray[Any], outputs: Outputs, rows: NDArray[Any]) -> tuple[Any, Any, Any]:
    """Return the choice of NonMaxSuppression for every image."""
    scores = next(each for each in outputs if each is not boxes and each.dtype.kind == "f")
    images = [rows[rows[:, 0] == image] for image in range(len(boxes))]
    return (
        [boxes[place, own[:, 2]] for place, own in enumerate(images)],
        [scores[place, own[:, 1], own[:, 2]] for place, own in enumerate(images)],
        [own[:, 1] for own in images],
    )


mean_average_precision = MeanAveragePrecision()
