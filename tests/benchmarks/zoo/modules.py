"""Modules of PyTorch through the front door, in an environment that has torch (the extra zoo).

python -m pytest tests/benchmarks/zoo/modules.py
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import qsearch
from compiler.errors import CompilerError

torch.manual_seed(0)
PAIRS = TensorDataset(torch.randn(64, 1, 16, 16), torch.randint(0, 4, (64,)))
LOADER = DataLoader(PAIRS, batch_size=16)
IMAGES = PAIRS.tensors[0]
TOKENS = [
    {
        "ids": torch.randint(0, 50, (4, 12)),
        "mask": torch.ones(4, 12, dtype=torch.int64),
        "labels": torch.randint(0, 3, (4,)),
    }
    for _ in range(4)
]


def network() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.Dropout(), nn.Flatten(1),
        nn.Linear(8 * 14 * 14, 4),
    )  # fmt: skip


class Tagger(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(50, 16)
        self.lstm = nn.LSTM(16, 16, batch_first=True)
        self.head = nn.Linear(16, 3)

    def forward(
        self, ids: Any, mask: Any, unused: Any = None, labels: Any = None
    ) -> dict[str, Any]:
        assert labels is None
        hidden, _ = self.lstm(self.embedding(ids) * mask[..., None].float())
        return {"logits": self.head(hidden[:, -1]), "hidden": hidden}


class Noise(nn.Module):
    """No exporter can give what this computes."""

    def forward(self, x: Any) -> Any:
        return x + torch.tensor(len(Noise.calls.append(1) or Noise.calls) * 1.0)

    calls: list[int] = []  # noqa: RUF012


class Pixel(nn.Module):
    """Tracing keeps the sum of the example."""

    def forward(self, x: Any) -> Any:
        return x * float(x.sum())


@pytest.mark.parametrize(
    "calib",
    [
        lambda: LOADER,
        lambda: PAIRS,
        lambda: IMAGES,
        lambda: (batch for batch in LOADER),
        lambda: [image[None] for image in IMAGES],
        lambda: [(image, int(label)) for image, label in PAIRS],
    ],
)
def test_any_data_give_a_module_that_answers_as_the_float_module(calib: Callable[[], Any]) -> None:
    model = network().train()
    module = qsearch.quantize(model, calib())
    assert all(part.training for part in model.modules())
    wanted = model.eval()(IMAGES[:4])
    found = module(IMAGES[:4])
    assert isinstance(found, torch.Tensor)
    assert float((found - wanted).abs().max()) < 0.02 * float(wanted.abs().max())


@pytest.mark.parametrize(
    "wrapped",
    [
        nn.DataParallel,
        torch.compile,
        torch.jit.script,
        lambda model: torch.jit.trace(model, IMAGES[:1]),
        nn.Module.half,
        nn.Module.bfloat16,
        nn.Module.double,
    ],
)
def test_a_module_may_be_wrapped_or_of_another_width(wrapped: Callable[[Any], Any]) -> None:
    model = network().eval()
    wanted = model(IMAGES[:4])
    found = qsearch.quantize(wrapped(model), LOADER)(IMAGES[:4])
    assert float((found - wanted).abs().max()) < 0.03 * float(wanted.abs().max())


class Twins(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.side = network()

    def forward(self, one: Any, other: Any) -> Any:
        return nn.functional.cosine_similarity(self.side(one), self.side(other))


class Steps(nn.Module):
    """States of two layers: their axis 0 counts no samples."""

    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(4, 8, 2, batch_first=True)

    def forward(self, values: Any, hidden: Any, cell: Any) -> Any:
        found, states = self.lstm(values, (hidden, cell))
        return (found, *states)


def test_inputs_in_a_row() -> None:
    twins, others = Twins().eval(), IMAGES.flip(0)
    for data in (
        [(one[None], other[None]) for one, other in zip(IMAGES, others, strict=True)],
        DataLoader(TensorDataset(IMAGES, others, PAIRS.tensors[1]), batch_size=16),
    ):
        found = qsearch.quantize(twins, data)(IMAGES[:4], others[:4])
        assert float((found - twins(IMAGES[:4], others[:4])).abs().max()) < 0.05
    state = torch.zeros(2, 1, 8)
    runs = [(values[None], state, state) for values in torch.randn(32, 5, 4)]
    found = qsearch.quantize(Steps().eval(), runs)(*runs[0])
    assert [tuple(each.shape) for each in found] == [(1, 5, 8), (2, 1, 8), (2, 1, 8)]


def test_a_language_model_is_exported_without_its_cache() -> None:
    transformers = importlib.import_module("transformers")
    config = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=1, n_head=2, n_positions=16)
    model = transformers.GPT2LMHeadModel(config)
    items = [{name: item[name] for name in ("labels", "ids")} for item in TOKENS]
    data = [{"input_ids": item.pop("ids"), **item} for item in items]
    ids = data[0]["input_ids"]
    found = qsearch.quantize(model, data)(ids)
    assert config.use_cache
    assert model.training
    wanted = model.eval()(ids).logits
    assert float((found - wanted).abs().max()) < 0.1 * float(wanted.abs().max())


def test_inputs_by_name_and_several_outputs() -> None:
    module = qsearch.quantize(Tagger(), TOKENS)
    first = TOKENS[0]
    logits, hidden = module(ids=first["ids"], mask=first["mask"])
    assert (logits.shape, hidden.shape) == ((4, 3), (4, 12, 16))


def test_a_search_goes_on_with_the_same_module(tmp_path: Path) -> None:
    model = network()
    options: Any = {"pool": "inline", "out": tmp_path, "calib": LOADER, "eval": LOADER}
    qsearch.launch(model, trials=1, **options)
    result = qsearch.launch(model, trials=2, **options)
    assert [trial.number for trial in result.trials] == [0, 1]


def test_files_are_data_of_a_module_that_is_given_with_an_example(tmp_path: Path) -> None:
    for number, wave in enumerate(np.random.default_rng(0).normal(0, 0.1, (8, 400))):
        soundfile.write(tmp_path / f"{number}.wav", wave, 8000)
    (tmp_path / "pre.yaml").write_text("rate: 8000")
    model = nn.Sequential(nn.Conv1d(1, 4, 8, stride=4), nn.ReLU(), nn.Flatten(), nn.Linear(396, 3))
    sounds = qsearch.DataSource(tmp_path, preprocess=tmp_path / "pre.yaml")
    module = qsearch.quantize((model, (torch.zeros(1, 1, 400),)), sounds)
    assert module(torch.zeros(2, 1, 400)).shape == (2, 3)


class Patches(nn.Module):
    """The fused layer of an encoder has no form in ONNX, and ``len`` makes the batch a constant."""

    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 16, 4, 4)
        self.token = nn.Parameter(torch.randn(1, 1, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1)

    def forward(self, images: Any) -> Any:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(tokens), -1, -1), tokens], 1)
        return self.encoder(tokens)[:, 0]


def test_an_encoder_whose_batch_is_a_constant_is_exported_with_a_batch_of_one(
    capfd: pytest.CaptureFixture[str],
) -> None:
    model = Patches().eval()
    found = qsearch.quantize(model, LOADER)(IMAGES[:4])
    assert found.shape == (4, 16)
    assert float((found - model(IMAGES[:4])).abs().max()) < 0.2
    assert "graph(" not in capfd.readouterr().out


def test_what_tracing_gets_wrong_is_seen_and_exported_in_another_way() -> None:
    module = qsearch.quantize(Pixel(), IMAGES[:, 0])
    wanted = Pixel()(IMAGES[:1, 0])
    assert float((module(IMAGES[:1, 0]) - wanted).abs().max()) < 0.05 * float(wanted.abs().max())


@pytest.mark.parametrize(
    ("model", "calib", "told"),
    [
        (Noise(), IMAGES, "off by"),
        (network(), None, "calib gives none"),
        (network(), "images/", "calib gives none"),
        (network(), torch.randn(8, 3, 4), "cannot be run on a sample"),
        (network(), [], "no sample"),
        (nn.Module, LOADER, "of type type"),
    ],
)
def test_what_cannot_be_exported_is_told(model: Any, calib: Any, told: str) -> None:
    with pytest.raises(CompilerError, match=told):
        qsearch.quantize(model, calib)
