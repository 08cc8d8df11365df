"""Labels as metrics read them: words and texts become numbers, values without a class NO_LABEL.

Fields of a preprocess file for every kind of data, kept in ``labels`` of a ``DatasetRef``:
    ignore: 255             # or several values: samples, tokens and pixels that have no label
    classes: [cat, dog]     # words of a column or an array, in the order of the model's outputs
    alphabet: "-abc"        # or a list: texts become places of their characters, for CTC
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from workers.datasets.protocol import NO_LABEL, Batch, Dataset, WrappedDataset
from workers.errors import DatasetError

FIELDS: Final = ("ignore", "classes", "alphabet")
_PAD: Final = -1
"""Behind the end of a text."""


def checked_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    """Return the fields as plain lists.

    Raises:
        DatasetError: ``ignore`` is no integer, or one of the others no list of texts.
    """
    found: dict[str, Any] = {}
    for name, value in fields.items():
        if isinstance(value, list | tuple | str):
            listed = list(value)
        else:
            listed = [value]
        texts = name != "ignore"
        kinds = all(type(one) is (str if texts else int) for one in listed)
        if not listed or not kinds or len(set(listed)) < len(listed) or name == "classes" == value:
            raise DatasetError(
                f"preprocess {name} cannot be {value!r}",
                fix="a list of different words, in the order of the model's outputs"
                if texts
                else "an integer or a list of them, such as -100",
            )
        found[name] = listed
    return found


class Relabelled(WrappedDataset):
    """A dataset whose labels are numbers, and NO_LABEL where ``ignore`` says so.

    Args:
        dataset: labels of any kind.
        fields: of ``checked_fields``.
        where: for messages.
    Raises:
        DatasetError: a word that ``classes``, or a character that ``alphabet``, does not have.
    """

    def __init__(self, dataset: Dataset, fields: Mapping[str, Any], where: str) -> None:
        super().__init__(dataset)
        self._ignored = fields.get("ignore", [])
        self.words: Sequence[str] = ()
        """Words by class; none where labels were numbers."""
        self._numbers: NDArray[np.int64] | None = None
        first = dataset.labels(range(1))
        if first is not None and first.dtype.kind == "U":
            texts = dataset.labels(range(len(dataset)))
            assert texts is not None  # has_labels
            if alphabet := fields.get("alphabet"):
                self._numbers = _spelled(texts, alphabet, where)
            else:
                self.words = fields.get("classes") or sorted(set(texts.reshape(-1).tolist()))
                self._numbers = _placed(texts, self.words, where)

    def batch(self, samples: range) -> Batch:
        read = self._dataset.batch(samples)
        return Batch(read.inputs, self._changed(read.labels, samples))

    def labels(self, samples: range) -> NDArray[Any] | None:
        return self._changed(self._dataset.labels(samples), samples)

    def _changed(self, labels: NDArray[Any] | None, samples: range) -> NDArray[Any] | None:
        if self._numbers is not None:
            labels = self._numbers[samples.start : samples.stop]
        if labels is None or not self._ignored:
            return labels
        absent = np.nan if labels.dtype.kind == "f" else NO_LABEL
        return np.where(np.isin(labels, self._ignored), absent, labels)


def _placed(texts: NDArray[Any], words: Sequence[str], where: str) -> NDArray[np.int64]:
    places = {word: place for place, word in enumerate(words)}
    try:
        found = [places[word] for word in texts.reshape(-1).tolist()]
    except KeyError as error:
        raise DatasetError(
            f"the label {error.args[0]!r} is not among the classes of the preprocess file",
            where=where,
            fix=f"classes: {', '.join(words)[:200]}",
        ) from error
    return np.asarray(found, np.int64).reshape(texts.shape)


def _spelled(texts: NDArray[Any], alphabet: Sequence[str], where: str) -> NDArray[np.int64]:
    places = {letter: place for place, letter in enumerate(alphabet)}
    words = texts.reshape(-1).tolist()
    found = np.full((len(words), max(1, *map(len, words))), _PAD, np.int64)
    for row, word in zip(found, words):
        for column, letter in enumerate(word):
            if letter not in places:
                raise DatasetError(
                    f"the label {word!r} has {letter!r}, which the alphabet does not have",
                    where=where,
                    fix="alphabet holds the characters in the order of the model's outputs, the "
                    "blank first",
                )
            row[column] = places[letter]
    return found
