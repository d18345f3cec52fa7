import gettext
import struct
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from catalogues import catalogue, install
from isoflop.data import Data, Pair, PairCorpus, Translation, load, translations
from isoflop.data.translation import Message, catalogue_roots, languages, read_catalogue
from isoflop.spec import SpecError

RUSSIAN = "n%10==1 && n%100!=11 ? 0 : n%10>=2 && n%10<=4 && (n%100<10 || n%100>=20) ? 1 : 2"
SLOVENE = "n%100==1 ? 1 : n%100==2 ? 2 : n%100==3 || n%100==4 ? 3 : 0"


@pytest.fixture
def machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two languages, two programs."""
    root = tmp_path / "locale"
    german = {
        "Open %s": "%s öffnen",
        "Quit": "Beenden",
        "OK": "OK",
        "empty": "",
        "blank": "  ",
        "one file\0%d files": "eine Datei\0%d Dateien",
        "menu\x04File": "Datei",
    }
    install(root, "de", "a", catalogue(german))
    install(root, "de", "b", catalogue({"Quit": "Beenden", "Close": "Schließen"}, "ISO-8859-1", ">"))
    install(root, "de", "damaged", b"\xde\x12\x04\x95 not a catalogue")
    install(root, "de", "text", b"hello")
    install(root, "de", "none", b"")
    install(root, "fr", "a", catalogue({"Open %s": "Ouvrir %s", "menu\x04File": "Fichier", "File": "Dossier"}))
    install(root, "fr", "b", catalogue({"Quit": "Quitter"}))
    install(root, "ja", "a", catalogue({"one file\0%d files": "%d 個のファイル", "x\0y": ""}, plural="0"))
    install(root, "ru", "a", catalogue({"one file\0%d files": "файл\0файла\0файлов"}, plural=RUSSIAN))
    monkeypatch.setattr("isoflop.data.translation.catalogue_roots", lambda: [root])
    return root


GERMAN = [
    ("%d files", "%d Dateien"),
    ("Close", "Schließen"),
    ("File", "Datei"),
    ("Open %s", "%s öffnen"),
    ("Quit", "Beenden"),
    ("one file", "eine Datei"),
]


def test_pairs_of_a_known_machine(machine: Path) -> None:
    assert Translation(target="de").pairs() == GERMAN
    assert Translation(source="de", target="en").pairs() == sorted((b, a) for a, b in GERMAN)


def test_two_languages_meet_in_the_same_message(machine: Path) -> None:
    """ "File" of French stands without a context, which is another message; "Quit" is in another program."""
    assert Translation(source="de", target="fr").pairs() == [
        ("%s öffnen", "Ouvrir %s"),
        ("Beenden", "Quitter"),
        ("Datei", "Fichier"),
    ]


def test_plural_forms(machine: Path) -> None:
    assert Translation(target="ja").pairs() == [("%d files", "%d 個のファイル")]
    assert Translation(target="ru").pairs() == [("%d files", "файлов"), ("one file", "файл")]


@pytest.mark.parametrize(
    ("plural", "texts", "pairs"),
    [
        ("n != 1", "a\0b", [("one", "a"), ("many", "b")]),
        (SLOVENE, "many\0one\0two\0few", [("one", "one"), ("many", "many")]),
        (RUSSIAN, "a\0b", [("one", "a")]),
        ("n > 1 ? __import__('os') : 0", "a\0b", []),
        ("n / 0", "a\0b", []),
        ("(" * 500, "a\0b", []),
    ],
    ids=["two forms", "form 0 is the plural", "the form is missing", "code", "no number", "too deep"],
)
def test_the_rule_of_plurals_says_which_form(plural: str, texts: str, pairs: list[tuple[str, str]]) -> None:
    found = read_catalogue(catalogue({"one\0many": texts}, plural=plural))
    assert [(message.text, text) for message, text in found] == pairs


def test_what_is_listed(machine: Path) -> None:
    assert {language: len(paths) for language, paths in languages().items()} == {"de": 5, "fr": 2, "ja": 1, "ru": 1}
    rows = translations()
    assert [(row.name, row.pairs, row.files) for row in rows] == [
        ("translation:en-de", 6, 5),
        ("translation:en-fr", 4, 2),
        ("translation:en-ja", 1, 1),
        ("translation:en-ru", 2, 1),
    ]
    assert [row.skipped for row in rows] == [3, 0, 0, 0]
    assert rows[0].bytes == sum(len(text.encode()) for pair in GERMAN for text in pair)
    assert [row.name for row in translations(only=1)] == ["translation:en-de"]


def test_the_first_of_two_catalogues_of_one_name_counts(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = machine.parent / "other"
    install(other, "fr", "b", catalogue({"Quit": "Sortir", "Help": "Aide"}))
    monkeypatch.setattr("isoflop.data.translation.catalogue_roots", lambda: [other, machine])
    found = dict(Translation(target="fr").pairs())
    assert (found["Quit"], found["Help"], found["Open %s"]) == ("Sortir", "Aide", "Ouvrir %s")


def test_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("home", "shared", "prefix/share"):
        (tmp_path / name / "locale").mkdir(parents=True)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_DATA_DIRS", f"{tmp_path / 'shared'}:relative:{tmp_path / 'missing'}:{tmp_path / 'home'}")
    monkeypatch.setattr(sys, "prefix", str(tmp_path / "prefix"))
    roots = catalogue_roots()
    assert roots[:3] == [tmp_path / name / "locale" for name in ("home", "prefix/share", "shared")]
    assert len({*roots}) == len(roots)


# ------------------------------------------------------------------------------------------- one catalogue


def test_python_reads_the_same(tmp_path: Path) -> None:
    entries = {"a": "ä", "b\nc": "ß %(name)s", "menu\x04File": "Datei"}
    for order in "<>":
        (tmp_path / "x.mo").write_bytes(catalogue(entries, order=order))
        with (tmp_path / "x.mo").open("rb") as file:
            theirs = gettext.GNUTranslations(file)
        ours = dict(read_catalogue((tmp_path / "x.mo").read_bytes(), "x"))
        assert len(ours) == 3
        for (domain, context, text), translated in ours.items():
            assert domain == "x"
            assert translated == (theirs.pgettext(context, text) if context else theirs.gettext(text))


@pytest.mark.parametrize("charset", ["UTF-8", "ISO-8859-1", "EUC-JP", "KOI8-R"])
def test_character_sets(charset: str) -> None:
    text = {"UTF-8": "ü", "ISO-8859-1": "ü", "EUC-JP": "個", "KOI8-R": "ф"}[charset]
    assert list(read_catalogue(catalogue({"x": text}, charset))) == [(Message("", "", "x"), text)]


def test_bytes_outside_the_declared_character_set_are_passed_over() -> None:
    latin = catalogue({"x": "ü", "y": "z"}, "ISO-8859-1")
    declared = latin.replace(b"charset=ISO-8859-1", b"charset=UTF-8     ")
    assert list(read_catalogue(declared)) == [(Message("", "", "y"), "z")]


@pytest.mark.parametrize("charset", [b"hex       ", b"nonsense  ", b"zip       "])
def test_an_unknown_character_set_gives_nothing(charset: bytes) -> None:
    data = catalogue({"x": "y"}, "ISO-8859-1").replace(b"ISO-8859-1", charset)
    assert list(read_catalogue(data)) == []


def test_half_a_surrogate_pair_is_passed_over() -> None:
    data = catalogue({"x": "+2AA-", "y": "z"}, "ISO-8859-1").replace(b"ISO-8859-1", b"utf-7     ")
    assert list(read_catalogue(data)) == [(Message("", "", "y"), "z")]


def test_an_entry_outside_the_file_is_passed_over() -> None:
    data = bytearray(catalogue({"x": "y", "z": "w"}))
    data[28 + 8 : 28 + 12] = struct.pack("<I", 2**31)  # the size of "x"
    assert list(read_catalogue(bytes(data))) == [(Message("", "", "z"), "w")]


@given(st.data())
def test_no_damage_raises(data: st.DataObject) -> None:
    whole = catalogue({"a\0b": "c\0d", "menu\x04e": "f", "g": "h"})
    cut = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(0, 4))):
        if cut:
            cut[data.draw(st.integers(0, len(cut) - 1))] = data.draw(st.integers(0, 255))
    for message, text in read_catalogue(bytes(cut)):
        assert message.text.strip()
        assert text.strip()
        assert "\0" not in message.text + text


def test_a_million_entries_declared_in_few_bytes_cost_nothing() -> None:
    head = struct.pack("<7I", 0x950412DE, 0, 2**32 - 1, 28, 28, 0, 28)
    assert list(read_catalogue(head + b"x" * 100)) == []


# ------------------------------------------------------------------------------------------- the split


@pytest.fixture
def large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    root = tmp_path / "many"
    entries = {f"{word} number {n}": f"{n}. {word}" for n in range(200) for word in ("Word", "_Word", "word...")}
    install(root, "de", "a", catalogue(entries))
    install(root, "de", "b", catalogue({message: f"{text}!" for message, text in entries.items()}))
    monkeypatch.setattr("isoflop.data.translation.catalogue_roots", lambda: [root])
    return root


def test_validation_shares_no_source_with_training(large: Path) -> None:
    texts = Translation().read(None)
    assert len(texts.train) + len(texts.validation) == 1200
    assert 40 < len(texts.validation) < 240
    keys = [{source.lower().replace("_", "").replace(".", "") for source, _ in side} for side in texts[:2]]
    assert not keys[0] & keys[1]
    assert texts.train == sorted(texts.train)


def test_a_smaller_limit_sees_a_part_of_a_larger_one(large: Path) -> None:
    whole, large_part, small_part = (Translation().read(limit) for limit in (None, 8000, 4000))
    for side in (0, 1):
        assert {*small_part[side]} < {*large_part[side]} < {*whole[side]}
    for part, limit in ((large_part, 8000), (small_part, 4000)):
        assert sum(len(text.encode()) for pair in part.train for text in pair) in range(
            int(0.85 * limit), int(0.9 * limit) + 1
        )
        assert sum(len(text.encode()) for pair in part.validation for text in pair) <= limit // 10


def test_as_a_source(large: Path) -> None:
    data = Data(source="translation:en-de")  # type: ignore[arg-type]
    assert Data(source="translation:de") == data  # type: ignore[arg-type]
    assert data == Data.parse({"source": {"kind": "translation", "source": "en", "target": "de"}})
    assert Data.parse(data.dump()) == data
    found = load(data)
    assert isinstance(found, PairCorpus)
    assert (found.source, found.vocab, found.separator) == ("translation:en-de", 257, 256)
    pairs = [Pair(*(found.tokenizer.decode(ids.tolist()) for ids in found.train[i])) for i in range(len(found.train))]
    assert pairs == Translation().read(None).train
    merged = load(data.override({"tokenizer": {"kind": "bpe", "vocab": 300}}))
    assert isinstance(merged, PairCorpus)
    assert merged.vocab == 301
    assert len(merged.train.sources) < len(found.train.sources) / 2
    assert len({found.digest, merged.digest, load(data.override({"limit": 5000})).digest}) == 3
    with pytest.raises(SpecError, match=r"^source: translation:en-de leaves no pair for training; raise the limit"):
        load(data.override({"limit": 10}))


def test_another_process_reads_the_same(large: Path) -> None:
    code = (
        "import pathlib, isoflop.data.translation as t; from isoflop.data import *;"
        f"t.catalogue_roots = lambda: [pathlib.Path({str(large)!r})]; print(load(Data(source='translation:en-de')).digest)"
    )
    here = load(Data(source="translation:en-de")).digest  # type: ignore[arg-type]
    for seed in ("1", "2"):
        env = {"PYTHONHASHSEED": seed}
        said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=env).stdout
        assert said == f"{here}\n"


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("translation:", r"^source: must look like translation:de or translation:en-de, came 'translation:'"),
        ("translation:a-b-c", r"^source: must look like translation:de or translation:en-de"),
        ("translation:de-de", r"^source.target: must be another language than the source, came 'de' twice"),
        ("translation:en-../../x", r"^source.target: String should match"),
    ],
)
def test_errors_of_the_declaration(source: str, message: str) -> None:
    with pytest.raises(SpecError, match=message):
        Data.parse({"source": source})


def test_a_language_that_is_not_there(machine: Path) -> None:
    with pytest.raises(SpecError, match=r"^source\.source: no gettext .* in 'frr'; .*Did you mean 'fr'"):
        load(Data(source="translation:frr-en"))  # type: ignore[arg-type]
    install(machine, "en_GB", "a", catalogue({"color": "colour", "OK": "OK"}))
    assert Translation(target="en_GB").pairs() == [("color", "colour")]
