"""Do two versions of the project compute the same? Hashes of outputs of every form.

    python -m tests.benchmarks.bench_outputs --json after.json [--against before.json]
        [--networks NAME …] [--configurations 6] [--modules 300] [--fast] [--data ../shared/data]

Networks are those of ``bench_bits`` and of ``tests/e2e/zoo``. Each is quantized in six ways, two of
which are for LiteRT files, and run on fixed inputs: a sample, noise, the ends of ranges, 30 times
beyond them, and numbers halfway between integers. Forms are the reference, the engine, the exact
ONNX in onnxruntime, C, the QDQ file and the LiteRT file. Random modules of
``tests/compiler/inner_limits.py`` run in the exact forms. With ``--against``, exit code 1 and one
line for every hash that differs; ``--fast`` takes about a minute.

``bench_bits`` hashes modules and texts instead, which may change where outputs must not. A form
that refuses a module counts as the name of its error.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import qsearch
from compiler.errors import CompilerError
from compiler.export.to_onnx.qdq.model import to_qdq_onnx
from compiler.ir.module import IRModule
from compiler.pipeline import tflite_file
from compiler.proof.replay import REPLAY_FLAGS
from compiler.runtime.artifact import QModule, constants_of
from compiler.targets.c.executor import CExecutor
from compiler.targets.engine.executor import EngineExecutor
from compiler.targets.ort.integer_executor import IntegerExecutor
from compiler.targets.ort.session import OrtExecutor
from compiler.targets.reference.executor import ReferenceExecutor
from compiler.targets.tflite.interpreters import JUDGES, interpreter
from tests.benchmarks.bench_bits import DATA, MODELS, differences, images, print_differences
from tests.compiler.inner_limits import CORE, OPERATORS, core_of, inputs_of, module_of
from workers.metrics.size import LITERT

Array = NDArray[Any]
Arrays = dict[str, Array]
Run = Callable[[Arrays], list[Array]]

HERE = Path(__file__).resolve()
ZOO = HERE.parents[1] / "e2e" / "zoo"
SEED = 0
CALIBRATED = 4
"""Samples that a configuration is calibrated on, 2 of a large model."""
LARGE = ("efficientnet_lite0",)
C_BYTES = 1 << 20
"""Constants of a module that is compiled as C."""
FAST = ("digits_cnn", "fashion_mobilenet", "bc_resnet", "bert_like", "kws_lstm")
FAST_MODULES = 60

CONFIGURATIONS: tuple[Mapping[str, Any], ...] = (
    {},
    {
        "activation_scheme": "asymmetric",
        "requantization": "fixed_point",
        "rounding": "TONEAREST",
        "weight_granularity": "tensor",
    },
    {
        "activation_scheme": "symmetric",
        "requantization": "power_of_two",
        "weight_scale": "power2",
        "rounding": "TONEAREST_EVEN",
    },
    {"requantization": "fixed_point", "rounding": "TONEAREST_EVEN", "nbit_weight": 4},
    *({"requantization": "tflite", **fields} for fields in LITERT.values()),
)
"""Changes to the recommended configuration."""


def calibration(network: str, data: Path) -> Arrays:
    """Samples by name of the input."""
    if network in MODELS:
        count = 2 if network in LARGE else CALIBRATED
        return {"input": images(data, network, "calib", count)[0]}
    stored = np.load(ZOO / f"{network}.npz")
    parts = {k.removeprefix("calib."): stored[k] for k in stored if k.startswith("calib.")}
    return {k: v.astype(np.float32) if v.dtype == np.float16 else v for k, v in parts.items()}


def inputs_for(calib: Arrays) -> list[Arrays]:
    """A sample, noise, the ends of ranges, 30 times beyond, and halves of a 256th of a range."""
    rng = np.random.default_rng(SEED)
    found: list[Arrays] = [{} for _ in range(5)]
    for name, samples in calib.items():
        one = samples[:1]
        low, high = samples.min(), samples.max()
        ends = rng.choice(np.array([low, high]), one.shape)
        if samples.dtype.kind == "f":
            noise = rng.uniform(low, high, one.shape)
            step = (float(high) - float(low)) / 256
            drawn = [one, noise, ends, 30 * noise, step * (np.floor(noise / (step or 1)) + 0.5)]
        else:
            noise = rng.integers(low, high, one.shape, endpoint=True)
            drawn = [one, noise, ends, one[:, ::-1] if one.ndim > 1 else one, noise]
        for inputs, array in zip(found, drawn, strict=True):
            inputs[name] = np.ascontiguousarray(array, samples.dtype)
    return found


def forms_of(module: QModule, for_litert: bool) -> Iterator[tuple[str, Callable[[], Run]]]:
    """How a module is run, by name of the form."""
    mod, names = module.module, module.input_names

    def executor(kind: Any, **more: Any) -> Run:
        made = kind(mod, **more)
        return lambda inputs: list(made.run([inputs[name] for name in names]))

    def qdq() -> Run:
        made = to_qdq_onnx(mod).model.SerializeToString()
        session = OrtExecutor(made)
        return lambda inputs: list(session.run([inputs[name] for name in names]))

    def litert() -> Run:
        run, dtypes = interpreter(JUDGES[1], tflite_file(mod, io="float").data)
        return lambda inputs: run([inputs[n].astype(d) for n, d in zip(names, dtypes, strict=True)])

    yield "reference", lambda: executor(ReferenceExecutor)
    yield "engine", lambda: executor(EngineExecutor)
    yield "onnx", lambda: executor(IntegerExecutor)
    if sum(array.nbytes for array in constants_of(mod)) <= C_BYTES:
        yield "c", lambda: executor(CExecutor, flags=REPLAY_FLAGS)
    yield "qdq", qdq
    if for_litert:
        yield "litert", litert


def hashed(make: Callable[[], Run], inputs: list[Arrays]) -> str:
    """Hash of all outputs, or the name of the error."""
    digest = hashlib.sha256()
    try:
        run = make()
        for given in inputs:
            for array in run(given):
                digest.update(f"{array.dtype} {array.shape}".encode())
                digest.update(np.ascontiguousarray(array).tobytes())
    except (CompilerError, ValueError) as error:
        return f"refused: {type(error).__name__}"
    return digest.hexdigest()[:16]


def outputs_of(network: str, data: Path, configurations: int) -> list[dict[str, str]]:
    """Hashes of every form of every configuration of a network."""
    path = (data if network in MODELS else ZOO) / f"{network}.onnx"
    calib, rows = calibration(network, data), []
    inputs = inputs_for(calib)
    for changes in CONFIGURATIONS[:configurations]:
        dim = {"N": 1} if network in MODELS else {}
        try:
            module = qsearch.quantize(path, calib, changes, dim=dim)
        except (CompilerError, ValueError) as error:
            rows.append({"module": f"refused: {type(error).__name__}"})
            continue
        core = [{n: one[n] for n in module.input_names if n in one} for one in inputs]
        if module.pipeline is not None:  # float parts: the module begins behind them
            core = [module.pipeline.prepare(one) for one in inputs]
        for_litert = changes.get("requantization") == "tflite"
        rows.append({name: hashed(make, core) for name, make in forms_of(module, for_litert)})
    return rows


def random_outputs(index: int) -> dict[str, str] | None:
    """Hashes of the exact forms of a random module; None where it has no type."""
    rng = np.random.default_rng([SEED, index])
    g = core_of(rng, OPERATORS[index % len(OPERATORS)])
    try:
        mod: IRModule = module_of(g)
    except CompilerError:
        return None
    inputs = [dict(enumerate(arrays)) for arrays in inputs_of(mod, g, 6)]
    kinds: dict[str, Any] = {"reference": ReferenceExecutor, "engine": EngineExecutor}
    kinds |= {"onnx": IntegerExecutor} if index % 3 == 0 else {}

    def runs(kind: Any) -> Callable[[], Any]:
        def make() -> Any:
            made = kind(mod, CORE)
            return lambda given: made.run(list(given.values()))

        return make

    found: Any = inputs
    return {name: hashed(runs(kind), found) for name, kind in kinds.items()}


def main(argv: list[str] | None = None) -> int:
    """Hash, write, compare."""
    zoo = sorted(path.stem for path in ZOO.glob("*.onnx"))
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--networks", nargs="*", choices=(*MODELS, *zoo))
    parser.add_argument("--configurations", type=int, default=len(CONFIGURATIONS))
    parser.add_argument("--modules", type=int)
    parser.add_argument("--fast", action="store_true", help="few networks and modules")
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--json", type=Path, help="where the hashes are written")
    parser.add_argument("--against", type=Path, help="hashes of another version")
    args = parser.parse_args(argv)
    found: dict[str, Any] = {"networks": {}, "modules": {}}
    networks = args.networks if args.networks is not None else (*MODELS, *zoo)
    for network in FAST if args.fast else networks:
        begin = time.process_time()
        found["networks"][network] = outputs_of(network, args.data, args.configurations)
        refused = sum(
            v.startswith("refused") for r in found["networks"][network] for v in r.values()
        )
        spent = time.process_time() - begin
        print(f"{network}: {refused} refused, {spent:.0f} CPU s", flush=True)
        if args.json is not None:
            args.json.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")
    count = args.modules if args.modules is not None else FAST_MODULES if args.fast else 300
    for index in range(count):
        found["modules"][str(index)] = random_outputs(index)
    if args.json is not None:
        args.json.write_text(json.dumps(found, indent=1, sort_keys=True) + "\n", "utf-8")
    if args.against is None:
        return 0
    before = json.loads(args.against.read_text(encoding="utf-8"))
    kept = {k: {n: before[k].get(n, "absent") for n in found[k]} for k in found}
    return print_differences(list(differences(kept, found)), args.against)


if __name__ == "__main__":
    sys.exit(main())
