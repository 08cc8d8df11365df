from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

import compiler
from compiler import relay

# class, score, left, top, right, bottom
BOXES = np.array(
    [
        [
            [0, 0.8, 0, 0, 10, 10],
            [0, 0.9, 1, 0, 11, 10],
            [1, 0.7, 0, 0, 10, 10],
            [0, 0.1, 50, 50, 60, 60],
            [0, 0.5, 30, 30, 40, 40],
        ]
    ],
    np.float32,
)


def suppress(threshold: float, limit: int = -1, **attrs: Any) -> list[NDArray[Any]]:
    x = relay.var("x", BOXES.shape)
    valid = relay.op.vision.get_valid_counts(x, relay.const(0.2))
    fields = [relay.TupleGetItem(valid, k) for k in range(3)]
    call = relay.op.vision.non_max_suppression(
        fields[1], fields[0], fields[2], relay.const(limit), relay.const(threshold), **attrs
    )
    return compiler.evaluate(relay.module(relay.Function((x,), call)), [BOXES])


def test_valid_boxes_move_to_the_front_with_their_positions() -> None:
    x = relay.var("x", BOXES.shape)
    call = relay.op.vision.get_valid_counts(x, relay.const(0.2))
    count, boxes, positions = compiler.evaluate(relay.module(relay.Function((x,), call)), [BOXES])
    assert count.tolist() == [4]
    assert positions.tolist() == [[0, 1, 2, 4, -1]]
    np.testing.assert_array_equal(boxes[0, 3], BOXES[0, 4])
    assert (boxes[0, 4] == -1).all()


def test_a_better_box_of_the_same_class_suppresses_its_neighbours() -> None:
    positions, count = suppress(0.5)
    assert positions.tolist() == [[1, 2, 4, -1, -1]]
    assert count.tolist() == [[3]]


def test_classes_suppress_each_other_when_forced() -> None:
    assert suppress(0.5, force_suppress=True)[0].tolist() == [[1, 4, -1, -1, -1]]


def test_boxes_with_little_overlap_are_kept() -> None:
    assert suppress(0.99)[1].tolist() == [[4]]


def test_the_number_of_boxes_is_limited() -> None:
    assert suppress(0.5, limit=2)[0].tolist() == [[1, 2, -1, -1, -1]]
    assert suppress(0.5, top_k=2)[0].tolist() == [[1, -1, -1, -1, -1]]


def test_boxes_are_returned_in_place_or_at_the_top() -> None:
    in_place = suppress(0.5, return_indices=False)[0]
    assert in_place[0, :, 1].tolist() == [np.float32(0.9), -1, np.float32(0.7), 0.5, -1]
    at_top = suppress(0.5, return_indices=False, invalid_to_bottom=True)[0]
    assert at_top[0, :, 1].tolist() == [np.float32(0.9), np.float32(0.7), 0.5, -1, -1]
