"""Decoding past the maximum length crashes or reads outside a table; off by one at the limit."""

import pytest
import torch

from isoflop.generate.cache import ContiguousCache
from isoflop.model import Architecture, Transformer, build
from isoflop.spec import SpecError

LIMIT = 8


@pytest.fixture(scope="module")
def model() -> Transformer:
    position = {"kind": "learned", "length": LIMIT}
    return build(Architecture(vocab=11, width=16, depth=1, position=position, attention={"heads": 2}))


@pytest.mark.parametrize(("prompt", "new"), [(7, 1), (8, 0)])
def test_the_limit_is_allowed(model: Transformer, prompt: int, new: int) -> None:
    assert len(model.generate([[1] * prompt], new)[0]) == new


@pytest.mark.parametrize(("prompt", "new"), [(8, 1), (9, 0), (9, 1)])
def test_one_more_is_an_error_before_any_work(model: Transformer, prompt: int, new: int) -> None:
    with pytest.raises(SpecError, match=f"{prompt + new} is beyond the 8 positions of this architecture"):
        model.generate([[1] * prompt], new, on_token=lambda row, token: pytest.fail("work was done"))


def test_empty_and_zero(model: Transformer) -> None:
    assert model.generate([[1, 2]], 0) == [[]]
    with pytest.raises(ValueError, match="at least one token"):
        model.generate([[]], 1)


def test_a_forward_pass_beyond_the_table(model: Transformer) -> None:
    assert model(torch.ones(1, LIMIT, dtype=torch.long)).shape == (1, LIMIT, 11)
    with pytest.raises(ValueError, match=r"position 8 is beyond the 8 learned positions \(0 to 7\)"):
        model(torch.ones(1, LIMIT + 1, dtype=torch.long))
    with pytest.raises(ValueError, match="position 100 is beyond"):
        model(torch.ones(1, 1, dtype=torch.long), torch.tensor([[100]]))


def test_the_smallest_table_of_the_blocks_counts() -> None:
    two = ["rope", {"kind": "learned", "length": 5}]
    assert Architecture(width=16, depth=1, position=two, attention={"heads": 2}).limit == 5
    assert Architecture(width=16, depth=1, attention={"heads": 2}).limit is None


def test_a_cache_is_not_written_beyond_its_end() -> None:
    cache, positions = ContiguousCache(1, 4, torch.device("cpu")), torch.arange(5)[None]
    with pytest.raises(ValueError, match="room for 4 tokens a row, 5 are needed"):
        cache.place(positions, positions)
    assert cache.length == 0
