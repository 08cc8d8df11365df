"""What fewer bits save in each file of a module, and the answers that they cost.

    python -m tests.benchmarks.bench_bytes [--data DIR] [--models NAME …] [--bits 8 4] [--images N]

For every model and number of bits: a module with weights of these bits (rounded sequentially below
8) from 128 calibration images; top-1 on images of the dev split beside float, with the answers lost
and won; bytes of the .qmod, of code and constants of the C at -Os, and of the QDQ files that use at
most opset 17, 21 and 25.
"""

from __future__ import annotations

import argparse
import subprocess
import tempfile
from pathlib import Path

import numpy as np

import qsearch
from compiler.qtypes.qconfig import QConfig
from compiler.targets.c.toolchain import required_compiler
from compiler.targets.ort.session import OrtExecutor
from tests.benchmarks.real_models import DATA, read_split

CALIBRATION_IMAGES = 128


def code_bytes(folder: Path) -> int:
    """Text and constants of the C in a folder, as an object file holds them."""
    (source,) = (path for path in folder.glob("*.c") if path.name != "main.c")
    target = folder / "m.o"
    command = [*required_compiler(), "-std=c99", "-Os", "-c", str(source), "-o", str(target)]
    subprocess.run(command, check=True)
    shown = subprocess.run(["size", str(target)], capture_output=True, text=True, check=True).stdout
    return int(shown.splitlines()[1].split()[0])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data", type=Path, default=DATA)
    parser.add_argument("--models", nargs="+", default=["fashion_resnet", "fashion_mobilenet"])
    parser.add_argument("--bits", nargs="+", type=int, default=[8, 4])
    parser.add_argument("--images", type=int, default=2000)
    asked = parser.parse_args()
    for name in asked.models:
        model = asked.data / f"{name}.onnx"
        calib = read_split(asked.data, name, "calib", CALIBRATION_IMAGES).images
        dev = read_split(asked.data, name, "dev", asked.images)
        images = [dev.images[at : at + 1] for at in range(len(dev.images))]
        session = OrtExecutor(model.read_bytes())
        before = np.concatenate([session.run([x])[0] for x in images]).argmax(1) == dev.labels
        print(f"{name}: float {model.stat().st_size:,} bytes, {before.mean():.2%}")
        for bits in asked.bits:
            rounding = "sequential" if bits < 8 else "corrected"
            config = QConfig.recommended(nbit_weight=bits, weight_rounding=rounding)
            module = qsearch.quantize(model, {"input": calib}, config.to_dict())
            after = np.concatenate([module.run([x])[0] for x in images]).argmax(1) == dev.labels
            with tempfile.TemporaryDirectory() as scratch:
                folder = Path(scratch)
                module.save(folder / "m.qmod")
                qsearch.export(folder / "m.qmod", "c", folder / "c")
                sizes = [(folder / "m.qmod").stat().st_size, code_bytes(folder / "c")]
                for opset in (17, 21, 25):
                    file = folder / f"{opset}.onnx"
                    qsearch.export(folder / "m.qmod", "qdq", file, opset=opset)
                    sizes.append(file.stat().st_size)
            told = dict(zip((".qmod", "C", "QDQ 17", "21", "25"), sizes, strict=True))
            lost, won = np.sum(before & ~after), np.sum(after & ~before)
            shown = ", ".join(f"{form} {size:,}" for form, size in told.items())
            print(f"  {bits} bits: {after.mean():.2%}, {lost} lost, {won} won; {shown}")


if __name__ == "__main__":
    main()
