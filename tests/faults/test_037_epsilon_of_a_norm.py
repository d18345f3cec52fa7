"""The same norm scales small inputs very differently: epsilon is elsewhere, or depends on the dtype."""

import math

import pytest
import torch

from isoflop.model.norm import RMS, Layer
from isoflop.model.slots import Norm


def norm_of(kind: Norm, row: torch.Tensor) -> torch.Tensor:
    module = kind.build(row.shape[-1]).to(row.dtype)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            parameter.fill_(1.0 if name == "gain" else 0.0)
        return module(row)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("cast", ["after_gain", "before_gain"])
@pytest.mark.parametrize(("eps", "expected"), [(1e-6, 0.0995), (1e-5, 0.0316)])
def test_epsilon_is_inside_the_root(eps: float, expected: float, cast: str, dtype: torch.dtype) -> None:
    out = norm_of(RMS(eps=eps, cast=cast), torch.full((64,), 1e-4, dtype=dtype))
    assert out.float().tolist() == pytest.approx([expected] * 64, rel=1e-2)


def test_the_defaults_are_explicit_numbers() -> None:
    assert (RMS().eps, Layer().eps) == (1e-6, 1e-5)


@pytest.mark.parametrize("kind", [RMS(), Layer()], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_zeros_give_zeros(kind: Norm, dtype: torch.dtype) -> None:
    assert (norm_of(kind, torch.zeros(64, dtype=dtype)) == 0).all()


def test_one_spike_among_small_values() -> None:
    row = torch.full((64,), 1e-3)
    row[5] = 100.0
    mean_square = (100.0**2 + 63 * 1e-6) / 64
    out = norm_of(RMS(), row)
    assert float(out[5]) == pytest.approx(100 / math.sqrt(mean_square + 1e-6), rel=1e-5)
    assert float(out[0]) == pytest.approx(1e-3 / math.sqrt(mean_square + 1e-6), rel=1e-5)


@pytest.mark.parametrize("kind", [RMS(), RMS(cast="before_gain"), Layer()], ids=str)
def test_statistics_of_16_bit_rows_do_not_overflow(kind: Norm) -> None:
    """300² is beyond fp16; the statistics are fp32."""
    row = torch.tensor([300.0, -300.0] * 32, dtype=torch.float16)
    assert norm_of(kind, row).float().abs().tolist() == pytest.approx([1.0] * 64, rel=1e-2)
