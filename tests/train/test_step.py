"""One step against torch.optim.AdamW and plain autograd."""

import pytest
import torch
import torch.nn.functional as F

from isoflop.data import Loader
from isoflop.model import Transformer, build, parameter_roles
from isoflop.train import AdamW, optimise
from isoflop.train.precision import PRECISIONS, Masters
from isoflop.train.step import clip_gradients, norms_by_block, seeded, split
from tiny_runs import tiny_architecture, tiny_corpus, tiny_training


@pytest.fixture
def loader() -> Loader:
    return Loader(tiny_corpus(), batch=4, length=16)


def prepared(
    precision: str = "fp32", seed: int = 0, **changes: object
) -> tuple[Transformer, Masters, torch.optim.Optimizer]:
    model = build(tiny_architecture(**changes), seed)
    roles = parameter_roles(model)
    masters = PRECISIONS[precision](model)
    return model, masters, AdamW().build(masters.weights, roles)


def plain_loss(model: Transformer, batch: object) -> torch.Tensor:
    return F.cross_entropy(model(batch.tokens_BT).flatten(0, 1), batch.targets_BT.flatten())  # type: ignore[attr-defined]


def test_five_steps_equal_torch_adamw_with_its_own_clipping(loader: Loader) -> None:
    model, masters, optimizer = prepared(dropout=0.0)
    twin = build(tiny_architecture(dropout=0.0), 0)
    matrices = [weight for weight in twin.parameters() if weight.ndim > 1]
    vectors = [weight for weight in twin.parameters() if weight.ndim == 1]
    groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
    theirs = torch.optim.AdamW(groups, lr=0.01, betas=(0.9, 0.95), eps=1e-8, foreach=False, fused=False)
    for step in range(5):
        batch = loader.batch(step)
        measured = optimise(model, masters, optimizer, batch, rate=0.01, clip=0.5)
        theirs.zero_grad()
        loss = plain_loss(twin, batch)
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(twin.parameters(), 0.5)
        theirs.step()
        assert measured is not None
        torch.testing.assert_close(measured.loss, loss.detach(), rtol=1e-5, atol=0)
        torch.testing.assert_close(measured.norm, norm, rtol=1e-4, atol=0)
    for (name, mine), other in zip(model.named_parameters(), twin.parameters(), strict=True):
        # Adam divides by the root of v: a last-bit difference of a tiny gradient may grow to a part of one update.
        torch.testing.assert_close(mine, other, rtol=0, atol=2e-4, msg=name)


def test_clipping_scales_to_the_limit_and_reports_the_norm_before() -> None:
    gradients = [torch.tensor([3.0, 0.0]), torch.tensor([[4.0]])]
    norm, norms = clip_gradients(gradients, 1.0)
    assert (norm.item(), norms.tolist()) == (5.0, [3.0, 4.0])
    torch.testing.assert_close(torch.cat([g.flatten() for g in gradients]), torch.tensor([0.6, 0.0, 0.8]))


def test_gradients_below_the_limit_and_zero_gradients_stay() -> None:
    gradients = [torch.tensor([0.3, 0.4])]
    clip_gradients(gradients, 1.0)
    assert torch.equal(gradients[0], torch.tensor([0.3, 0.4]))
    zeros = [torch.zeros(2)]
    assert clip_gradients(zeros, 1.0)[0].item() == 0
    assert zeros[0].tolist() == [0, 0]


def test_block_norms_are_those_of_their_parameters(loader: Loader) -> None:
    model, masters, optimizer = prepared(dropout=0.0)
    twin = build(tiny_architecture(dropout=0.0), 0)
    plain_loss(twin, loader.batch(0)).backward()
    measured = optimise(model, masters, optimizer, loader.batch(0), rate=0.01)
    assert measured is not None
    found = norms_by_block(measured.norms.tolist(), measured.names)
    expected = [
        torch.cat([weight.grad.flatten() for weight in block.parameters()]).norm().item() for block in twin.blocks
    ]
    assert found == pytest.approx(expected, rel=1e-4)
    assert found[0] != pytest.approx(found[1], rel=1e-3)


def test_randomness_follows_from_seed_and_step_and_leaves_the_caller_alone() -> None:
    torch.manual_seed(5)
    before = torch.get_rng_state()
    draws = {}
    for key in [(0, 0), (0, 1), (1, 0), (0, 0)]:
        with seeded(*key, torch.device("cpu")):
            drawn = torch.rand(3)
        assert torch.equal(draws.setdefault(key, drawn), drawn)
    assert len({tuple(drawn.tolist()) for drawn in draws.values()}) == 3
    assert torch.equal(torch.get_rng_state(), before)


def test_split_gives_every_row_once_in_order() -> None:
    batch = Loader(tiny_corpus(), batch=6, length=8, packing="documents").batch(0)
    parts = list(split(batch, 3))
    assert [len(part.tokens_BT) for part in parts] == [2, 2, 2]
    for name in ("tokens_BT", "targets_BT", "positions_BT", "documents_BT"):
        assert torch.equal(torch.cat([getattr(part, name) for part in parts]), getattr(batch, name))


def test_bf16_follows_fp32(loader: Loader) -> None:
    losses = {}
    for precision in ("fp32", "bf16"):
        model, masters, optimizer = prepared(precision, dropout=0.0)
        training = tiny_training(steps=30)
        for step in range(30):
            measured = optimise(model, masters, optimizer, loader.batch(step), rate=training.rate_at(step), clip=1.0)
            assert measured is not None
            losses.setdefault(precision, []).append(measured.loss.item())
        assert {weight.dtype for weight in masters.weights.values()} == {torch.float32}
    assert losses["fp32"][-1] < losses["fp32"][0] - 1
    assert losses["bf16"] == pytest.approx(losses["fp32"], rel=0.02)
