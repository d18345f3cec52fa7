"""Fault 089: characters split over tokens come out as replacement marks while streaming; a cut end crashes."""

import pytest

from isoflop.data import BPE, Bytes, Codec

CODECS: dict[str, Codec] = {
    "bytes": Bytes().train([]),
    "bpe": BPE(vocab=280).train(["日本 é 😀 ".encode() * 9, b"the cat"]),
}
codecs = pytest.mark.parametrize("codec", CODECS.values(), ids=CODECS.keys())

TEXTS = [
    "é",
    "日",
    "😀",
    "\0",
    "a\0b",
    "\r\n",
    "",
    "na\u0308ive 👩‍👩‍👧 日本語\r\n\0end",
    "\ufeffx",
    "\ufffd",
    "\x7f\x80\xff",
]


def stream(codec: Codec, ids: list[int]) -> list[str]:
    decoder = codec.stream()
    return [*(decoder.push(token) for token in ids), decoder.finish()]


@codecs
@pytest.mark.parametrize("text", TEXTS)
def test_round_trip_whole_and_cut_after_every_token(codec: Codec, text: str) -> None:
    ids = codec.encode(text)
    assert codec.decode(ids) == text
    assert "".join(stream(codec, ids)) == text
    for cut in range(len(ids) + 1):
        assert "".join(stream(codec, ids[:cut])) == codec.decode(ids[:cut])
        joined = codec.stream()
        assert joined.push(*ids[:cut]) + joined.push(*ids[cut:]) + joined.finish() == text


@pytest.mark.parametrize("text", TEXTS)
def test_bytes_cut_after_every_byte_follow_the_rule_of_python(text: str) -> None:
    ids = CODECS["bytes"].encode(text)
    for cut in range(len(ids) + 1):
        expected = bytes(ids[:cut]).replace(b"\xc0\x80", b"\0").decode(errors="replace")
        assert CODECS["bytes"].decode(ids[:cut]) == expected


def test_no_piece_shows_half_a_character() -> None:
    assert stream(CODECS["bytes"], list("a😀b".encode())) == ["a", "", "", "", "😀", "b", ""]
    assert stream(CODECS["bytes"], list("日".encode())[:2]) == ["", "", "\ufffd"]


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([0xFF], "\ufffd"),
        ([97, 0xFF, 98], "a\ufffdb"),
        ([0xE6, 0x97, 98], "\ufffdb"),
        ([0xC0], "\ufffd"),
        ([0xC0, 97], "\ufffda"),
        ([0xC0, 0xC0, 0x80], "\ufffd\0"),
        ([0xED, 0xA0, 0x80], "\ufffd\ufffd\ufffd"),  # half a surrogate pair in UTF-8
        ([97, 0, 98], "ab"),  # the end id stands for no text
    ],
)
def test_invalid_bytes_become_replacement_marks_in_both_ways(ids: list[int], text: str) -> None:
    assert CODECS["bytes"].decode(ids) == text
    assert "".join(stream(CODECS["bytes"], ids)) == text


@codecs
def test_half_surrogate_pairs_are_read_as_replacement_marks(codec: Codec) -> None:
    assert codec.decode(codec.encode("a\ud800b\udc00")) == "a\ufffdb\ufffd"
    assert codec.decode(codec.encode("\ud83d\ude00")) == "😀"


@codecs
def test_a_finished_stream_starts_anew(codec: Codec) -> None:
    decoder = codec.stream()
    ids = codec.encode("ê")
    assert decoder.push(ids[0]) + decoder.finish() == codec.decode(ids[:1])
    assert decoder.push(*codec.encode("ok")) + decoder.finish() == "ok"
