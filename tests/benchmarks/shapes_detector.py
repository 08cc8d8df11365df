"""A YOLO-like detector on synthetic shapes: its images, its training, and its ONNX with NMS inside.

    VENV/bin/python -m tests.benchmarks.shapes_detector tests/models/shapes_detector.onnx

needs torch (2.13 wrote the file that is here) and onnx; equal versions write equal files. Images
are drawn from a seed: squares, discs and triangles of any colour, 2 to 5 of them, on a ground of
noise. The file takes ``image`` (batch, 3, 96, 96) in 0..1 and gives what YOLO exports give:
``boxes`` (batch, cells, 4) as x0, y0, x1, y1, ``scores`` (batch, classes, cells), and
``selected``, the rows (image, class, box) that NonMaxSuppression keeps.
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SIZE = 96
CLASSES = ("square", "disc", "triangle")
STRIDES = (8, 16)
ANCHORS = (20.0, 36.0)
"""Side of the boxes that a cell of each stride begins with."""
TRAIN_IMAGES = 6000
STEPS = 2000
BATCH = 32
IOU, LEAST_SCORE, MOST_BOXES = 0.5, 0.02, 20

Boxes = NDArray[np.float32]


def draw(seed: int) -> tuple[NDArray[np.float32], Boxes, NDArray[np.int64]]:
    """One image (3, 96, 96), boxes (n, 4) as x0, y0, x1, y1, and their classes."""
    rng = np.random.default_rng([7, seed])
    image = rng.uniform(0.25, 0.75, (3, 1, 1)) + rng.normal(0, 0.06, (3, SIZE, SIZE))
    ys, xs = np.mgrid[:SIZE, :SIZE] + 0.5
    boxes: list[tuple[float, ...]] = []
    kinds: list[int] = []
    wanted = int(rng.integers(2, 6))
    for _ in range(40):
        side = float(rng.uniform(13, 44))
        cx, cy = rng.uniform(side / 2, SIZE - side / 2, 2)
        box = (cx - side / 2, cy - side / 2, cx + side / 2, cy + side / 2)
        if len(boxes) == wanted:
            break
        if any(_iou(box, other) > 0.2 for other in boxes):
            continue
        kind = int(rng.integers(len(CLASSES)))
        dx, dy = np.abs(xs - cx), np.abs(ys - cy)
        if kind == 0:
            inside = (dx <= side / 2) & (dy <= side / 2)
        elif kind == 1:
            inside = dx * dx + dy * dy <= side * side / 4
        else:
            inside = (dy <= side / 2) & (dx <= (ys - (cy - side / 2)) / 2)
        colour = rng.uniform(0, 1, (3, 1))
        image[:, inside] = colour + rng.normal(0, 0.04, (3, int(inside.sum())))
        boxes.append(box)
        kinds.append(kind)
    return (
        np.clip(image, 0, 1).astype(np.float32),
        np.array(boxes, np.float32),
        np.array(kinds, np.int64),
    )


def _iou(a: tuple[float, ...], b: tuple[float, ...]) -> float:
    wide = min(a[2], b[2]) - max(a[0], b[0])
    high = min(a[3], b[3]) - max(a[1], b[1])
    both = max(wide, 0.0) * max(high, 0.0)
    areas = sum((c[2] - c[0]) * (c[3] - c[1]) for c in (a, b))
    return both / (areas - both)


def images(first: int, count: int) -> NDArray[np.float32]:
    """Images of consecutive seeds (count, 3, 96, 96)."""
    return np.stack([draw(seed)[0] for seed in range(first, first + count)])


def cells() -> tuple[NDArray[np.float32], NDArray[np.float32], NDArray[np.float32]]:
    """Centre x, centre y and anchor of every cell, finest stride first."""
    found = []
    for stride, anchor in zip(STRIDES, ANCHORS):
        ys, xs = np.mgrid[: SIZE // stride, : SIZE // stride]
        both = [(xs.reshape(-1) + 0.5) * stride, (ys.reshape(-1) + 0.5) * stride]
        found.append([*both, np.full(xs.size, anchor)])
    x, y, anchor_of = (np.concatenate(parts).astype(np.float32) for parts in zip(*found))
    return x, y, anchor_of


def _targets(boxes: Boxes, kinds: NDArray[np.int64]) -> tuple[Any, Any, Any]:
    """Class of each cell (-1: none), offsets (cells, 4), and which cells have a box."""
    x, y, anchor = cells()
    kind = np.full(len(x), -1, np.int64)
    offsets = np.zeros((len(x), 4), np.float32)
    for box, k in zip(boxes, kinds):
        cx, cy, side = (box[0] + box[2]) / 2, (box[1] + box[3]) / 2, box[2] - box[0]
        own = ANCHORS[int(side > 28)]
        near = (np.maximum(abs(x - cx), abs(y - cy)) < STRIDES[int(side > 28)]) & (anchor == own)
        kind[near] = k
        offsets[near] = np.stack(
            [
                (cx - x[near]) / own,
                (cy - y[near]) / own,
                np.full(near.sum(), np.log(side / own)),
                np.full(near.sum(), np.log(side / own)),
            ],
            1,
        )
    return kind, offsets, kind >= 0


def network() -> Any:
    """The float network in torch: (batch, 3, 96, 96) to raw boxes and class logits of all cells."""
    import torch
    from torch import nn

    def block(given: int, made: int, stride: int = 1) -> Any:
        return nn.Sequential(
            nn.Conv2d(given, made, 3, stride, 1, bias=False), nn.BatchNorm2d(made), nn.SiLU()
        )

    class Residual(nn.Module):
        def __init__(self, width: int) -> None:
            super().__init__()
            self.body = nn.Sequential(block(width, width // 2), block(width // 2, width))

        def forward(self, x: Any) -> Any:
            return x + self.body(x)

    class Detector(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Sequential(block(3, 10, 2), block(10, 18, 2))
            self.fine = nn.Sequential(block(18, 30, 2), Residual(30))
            self.coarse = nn.Sequential(block(30, 42, 2), Residual(42))
            self.up = nn.Upsample(scale_factor=2)
            self.join = block(72, 30)
            width = 4 + len(CLASSES)
            self.heads = nn.ModuleList(
                nn.Sequential(block(c, c), nn.Conv2d(c, width, 1)) for c in (30, 42)
            )

        def forward(self, image: Any) -> tuple[Any, Any]:
            fine = self.fine(self.stem(image))
            coarse = self.coarse(fine)
            fine = self.join(torch.cat([fine, self.up(coarse)], 1))
            rows = [head(x).flatten(2) for head, x in zip(self.heads, (fine, coarse))]
            both = torch.cat(rows, 2)
            return both[:, :4], both[:, 4:]

    return Detector()


def train() -> Any:
    """The trained network, in evaluation mode; the same for equal versions of torch."""
    import torch
    from torch.nn import functional

    torch.manual_seed(0)
    torch.use_deterministic_algorithms(True)
    drawn = [draw(1_000_000 + seed) for seed in range(TRAIN_IMAGES)]
    aims = [_targets(boxes, kinds) for _, boxes, kinds in drawn]
    net = network().train()
    optimizer = torch.optim.AdamW(net.parameters(), 2e-3, weight_decay=1e-3)
    plan = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, total_steps=STEPS)
    rng = np.random.default_rng(0)
    for step in range(STEPS):
        chosen = rng.integers(0, TRAIN_IMAGES, BATCH)
        image = torch.from_numpy(np.stack([drawn[i][0] for i in chosen]))
        kind, offsets, there = (
            torch.from_numpy(np.stack([aims[i][part] for i in chosen])) for part in range(3)
        )
        raw, logits = net(image)
        hot = functional.one_hot(kind.clamp(0), len(CLASSES)) * there[..., None]
        logits = logits.transpose(1, 2)
        wrong = functional.binary_cross_entropy_with_logits(logits, hot.float(), reduction="none")
        hard = (torch.sigmoid(logits) - hot).abs() ** 1.5
        count = there.sum().clamp(1)
        off = functional.smooth_l1_loss(
            raw.transpose(1, 2)[there], offsets[there], reduction="sum", beta=0.05
        )
        loss = (wrong * hard).sum() / count + 2 * off / count
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        plan.step()
        if step % 100 == 0:
            print(step, f"{loss.item():.4f}", flush=True)
    return net.eval()


def export(net: Any, path: Path) -> None:
    """Write the network with decode and NonMaxSuppression, weights rounded to float16's values."""
    import onnx
    import torch
    from onnx import TensorProto, helper, numpy_helper

    class Decoded(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = net
            for name, array in zip(("x", "y", "anchor"), cells()):
                self.register_buffer(name, torch.from_numpy(array))

        def forward(self, image: Any) -> tuple[Any, Any]:
            raw, logits = self.net(image)
            x = self.x + raw[:, 0] * self.anchor
            y = self.y + raw[:, 1] * self.anchor
            wide = torch.exp(raw[:, 2]) * self.anchor / 2
            high = torch.exp(raw[:, 3]) * self.anchor / 2
            boxes = torch.stack([x - wide, y - high, x + wide, y + high], 2)
            return boxes, torch.sigmoid(logits)

    with torch.no_grad():
        for value in net.state_dict().values():
            if value.dtype == torch.float32:
                value.copy_(value.half().float())
    torch.onnx.export(
        Decoded().eval(),
        (torch.zeros(1, 3, SIZE, SIZE),),
        str(path),
        input_names=["image"],
        output_names=["boxes", "scores"],
        dynamic_axes={name: {0: "batch"} for name in ("image", "boxes", "scores")},
        opset_version=17,
        dynamo=False,
    )
    model = onnx.load(path)
    limits = (("most", MOST_BOXES, np.int64), ("iou", IOU, np.float32))
    for name, value, dtype in (*limits, ("least", LEAST_SCORE, np.float32)):
        model.graph.initializer.append(numpy_helper.from_array(np.array([value], dtype), name))
    model.graph.node.append(
        helper.make_node(
            "NonMaxSuppression", ["boxes", "scores", "most", "iou", "least"], ["selected"], "nms"
        )
    )
    model.graph.output.append(
        helper.make_tensor_value_info("selected", TensorProto.INT64, ["kept", 3])
    )
    onnx.checker.check_model(model)
    path.write_bytes(model.SerializeToString(deterministic=True))


if __name__ == "__main__":
    export(train(), Path(sys.argv[1]))
