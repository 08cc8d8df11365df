"""Legal modules of which a form computed other integers on inputs that few runs meet."""

from __future__ import annotations

import numpy as np
import pytest

from compiler.errors import PlanError, TypeInferenceError
from compiler.pipeline import C_LOWERING
from compiler.proof.derive import derive_static
from compiler.proof.steps import built_in_c, check_forms
from compiler.targets.c.executor import CExecutor
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.ort.integer_executor import IntegerExecutor
from compiler.targets.reference.executor import ReferenceExecutor
from tests.compiler.inner_values import Array, Case, whole_module
from tests.compiler.mends import Defect, put_back
from tests.needs import NEEDS_C

RARE = 0x2B5C9D71
HALF, MOST = 1 << 30, (1 << 31) - 1
CORE = "quantized_main"
FLAGS = ("-O0", "-ffp-contract=off")


def ints(*values: int, dtype: str = "int32") -> Array:
    return np.array(values if len(values) > 1 else values[0], dtype)


WORDS = ints(RARE, 0, -1, 5)
"""The rare input and others."""
CONSTANTS = {"RARE": ints(RARE)}
HALVES = """  %0 = bitwise_and(%q, 65535);
  %1 = right_shift(%q, 16);
  %2 = where(equal(%0, LOW), where(equal(%1, UPPER), 3, 2), 2);
  qnn.requantize(%2, FACTOR, SHIFT, axis=0, rounding="ROUNDING", low=-9, high=9)"""
NEGATIVE_HALF = {
    "LOW": ints(RARE & 0xFFFF),
    "UPPER": ints(RARE >> 16),
    "FACTOR": np.full(4, -HALF, "int32"),
    "SHIFT": np.zeros(4, "int32"),
}

CASES = {
    "limits of uint32 in front of a product": Case(
        """  %0 = where(equal(%q, RARE), BIG, SMALL);
  %1 = clip(%0, a_min=0f, a_max=100f);
  qnn.requantize(%1, multiplier=2147483647, shift=0, low=0, high=255, out_dtype="uint8")""",
        {"q": WORDS},
        CONSTANTS | {"BIG": ints(4_000_000_000, dtype="uint32"), "SMALL": ints(5, dtype="uint32")},
    ),
    "a relu in front of a negative factor": Case(
        """  %0 = where(equal(%q, RARE), -1000, 0);
  qnn.requantize(%0, FACTOR, SHIFT, axis=0, relu=True, low=-128, high=127)""",
        {"q": WORDS},
        CONSTANTS
        | {"FACTOR": np.full(4, -1_500_000_000, "int32"), "SHIFT": np.full(4, -3, "int32")},
    ),
    "the same relu in words": Case(
        """  %0 = add(where(equal(%q, RARE), -1000, 0), 1);
  %1 = cast(nn.relu(%0), dtype="int64");
  %2 = fixed_point_multiply_per_axis(%1, FACTOR, SHIFT, axis=0);
  clip(%2, a_min=-128f, a_max=127f)""",
        {"q": WORDS},
        CONSTANTS
        | {"FACTOR": np.full(4, -1_500_000_000, "int32"), "SHIFT": np.full(4, -3, "int32")},
    ),
    "limits of a requantization beyond int32": Case(
        """  %0 = where(equal(%q, RARE), 1000, 0);
  qnn.requantize(%0, multiplier=2000000000, shift=-1, low=17179869184, high=68719476736,
    out_dtype="int64")""",
        {"q": WORDS},
        CONSTANTS,
    ),
    **{
        f"limits beyond int32 of a product, halves {how}": Case(
            f"""  qnn.requantize(%q, multiplier=2000000000, shift=-1, rounding="{how}",
    low=-9007199254740992, high=-4294967297, out_dtype="int64")""",
            {"q": WORDS},
        )
        for how in ("even", "away", "up")
    },
    "limits that bytes do not hold": Case(
        """  %0 = clip(%q, a_min=-3f, a_max=200f);
  %1 = qnn.requantize(%0, multiplier=2000000000, shift=0, low=0, high=255, out_dtype="int32");
  cast(%1, dtype="int8")""",
        {"q": ints(200, 0, -9, 127)},
    ),
    "a sum behind a requantization, beyond its zero point": Case(
        """  %0 = where(equal(%q, RARE), 2147483647, 0);
  %1 = qnn.requantize(%0, multiplier=1073741824, shift=1, low=-2147483648, high=2147483647,
    compute_dtype="int32", rounding="floor", out_dtype="int64");
  add(%1, 5i64)""",
        {"q": WORDS},
        CONSTANTS,
    ),
    "a clip behind a sum that wraps": Case(
        """  %0 = where(equal(%q, RARE), 2147483647, 0);
  %1 = qnn.requantize(%0, multiplier=1073741824, shift=0, rounding="floor",
    compute_dtype="int32", zero_point=1500000000, out_dtype="int32");
  clip(%1, a_min=-2147483648f, a_max=2000000000f)""",
        {"q": WORDS},
        CONSTANTS,
    ),
    "rows without an update": Case(
        """  %0 = reshape(%q, newshape=[2, 2]);
  add(scatter_nd(%0, PLACES, UPDATES), 1)""",
        {"q": WORDS},
        {"PLACES": np.zeros((1, 0), "int32"), "UPDATES": np.zeros((0, 2), "int32")},
    ),
    **{
        f"a negative factor, halves {how}": Case(
            HALVES.replace("ROUNDING", how), {"q": WORDS}, NEGATIVE_HALF
        )
        for how in ("even", "away", "up")
    },
}


@NEEDS_C
@pytest.mark.parametrize("what", CASES)
@pytest.mark.parametrize("form", [EngineExecutor, IntegerExecutor, CExecutor])
def test_every_form_gives_the_integers_of_the_reference(what: str, form: type) -> None:
    case = CASES[what]
    inputs = list(case.given.values())
    (wanted,) = ReferenceExecutor(case.mod, CORE).run(inputs)
    (ours,) = form(case.mod, CORE).run(inputs)
    np.testing.assert_array_equal(ours, wanted)


def test_padding_of_nothing_by_a_computed_number_is_refused_by_the_engine() -> None:
    case = Case(
        """  %0 = strided_slice(%q, begin=[0], end=[0]);
  nn.pad(%0, reshape(max(%q), newshape=[]), pad_width=[[2, 1]])""",
        {"q": WORDS},
    )
    with pytest.raises(PlanError, match="an empty operand"):
        EngineExecutor(case.mod, CORE)


@pytest.mark.parametrize(
    "fields",
    [
        "low=5, high=-5",
        "low=3",
        "low=-129, high=127",
        'low=0, high=9007199254740993, out_dtype="int64"',
        'low=9007199254740992, high=9007199254740992, zero_point=-127, out_dtype="int64"',
        'low=-2147483648, high=2147483647, zero_point=-1, compute_dtype="int32", out_dtype="int32"',
        'low=0, high=4294967295, out_dtype="int64", compute_dtype="int32"',
    ],
)
def test_limits_that_no_quantization_writes_have_no_type(fields: str) -> None:
    with pytest.raises(TypeInferenceError, match=r"qnn\.requantize: low="):
        whole_module(f"  qnn.requantize(%q, shift=-3, {fields})", {"q": WORDS}, {})


def test_a_mix_of_no_neighbours_has_no_type() -> None:
    constants = {"PLACES": np.zeros((3, 0), "int64"), "WEIGHTS": np.zeros((3, 0), "int32")}
    with pytest.raises(TypeInferenceError, match=r"image\.mix: axis 0 has places"):
        whole_module("  image.mix(%q, PLACES, WEIGHTS, axes=[0])", {"q": WORDS}, constants)


REQUANTIZE = "compiler.ops.qnn.requantize"
RULES = "compiler.targets.engine.rules"
DEFECTS = {
    "a relu in front of a negative factor": Defect(
        REQUANTIZE, "_high_half", {"fits and not (attrs.relu and multiplier.min() < 0)": "fits"}
    ),
    "limits of a requantization beyond int32": Defect(
        REQUANTIZE,
        "_high_half",
        {'fits and all_hold((*limits, attrs.low, attrs.high, attrs.zero_point), "int32")': "fits"},
    ),
    **dict.fromkeys(
        ("a negative factor, halves even", "a negative factor, halves away"),
        Defect(
            RULES,
            "rescale",
            {
                'if ties == "away" and multiplier.min() < 0:': "if False:",
                "if apart and _reaches_half(": "if multiplier.min() >= 0 and _reaches_half(",
            },
        ),
    ),
}


@NEEDS_C
@pytest.mark.parametrize("what", DEFECTS)
def test_a_rewrite_without_its_premise_is_found_step_by_step(what: str) -> None:
    with put_back(DEFECTS[what]):
        mod = CASES[what].mod
        assert derive_static(mod).holds
        found = check_forms(mod, 16, 0, built_in_c(mod, FLAGS, C_LOWERING))[1]
    form = "engine" if "halves" in what else "generated C"
    assert any(f"the {form} computes other numbers" in finding.what for finding in found)


@NEEDS_C
def test_a_condition_that_no_operand_meets_is_said() -> None:
    """Two numbers have the product 91 * 89 only where both are these."""
    case = Case(
        """  %0 = multiply(cast(%q, dtype="int32"), cast(%p, dtype="int32"));
  where(equal(%0, RARE), 1, 0)""",
        {"q": ints(1, 2, 3, dtype="int8"), "p": ints(1, 2, 3, dtype="int8")},
        {"RARE": ints(91 * 89)},
    )
    tested, found = check_forms(case.mod, 8, 0, built_in_c(case.mod, FLAGS, C_LOWERING))
    assert found == ()
    engine, exact, in_c = tested
    assert exact.unmet == ()  # every value is given
    for one in (engine, in_c):
        assert one.unmet == ("%3 equal, from <text>:7:9 is true",)
        assert str(one).endswith("; changed no result: %3 equal, from <text>:7:9 is true")


@NEEDS_C
def test_a_condition_on_two_halves_of_a_number_is_met() -> None:
    mod = CASES["a negative factor, halves even"].mod
    tested, found = check_forms(mod, 8, 0, built_in_c(mod, FLAGS, C_LOWERING))
    assert found == ()
    assert [one.unmet for one in tested] == [(), (), ()]
