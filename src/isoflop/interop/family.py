"""Families of public models: how each says an architecture, and whether it can say one of ours."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from isoflop.interop.config import Config
from isoflop.interop.keymap import Key
from isoflop.model import Architecture, Block
from isoflop.model.slots import Setting
from isoflop.spec import Problem, SpecError

Table = dict[str, Any]

UNSAID = frozenset({"init", "dropout", "plugins", "blocks"})
"""Fields that no exported logit depends on, or that `Said` spells out block by block."""

ROUNDING = frozenset({"cast"})
"""Fields that move a last bit in 16 bit."""


@dataclass(frozen=True)
class Said:
    """An architecture with every size written out, and every block by itself.

    Attributes:
        top: the fields of the whole model; `encoder` has the `norm`, the `depth` and `each` block of that of an
            encoder-decoder.
        blocks: the fields of each block, those of the model laid under.
    """

    top: Table
    blocks: list[Table]

    @property
    def first(self) -> Table:
        """The first block, which stands for all where a family has one kind of block."""
        return self.blocks[0]

    def differences(self, other: Said) -> list[tuple[str, Any, Any]]:
        """Path, value here and value there, of all that differs."""
        found = list(_differences(self.top, other.top, ""))
        alike: dict[str, tuple[tuple[str, Any, Any], list[int]]] = {}
        for number, (mine, theirs) in enumerate(zip(self.blocks, other.blocks, strict=False)):
            for difference in _differences(mine, theirs, ""):
                alike.setdefault(repr(difference), (difference, []))[1].append(number)
        return found + [
            (f"{_blocks(numbers, len(self.blocks))}: {path}", a, b) for (path, a, b), numbers in alike.values()
        ]


def say(architecture: Architecture) -> Said:
    """An architecture, spelled out."""
    own = architecture.dump()
    top = {name: value for name, value in own.items() if name not in Block.model_fields}
    top["norm"] = own["norm"]  # of the final norm; a block may have another
    top["embed_positions"] = [position.dump() for position in architecture.embed_positions]
    if architecture.reader is not None:
        encoder = say(architecture.reader)
        top["encoder"] = {"norm": encoder.top["norm"], "depth": encoder.top["depth"], "each": encoder.blocks}
    return Said(top, [_block(setting) for setting in architecture.settings])


def _blocks(numbers: Sequence[int], depth: int) -> str:
    if len(numbers) == depth:
        return "every block"
    return f"block{'s' if len(numbers) > 1 else ''} {', '.join(map(str, numbers))}"


def _block(setting: Setting) -> Table:
    block, crossing, width = setting.block, setting.crossing, setting.architecture.width
    table = {**block.dump(), "attention": _attention(setting)}
    if crossing is not None:
        table["cross"] = _attention(crossing)
    ffn, size = dict(table["ffn"]), getattr(block.ffn, "size", None)
    if size is not None:
        ffn["hidden"] = size(width)
        ffn.pop("multiple", None)
    return {**table, "ffn": ffn}


def _attention(setting: Setting) -> Table:
    attention = setting.block.attention
    shape, table = attention.shape(setting.architecture.width), attention.dump()
    sizes = {"kv_heads": shape.key_value, "head_width": shape.value}
    unsaid = shape.width**-0.5 if shape.width else 1.0  # no components, no product to scale
    return {**table, **sizes, "scale": table.get("scale", unsaid)}


def _differences(mine: Any, theirs: Any, path: str) -> Iterable[tuple[str, Any, Any]]:
    if isinstance(mine, Mapping) and isinstance(theirs, Mapping):
        for name in dict.fromkeys([*mine, *theirs]):
            if name not in UNSAID | ROUNDING:
                yield from _differences(mine.get(name), theirs.get(name), f"{path}.{name}".lstrip("."))
    elif isinstance(mine, list) and isinstance(theirs, list) and len(mine) == len(theirs):
        for number, (a, b) in enumerate(zip(mine, theirs, strict=True)):
            yield from _differences(a, b, f"{path}.{number}" if len(mine) > 1 else path)
    elif not _equal(mine, theirs):
        yield path, mine, theirs


def _equal(mine: Any, theirs: Any) -> bool:
    if isinstance(mine, float) and isinstance(theirs, int | float):
        return abs(mine - theirs) <= 1e-12 * abs(mine)
    return mine == theirs


@dataclass(frozen=True)
class Family:
    """A family of public models.

    Attributes:
        name: its `model_type`.
        model: the class in `architectures` that has the head of a language model.
        read: the declaration (as for `Architecture.parse`) that a config means; it asks for every key that matters.
        write: the config of an architecture, were it of this family; what it cannot say, `config_of` finds.
        keys: the key map of an architecture.
        prefix: what stands before the name of every tensor but the head's; files of a bare model lack it.
        unused: patterns of tensors that hold no weights.
    """

    name: str
    model: str
    read: Callable[[Config], Table]
    write: Callable[[Said], Table]
    keys: Callable[[Architecture], Sequence[Key]]
    prefix: str = ""
    unused: tuple[str, ...] = ()

    def architecture(self, config: Config) -> Architecture:
        """What a config declares.

        Raises:
            SpecError: names every key that cannot be said, or that is missing.
        """
        table = self.read(config)
        config.finish()
        return Architecture.parse(table)

    def config(self, architecture: Architecture, carried: Mapping[str, Any]) -> Table:
        """The config.json of an architecture.

        Raises:
            SpecError: names every field that this family cannot say.
        """
        said = say(architecture)
        table = {"architectures": [self.model], "model_type": self.name, **carried, **self.write(said)}
        try:
            again = say(self.architecture(Config(table)))
        except SpecError as error:
            raise SpecError(f"{self.name} cannot say this architecture: {error}") from None
        differences = again.differences(said)
        if differences:
            raise SpecError(
                Problem((path,), f"{self.name} can only say {theirs!r}, came {mine!r}")
                for path, theirs, mine in differences
            )
        return table


def choose(families: Iterable[Family], architecture: Architecture, carried: Mapping[str, Any]) -> Family:
    """The first family that can say an architecture.

    Raises:
        SpecError: none can; says what stands in the way of the nearest one.
    """
    refusals: list[SpecError] = []
    for family in families:
        try:
            family.config(architecture, carried)
        except SpecError as error:
            refusals.append(error)
        else:
            return family
    # A problem without a path is a family whose config could not even be written.
    nearest = min(refusals, key=lambda error: (not all(p.path for p in error.problems), len(error.problems)))
    raise SpecError([Problem((), "no family can say this architecture; the nearest one:"), *nearest.problems])


def changes(numbers: Sequence[int], depth: int, change: Table) -> list[Table]:
    """`blocks` entries that make a change in the blocks of these numbers: one slice where they are evenly spaced."""
    if not numbers:
        return []
    step = numbers[1] - numbers[0] if len(numbers) > 1 else depth
    if list(numbers) == list(range(numbers[0], depth, step)):
        at = f"{numbers[0] or ''}::{step}" if step > 1 else f"{numbers[0]}:"
        return [{"at": at if len(numbers) > 1 else str(numbers[0]), **change}]
    if list(numbers) == list(range(numbers[0], numbers[-1] + 1)):
        return [{"at": f"{numbers[0]}:{numbers[-1] + 1}", **change}]
    return [{"at": str(number), **change} for number in numbers]
