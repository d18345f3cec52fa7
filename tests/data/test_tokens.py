import json
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers.convert_slow_tokenizer import bytes_to_unicode

from isoflop.data import BPE, Bytes, Codec, Data, Tokenizer, load_tokenizer
from isoflop.data.tokens import id_array, id_dtype
from isoflop.spec import SpecError

TEXT = ["def f(x):\n    return x + 1\n" * 20, "the cat sat on the mat. the end <|end|> <|end|>\n" * 20]
DOCUMENTS = [text.encode() for text in TEXT]
CODECS: dict[str, Codec] = {"bytes": Bytes().train([]), "bpe": BPE(vocab=300).train(DOCUMENTS)}

codecs = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())


@codecs
@given(st.text())
def test_round_trip(codec: Codec, text: str) -> None:
    ids = codec.encode(text)
    assert codec.decode(ids) == text
    assert codec.end_id not in ids
    assert all(0 < token < codec.vocab for token in ids)


def ids_of_bytes(codec: Codec) -> dict[int, int]:
    """The id of each single byte: the byte itself, or by GPT-2's table as Hugging Face has it."""
    tokens = codec.state().get("tokens")
    if tokens is None:
        return {byte: byte for byte in range(256)}
    return {byte: tokens.index(character) for byte, character in bytes_to_unicode().items()}


@codecs
@given(st.binary())
def test_ids_of_any_bytes_decode_as_python_decodes_them(codec: Codec, data: bytes) -> None:
    """All but 0xC0 0x80, which is how a NUL is written, and NUL itself, whose id 0 ends a document."""
    data = data.replace(b"\xc0", b"\xc1").replace(b"\0", b"\1")
    ids = ids_of_bytes(codec)
    assert codec.decode(ids[byte] for byte in data) == data.decode(errors="replace")


@codecs
@given(st.lists(st.integers(0, 255), max_size=40), st.integers(0, 40))
def test_streamed_pieces_join_to_decode(codec: Codec, ids: list[int], cut: int) -> None:
    stream = codec.stream()
    pieces = [stream.push(token) for token in ids] + [stream.finish()]
    assert "".join(pieces) == codec.decode(ids)
    assert stream.push(*ids[:cut]) + stream.push(*ids[cut:]) + stream.finish() == codec.decode(ids)


def test_bytes_are_ids() -> None:
    codec = Bytes().train([])
    assert codec.vocab == 256
    assert codec.encode("aé\r\n") == [97, 0xC3, 0xA9, 13, 10]
    assert codec.token_bytes.tolist() == [0] + [1] * 255
    assert codec.token_bytes.dtype == np.int64
    (ids,) = codec.encode_documents(["aé".encode()])
    assert ids.tolist() == [97, 0xC3, 0xA9]


def test_bpe_merges_what_is_frequent_and_counts_its_bytes() -> None:
    codec = CODECS["bpe"]
    assert 280 < codec.vocab <= 300
    assert len(codec.encode("    return x")) < 6 < len("    return x")
    assert codec.token_bytes[0] == 0
    assert codec.token_bytes[1:257].tolist() == [1] * 256
    assert codec.token_bytes[257:].min() >= 2
    for text in ("the cat é 😀", *TEXT):
        assert codec.token_bytes[codec.encode(text)].sum() == len(text.encode())


def test_bpe_stops_where_the_text_has_no_more_pairs() -> None:
    assert BPE(vocab=5000).train([b"abab"]).vocab < 262


def test_bpe_encodes_documents_as_it_encodes_texts() -> None:
    many = DOCUMENTS * 200  # more than one part
    encoded = CODECS["bpe"].encode_documents(many)
    assert len(encoded) == 400
    for ids, text in zip(encoded[-2:], TEXT, strict=True):
        assert ids.dtype == np.uint16
        assert ids.tolist() == CODECS["bpe"].encode(text)


def test_equal_text_gives_an_equal_tokenizer_in_another_process() -> None:
    code = (
        "import json, sys; from isoflop.data import BPE;"
        "print(json.dumps(BPE(vocab=300).train([t.encode() for t in json.loads(sys.argv[1])]).state()))"
    )
    out = subprocess.run(
        [sys.executable, "-c", code, json.dumps(TEXT)], capture_output=True, text=True, check=True
    ).stdout
    assert json.loads(out) == CODECS["bpe"].state()


@codecs
def test_save_and_load(codec: Codec, tmp_path: Path) -> None:
    path = tmp_path / "tokenizer.json"
    codec.save_tokenizer(path)
    again = load_tokenizer(path)
    assert again.state() == codec.state()
    assert type(again) is type(codec)
    for text in (*TEXT, "new <|end|> text \0 😀"):
        assert again.encode(text) == codec.encode(text)
    assert np.array_equal(again.token_bytes, codec.token_bytes)


@codecs
def test_pickle_keeps_control_ids_out_of_text(codec: Codec) -> None:
    again = pickle.loads(pickle.dumps(codec))
    assert again.encode("a<|end|>\0") == codec.encode("a<|end|>\0")


BPE_STATE = {"format": 1, **CODECS["bpe"].state()}


@pytest.mark.parametrize(
    ("state", "message"),
    [
        ([], "must be a tokenizer of isoflop, format 1"),
        ({"kind": "bytes"}, "must be a tokenizer of isoflop, format 1"),
        ({"format": 1, "kind": "byte"}, "'byte' is no kind of Tokenizer; there are bytes, bpe.* Did you mean 'bytes'"),
        ({"format": 1, "kind": "bpe"}, "is a damaged bpe tokenizer: 'tokens'"),
        ({**BPE_STATE, "merges": BPE_STATE["merges"][:-1]}, "damaged bpe .* each once"),
        ({**BPE_STATE, "merges": [["a"]]}, "damaged bpe"),
        ({**BPE_STATE, "tokens": BPE_STATE["tokens"][1:]}, r"damaged bpe .*<\|end\|>"),
        ({**BPE_STATE, "tokens": [*BPE_STATE["tokens"], "a"]}, "damaged bpe .* each once"),
        (
            {**BPE_STATE, "tokens": [*BPE_STATE["tokens"], "qz"], "merges": [*BPE_STATE["merges"], ["qz", ""]]},
            "damaged bpe",
        ),
    ],
)
def test_damaged_files_are_refused(tmp_path: Path, state: Any, message: str) -> None:
    path = tmp_path / "tokenizer.json"
    path.write_text(json.dumps(state))
    with pytest.raises(ValueError, match=message):
        load_tokenizer(path)


def test_missing_and_truncated_files_are_named(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no such file: .*none\.json"):
        load_tokenizer(tmp_path / "none.json")
    path = tmp_path / "tokenizer.json"
    CODECS["bpe"].save_tokenizer(path)
    path.write_bytes(path.read_bytes()[:-20])
    with pytest.raises(ValueError, match=r"tokenizer\.json is not valid JSON"):
        load_tokenizer(path)


@codecs
@pytest.mark.parametrize("token", [-1, 10_000])
def test_ids_outside_the_vocabulary_are_refused(codec: Codec, token: int) -> None:
    with pytest.raises(ValueError, match=f"token id {token} is outside the vocabulary 0..{codec.vocab - 1}"):
        codec.decode([5, token])


def test_declaration() -> None:
    assert Data().tokenizer == Bytes()
    assert Tokenizer.parse({"kind": "bpe", "vocab": 512}) == BPE(vocab=512)
    data = Data(tokenizer=BPE(vocab=512), limit=1000, packing="documents", seed=3)
    assert Data.parse(data.dump()) == data
    assert Data.parse({"tokenizer": "bpe"}).tokenizer == BPE(vocab=4096)
    with pytest.raises(SpecError, match=r"tokenizer\.vocab: .*greater than or equal to 257"):
        Data.parse({"tokenizer": {"kind": "bpe", "vocab": 256}})
    with pytest.raises(SpecError, match="Did you mean 'bytes'"):
        Data.parse({"tokenizer": "byts"})


@pytest.mark.parametrize(
    ("vocab", "dtype"), [(1, "u1"), (256, "u1"), (257, "u2"), (65536, "u2"), (65537, "u4"), (100_000, "u4")]
)
def test_smallest_dtype_that_holds_every_id(vocab: int, dtype: str) -> None:
    assert id_dtype(vocab) == np.dtype(dtype)
    assert id_array([0, vocab - 1], vocab).tolist() == [0, vocab - 1]
