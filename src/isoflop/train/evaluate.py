"""Validation loss per token and per byte, the same whatever the batch size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from itertools import pairwise
from typing import NamedTuple

import torch
from torch import Tensor

from isoflop.data import Batch, Batches
from isoflop.model import Past, Transformer
from isoflop.model.head import Output
from isoflop.train.loss import IGNORED, chunk_rows
from isoflop.train.step import batch_output, output_loss, segment_output, take


class Evaluation(NamedTuple):
    """What an evaluation found."""

    loss: float
    """nats per target."""
    bits_per_byte: float
    """Bits spent on all targets, over the bytes of text that they stand for. Formula: sum of nats / (ln 2 · bytes)."""
    targets: int
    bytes: int


class Sums(NamedTuple):
    """What an evaluation has added up."""

    nats: float
    targets: int
    bytes: int

    def evaluation(self) -> Evaluation:
        """What this comes to; NaN for a mean over nothing."""
        loss = self.nats / self.targets if self.targets else math.nan
        bits = self.nats / math.log(2)
        return Evaluation(loss, bits / self.bytes if self.bytes else math.nan, self.targets, self.bytes)


class Answers(NamedTuple):
    """How often the most likely token is the target.

    A row whose every target is the most likely one, given those before it, is exactly what greedy decoding writes.
    """

    token_accuracy: float
    exact_match: float
    """Share of rows without a wrong token."""


def evaluate(model: Transformer, loader: Batches, batch: int, windows: int | None = None) -> Evaluation:
    """Loss over the validation split, or over its first `windows` windows.

    Sums and counts are added up before anything is divided, so a short last batch weighs what it holds. Runs in eval
    mode (no dropout); the mode before it is put back.

    Raises:
        ValueError: there is no target to evaluate.
    """
    places = None if windows is None else windows * loader.length
    [sums] = evaluate_parts(model, loader, batch, places, (0, loader.length))
    return sums.evaluation()


@torch.no_grad()
def evaluate_parts(
    model: Transformer, loader: Batches, batch: int, places: int | None, edges: Sequence[int]
) -> list[Sums]:
    """The sums over the targets whose place in their row lies between two edges, for each two that follow.

    Args:
        batch: rows at a time; one for a model with a memory, which goes through the split from window to window.
        places: how much of the validation split is evaluated, in tokens from its start; None for all of it. Windows of
            any length then have the same targets.
        edges: rising, from 0 to the length of a row.

    Raises:
        ValueError: there is no target to evaluate.
    """
    token_bytes = torch.from_numpy(loader.corpus.token_bytes)
    parts = [slice(*pair) for pair in pairwise(edges)]
    sums: list[Tensor] = []
    counts = torch.zeros(len(parts), 2, dtype=torch.long)
    past, rows = Past(), 1 if model.architecture.remembered else batch
    with _evaluating(model) as device:
        for held in first_places(loader.validation(rows), places):
            losses, past = _part_losses(model, held.to(device), parts, past)
            sums.append(losses)
            for number, part in enumerate(parts):
                counted = held.targets_BT[:, part][held.targets_BT[:, part] != IGNORED]
                counts[number] += torch.tensor([len(counted), int(token_bytes[counted].sum())])
    if not counts[:, 0].any():
        raise ValueError("the validation text holds no target to evaluate; evaluate on more windows, or on more text")
    nats = [math.fsum(column) for column in torch.stack(sums).t().tolist()]
    return [Sums(total, *count) for total, count in zip(nats, counts.tolist(), strict=True)]


@torch.no_grad()
def evaluate_answers(model: Transformer, loader: Batches, batch: int, places: int | None) -> Answers:
    """How often the model's most likely token is the target, by token and by row; rows without a target do not count."""
    right, targets, whole, rows = 0, 0, 0, 0
    with _evaluating(model) as device:
        for held in first_places(loader.validation(batch), places):
            counted_BT, output = held.targets_BT != IGNORED, batch_output(model, held.to(device))
            likeliest_N = _likeliest(replace(output, hidden=output.hidden[counted_BT.to(device)])).cpu()
            hit_BT = ~counted_BT
            hit_BT[counted_BT] = likeliest_N == held.targets_BT[counted_BT]
            answered_B = counted_BT.any(1)
            right += int((hit_BT & counted_BT).sum())
            whole += int((hit_BT.all(1) & answered_B).sum())
            targets, rows = targets + int(counted_BT.sum()), rows + int(answered_B.sum())
    return Answers(right / targets, whole / rows)


def first_places(batches: Iterable[Batch], places: int | None) -> Iterator[Batch]:
    """Batches up to a number of tokens, row after row, whatever the size of the batches; all of them without one."""
    left = math.inf if places is None else places
    for batch in batches:
        rows, length = batch.tokens_BT.shape
        yield batch if rows * length <= left else _cut(batch, int(left))
        left -= rows * length
        if left <= 0:
            return


def _cut(batch: Batch, places: int) -> Batch:
    """The rows of the first `places` tokens; a row that reaches beyond them has no target there."""
    kept = take(batch, slice(0, -(-places // batch.tokens_BT.shape[1])))
    targets_BT = kept.targets_BT.clone()
    targets_BT.view(-1)[places:] = IGNORED
    return replace(kept, targets_BT=targets_BT)


@contextmanager
def _evaluating(model: Transformer) -> Iterator[torch.device]:
    """Eval mode, on the model's device; the mode before it is put back."""
    training = model.training
    model.eval()
    try:
        yield model.head_weight.device
    finally:
        model.train(training)


def _part_losses(model: Transformer, batch: Batch, parts: Sequence[slice], past: Past) -> tuple[Tensor, Past]:
    """Summed loss of the targets in each part of the rows, whose logits are never held together; and what is left to the next."""
    output, past = segment_output(model, batch, past)
    cut = (replace(output, hidden=output.hidden[:, part]) for part in parts)
    losses = [output_loss(one, batch.targets_BT[:, part])[0] for one, part in zip(cut, parts, strict=True)]
    return torch.stack(losses), past


def _likeliest(output: Output) -> Tensor:
    """int64[N]: the id with the highest logit of each hidden vector (N, D), a chunk of logits at a time."""
    chunks = output.hidden.split(chunk_rows(len(output.weight_VE), output.hidden.device.type))
    return torch.cat([replace(output, hidden=chunk).logits().argmax(-1) for chunk in chunks])
