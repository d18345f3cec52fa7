"""Slightly wrong logits: the exact and the tanh form of GELU are confused."""

import math

import pytest
import torch

from isoflop.model import Architecture, build
from isoflop.model.activation import GELU
from isoflop.spec import SpecError


def exact(x: float) -> float:
    return x * 0.5 * (1 + math.erf(x / math.sqrt(2)))


def tanh(x: float) -> float:
    return x / 2 * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


@pytest.mark.parametrize(("form", "formula"), [("exact", exact), ("tanh", tanh)])
def test_each_form_is_its_formula(form: str, formula) -> None:
    points = [-6.0, -2.699, -1.0, 0.0, 0.5, 1.0, 2.699, 6.0]
    out = GELU(form=form).build()(torch.tensor(points, dtype=torch.float64))
    assert out.tolist() == pytest.approx([formula(x) for x in points], rel=1e-12, abs=1e-15)


def test_they_differ_most_at_two_point_seven() -> None:
    x = torch.tensor(2.699, dtype=torch.float64)
    assert abs(float(GELU(form="exact").build()(x) - GELU(form="tanh").build()(x))) == pytest.approx(4.73e-4, rel=1e-2)


def test_the_declared_form_reaches_the_model() -> None:
    tokens_BT = torch.arange(9)[None]
    outputs = []
    for form in ("exact", "tanh"):
        ffn = {"activation": {"kind": "gelu", "form": form}}
        declared = Architecture(width=16, depth=1, attention={"heads": 2}, ffn=ffn, init={"kind": "normal", "std": 1.0})
        outputs.append(build(declared)(tokens_BT))
    assert not torch.equal(*outputs)


def test_another_name_is_refused() -> None:
    with pytest.raises(SpecError, match=r"form.*'exact' or 'tanh', came 'gelu_new'"):
        GELU(form="gelu_new")
