"""Windows with hidden tokens by step number, for an encoder."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from isoflop.data.codecs import MarkedCodec
from isoflop.data.loader import Batch, Loader
from isoflop.data.objective import Masked, random_bits


class MaskedLoader:
    """The windows of a `Loader`, in its order, with tokens hidden as a `Masked` objective says.

    Which tokens are hidden follows from (seed, step) in training; in validation it follows from the number of the window
    alone, so that every run is judged by the same task, whatever its seed and batch size.

    Raises `SpecError` where `Loader` does.
    """

    def __init__(self, windows: Loader, objective: Masked) -> None:
        codec = MarkedCodec(windows.corpus.tokenizer, ["mask"])
        self.corpus = replace(windows.corpus, tokenizer=codec)
        """The corpus of the windows, with a mask id behind the last id of its codec."""
        self.windows, self.length, self.batch_size = windows.windows, windows.length, windows.batch_size
        self._loader, self._objective, self._mask = windows, objective, codec.mark_id("mask")

    def batch(self, step: int) -> Batch:
        """The batch of step 0, 1, 2, ...; no earlier batch needs to be asked for."""
        batch = self._loader.batch(step)
        return self._hide(batch, random_bits((*batch.tokens_BT.shape, 3), "mask", self._loader.seed, step))

    def validation(self, batch: int | None = None) -> Iterator[Batch]:
        """The whole validation stream in order; the last batch may have fewer rows."""
        first = 0
        for part in self._loader.validation(batch):
            rows, length = part.tokens_BT.shape
            bits = [random_bits((length, 3), "mask", "validation", first + row) for row in range(rows)]
            first += rows
            yield self._hide(part, np.stack(bits))

    def stream_digest(self, steps: int) -> str:
        """64 hex digits that name which tokens a run of `steps` sees, and which of them are hidden."""
        facts = [self._loader.stream_digest(steps), self._objective.dump()]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _hide(self, batch: Batch, raw_BT3: np.ndarray) -> Batch:
        import torch

        end = self.corpus.tokenizer.end_id
        arrays = self._objective.hide(batch.tokens_BT.numpy(), raw_BT3, end, self._mask)
        tokens_BT, targets_BT = map(torch.from_numpy, arrays)
        return replace(batch, tokens_BT=tokens_BT, targets_BT=targets_BT)
