"""Metrics of libraries: parts add up to what the library says of all samples."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray
from sklearn import metrics as sklearn_metrics

from tests.each import each
from workers.errors import MetricError
from workers.metrics.library import LIBRARY
from workers.metrics.registry import MetricSums, find_metric, merge_sums, results

RNG = np.random.default_rng(0)
LOGITS = RNG.normal(size=(60, 2))
CLASSES = (LOGITS[:, 1] - LOGITS[:, 0] + RNG.normal(size=60) > 0).astype(np.int64)
NUMBERS = RNG.normal(size=(60, 1))
WANTED = NUMBERS[:, 0] + 0.3 * RNG.normal(size=60)
TOKENS = RNG.integers(-1, 5, (60, 7))
TOKEN_LOGITS = RNG.normal(size=(60, 7, 9))
IMAGES = RNG.random((60, 3, 8, 8))
NOISY = IMAGES + 0.05 * RNG.normal(size=IMAGES.shape)
MASKS = RNG.integers(-1, 3, (60, 8, 8))


def scored(word: str, outputs: Any, labels: NDArray[Any] | None, parts: int = 3) -> float | None:
    """Of the sums of three parts."""
    shards = []
    outputs = [outputs] if isinstance(outputs, np.ndarray) else outputs
    for part in range(parts):
        sums = MetricSums([LIBRARY[word]], has_labels=True, has_reference=False)
        rows = [array[part::parts] for array in outputs]
        sums.add(rows, None, None if labels is None else labels[part::parts])
        shards.append(sums.sums)
    return results(merge_sums(shards))[LIBRARY[word]]


def test_parts_add_up_to_what_scikit_learn_says_of_all_samples() -> None:
    found = LOGITS.argmax(1)
    wanted: dict[str, tuple[Any, Any, float]] = {
        "f1": (LOGITS, CLASSES, sklearn_metrics.f1_score(CLASSES, found, average="macro")),
        "auc": (LOGITS, CLASSES, sklearn_metrics.roc_auc_score(CLASSES, LOGITS @ [-1, 1])),
        "mae": (NUMBERS, WANTED, -sklearn_metrics.mean_absolute_error(WANTED, NUMBERS)),
        "rmse": (NUMBERS, WANTED, -sklearn_metrics.root_mean_squared_error(WANTED, NUMBERS)),
        "r2": (NUMBERS, WANTED, sklearn_metrics.r2_score(WANTED, NUMBERS)),
        "miou": (
            IMAGES,
            MASKS,
            sklearn_metrics.jaccard_score(
                MASKS[MASKS >= 0], IMAGES.argmax(1)[MASKS >= 0], average="macro"
            ),
        ),
    }
    for word, (outputs, labels, value) in each(wanted.items()):
        assert scored(word, outputs, labels) == pytest.approx(value), word


def test_bits_and_perplexity_are_of_the_tokens_that_have_a_label() -> None:
    chances = np.exp(TOKEN_LOGITS) / np.exp(TOKEN_LOGITS).sum(-1, keepdims=True)
    own = [chances[(*at, TOKENS[at])] for at in np.ndindex(TOKENS.shape) if TOKENS[at] >= 0]
    bits = -np.log2(own).mean()
    assert scored("bits", TOKEN_LOGITS, TOKENS) == pytest.approx(-bits)
    assert scored("perplexity", TOKEN_LOGITS, TOKENS) == pytest.approx(-(2**bits))


def test_restored_images_and_sounds() -> None:
    psnr, ssim = (scored(word, NOISY, IMAGES) for word in ("psnr", "ssim"))
    assert psnr == pytest.approx(26.0, abs=0.5)
    assert ssim is not None
    assert 0.9 < ssim < 1
    sound = RNG.normal(size=(6, 400))
    assert scored("si_sdr", 3 * sound + 0.3 * RNG.normal(size=sound.shape), sound) == pytest.approx(
        20.0, abs=0.6
    )


def test_words_are_merged_and_blanks_left_out() -> None:
    steps = np.eye(4)[[[1, 1, 0, 1, 2], [3, 0, 0, 3, 3]]]
    assert scored("wer", steps, np.asarray([[1, 1, 2, -1], [3, 3, 1, -1]]), 1) == -1 / 6


def test_map_is_that_of_pycocotools_in_one_piece() -> None:
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    corners = RNG.uniform(0, 40, (12, 4, 2))
    boxes = np.concatenate([corners, corners + RNG.uniform(5, 30, (12, 4, 2))], axis=2)
    kinds = RNG.integers(0, 3, (12, 4))
    labels = np.concatenate([kinds[..., None], boxes], axis=2)
    labels[::3, 3] = -1
    labels[1::3, :2, 0] = -2 - labels[1::3, :2, 0]  # crowds
    found = boxes + RNG.normal(size=boxes.shape) * 2
    scores, answers = RNG.random((12, 4)), np.where(RNG.random((12, 4)) < 0.8, kinds, 0)

    def rows(boxes: NDArray[Any], kinds: NDArray[Any], scores: NDArray[Any]) -> list[Any]:
        listed: list[Any] = []
        for image, place in np.ndindex(kinds.shape):
            if (kind := int(kinds[image, place])) == -1:
                continue
            x, y, right, low = boxes[image, place].tolist()
            sides = [x, y, right - x, low - y]
            row = {"image_id": image, "category_id": max(kind, -2 - kind), "bbox": sides}
            more = {"id": len(listed) + 1, "area": sides[2] * sides[3], "iscrowd": int(kind < -1)}
            listed.append({**row, **more, "score": float(scores[image, place])})
        return listed

    made = []
    for listed in (rows(boxes, labels[..., 0].astype(int), scores), rows(found, answers, scores)):
        coco = COCO()
        images, names = [{"id": n} for n in range(12)], [{"id": n} for n in range(3)]
        coco.dataset = {"images": images, "annotations": listed, "categories": names}
        coco.createIndex()
        made.append(coco)
    judge = COCOeval(*made, "bbox")
    judge.evaluate()
    judge.accumulate()
    judge.summarize()
    outputs = [scores, found, answers]
    assert scored("map", outputs, labels) == pytest.approx(judge.stats[0])
    of_kind = np.zeros((12, 3, 4))
    np.put_along_axis(of_kind, answers[:, None], scores[:, None], 1)
    chosen = np.asarray([(n, answers[n, place], place) for n, place in np.ndindex(12, 4)])
    sums = MetricSums([LIBRARY["map"]], has_labels=True, has_reference=False)
    for n in range(12):  # one image a run, as a head gives it
        own = chosen[chosen[:, 0] == n] * [0, 1, 1]
        sums.add([found[n : n + 1], of_kind[n : n + 1], own[None]], None, labels[n : n + 1])
    assert sums.results()[LIBRARY["map"]] == pytest.approx(judge.stats[0])
    together = np.concatenate([found, scores[..., None], answers[..., None]], axis=2)
    assert scored("map", together, labels) == pytest.approx(judge.stats[0])


def test_map_of_equal_scores_is_the_same_in_every_order_of_parts() -> None:
    labels = np.asarray([[[0.0, 0, 0, 10, 10]]])
    hit, miss = ([np.asarray([[[x, x, x + 10, x + 10, 0.5, 0]]])] for x in (0.0, 50.0))
    orders = [MetricSums([LIBRARY["map"]], has_labels=True, has_reference=False) for _ in "ab"]
    for sums, parts in zip(orders, ((hit, miss), (miss, hit))):
        for part in parts:
            sums.add(part, None, labels)
    assert orders[0].results() == orders[1].results()


@pytest.mark.parametrize("word", LIBRARY)
def test_labels_that_are_missing_or_of_another_kind_are_told(word: str) -> None:
    for labels in (None, np.zeros((60, 11, 2), np.int64)):
        with pytest.raises(MetricError, match=r"labels|masks|detections"):
            scored(word, NOISY[:, 0], labels)


def test_an_interval_is_given_or_refused() -> None:
    told = {}
    for word, path in LIBRARY.items():
        metric, labels = find_metric(path), (TOKENS if word in ("bits", "perplexity") else None)
        outputs: Any = [TOKEN_LOGITS] if labels is not None else [NOISY]
        if labels is None and word in ("mae", "rmse", "psnr", "ssim", "si_sdr"):
            labels = IMAGES
        if labels is None:
            told[word] = metric.standard_error(metric.init())
            continue
        state = metric.init()
        metric.update(state, outputs, None, labels)
        told[word] = metric.standard_error(state)
    without = {word for word, error in told.items() if error is None}
    assert without == {"f1", "auc", "r2", "map", "miou", "wer", "cer"}


def test_a_mask_of_a_class_that_the_model_does_not_have_is_told() -> None:
    logits, masks = np.zeros((2, 4, 3, 3), np.float32), np.full((2, 3, 3), -1)
    masks[1, 2, 2] = 4
    with pytest.raises(MetricError, match="a mask holds 4, the model has 4 classes"):
        scored("miou", logits, masks)


@pytest.mark.parametrize("word", ["f1", "auc", "miou", "bits", "perplexity", "wer"])
def test_classes_may_be_stored_as_floats(word: str) -> None:
    logits = TOKEN_LOGITS[:, 0, :2] if word in ("f1", "auc") else TOKEN_LOGITS
    labels = np.arange(logits[..., 0].size).reshape(logits.shape[:-1]) % logits.shape[-1]
    assert scored(word, logits, labels.astype(np.float32)) == scored(word, logits, labels)
    with pytest.raises(MetricError, match="no classes"):
        scored(word, logits, labels + 0.5)


def test_a_label_beyond_the_vocabulary_and_scores_that_are_nan_are_told() -> None:
    with pytest.raises(MetricError, match="out of bounds"):
        scored("bits", TOKEN_LOGITS, np.full((60, 7), 9))
    with pytest.raises(MetricError, match="a label is not finite"):
        scored("rmse", NUMBERS, np.full(60, np.inf))
    with pytest.raises(MetricError, match="not finite"):
        scored("auc", np.full((2, 2), np.nan), np.asarray([0, 1]))


def test_the_interval_of_rmse_counts_samples_and_not_their_values() -> None:
    rmse = find_metric(LIBRARY["rmse"])
    errors = np.abs(np.random.default_rng(1).normal(size=(300, 50, 1)))
    found = []
    for error in errors:  # the hundred values of a sample are equally wrong
        sums = MetricSums([LIBRARY["rmse"]], has_labels=True, has_reference=False)
        sums.add([error * np.ones(100)], None, np.zeros((50, 100)))
        state = sums.sums[LIBRARY["rmse"]]
        found.append((rmse.result(state) or 0.0, rmse.standard_error(state) or 0.0))
    values, told = np.asarray(found).T
    # Both are estimates from 300 draws.
    assert told.mean() == pytest.approx(values.std(), rel=0.1)


def test_words_that_are_heard_in_silence_are_errors() -> None:
    heard = np.eye(4)[[[1, 2, 3], [1, 0, 2]]]
    assert scored("wer", heard, np.asarray([[1, 2, 3], [-1, -1, -1]]), parts=1) == -2 / 3


def test_an_only_score_is_a_logit_or_a_probability() -> None:
    logits = (LOGITS[:, 1:] - LOGITS[:, :1]).astype(np.float32)
    wanted = sklearn_metrics.f1_score(CLASSES, logits[:, 0] > 0, average="binary")
    assert scored("f1", logits, CLASSES) == pytest.approx(wanted)
    assert scored("f1", 1 / (1 + np.exp(-logits)), CLASSES) == pytest.approx(wanted)
