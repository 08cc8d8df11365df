"""main.c: a program that runs a sample and says whether the outputs are right."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from compiler.errors import CodegenError
from compiler.targets.c.c_types import c_type
from compiler.targets.c.constants import array_text
from compiler.targets.c.entry import Entry, call_lines
from compiler.targets.c.names import Names
from compiler.targets.c.source_file import comment

Array = NDArray[Any]

TOLERANCE = 1e-4
"""Of floats that need not be exact: relative above 1, absolute below."""


def self_check(
    name: str, entry: Entry, inputs: Sequence[Array], outputs: Sequence[Array], exact: bool = True
) -> str:
    """Text of main.c.

    Args:
        name: of the package.
        entry: the function it runs.
        inputs: of the sample.
        outputs: what they have to give.
        exact: floats are compared bit by bit; else within TOLERANCE.
    Raises:
        CodegenError: the sample does not fit the function.
    """
    count = len(entry.params)
    if len(inputs) != count or len(outputs) != len(entry.results):
        raise CodegenError(
            f"a sample of @{entry.function} has {len(inputs)} inputs and {len(outputs)} "
            f"outputs, the function {count} and {len(entry.results)}"
        )
    rough = [not exact and value.dtype == "float32" for value in entry.results]
    how = f"to {TOLERANCE:g}" if any(rough) else "bit by bit"
    parts = [
        comment(
            "main.c: runs one sample; exits 0 if the outputs are those of the reference,\n"
            f"{how}, else 1."
        )
    ]
    arrays = (*inputs, *outputs)
    macros = any(a.dtype.kind == "f" and not np.isfinite(a).all() for a in arrays)
    system = ["<string.h>"] if not all(rough) else []
    system += ["<math.h>"] if macros else []
    parts.append(f'#include "{name}.h"\n')
    parts.append("".join(f"#include {header}\n" for header in system))
    names = Names(["arena", "differs"])
    given = [names.fresh(f"sample_{word}") for word in entry.names[:count]]
    wanted = [names.fresh(f"expected_{word}") for word in entry.names[count:]]
    made = [names.fresh(f"actual_{word}") for word in entry.names[count:]]
    parts += [array_text(word, array) for word, array in zip((*given, *wanted), arrays)]
    declared = [
        f"static {c_type(value.dtype)} {word}[{max(value.size, 1)}];"
        for word, value in zip(made, entry.results)
    ]
    arena = ["&arena"] if entry.placement.arena_bytes else []
    declared += [f"static {name}_arena arena;"] if arena else []
    parts.append("\n".join(declared) + "\n")
    parts += [_DIFFERS] if any(rough) else []
    checks = [
        f"differs({m}, {w}, {value.size})" if loose else f"memcmp({m}, {w}, sizeof {w}) != 0"
        for m, w, value, loose in zip(made, wanted, entry.results, rough)
    ]
    lines = call_lines(entry.symbol, [*arena, *given, *made])
    lines.append("return " + "\n        || ".join(checks or ["0"]) + ";")
    parts.append("int main(void)\n{\n" + "\n".join(f"    {line}" for line in lines) + "\n}\n")
    return "\n".join(parts)


_DIFFERS = f"""/* Float sums may be added up in another order. */
static int differs(const float *actual, const float *expected, int32_t count)
{{
    for (int32_t i = 0; i < count; ++i) {{
        const float size = expected[i] < 0 ? -expected[i] : expected[i];
        const float error = actual[i] - expected[i];
        const float limit = {TOLERANCE!r}f * (size > 1 ? size : 1);
        if (actual[i] == expected[i]) continue;
        if (!(error <= limit && error >= -limit)) return 1;
    }}
    return 0;
}}
"""
