"""Lets the reference show the `Fields:` of a declaration as a table, as it shows the `Attributes:` of other classes."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Fields(griffe.Extension):
    """Renames the section where docstrings are read."""

    def on_class_instance(self, *, cls: griffe.Class, **_: Any) -> None:
        if cls.docstring is not None:
            cls.docstring.value = re.sub(r"^Fields[^:\n]*:$", "Attributes:", cls.docstring.value, flags=re.MULTILINE)
