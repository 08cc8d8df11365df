"""The same model gives the same bytes in every process."""

from __future__ import annotations

import os
import subprocess
import sys

SCRIPT = """
import hashlib
import compiler
from compiler import transform
from compiler.frontend.from_onnx.load import load
from compiler.quantize import (
    QConfig, bind_params, build_candidate, mark, measured_points, prerequisite_optimize,
)
from qsearch.opening.model_file import find_model

def show(name, mod):
    text = compiler.text(mod)
    print(name, compiler.structural_hash(mod), hashlib.sha256(text.encode()).hexdigest())

mod, params = load(find_model("digits").path)
show("import", mod)
bound = bind_params(mod, params)
for name, cls in transform.registered_passes().items():
    if cls.__module__.startswith("compiler.passes."):
        with transform.PassContext(opt_level=4):
            show(name, transform.create_pass(name)(bound))
ready = prerequisite_optimize(mod, params, 3, simplify=True)
config = QConfig.recommended()
annotated, _ = mark(ready, config)
show("annotated", annotated)
candidate = build_candidate(ready, config, [4.0] * len(measured_points(annotated)))
show("simulated", candidate.simulated)
show("integer", candidate.partitioned)
spelled = transform.InlineRequantize()(candidate.partitioned)
for name in ("FuseOps", "FuseOpHW", "LowerTE"):
    show(name, transform.create_pass(name)(spelled))
show("lowered", compiler.lower(candidate.partitioned, target="c").mod)
"""


def run(seed: str) -> str:
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True, env=environment
    )
    return done.stdout


def test_every_pass_prints_the_same_under_every_hash_seed() -> None:
    first = run("1")
    assert first.count("\n") > 15
    assert run("2") == first
