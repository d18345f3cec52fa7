"""Gettext catalogues with known content."""

import struct
from collections.abc import Mapping
from pathlib import Path

HEADER = "Content-Type: text/plain; charset={}\nPlural-Forms: nplurals=9; plural={};\n"


def catalogue(entries: Mapping[str, str], charset: str = "UTF-8", order: str = "<", plural: str = "n != 1") -> bytes:
    """A .mo file of some messages, as the manual of gettext describes it."""
    table = {"": HEADER.format(charset, plural), **entries}
    rows = sorted((message.encode(charset), text.encode(charset)) for message, text in table.items())
    at = 28 + 16 * len(rows)
    tables, blob = [b"", b""], b""
    for column in (0, 1):
        for row in rows:
            tables[column] += struct.pack(f"{order}2I", len(row[column]), at + len(blob))
            blob += row[column] + b"\0"
    head = struct.pack(f"{order}7I", 0x950412DE, 0, len(rows), 28, 28 + 8 * len(rows), 0, at)
    return head + b"".join(tables) + blob


def install(root: Path, language: str, name: str, data: bytes) -> None:
    path = root / language / "LC_MESSAGES" / f"{name}.mo"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
