"""One optimisation step, as a function of the weights, the batch, the seed and the step's number."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor

from isoflop.data import Batch
from isoflop.model import Past, Source, Transformer
from isoflop.model.head import Output
from isoflop.model.linear import BLOCK
from isoflop.seeds import seed_for
from isoflop.train.loss import IGNORED, linear_cross_entropy
from isoflop.train.optim import set_rate
from isoflop.train.precision import Masters

_norm = torch._foreach_norm  # pyright: ignore[reportPrivateImportUsage]
_multiply = torch._foreach_mul_  # pyright: ignore[reportPrivateImportUsage]


class Step(NamedTuple):
    """What one step measured, still on the device: reading it would make the host wait."""

    loss: Tensor
    """Mean over the step's targets, in nats."""
    norm: Tensor
    """Global gradient norm, before clipping."""
    norms: Tensor
    """The norm of each parameter's gradient, in the order of `names`."""
    names: tuple[str, ...]
    targets: int


def batch_loss(model: Transformer, batch: Batch) -> tuple[Tensor, Tensor]:
    """Summed negative log-likelihood (nats) of a batch's targets, and their number."""
    return output_loss(batch_output(model, batch), batch.targets_BT)


def batch_output(model: Transformer, batch: Batch) -> Output:
    """What the logits of a batch, (B, T, V), are made of."""
    return segment_output(model, batch, Past())[0]


def segment_output(model: Transformer, batch: Batch, past: Past) -> tuple[Output, Past]:
    """What the logits of a batch are made of, where rows may go on from the batch before; and what it leaves to the next."""
    source = None if batch.source_BS is None else Source(batch.source_BS, documents_BS=batch.source_documents_BS)
    past = past.continued(batch.continues_B)
    placed = batch.positions_BT, batch.documents_BT
    features_BTD, past = model.segment(batch.tokens_BT, past, *placed, consecutive=True, source=source)
    return model.output(features_BTD), past


def output_loss(output: Output, targets: Tensor) -> tuple[Tensor, Tensor]:
    """Summed negative log-likelihood (nats) of the targets, and their number."""
    return linear_cross_entropy(output.hidden, output.weight_VE, targets, output.bias_V, output.softcap)


def optimise(
    model: Transformer,
    masters: Masters,
    optimizer: torch.optim.Optimizer,
    batch: Batch,
    *,
    rate: float,
    clip: float | None = None,
    accumulate: int = 1,
    randomness: tuple[int, int] = (0, 0),
    pasts: list[Past] | None = None,
) -> Step | None:
    """Update the weights once, on the mean loss over all targets of the batch.

    Each micro-batch adds (sum of its losses) / (targets of the whole batch), so the gradient does not depend on how the
    batch is cut. The global torch generators are those of `randomness` = (seed, step) inside, and untouched outside.
    `pasts` holds what the step before left to each micro-batch, and afterwards what this one leaves.

    Returns:
        What was measured; None for a batch without any target, which has no loss and changes nothing.
    """
    targets = int((batch.targets_BT != IGNORED).sum())
    pasts = [] if pasts is None else pasts
    before = list(pasts) or [Past()] * accumulate
    pasts[:] = [Past()] * accumulate
    if targets == 0:
        return None
    device = model.head_weight.device
    masters.clear()
    losses = []
    with seeded(*randomness, device):
        for number, part in enumerate(split(batch, accumulate)):
            output, pasts[number] = segment_output(model, part.to(device), before[number])
            total, _ = output_loss(output, part.targets_BT.to(device))
            loss = total / targets
            loss.backward()
            masters.collect()
            losses.append(loss.detach())
    gradients = masters.gradients()
    norm, norms = clip_gradients(list(gradients.values()), clip)
    set_rate(optimizer, rate)
    optimizer.step()
    masters.publish()
    return Step(sum(losses[1:], losses[0]), norm, norms, tuple(gradients), targets)


def clip_gradients(gradients: list[Tensor], clip: float | None) -> tuple[Tensor, Tensor]:
    """Scale gradients in place so that their global norm is at most `clip`; (norm before, norm of each).

    Non-finite gradients stay non-finite: the caller sees it in the norm and stops.
    """
    norms = torch.stack(_norm(gradients))
    norm = torch.linalg.vector_norm(norms)
    if clip is not None:
        _multiply(gradients, (clip / norm).clamp(max=1.0))
    return norm, norms


def norms_by_block(norms: Sequence[float], names: Sequence[str]) -> list[float]:
    """The gradient norm of each block, from the norms of its parameters; those outside the blocks are left out.

    In the order of a forward pass: the blocks of an encoder come before those of its decoder.
    """
    squares: dict[tuple[bool, int], float] = {}
    for name, norm in zip(names, norms, strict=True):
        if found := BLOCK.match(name):
            block = found["encoder"] is None, int(found["number"])
            squares[block] = squares.get(block, 0.0) + norm * norm
    return [squares[block] ** 0.5 for block in sorted(squares)]


def split(batch: Batch, parts: int) -> Iterator[Batch]:
    """The batch in `parts` micro-batches of equally many rows."""
    if parts == 1:
        yield batch
        return
    rows = len(batch.tokens_BT) // parts
    for start in range(0, rows * parts, rows):
        yield take(batch, slice(start, start + rows))


def take(batch: Batch, rows: slice) -> Batch:
    """Some rows of a batch."""
    return replace(batch, **{name: tensor[rows] for name, tensor in vars(batch).items() if tensor is not None})


@contextmanager
def seeded(seed: int, step: int, device: torch.device) -> Iterator[None]:
    """Global torch generators that depend on (seed, step) alone; they are put back afterwards.

    A step's randomness needs no state that way: a run cut anywhere goes on with the dropout masks it would have had.
    """
    number = seed_for("step", seed, step)
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        torch.default_generator.manual_seed(number)
        if devices:
            with torch.cuda.device(device):
                torch.cuda.manual_seed(number)
        yield
