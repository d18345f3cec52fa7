"""Files that are never half written: atomic replacement and strict JSON."""

from __future__ import annotations

import json
import os
import tempfile
from pathlib import Path
from typing import Any


def write_atomic(path: str | Path, content: str | bytes) -> None:
    """Write a file so that a reader, or a kill at any moment, sees the old content or the new, never a part.

    The temporary file stands in the same folder (a rename across file systems is not atomic) and is removed when
    writing fails, on a full disk for instance; the old file is then untouched.
    """
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    data = content.encode() if isinstance(content, str) else content
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".partial")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        Path(temporary).unlink(missing_ok=True)
        raise


def write_json(path: str | Path, value: Any) -> None:
    """Write strict JSON (no NaN) atomically."""
    write_atomic(path, json.dumps(value, indent=2, allow_nan=False) + "\n")


def read_json(path: str | Path) -> Any:
    """Read JSON; a missing or malformed file is a ValueError that names it."""
    try:
        return json.loads(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise ValueError(f"no such file: {path}") from None
    except (UnicodeDecodeError, json.JSONDecodeError) as error:
        raise ValueError(f"{path} is not valid JSON ({error}); it may be truncated or of another program") from None
