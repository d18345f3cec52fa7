"""From a declared source to batches: the order of the data is a function, not a state.

The batch of step k follows from (corpus, seed, batch, length, packing, k) alone. There is nothing to save, restore or replay:
a resumed run, another process and another arm of a study see the same tokens in the same order.

Shapes: B rows of a batch, T tokens of a window.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Annotated, Any, Literal, Self

import numpy as np
from pydantic import BeforeValidator, Field, model_validator

from isoflop.data.corpora import Document, divide, read_documents
from isoflop.data.lanes import LaneOrder
from isoflop.data.objective import NO_TARGET, Objective
from isoflop.data.pairs import Pairs, parse_source
from isoflop.data.tokens import Bytes, Codec, Tokenizer, id_array
from isoflop.spec import Spec, SpecError, did_you_mean, plain

if TYPE_CHECKING:
    import torch

Packing = Literal["stream", "documents"]
Order = Literal["shuffled", "continuous"]


class Data(Spec):
    """What to train on."""

    source: Annotated[str | Pairs, BeforeValidator(parse_source)] = "stdlib"
    """A built-in source (`isoflop data list`), or a path to a folder, a text file, a .jsonl or a .parquet file; for pairs
    a kind of `Pairs`, by name or as a table: `task:copy` is `copy`, and `translation:en-de` names two languages."""
    tokenizer: Tokenizer = Bytes()
    """How text becomes token ids; `bpe` is trained on the training split."""
    packing: Packing = "stream"
    """`documents`: positions restart, attention stops and no target is set where a new document begins."""
    order: Order | None = None
    """Of the windows. `shuffled`: a new order in every epoch. `continuous`: each row of a batch goes on with the text of the
    same row in the step before, as a memory of the segment before needs; absent = what the architecture needs."""
    limit: int | None = Field(None, gt=0)
    """Bytes of the source to use at most, nine tenths of them for training."""
    seed: int = 0
    """Decides the order of the windows, and which tokens of them are hidden in training; nothing else."""
    objective: Objective | None = None
    """What the model has to predict; absent = what its form needs: `masked` for an encoder, else `next`."""

    @model_validator(mode="after")
    def _all_have_an_effect(self) -> Self:
        if isinstance(self.source, str):
            return self
        for name in self.source.inapplicable:
            value = getattr(self, name)
            if value != type(self).model_fields[name].default:
                message = f"has no effect on pairs of {self.source.name!r}, came {plain(value)!r}; leave it out"
                raise SpecError.at(name, message)
        return self


@dataclass(frozen=True, eq=False)
class Tokenized:
    """What every corpus has: where it comes from, how its text became ids, and a SHA-256 of all of it."""

    source: str
    tokenizer: Codec
    digest: str

    @property
    def vocab(self) -> int:
        """How many token ids there are."""
        return self.tokenizer.vocab

    @property
    def token_bytes(self) -> np.ndarray:
        """int64[vocab]: bytes of text each id stands for; 0 for the end id."""
        return self.tokenizer.token_bytes

    def check_vocab(self, vocab: int) -> None:
        """Raise `SpecError` unless a model of this vocabulary has a row for every id of the corpus."""
        if vocab < self.vocab:
            raise SpecError.at(
                "vocab", f"must be at least {self.vocab}, the size of the tokenizer of {self.source!r}, came {vocab}"
            )


@dataclass(frozen=True, eq=False)
class Corpus(Tokenized):
    """Two token streams, each document followed by the end id, and where their documents begin. All arrays are read-only."""

    train: np.ndarray
    """Token ids, one dimension, in the smallest of uint8, uint16 and uint32 that the vocabulary fits in."""
    validation: np.ndarray
    train_starts: np.ndarray
    """int64: offset of each document's first token; strictly increasing, the first is 0."""
    validation_starts: np.ndarray
    train_names: tuple[str, ...]
    """File, topic or row of each document."""
    validation_names: tuple[str, ...]


def load_text(data: Data, source: str) -> Corpus:
    """Read, divide and tokenize a source of plain text, as a declaration says.

    Raises `SpecError` with the path `source` when the source cannot be used; see `corpora.read_documents` and `corpora.divide`.
    """
    parts = divide(read_documents(source), data.limit)
    tokenizer = data.tokenizer.train([document.data for document in parts[0]])
    (train, train_starts), (validation, validation_starts) = (_stream(tokenizer, part) for part in parts)
    train_names, validation_names = (tuple(document.name for document in part) for part in parts)
    arrays = (train, train_starts, validation, validation_starts)
    for array in arrays:
        array.setflags(write=False)
    return Corpus(
        source=source,
        tokenizer=tokenizer,
        train=train,
        validation=validation,
        train_starts=train_starts,
        validation_starts=validation_starts,
        train_names=train_names,
        validation_names=validation_names,
        digest=digest_of([tokenizer.vocab, tokenizer.end_id], *arrays),
    )


def _stream(tokenizer: Codec, documents: list[Document]) -> tuple[np.ndarray, np.ndarray]:
    """All documents end to end, each closed by the end id; and the offsets at which they begin."""
    encoded = tokenizer.encode_documents([document.data for document in documents])
    end = id_array([tokenizer.end_id], tokenizer.vocab)
    sizes = [len(ids) + 1 for ids in encoded]
    stream = np.concatenate(
        [part for ids in encoded for part in (ids.astype(end.dtype, casting="safe", copy=False), end)]
    )
    return stream, np.cumsum([0, *sizes[:-1]], dtype=np.int64)


def digest_of(header: Any, *arrays: np.ndarray) -> str:
    """SHA-256 of plain data and arrays; lengths and dtypes are in it, so no two contents read as the same bytes."""
    described = [header, [[array.dtype.str.lstrip("<>=|"), len(array)] for array in arrays]]
    digest = hashlib.sha256(json.dumps(described).encode())
    for array in arrays:
        digest.update(np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<")).data)
    return digest.hexdigest()


@dataclass(frozen=True, eq=False)
class Batch:
    """B windows of T tokens, all int64; `targets_BT` is the next token, or -100 where there is none.

    `positions_BT` and `documents_BT` are None in "stream" packing, where a window is read as one text from position 0 on.
    `source_BS` is what the encoder of an encoder-decoder reads, filled up with the end id; `source_documents_BS` is 0
    where it holds a token and -1 where it is filled up, which nobody may attend to. Both are None for other forms.
    `continues_B` says which rows go on with the text of the same row in the batch before; None where no order is kept.
    """

    tokens_BT: torch.Tensor
    targets_BT: torch.Tensor
    positions_BT: torch.Tensor | None = None
    documents_BT: torch.Tensor | None = None
    source_BS: torch.Tensor | None = None
    source_documents_BS: torch.Tensor | None = None
    continues_B: torch.Tensor | None = None

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device."""
        held = {name: tensor.to(device) for name, tensor in vars(self).items() if tensor is not None}
        return replace(self, **held)


class EpochOrder:
    """Which samples the batch of a step holds, when an epoch visits all of them in an order keyed by (seed, epoch)."""

    name = "philox-1"
    """Names the rule of `window_order` in digests; a new rule needs a new name."""

    def __init__(self, samples: int, seed: int) -> None:
        self._samples, self._seed = samples, seed
        self._last: tuple[int, np.ndarray] | None = None

    def ids(self, step: int, batch: int) -> np.ndarray:
        """int64[B]: the samples of a step; a batch may reach over the edge of two epochs."""
        if step < 0:
            raise ValueError(f"step must be at least 0, came {step}")
        index_B = np.arange(step * batch, (step + 1) * batch)
        epoch_B, place_B = np.divmod(index_B, self._samples)
        parts = [self._epoch(int(epoch))[place_B[epoch_B == epoch]] for epoch in np.unique(epoch_B)]
        return np.concatenate(parts)

    def continues(self, step: int, batch: int) -> np.ndarray | None:
        """No row goes on."""
        return None

    def total(self, steps: int, batch: int, sizes: np.ndarray) -> int:
        """Sum of the sizes of all samples that the first `steps` batches hold."""
        epochs, rest = divmod(steps * batch, self._samples)
        begun = int(sizes[self._epoch(epochs)[:rest]].sum()) if rest else 0
        return epochs * int(sizes.sum()) + begun

    def _epoch(self, epoch: int) -> np.ndarray:
        # Remembered because sorting takes longer than everything else in a batch; one attribute, so threads are safe.
        remembered = self._last
        if remembered is None or remembered[0] != epoch:
            remembered = (epoch, window_order(self._samples, self._seed, epoch))
            self._last = remembered
        return remembered[1]


class Loader:
    """Batches of a corpus by step number.

    Window i is tokens `i * length` to `(i + 1) * length` inclusive, so a token that begins no stream is a target exactly once
    an epoch; the last window is filled up with end ids that have no target. An epoch visits all windows in an order keyed by
    (seed, epoch): shuffled, where a batch may reach over the edge of two epochs, or in `LaneOrder`.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        batch: int = 16,
        length: int = 64,
        packing: Packing = "stream",
        seed: int = 0,
        order: Order = "shuffled",
    ) -> None:
        """Raises `SpecError` for sizes below 1, an unknown packing, or a corpus too small for one window (or one a row)."""
        check_sizes(batch=batch, length=length)
        if packing not in _PACKINGS:
            raise SpecError.at(
                "packing", f"must be one of {', '.join(_PACKINGS)}, came {packing!r}.{did_you_mean(packing, _PACKINGS)}"
            )
        _check_size(corpus, "training", corpus.train, length + 1)
        _check_size(corpus, "validation", corpus.validation, 2)
        self.corpus, self.batch_size, self.length, self.packing, self.seed = corpus, batch, length, packing, seed
        self.windows = window_count(corpus.train, length)
        """Windows of one epoch of training."""
        self.dropped = 0, 0
        """No text of training or validation is left out."""
        self._order = EpochOrder(self.windows, seed) if order == "shuffled" else LaneOrder(self.windows, seed, batch)
        self._sizes = np.full(self.windows, length)
        self._sizes[-1] -= self.windows * length - (len(corpus.train) - 1)

    def batch(self, step: int) -> Batch:
        """The batch of step 0, 1, 2, ...; no earlier batch needs to be asked for."""
        continues_B = self._order.continues(step, self.batch_size)
        return self._batch(self.corpus.train, self.corpus.train_starts, self.sample_ids(step), continues_B)

    def tokens(self, steps: int) -> int:
        """How many tokens the first `steps` batches hold, what only fills a window up not counted."""
        return self._order.total(steps, self.batch_size, self._sizes)

    def sample_ids(self, step: int) -> np.ndarray:
        """int64[B]: which windows the batch of a step holds."""
        return self._order.ids(step, self.batch_size)

    def validation(self, batch: int | None = None) -> Iterator[Batch]:
        """The whole validation stream in order, every target exactly once; the last batch may have fewer rows.

        Batches of one window go on from each other.
        """
        count = window_count(self.corpus.validation, self.length)
        for rows in chunks(count, self.batch_size if batch is None else batch):
            continues_B = np.full(len(rows), rows[0] > 0) if batch == 1 else None
            yield self._batch(self.corpus.validation, self.corpus.validation_starts, rows, continues_B)

    def stream_digest(self, steps: int) -> str:
        """64 hex digits that name which tokens a run of `steps` sees in which order and packing, without reading them."""
        facts = [self._order.name, self.corpus.digest, self.seed, self.batch_size, self.length, self.packing, steps]
        return hashlib.sha256(json.dumps(facts).encode()).hexdigest()

    def _batch(
        self, tokens: np.ndarray, starts: np.ndarray, windows_B: np.ndarray, continues_B: np.ndarray | None
    ) -> Batch:
        import torch  # here, not above: declaring data and listing sources needs no torch, which takes seconds to import

        place_BS = windows_B[:, None] * self.length + np.arange(self.length + 1)  # S = T + 1
        inside_BS = place_BS < len(tokens)
        ids_BS = tokens[np.minimum(place_BS, len(tokens) - 1)].astype(np.int64)
        ids_BS[~inside_BS] = self.corpus.tokenizer.end_id
        targets_BT = np.where(inside_BS[:, 1:], ids_BS[:, 1:], NO_TARGET)
        arrays = _PACKINGS[self.packing](ids_BS[:, :-1], targets_BT, place_BS, np.append(starts, len(tokens)))
        going_on = None if continues_B is None else torch.from_numpy(continues_B)
        return Batch(*(torch.from_numpy(np.ascontiguousarray(array)) for array in arrays), continues_B=going_on)


def _pack_stream(
    tokens_BT: np.ndarray, targets_BT: np.ndarray, place_BS: np.ndarray, starts: np.ndarray
) -> tuple[np.ndarray, ...]:
    return tokens_BT, targets_BT


def _pack_documents(
    tokens_BT: np.ndarray, targets_BT: np.ndarray, place_BS: np.ndarray, starts: np.ndarray
) -> tuple[np.ndarray, ...]:
    """Positions from 0 at each document start (or at the window's, for a document under way), documents numbered by the
    corpus, filling as a document of its own, and no target that a token of another document would have to predict."""
    document_BS = np.searchsorted(starts, place_BS, side="right") - 1
    position_BS = place_BS - np.maximum(starts[document_BS], place_BS[:, :1])
    same_BT = document_BS[:, 1:] == document_BS[:, :-1]
    return tokens_BT, np.where(same_BT, targets_BT, NO_TARGET), position_BS[:, :-1], document_BS[:, :-1]


_PACKINGS: Mapping[str, Callable[..., tuple[np.ndarray, ...]]] = {"stream": _pack_stream, "documents": _pack_documents}


def window_order(windows: int, seed: int, epoch: int) -> np.ndarray:
    """int64[windows]: a permutation drawn from (seed, epoch).

    Windows are sorted by random 64-bit keys. Raw Philox output and a stable sort are the same on every machine and version of
    numpy, which `Generator.permutation` does not promise.
    """
    key = hashlib.sha256(json.dumps(["order", seed, epoch]).encode()).digest()
    keys = np.random.Philox(key=np.frombuffer(key[:16], dtype="<u8")).random_raw(windows)
    return np.argsort(keys, kind="stable")


def window_count(tokens: np.ndarray, length: int) -> int:
    """How many windows give each token but the first of a stream one turn as a target."""
    return -(-(len(tokens) - 1) // length)


def chunks(count: int, size: int) -> Iterator[np.ndarray]:
    """0 to `count` - 1 in order, `size` at a time; the last part may be shorter."""
    check_sizes(batch=size)
    for first in range(0, count, size):
        yield np.arange(first, min(first + size, count))


def check_sizes(**sizes: int) -> None:
    """Raise `SpecError` for a size below 1."""
    for name, size in sizes.items():
        if size < 1:
            raise SpecError.at(name, f"must be at least 1, came {size}")


def _check_size(corpus: Corpus, split: str, tokens: np.ndarray, needed: int) -> None:
    if len(tokens) < needed:
        advice = "give more text, a higher limit or a shorter length"
        raise SpecError.at(
            "source", f"the {split} split of {corpus.source!r} must hold {needed} tokens, came {len(tokens)}; {advice}"
        )
