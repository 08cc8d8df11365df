"""launch, load and quantize from Python: keywords, kinds of models, wrong types."""

from __future__ import annotations

import inspect
import keyword
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qsearch
from compiler.errors import CompilerError
from compiler.qtypes.errors import UnknownConfigKeyError
from qsearch.errors import SettingsError
from qsearch.opening.model_file import find_model
from qsearch.search.launch import LaunchOptions
from qsearch.settings.launch_settings import names_of_keys

pytestmark = pytest.mark.usefixtures("quick_space")

DIGITS = find_model("digits").path


class Reader:
    def get_next(self) -> None:
        """No sample."""


def test_the_keywords_of_launch_are_the_settings() -> None:
    """A key that is a word of Python, as ``from``, goes by the name of its field."""
    own = {"model", "calib", "eval"}
    keys = {field if keyword.iskeyword(key) else key for key, field in names_of_keys().items()}
    assert set(LaunchOptions.__annotations__) == keys - own


def test_a_model_in_memory_is_searched_and_kept_and_the_run_folder_loads(tmp_path: Path) -> None:
    options: Any = {"trials": 1, "pool": "inline", "out": tmp_path / "run", "max_drop": 1}
    calib = np.random.default_rng(0).random((16, 1, 8, 8)).astype(np.float32)
    first = qsearch.launch(DIGITS.read_bytes(), calib=calib, **options)
    again = qsearch.launch(onnx.load(DIGITS), calib=calib, **{**options, "trials": 2})
    assert (len(first.trials), len(again.trials)) == (1, 2)
    module = qsearch.load(tmp_path / "run")
    assert module.qconfig == again.best_module().qconfig


def test_a_local_function_is_a_metric_of_the_inline_pool(tmp_path: Path) -> None:
    def hits(outputs: Any, labels: Any) -> float:
        return float((outputs[0].argmax(1) == labels).mean())

    result = qsearch.launch("digits", metric=hits, trials=1, pool="inline", out=tmp_path / "run")
    assert result.objective.metric.startswith("qsearch_local:")
    assert result.best_trial.value > 0.9


@pytest.mark.parametrize(
    ("call", "told"),
    [
        (lambda out: qsearch.launch(DIGITS, calib=Reader, out=out), "give an instance: Reader()"),
        (lambda out: qsearch.launch(3, out=out), "a ModelProto or its bytes"),
        (lambda out: qsearch.load(DIGITS), "an ONNX model is no module"),
        (lambda out: qsearch.verify(DIGITS), "an ONNX model is no module"),
        (lambda out: qsearch.load(3), "cannot be loaded"),
        (lambda out: qsearch.quantize("digits", qconfig=3), "a configuration of type int"),
        (lambda out: qsearch.launch(DIGITS, max_dropp=3, out=out), "did you mean 'max_drop'"),
    ],
)
def test_what_has_the_wrong_type_is_refused_as_on_the_command_line(
    tmp_path: Path, call: Callable[[Path], Any], told: str
) -> None:
    with pytest.raises(CompilerError) as caught:
        call(tmp_path / "run")
    assert told in str(caught.value)


def test_other_data_are_named_when_a_study_is_resumed(tmp_path: Path) -> None:
    calib = np.random.default_rng(0).random((16, 1, 8, 8)).astype(np.float32)
    for name, scale in (("one", 1), ("two", 0.5)):
        np.save(tmp_path / f"{name}.npy", calib * scale)
    options: Any = {"trials": 1, "pool": "inline", "out": tmp_path / "run", "max_drop": 1}
    qsearch.launch(DIGITS, calib=tmp_path / "one.npy", **options)
    with pytest.raises(CompilerError, match=r"the calibration data are now .*two.npy"):
        qsearch.launch(DIGITS, calib=tmp_path / "two.npy", **options)


def test_a_type_checker_finds_a_keyword_that_launch_does_not_have(tmp_path: Path) -> None:
    """The keywords alone are checked: the whole package takes mypy a minute."""
    assert inspect.signature(qsearch.launch).parameters["settings"].annotation == (
        "Unpack[LaunchOptions]"
    )
    source = tmp_path / "typed.py"
    source.write_text(
        "import os\n"
        "from collections.abc import Callable, Mapping, Sequence\n"
        "from types import ModuleType\n"
        "from typing import Any, TypedDict\n"
        "from typing_extensions import Unpack\n"
        "PathLike = str | os.PathLike[str]\n"
        f"{inspect.getsource(LaunchOptions)}\n"
        "def launch(model: PathLike, **settings: Unpack[LaunchOptions]) -> None: ...\n"
        "launch('m.onnx', max_drop=3)\n"
        "launch('m.onnx', max_dropp=3)\n"
        "launch('m.onnx', seed='no')\n"
    )
    # mypy in this process would change its recursion limit for good.
    command = [sys.executable, "-m", "mypy", "--no-incremental", str(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stderr
    assert 'Unexpected keyword argument "max_dropp"' in done.stdout
    assert done.stdout.count("error:") == 2


def test_a_notebook_shows_a_result_and_a_module(tmp_path: Path) -> None:
    result = qsearch.launch("digits", trials=1, pool="inline", out=tmp_path / "run")
    shown = result._repr_html_()
    assert "SQNR" in shown
    assert "higher is better" in shown
    module = qsearch.load(tmp_path / "run")._repr_html_()
    assert "quantized_main" in module
    assert "calibrate_mode" in module
    assert repr(result).startswith(f"SearchResult({str(tmp_path / 'run')!r}, best trial 0: top-1 9")
    assert len(repr(result)) < 200


@pytest.mark.slow
def test_fields_change_what_the_automatic_choice_gives() -> None:
    chosen = qsearch.quantize("digits")
    fewer = qsearch.quantize("digits", qconfig="auto,nbit_weight=4,smooth_alpha=None")
    assert chosen.qconfig is not None
    assert fewer.qconfig == chosen.qconfig.with_overrides(nbit_weight=4, smooth_alpha=None)
    told = {str(one).partition("=")[0] for one in fewer.provenance["decisions"]}
    assert "calibrate_mode" in told
    assert "smooth_alpha" not in told
    with pytest.raises(UnknownConfigKeyError, match="nbit_wieght"):
        qsearch.quantize("digits", qconfig="auto,nbit_wieght=4")
    with pytest.raises(SettingsError, match="no form 'ryzen'"):
        qsearch.quantize("digits", qconfig="auto,for=ryzen")
