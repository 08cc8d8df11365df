"""Trained models that wheels on the package index hold, with data whose answers are known.

The answers are known because the data are made: lines of text that are rendered, upright and
turned, pages with boxes, chords that are synthesized, files of known types that are written here.
Two models have no such data, and are compared with their own float outputs.
"""

from __future__ import annotations

import base64
import io
import json
import random
import string
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import skimage.data
import skimage.transform
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFont

Arrays = dict[str, NDArray[Any]]
Outputs = Sequence[NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Samples:
    """Inputs of a model by name, and the answer of each."""

    inputs: Arrays
    answers: Sequence[Any]


@dataclass(frozen=True, slots=True)
class PublicModel:
    """A model of a wheel.

    Attributes:
        name: in the table.
        wheel: requirement that pip downloads.
        path: of the ONNX file in the wheel.
        unit: of the metric, in words.
        samples: so many samples of a seed; gets the folder of the wheel.
        score: of one answer, 0..1; None where the answers are those of the float model.
    """

    name: str
    wheel: str
    path: str
    unit: str
    samples: Callable[[int, int, Path], Samples]
    score: Callable[[Outputs, Any, Path], float] | None


def unpacked(wheel: str, folder: Path) -> Path:
    """The folder of a wheel, which pip downloads where it is not there yet."""
    place = folder / wheel.partition("==")[0]
    if not place.exists():
        command = [sys.executable, "-m", "pip", "download", "-q", "--no-deps", wheel, "-d"]
        downloads = folder / "wheels"
        subprocess.run([*command, str(downloads)], check=True)
        stem = place.name.replace("-", "_")
        (path,) = downloads.glob(f"{stem}-*.whl")
        with zipfile.ZipFile(path) as archive:
            archive.extractall(place)
    return place


# Lines of text --------------------------------------------------------------------------------


def _line(rng: random.Random, width: int, height: int) -> tuple[Image.Image, str]:
    """A line of dark text on a light ground, and its string."""
    words = ["".join(rng.choices(string.ascii_letters + string.digits, k=rng.randint(2, 7)))]
    font = ImageFont.load_default(size=height * rng.uniform(0.55, 0.75))
    while font.getlength(" ".join(words)) < width * 0.55:
        words.append("".join(rng.choices(string.ascii_lowercase, k=rng.randint(2, 7))))
    text = " ".join(words)
    while font.getlength(text) > width - 8:
        text = text[:-1].rstrip()
    ground = tuple(rng.randint(190, 255) for _ in range(3))
    picture = Image.new("RGB", (width, height), ground)
    ink = tuple(rng.randint(0, 90) for _ in range(3))
    ImageDraw.Draw(picture).text((4, height * 0.1), text, fill=ink, font=font)
    return picture, text


def _normalized(picture: Image.Image, mean: float | Sequence[float], std: Any) -> NDArray[Any]:
    pixels = np.asarray(picture, np.float32)[:, :, ::-1] / 255
    return ((pixels - np.asarray(mean)) / np.asarray(std)).transpose(2, 0, 1).astype(np.float32)


def turned_lines(count: int, seed: int, wheel: Path) -> Samples:
    """Lines of 192 × 48, every other one turned by 180 degrees."""
    rng = random.Random(seed)
    pictures = []
    for index in range(count):
        picture, _ = _line(rng, 192, 48)
        pictures.append(_normalized(picture.rotate(180 * (index % 2)), 0.5, 0.5))
    return Samples({"x": np.stack(pictures)}, [index % 2 for index in range(count)])


def right_class(outputs: Outputs, answer: Any, wheel: Path) -> float:
    """1 where the largest score is that of the answer."""
    return float(np.argmax(outputs[0]) == answer)


def lines(count: int, seed: int, wheel: Path) -> Samples:
    """Lines of 320 × 48, with their strings."""
    rng = random.Random(seed)
    made = [_line(rng, 320, 48) for _ in range(count)]
    pictures = np.stack([_normalized(picture, 0.5, 0.5) for picture, _ in made])
    return Samples({"x": pictures}, [text for _, text in made])


RECOGNIZER = "rapidocr_onnxruntime/models/ch_PP-OCRv4_rec_infer.onnx"


def right_characters(outputs: Outputs, answer: str, wheel: Path) -> float:
    """1 less the edit distance over the length, at least 0; spaces do not count."""
    model = onnx.load(wheel / RECOGNIZER, load_external_data=False)
    (held,) = (prop.value for prop in model.metadata_props if prop.key == "character")
    alphabet = ["", *held.splitlines(), " "]
    places = np.argmax(outputs[0].reshape(-1, len(alphabet)), axis=1)
    kept = places[np.insert(places[1:] != places[:-1], 0, True)]
    found = "".join(alphabet[place] for place in kept).replace(" ", "")
    wanted = answer.replace(" ", "")
    return max(0.0, 1 - edit_distance(found, wanted) / len(wanted))


def edit_distance(found: str, wanted: str) -> int:
    """Insertions, deletions and replacements between two strings."""
    row = list(range(len(wanted) + 1))
    for index, letter in enumerate(found, 1):
        before, row[0] = row[0], index
        for place, other in enumerate(wanted, 1):
            least = min(row[place] + 1, row[place - 1] + 1, before + (letter != other))
            before, row[place] = row[place], least
    return row[-1]


# Pages ----------------------------------------------------------------------------------------

_PAGE = 320
_TEXT = 0.3
"""Probability from which the detector calls a pixel text, as its package does."""


def pages(count: int, seed: int, wheel: Path) -> Samples:
    """Pages with a few lines, and a mask of the boxes around them."""
    rng = random.Random(seed)
    pictures = []
    masks = []
    for _ in range(count):
        page = Image.new("RGB", (_PAGE, _PAGE), (rng.randint(200, 255),) * 3)
        mask = np.zeros((_PAGE, _PAGE), bool)
        top = rng.randint(8, 40)
        while top < _PAGE - 40:
            height = rng.randint(20, 34)
            width = rng.randint(120, 280)
            left = rng.randint(4, _PAGE - width)
            line, _ = _line(rng, width, height)
            page.paste(line, (left, top))
            mask[top : top + height, left : left + width] = True
            top += height + rng.randint(14, 50)
        mean, std = (0.406, 0.456, 0.485), (0.225, 0.224, 0.229)
        pictures.append(_normalized(page, mean, std))
        masks.append(mask)
    return Samples({"x": np.stack(pictures)}, masks)


def lines_found(outputs: Outputs, answer: NDArray[Any], wheel: Path) -> float:
    """F1 of lines: of those that hold a pixel of text, and of the pixels that lie in a line."""
    found = outputs[0].reshape(answer.shape) > _TEXT
    if not found.any():
        return 0.0
    edges = np.flatnonzero(np.diff(answer.any(axis=1).astype(int)))
    held = [found[top + 1 : end + 1].any() for top, end in edges.reshape(-1, 2)]
    recall = float(np.mean(held))
    precision = float(answer[found].mean())
    return 2 * recall * precision / max(recall + precision, 1e-9)


# Files ----------------------------------------------------------------------------------------


def _python(rng: random.Random) -> bytes:
    name = rng.choice(["load", "merge", "parse", "score"])
    lines_ = [f"import {rng.choice(['json', 'os', 'sys', 're'])}\n", f"def {name}(path, *args):"]
    for index in range(rng.randint(5, 40)):
        lines_.append(f"    value_{index} = [part.strip() for part in args if part != {index}]")
    return "\n".join([*lines_, "    return path\n"]).encode()


def _json(rng: random.Random) -> bytes:
    rows = [
        {"id": index, "name": rng.choice("abcdef") * 4, "values": [rng.random() for _ in range(3)]}
        for index in range(rng.randint(4, 30))
    ]
    return json.dumps(rows, indent=rng.choice([None, 2])).encode()


def _csv(rng: random.Random) -> bytes:
    rows = ["id,name,price,when"]
    for index in range(rng.randint(20, 80)):
        rows.append(f"{index},item {index},{rng.random() * 90:.2f},2026-0{rng.randint(1, 9)}-11")
    return "\n".join(rows).encode()


def _html(rng: random.Random) -> bytes:
    items = "".join(f"<li><a href='/p/{i}'>page {i}</a></li>" for i in range(rng.randint(4, 40)))
    head = "<!DOCTYPE html><html><head><title>pages</title></head>"
    return f"{head}<body><ul>{items}</ul></body></html>".encode()


def _c(rng: random.Random) -> bytes:
    lines_ = ["#include <stdio.h>", "#include <stdint.h>", "", "int main(void)", "{"]
    for index in range(rng.randint(5, 40)):
        lines_.append(f'    printf("%d\\n", {index} * {rng.randint(2, 99)});')
    return "\n".join([*lines_, "    return 0;", "}\n"]).encode()


def _png(rng: random.Random) -> bytes:
    stream = io.BytesIO()
    size = rng.randint(8, 40), rng.randint(8, 40)
    Image.frombytes("RGB", size, rng.randbytes(3 * size[0] * size[1])).save(stream, "PNG")
    return stream.getvalue()


def _gif(rng: random.Random) -> bytes:
    stream = io.BytesIO()
    size = rng.randint(8, 40), rng.randint(8, 40)
    Image.frombytes("L", size, rng.randbytes(size[0] * size[1])).save(stream, "GIF")
    return stream.getvalue()


def _zip(rng: random.Random) -> bytes:
    stream = io.BytesIO()
    with zipfile.ZipFile(stream, "w", zipfile.ZIP_DEFLATED) as archive:
        for index in range(rng.randint(1, 9)):
            archive.writestr(f"part{index}.bin", rng.randbytes(rng.randint(50, 400)))
    return stream.getvalue()


def _tar(rng: random.Random) -> bytes:
    stream = io.BytesIO()
    with tarfile.open(fileobj=stream, mode="w") as archive:
        for index in range(rng.randint(1, 5)):
            info = tarfile.TarInfo(f"part{index}.txt")
            info.size = 100
            archive.addfile(info, io.BytesIO(base64.b64encode(rng.randbytes(75))))
    return stream.getvalue()


def _ini(rng: random.Random) -> bytes:
    rows = []
    for section in range(rng.randint(2, 9)):
        rows += [
            f"[section{section}]",
            f"path = /srv/data/{section}",
            f"limit = {rng.random():.3f}",
        ]
    return "\n".join(rows).encode()


_WRITERS: dict[str, Callable[[random.Random], bytes]] = {
    "python": _python,
    "json": _json,
    "csv": _csv,
    "html": _html,
    "c": _c,
    "png": _png,
    "gif": _gif,
    "zip": _zip,
    "tar": _tar,
    "ini": _ini,
}
_ENDS, _PADDING = 1024, 256


def files(count: int, seed: int, wheel: Path) -> Samples:
    """First and last bytes of files, with the places of their types among the labels."""
    rng = random.Random(seed)
    config = json.loads((wheel / "magika/models/standard_v3_3/config.min.json").read_text())
    labels = config["target_labels_space"]
    rows = []
    answers = []
    for index in range(count):
        kind = list(_WRITERS)[index % len(_WRITERS)]
        content = _WRITERS[kind](rng)
        first = np.frombuffer(content.strip()[:_ENDS], np.uint8)
        last = np.frombuffer(content.strip()[-_ENDS:], np.uint8)
        row = np.full(2 * _ENDS, _PADDING, np.int32)
        row[: first.size] = first
        row[2 * _ENDS - last.size :] = last
        rows.append(row)
        answers.append(labels.index(kind))
    return Samples({"bytes": np.stack(rows)}, answers)


# Sound ----------------------------------------------------------------------------------------

_RATE, _WINDOW = 22050, 43844
_LOWEST_NOTE = 21


def chords(count: int, seed: int, wheel: Path) -> Samples:
    """Two seconds of one to three notes with overtones, and which of 88 keys sound."""
    rng = np.random.default_rng(seed)
    time = np.arange(_WINDOW) / _RATE
    waves = []
    answers = []
    for _ in range(count):
        keys = rng.choice(np.arange(24, 64), rng.integers(1, 4), replace=False)
        wave = np.zeros(_WINDOW)
        for key in keys:
            pitch = 440 * 2 ** ((key + _LOWEST_NOTE - 69) / 12)
            for overtone in range(1, 6):
                phase = rng.uniform(0, 2 * np.pi)
                wave += np.sin(2 * np.pi * overtone * pitch * time + phase) / overtone**1.5
        wave *= 0.3 * np.exp(-time * rng.uniform(0.2, 1)) / len(keys)
        waves.append(wave[:, None].astype(np.float32))
        answers.append(np.isin(np.arange(88), keys))
    return Samples({"serving_default_input_2:0": np.stack(waves)}, answers)


def right_keys(outputs: Outputs, answer: NDArray[Any], wheel: Path) -> float:
    """F1 of the keys that sound in the middle of the window."""
    _, notes, _ = outputs
    found = np.median(notes.reshape(-1, 88)[40:120], axis=0) > 0.3
    hits = float((found & answer).sum())
    return 2 * hits / float(found.sum() + answer.sum())


# Without answers ------------------------------------------------------------------------------


def pictures(count: int, seed: int, wheel: Path) -> Samples:
    """Parts of the pictures of scikit-image, 320 × 320."""
    rng = np.random.default_rng(seed)
    sources = [getattr(skimage.data, name)() for name in ("astronaut", "coffee", "chelsea")]
    parts = []
    for index in range(count):
        source = sources[index % len(sources)]
        size = int(rng.integers(160, min(source.shape[:2])))
        top = int(rng.integers(0, source.shape[0] - size + 1))
        left = int(rng.integers(0, source.shape[1] - size + 1))
        part = source[top : top + size, left : left + size]
        parts.append(skimage.transform.resize(part, (_PAGE, _PAGE)).transpose(2, 0, 1))
    return Samples({"images": np.stack(parts).astype(np.float32)}, [None] * count)


VOICE = "silero_vad/data/silero_vad_openvino_16k.onnx"


def frames(count: int, seed: int, wheel: Path) -> Samples:
    """Frames of 576 values at 16 kHz, ten of noise and ten of voiced sounds in turn, with the
    states that the float model has then."""
    rng = np.random.default_rng(seed)
    time = np.arange(576) / 16000
    session = onnxruntime.InferenceSession(wheel / VOICE)
    state = np.zeros((2, 1, 128), np.float32)
    rows = []
    states = []
    for index in range(count):
        wave = rng.normal(0, 0.01, 576)
        if index % 20 >= 10:
            pitch = rng.uniform(90, 250)
            overtones = [np.sin(2 * np.pi * k * pitch * time) / k for k in range(1, 12)]
            wave += 0.2 * np.sum(overtones, axis=0)
        rows.append(wave.astype(np.float32))
        states.append(state)
        _, state = session.run(None, {"input": rows[-1][None], "state": state})
    return Samples({"input": np.stack(rows), "state": np.stack(states)}, [None] * count)


_OCR = "rapidocr-onnxruntime==1.4.4"
MODELS: Mapping[str, PublicModel] = {
    model.name: model
    for model in (
        PublicModel(
            "text direction",
            _OCR,
            "rapidocr_onnxruntime/models/ch_ppocr_mobile_v2.0_cls_infer.onnx",
            "right directions",
            turned_lines,
            right_class,
        ),
        PublicModel(
            "text recognizer", _OCR, RECOGNIZER, "right characters", lines, right_characters
        ),
        PublicModel(
            "text detector",
            _OCR,
            "rapidocr_onnxruntime/models/ch_PP-OCRv4_det_infer.onnx",
            "F1 of lines",
            pages,
            lines_found,
        ),
        PublicModel(
            "file types",
            "magika==1.0.3",
            "magika/models/standard_v3_3/model.onnx",
            "right types",
            files,
            right_class,
        ),
        PublicModel(
            "notes",
            "basic-pitch==0.4.0",
            "basic_pitch/saved_models/icassp_2022/nmp.onnx",
            "F1 of keys",
            chords,
            right_keys,
        ),
        PublicModel("body parts", "nudenet==3.4.2", "nudenet/320n.onnx", "", pictures, None),
        PublicModel(
            "voice activity",
            "silero-vad==6.2.3",
            VOICE,
            "",
            frames,
            None,
        ),
    )
}
