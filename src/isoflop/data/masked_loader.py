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
from isoflop.spec import SpecError

BLOCK = 1024
"""Places of the validation text whose random bits are drawn together."""


class MaskedLoader:
    """The windows of a `Loader`, in its order, with tokens hidden as a `Masked` objective says.

    Which tokens are hidden follows from (seed, step) in training; in validation it follows from the place in the text
    alone, so that every run is judged by the same task, whatever its seed, batch size and length. The first token of the
    validation text is always among them: a text has something to predict, however short it is.

    Raises `SpecError` where `Loader` does, and for a validation text of end ids alone.
    """

    def __init__(self, windows: Loader, objective: Masked) -> None:
        codec = MarkedCodec(windows.corpus.tokenizer, ["mask"])
        self.corpus = replace(windows.corpus, tokenizer=codec)
        """The corpus of the windows, with a mask id behind the last id of its codec."""
        self.windows, self.length, self.batch_size = windows.windows, windows.length, windows.batch_size
        self.dropped = windows.dropped
        self._loader, self._objective, self._mask = windows, objective, codec.mark_id("mask")
        self._first = self._first_token()

    def batch(self, step: int) -> Batch:
        """The batch of step 0, 1, 2, ...; no earlier batch needs to be asked for."""
        batch = self._loader.batch(step)
        return self._hide(batch, random_bits((*batch.tokens_BT.shape, 3), "mask", self._loader.seed, step))

    def validation(self, batch: int | None = None) -> Iterator[Batch]:
        """The whole validation stream in order; the last batch may have fewer rows."""
        place = 0
        for part in self._loader.validation(batch):
            bits_N3 = self._bits(place, part.tokens_BT.numel())
            place += len(bits_N3)
            yield self._hide(part, bits_N3.reshape(*part.tokens_BT.shape, 3))

    def tokens(self, steps: int) -> int:
        """How many tokens the first `steps` batches hold, hidden ones included and filling not."""
        return self._loader.tokens(steps)

    def stream_digest(self, steps: int) -> str:
        """64 hex digits that name which tokens a run of `steps` sees, and which of them are hidden."""
        facts = [self._loader.stream_digest(steps), self._objective.dump()]
        return hashlib.sha256(json.dumps(facts, sort_keys=True).encode()).hexdigest()

    def _first_token(self) -> int:
        """The place in the validation text of its first token that is no end id."""
        text = self.corpus.validation != self.corpus.tokenizer.end_id
        if not text[:-1].any():
            raise SpecError.at("source", f"the validation split of {self.corpus.source!r} holds no token to hide")
        return int(text.argmax())

    def _bits(self, place: int, count: int) -> np.ndarray:
        """uint64[count, 3]: the random bits of the places from `place` on in the validation text."""
        blocks = range(place // BLOCK, (place + count - 1) // BLOCK + 1)
        bits_N3 = np.concatenate([random_bits((BLOCK, 3), "mask", "validation", block) for block in blocks])
        bits_N3 = bits_N3[place % BLOCK :][:count]
        if place <= self._first < place + count:
            bits_N3[self._first - place, 0] = 0  # chosen at any rate above 0
        return bits_N3

    def _hide(self, batch: Batch, raw_BT3: np.ndarray) -> Batch:
        import torch

        end = self.corpus.tokenizer.end_id
        arrays = self._objective.hide(batch.tokens_BT.numpy(), raw_BT3, end, self._mask)
        tokens_BT, targets_BT = map(torch.from_numpy, arrays)
        return replace(batch, tokens_BT=tokens_BT, targets_BT=targets_BT)
