"""Synthetic tasks: pairs whose target follows from the source by a rule, made on the spot.

Items are drawn one after the other from a generator that is keyed by the declaration, repeats are left out, and a hash of
the item decides its side: no item is ever both in training and in validation, and a larger number of items begins with those
of a smaller number. Items of the sizes in `extrapolate` are longer than any in training.

Symbol i is character i of `ALPHABET`, its token id is i + 1; id 0 ends a sequence.
"""

from __future__ import annotations

import json
import string
from abc import abstractmethod
from collections.abc import Iterator, Sequence
from typing import Annotated, ClassVar, Self

import numpy as np
from pydantic import Field, model_validator

from isoflop.data.codecs import SymbolCodec
from isoflop.data.pairs import NAMED, Pair, Pairs, PairTexts, held_out
from isoflop.data.tokens import Codec, Tokenizer
from isoflop.seeds import seed_for
from isoflop.spec import Many, SpecError

ALPHABET = string.digits + string.ascii_letters + "".join(map(chr, range(0x100, 0x100 + 194)))
"""256 characters in the order of their symbols: 0 to 9, a to z, A to Z, then letters from U+0100 on."""

PATIENCE = 10_000
"""After so many draws in a row without a new item there are taken to be no more."""

Count = Annotated[int, Field(ge=1)]


class Draws:
    """Whole numbers that follow from a key alone, the same on any machine and version of numpy."""

    def __init__(self, *purpose: object) -> None:
        self._raw = np.random.Philox(key=seed_for(*purpose)).random_raw

    def many(self, bound: int, count: int) -> list[int]:
        """`count` numbers from 0 to `bound` - 1."""
        return (self._raw(count) % np.uint64(bound)).tolist()

    def one(self, bound: int) -> int:
        """A number from 0 to `bound` - 1."""
        return self.many(bound, 1)[0]

    def different(self, bound: int, count: int) -> list[int]:
        """`count` different numbers from 0 to `bound` - 1."""
        numbers = list(range(bound))
        for place, step in enumerate(self.many_up_to(bound, count)):
            numbers[place], numbers[place + step] = numbers[place + step], numbers[place]
        return numbers[:count]

    def many_up_to(self, bound: int, count: int) -> list[int]:
        """One number from 0 to `bound` - 1 - i for each i below `count`."""
        bounds = np.arange(bound, bound - count, -1, dtype=np.uint64)
        return (self._raw(count) % bounds).tolist()


class Task(Pairs):
    """Fields of every task.

    Fields:
        symbols: how many different symbols there are.
        shortest: smallest size of an item in training and validation.
        longest: largest size; sizes are drawn uniformly.
        items: different items to train on.
        validation_items: different items to validate on, and in each set of `extrapolate`.
        extrapolate: sizes beyond `longest`, each a validation set of its own.
    """

    inapplicable: ClassVar[tuple[str, ...]] = ("packing", "order", "tokenizer", "limit")

    symbols: Annotated[int, Field(ge=2, le=len(ALPHABET))] = 16
    shortest: Count = 1
    longest: Count = 8
    items: Count = 20_000
    validation_items: Count = 1_000
    extrapolate: Many[Count] = ()

    @model_validator(mode="after")
    def _sizes(self) -> Self:
        if self.shortest > self.longest:
            raise SpecError.at("shortest", f"must be at most the longest ({self.longest}), came {self.shortest}")
        for size in self.extrapolate:
            if size <= self.longest:
                raise SpecError.at("extrapolate", f"must be beyond the longest ({self.longest}), came {size}")
        if len({*self.extrapolate}) < len(self.extrapolate):
            raise SpecError.at("extrapolate", f"must name each size once, came {list(self.extrapolate)}")
        self.check_largest(max(self.longest, *self.extrapolate, 1))
        return self

    def check_largest(self, size: int) -> None:
        """Raise `SpecError` when an item of this size cannot be made."""

    @abstractmethod
    def item(self, draws: Draws, size: int) -> Pair:
        """One item."""

    def key(self, pair: Pair) -> str:
        """What is the same for items that must be on one side of the split."""
        return pair.source

    @property
    def characters(self) -> str:
        """The alphabet, in the order of the ids."""
        return ALPHABET[: self.symbols]

    @property
    def name(self) -> str:
        return f"task:{self.kind}"

    def codec(self, tokenizer: Tokenizer, train: Sequence[Pair]) -> Codec:
        return SymbolCodec(self.characters)

    def read(self, limit: int | None) -> PairTexts:
        sizes = range(self.shortest, self.longest + 1)
        train: list[Pair] = []
        validation: list[Pair] = []
        room = {False: (train, self.items), True: (validation, self.validation_items)}
        for pair in self._different(sizes):
            side, wanted = room[held_out(self.key(pair))]
            if len(side) < wanted:
                side.append(pair)
            if len(train) == self.items and len(validation) == self.validation_items:
                break
        self._check_number("items", len(train), self.items)
        self._check_number("validation_items", len(validation), self.validation_items)
        return PairTexts(train, validation, {f"size {size}": self._set(size) for size in self.extrapolate})

    def _set(self, size: int) -> list[Pair]:
        found = [pair for pair, _ in zip(self._different([size]), range(self.validation_items), strict=False)]
        self._check_number("extrapolate", len(found), self.validation_items)
        return found

    def _different(self, sizes: Sequence[int]) -> Iterator[Pair]:
        """Items in the order in which they are drawn, each once, until no new one comes."""
        counts = {"items", "validation_items", "extrapolate"}
        declared = {name: value for name, value in self.dump().items() if name not in counts}
        draws = Draws("task", json.dumps(declared, sort_keys=True), sizes[0])
        seen: set[str] = set()
        vain = 0
        while vain < PATIENCE:
            pair = self.item(draws, sizes[draws.one(len(sizes))])
            vain = vain + 1 if pair.source in seen else 0
            if not vain:
                seen.add(pair.source)
                yield pair

    def _check_number(self, field: str, found: int, wanted: int) -> None:
        if found < wanted:
            advice = "ask for fewer, or for more symbols or longer items"
            raise SpecError.at(f"source.{field}", f"{self.name} has only {found} of {wanted} different items; {advice}")

    def _text(self, symbols: Sequence[int]) -> str:
        return "".join(map(ALPHABET.__getitem__, symbols))


def _named(kind: str) -> Task:
    if kind in Pairs.kinds and not issubclass(Pairs.kinds[kind], Task):
        raise SpecError(f"{kind!r} is a source of pairs and no task; write {kind!r} without 'task:'")
    return Task.parse(kind)


NAMED["task"] = _named


# ---------------------------------------------------------------------------------------------------- the tasks


class Copy(Task, kind="copy"):
    """The source again; the size is its length.

    Formula: y_i = x_i
    Paper: Graves et al. 2014, arXiv 1410.5401
    """

    def item(self, draws: Draws, size: int) -> Pair:
        text = self._text(draws.many(self.symbols, size))
        return Pair(text, text)


class Reverse(Task, kind="reverse"):
    """The source from its end; the size is its length.

    Formula: y_i = x_{n+1-i}
    Paper: Weiss et al. 2021, arXiv 2106.06981
    """

    def item(self, draws: Draws, size: int) -> Pair:
        text = self._text(draws.many(self.symbols, size))
        return Pair(text, text[::-1])


class Sort(Task, kind="sort"):
    """The symbols of the source in the order of their ids, repeats included; the size is its length.

    Formula: y = sorted(x)
    Paper: Weiss et al. 2021, arXiv 2106.06981
    """

    def item(self, draws: Draws, size: int) -> Pair:
        symbols = draws.many(self.symbols, size)
        return Pair(self._text(symbols), self._text(sorted(symbols)))


class Recall(Task, kind="recall"):
    """Associative recall: keys and values in turn, then one of the keys; wanted is its value. The size counts the keys.

    The first half of the symbols are keys, each at most once in an item; the rest are values.

    Formula: x = k_1 v_1 .. k_n v_n k_j; y = v_j
    Paper: Ba et al. 2016, arXiv 1610.06258
    """

    symbols: Annotated[int, Field(ge=2, le=len(ALPHABET))] = 64

    def check_largest(self, size: int) -> None:
        if size > self.symbols // 2:
            message = f"must be at least {2 * size}, so that an item of size {size} has different keys"
            raise SpecError.at("symbols", f"{message}, came {self.symbols}")

    def item(self, draws: Draws, size: int) -> Pair:
        half = self.symbols // 2
        keys = draws.different(half, size)
        values = [half + value for value in draws.many(self.symbols - half, size)]
        asked = draws.one(size)
        listed = [symbol for pair in zip(keys, values, strict=True) for symbol in pair]
        return Pair(self._text([*listed, keys[asked]]), self._text([values[asked]]))


class Induction(Task, kind="induction"):
    """A sequence, then a symbol that occurred once in it; wanted is the symbol that followed. The size excludes the repeat.

    Formula: x = x_1 .. x_n x_j with j < n; y = x_{j+1}
    Paper: Olsson et al. 2022, arXiv 2209.11895
    """

    shortest: Annotated[int, Field(ge=2)] = 2

    def item(self, draws: Draws, size: int) -> Pair:
        asked, place = draws.one(self.symbols), draws.one(size - 1)
        others = [other + (other >= asked) for other in draws.many(self.symbols - 1, size)]
        others[place] = asked
        return Pair(self._text([*others, asked]), self._text([others[place + 1]]))


class Addition(Task, kind="addition"):
    """The sum of two numbers of as many digits as the size says, in base `symbols`; no number begins with a zero.

    `a+b` and `b+a` are on the same side of the split. `reverse` writes the sum from its least significant digit on, in
    the order in which it is worked out.

    Formula: y = a + b
    Paper: Lee et al. 2023, arXiv 2307.03381
    """

    symbols: Annotated[int, Field(ge=2, le=len(ALPHABET))] = 10
    longest: Count = 4
    reverse: bool = False

    @property
    def characters(self) -> str:
        return super().characters + "+"

    def key(self, pair: Pair) -> str:
        return "+".join(sorted(pair.source.split("+")))

    def item(self, draws: Draws, size: int) -> Pair:
        left, right = self._number(draws, size), self._number(draws, size)
        total = self._digits(left + right)
        source = f"{self._text(self._digits(left))}+{self._text(self._digits(right))}"
        return Pair(source, self._text(total[::-1] if self.reverse else total))

    def _number(self, draws: Draws, size: int) -> int:
        digits = draws.many(self.symbols, size)
        if size > 1:
            digits[0] = 1 + draws.one(self.symbols - 1)
        number = 0
        for digit in digits:
            number = number * self.symbols + digit
        return number

    def _digits(self, number: int) -> list[int]:
        digits = [number % self.symbols]
        while number := number // self.symbols:
            digits.append(number % self.symbols)
        return digits[::-1]
