"""Primitive functions as loops: blocks, epilogues, temps, text."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

import compiler
from compiler import parse, relay
from compiler.errors import CompilerError, DynamicShapeError, LoweringError
from compiler.ir.expr import Expr, Function, Var
from compiler.ir.inference.infer_type import infer_module
from compiler.ir.module import IRModule
from compiler.ir.op import OpPattern, register_op
from compiler.ir.ty import Any as AnyDim
from compiler.ir.ty import TensorType
from compiler.ir.type_relation import identity_rel
from compiler.lir.nodes import Compute, Extern, PrimFunc
from compiler.lir.walk import loads
from compiler.lowering.primitive import lower_primitive
from tests.compiler.work import calls_of


def lowered(text: str) -> PrimFunc:
    main = infer_module(parse(f'#[version = "0.0.5"]\ndef @main{text}'))["main"]
    return lower_primitive(main, "main", "c")


def lines(func: PrimFunc) -> list[str]:
    text = func.definition("main", lambda array: f"{array.dtype}{list(array.shape)}")
    return [line.strip() for line in text.splitlines()[1:-1]]


def agrees(text: str, *shapes: tuple[tuple[int, ...], str]) -> PrimFunc:
    """The loops, after comparing them with the reference evaluator."""
    mod = infer_module(parse(f'#[version = "0.0.5"]\ndef @main{text}'))
    func = lower_primitive(mod["main"], "main", "c")
    rng = np.random.default_rng(0)
    args = [rng.integers(-9, 9, shape).astype(dtype) for shape, dtype in shapes]
    for got, want in zip(func.evaluate(args), compiler.evaluate(mod, args)):
        assert got.dtype == want.dtype
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-5)
    return func


def test_a_convolution_with_bias_and_relu_is_one_block() -> None:
    func = agrees(
        "(%x: Tensor[(1, 3, 8, 8), float32], %w: Tensor[(4, 3, 3, 3), float32],"
        " %b: Tensor[(4, 1, 1), float32])"
        " { nn.relu(add(nn.conv2d(%x, %w, padding=[1, 1, 1, 1]), %b)) }",
        ((1, 3, 8, 8), "float32"),
        ((4, 3, 3, 3), "float32"),
        ((4, 1, 1), "float32"),
    )
    (block,) = func.blocks
    assert isinstance(block, Compute)
    assert [(axis.name, axis.extent) for axis in block.axes] == [
        ("n", 1),
        ("o", 4),
        ("y", 8),
        ("x", 8),
    ]
    assert [(axis.name, axis.extent) for axis in block.raxes] == [("c", 3), ("i", 3), ("j", 3)]
    assert func.temps == ()
    assert lines(func) == [
        "o0[n, o, y, x] for (n<1, o<4, y<8, x<8) = sum(0f; c<3, i<3, j<3) "
        "select(y + i - 1 >= 0 && y + i - 1 < 8 && x + j - 1 >= 0 && x + j - 1 < 8, "
        "p0[n, c, y+i-1, x+j-1], 0f) * p1[o, c, i, j] |> max(acc + p2[o, 0, 0], 0f)"
    ]
    assert func.attrs["target"] == "c"


def test_a_softmax_is_four_blocks() -> None:
    func = agrees("(%x: Tensor[(2, 5), float32]) { nn.softmax(%x) }", ((2, 5), "float32"))
    assert len(func.blocks) == 4
    assert [block.combiner for block in func.blocks if isinstance(block, Compute)] == [
        "max", None, "sum", None,
    ]  # fmt: skip
    assert len(func.temps) == 3


def test_one_elementwise_operator_is_the_specifications_line() -> None:
    func = agrees("(%x: Tensor[(10), float32]) { exp(%x) }", ((10,), "float32"))
    assert lines(func) == ["o0[i] for (i<10) = exp(p0[i])"]


def test_the_epilogue_of_an_integer_convolution_keeps_every_step() -> None:
    func = agrees(
        "(%x: Tensor[(1, 4, 5, 5), int8], %w: Tensor[(4, 1, 3, 3), int8],"
        " %b: Tensor[(4, 1, 1), int32]) {"
        ' %0 = nn.conv2d(%x, %w, groups=4, out_dtype="int32");'
        " %1 = fixed_point_multiply(add(%0, %b), multiplier=1518500250, shift=-3);"
        ' cast(clip(%1, a_min=-127.0, a_max=127.0), dtype="int8") }',
        ((1, 4, 5, 5), "int8"),
        ((4, 1, 3, 3), "int8"),
        ((4, 1, 1), "int32"),
    )
    assert lines(func) == [
        "o0[n, o, y, x] for (n<1, o<4, y<3, x<3) = sum(0; i<3, j<3) "
        "int32(p0[n, o, y+i, x+j]) * int32(p1[o, 0, i, j]) "
        "|> int8(max(min(fixed_point_multiply(acc + p2[o, 0, 0], 1518500250, -3), 127), -127))"
    ]


def test_casts_that_lose_nothing_a_later_one_keeps_are_left_out() -> None:
    def casts(*dtypes: str) -> str:
        chain = "%x"
        for dtype in dtypes:
            chain = f'cast({chain}, dtype="{dtype}")'
        text = f"(%x: Tensor[(3), int32]) {{ {chain} }}"
        return lines(agrees(text, ((3,), "int32")))[0].partition(" = ")[2]

    assert casts("int64", "int32", "int8") == "int8(p0[i])"
    assert casts("int8", "int32") == "int32(int8(p0[i]))"
    assert casts("int64", "int32") == "p0[i]"
    assert casts("uint8", "int8") == "int8(p0[i])"
    assert casts("float32", "int8") == "int8(float32(p0[i]))"
    assert casts("bool", "int8") == "int8(bool(p0[i]))"


def test_an_anchor_read_under_another_shape_is_stored() -> None:
    func = agrees(
        "(%x: Tensor[(2, 3), float32], %w: Tensor[(4, 3), float32])"
        " { transpose(nn.dense(%x, %w)) }",
        ((2, 3), "float32"),
        ((4, 3), "float32"),
    )
    assert len(func.blocks) == 2
    assert len(func.temps) == 1


def test_two_anchors_in_one_function_are_two_blocks() -> None:
    func = agrees(
        "(%x: Tensor[(1, 2, 6, 6), float32], %w: Tensor[(2, 2, 3, 3), float32])"
        " { nn.max_pool2d(nn.relu(nn.conv2d(%x, %w)), pool_size=[2, 2]) }",
        ((1, 2, 6, 6), "float32"),
        ((2, 2, 3, 3), "float32"),
    )
    first, second = func.blocks
    assert isinstance(first, Compute)
    assert isinstance(second, Compute)
    assert first.post is not None
    assert second.combiner == "max"


def test_what_is_read_twice_is_stored_only_where_it_takes_work() -> None:
    cheap = "add(multiply(%0, %0), %0)"
    func = agrees(f"(%x: Tensor[(4), float32]) {{ %0 = exp(%x); {cheap} }}", ((4,), "float32"))
    assert len(func.blocks) == 1
    chain = "%0 = exp(add(%x, 1f));"
    for k in range(8):
        chain += f" %{k + 1} = tanh(%{k});"
    func = agrees(
        f"(%x: Tensor[(4), float32]) {{ {chain} add(multiply(%8, %8), %8) }}", ((4,), "float32")
    )
    assert len(func.blocks) == 2


def test_a_transcendental_read_again_and_again_is_computed_once() -> None:
    func = agrees(
        "(%x: Tensor[(2, 3), float32], %w: Tensor[(8, 3), float32])"
        " { nn.dense(tanh(%x), nn.relu(%w)) }",
        ((2, 3), "float32"),
        ((8, 3), "float32"),
    )
    first, second = func.blocks
    assert isinstance(first, Compute)
    assert isinstance(second, Compute)
    assert "tanh" in lines(func)[1]
    assert "max(p1[u, k], 0f)" in lines(func)[2]


def test_tuples_in_and_out_are_buffers_in_order() -> None:
    func = agrees(
        "(%x: Tensor[(2, 4), int8], %y: Tensor[(2, 2), int8]) {"
        " %0 = concatenate((%x, %y), axis=1);"
        " %1 = split(%0, indices_or_sections=2, axis=1);"
        " (%1.1, %x, %1.0) }",
        ((2, 4), "int8"),
        ((2, 2), "int8"),
    )
    assert [buffer.shape for buffer in func.outputs] == [(2, 3), (2, 4), (2, 3)]
    pair = Var("pair", compiler.ir.ty.TupleType((TensorType((2,)), TensorType((3,)))))
    main = Function((pair,), relay.op.concatenate(pair, axis=0))
    func = lower_primitive(infer_module(IRModule({"main": main}))["main"], "f", "c")
    assert [buffer.name for buffer in func.params] == ["p0", "p1"]


def test_a_parameter_that_is_the_result_is_copied() -> None:
    func = agrees("(%x: Tensor[(3), int8]) { %x }", ((3,), "int8"))
    assert lines(func) == ["o0[i] for (i<3) = p0[i]"]


def test_single_numbers_are_immediate_and_arrays_are_constants() -> None:
    x = Var("x", TensorType((2, 3), "int32"))
    table = np.arange(3, dtype=np.int32)
    body = (x + relay.const(np.array([[7]], np.int32))) * relay.const(table)
    func = lower_primitive(infer_module(IRModule({"main": Function((x,), body)}))["main"], "f", "c")
    assert lines(func) == [
        "const c0: int32[3] = int32[3]",
        "o0[i, j] for (i<2, j<3) = (p0[i, j] + 7) * c0[j]",
    ]
    assert func.consts[0][1] is not None


def test_library_routines_take_and_fill_whole_buffers() -> None:
    func = agrees(
        "(%x: Tensor[(2, 5), float32]) { %0 = topk(negative(%x), k=2); (%0.0, %0.1) }",
        ((2, 5), "float32"),
    )
    first, second = func.blocks
    assert isinstance(first, Compute)
    assert isinstance(second, Extern)
    assert second.outs == func.outputs
    assert second.attrs["axis"] == 1


def test_concatenated_padded_and_sliced_reads_are_one_expression() -> None:
    agrees(
        "(%x: Tensor[(1, 2, 4, 4), int8], %y: Tensor[(1, 3, 4, 4), int8], %v: int8) {"
        " %0 = concatenate((%x, %y), axis=1);"
        " %1 = nn.pad(%0, %v, pad_width=[[0, 0], [1, 0], [0, 2], [1, 1]]);"
        " %2 = strided_slice(%1, begin=[0, 1, 0, 4], end=[1, 6, 6, 0], strides=[1, 2, 1, -2]);"
        " nn.max_pool2d(%2, pool_size=[2, 2], padding=[1, 1, 1, 1]) }",
        ((1, 2, 4, 4), "int8"),
        ((1, 3, 4, 4), "int8"),
        ((), "int8"),
    )


def chain(build: Callable[[Expr], Expr], length: int) -> Function:
    x = Var("x", TensorType((3, 4)))
    z: Expr = x
    for _ in range(length):
        z = build(z)
    function = infer_module(IRModule({"main": Function((x,), z)}))["main"]
    assert isinstance(function, Function)
    return function


def test_the_longest_kernels_need_no_deep_stack_and_no_long_text() -> None:
    one = relay.const(1, "float32")
    func = lower_primitive(chain(lambda z: z + one, 1000), "f", "c")
    assert len(func.blocks) == 1
    x = np.zeros((3, 4), np.float32)
    np.testing.assert_array_equal(func.evaluate([x])[0], 1000)
    doubling = lower_primitive(chain(lambda z: z * z, 256), "f", "c")
    leaky = lower_primitive(chain(lambda z: relay.op.nn.leaky_relu(z), 256), "f", "c")
    for grown in (doubling, leaky):
        assert len(grown.definition("f", lambda array: "")) < 200 * 256
        np.testing.assert_allclose(grown.evaluate([x + 1])[0], 1)


def test_work_grows_with_the_length_of_a_kernel() -> None:
    one = relay.const(1, "float32")
    short, long = (chain(lambda z: z + one, length) for length in (250, 1000))
    lower_primitive(short, "f", "c")
    calls = [calls_of(lambda f=f: lower_primitive(f, "f", "c")) for f in (short, long)]  # type: ignore[misc]
    # Four times the nodes; sixteen times the calls would be quadratic.
    assert calls[1] < 5 * calls[0]


def test_the_same_function_has_the_same_text_every_time() -> None:
    text = "(%x: Tensor[(2, 5), float32]) { nn.log_softmax(%x, axis=0) }"
    assert lines(lowered(text)) == lines(lowered(text))
    assert lowered(text).digest() == lowered(text).digest()
    assert lowered(text).digest() != lowered(text.replace("axis=0", "axis=1")).digest()


def test_unknown_sizes_are_refused() -> None:
    x = Var("x", TensorType((AnyDim(), 3)))
    mod = infer_module(IRModule({"main": Function((x,), relay.op.exp(x))}))
    with pytest.raises(DynamicShapeError, match="loops need known sizes"):
        lower_primitive(mod["main"], "f", "c")


def test_an_operator_without_loops_is_named_with_the_place_to_write_them() -> None:
    op = register_op(
        "test.no_loops", arg_names=("data",), rel=identity_rel, pattern=OpPattern.OPAQUE
    )
    x = Var("x", TensorType((3,)))
    call = compiler.ir.expr.Call(op, (x,))
    mod = infer_module(IRModule({"main": Function((x,), call)}))
    with pytest.raises(CompilerError, match="needs FLower of operator") as caught:
        lower_primitive(mod["main"], "f", "c")
    assert "while lowering" in str(caught.value)


def test_control_flow_is_no_tensor_code() -> None:
    text = "(%c: bool, %x: Tensor[(3), float32]) { if (%c) { %x } else { exp(%x) } }"
    with pytest.raises(LoweringError, match="cannot stand in a primitive function"):
        lowered(text)


def test_nothing_reads_a_temp_that_is_not_there() -> None:
    func = lowered("(%x: Tensor[(2, 5), float32]) { nn.softmax(%x) }")
    read = {
        load.buffer.name
        for block in func.blocks
        if isinstance(block, Compute)
        for load in loads(block.expr)
    }
    assert read == {"p0", *(temp.name for temp in func.temps)}
