"""Dataset kind "table": rows of a .csv or .parquet, whose columns become the inputs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
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
    missing_column,
    optional_package,
)
from workers.datasets.protocol import Dataset, InputSpec, Options
from workers.datasets.registry import datasets
from workers.errors import DatasetError

SUFFIXES = (".csv", ".parquet")
FIELDS = ("columns", "label")


@datasets.register("table")
def open_table(inputs: Sequence[InputSpec], path: Path, preprocess: Options) -> Dataset:
    """Options: ``path``, and ``preprocess`` with ``columns`` (names of columns by input) and
    ``label``. Without ``columns`` an input takes the column of its name, and an only input all
    columns but the label.

    Raises:
        DatasetError: a column is missing, or holds something else than numbers.
    """
    fields = known_fields(preprocess, FIELDS)
    columns, lines = _columns(path)
    if not lines:
        raise DatasetError("the data is empty: 0 rows", where=str(path))
    label = label_column(fields, columns, path)
    if label is None:
        labels = None
    else:
        labels = column_labels(columns[label], lines, label, path)
    arrays = {
        spec.name: _input(spec, names, columns, lines, path)
        for spec, names in _names(inputs, fields.get("columns"), columns, label, path)
    }
    return ListedDataset(
        lambda place: {name: rows[place] for name, rows in arrays.items()},
        labels,
        [[path]],
        inputs,
        len(lines),
    )


def _columns(path: Path) -> tuple[dict[str, list[Any]], list[int]]:
    """Values by column, and the line of each row."""
    if path.suffix.lower() == ".csv":
        rows = list(csv_rows(path))
        names = list(rows[0][1]) if rows else []
        return {name: [row[name] for _, row in rows] for name in names}, [at for at, _ in rows]
    parquet = optional_package("pyarrow.parquet", "tables", "a .parquet table")
    # pyarrow has errors of its own
    with raised_as(DatasetError, f"cannot read {path.name}", Exception, where=str(path)):
        table = parquet.read_table(path)
    return table.to_pydict(), list(range(1, table.num_rows + 1))


def _names(
    inputs: Sequence[InputSpec],
    given: Any,
    columns: Mapping[str, Any],
    label: str | None,
    path: Path,
) -> list[tuple[InputSpec, list[str]]]:
    """Columns of every input."""
    if given is not None and not isinstance(given, Mapping):
        given = {inputs[0].name: given}
    found = []
    for spec in inputs:
        rest = [name for name in columns if name != label]
        wanted = (given or {}).get(spec.name, [spec.name] if spec.name in columns else None)
        if wanted is None and len(inputs) == 1:
            wanted = rest
        if wanted is None:
            raise missing_column(spec.name, columns, path, f"columns: {{{spec.name}: [{rest[0]}]}}")
        names = [wanted] if isinstance(wanted, str) else list(wanted)
        for name in names:
            if name not in columns:
                raise missing_column(name, columns, path, f"columns: {{{spec.name}: […]}}")
        if len(names) != prod(spec.shape[1:]):
            raise DatasetError(
                f"{len(names)} columns for the input {spec}: {', '.join(names)[:200]}",
                where=str(path),
                fix=f"name {prod(spec.shape[1:])} of them in pre.yaml, in the order of training: "
                f"'columns: {{{spec.name}: [{', '.join(names[:2])}, …]}}'; 'label: NAME' is none",
            )
        found.append((spec, names))
    return found


def _input(
    spec: InputSpec,
    names: Sequence[str],
    columns: Mapping[str, Sequence[Any]],
    lines: Sequence[int],
    path: Path,
) -> Array:
    rows = np.empty((len(lines), len(names)), np.float64)
    for place, name in enumerate(names):
        for row, (line, value) in enumerate(zip(lines, columns[name], strict=True)):
            try:
                gap = not spec.finite and value in ("", None)
                rows[row, place] = np.nan if gap else float(value)
            except (TypeError, ValueError) as error:
                raise DatasetError(
                    f"line {line}: {value!r} in column {name!r} is no number",
                    where=str(path),
                    fix="give numbers as the model was trained with: encode categories, fill gaps",
                ) from error
            if spec.finite and not np.isfinite(rows[row, place]):
                raise DatasetError(
                    f"line {line}: column {name!r} holds {value}",
                    where=str(path),
                    fix="fill gaps as in training, or remove the line",
                )
    with np.errstate(invalid="ignore"):
        made = rows.astype(spec.dtype)
    if made.dtype.kind != "f" and (changed := (made != rows).any(axis=1)).any():
        raise DatasetError(
            f"line {lines[int(np.argmax(changed))]}: the input {spec} does not hold the value",
            where=str(path),
            fix=f"give whole numbers that {spec.dtype} has",
        )
    return made.reshape(-1, *spec.shape[1:])
