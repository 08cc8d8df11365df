"""One quantization tool on one model, run by the Python of an environment that holds the tool.

    ENV/bin/python quantization_tools.py TOOL MODEL CALIB EVAL OUT [untrained | four]

CALIB and EVAL are .npy files, float32 (N, C, H, W). For every configuration of the tool OUT gets
an .npy file with the outputs of its float simulation, and ``TOOL.json`` with rows of name, CPU
seconds, operators that were left in float, and file. ``four``: weights of 4 bits for every channel,
activations of 8. Imports nothing of this project.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime

PIP: dict[str, tuple[str, ...]] = {
    "quark": ("amd-quark==0.13", "torch==2.13.0", "onnx", "onnxruntime", "onnxruntime-extensions"),
    "nncf": ("nncf==3.4.0", "onnx", "onnxruntime"),
    "aimet": ("aimet-onnx==2.42.0", "torch==2.13.0"),
    "modelopt": ("nvidia-modelopt[onnx]==0.47.0", "torch==2.13.0"),
    "litert": (
        "onnx2tf==1.29.24",
        "ai-edge-quantizer==0.5.0",
        "tensorflow-cpu==2.19.1",
        "tf_keras==2.19.0",
        *("onnx_graphsurgeon", "sng4onnx", "onnxsim", "onnxruntime", "psutil"),
    ),
}
"""What an environment of each tool is made of."""

BATCH = 16
_MOVES = frozenset(
    ("Reshape", "Transpose", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Pad", "Split")
) | {"MaxPool", "Relu", "Clip"}
_COMPUTES = frozenset(
    ("Conv", "Gemm", "MatMul", "Add", "Sub", "Mul", "Div", "Softmax", "LayerNormalization")
) | {"Erf", "Gelu", "Sigmoid", "ReduceMean", "GlobalAveragePool", "Concat"}
_POINTS = frozenset({"DequantizeLinear", "QcQuantizeOp", "ExtendedDequantizeLinear"})

Array = np.ndarray[Any, Any]
Made = Iterator[tuple[str, Any, Callable[[Array], Array]]]
"""Name, model ({} where it is no ONNX and all in integers), function of images."""


def float_operators(model: onnx.ModelProto) -> dict[str, int]:
    """Operators that compute with what no quantize point has given, by type.

    What only moves values hands on what it reads; constants do not count.
    """
    constants = {init.name for init in model.graph.initializer}
    quantized: set[str] = set()
    left: Counter[str] = Counter()
    for node in model.graph.node:
        given = [name for name in node.input if name]
        if node.op_type == "Constant" or (given and all(name in constants for name in given)):
            points = node.op_type in _POINTS
            (quantized if points else constants).update(node.output)
            continue
        if node.op_type in _POINTS:
            quantized.update(node.output)
        elif node.op_type in _MOVES:
            if given[0] in quantized:
                quantized.update(node.output)
        elif node.op_type in _COMPUTES:
            real = [name for name in given if name not in constants]
            if not all(name in quantized for name in real):
                left[node.op_type] += 1
    return dict(left)


def simulated(model: onnx.ModelProto, libraries: tuple[str, ...] = ()) -> Callable[[Array], Array]:
    """A model with QuantizeLinear and DequantizeLinear as a function, all of it in float."""
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("session.disable_quant_qdq", "1")
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    for library in libraries:
        options.register_custom_ops_library(library)
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    name = session.get_inputs()[0].name
    return lambda images: session.run(None, {name: images})[0]


def with_wide_outputs(model: onnx.ModelProto) -> onnx.ModelProto:
    """A model whose outputs are not quantized, as ours are int32."""
    made = {name: node for node in model.graph.node for name in node.output}
    for output in model.graph.output:
        last = made[output.name]
        if last.op_type not in _POINTS:
            continue
        wide = made[last.input[0]].input[0]
        model.graph.node.remove(last)
        for node in model.graph.node:
            for names in (node.input, node.output):
                names[:] = [output.name if name == wide else name for name in names]
    return model


class Batches:
    """Images batch by batch, as onnxruntime's calibrators and those after them ask for them."""

    def __init__(self, name: str, images: Array, batch: int) -> None:
        self._batches = [{name: images[i : i + batch]} for i in range(0, len(images), batch)]
        self.rewind()

    def __len__(self) -> int:
        return len(self._batches)

    def __iter__(self) -> Iterator[Mapping[str, Array]]:
        return iter(self._batches)

    def get_next(self) -> Mapping[str, Array] | None:
        return next(self._waiting, None)

    def reset_iter(self) -> None:
        self.rewind()

    def rewind(self) -> None:
        self._waiting = iter(self._batches)


def quark(path: Path, calib: Array, out: Path, images: Array, train: bool) -> Made:
    """AMD Quark: ranges, granularity, equalization; AdaQuant and AdaRound on the best of these."""
    from quark.onnx import (
        AdaQuantConfig,
        AdaRoundConfig,
        CalibMethod,
        CLEConfig,
        Int8Spec,
        ModelQuantizer,
        QConfig,
        QLayerConfig,
        QuantGranularity,
        UInt8Spec,
    )

    def made(channels: bool, method: str, *algorithms: Any) -> onnx.ModelProto:
        ranges = CalibMethod[method]
        points = UInt8Spec if channels else Int8Spec
        granularity = QuantGranularity.Channel if channels else QuantGranularity.Tensor
        config = QConfig(
            global_config=QLayerConfig(
                activation=points(calibration_method=ranges),
                weight=Int8Spec(calibration_method=ranges, quant_granularity=granularity),
            ),
            algo_config=list(algorithms),
            extra_options={
                "ForceQuantizeNoInputCheck": True,
                "AlignSlice": False,
                "FoldRelu": True,
                "AlignConcat": True,
            },
        )
        target = out / "quark.onnx"
        reader = Batches(_input(path), calib, 1 if len(algorithms) > 1 else BATCH)
        ModelQuantizer(config).quantize_model(str(path), str(target), reader)
        return with_wide_outputs(onnx.load(target))

    plain = simulated(onnx.load(path))(images)
    ranked = []
    for channels, method in product((False, True), ("Percentile", "MinMax", "MinMSE")):
        model = made(channels, method, CLEConfig())
        error = float(np.square(simulated(model)(images) - plain).sum())
        kind = "u8, per channel" if channels else "s8, per tensor"
        ranked.append((error, f"{kind}, {method}, CLE", channels, method))
        yield ranked[-1][1], model, simulated(model)
    if not train:
        return
    fits = {"data_size": len(calib), "batch_size": 2, "num_iterations": 1000}
    fits |= {"early_stop": True, "update_bias": True}
    first, second, *_ = sorted(ranked)
    for algorithm, (_, name, *base) in (
        (AdaQuantConfig(**fits), first),
        (AdaQuantConfig(**fits), second),
        (AdaRoundConfig(**fits), first),
    ):
        model = made(*base, CLEConfig(), algorithm)
        title = type(algorithm).__name__.removesuffix("Config")
        yield f"{name}, {title}", model, simulated(model)


def quark_four(path: Path, calib: Array, out: Path, images: Array, train: bool) -> Made:
    """AMD Quark's 4 bits of weights: MX4 and MXFP4, whose neighbours share exponents (its ONNX path
    has no integers of 4 bits, and AdaRound leaves these alone); activations of 8 bits."""
    from quark.onnx import (
        AdaQuantConfig,
        CalibMethod,
        ModelQuantizer,
        MX4Spec,
        MXFP4E2M1Spec,
        QConfig,
        QLayerConfig,
        UInt8Spec,
        get_library_path,
    )

    blocks = {"axis": 1, "rounding_mode": 2}
    halves = {"bfp_method": "to_bfp_prime", "sub_block_size": 2, "sub_block_shift_bits": 1}
    forms = {
        "MX4": (MX4Spec, "BFPAttributes", {**blocks, **halves, "bit_width": 11, "block_size": 16}),
        "MXFP4": (
            MXFP4E2M1Spec,
            "MXAttributes",
            {**blocks, "element_dtype": "fp4_e2m1", "block_size": 32},
        ),
    }
    for (name, (spec, key, told)), algorithms in product(forms.items(), ([], [AdaQuantConfig()])):
        layer = QLayerConfig(
            activation=UInt8Spec(calibration_method=CalibMethod.MinMax), weight=spec()
        )
        options = {"ForceQuantizeNoInputCheck": True, "UseBFPBias": False, key: told}
        config = QConfig(global_config=layer, algo_config=algorithms, extra_options=options)
        reader = Batches(_input(path), calib, 1)
        ModelQuantizer(config).quantize_model(str(path), str(out / "quark.onnx"), reader)
        model = with_wide_outputs(onnx.load(out / "quark.onnx"))
        title = f"{name}, AdaQuant" if algorithms else name
        yield title, model, simulated(model, (get_library_path(),))


def nncf(path: Path, calib: Array, out: Path, images: Array, train: bool) -> Made:
    """Intel NNCF: both presets, two kinds of ranges, fast and full bias correction."""
    import nncf as tool
    from nncf.quantization.advanced_parameters import (
        AdvancedQuantizationParameters,
        OverflowFix,
    )
    from nncf.quantization.range_estimator import RangeEstimatorParametersSet

    name, batch = _input(path), 1
    items = [calib[i : i + batch] for i in range(0, len(calib), batch)]
    transformer = {"model_type": tool.ModelType.TRANSFORMER} if "vit" in path.stem else {}
    presets = tool.QuantizationPreset
    for preset, ranges, fast in (
        (presets.PERFORMANCE, "MEAN_MINMAX", True),
        (presets.MIXED, "MEAN_MINMAX", True),
        (presets.MIXED, "MINMAX", True),
        (presets.MIXED, "MINMAX", False),
    ):
        made = tool.quantize(
            onnx.load(path),
            tool.Dataset(items, lambda images: {name: images}),
            preset=preset,
            subset_size=len(items),
            fast_bias_correction=fast,
            advanced_parameters=AdvancedQuantizationParameters(
                overflow_fix=OverflowFix.DISABLE,
                disable_channel_alignment=False,
                activations_range_estimator_params=getattr(RangeEstimatorParametersSet, ranges),
            ),
            **transformer,
        )
        correction = "fast bias correction" if fast else "bias correction"
        yield f"{preset.value}, {ranges.lower()}, {correction}", made, simulated(made)


def aimet(path: Path, calib: Array, out: Path, images: Array, train: bool) -> Made:
    """Qualcomm AIMET: ranges, granularity, equalization; sequential MSE and AdaRound."""
    for plan in (
        (False, False, "tf_enhanced", ""),
        (True, False, "tf_enhanced", ""),
        (True, True, "tf_enhanced", ""),
        (True, True, "min_max", ""),
        (True, True, "min_max", "sequential MSE"),
        (True, True, "tf_enhanced", "AdaRound"),
    )[: None if train else 4]:
        yield _aimet(path, calib, plan, "int8")


def _aimet(
    path: Path, calib: Array, plan: tuple[bool, bool, str, str], weights: str
) -> tuple[str, Any, Callable[[Array], Array]]:
    """One configuration: whether equalized, whether per channel, ranges, what trains weights."""
    from aimet_onnx.adaround.adaround_weight import Adaround
    from aimet_onnx.common.quantsim_config.utils import (
        get_path_for_per_channel_config,
        get_path_for_per_tensor_config,
    )
    from aimet_onnx.cross_layer_equalization import equalize_model
    from aimet_onnx.quantsim import QuantizationSimModel
    from aimet_onnx.sequential_mse.seq_mse import apply_seq_mse

    equalized, channels, scheme, fit = plan
    name = _input(path)
    batches = list(Batches(name, calib, BATCH))
    model = onnx.load(path)
    if equalized:
        equalize_model(model)
    kind = get_path_for_per_channel_config if channels else get_path_for_per_tensor_config
    sim = QuantizationSimModel(
        model,
        param_type=weights,
        quant_scheme=scheme,
        config_file=kind(),
        providers=["CPUExecutionProvider"],
    )
    if fit == "AdaRound":
        Adaround.apply_adaround(sim, batches, num_iterations=1000)
    elif fit:
        apply_seq_mse(sim, batches)
    sim.compute_encodings(batches)
    outputs = {output.name for output in sim.model.model.graph.output}
    for node in sim.model.model.graph.node:
        if node.op_type == "QcQuantizeOp" and outputs.intersection(node.output):
            sim.qc_quantize_op_dict[node.input[0]].enabled = False
    titles = ("CLE" if equalized else "", "per channel" if channels else "per tensor", scheme, fit)
    return (
        ", ".join(filter(None, titles)),
        _enabled(sim),
        lambda images: sim.session.run(None, {name: images})[0],
    )


def aimet_four(path: Path, calib: Array, out: Path, images: Array, train: bool) -> Made:
    """AIMET with weights of 4 bits: plain, sequential MSE, AdaRound."""
    for scheme, fit in (
        ("tf_enhanced", ""),
        ("min_max", "sequential MSE"),
        ("tf_enhanced", "AdaRound"),
    ):
        yield _aimet(path, calib, (True, True, scheme, fit), "int4")


def _enabled(sim: Any) -> onnx.ModelProto:
    """The simulated model without the points that are switched off."""
    model = onnx.ModelProto()
    model.CopyFrom(sim.model.model)
    off = {name for name, op in sim.qc_quantize_op_dict.items() if not op.enabled}
    for node in model.graph.node:
        if node.op_type == "QcQuantizeOp" and node.input[0] in off:
            node.op_type = "Identity"
    return model


def modelopt(path: Path, calib: Array, out: Path, images: Array, train: bool) -> Made:
    """NVIDIA ModelOpt: int8, max and entropy."""
    from modelopt.onnx.quantization import quantize

    for method in ("max", "entropy"):
        target = out / f"modelopt.{method}.onnx"
        quantize(
            str(path),
            quantize_mode="int8",
            calibration_data={_input(path): calib},
            calibration_method=method,
            calibration_eps=["cpu"],
            high_precision_dtype="fp32",
            output_path=str(target),
        )
        made = with_wide_outputs(onnx.load(target))
        yield method, made, simulated(made)


def litert(path: Path, calib: Array, out: Path, images: Array, train: bool) -> Made:
    """LiteRT files: onnx2tf's TensorFlow model by TensorFlow's converter (int8, and 16-bit
    activations), its float file by ai-edge-quantizer; LiteRT's reference kernels run them."""
    import tensorflow as tf
    from ai_edge_quantizer import quantizer, recipe

    sizes = ",".join(map(str, (1, *calib.shape[1:])))
    command = [str(Path(sys.executable).with_name("onnx2tf")), "-i", str(path), "-o", str(out)]
    told = subprocess.run([*command, "-ois", f"{_input(path)}:{sizes}"], capture_output=True)
    told.check_returncode()
    (source,) = out.glob("*_float32.tflite")
    yield "onnx2tf, float", {}, _interpreted(source.read_bytes())
    samples = [image[None].transpose(0, 2, 3, 1) for image in calib]
    tool = quantizer.Quantizer(str(source))
    tool.load_quantization_recipe(recipe.static_wi8_ai8())
    ((key, signature),) = tf.lite.Interpreter(str(source)).get_signature_list().items()
    (name,) = signature["inputs"]
    ranges = tool.calibrate({key: [{name: sample} for sample in samples]})
    yield "ai-edge-quantizer, int8", {}, _interpreted(bytes(tool.quantize(ranges).quantized_model))
    converter = tf.lite.TFLiteConverter.from_saved_model(str(out))
    converter.optimizations = [tf.lite.Optimize.DEFAULT]
    converter.representative_dataset = lambda: ([sample] for sample in samples)
    converter.target_spec.supported_ops = [tf.lite.OpsSet.TFLITE_BUILTINS_INT8]
    yield "onnx2tf, int8", {}, _interpreted(converter.convert())


def _interpreted(content: bytes) -> Callable[[Array], Array]:
    """A LiteRT file, with ends of int8 or float, as a function of images."""
    import tensorflow as tf

    kernels = tf.lite.experimental.OpResolverType.BUILTIN_REF
    interpreter = tf.lite.Interpreter(model_content=content, experimental_op_resolver_type=kernels)
    interpreter.allocate_tensors()
    (taken,), (given,) = interpreter.get_input_details(), interpreter.get_output_details()

    def run(images: Array) -> Array:
        found = []
        for image in images:
            given_image = image[None].transpose(0, 2, 3, 1)
            if taken["dtype"] == np.int8:
                scale, zero = taken["quantization"]
                given_image = np.clip(np.rint(given_image / scale) + zero, -128, 127).astype("int8")
            interpreter.set_tensor(taken["index"], given_image)
            interpreter.invoke()
            value = interpreter.get_tensor(given["index"])
            if value.dtype == np.int8:
                scale, zero = given["quantization"]
                value = ((value.astype(np.float64) - zero) * scale).astype(np.float32)
            found.append(value)
        return np.concatenate(found)

    return run


TOOLS: dict[str, Callable[[Path, Array, Path, Array, bool], Made]] = {
    "quark": quark,
    "nncf": nncf,
    "aimet": aimet,
    "modelopt": modelopt,
    "litert": litert,
}
FOUR: dict[str, Callable[[Path, Array, Path, Array, bool], Made]] = {
    "aimet": aimet_four,
    "quark": quark_four,
}
"""Those that give the weights of any layer 4 bits. NNCF 3.4 keeps 8 beside quantized activations,
and onnxruntime does not run its int4 weights of convolutions."""


def _input(path: Path) -> str:
    return str(onnx.load(path).graph.input[0].name)


def measure(
    tool: str, model: Path, calib: Array, images: Array, out: Path, how: str = ""
) -> list[dict[str, Any]]:
    """Rows of all configurations of one tool; a failure is a row with an error.

    Args:
        how: "untrained": none that train weights; "four": with weights of 4 bits.
    """
    rows: list[dict[str, Any]] = []
    made = (FOUR if how == "four" else TOOLS)[tool](model, calib, out, images, how != "untrained")
    while True:
        begin = time.process_time()
        try:
            name, quantized, run = next(made)
            cpu_s = time.process_time() - begin
            batches = (images[i : i + BATCH] for i in range(0, len(images), BATCH))
            outputs = np.concatenate([run(batch) for batch in batches])
        except StopIteration:
            return rows
        except Exception as error:  # whatever a tool raises
            rows.append({"name": tool, "error": f"{type(error).__name__}: {error}"[:400]})
            return rows
        file = out / f"{tool}{len(rows)}.npy"
        np.save(file, outputs)
        rows.append(
            {
                "name": f"{tool}: {name}",
                "cpu_s": round(cpu_s, 1),
                "float_operators": quantized and float_operators(quantized),
                "outputs": file.name,
            }
        )


def main() -> int:
    """Write the files; what the tool prints goes to standard error."""
    tool, model, calib, images, out = sys.argv[1], *map(Path, sys.argv[2:6])
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    with contextlib.redirect_stdout(sys.stderr):
        rows = measure(tool, model, np.load(calib), np.load(images), out, *sys.argv[6:])
    (out / f"{tool}.json").write_text(json.dumps(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
