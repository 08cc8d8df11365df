"""transform lists every pass there is."""

from __future__ import annotations

import importlib
import pkgutil

import compiler.passes
from compiler import transform
from tests.each import each


def test_every_registered_pass_is_published_under_its_name() -> None:
    for module in pkgutil.iter_modules(compiler.passes.__path__):
        importlib.import_module(f"compiler.passes.{module.name}")
    registered = transform.registered_passes().items()
    for name, cls in each(r for r in registered if r[1].__module__.startswith("compiler.")):
        assert getattr(transform, name) is cls


def test_levels_are_those_of_the_specification() -> None:
    levels = {name: cls.info.opt_level for name, cls in transform.registered_passes().items()}
    expected = {
        "InferType": 0,
        "SimplifyInference": 0,
        "SimplifyExpr": 0,
        "FoldConstant": 2,
        "BackwardFoldScaleAxis": 3,
        "ForwardFoldScaleAxis": 3,
        "FoldScaleAxis": 3,
        "CanonicalizeOps": 3,
        "CanonicalizeCast": 3,
        "EliminateCommonSubexpr": 3,
    }
    assert {name: levels[name] for name in expected} == expected
