"""Codecs of models that were trained elsewhere: a tokenizer.json, and ids where a model has no tokenizer."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from isoflop.data.tokens import BYTE_OF, RESTORE, Codec, id_dtype, utf8
from isoflop.files import read_json, write_json

NO_END = -1
"""The end id of a codec in which no id ends a text."""

METASPACE = "\u2581"


class LibraryCodec(Codec):
    """What a tokenizer.json of the library `tokenizers` declares. The file is data: it names no code.

    `encode` puts in front what the file's template does, a begin-of-text id for instance, and leaves out what it puts behind.
    Characters that spell a special token are just characters. Ids beyond the tokenizer's own stand for no text.

    Args:
        library: content of the file.
        vocab: ids of the model, which may be more than the tokenizer has.
        end: the id that ends a text; None where none does.
    """

    def __init__(self, library: Mapping[str, Any], vocab: int, end: int | None) -> None:
        from tokenizers import Tokenizer as Library

        self._content, self._asked, self._end = library, vocab, end
        try:
            self._library = Library.from_str(json.dumps(library))
        except Exception as error:  # the library raises nothing more special
            raise ValueError(f"is no tokenizer.json that the library can read: {error}") from None
        self._library.no_truncation()
        self._library.no_padding()
        self._library.encode_special_tokens = True
        super().__init__(_pieces(library, self._library.get_vocab(), vocab), NO_END if end is None else end)
        self.start = self._before("a")
        self._leads = any(self.pieces[token].startswith(b" ") for token in self._plain("a")[:1])

    @classmethod
    def read(cls, path: str | Path, vocab: int, end: int | None) -> LibraryCodec:
        """The codec of a tokenizer.json.

        Raises:
            ValueError: the file is missing or malformed, or its decoder is of a kind that cannot be read token by token.
        """
        library = read_json(path)
        if not isinstance(library, dict) or "model" not in library:
            raise ValueError(f"{path} must be a tokenizer.json, which holds a model")
        try:
            return cls(library, vocab, end)
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from None

    def encode(self, text: str) -> list[int]:
        return [*self.start, *self._plain(text)]

    def encode_whole(self, text: str) -> list[int]:
        """With all that the file's template puts around a text, as an encoder reads it."""
        return self._library.encode(utf8(text).decode(), add_special_tokens=True).ids

    def encode_documents(self, documents: Sequence[bytes]) -> list[np.ndarray]:
        kind = id_dtype(self.vocab)
        return [np.array(self._plain(document.decode()), dtype=kind) for document in documents]

    def decode(self, ids: Iterable[int]) -> str:
        """As for any codec; of a text that is whole, the space that encoding put in front of it is dropped."""
        ids = list(ids)
        text = super().decode(ids)
        begins = self.start and ids[: len(self.start)] == self.start
        return text.removeprefix(" ") if begins and self._leads else text

    def state(self) -> dict[str, Any]:
        return {"kind": "library", "library": dict(self._content), "vocab": self._asked, "end": self._end}

    def save_library(self, path: str | Path) -> None:
        """Write the tokenizer.json."""
        write_json(path, self._content)

    def __reduce__(self) -> tuple[type[LibraryCodec], tuple[Any, ...]]:
        return LibraryCodec, (self._content, self._asked, self._end)

    def _plain(self, text: str) -> list[int]:
        return self._library.encode(utf8(text).decode(), add_special_tokens=False).ids

    def _before(self, text: str) -> list[int]:
        """What the template puts in front of a text."""
        plain, whole = self._plain(text), self._library.encode(text, add_special_tokens=True).ids
        return next((whole[:n] for n in range(len(whole)) if whole[n : n + len(plain)] == plain), [])


class IdCodec(Codec):
    """Ids as numbers with spaces between them, for a model that has no tokenizer."""

    def __init__(self, vocab: int, end: int | None) -> None:
        super().__init__([f"{token} ".encode() for token in range(vocab)], NO_END if end is None else end)
        self._end = end

    def encode(self, text: str) -> list[int]:
        words = text.split()
        if not all(word.isascii() and word.isdigit() and int(word) < self.vocab for word in words):
            raise ValueError(f"text is token ids here, such as '12 7 9', each below {self.vocab}; came {text!r}")
        return [int(word) for word in words]

    def encode_documents(self, documents: Sequence[bytes]) -> list[np.ndarray]:
        return [np.array(self.encode(document.decode()), dtype=id_dtype(self.vocab)) for document in documents]

    def state(self) -> dict[str, Any]:
        return {"kind": "ids", "vocab": self.vocab, "end": self._end}


RESTORE["library"] = lambda state: LibraryCodec(state["library"], state["vocab"], state["end"])
RESTORE["ids"] = lambda state: IdCodec(state["vocab"], state["end"])


# ---------------------------------------------------------------------------------------------------- bytes of a token


def _pieces(library: Mapping[str, Any], ids: Mapping[str, int], vocab: int) -> list[bytes]:
    spell = _spelling(library.get("decoder"))
    pieces = [b""] * max(vocab, max(ids.values()) + 1)
    for token, number in ids.items():
        pieces[number] = spell(token)
    for added in library.get("added_tokens", []):
        pieces[added["id"]] = b"" if added.get("special") else added["content"].encode()
    return pieces


def _spelling(decoder: Any) -> Callable[[str], bytes]:
    """How the tokens of a decoder are spelled."""
    kinds = list(_decoders(decoder))
    found = next((SPELLINGS[kind] for kind in kinds if kind in SPELLINGS), None)
    if found is None:
        raise ValueError(
            f"its decoder is {' and '.join(kinds) or 'absent'}; those that give text token by token are "
            f"{', '.join(SPELLINGS)}"
        )
    return found


def _decoders(decoder: Any) -> Iterator[str]:
    if decoder:
        yield decoder["type"]
        for inner in decoder.get("decoders", []):
            yield from _decoders(inner)


def _byte_level(token: str) -> bytes:
    if all(character in BYTE_OF for character in token):
        return bytes(BYTE_OF[character] for character in token)
    return token.encode()


def _metaspace(token: str) -> bytes:
    if len(token) == 6 and token.startswith("<0x") and token.endswith(">"):
        return bytes([int(token[3:5], 16)])
    return token.replace(METASPACE, " ").encode()


def _word_piece(token: str) -> bytes:
    return token.removeprefix("##").encode() if token.startswith("##") else f" {token}".encode()


SPELLINGS = {
    "ByteLevel": _byte_level,
    "Metaspace": _metaspace,
    "ByteFallback": _metaspace,
    "WordPiece": _word_piece,
}
