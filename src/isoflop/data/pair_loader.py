"""Batches of pairs by step number, for a decoder and for an encoder-decoder.

Shapes: B rows of a batch, T tokens of the decoder, S tokens of the encoder; T = S = `length`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np

from isoflop.data.loader import Batch, EpochOrder, Tokenized, check_sizes, chunks, digest_of
from isoflop.data.objective import NO_TARGET
from isoflop.data.pairs import Pairs, PairSplit, tokenize_pairs
from isoflop.data.tokens import Tokenizer
from isoflop.spec import SpecError


@dataclass(frozen=True, eq=False)
class PairCorpus(Tokenized):
    """Pairs as token ids. The codec is a `MarkedCodec`: the id behind its last text id separates source and target."""

    train: PairSplit
    validation: PairSplit
    sets: Mapping[str, PairSplit]
    """Further validation sets by name, such as `size 32`."""

    @property
    def separator(self) -> int:
        """The id between a source and its target in a decoder's row: the last of the vocabulary."""
        return self.vocab - 1


def load_pairs(source: Pairs, tokenizer: Tokenizer, limit: int | None) -> PairCorpus:
    """Read, divide and tokenize a source of pairs. Raises `SpecError` with a path below `source` when it cannot be used."""
    texts = source.read(limit)
    codec, (train, validation, *sets) = tokenize_pairs(source, tokenizer, texts)
    named = dict(zip(texts.sets, sets, strict=True))
    arrays = [array for split in (train, validation, *sets) for array in split.arrays]
    digest = digest_of(["pairs", codec.vocab, codec.end_id, list(named)], *arrays)
    return PairCorpus(source.name, codec, digest, train, validation, named)


class Layout(NamedTuple):
    """How a pair becomes a row."""

    name: str
    need: Callable[[PairSplit], np.ndarray]
    """int64[pairs]: the smallest `length` that each pair fits into."""
    fill: Callable[[PairCorpus, PairSplit, np.ndarray, int], dict[str, np.ndarray]]


def _one_row(corpus: PairCorpus, split: PairSplit, pairs_B: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """`source <separator> target`, whose targets are the target and the end id; the source is never a target."""
    end = corpus.tokenizer.end_id
    tokens_BT, targets_BT = _blank(len(pairs_B), length, end), _blank(len(pairs_B), length, NO_TARGET)
    for row, pair in enumerate(pairs_B):
        source, target = split[pair]
        first, last = len(source), len(source) + len(target)
        tokens_BT[row, :first] = source
        tokens_BT[row, first] = corpus.separator
        tokens_BT[row, first + 1 : last + 1] = target
        targets_BT[row, first:last] = target
        targets_BT[row, last] = end
    return {"tokens_BT": tokens_BT, "targets_BT": targets_BT}


def _two_rows(corpus: PairCorpus, split: PairSplit, pairs_B: np.ndarray, length: int) -> dict[str, np.ndarray]:
    """The source for the encoder; `<end> target` for the decoder, whose targets are the target and the end id."""
    end = corpus.tokenizer.end_id
    tokens_BT, targets_BT = _blank(len(pairs_B), length, end), _blank(len(pairs_B), length, NO_TARGET)
    source_BS, documents_BS = _blank(len(pairs_B), length, end), _blank(len(pairs_B), length, -1)
    for row, pair in enumerate(pairs_B):
        source, target = split[pair]
        source_BS[row, : len(source)] = source
        documents_BS[row, : len(source)] = 0
        tokens_BT[row, 1 : len(target) + 1] = target
        targets_BT[row, : len(target)] = target
        targets_BT[row, len(target)] = end
    return {
        "tokens_BT": tokens_BT,
        "targets_BT": targets_BT,
        "source_BS": source_BS,
        "source_documents_BS": documents_BS,
    }


def _blank(rows: int, length: int, value: int) -> np.ndarray:
    return np.full((rows, length), value, dtype=np.int64)


ONE_ROW = Layout("one row", lambda split: split.source_sizes + split.target_sizes + 1, _one_row)
"""For a decoder. A pair needs the length of its source, its target and the separator."""
TWO_ROWS = Layout("two rows", lambda split: np.maximum(split.source_sizes, split.target_sizes + 1), _two_rows)
"""For an encoder-decoder. A pair needs the length of its source, or of its target and the begin of sequence."""


class PairLoader:
    """Batches of pairs by step number; what `Loader` says of windows holds here for pairs.

    Every row has `length` tokens whatever pairs it stands beside, filled up at the right: the cost of a step is then the
    one that was predicted, compiled code sees one shape, and no loss depends on the neighbours. A pair that does not fit
    is left out whole, and counted in `dropped`.
    """

    def __init__(
        self, corpus: PairCorpus, *, layout: Layout = TWO_ROWS, batch: int = 16, length: int = 64, seed: int = 0
    ) -> None:
        """Raises `SpecError` for sizes below 1, and when no pair of a split fits into `length`."""
        check_sizes(batch=batch, length=length)
        self.corpus, self.layout, self.batch_size, self.length, self.seed = corpus, layout, batch, length, seed
        self._train = self._that_fit(corpus.train, "training")
        self._validation = self._that_fit(corpus.validation, "validation")
        self.windows = len(self._train)
        """Pairs of one epoch of training."""
        self.dropped = len(corpus.train) - len(self._train), len(corpus.validation) - len(self._validation)
        """Pairs of training and of validation that are longer than `length`."""
        self._order = EpochOrder(self.windows, seed)
        self._sizes = (corpus.train.source_sizes + corpus.train.target_sizes + 1)[self._train]

    def batch(self, step: int) -> Batch:
        """The batch of step 0, 1, 2, ...; no earlier batch needs to be asked for."""
        return self._batch(self.corpus.train, self._train[self._order.ids(step, self.batch_size)])

    def tokens(self, steps: int) -> int:
        """How many tokens the first `steps` batches hold: sources, targets, and a separator or begin for each pair.

        What only fills a row up is not counted.
        """
        return self._order.total(steps, self.batch_size, self._sizes)

    def validation(self, batch: int | None = None) -> Iterator[Batch]:
        """Every pair of validation that fits, once, in order; the last batch may have fewer rows."""
        for rows in chunks(len(self._validation), self.batch_size if batch is None else batch):
            yield self._batch(self.corpus.validation, self._validation[rows])

    def extrapolation(self) -> dict[str, PairLoader]:
        """The further validation sets by name, each as the validation of a loader that is long enough for it."""
        return {
            name: PairLoader(
                replace(self.corpus, validation=pairs, sets={}),
                layout=self.layout,
                batch=self.batch_size,
                length=max(self.length, int(self.layout.need(pairs).max())),
                seed=self.seed,
            )
            for name, pairs in self.corpus.sets.items()
        }

    def stream_digest(self, steps: int) -> str:
        """64 hex digits that name which pairs a run of `steps` sees in which order and layout, without reading them."""
        facts = [self._order.name, self.layout.name, self.corpus.digest, self.seed, self.batch_size, self.length, steps]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def _that_fit(self, split: PairSplit, name: str) -> np.ndarray:
        need = self.layout.need(split)
        kept = np.flatnonzero(need <= self.length)
        if not len(kept):
            message = f"must be at least {need.min()} for the shortest {name} pair of {self.corpus.source!r}"
            raise SpecError.at("length", f"{message} to fit, came {self.length}")
        return kept

    def _batch(self, split: PairSplit, pairs_B: np.ndarray) -> Batch:
        import torch

        arrays = self.layout.fill(self.corpus, split, pairs_B, self.length)
        return Batch(**{name: torch.from_numpy(array) for name, array in arrays.items()})
