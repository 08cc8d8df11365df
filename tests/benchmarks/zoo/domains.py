"""Graphs, points, speech and tables: further compositions of ours, one function a network."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.benchmarks.zoo.inputs import every, noise, tone
from tests.benchmarks.zoo.own import Attention, Fn, Made, at_rows, block, fields, mlp

NETWORKS: Final[dict[str, Callable[[], Made]]] = {}


def network(make: Callable[[], Made]) -> Callable[[], Made]:
    """Register by name."""
    NETWORKS[make.__name__] = make
    return make


def two(make: Callable[[], nn.Module]) -> nn.ModuleList:
    """Layers of one kind."""
    return nn.ModuleList([make(), make()])


@network
def pna_edges() -> Made:
    """Mean, deviation, maximum and minimum of the neighbours, edges fixed."""
    g = torch.Generator().manual_seed(5)
    e = torch.randint(0, 30, (2, 150), generator=g)
    degree = torch.zeros(30).scatter_add(0, e[1], torch.ones(150)).clamp(min=1)[:, None]

    def run(m: Fn, x: Tensor) -> Tensor:
        x = x[0]
        for f in m.f:
            h = x[e[0]]
            mean, square = at_rows(h, e[1], 30) / degree, at_rows(h * h, e[1], 30) / degree
            dev = (F.relu(square - mean * mean) + 1e-5).sqrt()
            at = e[1][:, None].expand_as(h)
            top = torch.zeros(30, h.shape[1]).scatter_reduce(0, at, h, "amax", include_self=False)
            low = torch.zeros(30, h.shape[1]).scatter_reduce(0, at, h, "amin", include_self=False)
            x = F.relu(f(torch.cat([x, mean, dev, top, low], -1)))
        return m.out(x)

    return Fn(
        run, f=nn.ModuleList([nn.Linear(40, 16), nn.Linear(80, 16)]), out=nn.Linear(16, 4)
    ), every(x=noise(1, 30, 8))


@network
def schnet() -> Made:
    """Continuous filters of the distances between atoms."""
    centers = torch.linspace(0, 5, 20)

    def run(m: Fn, z: Tensor, p: Tensor) -> Tensor:
        x = m.atom(z)
        d = ((p[:, :, None] - p[:, None]).pow(2).sum(-1) + 1e-8).sqrt()
        w = (-8 * (d[..., None] - centers).pow(2)).exp()
        cut = 0.5 * ((d * 0.6283).cos() + 1) * (d < 5).float()
        for f, a, o in zip(m.f, m.a, m.o):
            y = (a(x)[:, None] * f(w) * cut[..., None]).sum(2)
            x = x + o(y)
        return m.out(x).sum(1)

    parts = {
        "f": two(lambda: mlp(20, 32, 32, act=nn.Softplus)),
        "a": two(lambda: nn.Linear(32, 32)),
        "o": two(lambda: mlp(32, 32, 32, act=nn.Softplus)),
    }
    return Fn(run, atom=nn.Embedding(10, 32), out=mlp(32, 16, 1, act=nn.Softplus), **parts), every(
        z=fields(12, 10), p=lambda g: 2 * torch.randn(1, 12, 3, generator=g)
    )


@network
def diff_pool() -> Made:
    """Nodes assigned to clusters by a softmax."""

    def run(m: Fn, x: Tensor, a: Tensor) -> Tensor:
        deg = a.sum(-1, keepdim=True).clamp(min=1)
        h = F.relu(m.h(a @ x / deg))
        s = m.s(a @ x / deg).softmax(-1)
        x, a = s.transpose(1, 2) @ h, s.transpose(1, 2) @ a @ s
        x = F.relu(m.g(a @ x / (a.sum(-1, keepdim=True) + 1e-6)))
        return m.out(x.mean(1))

    def adjacency(g: torch.Generator) -> Tensor:
        a = (torch.rand(1, 30, 30, generator=g) < 0.2).float()
        return ((a + a.transpose(1, 2)) > 0).float()

    return Fn(
        run, h=nn.Linear(8, 32), s=nn.Linear(8, 6), g=nn.Linear(32, 32), out=mlp(32, 16, 3)
    ), every(x=noise(1, 30, 8), a=adjacency)


def grouped(x: Tensor, at: Tensor) -> Tensor:
    """Rows [n, c] at places [m, k]."""
    return x[at.flatten()].view(*at.shape, x.shape[-1])


@network
def point_net2() -> Made:
    """Centres, the nearest of each by TopK, a network and the maximum; twice."""

    def level(
        m: Fn, p: Tensor, x: Tensor | None, n: int, k: int, f: nn.Module
    ) -> tuple[Tensor, Tensor]:
        c = p[:n]
        d = (c[:, None] - p[None]).pow(2).sum(-1)
        at = d.topk(k, dim=-1, largest=False).indices
        near = grouped(p, at) - c[:, None]
        y = near if x is None else torch.cat([near, grouped(x, at)], -1)
        return c, f(y).amax(1)

    def run(m: Fn, p: Tensor) -> Tensor:
        p = p[0]
        c, x = level(m, p, None, 32, 8, m.f)
        c, x = level(m, c, x, 8, 8, m.g)
        return m.out(m.h(torch.cat([c, x], -1)).amax(0, keepdim=True))

    return Fn(
        run, f=mlp(3, 32, 32), g=mlp(35, 64, 64), h=mlp(67, 128), out=mlp(128, 64, 10)
    ), every(p=noise(1, 96, 3))


@network
def set_transformer() -> Made:
    """Inducing points, then attention that pools."""

    class Mab(nn.Module):
        def __init__(self, w: int) -> None:
            super().__init__()
            self.a, self.f, self.n, self.o = (
                Attention(w, 4),
                mlp(w, w, w),
                nn.LayerNorm(w),
                nn.LayerNorm(w),
            )

        def forward(self, x: Tensor, y: Tensor) -> Tensor:
            h = self.n(x + self.a(x, y))
            return self.o(h + self.f(h))

    def run(m: Fn, x: Tensor) -> Tensor:
        x = m.i(x)
        for a, b, p in zip(m.a, m.b, (m.p, m.q)):
            x = b(x, a(p, x))
        return m.out(m.pool(m.s, x).flatten(1))

    points = {k: torch.randn(1, n, 32) for k, n in (("p", 8), ("q", 8), ("s", 2))}
    return Fn(
        run,
        i=nn.Linear(3, 32),
        a=two(lambda: Mab(32)),
        b=two(lambda: Mab(32)),
        pool=Mab(32),
        out=nn.Linear(64, 5),
        **points,
    ), every(x=noise(1, 50, 3))


@network
def randla_net() -> Made:
    """Neighbours, places encoded, pooled by attention."""

    def run(m: Fn, p: Tensor) -> Tensor:
        q = p[0]
        d = torch.cdist(q, q)
        near, at = d.topk(8, dim=-1, largest=False)
        centre = q[:, None].expand(-1, 8, -1)
        other = grouped(q, at)
        code = m.c(torch.cat([centre, other, centre - other, near[..., None]], -1))
        x = m.f(q)
        y = torch.cat([grouped(x, at), code], -1)
        y = (m.s(y).softmax(1) * y).sum(1)
        return m.out(F.leaky_relu(m.g(y), 0.2) + m.r(x))

    return Fn(
        run,
        c=mlp(10, 16, 16),
        f=mlp(3, 16, 16),
        s=nn.Linear(32, 32, bias=False),
        g=nn.Linear(32, 32),
        r=nn.Linear(16, 32),
        out=mlp(32, 16, 6),
    ), every(p=noise(1, 64, 3))


@network
def ecapa_tdnn() -> Made:
    """Res2 blocks, squeeze and excitation, statistics pooled by attention."""

    def tdnn(i: int, o: int, k: int = 1, d: int = 1) -> nn.Module:
        return nn.Sequential(
            nn.Conv1d(i, o, k, padding=d * (k // 2), dilation=d), nn.ReLU(), nn.BatchNorm1d(o)
        )

    def res(m: Fn, x: Tensor) -> Tensor:
        y = m.a(x)
        parts = y.chunk(4, 1)
        outs = [parts[0]]
        for f, p in zip(m.f, parts[1:]):
            outs.append(f(p + outs[-1] if len(outs) > 1 else p))
        y = m.b(torch.cat(outs, 1))
        return x + y * m.se(y.mean(2, keepdim=True))

    def se() -> nn.Module:
        return nn.Sequential(nn.Conv1d(64, 16, 1), nn.ReLU(), nn.Conv1d(16, 64, 1), nn.Sigmoid())

    def layer(d: Tensor) -> nn.Module:
        return Fn(
            res,
            a=tdnn(64, 64),
            b=tdnn(64, 64),
            f=nn.ModuleList([tdnn(16, 16, 3, d) for _ in range(3)]),
            se=se(),
        )

    def run(m: Fn, x: Tensor) -> Tensor:
        x = m.i(x)
        outs = []
        for f in m.f:
            x = f(x)
            outs.append(x)
        h = m.mfa(torch.cat(outs, 1))
        mean = h.mean(2, keepdim=True)
        dev = (h - mean).pow(2).mean(2, keepdim=True).clamp(min=1e-9).sqrt()
        w = m.w(torch.cat([h, mean.expand_as(h), dev.expand_as(h)], 1)).softmax(2)
        mean = (w * h).sum(2)
        dev = ((w * h * h).sum(2) - mean * mean).clamp(min=1e-9).sqrt()
        return F.normalize(m.out(torch.cat([mean, dev], 1)), dim=-1)

    w = nn.Sequential(
        nn.Conv1d(288, 32, 1), nn.ReLU(), nn.BatchNorm1d(32), nn.Tanh(), nn.Conv1d(32, 96, 1)
    )
    return Fn(
        run,
        i=tdnn(40, 64, 5),
        f=nn.ModuleList([layer(2), layer(3), layer(4)]),
        mfa=nn.Sequential(nn.Conv1d(192, 96, 1), nn.ReLU()),
        w=w,
        out=nn.Linear(192, 48),
    ), every(x=noise(1, 40, 80))


@network
def bc_resnet() -> Made:
    """Residuals broadcast over frequency, normalized by bands."""

    class Bands(nn.Module):
        def __init__(self, c: int) -> None:
            super().__init__()
            self.n = nn.BatchNorm2d(4 * c)
            self.c = c

        def forward(self, x: Tensor) -> Tensor:
            b, c, f, t = x.shape
            return self.n(x.view(b, c * 4, f // 4, t)).view(b, c, f, t)

    def layer(m: Fn, x: Tensor) -> Tensor:
        y = m.b(m.f(x))
        z = y.mean(2, keepdim=True)
        z = m.p(F.silu(m.n(m.t(z))))
        return F.relu(x + y + z)

    def made(c: int, d: int) -> nn.Module:
        return Fn(
            layer,
            f=nn.Conv2d(c, c, (3, 1), padding=(1, 0), groups=c),
            b=Bands(c),
            t=nn.Conv2d(c, c, (1, 3), padding=(0, d), dilation=(1, d), groups=c),
            n=nn.BatchNorm2d(c),
            p=nn.Conv2d(c, c, 1),
        )

    body = [
        nn.Conv2d(1, 16, 5, stride=(2, 1), padding=2),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        made(16, 1),
        made(16, 2),
        nn.Conv2d(16, 24, 1),
        nn.BatchNorm2d(24),
        made(24, 4),
    ]
    return nn.Sequential(
        *body,
        nn.Conv2d(24, 24, 5, padding=(0, 2), groups=24),
        nn.Conv2d(24, 32, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Conv2d(32, 12, 1),
        nn.Flatten(),
    ), every(x=noise(1, 1, 40, 64))


@network
def matchbox_net() -> Made:
    """Separable convolutions along time with residuals, words of a command."""

    def sub(i: int, o: int, k: int) -> list[nn.Module]:
        return [nn.Conv1d(i, i, k, padding=k // 2, groups=i), nn.Conv1d(i, o, 1), nn.BatchNorm1d(o)]

    def made(i: int, o: int, k: int) -> nn.Module:
        return Fn(
            lambda m, x: F.relu(m.f(x) + m.r(x)),
            f=nn.Sequential(*sub(i, o, k), nn.ReLU(), *sub(o, o, k)),
            r=nn.Sequential(nn.Conv1d(i, o, 1), nn.BatchNorm1d(o)),
        )

    return nn.Sequential(
        *sub(64, 48, 11),
        nn.ReLU(),
        made(48, 32, 13),
        made(32, 32, 15),
        made(32, 32, 17),
        *sub(32, 48, 29),
        nn.ReLU(),
        nn.Conv1d(48, 30, 1),
        nn.AdaptiveAvgPool1d(1),
        nn.Flatten(),
        nn.LogSoftmax(-1),
    ), every(x=noise(1, 64, 100))


@network
def e_branchformer() -> Made:
    """Attention with relative places beside a gated convolution, merged."""

    def shifted(s: Tensor) -> Tensor:
        b, h, n, w = s.shape
        return F.pad(s, (1, 0)).view(b, h, w + 1, n)[:, :, 1:].reshape(b, h, n, w)[..., :n]

    place = torch.randn(1, 4, 8, 63)

    def attend(m: Fn, x: Tensor) -> Tensor:
        q, k, v = (f(x).view(1, 32, 4, 8).transpose(1, 2) for f in (m.q, m.k, m.v))
        s = (q + m.u) @ k.transpose(-2, -1) + shifted((q + m.w) @ m.place)
        return m.o(((s * 8**-0.5).softmax(-1) @ v).transpose(1, 2).reshape(1, 32, 32))

    def gate(m: Fn, x: Tensor) -> Tensor:
        a, b = F.gelu(m.i(x)).chunk(2, -1)
        b = m.c(m.n(b).transpose(1, 2)).transpose(1, 2)
        return m.o(a * b)

    def layer() -> nn.Module:
        def lin() -> nn.Module:
            return nn.Linear(32, 32)

        att = Fn(
            attend,
            q=lin(),
            k=lin(),
            v=lin(),
            o=lin(),
            u=torch.randn(1, 4, 1, 8),
            w=torch.randn(1, 4, 1, 8),
            place=place.clone(),
        )
        cg = Fn(
            gate,
            i=nn.Linear(32, 96),
            n=nn.LayerNorm(48),
            c=nn.Conv1d(48, 48, 15, padding=7, groups=48),
            o=nn.Linear(48, 32),
        )

        def run(m: Fn, x: Tensor) -> Tensor:
            x = x + 0.5 * m.f(x)
            a, b = m.att(m.na(x)), m.cg(m.nb(x))
            y = torch.cat([a, b], -1)
            x = x + m.m(y + m.d(y.transpose(1, 2)).transpose(1, 2))
            return m.nz(x + 0.5 * m.g(x))

        def ff() -> nn.Module:
            return nn.Sequential(nn.LayerNorm(32), mlp(32, 96, 32, act=nn.SiLU))

        return Fn(
            run,
            f=ff(),
            g=ff(),
            att=att,
            cg=cg,
            na=nn.LayerNorm(32),
            nb=nn.LayerNorm(32),
            nz=nn.LayerNorm(32),
            m=nn.Linear(64, 32),
            d=nn.Conv1d(64, 64, 3, padding=1, groups=64),
        )

    return nn.Sequential(
        nn.Linear(40, 32), layer(), layer(), nn.Linear(32, 20), nn.LogSoftmax(-1)
    ), every(x=noise(1, 32, 40))


@network
def dprnn() -> Made:
    """Recurrent along chunks and across them."""

    def path(m: Fn, x: Tensor) -> Tensor:
        y, _ = m.r(x)
        return x + m.n(m.p(y))

    def made() -> nn.Module:
        return Fn(
            path,
            r=nn.LSTM(24, 24, batch_first=True, bidirectional=True),
            p=nn.Linear(48, 24),
            n=nn.LayerNorm(24),
        )

    def run(m: Fn, x: Tensor) -> Tensor:
        h = F.relu(m.e(x))
        y = m.i(h).transpose(1, 2).view(10, 12, 24)
        for a, b in zip(m.a, m.b):
            y = a(y)
            y = b(y.transpose(0, 1)).transpose(0, 1)
        y = y.reshape(1, 120, 24).transpose(1, 2)
        return m.d(h * m.m(F.prelu(y, m.w)).sigmoid())

    return Fn(
        run,
        e=nn.Conv1d(1, 32, 8, 4, padding=2),
        i=nn.Conv1d(32, 24, 1),
        a=two(made),
        b=two(made),
        m=nn.Conv1d(24, 32, 1),
        w=torch.full((1,), 0.25),
        d=nn.ConvTranspose1d(32, 1, 8, 4, padding=2),
    ), every(x=tone(1, 1, 480))


@network
def crn_denoiser() -> Made:
    """Convolutions, a GRU of two layers, transposed convolutions, skips."""

    def run(m: Fn, x: Tensor) -> Tensor:
        a = F.elu(m.a(x))
        b = F.elu(m.b(a))
        c = F.elu(m.c(b))
        n, ch, t, f = c.shape
        y, _ = m.r(c.transpose(1, 2).reshape(n, t, ch * f))
        y = y.view(n, t, ch, f).transpose(1, 2)
        y = F.elu(m.d(torch.cat([y, c], 1)))
        y = F.elu(m.e(torch.cat([y, b], 1)))
        return m.f(torch.cat([y, a], 1)).sigmoid() * x

    def down(i: int, o: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(i, o, (1, 3), (1, 2)), nn.BatchNorm2d(o))

    def up(i: int, o: int) -> nn.Module:
        return nn.ConvTranspose2d(i, o, (1, 3), (1, 2))

    return Fn(
        run,
        a=down(1, 8),
        b=down(8, 16),
        c=down(16, 16),
        r=nn.GRU(112, 112, 2, batch_first=True),
        d=up(32, 16),
        e=up(32, 8),
        f=up(16, 1),
    ), every(x=lambda g: torch.randn(1, 1, 20, 63, generator=g).abs() ** 0.5)


def sparsemax(z: Tensor) -> Tensor:
    """The projection onto the simplex."""
    s = z.sort(-1, descending=True).values
    k = torch.arange(1, z.shape[-1] + 1, dtype=z.dtype)
    total = s.cumsum(-1)
    inside = (1 + k * s > total).to(z.dtype)
    count = inside.sum(-1, keepdim=True)
    return F.relu(z - ((s * inside).sum(-1, keepdim=True) - 1) / count)


@network
def tabnet() -> Made:
    """Steps that choose features by sparsemax."""

    def glu(m: Fn, x: Tensor) -> Tensor:
        return F.glu(m.n(m.f(x)), -1)

    def made(i: int, o: int) -> nn.Module:
        return Fn(glu, f=nn.Linear(i, 2 * o), n=nn.BatchNorm1d(2 * o))

    def run(m: Fn, x: Tensor) -> Tensor:
        x = m.norm(x)
        prior = torch.ones_like(x)
        h = m.shared(x)
        att = h[:, 16:]
        total = 0
        for a, f in zip(m.a, m.f):
            mask = sparsemax(a(att) * prior)
            prior = prior * (1.3 - mask)
            h = f(m.shared(mask * x))
            total = total + F.relu(h[:, :16])
            att = h[:, 16:]
        return m.out(total)

    def step() -> nn.Module:
        return nn.Sequential(made(32, 32), Fn(lambda m, x: (x + m.g(x)) * 0.5**0.5, g=made(32, 32)))

    return Fn(
        run,
        norm=nn.BatchNorm1d(20),
        shared=made(20, 32),
        a=nn.ModuleList([nn.Sequential(nn.Linear(16, 20), nn.BatchNorm1d(20)) for _ in range(3)]),
        f=nn.ModuleList([step() for _ in range(3)]),
        out=nn.Linear(16, 3),
    ), every(x=noise(1, 20))


@network
def ft_transformer() -> Made:
    """Every number and class is a token."""

    def run(m: Fn, x: Tensor, c: Tensor) -> Tensor:
        y = torch.cat([m.cls, x[..., None] * m.w + m.b, m.words(c) + m.place], 1)
        return m.out(F.relu(m.norm(m.f(y)[:, 0])))

    parts = {
        "cls": torch.randn(1, 1, 32),
        "w": torch.randn(1, 10, 32),
        "b": torch.randn(1, 10, 32),
        "place": torch.randn(1, 5, 32),
    }
    return Fn(
        run,
        words=nn.Embedding(50, 32),
        f=nn.Sequential(block(32, 4), block(32, 4)),
        norm=nn.LayerNorm(32),
        out=nn.Linear(32, 2),
        **parts,
    ), every(x=noise(1, 10), c=fields(5, 50))


@network
def oblivious_trees() -> Made:
    """Soft trees of one test a level, features chosen by a softmax."""
    codes = torch.tensor(list(itertools.product((0.0, 1.0), repeat=4)))

    def run(m: Fn, x: Tensor) -> Tensor:
        f = torch.einsum("bi,itd->btd", x, m.s.softmax(0))
        p = ((f - m.t) * m.l.exp()).mul(0.5).add(0.5).clamp(0, 1)[..., None, :]
        leaf = (codes * p + (1 - codes) * (1 - p)).prod(-1)
        return torch.einsum("btl,tlo->bo", leaf, m.r)

    parts = {
        "s": 2 * torch.randn(16, 24, 4),
        "t": 0.5 * torch.randn(1, 24, 4),
        "l": 0.3 * torch.randn(1, 24, 4),
        "r": torch.randn(24, 16, 3),
    }
    return Fn(run, **parts), every(x=noise(1, 16))


@network
def dcn_v2() -> Made:
    """Crosses of low rank beside a deep part, two experts gated."""

    def cross(m: Fn, x0: Tensor, x: Tensor) -> Tensor:
        gates = m.g(x).softmax(-1)
        made = torch.stack([x0 * (u(torch.tanh(v(x)))) for u, v in zip(m.u, m.v)], -1)
        return x + (made * gates[:, None]).sum(-1)

    def layer() -> nn.Module:
        return Fn(
            cross,
            g=nn.Linear(72, 2),
            u=nn.ModuleList([nn.Linear(8, 72) for _ in range(2)]),
            v=nn.ModuleList([nn.Linear(72, 8, bias=False) for _ in range(2)]),
        )

    def run(m: Fn, c: Tensor, x: Tensor) -> Tensor:
        x0 = torch.cat([m.words(c).flatten(1), x], -1)
        y = x0
        for f in m.f:
            y = f(x0, y)
        return m.out(torch.cat([y, m.deep(x0)], -1)).sigmoid()

    return Fn(
        run,
        words=nn.Embedding(100, 8),
        f=nn.ModuleList([layer(), layer()]),
        deep=mlp(72, 64, 32),
        out=nn.Linear(104, 1),
    ), every(c=fields(8, 100), x=noise(1, 8))
