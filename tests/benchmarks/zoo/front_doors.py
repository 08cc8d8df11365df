"""Eight jobs through the front doors, as their owners begin them: a trained model, the data that
they have, one call of ``launch``.

A CNN, a vision transformer and an LSTM as modules of PyTorch with loaders; a BERT-like classifier
of transformers with texts; keyword spotters with a folder of wavs, one of them with its mel
spectrum inside; a linear classifier of scikit-learn and a regression with CSV files. Each line
says the metric of the float model and of the winner on data that nothing was chosen with, its 95 %
interval, the SQNR, and the verdict of ``verify``.

    python -m tests.benchmarks.zoo.front_doors [NAME …]

It needs the extra zoo, scikit-learn, skl2onnx, soundfile and tokenizers.
"""

from __future__ import annotations

import csv
import json
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

import qsearch

Job = Callable[[Path], tuple[Any, dict[str, Any]]]
"""From an empty folder to a model and the settings of its search."""


def trained(model: nn.Module, batches: DataLoader[Any], loss: nn.Module, epochs: int) -> nn.Module:
    optimizer = torch.optim.AdamW(model.parameters(), 3e-3)
    for _ in range(epochs):
        for inputs, labels in batches:
            optimizer.zero_grad()
            loss(model(inputs), labels).backward()
            optimizer.step()
    return model.eval()


def digits(flat: bool) -> tuple[DataLoader[Any], DataLoader[Any]]:
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    inputs = torch.tensor(images, dtype=torch.float32).reshape(-1, 8, 8) / 16
    pairs = TensorDataset(inputs if flat else inputs[:, None], torch.tensor(labels))
    order = torch.randperm(len(pairs), generator=torch.Generator().manual_seed(0))
    parts = [torch.utils.data.Subset(pairs, part.tolist()) for part in order.split(1000)]
    return DataLoader(parts[0], 32), DataLoader(parts[1], 32)


def of_digits(model: nn.Module, flat: bool = False) -> tuple[Any, dict[str, Any]]:
    ours, theirs = digits(flat)
    return trained(model, ours, nn.CrossEntropyLoss(), 20), {"calib": ours, "eval": theirs}


def cnn(folder: Path) -> tuple[Any, dict[str, Any]]:
    return of_digits(
        nn.Sequential(
            nn.Conv2d(1, 16, 3, padding=1), nn.BatchNorm2d(16), nn.ReLU(), nn.MaxPool2d(2),
            nn.Conv2d(16, 32, 3), nn.SiLU(), nn.Flatten(), nn.Dropout(0.2), nn.Linear(128, 10),
        )
    )  # fmt: skip


class VisionTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, 32, 2, 2)
        self.token = nn.Parameter(torch.zeros(1, 1, 32))
        self.places = nn.Parameter(0.02 * torch.randn(1, 17, 32))
        layer = nn.TransformerEncoderLayer(
            32, 4, 64, 0.1, "gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Sequential(nn.LayerNorm(32), nn.Linear(32, 10))

    def forward(self, images: Any) -> Any:
        tokens = self.patches(images).flatten(2).transpose(1, 2)
        tokens = torch.cat([self.token.expand(len(tokens), -1, -1), tokens], 1) + self.places
        return self.head(self.encoder(tokens)[:, 0])


def vit(folder: Path) -> tuple[Any, dict[str, Any]]:
    return of_digits(VisionTransformer())


class Rows(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(8, 48, num_layers=2, bidirectional=True, batch_first=True)
        self.head = nn.Linear(96, 10)

    def forward(self, rows: Any) -> Any:
        return self.head(self.lstm(rows)[0][:, -1])


def lstm(folder: Path) -> tuple[Any, dict[str, Any]]:
    return of_digits(Rows(), flat=True)


def bert(folder: Path) -> tuple[Any, dict[str, Any]]:
    """Films are praised or not; some sentences turn at a "but"."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors, trainers
    from transformers import BertConfig, BertForSequenceClassification

    random = np.random.default_rng(0)
    good, bad = ["bright", "moving", "funny", "sharp"], ["dull", "slow", "flat", "noisy"]
    things = ["the plot", "the music", "the cast", "every scene", "the end"]

    def sentence() -> tuple[str, int]:
        first, second = random.integers(0, 2, 2)
        words = [str(random.choice(good if side else bad)) for side in (first, second)]
        one, other = random.choice(things, 2)
        if random.random() < 0.5:
            return f"{one} is {words[0]} but {other} is {words[1]}", int(second)
        return f"{one} is {words[0]}", int(first)

    parts = {"calib": 600, "eval": 600}
    texts = {part: [sentence() for _ in range(count)] for part, count in parts.items()}
    for part, rows in texts.items():
        lines = [json.dumps({"text": text, "label": label}) for text, label in rows]
        (folder / f"{part}.jsonl").write_text("\n".join(lines))
    tokenizer = Tokenizer(models.WordLevel(unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordLevelTrainer(special_tokens=special)
    tokenizer.train_from_iterator((text for text, _ in texts["calib"]), trainer)
    tokenizer.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    tokenizer.enable_padding(length=16)
    codes = tokenizer.encode_batch([text for text, _ in texts["calib"]])
    ids, mask = (torch.tensor([getattr(c, f) for c in codes]) for f in ("ids", "attention_mask"))
    labels = torch.tensor([label for _, label in texts["calib"]])
    torch.manual_seed(0)
    config = BertConfig(
        vocab_size=tokenizer.get_vocab_size(), hidden_size=64, num_hidden_layers=2,
        num_attention_heads=4, intermediate_size=128, max_position_embeddings=16,
    )  # fmt: skip
    model = BertForSequenceClassification(config)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3)
    for epoch in range(12):
        for part in torch.randperm(600, generator=torch.Generator().manual_seed(epoch)).split(32):
            optimizer.zero_grad()
            model(
                input_ids=ids[part], attention_mask=mask[part], labels=labels[part]
            ).loss.backward()
            optimizer.step()
    (folder / "pre.yaml").write_text("tokenizer: tokenizer.json\nlength: 16\n")
    example = {"input_ids": ids[:4], "attention_mask": mask[:4]}
    data = {part: folder / f"{part}.jsonl" for part in parts}
    return (model.eval(), example), {**data, "preprocess": folder / "pre.yaml"}


class Keywords(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv1d(1, 16, 40, 8), nn.BatchNorm1d(16), nn.ReLU(),
            nn.Conv1d(16, 32, 9, 4, groups=4), nn.ReLU(), nn.Conv1d(32, 32, 3, 2), nn.ReLU(),
            nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 4),
        )  # fmt: skip

    def forward(self, waves: Any) -> Any:
        return self.layers(waves)


class Mel(nn.Module):
    """Logarithms of a mel spectrum of 20 bands, and a network over them."""

    def __init__(self, frame: int = 128, bands: int = 20) -> None:
        super().__init__()
        angle = 2 * np.pi * torch.outer(torch.arange(frame // 2 + 1), torch.arange(frame)) / frame
        waves = torch.cat([torch.cos(angle), torch.sin(angle)]) * torch.hann_window(frame)
        self.register_buffer("waves", waves[:, None].float())
        edges = torch.logspace(np.log10(2), np.log10(frame // 2), bands + 2)
        bins = torch.arange(frame // 2 + 1)[:, None]
        sides = ((bins - edges[:-2]) / edges.diff()[:-1], (edges[2:] - bins) / edges.diff()[1:])
        self.register_buffer("bands", torch.minimum(*sides).clamp(min=0).float())
        self.network = nn.Sequential(
            nn.BatchNorm1d(bands), nn.Conv1d(bands, 32, 3), nn.ReLU(), nn.Conv1d(32, 32, 3, 2),
            nn.ReLU(), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(32, 4),
        )  # fmt: skip

    def forward(self, waves: Any) -> Any:
        real, imaginary = nn.functional.conv1d(waves, self.waves, stride=64).chunk(2, 1)
        power = (real**2 + imaginary**2).transpose(1, 2) @ self.bands
        return self.network(torch.log(power + 1e-6).transpose(1, 2))


def spectra(folder: Path) -> tuple[Any, dict[str, Any]]:
    return keywords(folder, Mel)


def keywords(folder: Path, make: Callable[[], nn.Module] = Keywords) -> tuple[Any, dict[str, Any]]:
    """Four chirps and tones in noise, 0.25 s at 8 kHz."""
    import soundfile

    random = np.random.default_rng(0)
    time = np.arange(2000) / 8000

    def wave(label: int) -> Any:
        low, slope = [(300, 0), (300, 4000), (1300, -4000), (900, 0)][label]
        pitch = low * random.uniform(0.8, 1.25)
        tone = np.sin(2 * np.pi * (pitch * time + slope / 2 * time**2) + random.uniform(0, 6))
        return random.uniform(0.05, 0.5) * tone + random.normal(0, 0.08, len(time))

    waves: dict[str, list[Any]] = {}
    labels = np.arange(600) % 4
    for part in ("calib", "eval"):
        waves[part] = [wave(int(label)) for label in labels]
        for number, (label, sound) in enumerate(zip(labels, waves[part], strict=True)):
            place = folder / part / str(label)
            place.mkdir(parents=True, exist_ok=True)
            soundfile.write(place / f"{number:04}.wav", sound, 8000)
    inputs = torch.tensor(np.array(waves["calib"]), dtype=torch.float32)[:, None]
    batches = DataLoader(TensorDataset(inputs, torch.tensor(labels)), 32, shuffle=True)
    (folder / "pre.yaml").write_text("rate: 8000\n")
    model = trained(make(), batches, nn.CrossEntropyLoss(), 15)
    data = {part: folder / part for part in ("calib", "eval")}
    return (model, (inputs[:1],)), {**data, "preprocess": folder / "pre.yaml"}


def table(path: Path, names: list[str], rows: Any, labels: Any) -> Path:
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([*names, "target"])
        writer.writerows([*map(float, row), label] for row, label in zip(rows, labels, strict=True))
    return path


def linear(folder: Path) -> tuple[Any, dict[str, Any]]:
    from skl2onnx import to_onnx
    from sklearn.datasets import load_breast_cancer
    from sklearn.linear_model import LogisticRegression
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import StandardScaler

    data = load_breast_cancer()
    rows = np.asarray(data.data, np.float32)
    model = make_pipeline(StandardScaler(), LogisticRegression())
    model.fit(rows[:280], data.target[:280])
    options = {"zipmap": False, "output_class_labels": False}
    file = to_onnx(model, rows[:1], options={id(model): options})
    names = [name.replace(" ", "_") for name in data.feature_names]
    columns = "\n".join(f"    - {name}" for name in names)
    (folder / "pre.yaml").write_text(f"columns:\n  X:\n{columns}\nlabel: target\n")
    return file, {
        "calib": table(folder / "calib.csv", names, rows[:280], data.target[:280]),
        "eval": table(folder / "eval.csv", names, rows[280:], data.target[280:]),
        "preprocess": folder / "pre.yaml",
        "metric": "agreement",
    }


def regression(folder: Path) -> tuple[Any, dict[str, Any]]:
    from sklearn.datasets import load_diabetes

    data = load_diabetes()
    rows = torch.tensor(data.data, dtype=torch.float32) * 20
    targets = torch.tensor(data.target, dtype=torch.float32)[:, None]
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    first, last = order[:250], order[250:]
    batches = DataLoader(TensorDataset(rows[first], targets[first]), 25)
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(10, 32), nn.GELU(), nn.Linear(32, 32), nn.GELU(), nn.Linear(32, 1)
    )
    trained(model, batches, nn.MSELoss(), 60)
    names = list(data.feature_names)
    (folder / "pre.yaml").write_text(f"columns: {{x: [{', '.join(names)}]}}\nlabel: target\n")
    files = {"calib": first, "eval": last}
    return (model, (rows[:1],)), {
        **{
            part: table(folder / f"{part}.csv", names, rows[places], targets[places, 0].tolist())
            for part, places in files.items()
        },
        "preprocess": folder / "pre.yaml",
        "metric": "rmse",
    }


JOBS: dict[str, Job] = {
    job.__name__: job for job in (cnn, vit, lstm, bert, keywords, spectra, linear, regression)
}


def main() -> None:
    """Print a line a job."""
    for name in sys.argv[1:] or JOBS:
        torch.manual_seed(0)
        with tempfile.TemporaryDirectory() as place:
            folder = Path(place)
            model, settings = JOBS[name](folder)
            result = qsearch.launch(model, **settings, trials=8, out=folder / "run", max_drop=1)
            proved = qsearch.verify(folder / "run").proved
            print(
                f"{name}: proved {proved}", *result.text().splitlines()[1:4], sep="\n  ", flush=True
            )


if __name__ == "__main__":
    main()
