"""Fault 090: control tokens written in a text are taken as real ones."""

from pathlib import Path

import numpy as np
import pytest

from isoflop.data import BPE, Bytes, Codec, Data, load, load_tokenizer

SPOOF = "before<|end|>after <|end|>\0<|END|> <|endoftext|> </s>"
CODECS: dict[str, Codec] = {
    "bytes": Bytes().train([]),
    "bpe": BPE(vocab=400).train([b"<|end|>" * 200, b"<|end|> some text " * 50]),
}
codecs = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())


@codecs
@pytest.mark.parametrize("text", [SPOOF, "<|end|>", "\0", "<|end|><|end|>", "", " <|end|>\n"])
def test_text_with_the_name_of_the_end_token_is_text(codec: Codec, text: str) -> None:
    ids = codec.encode(text)
    assert codec.end_id not in ids
    assert codec.decode(ids) == text


@codecs
def test_the_rule_outlives_a_file(codec: Codec, tmp_path: Path) -> None:
    codec.save_tokenizer(tmp_path / "tokenizer.json")
    again = load_tokenizer(tmp_path / "tokenizer.json")
    assert again.encode(SPOOF) == codec.encode(SPOOF)
    assert again.end_id not in again.encode(SPOOF)


@codecs
def test_encoding_adds_nothing_at_either_side(codec: Codec) -> None:
    assert codec.encode("") == []
    assert len(codec.encode("a")) == 1


@codecs
def test_the_end_id_is_no_text_and_no_bytes(codec: Codec) -> None:
    assert codec.decode([codec.end_id]) == ""
    assert codec.token_bytes[codec.end_id] == 0


@pytest.mark.parametrize("tokenizer", [{"kind": "bytes"}, {"kind": "bpe", "vocab": 400}])
def test_a_stream_holds_one_end_id_a_document(tmp_path: Path, tokenizer: dict[str, object]) -> None:
    for index in range(20):
        (tmp_path / f"{index:02}.txt").write_text("a line with <|end|> in it\n" * (index + 1))
    corpus = load(Data.parse({"source": str(tmp_path), "tokenizer": tokenizer}))
    for tokens, starts in ((corpus.train, corpus.train_starts), (corpus.validation, corpus.validation_starts)):
        ends = np.flatnonzero(tokens == corpus.tokenizer.end_id)
        assert ends.tolist() == [*(starts[1:] - 1), len(tokens) - 1]
