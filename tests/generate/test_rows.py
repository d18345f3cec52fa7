"""What a row produces depends on its prompt, its number and the seed; and it ends where it ends."""

import pytest
import torch

import isoflop
from isoflop.model import Transformer, build

VOCAB = 37
PROMPTS = [[1, 2, 3], [9], [4, 5, 6, 7, 8], [30, 20]]
SAMPLED = {"temperature": 1.0, "top_k": 12, "top_p": 0.95}


@pytest.fixture(scope="module")
def model() -> Transformer:
    sizes = {"width": 24, "depth": 2, "vocab": VOCAB, "attention.heads": 2}
    return build(isoflop.load("modern", **sizes, init={"kind": "normal", "std": 0.4}))


def test_the_same_seed_gives_the_same_text(model: Transformer) -> None:
    torch.manual_seed(1)
    first = model.generate(PROMPTS, 20, seed=5, **SAMPLED)
    torch.manual_seed(2)  # the global generator plays no part
    state = torch.get_rng_state()
    assert model.generate(PROMPTS, 20, seed=5, **SAMPLED) == first
    assert torch.equal(torch.get_rng_state(), state)


def test_another_seed_gives_another_text(model: Transformer) -> None:
    texts = {str(model.generate(PROMPTS, 20, seed=seed, **SAMPLED)) for seed in range(5)}
    assert len(texts) == 5


def test_rows_of_one_prompt_differ(model: Transformer) -> None:
    rows = model.generate([[1, 2, 3]] * 4, 20, **SAMPLED)
    assert len({tuple(row) for row in rows}) == 4


@pytest.mark.parametrize("row", range(len(PROMPTS)))
def test_neighbours_do_not_matter(model: Transformer, row: int) -> None:
    together = model.generate(PROMPTS, 20, seed=5, **SAMPLED)[row]
    others = [[7] * (3 * i + 1) for i in range(row)]
    assert model.generate([*others, PROMPTS[row]], 20, seed=5, **SAMPLED)[row] == together
    assert model.generate([*others, PROMPTS[row], [1] * 11], 20, seed=5, **SAMPLED)[row] == together


def test_more_tokens_go_on_where_fewer_ended(model: Transformer) -> None:
    long = model.generate(PROMPTS, 20, seed=5, **SAMPLED)
    assert model.generate(PROMPTS, 7, seed=5, **SAMPLED) == [row[:7] for row in long]


@pytest.mark.parametrize("options", [{}, {"seed": 5, **SAMPLED}], ids=["greedy", "sampled"])
def test_a_row_ends_at_its_first_stop_id(model: Transformer, options: dict) -> None:
    free = model.generate(PROMPTS, 20, **options)
    stops = {free[0][4], free[2][9]}
    expected = [row[: next((i for i, token in enumerate(row) if token in stops), 20)] for row in free]
    assert len({len(row) for row in expected}) > 1
    assert model.generate(PROMPTS, 20, stop=stops, **options) == expected


def test_a_stop_id_that_is_never_produced(model: Transformer) -> None:
    free = model.generate(PROMPTS, 20)
    never = next(token for token in range(VOCAB) if all(token not in row for row in free))
    assert model.generate(PROMPTS, 20, stop=[never]) == free
