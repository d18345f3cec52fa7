"""Finished rows go on producing tokens, or the loop ends only when all rows end in the same step."""

import pytest
import torch
from torch import Tensor, nn

from isoflop.generate import generate
from isoflop.model import Architecture, Transformer, build

END, OTHER_END, VOCAB = 0, 9, 12
SCRIPT = {1: [3, END, 5, 6, 7, 8], 2: [3, 4, 5, 6, OTHER_END, 8]}  # by the first token of the prompt


class Scripted(nn.Module):
    """In place of the blocks: reads the script of its row, one token for every pass."""

    def __init__(self) -> None:
        super().__init__()
        self.passes = 0
        self.rows: list[int] = []

    def forward(self, z_BTD: Tensor, blocks: nn.ModuleList, attend: object) -> Tensor:
        if self.passes == 0:
            self.rows = [1, 2]
        wanted = [SCRIPT[row][self.passes] for row in self.rows]
        self.passes += 1
        return torch.nn.functional.one_hot(torch.tensor(wanted), VOCAB).float()[:, None].expand(-1, z_BTD.shape[1], -1)


@pytest.fixture
def model() -> Transformer:
    declared = Architecture(vocab=VOCAB, width=VOCAB, depth=1, position="none", join="post", attention={"heads": 1})
    model = build(declared)
    model.embed.weight.data.copy_(torch.eye(VOCAB))
    model.stack = Scripted()
    return model


def test_rows_end_at_their_own_end(model: Transformer) -> None:
    heard: list[tuple[int, int]] = []
    rows = generate(model, [[1, 5], [2, 5]], 6, stop=(END, OTHER_END), on_token=lambda *told: heard.append(told))
    assert rows == [[3], [3, 4, 5, 6]]
    assert model.stack.passes == 5  # the last one to look at is the second row's end
    assert [token for row, token in heard if row == 0] == [3]


def test_an_end_inside_the_prompt_ends_nothing(model: Transformer) -> None:
    assert generate(model, [[1, END, OTHER_END], [2, END, 5]], 6, stop=(END, OTHER_END)) == [[3], [3, 4, 5, 6]]


def test_without_ends_every_row_goes_on(model: Transformer) -> None:
    assert generate(model, [[1, 5], [2, 5]], 6) == [SCRIPT[1], SCRIPT[2]]
    assert model.stack.passes == 6
