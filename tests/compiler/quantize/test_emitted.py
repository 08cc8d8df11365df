"""What is scored is what ships: random fully integral configurations, every form of the module.

QSEARCH_RANDOM_QCONFIGS sets how many configurations each network meets;
``python -m tests.benchmarks.bench_emitted`` does 200 on trained models.
"""

from __future__ import annotations

import os
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from compiler.ir.module import IRModule
from compiler.quantize import (
    channel_stats,
    layer_names,
    prerequisite_optimize,
)
from tests.compiler import networks as models
from tests.compiler.emitted import compare_emitted, random_qconfig
from tests.compiler.quantize.candidates import calibrated

COUNT = int(os.environ.get("QSEARCH_RANDOM_QCONFIGS", "3"))
NETWORKS: tuple[Callable[[], Any], ...] = (
    models.mlp,
    models.conv_bn,
    models.residual_net,
    models.mobile_net,
    models.branches,
    models.attention,
)


def batches_of(mod: IRModule, count: int, rng: np.random.Generator) -> list[dict[str, Any]]:
    types = {p.name_hint: p.tensor_type for p in mod["main"].params}
    return [
        {n: rng.normal(0, 1, t.concrete_shape).astype(t.dtype) for n, t in types.items()}
        for _ in range(count)
    ]


@pytest.mark.parametrize("seed", range(COUNT))
@pytest.mark.parametrize("network", NETWORKS, ids=lambda network: network.__name__)
def test_file_and_grid_give_the_bits_of_the_reference(
    network: Callable[[], Any], seed: int, tmp_path: Path
) -> None:
    rng = np.random.default_rng([seed, zlib.crc32(network.__name__.encode())])
    mod = prerequisite_optimize(*network(), 3)
    config = random_qconfig(rng, layer_names(mod))
    calib = batches_of(mod, 4, rng)
    channels = channel_stats(mod, calib, sample=True)
    candidate = calibrated(mod, config, calib, channels)
    assert candidate.partitioned is not None
    # Larger than anything seen in calibration as well: clips and saturating sums take part.
    wild = [{n: 40 * a for n, a in batch.items()} for batch in batches_of(mod, 2, rng)]
    found = compare_emitted(
        candidate.partitioned, [*batches_of(mod, 4, rng), *wild], tmp_path / "m.qmod"
    )
    assert found.elements > 0
    assert (found.loaded, found.integer) == (0, 0), config


def test_random_configurations_differ_and_repeat_by_seed() -> None:
    first = [random_qconfig(np.random.default_rng(seed)) for seed in range(20)]
    again = [random_qconfig(np.random.default_rng(seed)) for seed in range(20)]
    assert first == again
    assert len({repr(config) for config in first}) == 20
    assert {config.partition_conversions for config in first} == {"fully_integral"}
