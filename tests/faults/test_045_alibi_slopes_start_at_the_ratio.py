"""The first head of ALiBi has slope 1: the exponent uses h instead of h + 1."""

import pytest
import torch

from isoflop.model.position import ALiBi
from models import SETTING, bias


def slopes_of(heads: int, rule: str) -> list[float]:
    """Read off the bias between neighbours."""
    term = ALiBi(slopes=rule).term(SETTING, heads, 8)
    return (-bias(term, torch.tensor([[1]]), torch.tensor([[0]]))).flatten().tolist()


@pytest.mark.parametrize("rule", ["paper", "geometric"])
@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16])
def test_powers_of_two(heads: int, rule: str) -> None:
    expected = [2.0 ** (-8 * (h + 1) / heads) for h in range(heads)]
    assert slopes_of(heads, rule) == pytest.approx(expected, rel=1e-6)
    assert slopes_of(heads, rule)[-1] == 2.0**-8


def test_eight_heads() -> None:
    assert slopes_of(8, "paper") == [1 / 2, 1 / 4, 1 / 8, 1 / 16, 1 / 32, 1 / 64, 1 / 128, 1 / 256]


def test_other_numbers_of_heads() -> None:
    """Six by the authors' rule: the four of 4 heads, then every other one of 8."""
    assert slopes_of(6, "paper") == [1 / 4, 1 / 16, 1 / 64, 1 / 256, 1 / 2, 1 / 8]
    assert slopes_of(6, "geometric") == pytest.approx([2.0 ** (-8 * h / 6) for h in range(1, 7)], rel=1e-6)
