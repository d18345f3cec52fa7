"""Validation loss per token and per byte, the same whatever the batch size."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch

from isoflop.data import Batch, Batches
from isoflop.model import Transformer
from isoflop.train.loss import IGNORED
from isoflop.train.step import batch_loss, take


class Evaluation(NamedTuple):
    """What an evaluation found."""

    loss: float
    """nats per target."""
    bits_per_byte: float
    """Bits spent on all targets, over the bytes of text that they stand for. Formula: sum of nats / (ln 2 · bytes)."""
    targets: int
    bytes: int


@torch.no_grad()
def evaluate(model: Transformer, loader: Batches, batch: int, windows: int | None = None) -> Evaluation:
    """Loss over the validation split, or over its first `windows` windows.

    Sums and counts are added up before anything is divided, so a short last batch weighs what it holds. Runs in eval
    mode (no dropout); the mode before it is put back.
    """
    device = model.head_weight.device
    token_bytes = torch.from_numpy(loader.corpus.token_bytes)
    training = model.training
    model.eval()
    sums, targets, byte_count = [], 0, 0
    try:
        for part in _first(loader.validation(batch), windows):
            total, _ = batch_loss(model, part.to(device))
            sums.append(total)
            counted = part.targets_BT[part.targets_BT != IGNORED]
            targets += len(counted)
            byte_count += int(token_bytes[counted].sum())
    finally:
        model.train(training)
    nats = math.fsum(torch.stack(sums).tolist())
    bits = nats / math.log(2)
    return Evaluation(nats / targets, bits / byte_count if byte_count else math.nan, targets, byte_count)


def _first(batches: Iterator[Batch], windows: int | None) -> Iterator[Batch]:
    """Batches up to a number of windows, whatever the batch size; all of them without one."""
    left = math.inf if windows is None else windows
    for batch in batches:
        rows = len(batch.tokens_BT)
        yield batch if rows <= left else take(batch, slice(0, int(left)))
        left -= rows
        if left <= 0:
            return
