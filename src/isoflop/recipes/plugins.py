"""A user's own kinds: modules that register them when they are imported.

Code is run only because a person asked for it: in a file that he passes (`plugins = ["my_kinds"]`), by installing a
package with an entry point in the group `isoflop.kinds`, or with `--plugin`. A run folder or a checkpoint names no code.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterable
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path

from isoflop.spec import SpecError


def register_modules(names: Iterable[str], beside: Path | None = None) -> None:
    """Import modules that register kinds; `beside` is a folder that is searched first."""
    added = str(beside.resolve()) if beside is not None else None
    if added:
        sys.path.insert(0, added)
    try:
        for name in names:
            _import(name, added)
    finally:
        if added:
            sys.path.remove(added)


@cache
def register_entry_points() -> None:
    """Import what installed packages offer in the group `isoflop.kinds`."""
    for entry in entry_points(group="isoflop.kinds"):
        entry.load()


def _import(name: str, beside: str | None) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        where = f" beside the file ({beside}) or" if beside else ""
        raise SpecError.at("plugins", f"module {name!r} was not found{where} on the Python path") from None
