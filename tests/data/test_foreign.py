"""A tokenizer.json as a codec, against the library's own encoding and decoding; ids as text."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors, trainers

from isoflop.data import NO_END, IdCodec, LibraryCodec, load_tokenizer

TEXT = "import os, sys\nfor path in sys.argv:\n    print('naïve café', path)\n" * 3
SAMPLES = ["for path in", " leading", "naïve 漢字 \U0001f600", "a", "", "x  y\n\tz", "<s> is text", "\x00", "\ud800"]


def byte_level(prefix: bool = False) -> Tokenizer:
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=prefix)
    made.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, special_tokens=["<s>", "</s>"], initial_alphabet=alphabet)
    made.train_from_iterator([TEXT], trainer)
    made.add_tokens(["<<word>>"])
    return made


def sentence_piece() -> Tokenizer:
    """As Llama 2 has it: a mark for spaces, one in front, bytes for what no piece covers."""
    pieces = ["<unk>", "<s>", "</s>", *(f"<0x{byte:02X}>" for byte in range(256)), *"\u2581abcdefghijklmnoprstuvxyz"]
    merges = [("\u2581", "f"), ("o", "r"), ("\u2581f", "or")]
    vocab = {piece: number for number, piece in enumerate([*pieces, *(a + b for a, b in merges)])}
    made = Tokenizer(models.BPE(vocab=vocab, merges=merges, unk_token="<unk>", byte_fallback=True, fuse_unk=True))
    made.normalizer = normalizers.Sequence([normalizers.Prepend("\u2581"), normalizers.Replace(" ", "\u2581")])
    parts = [decoders.Replace("\u2581", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    made.decoder = decoders.Sequence(parts)
    made.add_special_tokens(["<unk>", "<s>", "</s>"])
    made.post_processor = processors.TemplateProcessing(single="<s> $A </s>", special_tokens=[("<s>", 1), ("</s>", 2)])
    return made


MADE = {"byte-level": byte_level, "byte-level-prefix": lambda: byte_level(True), "sentence-piece": sentence_piece}


def codec_of(made: Tokenizer, vocab: int = 400, end: int | None = 1) -> LibraryCodec:
    return LibraryCodec(json.loads(made.to_str()), vocab, end)


@pytest.mark.parametrize("name", MADE)
def test_ids_are_those_of_the_library(name: str) -> None:
    made = MADE[name]()
    codec = codec_of(made)
    start = [1] if name == "sentence-piece" else []
    assert codec.start == start
    for text in SAMPLES[:6]:
        plain = made.encode(text, add_special_tokens=False).ids
        assert codec.encode(text) == [*start, *plain]
        assert [ids.tolist() for ids in codec.encode_documents([text.encode()])] == [plain]


@pytest.mark.parametrize(("name", "put_in_front"), [("byte-level", ""), ("sentence-piece", " ")])
def test_text_comes_back(name: str, put_in_front: str) -> None:
    codec = codec_of(MADE[name]())
    for text in SAMPLES:
        ids = codec.encode(text)
        readable = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
        assert codec.decode(ids) == readable
        stream = codec.stream()
        pushed = "".join(stream.push(token) for token in ids) + stream.finish()
        assert pushed == (put_in_front if text else "") + readable


@pytest.mark.parametrize("name", MADE)
def test_a_continuation_is_decoded_as_it_stands(name: str) -> None:
    """The library drops the space in front of a text; of one that goes on it must stay."""
    codec = codec_of(MADE[name]())
    whole = codec.encode("for for")
    assert codec.decode(whole[len(codec.encode("for")) :]) == " for"


@pytest.mark.parametrize("name", MADE)
def test_text_yields_no_control_ids(name: str) -> None:
    """Fault 090: the characters of a special token are characters."""
    made = MADE[name]()
    codec = codec_of(made)
    special = {token for token, added in made.get_added_tokens_decoder().items() if added.special}
    assert special
    for token in special:
        assert codec.pieces[token] == b""
    ids = codec.encode("</s> and <s>")[len(codec.start) :]
    assert not special & set(ids)
    assert codec.token_bytes[sorted(special)].tolist() == [0] * len(special)


def test_an_added_word_is_text() -> None:
    codec = codec_of(byte_level())
    ids = codec.encode("a<<word>>b")
    assert len(ids) == 3
    assert codec.decode(ids) == "a<<word>>b"


@pytest.mark.parametrize("name", MADE)
def test_a_codec_is_saved_and_travels(name: str, tmp_path: Path) -> None:
    made = MADE[name]()
    codec = codec_of(made)
    codec.save_tokenizer(tmp_path / "tokenizer.json")
    codec.save_library(tmp_path / "library.json")
    for other in (load_tokenizer(tmp_path / "tokenizer.json"), pickle.loads(pickle.dumps(codec))):
        assert (other.vocab, other.end_id, other.pieces) == (400, 1, codec.pieces)
        assert other.encode("for path") == codec.encode("for path")
    assert Tokenizer.from_file(str(tmp_path / "library.json")).encode("for").ids == made.encode("for").ids


def test_limits_and_padding_of_the_file_do_not_apply() -> None:
    made = byte_level()
    made.enable_truncation(3)
    made.enable_padding(length=64)
    assert codec_of(made).encode("for path in sys.argv") == byte_level().encode("for path in sys.argv").ids


def test_word_pieces_are_words_with_spaces() -> None:
    made = Tokenizer(models.WordPiece({"[UNK]": 0, "play": 1, "##ing": 2, "cards": 3}, unk_token="[UNK]"))
    made.pre_tokenizer, made.decoder = pre_tokenizers.Whitespace(), decoders.WordPiece()
    assert codec_of(made, 4, None).decode([1, 2, 3]) == " playing cards"


def test_an_id_that_ends_nothing() -> None:
    made = byte_level()
    codec = codec_of(made, 100, None)
    assert codec.end_id == NO_END
    assert codec.vocab == made.get_vocab_size() > 100, "ids that the model lacks are spelled all the same"


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("{}", "must be a tokenizer.json"),
        ("[1]", "must be a tokenizer.json"),
        ("{", "is not valid JSON"),
        ('{"model": {"type": "BPE"}}', "is no tokenizer.json that the library can read"),
    ],
)
def test_a_file_that_is_none_is_refused(tmp_path: Path, content: str, words: str) -> None:
    (tmp_path / "tokenizer.json").write_text(content)
    with pytest.raises(ValueError, match=words):
        LibraryCodec.read(tmp_path / "tokenizer.json", 10, None)


def test_a_decoder_that_does_not_go_token_by_token_is_refused() -> None:
    made = byte_level()
    made.decoder = decoders.CTC()
    with pytest.raises(ValueError, match="its decoder is CTC; those that give text token by token are ByteLevel"):
        codec_of(made)


@pytest.mark.parametrize("text", ["five", "1 -2", "3 ²", "12", "1.5"])
def test_text_that_is_no_ids_is_refused(text: str) -> None:
    codec: Any = IdCodec(12, None)
    with pytest.raises(ValueError, match="text is token ids here"):
        codec.encode(text)


def test_ids_as_text(tmp_path: Path) -> None:
    codec = IdCodec(12, 3)
    assert codec.encode("5  7\n11") == [5, 7, 11]
    assert codec.decode([5, 3, 11]) == "5 11 "
    codec.save_tokenizer(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert (again.vocab, again.end_id, again.pieces) == (12, 3, codec.pieces)
