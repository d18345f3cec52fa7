"""Sentence pairs from the machine's own gettext catalogues: what the installed programs say, in two languages.

A catalogue (`LANGUAGE/LC_MESSAGES/NAME.mo`) maps messages, by convention in English, to their translations. Nothing is
copied or passed on: the pairs are read where they lie, and differ from one machine to the next. The digest of what was
read is in every run.

A catalogue is data from elsewhere. Every offset is checked, nothing in it is executed, and what is damaged is left out.
"""

from __future__ import annotations

import gettext
import os
import re
import struct
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, NamedTuple, Self

from pydantic import Field, model_validator

from isoflop.data.corpora import SourceRow
from isoflop.data.pairs import NAMED, Pair, Pairs, PairTexts, divide_pairs
from isoflop.spec import SpecError, did_you_mean

ENGLISH = "en"
"""The language of the messages themselves, by convention."""

LICENCE = "of the programs"

_MAGIC = {b"\xde\x12\x04\x95": "<", b"\x95\x04\x12\xde": ">"}
_CONTEXT = "\x04"  # between the context and the message
_MANY = 5
"""The number that English's plural is taken to speak of, where a language has several plurals."""

Language = Annotated[str, Field(pattern=r"^[A-Za-z][A-Za-z0-9_@.-]*$")]


class Message(NamedTuple):
    """What a translation translates: one entry of one catalogue."""

    domain: str
    context: str
    text: str


class Translation(Pairs, kind="translation"):
    """What installed programs say in one language, and the same in another, read from the gettext catalogues of this machine.

    `en` stands for the messages themselves. Between two other languages, translations of one message make a pair. Left
    out are: empty and untranslated messages, and repeats. A plural entry gives its singular with the form for 1, and its
    plural with the form for 5; the latter alone where both are one form. Placeholders such as `%s` stay. Sources that differ in case, spaces or punctuation
    only are on one side of the split.

    Formula: pairs = {(message, translation)}, each once, sorted
    """

    source: Language = ENGLISH
    target: Language = "de"

    @model_validator(mode="after")
    def _two_languages(self) -> Self:
        if self.source == self.target:
            raise SpecError.at("target", f"must be another language than the source, came {self.target!r} twice")
        return self

    @property
    def name(self) -> str:
        return f"translation:{self.source}-{self.target}"

    def read(self, limit: int | None) -> PairTexts:
        return divide_pairs(self.pairs(), lambda pair: _key(pair.source), limit)

    def pairs(self) -> list[Pair]:
        """Every pair of this machine, sorted. Raises `SpecError` when a language is not there."""
        sides = [{} if language == ENGLISH else _translations(language) for language in (self.source, self.target)]
        for field, language, side in zip(("source", "target"), (self.source, self.target), sides, strict=True):
            if language != ENGLISH and not side:
                hint = did_you_mean(language, languages())
                raise SpecError.at(
                    f"source.{field}",
                    f"no gettext catalogue of this machine is in {language!r}; see `isoflop data list`.{hint}",
                )
        texts = [side or {message: message.text for message in other} for side, other in (sides, sides[::-1])]
        both = {Pair(texts[0][message], texts[1][message]) for message in texts[0].keys() & texts[1].keys()}
        return sorted(pair for pair in both if pair.source != pair.target)


def _named(languages: str) -> Translation:
    parts = languages.split("-")
    if not all(parts) or len(parts) > 2:
        raise SpecError(f"must look like translation:de or translation:en-de, came {'translation:' + languages!r}")
    return Translation(source=parts[0] if len(parts) == 2 else ENGLISH, target=parts[-1])


NAMED["translation"] = _named


def _key(text: str) -> str:
    """A text without case, spaces and punctuation: `_Open...` and `Open` are one sentence to whoever splits."""
    return "".join(filter(str.isalnum, text.casefold())) or text


# ---------------------------------------------------------------------------------------------------- what is there


def catalogue_roots() -> list[Path]:
    """Folders in which catalogues are searched, each once, those that exist."""
    home = os.environ.get("XDG_DATA_HOME") or os.path.expanduser("~/.local/share")
    shared = (os.environ.get("XDG_DATA_DIRS") or "/usr/local/share:/usr/share").split(":")
    shares = [home, os.path.join(sys.prefix, "share"), *filter(os.path.isabs, shared), "/usr/local/share", "/usr/share"]
    roots = [Path(share, name).resolve() for share in shares for name in ("locale", "locale-langpack")]
    return [root for root in dict.fromkeys(roots) if root.is_dir()]


def languages() -> dict[str, list[Path]]:
    """Paths of the catalogues of each language, by its code, in sorted order."""
    found: dict[str, list[Path]] = {}
    for root in catalogue_roots():
        for path in sorted(root.glob("*/LC_MESSAGES/*.mo")):
            found.setdefault(path.parent.parent.name, []).append(path)
    return dict(sorted(found.items()))


def translations(only: int | None = None) -> list[SourceRow]:
    """A row for English and each language (`only` those with most catalogues), languages without any pair left out."""
    known = languages()
    chosen = sorted(known, key=lambda language: (-len(known[language]), language))[:only]
    rows = [_row(language, known[language]) for language in sorted(chosen) if language != ENGLISH]
    return [row for row in rows if row.pairs]


def _row(language: str, paths: list[Path]) -> SourceRow:
    messages, skipped = read_catalogues(paths)
    pairs = {(m.text, text) for m, text in messages.items() if m.text != text}
    size = sum(len(text.encode()) for pair in pairs for text in pair)
    about = f"sentences of the installed programs, {len(pairs):,} pairs"
    name = f"translation:{ENGLISH}-{language}"
    return SourceRow(name, about, size, len(paths), LICENCE, bool(pairs), len(pairs), skipped)


def _translations(language: str) -> dict[Message, str]:
    paths = [path for root in catalogue_roots() for path in sorted((root / language).glob("LC_MESSAGES/*.mo"))]
    return read_catalogues(paths)[0]


def read_catalogues(paths: list[Path]) -> tuple[dict[Message, str], int]:
    """All messages of some catalogues, and how many of these gave none. Of two catalogues of one name the first counts."""
    found: dict[Message, str] = {}
    skipped = 0
    for path in paths:
        try:
            messages = list(read_catalogue(path.read_bytes(), path.stem))
        except OSError:  # a broken link, or a file of another user
            messages = []
        skipped += not messages
        for message, text in messages:
            found.setdefault(message, text)
    return found, skipped


# ---------------------------------------------------------------------------------------------------- one catalogue


def read_catalogue(data: bytes, domain: str = "") -> Iterator[tuple[Message, str]]:
    """The messages of a .mo file and their translations, without the header; nothing for a file that is none.

    Entries that lie outside the file, or are not in the declared character set, are passed over.
    """
    entries = list(_entries(data))
    header = next((text for message, text in entries if not message), b"").decode("ascii", "replace")
    charset = re.search(r"charset=([\w.:-]+)", header)
    encoding = charset[1] if charset else "utf-8"
    numbers = plural_forms(header)
    for raw_message, raw_text in entries:
        try:
            message, text = raw_message.decode(encoding), raw_text.decode(encoding)
            _ = (message + text).encode()  # some encodings yield half a surrogate pair, which UTF-8 cannot hold
        except (LookupError, ValueError):
            continue
        context, _, message = message.rpartition(_CONTEXT)
        for one, translated in _forms(message.split("\0"), text.split("\0"), numbers):
            if one.strip() and translated.strip():
                yield Message(domain, context, one), translated


def plural_forms(header: str) -> tuple[int, int] | None:
    """Which form of a plural entry is for one, and which for five, as the header says; English's rule where it says
    nothing, None for a rule that is none.

    It is read by the standard library's parser of such rules, which knows numbers, `n` and operators alone.
    """
    rule = re.search(r"plural=([^;\n]+)", header)
    try:
        number = gettext.c2py(rule[1] if rule else "n != 1")
        return int(number(1)), int(number(_MANY))
    except (ValueError, ArithmeticError):
        return None


def _forms(messages: list[str], texts: list[str], numbers: tuple[int, int] | None) -> list[tuple[str, str]]:
    """Messages and translations that correspond: one pair, or singular and plural with the forms for one and for five."""
    if len(messages) == 1:
        return [(messages[0], texts[0])] if len(texts) == 1 else []
    if numbers is None:
        return []
    both = [(message, texts[form]) for message, form in zip(messages, numbers, strict=False) if 0 <= form < len(texts)]
    return both if numbers[0] != numbers[1] else both[1:]


def _entries(data: bytes) -> Iterator[tuple[bytes, bytes]]:
    """Raw messages and translations, as the tables of the file say; the number of entries is bounded by the file's size."""
    order = _MAGIC.get(data[:4])
    if order is None or len(data) < 20:
        return
    count, messages_at, texts_at = struct.unpack_from(f"{order}3I", data, 8)
    if max(messages_at, texts_at) + 8 * count > len(data):
        return
    tables = [struct.unpack_from(f"{order}{2 * count}I", data, at) for at in (messages_at, texts_at)]
    for size, at, text_size, text_at in zip(
        tables[0][::2], tables[0][1::2], tables[1][::2], tables[1][1::2], strict=True
    ):
        if max(at + size, text_at + text_size) <= len(data):
            yield data[at : at + size], data[text_at : text_at + text_size]
