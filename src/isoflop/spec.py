"""Declarations: frozen, strict, serialisable, and polite about mistakes.

A `Spec` is a pydantic model that refuses unknown keys and wrong types. A `Slot` is an abstract Spec; a *kind* is a
subclass of a slot that is registered by name when its class is defined::

    class Norm(Slot, default="layer"): ...
    class RMS(Norm, kind="rms"):
        eps: float = 1e-6

A field of type `Norm` then accepts `"rms"`, `{"kind": "rms", "eps": 1e-5}`, or an instance. A table without `kind`
takes the slot's default kind. Everything here is independent of what is being declared.
"""

from __future__ import annotations

import difflib
import hashlib
import json
import re
import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, ClassVar, NamedTuple, Self, TypeVar

import tomli_w
from pydantic import BaseModel, BeforeValidator, ConfigDict, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic_core import CoreSchema, ErrorDetails, core_schema

T = TypeVar("T")
Many = Annotated[tuple[T, ...], BeforeValidator(lambda value: tuple(value) if isinstance(value, list) else value)]
"""A tuple field that also takes a list, which is what TOML and JSON hold."""


class _OneOrMany:
    """Lets a list field take a single item too, and says so in the JSON schema that editors read."""

    @staticmethod
    def __get_pydantic_core_schema__(source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(
            lambda value: value if isinstance(value, list | tuple) else (value,), handler(source)
        )

    @staticmethod
    def __get_pydantic_json_schema__(schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        many = handler(schema)
        return {"anyOf": [many["items"], many]}


OneOrMany = Annotated[Many[T], _OneOrMany]
"""A tuple field that takes a list or a single item."""

DEFAULT = "default"
"""In a change, the value that puts a field back to its default (TOML has no null)."""


class Problem(NamedTuple):
    """One thing that is wrong: where, and what must hold."""

    path: tuple[str | int, ...]
    message: str

    def __str__(self) -> str:
        return f"{'.'.join(map(str, self.path))}: {self.message}" if self.path else self.message


class SpecError(ValueError):
    """A declaration that cannot be used: every problem with its path, what came and what is allowed."""

    def __init__(self, problems: str | Iterable[Problem]) -> None:
        self.problems = [Problem((), problems)] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(map(str, self.problems)))

    @classmethod
    def at(cls, path: str, message: str) -> SpecError:
        """One problem at a dotted path."""
        return cls([Problem(tuple(path.split(".")), message)])

    def under(self, *prefix: str | int) -> SpecError:
        """The same problems, seen from further out."""
        return SpecError(Problem((*prefix, *p.path), p.message) for p in self.problems)


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?`, or nothing where no known name is near."""
    near = difflib.get_close_matches(name, list(known), n=1, cutoff=0.6)
    return f" Did you mean {near[0]!r}?" if near else ""


class Spec(BaseModel):
    """A frozen declaration. Unknown keys, wrong types and failed checks raise `SpecError` with their path."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, validate_default=True, allow_inf_nan=False)

    outside_digest: ClassVar[frozenset[str]] = frozenset()
    """Fields that do not change what is declared, left out of `digest`."""

    def __init__(self, **values: Any) -> None:
        try:
            super().__init__(**values)
        except ValidationError as error:
            raise SpecError(problem for e in error.errors() for problem in _problems(type(self), e)) from None

    @classmethod
    def parse(cls, value: Any) -> Self:
        """A Spec from plain data (or an instance, which is returned as it is)."""
        if isinstance(value, cls):
            return value
        if not isinstance(value, Mapping):
            raise SpecError(f"must be a table of {cls.__name__} fields, came {value!r}")
        return cls(**value)

    def dump(self) -> dict[str, Any]:
        """Plain data that `parse` turns back into an equal Spec; absent values are left out."""
        values = ((name, getattr(self, name)) for name in type(self).model_fields)
        return {name: plain(value) for name, value in values if value is not None}

    def override(self, change: Mapping[str, Any]) -> Self:
        """A new Spec with a (nested) change applied; see `merge`."""
        return self.parse(merge(self.dump(), change))

    @property
    def digest(self) -> str:
        """Sixteen hex digits that name this declaration: equal content, equal digest, on any machine."""
        content = {k: v for k, v in self.dump().items() if k not in self.outside_digest}
        return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()[:16]

    def __hash__(self) -> int:
        return hash(self.digest)


class Slot(Spec):
    """An abstract Spec with named kinds. Subclass it directly to open a slot, subclass the slot to add a kind."""

    kind: ClassVar[str]
    kinds: ClassVar[dict[str, type[Any]]]
    default_kind: ClassVar[str]

    def __init_subclass__(cls, kind: str | None = None, default: str | None = None, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if Slot in cls.__bases__:
            if default is None:
                raise TypeError(
                    f"slot {cls.__name__} must name its default kind: class {cls.__name__}(Slot, default=...)"
                )
            cls.kinds, cls.default_kind = {}, default
        elif kind is not None:
            known = cls.kinds.get(kind)
            if known is not None and (known.__module__, known.__qualname__) != (cls.__module__, cls.__qualname__):
                raise TypeError(
                    f"kind {kind!r} of {cls.slot().__name__} is taken by {known.__module__}.{known.__qualname__}"
                )
            cls.kind = kind
            cls.kinds[kind] = cls

    @classmethod
    def slot(cls) -> type[Slot]:
        """The slot that this kind fills."""
        return next(base for base in cls.__mro__ if Slot in base.__bases__)

    @classmethod
    def parse(cls, value: Any) -> Any:
        """A kind from its name, a table (with or without `kind`), or an instance."""
        if isinstance(value, cls):
            return value
        table = {"kind": value} if isinstance(value, str) else value
        if not isinstance(table, Mapping):
            raise SpecError(f"must be the name of a {cls.slot().__name__} kind or a table, came {value!r}")
        name = table.get("kind", getattr(cls, "kind", cls.default_kind))
        found = cls.kinds.get(name) if isinstance(name, str) else None
        if found is None or not issubclass(found, cls):
            known = [other for other, kind in cls.kinds.items() if issubclass(kind, cls)]
            hint = did_you_mean(str(name), known)
            raise SpecError(f"{name!r} is no kind of {cls.__name__}; there are {', '.join(known)}.{hint}")
        return found(**{key: item for key, item in table.items() if key != "kind"})

    def dump(self) -> dict[str, Any]:
        return {"kind": self.kind, **super().dump()}

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        if hasattr(cls, "kind"):
            return handler(source)
        return core_schema.no_info_plain_validator_function(cls.parse)

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        if hasattr(cls, "kind"):
            return handler(schema)
        tables = [
            _with_kind(name, cls.default_kind, handler(kind.__pydantic_core_schema__))
            for name, kind in cls.kinds.items()
        ]
        return {"anyOf": [{"type": "string", "enum": list(cls.kinds)}, *tables]}


def slots() -> dict[str, type[Slot]]:
    """Every slot that is open, by the name of its class."""
    # A class whose definition was refused stays among the subclasses until it is collected, without kinds.
    return {slot.__name__: slot for slot in Slot.__subclasses__() if hasattr(slot, "kinds")}


# ---------------------------------------------------------------------------------------------------- changes


def merge(base: Any, change: Any) -> Any:
    """`base` with `change` laid over it.

    Tables merge key by key; a table that names another kind replaces the old one, since the old kind's fields mean
    nothing to it. A list is replaced, or changed item by item by a table with integer keys; a list of one item is
    changed like that item. None or `"default"` puts a field back to its default.
    """
    if isinstance(base, list) and isinstance(change, Mapping) and change and all(str(key).isdigit() for key in change):
        items = list(base)
        for key, item in change.items():
            if int(key) >= len(items):
                raise SpecError.at(str(key), f"there are only {len(items)} items here")
            items[int(key)] = _merge_under(key, items[int(key)], item)
        return items
    if not isinstance(change, Mapping):
        return change
    if isinstance(base, list) and len(base) == 1:
        return [merge(base[0], change)]
    if isinstance(base, list) and base and "kind" not in change:
        raise SpecError(f"there are {len(base)} items here: say which by its number, 0 to {len(base) - 1}")
    if isinstance(base, str):
        base = {"kind": base}
    if not isinstance(base, Mapping) or ("kind" in change and change["kind"] != base.get("kind")):
        base = {}
    merged = dict(base)
    for key, item in change.items():
        if item is None or item == DEFAULT:
            merged.pop(key, None)
        else:
            merged[key] = _merge_under(key, merged.get(key), item)
    return merged


def _merge_under(key: str | int, base: Any, change: Any) -> Any:
    try:
        return merge(base, change)
    except SpecError as error:
        raise error.under(key) from None


def nest(dotted: Mapping[str, Any]) -> dict[str, Any]:
    """`{"attention.heads": 8}` as `{"attention": {"heads": 8}}`; keys without dots stay."""
    tree: dict[str, Any] = {}
    for path, value in dotted.items():
        inner = value
        for part in reversed(path.split(".")):
            inner = {part: inner}
        tree = merge_trees(tree, inner)
    return tree


def merge_trees(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """Two changes as one; unlike `merge`, None and `"default"` are kept, since they are still to be applied."""
    # A bare name is the table of that kind, so that `norm=rms norm.eps=1e-5` keeps both.
    tables: dict[str, Any] = {
        k: {"kind": v} if isinstance(v, str) and isinstance(right.get(k), Mapping) else v for k, v in left.items()
    }
    both = {
        k: merge_trees(tables[k], right[k])
        for k in tables
        if isinstance(tables[k], Mapping) and isinstance(right.get(k), Mapping) and not _other_kind(tables[k], right[k])
    }
    return {**left, **right, **both}


def _other_kind(left: Mapping[str, Any], right: Mapping[str, Any]) -> bool:
    """Whether the right table names another kind than the left one, whose fields then mean nothing to it."""
    return "kind" in left and "kind" in right and left["kind"] != right["kind"]


def parse_assignments(assignments: Iterable[str]) -> dict[str, Any]:
    """`["attention.heads=8", "norm=rms"]` as a nested change. Values are TOML; a bare word is a string."""
    dotted: dict[str, Any] = {}
    for assignment in assignments:
        path, equals, text = assignment.partition("=")
        if not equals or not re.fullmatch(r"[\w-]+(\.[\w-]+)*", path.strip()):
            raise SpecError(f"{assignment!r} must look like key.path=value")
        try:
            value = tomllib.loads(f"value = {text}")["value"]
        except tomllib.TOMLDecodeError:
            value = text.strip()
        dotted[path.strip()] = value
    return nest(dotted)


# ---------------------------------------------------------------------------------------------------- files


def read_toml(path: str | Path) -> dict[str, Any]:
    """A TOML file as plain data; a missing, binary or malformed file is a `SpecError` that names it."""
    path = Path(path)
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise SpecError(f"no such file: {path}") from None
    except IsADirectoryError:
        raise SpecError(f"{path} is a folder, not a TOML file") from None
    except UnicodeDecodeError:
        raise SpecError(f"{path} is not text in UTF-8, so it is no TOML file") from None
    except tomllib.TOMLDecodeError as error:
        raise SpecError(f"{path} is not valid TOML: {error}") from None


def to_toml(spec: Spec) -> str:
    """The whole declaration, defaults included, as TOML."""
    return tomli_w.dumps(spec.dump())


# ---------------------------------------------------------------------------------------------------- inside


def plain(value: Any) -> Any:
    """Specs inside `value` as plain data, tuples as lists."""
    if isinstance(value, Spec):
        return value.dump()
    if isinstance(value, tuple | list):
        return [plain(item) for item in value]
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return value


def _problems(cls: type[Spec], error: ErrorDetails) -> Iterable[Problem]:
    """Our sentence for one pydantic error, or the problems of the nested Spec that raised it."""
    path, cause = error["loc"], error.get("ctx", {}).get("error")
    if isinstance(cause, SpecError):
        return cause.under(*path).problems
    if error["type"] == "extra_forbidden":
        known = list(cls.model_fields)
        by_name = {p.rpartition(".")[2]: p for p in sorted(field_paths(cls), key=lambda path: path.count("."))[::-1]}
        near = difflib.get_close_matches(str(path[-1]), by_name, n=1, cutoff=0.6)
        hint = f" Did you mean {by_name[near[0]]!r}?" if near else ""
        allowed = f"fields here are {', '.join(known)}" if known else "there are no fields here"
        return [Problem(path, f"unknown field; {allowed}.{hint}")]
    if error["type"] == "missing":
        return [Problem(path, "must be given")]
    message = str(cause) if cause is not None else re.sub(r"^Input should be", "must be", error["msg"])
    message = message.replace("a valid tuple", "a list")
    came = "" if isinstance(error["input"], Mapping) else f", came {error['input']!r}"
    hint = ""
    if error["type"] == "literal_error" and isinstance(error["input"], str):
        hint = "." + did_you_mean(error["input"], re.findall(r"'([^']*)'", error["msg"]))
    return [Problem(path, f"{message}{came}{hint}".removesuffix("."))]


def field_paths(cls: type[Spec], above: tuple[type[Spec], ...] = ()) -> list[str]:
    """Dotted paths of every field below `cls`, through slots into all their kinds; a kind inside itself ends there."""
    paths: list[str] = []
    for name, field in cls.model_fields.items():
        paths.append(name)
        for inner in _specs_in(field.annotation):
            kinds = inner.kinds.values() if issubclass(inner, Slot) and not hasattr(inner, "kind") else [inner]
            fresh = (kind for kind in kinds if kind is not cls and kind not in above)
            paths += [f"{name}.{path}" for kind in fresh for path in field_paths(kind, (*above, cls))]
    return list(dict.fromkeys(paths))


def _specs_in(annotation: Any) -> list[type[Spec]]:
    if isinstance(annotation, type) and issubclass(annotation, Spec):
        return [annotation]
    return [spec for argument in getattr(annotation, "__args__", ()) for spec in _specs_in(argument)]


def _with_kind(name: str, default: str, table: dict[str, Any]) -> dict[str, Any]:
    required = [*table.get("required", []), *(["kind"] if name != default else [])]
    return {**table, "properties": {"kind": {"const": name}, **table.get("properties", {})}, "required": required}
