"""Text to token ids and back: bytes, or byte-level BPE trained on the training split.

Both kinds keep three promises. `decode(encode(text)) == text` for every text; raw text never yields the end-of-document id;
a decoder that is fed one id at a time gives the same text as `decode` of all of them, whatever character they cut.
"""

from __future__ import annotations

import codecs
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import Field

from isoflop.files import read_json, write_json
from isoflop.spec import Slot, did_you_mean

END = "<|end|>"
"""How the end-of-document id of BPE is called. The same characters in a text are just characters."""

FORMAT = 1
OVERLONG_NUL = b"\xc0\x80"  # modified UTF-8 (as in Java): two bytes that valid UTF-8 never has


class Codec(ABC):
    """A built tokenizer. One id ends a document, 0 in our own kinds; every other id stands for the bytes `pieces[id]`.

    The end id stands for no text: it decodes to nothing and counts zero bytes. Its loss still counts, so bits per byte are
    all bits spent, end markers included, per byte of text.
    """

    def __init__(self, pieces: Sequence[bytes], end_id: int = 0) -> None:
        self.end_id = end_id
        self._pieces = tuple(b"" if token == end_id else piece for token, piece in enumerate(pieces))

    @property
    def pieces(self) -> tuple[bytes, ...]:
        """The bytes that each id stands for."""
        return self._pieces

    @property
    def vocab(self) -> int:
        """How many ids there are; ids are 0 to vocab - 1."""
        return len(self._pieces)

    @property
    def token_bytes(self) -> np.ndarray:
        """int64[vocab]: how many bytes of UTF-8 text each id stands for, for bits per byte."""
        return np.array([len(piece) for piece in self._pieces], dtype=np.int64)

    @property
    def separator(self) -> int | None:
        """The id between a source and its target in one row; None where texts are no pairs."""
        return None

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """Ids of a text, without any end id. Half a surrogate pair is read as U+FFFD, which is what UTF-8 can hold."""

    @abstractmethod
    def encode_documents(self, documents: Sequence[bytes]) -> list[np.ndarray]:
        """Ids of each document (valid UTF-8 without NUL), without end ids."""

    @abstractmethod
    def state(self) -> dict[str, Any]:
        """Plain JSON data from which the kind's `restore` makes an equal codec."""

    def decode(self, ids: Iterable[int]) -> str:
        """Text of the ids. Bytes that are no UTF-8 become U+FFFD as in `bytes.decode(errors="replace")`; end ids are dropped.

        Raises ValueError for an id outside the vocabulary.
        """
        stream = self.stream()
        return stream.push(*ids) + stream.finish()

    def stream(self) -> Stream:
        """A decoder for ids that come one by one."""
        return Stream(self._pieces)

    def save_tokenizer(self, path: str | Path) -> None:
        """Write the codec as JSON that `load_tokenizer` reads."""
        write_json(path, {"format": FORMAT, **self.state()})


class Stream:
    """Decodes ids as they come: `push` returns what is certain by now, `finish` the rest; together they are `decode`."""

    def __init__(self, pieces: Sequence[bytes]) -> None:
        self._pieces = pieces
        self._held = b""
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")

    def push(self, *ids: int) -> str:
        """Text that the ids complete; a character still in the making is kept back."""
        data = self._held + b"".join(self._piece(token) for token in ids)
        # The decoder would report the first half of an overlong NUL as an error at once, so it waits here.
        self._held = OVERLONG_NUL[:1] if data.endswith(OVERLONG_NUL[:1]) else b""
        return self._decoder.decode(data.removesuffix(self._held).replace(OVERLONG_NUL, b"\0"))

    def finish(self) -> str:
        """The tail: U+FFFD for a character that never became whole. The stream is then as new."""
        tail = self._decoder.decode(self._held, final=True)
        self._held = b""
        self._decoder.reset()
        return tail

    def _piece(self, token: int) -> bytes:
        if not 0 <= token < len(self._pieces):
            raise ValueError(f"token id {token} is outside the vocabulary 0..{len(self._pieces) - 1}")
        return self._pieces[token]


class Tokenizer(Slot, default="bytes"):
    """How text becomes token ids."""

    @abstractmethod
    def train(self, documents: Sequence[bytes]) -> Codec:
        """The codec, fitted to the training documents where the kind learns from them."""

    @classmethod
    @abstractmethod
    def restore(cls, state: Mapping[str, Any]) -> Codec:
        """The codec that gave this `state()`; a KeyError, TypeError or ValueError says that it is not one."""


# ---------------------------------------------------------------------------------------------------- bytes


class Bytes(Tokenizer, kind="bytes"):
    """One id per byte of UTF-8, vocabulary 256. Byte 0 ends a document; NUL in a text is written 0xC0 0x80.

    Paper: ByT5: Towards a Token-Free Future with Pre-trained Byte-to-Byte Models (arXiv:2105.13626)
    """

    def train(self, documents: Sequence[bytes]) -> Codec:
        return ByteCodec()

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Codec:
        return ByteCodec()


class ByteCodec(Codec):
    """Id = byte."""

    def __init__(self) -> None:
        super().__init__([bytes([byte]) for byte in range(256)])

    def encode(self, text: str) -> list[int]:
        return list(utf8(text).replace(b"\0", OVERLONG_NUL))

    def encode_documents(self, documents: Sequence[bytes]) -> list[np.ndarray]:
        return [np.frombuffer(document, dtype=np.uint8) for document in documents]

    def state(self) -> dict[str, Any]:
        return {"kind": Bytes.kind}


# ---------------------------------------------------------------------------------------------------- BPE


class BPE(Tokenizer, kind="bpe"):
    """Byte-pair encoding of UTF-8 bytes inside GPT-2's words, trained on the training split.

    Formula: merge the most frequent neighbouring pair until `vocab` ids exist (fewer where the text runs out of pairs).
    Paper: Neural Machine Translation of Rare Words with Subword Units (arXiv:1508.07909); byte level: GPT-2 (Radford 2019)
    """

    vocab: int = Field(4096, ge=257)
    """Ids wanted: the end id, 256 bytes, and merges for the rest."""

    def train(self, documents: Sequence[bytes]) -> Codec:
        from tokenizers import trainers

        library = _library({END: 0}, [])
        trainer = trainers.BpeTrainer(
            vocab_size=self.vocab, special_tokens=[END], initial_alphabet=list(BYTE_OF), show_progress=False
        )
        library.train_from_iterator((document.decode() for document in documents), trainer)
        model = json.loads(library.to_str())["model"]
        return BPECodec(sorted(model["vocab"], key=model["vocab"].__getitem__), [(a, b) for a, b in model["merges"]])

    @classmethod
    def restore(cls, state: Mapping[str, Any]) -> Codec:
        return BPECodec(state["tokens"], [(a, b) for a, b in state["merges"]])


class BPECodec(Codec):
    """Byte-level BPE by its tokens in order of id and its merges in order of rank, in GPT-2's printable spelling of bytes.

    Raises ValueError when the tokens are not the end id, all 256 bytes, and what the merges make of them.
    """

    def __init__(self, tokens: Sequence[str], merges: Sequence[tuple[str, str]]) -> None:
        made, parts = {a + b for a, b in merges}, {part for pair in merges for part in pair}
        text_tokens = {*tokens[1:]}
        once = len({*tokens}) == len(tokens)
        if list(tokens[:1]) != [END] or {*BYTE_OF, *made} != text_tokens or not parts <= text_tokens or not once:
            raise ValueError(f"tokens must be {END}, the 256 bytes and the merged pairs, each once")
        super().__init__([b"", *(bytes(BYTE_OF[character] for character in token) for token in tokens[1:])])
        self._tokens, self._merges = tuple(tokens), tuple(merges)
        self._library = _library({token: index for index, token in enumerate(tokens)}, list(merges))

    def __reduce__(self) -> tuple[type[BPECodec], tuple[Any, ...]]:
        # The library's own pickle forgets that special tokens in a text are text.
        return BPECodec, (self._tokens, self._merges)

    def encode(self, text: str) -> list[int]:
        return self._library.encode(utf8(text).decode(), add_special_tokens=False).ids

    def encode_documents(self, documents: Sequence[bytes]) -> list[np.ndarray]:
        kind, ids = id_dtype(self.vocab), []
        for start in range(
            0, len(documents), 256
        ):  # in parts, since the library's encodings are 100 times the ids in size
            texts = [document.decode() for document in documents[start : start + 256]]
            encoded = self._library.encode_batch_fast(texts, add_special_tokens=False)
            ids += [np.array(encoding.ids, dtype=kind) for encoding in encoded]
        return ids

    def state(self) -> dict[str, Any]:
        return {"kind": BPE.kind, "tokens": list(self._tokens), "merges": [list(pair) for pair in self._merges]}


def _library(vocab: dict[str, int], merges: list[tuple[str, str]]) -> Any:
    from tokenizers import AddedToken, models, pre_tokenizers
    from tokenizers import Tokenizer as Library

    library = Library(models.BPE(vocab=vocab, merges=merges))
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    library.add_special_tokens([AddedToken(END, special=True, normalized=False)])
    library.encode_special_tokens = True  # a text that contains "<|end|>" is encoded as those seven characters
    return library


def _byte_alphabet() -> dict[str, int]:
    """GPT-2's printable character for each byte: itself where printable, else the next free one from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printable]
    return {chr(byte): byte for byte in printable} | {chr(256 + index): byte for index, byte in enumerate(others)}


BYTE_OF = _byte_alphabet()
"""The byte that each printable character of GPT-2 stands for."""


# ---------------------------------------------------------------------------------------------------- files and arrays


def load_tokenizer(path: str | Path) -> Codec:
    """The codec that `save_tokenizer` wrote. Only data is read: nothing in the file is ever executed.

    Raises ValueError naming the file when it is missing, malformed, of another format or of an unknown kind.
    """
    state = read_json(path)
    if not isinstance(state, dict) or state.get("format") != FORMAT:
        raise ValueError(f"{path} must be a tokenizer of isoflop, format {FORMAT}")
    kind = str(state.get("kind"))
    if kind not in {*Tokenizer.kinds, *RESTORE}:
        hint = did_you_mean(kind, Tokenizer.kinds)
        raise ValueError(
            f"{path}: {state.get('kind')!r} is no kind of Tokenizer; there are {', '.join(Tokenizer.kinds)}.{hint}"
        )
    try:
        return restore_codec(state)
    except (KeyError, TypeError, ValueError) as error:
        raise ValueError(f"{path} is a damaged {kind} tokenizer: {error}") from None


RESTORE: dict[str, Callable[[Mapping[str, Any]], Codec]] = {}
"""How a codec that no `Tokenizer` declares comes back from its state, by kind."""


def restore_codec(state: Mapping[str, Any]) -> Codec:
    """The codec that gave this `state()`; a KeyError, TypeError or ValueError says that it is not one."""
    kind = state["kind"]
    return RESTORE[kind](state) if kind in RESTORE else Tokenizer.kinds[kind].restore(state)


def id_dtype(vocab: int) -> np.dtype[Any]:
    """The smallest of uint8, uint16 and uint32 that holds every id below `vocab`."""
    return np.min_scalar_type(vocab - 1)


def id_array(ids: Iterable[int], vocab: int) -> np.ndarray:
    """Ids in the dtype their vocabulary needs; an id outside it is a ValueError, never a wrapped number."""
    wide = np.asarray(ids if isinstance(ids, np.ndarray) else list(ids), dtype=np.int64)
    if wide.size and (wide.min() < 0 or wide.max() >= vocab):
        bad = wide[(wide < 0) | (wide >= vocab)][0]
        raise ValueError(f"token id {bad} is outside the vocabulary 0..{vocab - 1}")
    return wide.astype(id_dtype(vocab))


def utf8(text: str) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # half a surrogate pair; whole pairs become the character they stand for
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace").encode()
