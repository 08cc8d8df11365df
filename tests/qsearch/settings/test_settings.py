"""Settings: precedence, conversion, and errors that name the nearest legal thing."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from qsearch.errors import SettingsError
from qsearch.settings.config import resolve
from qsearch.settings.launch_settings import MaxDrop, Settings


def test_flags_go_before_environment_before_file_before_defaults(tmp_path: Path) -> None:
    config = tmp_path / "c.yaml"
    config.write_text("trials: 5\nseed: 5\nmetric: sqnr\n")
    resolved = resolve(
        {"trials": "7", "timeout": None},
        config_file=config,
        environment={"QSEARCH_TRIALS": "6", "QSEARCH_SEED": "6"},
    )
    settings = resolved.settings
    assert (settings.trials, settings.seed, settings.metric, settings.pool) == (
        7,
        6,
        "sqnr",
        "auto",
    )
    assert [resolved.sources[k] for k in ("trials", "seed", "metric", "pool")] == [
        "flag",
        "environment",
        "file",
        "default",
    ]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", "max-drop: 1%\nallow_float: true\ndim: {batch: 2}\n"),
        ("c.toml", 'max-drop = "1%"\nallow-float = true\ndim = {batch = 2}\n'),
        ("c.json", json.dumps({"max_drop": "1%", "allow_float": True, "dim": {"batch": 2}})),
    ],
)
def test_all_three_file_formats_say_the_same(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).write_text(text)
    settings = resolve({}, config_file=tmp_path / name, environment={}).settings
    assert settings == Settings(
        max_drop=MaxDrop(0.01, relative=True), allow_float=True, dim=(("batch", 2),)
    )


def test_resolved_settings_can_be_read_back(tmp_path: Path) -> None:
    settings = resolve({"model": "m.onnx", "max_drop": "2%", "dim": ["n=3"]}, environment={})
    (tmp_path / "c.json").write_text(json.dumps(settings.settings.to_dict()))
    again = resolve({}, config_file=tmp_path / "c.json", environment={})
    assert again.settings == settings.settings


@pytest.mark.parametrize(
    ("key", "value", "says"),
    [
        ("trails", "3", "trials"),
        ("metric", "topp1", "top1"),
        ("pool", "proces", "process"),
        ("sampler", "tpee", "tpe"),
        ("evaluator", "engin", "engine"),
        ("trials", "many", "trials cannot be 'many'"),
        ("trials", "0", ">= 1"),
        ("timeout", "-1", "seconds > 0"),
        ("max_drop", "200%", "0..100%"),
        ("allow_float", "perhaps", "true or false"),
        ("dim", ["batch"], "NAME=N"),
        ("seed", "1.5", "seed cannot be"),
        ("workers", "ray", "--pool ray"),
        ("patience", "0", "--patience: stop after K trials in a row without improvement"),
    ],
)
def test_a_wrong_setting_is_named_with_what_is_legal(key: str, value: object, says: str) -> None:
    with pytest.raises(SettingsError) as caught:
        resolve({key: value}, environment={})
    assert says in str(caught.value)
    assert caught.value.fix
    assert "launch" not in caught.value.fix  # submit and the server say it as well
    assert caught.value.exit_code == 2


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        ("c.yaml", "- 1\n", "mapping"),
        ("c.yaml", "a: [", "not valid yaml"),
        (
            "c.yaml",
            'trials: 3\ncalib: "C:\\data\\c.npz"\n',
            "line 2: found unknown escape character 'd'",
        ),
        ("c.toml", "a = ", "not valid toml"),
        ("c.json", "{", "not valid json"),
        ("c.ini", "", ".yaml, .toml or .json"),
        ("c.yaml", "trails: 3\n", "did you mean 'trials'"),
    ],
)
def test_a_wrong_configuration_file_is_named(
    tmp_path: Path, name: str, text: str, says: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        resolve({}, config_file=path, environment={})
    assert says in str(caught.value)
    assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    ("misspelled", "meant"),
    [("TRIAL", "TRIALS"), ("MAXDROP", "MAX_DROP"), ("MINIMISE", "MINIMIZE"), ("STORE", "STORAGE")],
)
def test_a_misspelled_variable_is_named_with_the_nearest(misspelled: str, meant: str) -> None:
    with pytest.raises(SettingsError) as caught:
        resolve({}, environment={f"QSEARCH_{misspelled}": "3"})
    assert f"QSEARCH_{misspelled}" in caught.value.what
    assert f"did you mean QSEARCH_{meant}?" in str(caught.value.fix)


def test_variables_of_others_are_left_alone() -> None:
    others = ("TOKEN", "KERNELS", "CACHE_DIR", "IMAGE", "TEST_PG_URL", "SCREENSHOTS", "MY_OWN")
    found = resolve({}, environment={f"QSEARCH_{name}": "3" for name in others})
    assert set(found.sources.values()) == {"default"}


def test_a_missing_configuration_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        resolve({}, config_file=tmp_path / "none.yaml", environment={})


def test_max_drop_is_printed_as_it_was_given() -> None:
    assert str(MaxDrop(0.01)) == "0.01"
    assert str(MaxDrop(0.01, relative=True)) == "1%"


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("postgresql://u:p:w@h:5432/d?x=1", "postgresql://u:***@h:5432/d?x=1"),
        ("postgresql+psycopg://u@h/d", "postgresql+psycopg://u@h/d"),
        ("sqlite:////tmp/a@b:c/s.db", "sqlite:////tmp/a@b:c/s.db"),
    ],
)
def test_a_password_is_not_part_of_what_is_written(url: str, shown: str) -> None:
    assert Settings(storage=url).to_dict()["storage"] == shown


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("c.yaml", "trials: " + "9" * 5000),
        ("c.toml", "trials = " + "9" * 5000),
        ("c.json", '{"trials": ' + "9" * 5000 + "}"),
        ("c.yaml", "trials: 2024-99-99"),
        ("c.yaml", "trials: 99999999999999999999"),
        ("c.yaml", "trials: .nan"),
        ("c.yaml", "timeout: .inf"),
        ("c.toml", "timeout = nan"),
        ("c.yaml", "space: " + "[" * 5000 + "]" * 5000),
        ("c.yaml", "space: " + "{a: " * 60 + "1" + "}" * 60),
        ("c.json", "[" * 100_000),
        ("c.toml", "space = " + "[" * 5000 + "]" * 5000),
        ("c.yaml", "space: &a [*a]"),
        (
            "c.yaml",
            "space:\n  a0: &a0 [1, 1]\n"
            + "".join(f"  a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]\n" for n in range(1, 12)),
        ),
        ("c.yaml", "? [1, 2]\n: 3"),
        ("c.yaml", "dim: 1.5"),
        ("c.yaml", "dim: [3]"),
        ("c.yaml", "at_most: 7"),
        ("c.yaml", "minimize: 1e300"),
        ("c.yaml", "passes: 2024-01-01"),
        ("c.yaml", "passes: [1]"),
        ("c.yaml", "space: {a: 2024-01-01}"),
        ("c.yaml", "space: {1: !!set {a, b}}"),
        ("c.yaml", "trials: !!python/object:os.system x"),
        ("c.yaml", "\x01"),
        ("c.yaml", "# " + "x" * (5 << 20)),
    ],
)
def test_a_hostile_configuration_file_is_refused_in_a_sentence(
    tmp_path: Path, name: str, text: str
) -> None:
    path = tmp_path / name
    path.write_text(text)
    with pytest.raises(SettingsError) as caught:
        resolve({}, config_file=path, environment={})
    assert len(str(caught.value)) < 2000


@pytest.mark.parametrize(
    ("word", "option"),
    [
        ("model_bytes", "size"),
        ("SQNR_dB", "sqnr"),
        ("Accuracy", "top1"),
        ("top-1", "top1"),
        ("TOP1", "top1"),
        ("latency_ms", "latency"),
        ("latency in C", "c_latency"),
    ],
)
def test_a_metric_may_be_called_as_it_is_printed(word: str, option: str) -> None:
    assert resolve({"metric": word}, environment={}).settings.metric == option


def test_words_that_are_far_off_are_not_suggested() -> None:
    with pytest.raises(SettingsError) as caught:
        resolve({"metric": "zzz"}, environment={})
    assert "did you mean" not in str(caught.value)
    assert "legal: agreement" in str(caught.value)


@pytest.mark.parametrize(
    ("flags", "variable", "kind", "address"),
    [
        ({}, None, "process", None),
        ({}, "head:6379", "ray", "head:6379"),
        ({"address": "auto"}, None, "ray", "auto"),
        ({"address": "other:1"}, "head:6379", "ray", "other:1"),
        ({"pool": "ray"}, None, "ray", None),
        ({"pool": "process"}, "head:6379", "process", None),
    ],
)
def test_the_pool_is_ray_where_the_user_names_a_cluster(
    flags: dict[str, Any],
    variable: str | None,
    kind: str,
    address: str | None,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("RAY_ADDRESS", raising=False)
    if variable is not None:
        monkeypatch.setenv("RAY_ADDRESS", variable)
    settings = resolve(flags, environment={}).settings
    assert (settings.pool_kind, settings.ray_address) == (kind, address)
