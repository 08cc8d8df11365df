"""qsearch keygen, --sign and --key: a signature holds for what was signed, by the right key."""

from __future__ import annotations

import json
import stat
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest

import qsearch
from compiler import relay
from compiler.pipeline import evaluate
from compiler.runtime.archive import json_bytes, read_archive, write_archive
from compiler.runtime.artifact import QModule, load_qmod
from qsearch.cli.main import run
from qsearch.run.signing import SIGNATURE, private_key, sign_file
from tests.benchmarks.unseen_networks import Network
from tests.compiler.runtime.test_archive import ALTERED

pytestmark = pytest.mark.usefixtures("quick_space", "few_images")

op = relay.op


@pytest.fixture(scope="module")
def shipped(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """One dense layer, which is verified in a tenth of a second."""
    folder, graph = tmp_path_factory.mktemp("signing"), Network(1)
    onnx.save(graph.model(graph.dense(graph.input(1, 4), 4, 3)), folder / "m.onnx")
    data = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
    qsearch.quantize(folder / "m.onnx", data).save(folder / "m.qmod")
    return folder / "m.qmod"


@pytest.fixture
def module(shipped: Path, tmp_path: Path) -> Path:
    """A copy to sign or to spoil."""
    path = tmp_path / "m.qmod"
    path.write_bytes(shipped.read_bytes())
    return path


@pytest.fixture
def key(tmp_path: Path) -> Path:
    path = tmp_path / "mine.key"
    assert run(["keygen", "-o", str(path)]) == 0
    return path


def public(key: Path) -> str:
    return f"{key}.pub"


def signature_line(capsys: pytest.CaptureFixture[str]) -> str:
    lines = capsys.readouterr().out.splitlines()
    return next(line for line in lines if line.startswith("signature: "))


def test_a_signed_module_is_checked_with_the_public_key(
    module: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["verify", str(module), "--key", public(key)]) == 1
    assert signature_line(capsys) == "signature: none"
    assert run(["verify", str(module), "--sign", str(key)]) == 0
    capsys.readouterr()
    assert run(["verify", str(module)]) == 0
    assert "not checked; --key checks it" in signature_line(capsys)
    assert run(["verify", str(module), "--key", public(key), "--require-record"]) == 0
    assert signature_line(capsys).startswith("signature: valid, by key ")
    assert qsearch.load(module).run({"x": np.zeros((1, 4), "float32")})


def test_compile_signs_what_it_writes(tmp_path: Path, key: Path) -> None:
    path = tmp_path / "c.qmod"
    assert run(["compile", "digits", "-o", str(path), "--sign", str(key)]) == 0
    assert qsearch.verify(path, key=public(key)).signature.state == "valid"


@pytest.mark.slow
def test_launch_signs_the_module_of_every_run_on_the_study(tmp_path: Path, key: Path) -> None:
    options = {"pool": "inline", "out": tmp_path / "run", "sign": key}
    qsearch.launch("digits", trials=1, **options)
    found = qsearch.verify(tmp_path / "run", key=public(key))
    assert found.signature.state == "valid"
    assert found.acceptable(require_record=True)
    qsearch.launch("digits", trials=2, **options)
    assert qsearch.verify(tmp_path / "run", key=public(key)).signature.state == "valid"
    assert not list((tmp_path / "run").glob("*.part"))


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_launch_reads_the_key_before_it_searches(
    tmp_path: Path, key: Path, more: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["launch", "digits", "-o", str(tmp_path / "run"), "--sign", public(key), *more]
    assert run(words) == 2
    assert "this is the public key" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()


def test_another_key_is_told_and_refused(
    module: Path, key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other, theirs = tmp_path / "other.key", "other.key"
    _, fingerprint = qsearch.keygen(other)
    assert other.name == theirs
    sign_file(module, private_key(other))
    assert run(["verify", str(module), "--key", public(key)]) == 1
    assert (
        signature_line(capsys)
        == f"signature: NOT by the given key: the file names key {fingerprint}"
    )


@pytest.mark.parametrize(
    ("member", "content"),
    [
        ("samples/s0_input0.npy", "samples/s1_input0.npy"),
        ("provenance.json", "qconfig.json"),
        ("proof.json", None),
        ("samples/more.npy", "samples/s1_input0.npy"),
    ],
)
def test_a_member_that_changed_after_signing_is_noticed(
    member: str, content: str | None, module: Path, key: Path
) -> None:
    """The member is replaced by another one's bytes, taken out or added; all hashes match."""
    sign_file(module, private_key(key))
    members = read_archive(module)
    if content is None:
        del members[member]
    else:
        members[member] = members[content]
    write_archive(module, members)
    found = qsearch.verify(module, key=public(key))
    assert found.signature.state == "invalid"
    assert not found.acceptable()


@pytest.mark.parametrize(
    "content",
    [
        b"{}",
        b"not JSON",
        b'{"algorithm": "ed25519", "public_key": "zz", "signature": ""}',
        b'{"algorithm": "ed25519", "public_key": 7, "signature": [1]}',
    ],
)
def test_a_broken_signature_is_invalid(content: bytes, module: Path, key: Path) -> None:
    write_archive(module, {**read_archive(module), SIGNATURE: content})
    assert qsearch.verify(module).signature.state in ("invalid", "not checked")
    found = qsearch.verify(module, key=public(key))
    assert found.signature.state in ("invalid", "other key")
    assert not found.acceptable()


def test_a_signature_of_other_members_or_another_algorithm_is_invalid(
    module: Path, key: Path
) -> None:
    sign_file(module, private_key(key))
    members = read_archive(module)
    content = json.loads(members[SIGNATURE])
    for change in ({"signature": "00" * 64}, {"signature": ""}, {"algorithm": "none"}):
        changed = json.dumps({**content, **change}).encode()
        write_archive(module, {**members, SIGNATURE: changed})
        assert qsearch.verify(module, key=public(key)).signature.state == "invalid"


def spaced(data: bytes) -> bytes:
    return json.dumps(json.loads(data), indent=2, sort_keys=True).encode()


def more(data: bytes) -> bytes:
    return json_bytes({**json.loads(data), "reviewed": True})


def twice(data: bytes) -> bytes:
    return data.replace(b"{", b'{"algorithm": "ed25519",', 1)


def shouted(data: bytes) -> bytes:
    return json_bytes(
        {k: v if k == "algorithm" else v.upper() for k, v in json.loads(data).items()}
    )


@pytest.mark.parametrize("spell", [spaced, more, twice, shouted])
def test_a_signature_that_is_spelled_otherwise_is_invalid(
    spell: Callable[[bytes], bytes], module: Path, key: Path
) -> None:
    """No signature covers the member that holds it, so there is one way to write it."""
    sign_file(module, private_key(key))
    members = read_archive(module)
    assert spell(members[SIGNATURE]) != members[SIGNATURE]
    write_archive(module, {**members, SIGNATURE: spell(members[SIGNATURE])})
    assert qsearch.verify(module, key=public(key)).signature.state == "invalid"


def padded(data: bytes) -> bytes:
    """An .npy with 64 spaces more in its header."""
    end = 10 + int.from_bytes(data[8:10], "little")
    header = data[10 : end - 1] + b" " * 64 + b"\n"
    return data[:8] + len(header).to_bytes(2, "little") + header + data[end:]


@pytest.mark.parametrize(
    ("member", "spell"),
    [
        ("samples/s0_input0.npy", padded),
        ("qconfig.json", spaced),
        ("provenance.json", lambda data: data.replace(b"{", b'{"seed": 9,', 1)),
        ("module.relay", lambda data: data.replace(b"{\n", b"{ // signed\n", 1)),
        ("module.relay", lambda data: data.replace(b"  ", b"    ", 1)),
    ],
    ids=["npy header", "spaces", "a key twice", "a comment", "indentation"],
)
def test_a_member_that_is_spelled_otherwise_is_not_the_signed_one(
    member: str, spell: Callable[[bytes], bytes], module: Path, key: Path
) -> None:
    sign_file(module, private_key(key))
    members = read_archive(module)
    assert spell(members[member]) != members[member]
    write_archive(module, {**members, member: spell(members[member])})
    assert load_qmod(module).functions
    assert qsearch.verify(module, key=public(key)).signature.state == "invalid"


@pytest.mark.parametrize("how", ALTERED)
def test_a_signed_file_that_another_program_packed_is_refused(
    how: str, module: Path, key: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    sign_file(module, private_key(key))
    module.write_bytes(ALTERED[how](module.read_bytes()))
    for words in (["verify", str(module), "--key", public(key)], ["show", str(module)]):
        assert run(words) == 2
        assert "copy the file that qsearch wrote" in capsys.readouterr().err


def test_a_refuted_module_is_not_signed(tmp_path: Path, key: Path) -> None:
    x = relay.var("x", (2,))
    float_module = relay.module(relay.Function((x,), op.exp(x)))
    inputs = {"x": np.zeros(2, "float32")}
    path = tmp_path / "float.qmod"
    QModule(float_module, samples=[(inputs, evaluate(float_module, inputs))]).save(path)
    assert run(["verify", str(path), "--sign", str(key)]) == 1
    assert SIGNATURE not in read_archive(path)


def test_writing_a_record_takes_an_older_signature_out(module: Path, key: Path) -> None:
    members = read_archive(module)
    del members["proof.json"]
    write_archive(module, members)
    sign_file(module, private_key(key))
    assert qsearch.verify(module, record=True).record == "agrees"
    assert qsearch.verify(module).signature.state == "unsigned"
    assert qsearch.verify(module, record=True, sign=key).signature.state == "valid"


def test_saving_a_loaded_module_again_does_not_keep_its_signature(
    module: Path, key: Path, tmp_path: Path
) -> None:
    sign_file(module, private_key(key))
    load_qmod(module).save(tmp_path / "again.qmod")
    assert SIGNATURE not in read_archive(tmp_path / "again.qmod")


def test_keygen_replaces_nothing_and_keeps_the_private_key_private(
    key: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    before = key.read_bytes()
    assert run(["keygen", "-o", str(key)]) == 2
    assert "is there already" in capsys.readouterr().err
    assert key.read_bytes() == before
    assert run(["keygen", "-o", str(tmp_path / "none" / "k")]) == 2
    assert "cannot be written: No such file or directory" in capsys.readouterr().err


@pytest.mark.parametrize("flag", ["--sign", "--key"])
@pytest.mark.parametrize("content", [None, b"", b"hello", b"\xff" * 20_000, "the other half"])
def test_a_key_that_cannot_be_used_is_an_error_with_a_fix(
    flag: str,
    content: bytes | str | None,
    module: Path,
    key: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    wrong = tmp_path / "wrong.key"
    if isinstance(content, bytes):
        wrong.write_bytes(content)
    elif content is not None:
        wrong.write_bytes((Path(public(key)) if flag == "--sign" else key).read_bytes())
    capsys.readouterr()
    assert run(["verify", str(module), flag, str(wrong)]) == 2
    printed = capsys.readouterr().err
    assert str(wrong) in printed
    assert "fix: " in printed


def test_without_cryptography_the_error_names_the_extra(
    module: Path, key: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in [name for name in sys.modules if name.startswith("cryptography")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "cryptography", None)
    for words in (
        ["verify", str(module), "--key", public(key)],
        ["verify", str(module), "--sign", str(key)],
        ["keygen", "-o", str(key.with_name("new.key"))],
    ):
        assert run(words) == 2
        assert "pip install 'qsearch[sign]'" in capsys.readouterr().err
    assert run(["verify", str(module)]) == 0
