from __future__ import annotations

import random

from compiler.ir.scope_tree import Scope, nearest_common


def ancestors(scope: Scope) -> list[Scope]:
    """From the scope up to the outermost."""
    found = [scope]
    while found[-1].parent is not None:
        found.append(found[-1].parent)
    return found


def random_tree(size: int, seed: int) -> list[Scope]:
    rng = random.Random(seed)
    scopes = [Scope(None)]
    for _ in range(size):
        scopes.append(Scope(None, scopes[rng.randrange(max(0, len(scopes) - 9), len(scopes))]))
    return scopes


def test_the_nearest_common_scope_is_the_first_ancestor_of_both() -> None:
    scopes = random_tree(300, seed=0)
    rng = random.Random(1)
    for _ in range(2000):
        a, b = rng.choice(scopes), rng.choice(scopes)
        around_b = ancestors(b)
        common = next(scope for scope in ancestors(a) if scope in around_b)
        assert nearest_common(a, b) is common
        assert a.encloses(b) == (common is a)


def test_every_depth_above_is_found() -> None:
    scope = random_tree(300, seed=2)[-1]
    assert [scope.at_depth(s.depth) for s in ancestors(scope)] == ancestors(scope)


def test_a_walk_to_the_root_takes_logarithmically_many_steps() -> None:
    scope = Scope(None)
    for _ in range(10_000):
        scope = Scope(None, scope)
    steps = 0
    while scope.jump is not None:
        scope, steps = scope.jump, steps + 1
    assert steps < 40
