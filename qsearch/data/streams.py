"""Streams: states that a model hands on from call to call become inputs of its data.

A model that is called step by step takes a part of a signal and its states, and gives the next
states. Data hold the signal; ``states: {h: hn}`` in the preprocess file says that output ``hn`` of
a call is input ``h`` of the next. The model runs over every stream from states of zeros on, and
each call becomes a sample.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from compiler.errors import check_known
from qsearch.errors import DataError
from workers.datasets.npz import LABELS, shapes_in
from workers.datasets.protocol import Dataset, InputSpec, whole

STATES: Final = "states"
"""Field of the preprocess file."""

Arrays = Mapping[str, NDArray[Any]]


@dataclass(frozen=True, slots=True)
class Cell:
    """A model that is called step by step.

    Attributes:
        run: one call, from inputs by name to outputs in order.
        outputs: their names.
        sampled: which outputs have the samples on their leading axis; None is all of them.
    """

    run: Callable[[Arrays], Sequence[NDArray[Any]]]
    outputs: tuple[str, ...]
    sampled: tuple[bool, ...] | None = None


@dataclass(frozen=True, slots=True)
class Streams:
    """Data without states, and what they are of.

    Attributes:
        inputs: of the model.
        states: output that a state is, by the name of the input.
        where: the data, for messages.
    """

    inputs: tuple[InputSpec, ...]
    states: Mapping[str, str]
    where: str

    @staticmethod
    def of(inputs: Sequence[InputSpec], states: Any, cell: Cell, where: str) -> Streams:
        """From the field of a preprocess file.

        Raises:
            DataError: it names no inputs and outputs of the model.
        """
        if not isinstance(states, Mapping) or not states:
            raise DataError(
                f"states is {states!r}",
                where="the preprocess file",
                fix="name the output that each state comes from, as states: {h: hn}",
            )
        taken = [spec.name for spec in inputs]
        for found, names, kind in (
            (states, taken, "input"),
            (states.values(), cell.outputs, "output"),
        ):
            for name in found:
                what = f"states: the model has no {kind} {name!r}"
                check_known(name, names, what, DataError, "the preprocess file")
        if set(states) == set(taken):
            raise DataError(
                "states: every input is a state",
                where="the preprocess file",
                fix="leave out the inputs that are the signal",
            )
        return Streams(tuple(inputs), dict(states), where)

    def signal(self, data: Any) -> tuple[InputSpec, ...]:
        """Return the inputs of a sample: of a call, or of all calls of a stream.

        Args:
            data: a path, or anything else.
        Raises:
            DataError: a state is in the data.
        """
        if isinstance(data, str | os.PathLike):
            path = Path(data)
        else:
            path = None
        shapes = {} if path is None else shapes_in(path)
        found = []
        for spec in self.inputs:
            if spec.name in self.states:
                if spec.name in shapes:
                    raise DataError(
                        f"the data hold {spec.name!r}, which the model gives as a state",
                        where=self.where,
                        fix="leave it out of the data, or of states in the preprocess file",
                    )
                continue
            shape = shapes.get(spec.name, shapes.get("", ()))
            more = len(shape) == len(spec.shape) + 1 and shape[1:] != spec.shape
            if len(shape) == len(spec.shape) + 2 and shape[2:] == spec.shape:
                one = ", ".join(map(str, spec.shape[1:]))
                raise DataError(
                    f"{spec.name!r} is {list(shape)}: one axis too many, of the model's batch",
                    where=self.where,
                    fix=f"give the steps of streams without it: [streams, steps, {one}]",
                )
            steps = more and spec.shape[0] == 1 and shape[2:] == spec.shape[1:]
            found.append(replace(spec, shape=shape[1:]) if steps else spec)
        return tuple(found)

    def calls(self, dataset: Dataset, signal: Sequence[InputSpec], cell: Cell) -> Iterator[Arrays]:
        """Every call of every stream, in order: inputs with the states in front of it, and labels.

        Raises:
            DataError: the model takes several samples at a time, a state has another shape behind
                a call than in front of it, or labels do not belong to steps.
        """
        own = {spec.name: spec for spec in self.inputs}
        together = not whole(dataset)
        streams = any(spec.shape != own[spec.name].shape for spec in signal)
        if together and any(own[spec.name].shape[0] != 1 for spec in signal):
            raise DataError(
                "states cannot be fed back: the model takes several samples at a time",
                where=self.where,
                fix="export it for one sample, or with a free first axis",
            )
        states = zeros = {name: np.zeros(own[name].shape, own[name].dtype) for name in self.states}
        for place in range(len(dataset)):
            batch = dataset.batch(range(place, place + 1))
            if together:
                values = batch.inputs
            else:
                values = {n: v[0] for n, v in batch.inputs.items()}
            steps = [values]
            labels = batch.labels
            if streams:
                states = zeros
                count = signal[0].shape[0]
                steps = [{n: v[t : t + 1] for n, v in values.items()} for t in range(count)]
                labels = None if labels is None else labels[0]
                if labels is not None and labels.shape[:1] != (count,):
                    raise DataError(
                        f"labels of a stream of {count} steps are {list(labels.shape)}",
                        where=self.where,
                        fix="give each step a label: [streams, steps]",
                    )
            for step, parts in enumerate(steps):
                given = {**parts, **states}
                yield given if labels is None else {**given, LABELS: labels[step : step + 1]}
                states = self._next(cell, given, own)

    def _next(
        self, cell: Cell, given: Arrays, own: Mapping[str, InputSpec]
    ) -> dict[str, NDArray[Any]]:
        made = dict(zip(cell.outputs, cell.run(given), strict=True))
        found = {name: np.asarray(made[out]) for name, out in self.states.items()}
        for name, state in found.items():
            if state.shape != own[name].shape:
                raise DataError(
                    f"output {self.states[name]!r} is {list(state.shape)}, and the state "
                    f"{name!r} is {list(own[name].shape)}",
                    where="states in the preprocess file",
                    fix="name the output that has the shape of the state",
                )
        return {name: state.astype(own[name].dtype, copy=False) for name, state in found.items()}
