"""Fault 035: a mean of batch means, or of perplexities, depends on batch size, last batch and padding."""

import dataclasses
import math

import pytest
import torch

from isoflop.data import Batch, Loader
from isoflop.model import Transformer
from isoflop.train import evaluate
from tiny_runs import tiny_architecture, tiny_corpus

LOSSES = torch.tensor([4.0, 1.0, 1.0, 1.0])


class ByToken(Transformer):
    """The loss of target 0 after token i is LOSSES[i]: ln(1 + e^z) with the logits (0, z)."""

    def encode(self, tokens_BT: torch.Tensor, *where: object) -> torch.Tensor:
        return LOSSES.expm1().log()[tokens_BT][..., None]


class TwoWindows(Loader):
    """One window with a single target of loss 4, one with three targets of loss 1."""

    def validation(self, batch: int | None = None):
        tokens = torch.tensor([[0, 0, 0], [1, 2, 3]])
        targets = torch.tensor([[0, -100, -100], [0, 0, 0]])
        for start in range(0, 2, batch or 1):
            rows = slice(start, start + (batch or 1))
            yield Batch(tokens[rows], targets[rows])


@pytest.mark.parametrize("batch", [1, 2, 4])
def test_exp_of_seven_quarters_at_every_batch_size(batch: int) -> None:
    model = ByToken(tiny_architecture(vocab=2, width=1, attention={"heads": 1}, position="none"))
    with torch.no_grad():
        model.head_weight.copy_(torch.tensor([[0.0], [1.0]]))
    codec = type("OneByte", (), {"vocab": 2, "end_id": 0})()
    corpus = dataclasses.replace(tiny_corpus(), tokenizer=codec)
    codec.token_bytes = tiny_corpus().token_bytes[1:3]
    found = evaluate(model, TwoWindows(corpus, length=3), batch)
    assert math.exp(found.loss) == pytest.approx(5.7546, abs=1e-4)
    assert found.targets == 4
    assert found.bits_per_byte == pytest.approx(1.75 / math.log(2), rel=1e-6)
