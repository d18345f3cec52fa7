"""Modules alone against their formulas in fp64, on inputs that a whole model does not reach."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

import formulas
import kinds
from isoflop.model import parts
from isoflop.model.norm import RMS, Layer
from isoflop.model.position import ALiBi, RoPE, Sinusoidal
from isoflop.model.slots import Activation, FeedForward, Join, Norm
from isoflop.spec import Slot
from models import SETTING, bias

FP64 = {"atol": 1e-12, "rtol": 1e-12}


def variants(slot: type[Slot], top: str) -> dict[str, Any]:
    """Every setting of a slot, as specs."""
    found: dict[str, Any] = {}
    for setting in kinds.settings():
        value: Any = kinds.tiny(setting.change)
        for name in top.split("."):
            value = getattr(value, name)
        if str(setting).startswith(top) and isinstance(value, slot):
            found[str(setting)] = value
    assert found
    return found


def drawn(module: nn.Module, seed: int = 0) -> tuple[nn.Module, formulas.Weights]:
    """The module in fp64 with random weights, and those weights."""
    module = module.double()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    parameters = dict(module.named_parameters())
    return module, formulas.Weights({p.name: parameters[p.parameter][p.rows].tolist() for p in parts(module)})


def vectors(*shape: int, size: float = 1.0) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(5), dtype=torch.float64) * size


NORMS = variants(Norm, "norm")
FFNS = variants(FeedForward, "ffn")
ACTIVATIONS = variants(Activation, "ffn.activation")
JOINS = variants(Join, "join")


@pytest.mark.parametrize("name", NORMS)
@pytest.mark.parametrize("size", [1e-4, 1.0, 1e4])
def test_norm(name: str, size: float) -> None:
    spec = NORMS[name]
    module, weights = drawn(spec.build(9))
    x = vectors(4, 9, size=size) + size
    x[3] = 0.0  # zero variance is where eps counts alone
    expected = torch.tensor([formulas.of(spec)(row, weights) for row in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(module(x).detach(), expected, **FP64)


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_activation(name: str) -> None:
    spec = ACTIVATIONS[name]
    x = torch.tensor([-30.0, -3.0, -1.0, -1e-3, 0.0, 1e-3, 0.5, 2.0, 8.0, 30.0], dtype=torch.float64)
    expected = torch.tensor([formulas.of(spec)(value) for value in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(spec.build()(x), expected, **FP64)


@pytest.mark.parametrize("name", FFNS)
def test_feed_forward(name: str) -> None:
    spec = FFNS[name]
    module, weights = drawn(spec.build(7))
    x = vectors(3, 7)
    expected = torch.tensor([formulas.of(spec)(row, weights) for row in x.tolist()], dtype=torch.float64)
    torch.testing.assert_close(module.eval()(x).detach(), expected, **FP64)


@pytest.mark.parametrize("name", JOINS)
@pytest.mark.parametrize("norm", [Layer(), RMS()], ids=["layer", "rms"])
def test_join(name: str, norm: Norm) -> None:
    spec = JOINS[name]
    module, weights = drawn(spec.build(lambda: norm.build(6), 0.0))
    z = vectors(3, 6)
    expected = formulas.of(spec)(
        z.tolist(), lambda xs: [[v * v - 2 for v in x] for x in xs], formulas.of(norm), weights
    )
    found = module(z, lambda x: x * x - 2).detach()
    torch.testing.assert_close(found, torch.tensor(expected, dtype=torch.float64), **FP64)


@pytest.mark.parametrize("cast", ["after_gain", "before_gain"])
@pytest.mark.parametrize("grad", [False, True])
def test_rms_returns_to_16_bit_where_it_says(cast: str, grad: bool) -> None:
    x = vectors(16, 64).bfloat16().requires_grad_(grad)
    module = RMS(cast=cast).build(64).bfloat16()
    with torch.no_grad():
        module.gain.copy_(vectors(64))
    wide = x.detach().float()
    unit = wide * (wide.square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    gain = module.gain.detach()
    after, before = (unit * gain.float()).bfloat16(), unit.bfloat16() * gain
    expected, other = (after, before) if cast == "after_gain" else (before, after)
    found = module(x).detach()
    assert not torch.equal(after, before)
    assert (found != expected).float().mean() < 0.01  # a last bit of rsqrt, at most
    assert (found != other).float().mean() > 0.1


@pytest.mark.parametrize("cast", ["after_gain", "before_gain"])
def test_an_offset_gain_is_formed_in_fp32(cast: str) -> None:
    """1 + w of w = 2^-12 is no number of bf16, but what it makes of x is felt where x lies between two of them."""
    x = vectors(64, 64).bfloat16()
    module = RMS(cast=cast, unit_offset=True).build(64).bfloat16()
    torch.nn.init.constant_(module.gain, 3 * 2**-10)
    unit = x.float() * (x.float().square().mean(-1, keepdim=True) + 1e-6).rsqrt()
    unit = unit.bfloat16().float() if cast == "before_gain" else unit
    expected, rounded = (
        (unit * (1 + 3 * 2**-10)).bfloat16(),
        (unit * torch.tensor(1 + 3 * 2**-10).bfloat16()).bfloat16(),
    )
    found = module(x).detach()
    assert found.dtype == torch.bfloat16
    assert (expected != rounded).float().mean() > 0.1
    assert (found != expected).float().mean() < 0.01


@pytest.mark.parametrize("heads", range(1, 18))
@pytest.mark.parametrize("slopes", ["paper", "geometric"])
def test_alibi(heads: int, slopes: str) -> None:
    spec = ALiBi(slopes=slopes)
    q, k = torch.tensor([[5, 9]]), torch.tensor([[0, 5, 7, 9]])
    found = bias(spec.term(SETTING, heads, 8), q, k)
    assert found.shape == (1, heads, 2, 4)
    assert found.dtype == torch.float32
    expected = [
        [[-formulas.alibi_slope(spec, h, heads) * abs(i - j) for j in k[0].tolist()] for i in q[0].tolist()]
        for h in range(heads)
    ]
    torch.testing.assert_close(found[0], torch.tensor(expected))


def test_alibi_slopes_of_the_paper() -> None:
    """The lists that the authors print: 8 heads, and the interpolation for 12."""
    eight = [1 / 2**n for n in range(1, 9)]
    assert ALiBi().term(SETTING, 8, 8).slopes == pytest.approx(eight)
    assert ALiBi().term(SETTING, 12, 8).slopes == pytest.approx(eight + [2 ** -(n + 0.5) for n in range(4)])


@pytest.mark.parametrize("layout", ["half", "interleaved"])
@pytest.mark.parametrize(("fraction", "size"), [(1.0, 8), (0.5, 8), (0.25, 8), (0.3, 8), (1.0, 2)])
def test_rope(layout: str, fraction: float, size: int) -> None:
    spec = RoPE(layout=layout, fraction=fraction, base=100.0)
    positions = torch.tensor([[0, 1, 7, 1000], [3, 3, 2, 0]])
    x = vectors(2, 3, 4, size)
    found = spec.term(SETTING, 3, size).rotate(x.float(), positions, lambda key, make: make())
    rotate = formulas.of(spec)(size).rotate
    expected = [
        [[rotate(x[b, h, t].tolist(), int(positions[b, t])) for t in range(4)] for h in range(3)] for b in range(2)
    ]
    # Angles are fp32: an angle of 1000 is exact to 1000 x 2^-24.
    torch.testing.assert_close(found, torch.tensor(expected), atol=3e-4, rtol=0)
    near = positions < 10
    torch.testing.assert_close(
        found.mT[near[:, None, None].expand(2, 3, size, 4)],
        torch.tensor(expected).mT[near[:, None, None].expand(2, 3, size, 4)],
        atol=5e-6,
        rtol=0,
    )


def test_rope_scores_depend_on_the_distance_alone() -> None:
    term = RoPE().term(SETTING, 1, 16)
    q, k = vectors(1, 1, 1, 16).float(), vectors(2, 1, 1, 16)[1:].float()

    def score(i: int, j: int) -> float:
        turned = [
            term.rotate(x, torch.tensor([[at]]), lambda key, make: make()).flatten() for x, at in ((q, i), (k, j))
        ]
        return float(turned[0] @ turned[1])

    assert score(11, 4) == pytest.approx(score(107, 100), abs=1e-4)
    assert score(11, 4) != pytest.approx(score(4, 11), abs=1e-2)


@pytest.mark.parametrize("layout", ["interleaved", "half"])
def test_sinusoidal(layout: str) -> None:
    spec = Sinusoidal(layout=layout, base=100.0)
    positions = torch.tensor([[0, 1, 2, 40], [9, 0, 0, 3]])
    found = spec.embedding(6)(positions)
    embed = formulas.of(spec)(6).embed
    expected = [[embed(position, None) for position in row] for row in positions.tolist()]
    torch.testing.assert_close(found, torch.tensor(expected), atol=5e-6, rtol=0)


def test_gelu_forms_differ_by_what_the_docstring_says() -> None:
    exact, approximate = (
        formulas.of(ACTIVATIONS[name])
        for name in ("ffn.activation=gelu(plain)", "ffn.activation.form=tanh(plain,gelu)")
    )
    gap = max(abs(exact(x / 100) - approximate(x / 100)) for x in range(-500, 500))
    assert 4.6e-4 < gap < 4.75e-4
    assert math.isclose(exact(1.0), 0.8413447460685429)
