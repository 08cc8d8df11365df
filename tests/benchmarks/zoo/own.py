"""Small compositions of torch modules of our own, one function a network."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.benchmarks.zoo.inputs import Inputs, every, image, noise, tokens, tone

Made = tuple[nn.Module, Inputs]
NETWORKS: Final[dict[str, Callable[[], Made]]] = {}


def network(make: Callable[[], Made]) -> Callable[[], Made]:
    """Register by name."""
    NETWORKS[make.__name__] = make
    return make


class Fn(nn.Module):
    """Modules by name and a function of them and of the inputs."""

    def __init__(self, run: Callable[..., Any], **parts: nn.Module | Tensor) -> None:
        super().__init__()
        self._run = run
        for name, part in parts.items():
            if isinstance(part, Tensor):
                part = nn.Parameter(part)
            setattr(self, name, part)

    def forward(self, *given: Tensor) -> Any:
        return self._run(self, *given)


def plus(*parts: nn.Module) -> Fn:
    """A residual."""
    return Fn(lambda m, x: x + m.f(x), f=nn.Sequential(*parts))


def conv(i: int, o: int, k: int = 3, act: type[nn.Module] | None = nn.ReLU, **named: Any) -> Any:
    """A convolution that keeps the size (over its stride), and an activation."""
    pad = named.pop("padding", k // 2 * named.get("dilation", 1))
    made = nn.Conv2d(i, o, k, padding=pad, **named)
    return made if act is None else nn.Sequential(made, act())


def conv1(i: int, o: int, k: int = 3, act: type[nn.Module] | None = nn.ReLU, **named: Any) -> Any:
    """The same along one axis."""
    pad = named.pop("padding", k // 2 * named.get("dilation", 1))
    made = nn.Conv1d(i, o, k, padding=pad, **named)
    return made if act is None else nn.Sequential(made, act())


def mlp(*widths: int, act: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Dense layers, an activation between them."""
    parts: list[nn.Module] = []
    for i, o in itertools.pairwise(widths):
        parts += [nn.Linear(i, o), act()]
    return nn.Sequential(*parts[:-1])


class RMS(nn.Module):
    """Root mean square normalization."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(width))

    def forward(self, x: Tensor) -> Tensor:
        return self.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Attention(nn.Module):
    """Heads over the last but one axis.

    Args:
        bias: of the scores, (heads, n, n), or "causal", "rotary" (and causal).
    """

    def __init__(self, width: int, heads: int, bias: Any = None, key_width: int = 0) -> None:
        super().__init__()
        self.q, self.o = nn.Linear(width, width), nn.Linear(width, width)
        self.k, self.v = (nn.Linear(key_width or width, width) for _ in range(2))
        self.heads, self.size, self.kind = heads, width // heads, bias
        self.scale = 1.0 if isinstance(bias, Tensor) else self.size**-0.5
        self.bias = nn.Parameter(bias) if isinstance(bias, Tensor) else None

    def forward(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        b, n, w = x.shape
        source = x if other is None else other
        q, k, v = (
            m(s).view(b, s.shape[1], self.heads, self.size).transpose(1, 2)
            for m, s in ((self.q, x), (self.k, source), (self.v, source))
        )
        if self.kind == "rotary":
            q, k = rotated(q), rotated(k)
        scores = q @ k.transpose(-2, -1) * self.scale
        if self.bias is not None:
            scores = scores + self.bias
        if isinstance(self.kind, str):
            scores = scores + torch.full((n, n), -1e4).triu(1)
        mixed = scores.softmax(-1) @ v
        return self.o(mixed.transpose(1, 2).reshape(b, n, w))


def rotated(x: Tensor) -> Tensor:
    """Rotary position embedding, halves exchanged."""
    half = x.shape[-1] // 2
    angle = torch.arange(x.shape[-2])[:, None] * 10.0 ** (-torch.arange(half) * 4 / half)
    angle = torch.cat([angle, angle], -1)
    turned = torch.cat([-x[..., half:], x[..., :half]], -1)
    return x * angle.cos() + turned * angle.sin()


def block(width: int, heads: int, bias: Any = None, norm: Any = nn.LayerNorm) -> nn.Module:
    """A transformer's layer, normalized first."""
    return nn.Sequential(
        plus(norm(width), Attention(width, heads, bias)),
        plus(norm(width), mlp(width, 4 * width, width, act=nn.GELU)),
    )


@network
def window_attention() -> Made:
    """Windows of 8 x 8 of an image with channels last, shifted once: 16 windows of 64 tokens."""

    def windows(m: Fn, x: Tensor) -> Tensor:
        x = m.stem(x).permute(0, 2, 3, 1)
        for shift, layer in ((0, m.a), (4, m.b)):
            y = torch.roll(x, (-shift, -shift), (1, 2)) if shift else x
            y = y.view(1, 4, 8, 4, 8, 32).permute(0, 1, 3, 2, 4, 5).reshape(16, 64, 32)
            y = layer(y).view(1, 4, 4, 8, 8, 32).permute(0, 1, 3, 2, 4, 5).reshape(1, 32, 32, 32)
            x = torch.roll(y, (shift, shift), (1, 2)) if shift else y
        return m.head(x.mean((1, 2)))

    parts = {n: block(32, 2, torch.randn(2, 64, 64) * 0.5) for n in "ab"}
    stem, head = nn.Conv2d(3, 32, 2, 2), nn.Linear(32, 10)
    return Fn(windows, stem=stem, head=head, **parts), every(x=image(1, 3, 64, 64))


@network
def dit_block() -> Made:
    """Two layers whose norms are shifted and scaled by an embedding of the time step."""

    def run(m: Fn, x: Tensor, t: Tensor) -> Tensor:
        x = m.patch(x).flatten(2).transpose(1, 2) + m.place
        angle = t[:, None] * torch.exp(-torch.arange(16) * 0.5)
        c = m.time(torch.cat([angle.cos(), angle.sin()], -1))
        for ada, att, ff in zip(m.ada, m.att, m.ff):
            a, b, g, d, e, h = ada(F.silu(c))[:, None].chunk(6, -1)
            x = x + g * att(F.layer_norm(x, (48,)) * (1 + a) + b)
            x = x + h * ff(F.layer_norm(x, (48,)) * (1 + d) + e)
        x = m.out(F.layer_norm(x, (48,))).view(1, 8, 8, 4, 2, 2)
        return x.permute(0, 3, 1, 4, 2, 5).reshape(1, 4, 16, 16)

    def two(make: Callable[[], nn.Module]) -> nn.ModuleList:
        return nn.ModuleList([make(), make()])

    model = Fn(
        run,
        patch=nn.Conv2d(4, 48, 2, 2),
        place=torch.randn(1, 64, 48) * 0.3,
        time=mlp(32, 48, 48, act=nn.SiLU),
        ada=two(lambda: nn.Linear(48, 288)),
        att=two(lambda: Attention(48, 4)),
        ff=two(lambda: mlp(48, 96, 48, act=nn.GELU)),
        out=nn.Linear(48, 16),
    )
    return model, every(x=image(1, 4, 16, 16), t=lambda g: torch.rand(1, generator=g) * 10)


@network
def segformer_head() -> Made:
    """Maps of three sizes, each resized to the largest, the largest to its own size."""

    def run(m: Fn, x: Tensor) -> Tensor:
        maps = [m.a(x)]
        maps += [m.b(maps[0])]
        maps += [m.c(maps[1])]
        size = maps[0].shape[2:]
        wide = [
            F.interpolate(p(y), size=size, mode="bilinear", align_corners=False)
            for p, y in zip(m.proj, maps)
        ]
        return m.out(m.fuse(torch.cat(wide, 1)))

    model = Fn(
        run,
        a=conv(3, 16, 7, stride=4),
        b=conv(16, 32, 3, stride=2),
        c=conv(32, 48, 3, stride=2),
        proj=nn.ModuleList([nn.Conv2d(i, 24, 1) for i in (16, 32, 48)]),
        fuse=nn.Sequential(nn.Conv2d(72, 32, 1, bias=False), nn.BatchNorm2d(32), nn.ReLU()),
        out=nn.Conv2d(32, 5, 1),
    )
    return model, every(x=image(1, 3, 64, 64))


class UNet(nn.Module):
    """Two levels, group normalization and swish, skips."""

    def __init__(self, dims: int, i: int, w: int, act: Any = nn.SiLU) -> None:
        super().__init__()
        c, up = (nn.Conv2d, "bilinear") if dims == 2 else (nn.Conv3d, "nearest")

        def step(a: int, b: int, stride: int = 1) -> nn.Module:
            return nn.Sequential(c(a, b, 3, stride, 1), nn.GroupNorm(4, b), act())

        self.one, self.two = step(i, w), step(w, 2 * w, 2)
        self.mid, self.out = step(2 * w, 2 * w), c(w, 2, 1)
        self.back, self.up = step(3 * w, w), nn.Upsample(scale_factor=2, mode=up)

    def forward(self, x: Tensor) -> Tensor:
        a = self.one(x)
        b = self.two(a)
        return self.out(self.back(torch.cat([self.up(b + self.mid(b)), a], 1)))


@network
def unet_groupnorm() -> Made:
    return UNet(2, 3, 16), every(x=image(1, 3, 32, 32))


@network
def unet3d() -> Made:
    return UNet(3, 1, 8, nn.LeakyReLU), every(x=image(1, 1, 8, 16, 16))


@network
def conv_lstm() -> Made:
    def run(m: Fn, x: Tensor) -> Tensor:
        h = c = torch.zeros(1, 8, 16, 16)
        for t in range(4):
            i, f, o, g = m.cell(torch.cat([x[:, t], h], 1)).chunk(4, 1)
            c = f.sigmoid() * c + i.sigmoid() * g.tanh()
            h = o.sigmoid() * c.tanh()
        return m.out(h)

    model = Fn(run, cell=conv(11, 32, act=None), out=conv(8, 3, act=None))
    return model, every(x=image(1, 4, 3, 16, 16))


@network
def ssd_heads() -> Made:
    """Depthwise separable convolutions; boxes and classes of two maps."""

    def separable(i: int, o: int, s: int) -> nn.Module:
        return nn.Sequential(
            nn.Conv2d(i, i, 3, s, 1, groups=i, bias=False),
            *(nn.BatchNorm2d(i), nn.ReLU6(), nn.Conv2d(i, o, 1, bias=False)),
            *(nn.BatchNorm2d(o), nn.ReLU6()),
        )

    def run(m: Fn, x: Tensor) -> tuple[Tensor, Tensor]:
        maps = [m.a(x)]
        maps.append(m.b(maps[0]))
        boxes, kinds = ([h(y).permute(0, 2, 3, 1) for h, y in zip(hs, maps)] for hs in (m.x, m.k))
        return (
            torch.cat([y.reshape(1, -1, 4) for y in boxes], 1),
            torch.cat([y.reshape(1, -1, 7) for y in kinds], 1).softmax(-1),
        )

    model = Fn(
        run,
        a=nn.Sequential(conv(3, 16, stride=2), separable(16, 32, 2), separable(32, 48, 2)),
        b=separable(48, 64, 2),
        x=nn.ModuleList([nn.Conv2d(c, 12, 3, padding=1) for c in (48, 64)]),
        k=nn.ModuleList([nn.Conv2d(c, 21, 3, padding=1) for c in (48, 64)]),
    )
    return model, every(x=image(1, 3, 64, 64))


def restored(*parts: nn.Module, side: int = 32, channels: int = 1) -> Made:
    return nn.Sequential(*parts), every(x=image(1, channels, side, side))


@network
def fsrcnn() -> Made:
    def step(i: int, o: int, k: int) -> nn.Module:
        return nn.Sequential(conv(i, o, k, None), nn.PReLU(o))

    middle = [step(12, 12, 3) for _ in range(4)]
    up = nn.ConvTranspose2d(56, 1, 9, 2, 4, output_padding=1)
    return restored(step(1, 56, 5), step(56, 12, 1), *middle, step(12, 56, 1), up)


@network
def espcn() -> Made:
    up = nn.PixelShuffle(2)
    return restored(conv(1, 64, 5, nn.Tanh), conv(64, 32, 3, nn.Tanh), conv(32, 4, act=None), up)


@network
def srcnn() -> Made:
    return restored(conv(1, 64, 9), conv(64, 32, 5), conv(32, 1, 5, None))


@network
def edsr() -> Made:
    body = [plus(conv(32, 32), conv(32, 32, act=None)) for _ in range(4)]
    up = [conv(32, 128, act=None), nn.PixelShuffle(2), conv(32, 3, act=None)]
    return restored(conv(3, 32, act=None), plus(*body), *up, channels=3)


class Gate(nn.Module):
    """Squeeze and excite."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.f = nn.Sequential(
            nn.AdaptiveAvgPool2d(1), conv(c, c // 4, 1), conv(c // 4, c, 1, nn.Sigmoid)
        )

    def forward(self, x: Tensor) -> Tensor:
        return x * self.f(x)


@network
def rcan() -> Made:
    body = [plus(conv(32, 32), conv(32, 32, act=None), Gate(32)) for _ in range(4)]
    up = [conv(32, 128, act=None), nn.PixelShuffle(2), conv(32, 3, act=None)]
    return restored(conv(3, 32, act=None), plus(*body), *up, channels=3)


@network
def dncnn() -> Made:
    def step() -> list[nn.Module]:
        return [nn.Conv2d(32, 32, 3, padding=1, bias=False), nn.BatchNorm2d(32), nn.ReLU()]

    return restored(
        plus(conv(1, 32), *(p for _ in range(5) for p in step()), conv(32, 1, act=None))
    )


@network
def esrgan() -> Made:
    def dense() -> nn.Module:
        def run(m: Fn, x: Tensor) -> Tensor:
            every_one = [x]
            for c in m.c:
                every_one.append(F.leaky_relu(c(torch.cat(every_one, 1)), 0.2))
            return x + 0.2 * m.o(torch.cat(every_one, 1))

        c = nn.ModuleList([nn.Conv2d(16 + 8 * i, 8, 3, padding=1) for i in range(4)])
        return Fn(run, c=c, o=nn.Conv2d(48, 16, 3, padding=1))

    up = [nn.Upsample(scale_factor=2), conv(16, 16, act=nn.LeakyReLU), conv(16, 3, act=None)]
    return restored(conv(3, 16, act=None), dense(), dense(), *up, channels=3)


@network
def carn() -> Made:
    def run(m: Fn, x: Tensor) -> Tensor:
        x = m.a(x)
        y = [x]
        for b, c in zip(m.b, m.c):
            y.append(b(y[-1]))
            x = c(torch.cat(y, 1))
            y[-1] = x
        return m.o(x)

    model = Fn(
        run,
        a=conv(3, 24, act=None),
        b=nn.ModuleList([plus(conv(24, 24, groups=4), conv(24, 24, 1, None)) for _ in range(3)]),
        c=nn.ModuleList([conv(24 * (i + 2), 24, 1) for i in range(3)]),
        o=nn.Sequential(conv(24, 96), nn.PixelShuffle(2), conv(24, 3, act=None)),
    )
    return model, every(x=image(1, 3, 32, 32))


@network
def siren() -> Made:
    def run(m: Fn, x: Tensor) -> Tensor:
        for layer in m.f:
            x = torch.sin(3 * layer(x))
        return m.o(x)

    f = nn.ModuleList([nn.Linear(2, 64), nn.Linear(64, 64), nn.Linear(64, 64)])
    return Fn(run, f=f, o=nn.Linear(64, 3)), every(x=noise(1, 256, 2))


class Norm2d(nn.Module):
    """Layer normalization over the channels of an image."""

    def __init__(self, c: int) -> None:
        super().__init__()
        self.weight, self.bias = (
            nn.Parameter(torch.ones(c, 1, 1)),
            nn.Parameter(torch.zeros(c, 1, 1)),
        )

    def forward(self, x: Tensor) -> Tensor:
        mean = x.mean(1, keepdim=True)
        centred = x - mean
        return (
            self.weight * centred / (centred.pow(2).mean(1, keepdim=True) + 1e-6).sqrt() + self.bias
        )


@network
def nafnet() -> Made:
    """Gates of halves, channel attention without an activation."""

    def halves(_: Fn, x: Tensor) -> Tensor:
        a, b = x.chunk(2, 1)
        return a * b

    def simple(m: Fn, x: Tensor) -> Tensor:
        return x * m.f(x.mean((2, 3), keepdim=True))

    def naf(c: int) -> nn.Module:
        wide = [conv(c, 2 * c, 1, None), conv(2 * c, 2 * c, 3, None, groups=2 * c), Fn(halves)]
        gate = Fn(simple, f=nn.Conv2d(c, c, 1))
        one = plus(Norm2d(c), *wide, gate, conv(c, c, 1, None))
        return nn.Sequential(
            one, plus(Norm2d(c), conv(c, 2 * c, 1, None), Fn(halves), conv(c, c, 1, None))
        )

    down = nn.Conv2d(16, 32, 2, 2)
    up = nn.Sequential(conv(32, 64, 1, None), nn.PixelShuffle(2))
    body = [conv(3, 16, act=None), naf(16), plus(down, naf(32), up), naf(16), conv(16, 3, act=None)]
    return restored(plus(*body), channels=3)


@network
def swin2sr_block() -> Made:
    """Cosine attention with a learned temperature in windows, norms behind, pixels shuffled up."""

    def attend(m: Fn, x: Tensor) -> Tensor:
        b, n, w = x.shape
        q, k, v = m.qkv(x).view(b, n, 3, 2, w // 2).permute(2, 0, 3, 1, 4)
        scores = F.normalize(q, dim=-1) @ F.normalize(k, dim=-1).transpose(-2, -1)
        scores = scores * m.heat.clamp(max=4.6).exp() + m.bias
        return m.o((scores.softmax(-1) @ v).transpose(1, 2).reshape(b, n, w))

    def layer() -> nn.Module:
        heat, bias = torch.full((2, 1, 1), 2.0), torch.randn(2, 64, 64)
        att = Fn(attend, qkv=nn.Linear(24, 72), o=nn.Linear(24, 24), heat=heat, bias=bias)
        ff = mlp(24, 48, 24, act=nn.GELU)
        return nn.Sequential(plus(att, nn.LayerNorm(24)), plus(ff, nn.LayerNorm(24)))

    def run(m: Fn, x: Tensor) -> Tensor:
        x = m.stem(x)
        y = x.permute(0, 2, 3, 1).view(1, 4, 8, 4, 8, 24).permute(0, 1, 3, 2, 4, 5)
        y = m.f(y.reshape(16, 64, 24)).view(1, 4, 4, 8, 8, 24)
        y = y.permute(0, 5, 1, 3, 2, 4).reshape(1, 24, 32, 32)
        return m.up(x + y)

    up = nn.Sequential(conv(24, 12, act=None), nn.PixelShuffle(2))
    model = Fn(run, stem=conv(3, 24, act=None), f=nn.Sequential(layer(), layer()), up=up)
    return model, every(x=image(1, 3, 32, 32))


@network
def vae() -> Made:
    def run(m: Fn, x: Tensor, e: Tensor) -> Tensor:
        mean, log = m.enc(x).chunk(2, 1)
        return m.dec(mean + e * (0.5 * log).exp())

    enc = nn.Sequential(
        conv(1, 16, 3, stride=2), conv(16, 32, 3, stride=2), nn.Flatten(), nn.Linear(2048, 32)
    )
    dec = nn.Sequential(
        *(nn.Linear(16, 2048), nn.Unflatten(1, (32, 8, 8)), nn.ReLU()),
        *(nn.ConvTranspose2d(32, 16, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(16, 1, 4, 2, 1)),
        nn.Sigmoid(),
    )
    return Fn(run, enc=enc, dec=dec), every(x=image(1, 1, 32, 32), e=noise(1, 16))


@network
def dcgan() -> Made:
    parts: list[nn.Module] = [nn.Unflatten(1, (32, 1, 1)), nn.ConvTranspose2d(32, 64, 4)]
    for i, o in ((64, 32), (32, 16)):
        parts += [nn.BatchNorm2d(i), nn.ReLU(), nn.ConvTranspose2d(i, o, 4, 2, 1, bias=False)]
    parts += [nn.BatchNorm2d(16), nn.ReLU(), nn.ConvTranspose2d(16, 3, 4, 2, 1), nn.Tanh()]
    return nn.Sequential(*parts), every(x=noise(1, 32))


def styled(norm: Callable[[int], nn.Module], blocks: int, w: int) -> Made:
    def step(i: int, o: int, k: int, s: int) -> list[nn.Module]:
        return [nn.ReflectionPad2d(k // 2), nn.Conv2d(i, o, k, s), norm(o), nn.ReLU()]

    body = [plus(*step(2 * w, 2 * w, 3, 1), *step(2 * w, 2 * w, 3, 1)[:-1]) for _ in range(blocks)]
    return restored(
        *(*step(3, w, 9, 1), *step(w, 2 * w, 3, 2), *body, nn.Upsample(scale_factor=2)),
        *(*step(2 * w, w, 3, 1), nn.ReflectionPad2d(4), nn.Conv2d(w, 3, 9), nn.Tanh()),
        channels=3,
    )


@network
def style_transfer() -> Made:
    return styled(lambda c: nn.InstanceNorm2d(c, affine=True), 2, 16)


@network
def cyclegan() -> Made:
    return styled(nn.InstanceNorm2d, 3, 12)


@network
def pix2pix() -> Made:
    def run(m: Fn, x: Tensor) -> Tensor:
        a = m.a(x)
        b = m.b(F.leaky_relu(a, 0.2))
        c = m.c(F.leaky_relu(b, 0.2))
        y = torch.cat([m.d(F.relu(c)), b], 1)
        return m.f(F.relu(torch.cat([m.e(F.relu(y)), a], 1))).tanh()

    def down(i: int, o: int) -> nn.Module:
        return nn.Sequential(nn.Conv2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o))

    def up(i: int, o: int) -> nn.Module:
        return nn.Sequential(nn.ConvTranspose2d(i, o, 4, 2, 1, bias=False), nn.BatchNorm2d(o))

    parts = {"a": nn.Conv2d(3, 16, 4, 2, 1), "b": down(16, 32), "c": down(32, 32)}
    parts |= {"d": up(32, 32), "e": up(64, 16), "f": nn.ConvTranspose2d(32, 3, 4, 2, 1)}
    return Fn(run, **parts), every(x=image(1, 3, 64, 64))


@network
def autoencoder() -> Made:
    return mlp(256, 128, 32, 8, 32, 128, 256), every(x=tone(1, 256))


@network
def vq_codebook() -> Made:
    def run(m: Fn, x: Tensor) -> Tensor:
        z = m.enc(x).flatten(2).transpose(1, 2)
        far = z.pow(2).sum(-1, keepdim=True) - 2 * z @ m.book.T + m.book.pow(2).sum(-1)
        return m.dec((-4 * far).softmax(-1) @ m.book)

    enc = nn.Sequential(conv(3, 16, 3, stride=2), conv(16, 8, 3, stride=2, act=None))
    return Fn(run, enc=enc, book=torch.randn(32, 8), dec=mlp(8, 32, 48)), every(
        x=image(1, 3, 32, 32)
    )


@network
def bert_like() -> Made:
    """Norms behind, a mask of the padding in the input."""

    def run(m: Fn, ids: Tensor, mask: Tensor) -> Tensor:
        x = m.norm(m.words(ids) + m.place)
        far = (1.0 - mask[:, None, None, :].float()) * -1e4
        for layer in m.layers:
            b, n, w = x.shape
            q, k, v = layer[0](x).view(b, n, 3, 4, 16).permute(2, 0, 3, 1, 4)
            y = (q @ k.transpose(-2, -1) / 4 + far).softmax(-1) @ v
            x = layer[2](x + layer[1](y.transpose(1, 2).reshape(b, n, w)))
            x = layer[4](x + layer[3](x))
        return m.out(x[:, 0].tanh())

    def layer() -> nn.ModuleList:
        return nn.ModuleList(
            [
                *(nn.Linear(64, 192), nn.Linear(64, 64), nn.LayerNorm(64)),
                *(mlp(64, 128, 64, act=nn.GELU), nn.LayerNorm(64)),
            ]
        )

    model = Fn(
        run,
        words=nn.Embedding(300, 64),
        place=torch.randn(1, 24, 64) * 0.3,
        norm=nn.LayerNorm(64),
        layers=nn.ModuleList([layer(), layer()]),
        out=nn.Linear(64, 3),
    )

    def mask(g: torch.Generator) -> Tensor:
        return (torch.arange(24) < torch.randint(12, 25, (1, 1), generator=g)).long()

    return model, every(ids=tokens(24, 300), mask=mask)


@network
def llama_block() -> Made:
    """Rotary positions, a causal mask, gated feed-forward, root mean square norms."""

    def gated(m: Fn, x: Tensor) -> Tensor:
        return m.c(F.silu(m.a(x)) * m.b(x))

    def layer() -> nn.Module:
        a, b, c = nn.Linear(64, 160), nn.Linear(64, 160), nn.Linear(160, 64)
        return nn.Sequential(
            plus(RMS(64), Attention(64, 4, "rotary")), plus(RMS(64), Fn(gated, a=a, b=b, c=c))
        )

    words, out = nn.Embedding(200, 64), nn.Linear(64, 200)
    return nn.Sequential(words, layer(), RMS(64), out), every(ids=tokens(24, 200))


@network
def t5_block() -> Made:
    """An encoder, and a decoder that attends to it; a bias of relative positions, no scale."""

    def run(m: Fn, ids: Tensor, given: Tensor) -> Tensor:
        e, d = m.words(ids), m.words(given)
        e = m.norm(e + m.a(m.n[0](e)))
        e = e + m.f(m.n[1](e))
        d = d + m.b(m.n[2](d))
        d = d + m.c(m.n[3](d), e)
        return m.out(d + m.g(m.n[4](d)))

    model = Fn(
        run,
        words=nn.Embedding(200, 48),
        a=Attention(48, 4, torch.randn(4, 24, 24)),
        b=Attention(48, 4, torch.randn(4, 12, 12) + torch.full((12, 12), -1e4).triu(1)),
        c=Attention(48, 4),
        f=mlp(48, 96, 48),
        g=mlp(48, 96, 48),
        n=nn.ModuleList([RMS(48) for _ in range(5)]),
        norm=RMS(48),
        out=nn.Linear(48, 200),
    )
    return model, every(ids=tokens(24, 200), given=tokens(12, 200))


@network
def mamba_block() -> Made:
    """A selective state space of 8 states over 16 steps."""

    def run(m: Fn, x: Tensor) -> Tensor:
        y, gate = m.into(m.norm(x)).chunk(2, -1)
        y = F.silu(m.conv(y.transpose(1, 2))[..., :16].transpose(1, 2))
        d, b, c = m.parts(y).split([4, 8, 8], -1)
        d = F.softplus(m.step(d))
        state, made = torch.zeros(1, 64, 8), []
        for t in range(16):
            decay = torch.exp(-d[:, t, :, None] * m.a.exp())
            state = decay * state + (d[:, t] * y[:, t])[..., None] * b[:, t, None]
            made.append((state * c[:, t, None]).sum(-1))
        y = torch.stack(made, 1) + y * m.d
        return x + m.out(y * F.silu(gate))

    model = Fn(
        run,
        norm=RMS(32),
        into=nn.Linear(32, 128),
        conv=nn.Conv1d(64, 64, 4, padding=3, groups=64),
        parts=nn.Linear(64, 20),
        step=nn.Linear(4, 64),
        a=torch.arange(1, 9).float().log().repeat(64, 1),
        d=torch.rand(64) + 0.5,
        out=nn.Linear(64, 32),
    )
    return model, every(x=noise(1, 16, 32))


@network
def text_cnn() -> Made:
    def run(m: Fn, ids: Tensor) -> Tensor:
        x = m.words(ids).transpose(1, 2)
        return m.out(torch.cat([F.relu(c(x)).amax(2) for c in m.c], 1))

    c = nn.ModuleList([nn.Conv1d(32, 24, k) for k in (3, 4, 5)])
    return Fn(run, words=nn.Embedding(500, 32), c=c, out=nn.Linear(72, 4)), every(
        ids=tokens(32, 500)
    )


def recurrent(kind: Any, i: int, h: int, o: int, steps: int, last: bool, **named: Any) -> Made:
    def run(m: Fn, x: Tensor) -> Tensor:
        y, _ = m.cell(x)
        return m.out(y[:, -1] if last else y)

    width = h * (2 if named.get("bidirectional") else 1)
    cell = kind(i, h, batch_first=True, **named)
    return Fn(run, cell=cell, out=nn.Linear(width, o)), every(x=tone(1, i, steps))


def turned(made: Made) -> Made:
    """Steps before channels."""
    model, inputs = made
    return model, lambda g: {n: x.transpose(1, 2) for n, x in inputs(g).items()}


@network
def kws_lstm() -> Made:
    return turned(recurrent(nn.LSTM, 10, 32, 12, 50, last=True))


@network
def gru_denoiser() -> Made:
    return turned(recurrent(nn.GRU, 16, 32, 16, 28, last=False))


@network
def lstm_forecaster() -> Made:
    return turned(recurrent(nn.LSTM, 4, 32, 8, 48, last=True, num_layers=2))


@network
def gru_forecaster() -> Made:
    return turned(recurrent(nn.GRU, 4, 24, 8, 24, last=True, bidirectional=True))


@network
def lstm_tagger() -> Made:
    model, _ = recurrent(nn.LSTM, 32, 24, 9, 16, last=False, bidirectional=True)
    return nn.Sequential(nn.Embedding(200, 32), model), every(ids=tokens(16, 200))


@network
def conv_tasnet() -> Made:
    """Learned filters, masks of two speakers by dilated convolutions with global norms."""

    def step(d: int) -> nn.Module:
        return plus(
            *(nn.Conv1d(24, 48, 1), nn.PReLU(), nn.GroupNorm(1, 48)),
            *(nn.Conv1d(48, 48, 3, padding=d, dilation=d, groups=48), nn.PReLU()),
            *(nn.GroupNorm(1, 48), nn.Conv1d(48, 24, 1)),
        )

    def run(m: Fn, x: Tensor) -> Tensor:
        w = F.relu(m.enc(x))
        masks = m.tcn(w).sigmoid().view(2, 48, -1)
        return m.dec(masks * w)

    tcn = nn.Sequential(
        *(nn.GroupNorm(1, 48), nn.Conv1d(48, 24, 1), *(step(2**i) for i in range(4))),
        *(nn.PReLU(), nn.Conv1d(24, 96, 1)),
    )
    enc, dec = nn.Conv1d(1, 48, 16, 8), nn.ConvTranspose1d(48, 1, 16, 8)
    return Fn(run, enc=enc, tcn=tcn, dec=dec), every(x=tone(1, 1, 1024))


@network
def conformer() -> Made:
    """Half feed-forwards around attention and a gated convolution."""

    def half(w: int) -> nn.Module:
        f = nn.Sequential(nn.LayerNorm(w), mlp(w, 2 * w, w, act=nn.SiLU))
        return Fn(lambda m, x: x + 0.5 * m.f(x), f=f)

    def convolved(m: Fn, x: Tensor) -> Tensor:
        return m.f(m.norm(x).transpose(1, 2)).transpose(1, 2)

    f = nn.Sequential(
        *(nn.Conv1d(48, 96, 1), nn.GLU(1), nn.Conv1d(48, 48, 7, padding=3, groups=48)),
        *(nn.BatchNorm1d(48), nn.SiLU(), nn.Conv1d(48, 48, 1)),
    )
    layer = nn.Sequential(
        *(half(48), plus(nn.LayerNorm(48), Attention(48, 4))),
        *(plus(Fn(convolved, norm=nn.LayerNorm(48), f=f)), half(48), nn.LayerNorm(48)),
    )
    return nn.Sequential(nn.Linear(20, 48), layer, nn.Linear(48, 30)), every(x=noise(1, 40, 20))


@network
def ds_cnn() -> Made:
    parts: list[nn.Module] = [nn.Conv2d(1, 32, (10, 4), 2, (4, 1)), nn.BatchNorm2d(32), nn.ReLU()]
    for _ in range(3):
        parts += [conv(32, 32, groups=32), nn.BatchNorm2d(32), conv(32, 32, 1)]
    return (
        nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 12)),
        every(x=noise(1, 1, 49, 10)),
    )


@network
def crnn() -> Made:
    def run(m: Fn, x: Tensor) -> Tensor:
        y, _ = m.gru(m.c(x).flatten(1, 2).transpose(1, 2))
        return m.out(y)

    c = nn.Sequential(conv(1, 16), nn.MaxPool2d((4, 2)), conv(16, 16), nn.MaxPool2d((4, 2)))
    gru = nn.GRU(32, 24, batch_first=True, bidirectional=True)
    return Fn(run, c=c, gru=gru, out=nn.Linear(48, 20)), every(x=noise(1, 1, 32, 64))


@network
def wavenet() -> Made:
    def step(d: int) -> nn.Module:
        def run(m: Fn, x: Tensor) -> Tensor:
            y = F.pad(x, (d, 0))
            return x + m.o(m.t(y).tanh() * m.s(y).sigmoid())

        t, s = (nn.Conv1d(24, 24, 2, dilation=d) for _ in range(2))
        return Fn(run, t=t, s=s, o=nn.Conv1d(24, 24, 1))

    body = [step(2**i) for i in range(5)]
    return (
        nn.Sequential(nn.Conv1d(1, 24, 1), *body, nn.ReLU(), nn.Conv1d(24, 32, 1)),
        every(x=tone(1, 1, 256)),
    )


@network
def tcn() -> Made:
    def step(i: int, o: int, d: int) -> nn.Module:
        f = nn.Sequential(
            *(nn.ConstantPad1d((2 * d, 0), 0.0), nn.Conv1d(i, o, 3, dilation=d), nn.ReLU()),
            *(nn.ConstantPad1d((2 * d, 0), 0.0), nn.Conv1d(o, o, 3, dilation=d), nn.ReLU()),
        )
        skip = nn.Conv1d(i, o, 1) if i != o else nn.Identity()
        return Fn(lambda m, x: F.relu(m.f(x) + m.skip(x)), f=f, skip=skip)

    def run(m: Fn, x: Tensor) -> Tensor:
        return m.out(m.f(x)[:, :, -1])

    f = nn.Sequential(step(4, 24, 1), step(24, 24, 2), step(24, 24, 4))
    return Fn(run, f=f, out=nn.Linear(24, 5)), every(x=tone(1, 4, 64))


@network
def nbeats() -> Made:
    def run(m: Fn, x: Tensor) -> Tensor:
        total = torch.zeros(1, 12)
        for f in m.f:
            back, ahead = f(x).split([48, 12], -1)
            x, total = x - back, total + ahead
        return total

    return Fn(run, f=nn.ModuleList([mlp(48, 64, 64, 60) for _ in range(3)])), every(x=tone(1, 48))


@network
def tsmixer() -> Made:
    def layer() -> nn.Module:
        def run(m: Fn, x: Tensor) -> Tensor:
            x = x + m.t(m.a(x).transpose(1, 2)).transpose(1, 2)
            return x + m.c(m.b(x))

        a, b = nn.LayerNorm(8), nn.LayerNorm(8)
        return Fn(run, a=a, b=b, t=mlp(32, 32, 32), c=mlp(8, 32, 8))

    return nn.Sequential(layer(), layer()), every(x=noise(1, 32, 8))


@network
def informer_conv() -> Made:
    def run(m: Fn, x: Tensor) -> Tensor:
        x = m.a(x).transpose(1, 2)
        x = m.b(F.max_pool1d(F.elu(m.c(x)), 3, 2, 1).transpose(1, 2))
        return m.out(x[:, -8:])

    parts = {"a": nn.Sequential(nn.Linear(6, 32), block(32, 4)), "b": block(32, 4)}
    c = nn.Conv1d(32, 32, 3, padding=1, padding_mode="circular")
    return Fn(run, c=c, out=nn.Linear(32, 6), **parts), every(x=noise(1, 48, 6))


@network
def inception_time() -> Made:
    def layer(i: int) -> nn.Module:
        def run(m: Fn, x: Tensor) -> Tensor:
            y = m.neck(x)
            every_one = [c(y) for c in m.c] + [m.p(F.max_pool1d(x, 3, 1, 1))]
            return F.relu(m.norm(torch.cat(every_one, 1)))

        c = nn.ModuleList([conv1(16, 16, k, None) for k in (5, 11, 21)])
        neck, p = nn.Conv1d(i, 16, 1), nn.Conv1d(i, 16, 1)
        return Fn(run, neck=neck, c=c, p=p, norm=nn.BatchNorm1d(64))

    return (
        nn.Sequential(layer(3), layer(64), nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(64, 6)),
        every(x=tone(1, 3, 96)),
    )


@network
def dlinear() -> Made:
    def run(m: Fn, x: Tensor) -> Tensor:
        trend = F.avg_pool1d(F.pad(x, (12, 12), mode="replicate"), 25, 1)
        return m.a(x - trend) + m.b(trend)

    return Fn(run, a=nn.Linear(96, 24), b=nn.Linear(96, 24)), every(x=tone(1, 5, 96))


@network
def dueling_dqn() -> Made:
    """The value of a state, and advantages less their mean."""

    def run(m: Fn, x: Tensor) -> Tensor:
        y = m.f(x)
        a = m.a(y)
        return m.v(y) + a - a.mean(-1, keepdim=True)

    parts = {"f": mlp(12, 64, 64), "v": mlp(64, 32, 1), "a": mlp(64, 32, 6)}
    return Fn(run, **parts), every(x=noise(1, 12))


@network
def mlp_() -> Made:
    return mlp(20, 64, 64, 3), every(x=noise(1, 20))


NETWORKS["mlp"] = NETWORKS.pop("mlp_")


@network
def resnet_tabular() -> Made:
    def layer() -> nn.Module:
        return plus(nn.BatchNorm1d(48), nn.Linear(48, 96), nn.ReLU(), nn.Linear(96, 48))

    return (
        nn.Sequential(nn.Linear(16, 48), layer(), layer(), nn.BatchNorm1d(48), nn.Linear(48, 2)),
        every(x=noise(1, 16)),
    )


def fields(count: int, words: int) -> Callable[[torch.Generator], Tensor]:
    return lambda g: torch.randint(0, words, (1, count), generator=g)


@network
def tab_transformer() -> Made:
    def run(m: Fn, c: Tensor, x: Tensor) -> Tensor:
        y = m.f(m.words(c) + m.place)
        return m.out(torch.cat([y.flatten(1), m.norm(x)], 1))

    parts = {"words": nn.Embedding(60, 16), "f": block(16, 2), "norm": nn.LayerNorm(6)}
    model = Fn(run, place=torch.randn(1, 8, 16), out=mlp(134, 32, 2), **parts)
    return model, every(c=fields(8, 60), x=noise(1, 6))


@network
def dqn_atari() -> Made:
    body = [conv(4, 16, 8, stride=4, padding=0), conv(16, 32, 4, stride=2, padding=0)]
    return (
        nn.Sequential(*body, nn.Flatten(), mlp(2592, 64, 6)),
        every(x=image(1, 4, 84, 84)),
    )


@network
def sac_actor() -> Made:
    def run(m: Fn, x: Tensor) -> tuple[Tensor, Tensor]:
        y = F.relu(m.f(x))
        return m.mean(y).tanh(), m.dev(y).clamp(-5, 2).exp()

    parts = {"f": mlp(17, 64, 64), "mean": nn.Linear(64, 6), "dev": nn.Linear(64, 6)}
    return Fn(run, **parts), every(x=noise(1, 17))


@network
def autoint() -> Made:
    def run(m: Fn, c: Tensor) -> Tensor:
        x = m.words(c)
        return m.out(F.relu(m.att(x) + m.skip(x)).flatten(1)).sigmoid()

    parts = {"words": nn.Embedding(100, 16), "att": Attention(16, 2), "skip": nn.Linear(16, 16)}
    return Fn(run, out=nn.Linear(160, 1), **parts), every(c=fields(10, 100))


@network
def dlrm() -> Made:
    """Embeddings and dense features, products of each pair."""

    def run(m: Fn, c: Tensor, x: Tensor) -> Tensor:
        y = m.low(x)
        parts = torch.cat([y[:, None], m.words(c)], 1)
        pairs = parts @ parts.transpose(1, 2)
        return m.top(torch.cat([y, pairs.flatten(1)], 1)).sigmoid()

    parts = {"words": nn.Embedding(200, 16), "low": mlp(8, 32, 16), "top": mlp(65, 64, 1)}
    return Fn(run, **parts), every(c=fields(6, 200), x=noise(1, 8))


@network
def deepfm() -> Made:
    def run(m: Fn, c: Tensor) -> Tensor:
        x = m.words(c)
        pairs = 0.5 * (x.sum(1).pow(2) - x.pow(2).sum(1)).sum(-1, keepdim=True)
        return (m.one(c).sum(1) + pairs + m.deep(x.flatten(1))).sigmoid()

    words, one = nn.Embedding(200, 8), nn.Embedding(200, 1)
    return Fn(run, words=words, one=one, deep=mlp(80, 32, 1)), every(c=fields(10, 200))


@network
def ncf() -> Made:
    def run(m: Fn, u: Tensor, i: Tensor) -> Tensor:
        deep = m.f(torch.cat([m.b(u), m.d(i)], -1))
        return m.out(torch.cat([m.a(u) * m.c(i), deep], -1)).sigmoid()

    words = {n: nn.Embedding(100, 16) for n in "abcd"}
    inputs = every(u=fields(1, 100), i=fields(1, 100))
    return Fn(run, f=mlp(32, 32, 16), out=nn.Linear(32, 1), **words), inputs


@network
def two_tower() -> Made:
    def run(m: Fn, u: Tensor, i: Tensor) -> Tensor:
        a, b = F.normalize(m.a(u), dim=-1), F.normalize(m.b(i), dim=-1)
        return a @ b.transpose(-2, -1)

    return Fn(run, a=mlp(24, 64, 32), b=mlp(16, 64, 32)), every(u=noise(1, 24), i=noise(1, 20, 16))


@network
def sasrec() -> Made:
    words, out = nn.Embedding(200, 32), nn.Linear(32, 50)
    return (
        nn.Sequential(words, block(32, 2, "causal"), nn.LayerNorm(32), out),
        every(ids=tokens(20, 200)),
    )


@network
def wide_deep() -> Made:
    def run(m: Fn, c: Tensor, x: Tensor) -> Tensor:
        return m.wide(x) + m.deep(torch.cat([m.words(c).flatten(1), x], 1))

    parts = {"words": nn.Embedding(100, 8), "wide": nn.Linear(12, 1), "deep": mlp(60, 64, 32, 1)}
    return Fn(run, **parts), every(c=fields(6, 100), x=noise(1, 12))


def edges(n: int) -> Callable[[torch.Generator], Tensor]:
    """A random adjacency with loops."""
    return lambda g: ((torch.rand(1, n, n, generator=g) < 0.2) | torch.eye(n).bool()).float()


def graph(run: Callable[..., Tensor], nodes: int = 24, **parts: Any) -> Made:
    return Fn(run, **parts), every(x=noise(1, nodes, 8), a=edges(nodes))


@network
def gat() -> Made:
    """Scores of one channel each side, added, masked by the edges."""

    def attend(m: Fn, x: Tensor, a: Tensor) -> Tensor:
        h = m.w(x)
        scores = F.leaky_relu(m.s(h) + m.t(h).transpose(1, 2), 0.2)
        return (scores + (a - 1) * 1e4).softmax(-1) @ h

    def layer(i: int, o: int) -> Fn:
        return Fn(attend, w=nn.Linear(i, o), s=nn.Linear(o, 1), t=nn.Linear(o, 1))

    def run(m: Fn, x: Tensor, a: Tensor) -> Tensor:
        return m.two(F.elu(m.one(x, a)), a)

    return graph(run, one=layer(8, 24), two=layer(24, 6))


@network
def gcn() -> Made:
    def run(m: Fn, x: Tensor, a: Tensor) -> Tensor:
        a = a / a.sum(-1, keepdim=True)
        return m.two(a @ F.relu(m.one(a @ x)))

    return graph(run, one=nn.Linear(8, 32), two=nn.Linear(32, 6))


@network
def graph_sage() -> Made:
    def run(m: Fn, x: Tensor, a: Tensor) -> Tensor:
        for f in m.f:
            y = a @ x / a.sum(-1, keepdim=True)
            x = F.normalize(F.relu(f(torch.cat([x, y], -1))), dim=-1)
        return m.out(x.mean(1))

    f = nn.ModuleList([nn.Linear(16, 24), nn.Linear(48, 24)])
    return graph(run, f=f, out=nn.Linear(24, 3))


@network
def mpnn() -> Made:
    def run(m: Fn, x: Tensor, a: Tensor) -> Tensor:
        n = x.shape[1]
        pairs = torch.cat([x[:, :, None].expand(1, n, n, 8), x[:, None].expand(1, n, n, 8)], -1)
        return m.out(torch.cat([x, (m.f(pairs) * a[..., None]).sum(2)], -1))

    return graph(run, 12, f=mlp(16, 24, 16), out=mlp(24, 24, 4))


@network
def point_net() -> Made:
    """A dense layer for every point, the largest of each channel, a learned rotation."""

    def run(m: Fn, x: Tensor) -> Tensor:
        turn = m.turn(m.t(x).amax(2)).view(-1, 3, 3)
        x = torch.bmm(x.transpose(1, 2), turn).transpose(1, 2)
        return m.out(m.f(x).amax(2))

    def points(*widths: int) -> nn.Sequential:
        pairs = itertools.pairwise(widths)
        return nn.Sequential(
            *(p for i, o in pairs for p in (nn.Conv1d(i, o, 1), nn.BatchNorm1d(o), nn.ReLU()))
        )

    parts = {"t": points(3, 24, 48), "turn": nn.Linear(48, 9), "f": points(3, 32, 64, 128)}
    return Fn(run, out=mlp(128, 64, 10), **parts), every(x=noise(1, 3, 128))


def at_rows(rows: Tensor, places: Tensor, count: int) -> Tensor:
    """Rows added up at places, as PyG's scatter does it."""
    zeros = rows.new_zeros(count, rows.shape[1])
    return zeros.scatter_add(0, places[:, None].expand_as(rows), rows)


def listed_edges(
    run: Callable[..., Tensor], nodes: int, count: int, width: int, **parts: Any
) -> Made:
    """A network of rows of nodes and of edges from source to target."""

    def listed(g: torch.Generator) -> Tensor:
        return torch.randint(0, nodes, (1, 2, count), generator=g)

    inputs = every(x=noise(1, nodes, width), edges=listed)
    return Fn(lambda m, x, e: run(m, x[0], e[0, 0], e[0, 1]), **parts), inputs


def edge_convolutions(nodes: int, count: int, width: int) -> Made:
    """Two graph convolutions with norms counted from the edges and a loop at every node."""

    def run(m: Fn, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        loops = torch.arange(nodes)
        source, target = torch.cat([source, loops]), torch.cat([target, loops])
        root = at_rows(x.new_ones(count + nodes, 1), target, nodes).pow(-0.5)
        norm = root[source] * root[target]
        x = F.relu(at_rows(norm * m.one(x)[source], target, nodes))
        return at_rows(norm * m.two(x)[source], target, nodes)

    return listed_edges(run, nodes, count, width, one=nn.Linear(width, 16), two=nn.Linear(16, 7))


@network
def edge_gcn() -> Made:
    return edge_convolutions(20, 60, 8)


@network
def edge_gcn_cora() -> Made:
    """As many nodes, edges and words as the graph of papers has."""
    return edge_convolutions(2708, 10556, 1433)


@network
def edge_gine() -> Made:
    def run(m: Fn, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        for f in m.f:
            x = F.relu(f(at_rows(F.relu(x[source] + m.kinds[source]), target, 40) + 1.1 * x))
        return m.out(x.sum(0, keepdim=True))

    parts = {"f": nn.ModuleList(mlp(16, 16, 16) for _ in range(2)), "out": nn.Linear(16, 3)}
    return listed_edges(run, 40, 160, 16, kinds=torch.randn(40, 16), **parts)


@network
def edge_gat() -> Made:
    """Scores of edges are normalized over the edges of a target."""

    def run(m: Fn, x: Tensor, source: Tensor, target: Tensor) -> Tensor:
        x = m.one(x)
        score = F.leaky_relu(m.a(x)[source, 0] + m.b(x)[target, 0], 0.2)
        zeros = score.new_zeros(len(x))
        most = zeros.scatter_reduce(0, target, score, "amax", include_self=False)
        score = (score - most[target]).exp()
        share = score / (zeros.scatter_add(0, target, score) + 1e-16)[target]
        return m.out(F.elu(at_rows(x[source] * share[:, None], target, len(x))))

    parts = {"one": nn.Linear(8, 16), "a": nn.Linear(16, 1), "b": nn.Linear(16, 1)}
    return listed_edges(run, 40, 160, 8, out=nn.Linear(16, 3), **parts)


@network
def point_pillars() -> Made:
    """The largest of the points of a pillar, put into the cell of an image."""

    def run(m: Fn, x: Tensor, cells: Tensor) -> Tensor:
        canvas = x.new_zeros(256, 32)
        canvas[cells[0, :, 0] * 16 + cells[0, :, 1]] = F.relu(m.f(x[0])).amax(1)
        return m.out(canvas.t().reshape(1, 32, 16, 16))

    def cells(g: torch.Generator) -> Tensor:
        chosen = torch.randperm(256, generator=g)[:60]
        return torch.stack([chosen // 16, chosen % 16], 1)[None]

    out = nn.Sequential(conv(32, 32), conv(32, 14, 1, None))
    return Fn(run, f=nn.Linear(9, 32), out=out), every(x=noise(1, 60, 20, 9), cells=cells)


@network
def segnet() -> Made:
    """Maxima return to the places that they were taken from."""

    def run(m: Fn, x: Tensor) -> Tensor:
        places = []
        for down in m.down:
            x, place = F.max_pool2d(down(x), 2, return_indices=True)
            places.append(place)
        for up in m.up:
            x = up(F.max_unpool2d(x, places.pop(), 2))
        return x

    down = nn.ModuleList([conv(3, 16), conv(16, 32)])
    up = nn.ModuleList([conv(32, 16), conv(16, 5, act=None)])
    return Fn(run, down=down, up=up), every(x=image(1, 3, 32, 32))


SMALL: Final[Sequence[str]] = (
    *("window_attention", "segformer_head", "dueling_dqn", "gat", "unet_groupnorm", "dit_block"),
    *("bert_like", "llama_block", "t5_block", "mamba_block", "conv_tasnet", "fsrcnn", "nafnet"),
    *("swin2sr_block", "kws_lstm", "tcn", "point_net", "dlrm", "text_cnn", "conformer"),
    *("ssd_heads", "edge_gcn", "edge_gine", "diff_pool", "schnet", "randla_net", "bc_resnet"),
    *("matchbox_net", "tabnet", "oblivious_trees", "dcn_v2"),
)
"""Those that tests keep a file of."""
