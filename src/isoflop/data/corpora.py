"""Text that is on every machine, text of the user, and how either is divided into training and validation.

A source is a list of documents (one file, topic or row each). The division goes by document, never by position, so that
validation shares no file with training. Everything here is bytes of valid UTF-8; token ids come later.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import re
import sys
import sysconfig
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from isoflop.spec import SpecError, did_you_mean

VALIDATION_SHARE = 0.1
"""Part of the bytes that is held out."""

_SUFFIXES = (
    "txt text md markdown rst tex org adoc log html htm css xml toml yaml yml ini cfg csv tsv py pyi c h cc cpp hpp cu rs go "
    "java kt scala js jsx ts tsx sh sql lua rb pl r jl hs ml"
)
TEXT_SUFFIXES = frozenset(f".{suffix}" for suffix in _SUFFIXES.split())
"""What a folder is searched for; anything else in it is left alone."""

NOT_CODE = frozenset({"test", "tests", "idle_test", "site-packages", "dist-packages", "__pycache__"})
"""Folders of a Python package that hold tests, other packages or nothing to read."""


@dataclass(frozen=True)
class Document:
    """One unit of text: its name, its bytes (UTF-8 without NUL) and what decides its side of the split.

    The key of a file is its relative path; the key of a row is its text, so equal rows fall on the same side.
    """

    name: str
    data: bytes
    key: bytes

    @property
    def rank(self) -> int:
        """A 64-bit hash of the key: the same on every machine, unmoved by documents that come or go."""
        return int.from_bytes(hashlib.blake2b(self.key, digest_size=8).digest(), "big")


class SourceRow(NamedTuple):
    """One line of `isoflop data list`; an absent source has zero bytes and files."""

    name: str
    description: str
    bytes: int
    files: int
    licence: str
    present: bool
    pairs: int | None = None
    """Pairs of a source and a target; None for a source of plain text."""
    skipped: int = 0
    """Files among `files` that gave nothing: damaged, or in an unknown character set."""


@dataclass(frozen=True)
class Builtin:
    """A source that needs no path: what it is, under which licence, and how to read it (no documents = not here)."""

    description: str
    licence: str
    read: Callable[[], list[Document]]


# ---------------------------------------------------------------------------------------------------- built-in sources


def is_generated(data: bytes) -> bool:
    """Whether a Python file was made by a program or is a table, which would teach a language model nothing but numbers.

    A file is generated when one of its first three lines says "generated" or "do not edit" (codec tables, `keyword.py`,
    `_sysconfigdata`, `pydoc_data/topics.py`). A file of 10 kB or more is a table when over half of its lines begin with a
    literal, such as `'AElig;': '\\xc6',` (`html/entities.py`, `encodings/aliases.py`).
    """
    if _GENERATED.search(b"\n".join(data.split(b"\n", 3)[:3])):
        return True
    if len(data) < 10_000:
        return False
    lines = [line for line in data.split(b"\n") if line.strip()]
    return sum(line.lstrip(b" \t[({")[:1] in _LITERAL for line in lines) > len(lines) / 2


_GENERATED = re.compile(rb"generated|do not edit", re.IGNORECASE)
_LITERAL = frozenset(bytes([byte]) for byte in b"0123456789'\"\\")


def _python_files(root: Path) -> list[Document]:
    """The hand-written `.py` files below `root`. Files not in UTF-8 are left out: other encodings of Python are rare."""
    found = []
    for path in _walk(root, {".py"}, lambda name: name in NOT_CODE or name.startswith("config-")):
        data = path.read_bytes()
        if data and _first_bad_byte(data) is None and not is_generated(data):
            found.append(_file_document(path, root, data))
    return found


def _stdlib() -> list[Document]:
    return _python_files(Path(sysconfig.get_paths()["stdlib"]))


def _torch() -> list[Document]:
    # find_spec of a top-level name looks without importing, which for torch takes seconds.
    spec = importlib.util.find_spec("torch")
    places = spec.submodule_search_locations if spec is not None else None
    return _python_files(Path(places[0])) if places else []


def _pydoc() -> list[Document]:
    try:
        from pydoc_data.topics import topics
    except ImportError:  # some distributions ship Python without its help texts
        return []
    return [Document(name, topics[name].encode(), name.encode()) for name in _without_repeats(topics)]


def _without_repeats(topics: Mapping[str, str]) -> list[str]:
    """Names of topics that are over three quarters new against all longer ones, sorted.

    A topic such as "try" is a section of "compound"; kept in both, validation would be text that training has seen.
    """
    kept: list[str] = []
    seen: set[str] = set()
    for name in sorted(topics, key=lambda name: (-len(topics[name]), name)):
        paragraphs = [" ".join(paragraph.split()) for paragraph in topics[name].split("\n\n")]
        repeated = sum(len(paragraph) for paragraph in paragraphs if paragraph in seen)
        if 4 * repeated < sum(map(len, paragraphs)):
            kept.append(name)
            seen.update(paragraphs)
    return sorted(kept)


BUILTIN: Mapping[str, Builtin] = {
    "stdlib": Builtin(
        f"source code of Python {sys.version_info.major}.{sys.version_info.minor}'s library", "PSF-2.0", _stdlib
    ),
    "pydoc": Builtin("English prose: Python's language reference by topic", "PSF-2.0", _pydoc),
    "torch": Builtin("source code of the installed torch package", "BSD-3-Clause", _torch),
}
"""Sources by name. A folder of the same name is reached as `./stdlib`."""


def sources() -> list[SourceRow]:
    """What `isoflop data list` shows: every built-in source, as it is on this machine."""
    return [_row(name, source, source.read()) for name, source in BUILTIN.items()]


def _row(name: str, source: Builtin, found: list[Document]) -> SourceRow:
    size = sum(len(document.data) for document in found)
    return SourceRow(name, source.description, size, len(found), source.licence, bool(found))


# ---------------------------------------------------------------------------------------------------- the user's files


def read_documents(source: str) -> list[Document]:
    """The documents of a built-in source or of a path, sorted by relative path (rows in file order).

    Raises `SpecError` when the source is unknown, missing, empty, not UTF-8 text, or lacks the field `text`.
    """
    builtin = BUILTIN.get(source)
    found = builtin.read() if builtin is not None else _read_path(source)
    if not found:
        why = "is not on this machine" if builtin is not None else "holds no text"
        raise SpecError.at("source", f"{source!r} {why}; name another source")
    return found


def _read_path(source: str) -> list[Document]:
    path = Path(source).expanduser()
    if path.is_dir():
        return _read_folder(path)
    if path.is_file():
        return list(_READERS.get(path.suffix.lower(), _read_text)(path))
    if len(Path(source).parts) > 1 or Path(source).suffix:
        raise SpecError.at("source", f"no such file or folder: {source}")
    hint = did_you_mean(source, BUILTIN)
    raise SpecError.at("source", f"{source!r} is neither a source ({', '.join(BUILTIN)}) nor a path that exists.{hint}")


def _read_folder(root: Path) -> list[Document]:
    """Every text file below a folder; hidden folders and caches are passed over, and so are empty files."""
    paths = [path for path in _walk(root, TEXT_SUFFIXES, _is_hidden) if path.stat().st_size]
    if not paths:
        raise SpecError.at(
            "source", f"{root} holds no text; files are taken by suffix: {' '.join(sorted(TEXT_SUFFIXES))}"
        )
    return [_file_document(path, root, _check_text(path.read_bytes(), path)) for path in paths]


def _read_text(path: Path) -> Iterator[Document]:
    data = _check_text(path.read_bytes(), path)
    if data:
        yield Document(path.name, data, path.name.encode())


def _read_jsonl(path: Path) -> Iterator[Document]:
    """One JSON object a line, text in the field `text`; blank lines and empty texts are passed over."""
    for number, line in enumerate(_check_text(path.read_bytes(), path).split(b"\n"), start=1):
        if line.strip():
            yield from _text_document(_json_text(line, f"{path} line {number}"), path, number)


def _json_text(line: bytes, where: str) -> str:
    try:
        row = json.loads(line)
    except json.JSONDecodeError as error:
        raise SpecError.at("source", f"{where} is not valid JSON: {error.msg} at column {error.colno}") from None
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        came = f"an object with {', '.join(row) or 'no field'}" if isinstance(row, dict) else type(row).__name__
        raise SpecError.at("source", f"{where} must be an object with a string field `text`, came {came}")
    return row["text"]


def _read_parquet(path: Path) -> Iterator[Document]:
    """The string column `text`, one document a row; nulls and empty texts are passed over."""
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise SpecError.at("source", f"reading {path} needs pyarrow: pip install 'isoflop[parquet]'") from None
    try:
        table = pyarrow.parquet.ParquetFile(path)
    except (pyarrow.ArrowException, OSError) as error:
        raise SpecError.at("source", f"{path} is not a readable Parquet file: {error}") from None
    columns = table.schema_arrow.names
    if "text" not in columns:
        raise SpecError.at("source", f"{path} must have a column `text`, came {', '.join(columns)}")
    rows = (text for part in table.iter_batches(columns=["text"]) for text in part.column(0).to_pylist())
    for number, text in enumerate(rows, start=1):
        if text is not None and not isinstance(text, str):
            raise SpecError.at("source", f"column `text` of {path} must hold strings, came {type(text).__name__}")
        yield from _text_document(text or "", path, number)


_READERS: Mapping[str, Callable[[Path], Iterator[Document]]] = {".jsonl": _read_jsonl, ".parquet": _read_parquet}
"""Formats by suffix; any other file is read as text."""


def _text_document(text: str, path: Path, number: int) -> Iterator[Document]:
    try:
        data = text.encode()
    except UnicodeEncodeError as error:
        raise SpecError.at(
            "source", f"{path} row {number} holds half a surrogate pair at character {error.start}"
        ) from None
    data = _check_text(data, f"the text of {path} row {number}")
    if data:
        yield Document(f"{path.name}:{number}", data, data)


def _file_document(path: Path, root: Path, data: bytes) -> Document:
    name = path.relative_to(root).as_posix()
    return Document(name, data, os.fsencode(name))


def _walk(root: Path, suffixes: Collection[str], skip: Callable[[str], bool]) -> list[Path]:
    """Files below `root` in the order of their relative paths, which no file system or locale changes."""
    found = []
    for folder, names, files in os.walk(root):
        names[:] = [name for name in names if not skip(name)]
        found += [Path(folder, file) for file in files if os.path.splitext(file)[1].lower() in suffixes]
    return sorted((path for path in found if path.is_file()), key=lambda path: path.relative_to(root).as_posix())


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or name in {"__pycache__", "node_modules"}


def _first_bad_byte(data: bytes) -> int | None:
    """Offset of the first byte that no UTF-8 text has; NUL counts, since binary files and UTF-16 are full of it."""
    try:
        data.decode()
    except UnicodeDecodeError as error:
        return error.start
    nul = data.find(b"\0")
    return nul if nul >= 0 else None


def _check_text(data: bytes, where: Path | str) -> bytes:
    bad = _first_bad_byte(data)
    if bad is not None:
        raise SpecError.at(
            "source", f"{where} is not text in UTF-8: byte 0x{data[bad]:02x} at offset {bad}; convert or remove it"
        )
    return data


# ---------------------------------------------------------------------------------------------------- division


def divide(documents: list[Document], limit: int | None = None) -> tuple[list[Document], list[Document]]:
    """Training and validation documents, neither empty, each in the order given.

    Documents are held out in the order of the hashes of their keys, each that still fits, until a tenth of the bytes is
    reached; where none fits, the smallest is. A single document is cut at a line end instead: its last tenth is validation.
    `limit` bytes are shared out nine to one, filled in the order of the hashes (so a smaller limit sees a part of what a
    larger one sees), and the document that overruns is cut at a line end.
    """
    train, validation = _split(documents)
    if limit is not None:
        held = max(1, int(limit * VALIDATION_SHARE))
        train, validation = _sample(train, limit - held), _sample(validation, held)
    for name, part in (("training", train), ("validation", validation)):
        if not part:
            size = sum(len(document.data) for document in documents)
            raise SpecError.at("source", f"nothing is left for {name} of {size} bytes (limit {limit}); give more text")
    return train, validation


def _split(documents: list[Document]) -> tuple[list[Document], list[Document]]:
    if len(documents) == 1:
        return _split_one(documents[0])
    ranks = [document.rank for document in documents]
    held = _held_out(ranks, [len(document.data) for document in documents])
    train = [document for document, rank in zip(documents, ranks, strict=True) if rank not in held]
    return train, [document for document, rank in zip(documents, ranks, strict=True) if rank in held]


def _held_out(ranks: list[int], sizes: list[int]) -> set[int]:
    """Ranks whose documents are held out; whole ranks, so that equal rows stay together."""
    size_of: dict[int, int] = {}
    for rank, size in zip(ranks, sizes, strict=True):
        size_of[rank] = size_of.get(rank, 0) + size
    room, held = int(sum(sizes) * VALIDATION_SHARE), set()
    for rank in sorted(size_of):
        if size_of[rank] <= room:
            held.add(rank)
            room -= size_of[rank]
    return held or {min(size_of, key=lambda rank: (size_of[rank], rank))}


def _split_one(document: Document) -> tuple[list[Document], list[Document]]:
    at = line_cut(document.data, int(len(document.data) * (1 - VALIDATION_SHARE)))
    parts = [("head", document.data[:at]), ("tail", document.data[at:])]
    head, tail = ([Document(f"{document.name} ({part})", data, document.key)] if data else [] for part, data in parts)
    return head, tail


def _sample(documents: Iterable[Document], budget: int) -> list[Document]:
    kept: dict[int, Document] = {}
    for index, document in sorted(enumerate(documents), key=lambda pair: (pair[1].rank, pair[0])):
        data = document.data[: line_cut(document.data, budget)]
        if not data:
            break
        kept[index] = Document(document.name, data, document.key)
        budget -= len(data)
    return [kept[index] for index in sorted(kept)]


def line_cut(data: bytes, size: int) -> int:
    """Where to cut text so that at most `size` bytes come before: after the last line end in the second half of those, else
    between two characters."""
    if size >= len(data):
        return len(data)
    line_end = data.rfind(b"\n", size // 2, size) + 1
    if line_end:
        return line_end
    while size and data[size] & 0xC0 == 0x80:  # a byte inside a character
        size -= 1
    return size
