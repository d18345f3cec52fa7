"""Pairs of a source and a target: what a kind must give, how pairs are divided, and their token ids."""

from __future__ import annotations

import hashlib
from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from isoflop.data.codecs import MarkedCodec
from isoflop.data.corpora import VALIDATION_SHARE
from isoflop.data.tokens import Codec, Tokenizer, id_dtype
from isoflop.spec import Slot, SpecError


class Pair(NamedTuple):
    """Two texts, neither empty."""

    source: str
    target: str


class PairTexts(NamedTuple):
    """Pairs for training and validation, and validation sets of other sizes by name."""

    train: list[Pair]
    validation: list[Pair]
    sets: Mapping[str, list[Pair]]


class Pairs(Slot, default="copy"):
    """Where pairs of a source and a target come from.

    The same field also takes a path, or the name of a source of plain text; a folder called `copy` is `./copy`.
    """

    inapplicable: ClassVar[tuple[str, ...]] = ("packing", "order")
    """Fields of `Data` that mean nothing here: a pair is never packed with another one, and goes on from none."""

    @property
    @abstractmethod
    def name(self) -> str:
        """How messages call this source."""

    @abstractmethod
    def read(self, limit: int | None) -> PairTexts:
        """The pairs, in an order that never changes, made from at most `limit` bytes."""

    def codec(self, tokenizer: Tokenizer, train: Sequence[Pair]) -> Codec:
        """The tokenizer, fitted to sources and targets of training alike."""
        return tokenizer.train([text.encode() for pair in train for text in pair])


NAMED: dict[str, Callable[[str], Pairs]] = {}
"""`PREFIX:REST` as a source: what is made of REST, by prefix."""


def parse_source(value: Any) -> Any:
    """The name of a kind, `PREFIX:REST` or a table as a kind of `Pairs`; any other name or path as it is.

    The `kind` of a table may be `PREFIX:REST` too, whose fields the others are laid over.
    """
    if isinstance(value, str):
        prefix, colon, rest = value.partition(":")
        if colon and prefix in NAMED:
            return NAMED[prefix](rest)
        return Pairs.parse(value) if value in Pairs.kinds else value
    if isinstance(value, Mapping) and ":" in (kind := str(value.get("kind", ""))):
        named = parse_source(kind)
        if isinstance(named, Pairs):
            return Pairs.parse({**named.dump(), **value, "kind": named.kind})
    if isinstance(value, Mapping | Pairs):
        return Pairs.parse(value)
    raise SpecError(f"must be a path, the name of a source or a table that is a kind of Pairs, came {value!r}")


# ---------------------------------------------------------------------------------------------------- division


def held_out(key: str) -> bool:
    """Whether pairs of this key are for validation: a hash decides, so equal keys are on one side on every machine."""
    return _rank(key) < int(VALIDATION_SHARE * 2**64)


def divide_pairs(pairs: Iterable[Pair], key: Callable[[Pair], str], limit: int | None) -> PairTexts:
    """Pairs for training and validation, in the order given, divided by a hash of their keys.

    `limit` bytes (sources and targets in UTF-8) are shared out nine to one and filled in the order of the hashes, so that
    a smaller limit sees a part of what a larger one sees.
    """
    keyed = [(key(pair), pair) for pair in pairs]
    sides = [[item for item in keyed if held_out(item[0]) is side] for side in (False, True)]
    if limit is not None:
        held = max(1, int(limit * VALIDATION_SHARE))
        sides = [_sample(side, budget) for side, budget in zip(sides, (limit - held, held), strict=True)]
    train, validation = ([pair for _, pair in side] for side in sides)
    return PairTexts(train, validation, {})


def _sample(keyed: list[tuple[str, Pair]], budget: int) -> list[tuple[str, Pair]]:
    kept: list[int] = []
    for index in sorted(range(len(keyed)), key=lambda index: (_rank(keyed[index][0]), index)):
        budget -= sum(len(text.encode()) for text in keyed[index][1])
        if budget < 0:
            break
        kept.append(index)
    return [keyed[index] for index in sorted(kept)]


def _rank(key: str) -> int:
    return int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest(), "big")


# ---------------------------------------------------------------------------------------------------- token ids


@dataclass(frozen=True, eq=False)
class PairSplit:
    """Token ids of pairs: all sources end to end, all targets end to end, without any end id. Arrays are read-only."""

    sources: np.ndarray
    source_starts: np.ndarray
    """int64[pairs + 1]: source i is `sources[source_starts[i]:source_starts[i + 1]]`."""
    targets: np.ndarray
    target_starts: np.ndarray

    def __len__(self) -> int:
        return len(self.source_starts) - 1

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        """Ids of the source and of the target of a pair."""
        first, last = self.source_starts[index : index + 2]
        begin, end = self.target_starts[index : index + 2]
        return self.sources[first:last], self.targets[begin:end]

    @property
    def source_sizes(self) -> np.ndarray:
        """int64[pairs]: tokens of each source."""
        return np.diff(self.source_starts)

    @property
    def target_sizes(self) -> np.ndarray:
        """int64[pairs]: tokens of each target."""
        return np.diff(self.target_starts)

    @property
    def arrays(self) -> tuple[np.ndarray, ...]:
        return self.sources, self.source_starts, self.targets, self.target_starts


def tokenize_pairs(source: Pairs, tokenizer: Tokenizer, texts: PairTexts) -> tuple[MarkedCodec, list[PairSplit]]:
    """The codec, with a separator behind its last id; and training, validation and further sets as ids.

    Raises `SpecError` when nothing is there to train or validate on.
    """
    for name, pairs in (("training", texts.train), ("validation", texts.validation)):
        if not pairs:
            raise SpecError.at("source", f"{source.name} leaves no pair for {name}; raise the limit, or name another")
    codec = MarkedCodec(source.codec(tokenizer, texts.train), ["separator"])
    return codec, [_tokenized(codec, pairs) for pairs in (texts.train, texts.validation, *texts.sets.values())]


def _tokenized(codec: Codec, pairs: Sequence[Pair]) -> PairSplit:
    columns = ([pair.source for pair in pairs], [pair.target for pair in pairs])
    split = PairSplit(*(array for column in columns for array in _joined(codec, column)))
    for array in split.arrays:
        array.setflags(write=False)
    return split


def _joined(codec: Codec, texts: Sequence[str]) -> tuple[np.ndarray, np.ndarray]:
    encoded = codec.encode_documents([text.encode() for text in texts])
    joined = np.concatenate([np.empty(0, id_dtype(codec.vocab)), *encoded]).astype(id_dtype(codec.vocab))
    return joined, np.cumsum([0, *map(len, encoded)], dtype=np.int64)
