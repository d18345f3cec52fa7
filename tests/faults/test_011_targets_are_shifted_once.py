"""Fault 011: labels are shifted by the caller and by the loss, or by neither; rows leak targets into each other."""

import torch

from isoflop.data import Batch
from isoflop.model import Transformer
from isoflop.train import batch_loss
from tiny_runs import tiny_architecture


class NextByRote(Transformer):
    """All mass on token + 1."""

    def encode(self, tokens_BT: torch.Tensor, *where: object) -> torch.Tensor:
        return 1e3 * torch.nn.functional.one_hot((tokens_BT + 1) % 32, 32).float()


def test_loss_is_zero_for_the_next_token_of_each_row_and_large_for_any_other() -> None:
    model = NextByRote(tiny_architecture(vocab=32, width=32))
    with torch.no_grad():
        model.head_weight.copy_(torch.eye(32))
    rows = torch.stack([torch.arange(0, 8), torch.arange(10, 18)])
    total, count = batch_loss(model, Batch(rows[:, :-1], rows[:, 1:]))
    assert (total.item(), count.item()) == (0.0, 2 * 7)
    for shift in (0, 2):
        wrong, count = batch_loss(model, Batch(rows[:, :6], rows[:, shift : shift + 6]))
        assert wrong.item() == 1e3 * count.item()
