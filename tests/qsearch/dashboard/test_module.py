"""The module of a real search through the API: drawing, text, proof, files, ranges."""

from __future__ import annotations

import hashlib
import io
import json
import shutil
import subprocess
import sys
import time
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import qsearch
from qsearch.cli.main import run
from qsearch.dashboard.app import DashboardOptions
from qsearch.dashboard.inspection import Inspection, InspectionError
from qsearch.dashboard.module_view import drawing_of, text_of
from qsearch.dashboard.security import Policy
from qsearch.server.submission import ServerOptions
from tests.qsearch.dashboard.server import Client, served

DIGITS = Path(qsearch.__file__).parent / "models"
BYTES = {"Content-Type": "application/octet-stream"}


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("runs")
    qsearch.launch("digits", trials=3, pool="inline", out=str(root / "digits"))
    return root


@pytest.fixture(scope="module")
def searched(runs: Path) -> Iterator[Client]:
    with served(DashboardOptions(root=runs, server=ServerOptions(runs))) as client:
        yield client


def test_the_drawing_has_three_partitions_in_the_order_of_the_data(searched):
    drawn = searched.get(f"{searched.study}/module/graph?groups=none").json()
    parts = [frame["part"] for frame in drawn["frames"]]
    assert parts == ["prefix", "integer main", "suffix", "whole"]
    main = drawn["frames"][1]
    (conv, *_) = (box for box in main["boxes"] if "nn.conv2d" in box["title"])
    assert conv["kind"] == "accumulator"
    assert "proved" in conv["detail"]["range"]
    assert conv["detail"]["source"] == "conv_0"
    scales = [[b["detail"].get("scale") for b in frame["boxes"]] for frame in drawn["frames"]]
    # 17 grey levels of 0 to 1 are steps of 1/128.
    assert "0.0078125, zero point 0" in scales[0]
    assert any(scales[1])
    assert len(main["edges"]) >= len(main["boxes"]) - 1


def test_the_first_look_draws_the_module_and_the_second_asks_no_process(
    searched, runs, monkeypatch
):
    module = runs / "digits" / "best.qmod"
    assert not list((runs / "digits" / "artifacts").glob("module_*")), "the search draws nothing"
    paths = [f"{searched.study}/module/{name}" for name in ("graph", "text")]
    looked = [searched.get(path).json() for path in paths]
    assert looked == [drawing_of(module, "fused"), text_of(module)]

    def asked(*_: Any, **_more: Any) -> bytes:
        raise InspectionError("a process was asked")

    monkeypatch.setattr(Inspection, "_run", asked)
    assert [searched.get(path).json() for path in paths] == looked
    # Another file under the same name is read anew.
    held = module.read_bytes()
    try:
        module.write_bytes(held + b" ")
        assert searched.get(paths[1]).status_code == 422
    finally:
        module.write_bytes(held)


# The unit takes 8 bits; two of the convolutions read 16.
@pytest.mark.parametrize(("groups", "count"), [("fused", 3), ("opu_q", 3)])
def test_groups_are_boxes_whose_rows_are_operators(searched, groups, count):
    drawn = searched.get(f"{searched.study}/module/graph", params={"groups": groups}).json()
    rows = [row for frame in drawn["frames"] for box in frame["boxes"] for row in box["rows"]]
    convolutions = [row for row in rows if "nn.conv2d" in row["title"]]
    assert len(convolutions) == count
    assert all("nn.conv2d(" in row["detail"]["text"] for row in convolutions)
    assert all("int32" in row["detail"]["type"] for row in convolutions)


def test_the_text_view_shows_text_and_qconfig_of_the_best_module(searched, runs):
    found = searched.get(f"{searched.study}/module/text").json()
    assert "def @quantized_main" in found["text"]
    module = qsearch.load(runs / "digits" / "best.qmod")
    assert found["qconfig"] == module.qconfig.to_dict()


def test_the_proof_is_derived_again(searched):
    found = searched.get(f"{searched.study}/module/proof").json()
    assert found["derived"]["verdict"] == "proved"
    assert found["record"] == "agrees"


def test_downloads_are_the_files(searched, runs):
    for name in ("best.qmod", "qconfig.json", "report.json"):
        answer = searched.get(f"{searched.study}/files/{name}")
        assert answer.content == (runs / "digits" / name).read_bytes()
        assert "attachment" in answer.headers["content-disposition"]
    with zipfile.ZipFile(io.BytesIO(searched.get(f"{searched.study}/export/onnx").content)) as z:
        onnx.checker.check_model(onnx.load_from_string(z.read(z.namelist()[0])))
    with zipfile.ZipFile(io.BytesIO(searched.get(f"{searched.study}/export/c").content)) as z:
        assert "main.c" in z.namelist()


def test_ranges_hold_what_was_calibrated(searched):
    found = searched.get(f"{searched.study}/trials/0/histograms").json()
    calibrated = np.load(DIGITS / "digits_calib.npz")
    inputs = calibrated[calibrated.files[0]]
    first = found["points"][0]
    assert first["low"] == pytest.approx(float(inputs.min()))
    assert first["high"] == pytest.approx(float(inputs.max()))
    assert sum(first["counts"]) == first["values"]
    assert first["threshold_high"] > first["threshold_low"]


def test_ranges_of_a_study_with_modules_of_the_user_are_shown(tmp_path):
    own, runs = tmp_path / "own.py", tmp_path / "runs"
    own.write_text("LEVEL = 1\n")
    words = ("launch", "digits", "--trials", "1", "--pool", "inline", "--import", str(own))
    command = [sys.executable, "-m", "qsearch", *words, "-o", str(runs / "digits")]
    subprocess.run(command, check=True, capture_output=True)  # imports last as long as a process
    with served(DashboardOptions(root=runs)) as client:
        answer = client.get(f"{client.study}/trials/0/histograms")
    assert answer.status_code == 200, answer.text
    assert answer.json()["points"]


def test_layers_of_any_trial_are_measured_on_the_inputs_that_were_kept(searched):
    found = searched.get(f"{searched.study}/trials/1/layers").json()
    layers = {layer["name"]: layer for layer in found["layers"]}
    assert {"conv_0", "conv_1", "conv_2", "gemm_0"} <= set(layers)
    assert found["samples"] == 8
    assert all(layers[name]["weights_db"] > 20 for name in ("conv_0", "gemm_0"))
    assert layers["conv_0"]["alone_db"] == layers["conv_0"]["upstream_db"]
    assert layers["gemm_0"]["upstream_db"] < layers["gemm_0"]["alone_db"]
    missing = searched.get(f"{searched.study}/trials/99/layers")
    assert missing.status_code == 404


@pytest.mark.slow
def test_statistics_that_claim_a_terabyte_are_an_error(runs, tmp_path):
    shutil.copytree(runs / "digits", tmp_path / "digits")
    head = b"{'descr': '<f4', 'fortran_order': False, 'shape': (274877906944,), }"
    claim = b"\x93NUMPY\x01\x00" + (len(head) + 1).to_bytes(2, "little") + head + b"\n"
    for file in (tmp_path / "digits" / "artifacts").rglob("*"):
        if file.is_file() and zipfile.is_zipfile(file):
            with zipfile.ZipFile(file) as archive:
                names = archive.namelist()
            with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
                for name in names:
                    archive.writestr(name, claim + b"\0" * (1 << 20))
    with served(DashboardOptions(root=tmp_path)) as client:
        for path in ("histograms", "layers"):
            answer = client.get(f"{client.study}/trials/1/{path}")
            assert answer.status_code == 422
            assert "limits" in answer.json()["what"]
        assert client.get("/healthz").status_code == 200


def test_artefacts_are_found_by_their_hash_only(searched, runs):
    (scales, *_) = (runs / "digits" / "artifacts").glob("scales-*.npz")
    sha256 = hashlib.sha256(scales.read_bytes()).hexdigest()
    answer = searched.get(f"{searched.study}/artifacts/{sha256}")
    assert answer.status_code == 200
    assert scales.name in answer.headers["content-disposition"]
    assert searched.get(f"{searched.study}/artifacts/{'0' * 64}").status_code == 404


def uploaded(client: Client, kind: str, data: bytes) -> Any:
    return client.post(f"/api/v1/uploads?kind={kind}", content=data, headers=BYTES)


@pytest.mark.slow
def test_an_uploaded_model_is_searched(searched, runs):
    model = uploaded(searched, "onnx", (DIGITS / "digits_cnn.onnx").read_bytes()).json()
    assert model["about"]["inputs"][0]["shape"][1:] == [1, 8, 8]
    data = uploaded(searched, "npz", (DIGITS / "digits_dev.npz").read_bytes()).json()
    assert {"labels"} <= {array["name"] for array in data["about"]["arrays"]}
    wish = {"model": model["upload"], "name": "mine", "eval": data["upload"], "trials": 1}
    answer = searched.post("/api/v1/studies", json=wish)
    assert answer.status_code == 201
    again = searched.post("/api/v1/studies", json=wish).json()
    assert again["created_at"] == answer.json()["created_at"], "the same job"
    other = {**wish, "max_drop": "5%"}
    assert searched.post("/api/v1/studies", json=other).status_code == 409
    deadline = time.monotonic() + 600
    while not (runs / "studies" / "mine" / "best.qmod").is_file():
        assert time.monotonic() < deadline, (runs / "studies" / "mine" / "launch.log").read_text()
        time.sleep(0.5)
    names = {s["name"] for s in searched.get("/api/v1/studies").json()["studies"]}
    assert names == {"digits", "mine"}


@pytest.mark.parametrize("name", ["../x", "a/b", "", ".hidden", "x" * 65])
def test_a_search_is_not_named_like_a_path(searched, name):
    wish = {"model": "digits", "name": name}
    assert searched.post("/api/v1/studies", json=wish).status_code == 422


def test_uploads_that_are_something_else_are_refused(searched, runs):
    external = onnx.load(DIGITS / "digits_cnn.onnx")
    tensor = external.graph.initializer[0]
    tensor.ClearField("raw_data")
    tensor.data_location = onnx.TensorProto.EXTERNAL
    entry = tensor.external_data.add()
    entry.key, entry.value = "location", "../../etc/passwd"
    pickled = io.BytesIO()
    np.savez(pickled, x=np.array([{}], dtype=object))
    bomb = io.BytesIO()
    with zipfile.ZipFile(bomb, "w", zipfile.ZIP_DEFLATED) as archive:
        header = io.BytesIO()
        np.lib.format.write_array_header_1_0(
            header, {"descr": "<f4", "fortran_order": False, "shape": (1 << 40,)}
        )
        archive.writestr("x.npy", header.getvalue() + b"\0" * (32 << 20))
    for kind, data in (
        ("onnx", b"not a model"),
        ("onnx", external.SerializeToString()),
        ("npz", b"PK nothing"),
        ("npz", pickled.getvalue()),
        ("npz", bomb.getvalue()),
    ):
        answer = uploaded(searched, kind, data)
        assert answer.status_code == 422, answer.text
        assert answer.json()["what"]
    assert not list((runs / ".uploads").glob(".part-*"))
    wish = {"model": "0" * 64, "name": "other"}
    assert searched.post("/api/v1/studies", json=wish).status_code == 400


@pytest.mark.slow
@pytest.mark.usefixtures("quick_space")
def test_a_search_shows_itself_while_it_runs(tmp_path, capfd):
    words = ["launch", "--model", "digits", "--trials", "1", "--pool", "inline", "--json", "-q"]
    assert run([*words, "-o", str(tmp_path / "run"), "--dashboard"]) == 0
    told = capfd.readouterr()
    assert "dashboard  http://127.0.0.1:" in told.err
    assert json.loads(told.out)["study"] == "run"


def test_policy_limits_reach_the_routes(tmp_path):
    policy = Policy(max_upload_bytes=1000)
    options = DashboardOptions(root=tmp_path, server=ServerOptions(tmp_path), policy=policy)
    with served(options) as client:
        assert uploaded(client, "onnx", b"x" * 1001).status_code == 413


@pytest.mark.parametrize("groups", ["none", "fused", "opu_q"])
def test_a_proved_range_stands_beside_its_own_value_only(groups: str, runs: Path) -> None:
    """Kernels and hardware groups number their values anew; the proof is of the shipped module."""
    drawn = drawing_of(runs / "digits" / "best.qmod", groups)
    boxes = [box for frame in drawn["frames"] for box in frame["boxes"]]
    details = [d for box in boxes for d in (box["detail"], *(r["detail"] for r in box["rows"]))]
    ranged = [detail for detail in details if "range" in detail]
    assert bool(ranged) is (groups == "none")
    for detail in ranged:
        assert detail["type"].split()[-1] in detail["range"]
