"""What generation refuses, and the exact edge of what it takes."""

import pytest

from isoflop.generate import generate
from isoflop.model import Architecture, Transformer, build
from isoflop.spec import SpecError

LIMIT, VOCAB = 8, 31


@pytest.fixture(scope="module")
def model() -> Transformer:
    learned = {"kind": "learned", "length": LIMIT}
    return build(Architecture(vocab=VOCAB, width=16, depth=1, position=learned, attention={"heads": 2}))


@pytest.mark.parametrize(("prompt", "new"), [(7, 1), (8, 0), (1, 7), (4, 4), (7, 0)])
def test_up_to_the_last_position(model: Transformer, prompt: int, new: int) -> None:
    assert [len(row) for row in generate(model, [[1] * prompt], new)] == [new]


@pytest.mark.parametrize(("prompt", "new"), [(8, 1), (9, 0), (1, 8), (7, 2)])
def test_beyond_the_last_position(model: Transformer, prompt: int, new: int) -> None:
    message = rf"prompt and new tokens together, {prompt + new} is beyond the {LIMIT} positions"
    with pytest.raises(SpecError, match=message):
        generate(model, [[1] * prompt], new)


def test_the_longest_row_counts(model: Transformer) -> None:
    assert [len(row) for row in generate(model, [[1], [1] * 6], 2)] == [2, 2]
    with pytest.raises(SpecError, match="9 is beyond the 8"):
        generate(model, [[1], [1] * 7], 2)


def test_positions_without_end_have_no_limit() -> None:
    model = build(Architecture(vocab=VOCAB, width=16, depth=1, attention={"heads": 2}))
    assert len(generate(model, [[1] * 40], 60)[0]) == 60


def test_no_new_tokens(model: Transformer) -> None:
    assert generate(model, [[1, 2], [3]], 0) == [[], []]


@pytest.mark.parametrize("prompts", [[], [[]], [[1, 2], []]])
def test_an_empty_prompt(model: Transformer, prompts: list[list[int]]) -> None:
    with pytest.raises(ValueError, match="every prompt must have at least one token"):
        generate(model, prompts, 3)


@pytest.mark.parametrize("token", [VOCAB, VOCAB + 100, -1])
def test_an_id_outside_the_vocabulary(model: Transformer, token: int) -> None:
    with pytest.raises(ValueError, match=rf"token id {token} is outside the vocabulary of {VOCAB}"):
        generate(model, [[1, 2], [3, token]], 3)


def test_a_negative_number_of_new_tokens(model: Transformer) -> None:
    with pytest.raises(ValueError, match="new_tokens must be at least 0, came -1"):
        generate(model, [[1]], -1)
