"""What all verbs share: results to stdout, everything else to stderr, errors in words."""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any

from rich.console import Console

from isoflop.spec import SpecError

FAILURE, USAGE, INFEASIBLE, INTERRUPTED = 1, 2, 4, 130

stdout = Console(soft_wrap=False)
stderr = Console(stderr=True, highlight=False)


def print_json(value: Any) -> None:
    """Strict JSON on stdout."""
    sys.stdout.write(json.dumps(value, indent=2, allow_nan=False, ensure_ascii=False) + "\n")


def note(text: str) -> None:
    """A line for the person, on stderr."""
    stderr.print(text, markup=False, soft_wrap=True)


def how_to_continue() -> str:
    """The command that was given, to be given again."""
    return f"To continue: {shlex.join(['isoflop', *sys.argv[1:]])}"


def problem(error: Exception) -> int | None:
    """Print what went wrong and return the exit code; None for an error that is ours and deserves its traceback."""
    codes = {"Infeasible": INFEASIBLE, "NotAStudy": USAGE, "OtherStudy": USAGE, "RunMismatch": USAGE}
    names = [cls.__name__ for cls in type(error).__mro__]
    code = next((codes[name] for name in names if name in codes), None)
    if code is None and isinstance(error, SpecError):
        code = USAGE
    if code is None and isinstance(error, ValueError | OSError):
        code = FAILURE
    if code is not None:
        lines = str(error).splitlines() or [type(error).__name__]
        note("\n".join([f"error: {lines[0]}", *(f"       {line}" for line in lines[1:])]))
    return code
