from __future__ import annotations

import pickle
from pathlib import Path

import numpy as np
import pytest

import compiler
from compiler.errors import CompilerError
from compiler.frontend.from_onnx.load import load
from compiler.ir.analysis import bind, post_order
from compiler.ir.blob import ModuleBlob, module_sha256
from compiler.ir.expr import Constant, Function, Tuple, Var
from compiler.ir.module import IRModule
from compiler.ir.structural import assert_structural_equal
from compiler.ir.ty import TensorType
from compiler.span import SequentialSpan, Span
from tests.compiler.work import calls_of


def module() -> IRModule:
    x = Var("x", TensorType((2, 3)))
    weights = Constant(np.arange(6, dtype="float32").reshape(2, 3))
    odd = Constant(np.array([1, 2, 3], "int8"))
    empty = Constant(np.zeros((0, 2), "float64"))
    body = Tuple((x + weights, odd, empty, Constant(np.float16(0.1))))
    return IRModule({"main": Function((x,), body)}, attrs={"k": (1, 2.5)})


def test_a_module_comes_back_with_types_and_the_same_bits() -> None:
    mod = module()
    back = ModuleBlob.pack(mod).unpack()
    assert_structural_equal(back, mod)
    assert compiler.structural_hash(back) == compiler.structural_hash(mod)
    assert isinstance(back["main"].body.checked_type.fields[0], TensorType)


def test_the_digest_of_a_module_is_that_of_its_packed_bytes() -> None:
    assert module_sha256(module()) == ModuleBlob.pack(module()).sha256


def test_the_same_module_gives_the_same_bytes() -> None:
    one, two = ModuleBlob.pack(module()), ModuleBlob.pack(compiler.infer_module(module()))
    assert one == two
    assert one.sha256 == two.sha256
    assert len(one.sha256) == 64


def test_a_blob_crosses_a_process_boundary_as_its_bytes() -> None:
    blob = ModuleBlob.pack(module())
    assert pickle.loads(pickle.dumps(blob)) == blob


def test_damaged_bytes_are_refused() -> None:
    data = ModuleBlob.pack(module()).data
    with pytest.raises(CompilerError, match="not a packed module"):
        ModuleBlob(b"something else").unpack()
    with pytest.raises(CompilerError, match="cut off"):
        ModuleBlob(data[:-5]).unpack()


@pytest.mark.shared
def test_a_real_model_is_packed_and_unpacked_as_it_was(shared_data: Path) -> None:
    mod, params = load(shared_data / "efficientnet_lite0.onnx")
    main = mod["main"]
    values = {p: Constant(params[p.name_hint]) for p in main.params if p.name_hint in params}
    mod = mod.with_function("main", bind(main, values))
    assert_structural_equal(ModuleBlob.pack(mod).unpack(), mod)
    nodes = sum(1 for _ in post_order(mod["main"]))
    assert calls_of(lambda: ModuleBlob.pack(mod).unpack()) < nodes * 1000


def test_calls_keep_the_spans_that_errors_name() -> None:
    x = Var("x", TensorType((2,)))
    first = (x + np.float32(1)).with_fields(span=Span("onnx:a"))
    second = (first * np.float32(2)).with_fields(
        span=SequentialSpan((Span("onnx:b"), Span("f.relay", 3, 3, 1, 9)))
    )
    mod = IRModule({"main": Function((x,), Tuple((first, second, second - first)))})
    body = ModuleBlob.pack(mod).unpack()["main"].body
    assert [field.span for field in body.fields] == [first.span, second.span, None]
