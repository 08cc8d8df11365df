"""Dataset kind "text": .txt, .jsonl or .csv, and the tokenizer.json of the model."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from compiler.errors import raised_as
from workers.datasets.listed import (
    Array,
    ListedDataset,
    column_labels,
    csv_rows,
    known_fields,
    label_column,
    named_column,
    optional_package,
)
from workers.datasets.protocol import Dataset, InputSpec, Options
from workers.datasets.registry import datasets
from workers.errors import DatasetError

SUFFIXES = (".txt", ".jsonl", ".csv")
FIELDS = ("tokenizer", "text", "pair", "label", "length")
NEXT = "next"
"""Word for ``label``: the label of a token is the token behind it, -1 at the end."""
_TEXT_COLUMNS = ("text", "sentence", "sentence1", "question", "premise")
_PADS = ("[PAD]", "<pad>", "<|endoftext|>", "</s>")


@datasets.register("text")
def open_text(inputs: Sequence[InputSpec], path: Path, preprocess: Options) -> Dataset:
    """Options: ``path``, and ``preprocess`` with the path of ``tokenizer`` (tokenizer.json beside
    the texts), names of the columns ``text``, ``pair`` and ``label``, and ``length`` in tokens.

    A line of a .txt is a text. Inputs have names that tell: masks, types or segments, positions;
    the other one takes the tokens.

    Raises:
        DatasetError: a file, a column or the tokenizer is missing, or the inputs are no tokens.
    """
    fields = known_fields(preprocess, FIELDS)
    if not takes_tokens(inputs):
        raise DatasetError(
            f"texts feed models with one input of tokens, not {', '.join(map(str, inputs))}",
            where=str(path),
            fix="name the others attention_mask, token_type_ids or position_ids, or give an .npz",
        )
    roles = {spec.name: _role(spec) for spec in inputs}
    sizes = {spec.shape[1] for spec in inputs}
    if len(sizes) > 1:
        raise DatasetError(f"inputs of different lengths: {', '.join(map(str, inputs))}")
    length = fields.get("length", most := sizes.pop())
    if not isinstance(length, int) or not 0 < length <= most:
        raise DatasetError(
            f"preprocess length cannot be {length!r}", fix=f"1 to {most} tokens, as the model takes"
        )
    file = Path(fields.get("tokenizer") or path.parent / "tokenizer.json")
    tokenizer = _tokenizer(file, length, most, path)
    texts, labels = _texts(path, fields)

    @cache  # every trial of a study asks for the same samples
    def sample(place: int) -> dict[str, Array]:
        found = tokenizer.encode(*texts[place])
        rows = {
            "ids": np.asarray(found.ids),
            "mask": np.asarray(found.attention_mask),
            "types": np.asarray(found.type_ids),
            "positions": np.arange(most),
        }
        return {spec.name: rows[roles[spec.name]].astype(spec.dtype) for spec in inputs}

    if fields.get("label") == NEXT:
        labels = np.full((len(texts), most), -1, np.int64)
        for text, row in zip(texts, labels):
            found = tokenizer.encode(*text)
            real = np.asarray(found.attention_mask, bool)  # padding may stand on either side
            row[:-1] = np.where(real[:-1] & real[1:], found.ids[1:], -1)
    return ListedDataset(sample, labels, [[path]], inputs, len(texts))


def takes_tokens(inputs: Sequence[InputSpec]) -> bool:
    """Return whether a model reads tokens, and what else texts have."""
    roles = [_role(spec) for spec in inputs]
    return roles.count("ids") == 1 and all(roles) and all(spec.shape[1] > 1 for spec in inputs)


def _role(spec: InputSpec) -> str:
    name = spec.name.lower()
    if len(spec.shape) != 2:
        return ""
    roles = {"mask": "mask", "type": "types", "segment": "types", "pos": "positions"}
    other = "ids" if spec.dtype.startswith("int") else ""
    return next((role for word, role in roles.items() if word in name), other)


def _tokenizer(file: Path, length: int, most: int, data: Path) -> Any:
    tokenizers = optional_package("tokenizers", "text", "a data set of texts")
    if not file.is_file():
        raise DatasetError(
            f"texts need the tokenizer of the model, and there is no {file}",
            where=str(data),
            fix="put its tokenizer.json beside the texts, or give --preprocess pre.yaml with "
            "'tokenizer: path/to/tokenizer.json'",
        )
    what = f"{file.name} is no tokenizer"
    fix = "save it with tokenizers"
    # tokenizers raises Exception itself
    with raised_as(DatasetError, what, Exception, where=str(file), fix=fix):
        found = tokenizers.Tokenizer.from_file(str(file))
    padding = dict(found.padding or {})
    if not padding:
        known = [(found.token_to_id(pad), pad) for pad in _PADS]
        number, pad = next(((n, pad) for n, pad in known if n is not None), (0, _PADS[0]))
        padding = {"pad_id": number, "pad_token": pad}
    padding |= {"length": most, "pad_to_multiple_of": None}
    found.enable_padding(**padding)
    found.enable_truncation(length)
    return found


def _texts(path: Path, fields: Mapping[str, Any]) -> tuple[list[tuple[str, ...]], Array | None]:
    """Texts, or pairs of them, and labels."""
    rows = list(_rows(path))
    if not rows:
        raise DatasetError("the data is empty: 0 texts", where=str(path))
    names = list(dict.fromkeys(name for _, row in rows for name in row))
    text = _column("text", fields.get("text"), _TEXT_COLUMNS, names, path)
    asked = [text] + (
        [_column("pair", fields["pair"], (), names, path)] if "pair" in fields else []
    )
    label = NEXT if fields.get("label") == NEXT else label_column(fields, names, path)
    texts = []
    for line, row in rows:
        found = tuple(row.get(name) for name in asked)
        if not all(isinstance(one, str) for one in found):
            raise DatasetError(f"line {line}: no text in {' or '.join(asked)}", where=str(path))
        texts.append(tuple(map(str, found)))
    if label is None or label == NEXT:
        return texts, None
    values = [row.get(label) for _, row in rows]
    return texts, column_labels(values, [line for line, _ in rows], label, path)


def _column(field: str, given: Any, usual: Sequence[str], names: Sequence[str], path: Path) -> str:
    """The column of a field: as given, of a usual name, or the only one."""
    found = named_column(field, given, usual, names, path)
    if found is None and len(names) > 1:
        raise DatasetError(
            f"which column is the {field}?",
            where=f"{path} has {', '.join(names)}",
            fix=f"give --preprocess pre.yaml with '{field}: {names[0]}'",
        )
    return found or names[0]


def _rows(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    if path.suffix.lower() == ".csv":
        yield from csv_rows(path)
        return
    what = f"cannot read {path.name}"
    kinds = (OSError, UnicodeDecodeError)
    with raised_as(DatasetError, what, *kinds, where=str(path), fix="save it as UTF-8"):
        lines = path.read_text(encoding="utf-8-sig").split("\n")
    for place, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if path.suffix.lower() == ".txt":
            yield place, {"text": line}
            continue
        what = f"line {place} is no JSON"
        with raised_as(DatasetError, what, ValueError, RecursionError, where=str(path)):
            row = json.loads(line)
        if not isinstance(row, dict):
            raise DatasetError(
                f"line {place} is no object", where=str(path), fix='{"text": "…", "label": 0}'
            )
        yield place, row
