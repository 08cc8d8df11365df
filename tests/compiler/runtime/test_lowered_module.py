"""A lowered module runs, is saved and read back."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler import relay
from compiler.errors import ArtifactError, EvaluationError, LoweringError
from compiler.runtime.archive import read_archive, write_archive
from compiler.runtime.lowered_module import LoweredModule
from tests.each import each

op, nn = relay.op, relay.op.nn


def network() -> relay.IRModule:
    rng = np.random.default_rng(3)
    x = relay.var("image", (1, 3, 8, 8), "int8")
    w = relay.const(rng.integers(-9, 9, (4, 3, 3, 3), "int8"))
    y = nn.conv2d(x, w, padding=1, out_dtype="int32")
    y = op.cast(op.clip(op.right_shift(y, relay.const(3)), -127.0, 127.0), dtype="int8")
    flat = nn.batch_flatten(y)
    return relay.module(relay.Tuple((flat, op.reshape(flat, newshape=(4, 8, 8)))))


def image(seed: int) -> dict[str, np.ndarray]:
    return {"image": np.random.default_rng(seed).integers(-99, 99, (1, 3, 8, 8), "int8")}


def test_integers_are_those_of_the_reference() -> None:
    mod = network()
    lowered = compiler.lower(mod, target="reference")
    for seed in range(5):
        want = compiler.evaluate(mod, image(seed))
        for a, b in each(zip(lowered.run(image(seed)), want, strict=True)):
            np.testing.assert_array_equal(a, b)
            assert a.dtype == b.dtype


def test_inputs_come_by_name_or_in_order() -> None:
    lowered = compiler.lower(network(), target="reference")
    (array,) = image(0).values()
    np.testing.assert_array_equal(lowered.run([array])[0], lowered.run(image(0))[0])
    assert lowered.input_names == ("image",)
    with pytest.raises(EvaluationError, match="imag"):
        lowered.run({"imag": array})
    with pytest.raises(EvaluationError, match="float32"):
        lowered.run([array.astype("float32")])
    with pytest.raises(EvaluationError, match="2 inputs"):
        lowered.run([array, array])


def test_an_array_is_the_only_input_and_refused_where_there_are_several() -> None:
    (array,) = image(0).values()
    lowered = compiler.lower(network(), target="reference")
    np.testing.assert_array_equal(lowered.run(array)[0], lowered.run([array])[0])
    a, b = relay.var("a", (2,)), relay.var("b", (2,))
    two = compiler.lower(relay.module(op.add(a, b)), target="reference")
    with pytest.raises(EvaluationError, match=r"one array for 2 parameters \['a', 'b'\]"):
        two.run(np.zeros((2, 2), "float32"))


def test_a_saved_module_is_the_same_and_its_bytes_are(tmp_path: Path) -> None:
    lowered = compiler.lower(network(), target="reference")
    lowered.save(tmp_path / "a.qmod")
    again = LoweredModule.load(tmp_path / "a.qmod")
    assert compiler.structural_equal(again.mod, lowered.mod)
    assert again.target == "reference"
    np.testing.assert_array_equal(again.run(image(1))[0], lowered.run(image(1))[0])
    again.save(tmp_path / "b.qmod")
    assert (tmp_path / "a.qmod").read_bytes() == (tmp_path / "b.qmod").read_bytes()


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    lowered = compiler.lower(network(), target="reference")
    members = lowered.members()
    write_archive(tmp_path / "none.qmod", {"other.txt": b""})
    with pytest.raises(ArtifactError, match="no lowered module"):
        LoweredModule.load(tmp_path / "none.qmod")
    broken = {**members, "lir.txt": members["lir.txt"].replace(b"primfn", b"primfm")}
    write_archive(tmp_path / "broken.qmod", broken)
    with pytest.raises(ArtifactError, match="cannot be read"):
        LoweredModule.load(tmp_path / "broken.qmod")
    lost = {k: v for k, v in members.items() if k != "lir.bin"}
    write_archive(tmp_path / "lost.qmod", lost)
    with pytest.raises(ArtifactError):
        LoweredModule.load(tmp_path / "lost.qmod")
    lowered.save(tmp_path / "whole.qmod")
    assert set(read_archive(tmp_path / "whole.qmod")) == set(members)


def test_threads_share_a_module() -> None:
    lowered = compiler.lower(network(), target="reference")
    want = [lowered.run(image(i))[0] for i in range(8)]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(lambda i: lowered.run(image(i))[0], range(8)))
    for a, b in each(zip(got, want, strict=True)):
        np.testing.assert_array_equal(a, b)


def test_kernels_for_a_target_nobody_runs_are_refused() -> None:
    lowered = compiler.lower(network(), target="ext_dev")
    with pytest.raises(LoweringError, match="ext_dev"):
        lowered.run(image(0))
    np.testing.assert_array_equal(
        lowered.run(image(0), kernels="reference")[0], compiler.evaluate(network(), image(0))[0]
    )


def one_name_twice() -> relay.IRModule:
    x, y = relay.var("x", (2, 3)), relay.var("x", (2, 3))
    return relay.module(relay.Function((x, y), relay.op.subtract(relay.op.multiply(x, 2.0), y)))


@pytest.mark.parametrize("executor", ["reference", "c"])
def test_parameters_of_one_name_keep_their_places(executor: str) -> None:
    x, y = (np.full((2, 3), value, np.float32) for value in (3, 10))
    assert (
        compiler.evaluate(one_name_twice(), [x, y], executor=executor)[0].tolist() == [[-4] * 3] * 2
    )
    with pytest.raises(EvaluationError, match="2 parameters are named 'x'") as refused:
        compiler.evaluate(one_name_twice(), {"x": x}, executor=executor)
    assert "in the order of the parameters" in str(refused.value)
