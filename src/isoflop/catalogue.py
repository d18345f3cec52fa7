"""What can be declared: every slot and kind, read from their classes and docstrings."""

from __future__ import annotations

import inspect
import re
from dataclasses import asdict, dataclass
from typing import Annotated, Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from isoflop.spec import Slot, plain, slots


@dataclass(frozen=True)
class FieldEntry:
    """A field of a kind: its name, what it takes, its default (None where it is absent or must be given)."""

    name: str
    takes: str
    default: Any
    required: bool


@dataclass(frozen=True)
class KindEntry:
    """A kind: where it fits, what it is, its formula, its source and its fields."""

    slot: str
    kind: str
    default: bool
    summary: str
    text: str
    formula: str | None
    paper: str | None
    fields: tuple[FieldEntry, ...]

    def dump(self) -> dict[str, Any]:
        return asdict(self)


def catalogue() -> list[KindEntry]:
    """Every registered kind, by slot, in the order of registration."""
    return [_entry(slot, kind) for slot in slots().values() for kind in slot.kinds.values()]


def _entry(slot: type[Slot], kind: type[Slot]) -> KindEntry:
    text = inspect.getdoc(kind) or ""
    notes = dict(re.findall(r"^(Formula|Paper): (.+(?:\n    .+)*)$", text, re.MULTILINE))
    prose = re.sub(r"^(Formula|Paper): .+(?:\n    .+)*$", "", text, flags=re.MULTILINE).strip()
    fields = tuple(
        FieldEntry(name, _takes(field.annotation), _default(field), field.is_required())
        for name, field in kind.model_fields.items()
    )
    return KindEntry(
        slot=slot.__name__,
        kind=kind.kind,
        default=slot.kinds[slot.default_kind] is kind,
        summary=prose.split("\n\n")[0].replace("\n", " "),
        text=prose,
        formula=notes.get("Formula"),
        paper=notes.get("Paper"),
        fields=fields,
    )


def _takes(annotation: Any) -> str:
    """A type as a person would say it."""
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is Literal:
        return " | ".join(map(str, arguments))
    if origin is tuple:
        return f"list of {_takes(arguments[0])}"
    if origin is dict:
        return f"table of {_takes(arguments[1])}"
    if origin is Annotated:
        return _takes(arguments[0])
    if isinstance(annotation, type):
        return {int: "whole number", float: "number", bool: "true | false", str: "text"}.get(
            annotation, annotation.__name__
        )
    parts = [_takes(part) for part in arguments if part is not type(None)]
    return " | ".join(dict.fromkeys(parts)) or str(annotation)


def _default(field: FieldInfo) -> Any:
    return None if field.is_required() else plain(field.get_default(call_default_factory=True))
