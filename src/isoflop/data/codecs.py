"""Codecs beside those that a `Tokenizer` declares: the symbols of a task, and ids that stand for no text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from isoflop.data.tokens import RESTORE, Codec, id_dtype, restore_codec

MARKS: Mapping[str, bytes] = {"separator": b"\t", "mask": "\N{WHITE SQUARE}".encode()}
"""Ids that stand for no text, and how a decoded text shows them."""


class SymbolCodec(Codec):
    """One id for each character of an alphabet: id 0 ends a sequence, id i is character i - 1.

    `encode` raises ValueError for a character that the alphabet lacks.
    """

    def __init__(self, characters: str) -> None:
        if len({*characters}) != len(characters) or not characters:
            raise ValueError(f"the characters of an alphabet must be different, came {characters!r}")
        super().__init__([b"", *(character.encode() for character in characters)])
        self.characters = characters
        self._ids = {character: index for index, character in enumerate(characters, start=1)}

    def encode(self, text: str) -> list[int]:
        try:
            return [self._ids[character] for character in text]
        except KeyError as error:
            raise ValueError(f"{error.args[0]!r} is no symbol of this task; there are {self.characters}") from None

    def encode_documents(self, documents: Sequence[bytes]) -> list[np.ndarray]:
        return [np.array(self.encode(document.decode()), dtype=id_dtype(self.vocab)) for document in documents]

    def state(self) -> dict[str, Any]:
        return {"kind": "symbols", "characters": self.characters}


class MarkedCodec(Codec):
    """A codec with further ids behind its own: mark j has id `text.vocab + j`.

    A mark is part of no text, so no text yields its id and it counts zero bytes. Decoded, a separator shows as a tab and
    a mask as a white square.
    """

    def __init__(self, text: Codec, marks: Sequence[str]) -> None:
        shown = [MARKS[mark] for mark in marks]
        super().__init__([*text.pieces, *shown])
        self.text, self.marks = text, tuple(marks)

    @property
    def token_bytes(self) -> np.ndarray:
        return np.concatenate([self.text.token_bytes, np.zeros(len(self.marks), dtype=np.int64)])

    @property
    def separator(self) -> int | None:
        return self.mark_id("separator") if "separator" in self.marks else None

    def mark_id(self, mark: str) -> int:
        """The id of a mark."""
        return self.text.vocab + self.marks.index(mark)

    def encode(self, text: str) -> list[int]:
        return self.text.encode(text)

    def encode_documents(self, documents: Sequence[bytes]) -> list[np.ndarray]:
        return self.text.encode_documents(documents)

    def state(self) -> dict[str, Any]:
        return {"kind": "marked", "marks": list(self.marks), "text": self.text.state()}


RESTORE["symbols"] = lambda state: SymbolCodec(state["characters"])
RESTORE["marked"] = lambda state: MarkedCodec(restore_codec(state["text"]), state["marks"])
