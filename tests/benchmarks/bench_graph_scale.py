"""CPU time per node on residual chains of 1k, 10k and 100k operators.

    python -m tests.benchmarks.bench_graph_scale [--sizes 1000 10000 100000] [--json FILE]

A block is Conv 1x1, BatchNormalization, Relu, Add; one operator is one ONNX node. Every size runs
in a process of its own. The goal: at 100k at most 1.5 times the time per node of 1k, and
``prerequisite_optimize`` of 100k below 20 s; the command exits 1 where one is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

CHANNELS = 4
BLOCK = 4
GOAL_RATIO = 1.5
GOAL_PREREQUISITE_SECONDS = 20.0
# Small graphs are over in milliseconds: the least of several runs is the steadiest figure.
TARGET_SECONDS = 2.0
MOST_RUNS = 25


def residual_chain(operators: int, seed: int = 0) -> bytes:
    """An ONNX model of ``operators`` nodes: x = x + relu(bn(conv(x))), again and again.

    Weights are small enough that values stay finite however long the chain.
    """
    rng = np.random.default_rng(seed)
    nodes: list[onnx.NodeProto] = []
    weights: list[onnx.TensorProto] = []

    def weight(name: str, value: Any) -> str:
        weights.append(numpy_helper.from_array(np.asarray(value, np.float32), name))
        return name

    value = "x"
    for i in range(operators // BLOCK):
        w = weight(f"w{i}", rng.normal(0, 0.01, (CHANNELS, CHANNELS, 1, 1)))
        bn = [
            weight(f"gamma{i}", rng.uniform(0.9, 1.1, CHANNELS)),
            weight(f"beta{i}", rng.normal(0, 0.01, CHANNELS)),
            weight(f"mean{i}", rng.normal(0, 0.01, CHANNELS)),
            weight(f"var{i}", rng.uniform(0.9, 1.1, CHANNELS)),
        ]
        nodes += [
            helper.make_node("Conv", [value, w], [f"c{i}"], name=f"conv{i}"),
            helper.make_node("BatchNormalization", [f"c{i}", *bn], [f"b{i}"], name=f"bn{i}"),
            helper.make_node("Relu", [f"b{i}"], [f"r{i}"], name=f"relu{i}"),
            helper.make_node("Add", [f"r{i}", value], [f"a{i}"], name=f"add{i}"),
        ]
        value = f"a{i}"
    shape = [1, CHANNELS, 2, 2]
    graph = helper.make_graph(
        nodes,
        "residual_chain",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info(value, TensorProto.FLOAT, shape)],
        weights,
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return bytes(model.SerializeToString())


def measure(operators: int) -> dict[str, float]:
    """CPU seconds of every stage on one chain, by stage name."""
    import compiler
    from compiler import transform
    from compiler.frontend.from_onnx.load import load
    from compiler.ir.blob import ModuleBlob
    from compiler.quantize import prerequisite_optimize

    seconds: dict[str, float] = {}

    def timed(stage: str, run: Callable[[], Any]) -> Any:
        best, spent, runs = float("inf"), 0.0, 0
        while runs == 0 or (spent < TARGET_SECONDS and runs < MOST_RUNS):
            start = time.process_time()
            result = run()
            took = time.process_time() - start
            best, spent, runs = min(best, took), spent + took, runs + 1
        seconds[stage] = best
        return result

    data = residual_chain(operators)
    mod, params = timed("import", lambda: load(data))
    text = timed("print", lambda: compiler.text(mod))
    timed("parse", lambda: compiler.parse(text))
    untyped = [compiler.parse(text) for _ in range(1)][0]
    timed("InferType", lambda: transform.InferType()(strip_types(untyped)))
    blob = timed("transport: pack", lambda: ModuleBlob.pack(mod))
    again = timed("transport: unpack", lambda: blob.unpack())
    timed("structural_equal", lambda: compiler.structural_equal(mod, again))
    timed("structural_hash", lambda: compiler.structural_hash(mod))
    bound = bind_params(mod, params)
    simplified = timed("SimplifyInference", lambda: transform.SimplifyInference()(bound))
    folded = timed("FoldConstant", lambda: transform.FoldConstant()(simplified))
    scaled = timed("FoldScaleAxis", lambda: transform.FoldScaleAxis()(folded))
    for name in (
        "CanonicalizeOps",
        "CanonicalizeCast",
        "SimplifyExpr",
        "EliminateCommonSubexpr",
        "DeadCodeElimination",
    ):
        timed(name, lambda name=name: getattr(transform, name)()(scaled))  # type: ignore[misc]
    timed("prerequisite_optimize", lambda: prerequisite_optimize(mod, params))
    return seconds
