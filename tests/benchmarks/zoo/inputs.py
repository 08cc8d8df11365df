"""Inputs of the networks of the zoo: what makes an array, by a generator."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

Inputs = Callable[[torch.Generator], dict[str, Tensor]]


def image(*shape: int) -> Callable[[torch.Generator], Tensor]:
    """Patches of one colour and noise: neighbours are alike."""
    side = shape[-1]

    def make(g: torch.Generator) -> Tensor:
        coarse = torch.randn(*shape[:-2], (side + 7) // 8, (side + 7) // 8, generator=g)
        wide = coarse.repeat_interleave(8, -1).repeat_interleave(8, -2)[..., :side, :side]
        return wide + 0.3 * torch.randn(*shape, generator=g)

    return make


def tokens(length: int, words: int) -> Callable[[torch.Generator], Tensor]:
    """One sequence."""
    return lambda g: torch.randint(3, words, (1, length), generator=g)


def noise(*shape: int) -> Callable[[torch.Generator], Tensor]:
    """Normal."""
    return lambda g: torch.randn(*shape, generator=g)


def tone(*shape: int) -> Callable[[torch.Generator], Tensor]:
    """Sines of random pitch and noise."""

    def make(g: torch.Generator) -> Tensor:
        pitch = torch.rand(*shape[:-1], 1, generator=g) * 0.3 + 0.01
        wave = torch.sin(pitch * torch.arange(shape[-1]))
        return wave + 0.1 * torch.randn(*shape, generator=g)

    return make


def every(**made: Callable[[torch.Generator], Tensor]) -> Inputs:
    """Inputs by name."""
    return lambda g: {name: make(g) for name, make in made.items()}
