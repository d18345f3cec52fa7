import pickle
from pathlib import Path

import pytest

from isoflop.data import BPE, Bytes, Codec, MarkedCodec, SymbolCodec, load_tokenizer
from isoflop.files import write_json

TEXT = "ab ab <|end|> ünïcode \0 \t□"
CODECS = {
    "bytes": Bytes().train([]),
    "bpe": BPE(vocab=260).train([b"ab ab ab"]),
    "symbols": SymbolCodec("ab <|end>üïco\0\t□"),
}


@pytest.mark.parametrize("text", CODECS.values(), ids=CODECS)
def test_marks_are_ids_behind_the_last_and_in_no_text(text: Codec) -> None:
    codec = MarkedCodec(text, ["separator", "mask"])
    assert codec.vocab == text.vocab + 2
    assert (codec.mark_id("separator"), codec.mark_id("mask")) == (text.vocab, text.vocab + 1)
    assert codec.encode(TEXT) == text.encode(TEXT)
    assert codec.decode(codec.encode(TEXT)) == TEXT
    assert max(codec.encode(TEXT)) < text.vocab
    assert codec.encode_documents([TEXT.replace("\0", "").encode()])[0].tolist() == text.encode(TEXT.replace("\0", ""))
    assert codec.decode([*codec.encode("ab"), text.vocab, *codec.encode("b"), text.vocab + 1, 0]) == "ab\tb□"
    assert codec.token_bytes.tolist() == [*text.token_bytes.tolist(), 0, 0]


@pytest.mark.parametrize("text", CODECS.values(), ids=CODECS)
def test_a_codec_comes_back_from_its_file(text: Codec, tmp_path: Path) -> None:
    for codec in (text, MarkedCodec(text, ["separator"])):
        codec.save_tokenizer(tmp_path / "t.json")
        for again in (load_tokenizer(tmp_path / "t.json"), pickle.loads(pickle.dumps(codec))):
            assert type(again) is type(codec)
            assert again.state() == codec.state()
            assert again.pieces == codec.pieces
            assert again.encode(TEXT) == codec.encode(TEXT)


@pytest.mark.parametrize(
    "state",
    [
        {"kind": "symbols"},
        {"kind": "symbols", "characters": "aa"},
        {"kind": "symbols", "characters": ""},
        {"kind": "marked", "marks": ["separator"]},
        {"kind": "marked", "marks": ["other"], "text": {"kind": "bytes"}},
        {"kind": "marked", "marks": ["mask"], "text": {"kind": "what"}},
    ],
    ids=str,
)
def test_damaged_files_are_named(state: dict[str, object], tmp_path: Path) -> None:
    write_json(tmp_path / "t.json", {"format": 1, **state})
    with pytest.raises(ValueError, match=rf"t\.json is a damaged {state['kind']} tokenizer"):
        load_tokenizer(tmp_path / "t.json")
