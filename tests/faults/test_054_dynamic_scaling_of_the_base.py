"""Dynamic NTK scaling is constant, has a scale where none is declared, or scales positions of the linear kind by the base."""

import pytest

from isoflop.model.position import RoPE
from isoflop.model.slots import Scaling
from isoflop.spec import SpecError

WIDTH, BASE, ORIGINAL = 64, 1e4, 2048


def base_of(scaling: Scaling) -> float:
    """The base whose powers the frequencies are; the frequency of pair 1 is base^(-2/64)."""
    frequencies = scaling.frequencies(WIDTH, BASE)
    base = frequencies[1] ** -(WIDTH / 2)
    assert frequencies == pytest.approx([base ** (-2 * pair / WIDTH) for pair in range(WIDTH // 2)], rel=1e-12)
    return base


def dynamic(longest: int) -> Scaling:
    return RoPE(scaling={"kind": "dynamic_ntk", "factor": 2.0, "original_length": ORIGINAL, "longest": longest}).scaling


@pytest.mark.parametrize(("longest", "base"), [(2049, 10010.1), (4096, 31082.2)])
def test_the_base_grows_with_the_declared_length(longest: int, base: float) -> None:
    assert base_of(dynamic(longest)) == pytest.approx(base, abs=0.1)


@pytest.mark.parametrize("longest", [100, 2048])
def test_up_to_the_original_length_nothing_would_change_and_is_refused(longest: int) -> None:
    """Where the length of a text decides, base 1e4 holds up to 2048; here that is what no scaling means."""
    with pytest.raises(SpecError, match=r"scaling\.longest: must be above original_length 2048"):
        dynamic(longest)
    assert base_of(RoPE(base=BASE).scaling) == pytest.approx(BASE, rel=1e-12)


def test_linear_divides_positions_and_leaves_the_base() -> None:
    plain, linear = (RoPE(scaling=kind).scaling.frequencies(WIDTH, BASE) for kind in ("none", {"kind": "linear"}))
    assert linear == pytest.approx([frequency / 4 for frequency in plain], rel=1e-12)
