"""The whole declaration of a model, and the checks that need more than one slot."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from isoflop.model.slots import Attention, FeedForward, Init, Join, Norm, Position, Setting, Stack
from isoflop.spec import DEFAULT, Many, OneOrMany, Spec, SpecError, merge, plain

Positions = OneOrMany[Position]
Probability = Annotated[float, Field(ge=0, lt=1)]
Size = Annotated[int, Field(ge=1)]


class Block(Spec):
    """What one block declares. The fields of an architecture that may differ from block to block.

    Fields:
        position: how the block knows where a token stands; a list combines several.
        norm: the normalisation that `join` places.
        join: how the sublayers join the stream.
        attention, ffn: the two sublayers.
        dropout: on the output of each sublayer (and on the embeddings, at the top level).
    """

    position: Positions = ("rope",)  # type: ignore[assignment]  # names are parsed into kinds
    norm: Norm = "layer"  # type: ignore[assignment]
    join: Join = "pre"  # type: ignore[assignment]
    attention: Attention = "multi_head"  # type: ignore[assignment]
    ffn: FeedForward = "plain"  # type: ignore[assignment]
    dropout: Probability = 0.0

    @model_validator(mode="after")
    def _positions_combine(self) -> Self:
        kinds = [position.kind for position in self.position]
        if not kinds:
            raise SpecError.at("position", "must name at least one kind; 'none' is one")
        if "none" in kinds and len(kinds) > 1:
            raise SpecError.at(
                "position", f"'none' stands beside {', '.join(k for k in kinds if k != 'none')}; remove one of them"
            )
        twice = next((kind for kind in kinds if kinds.count(kind) > 1), None)
        if twice is not None:
            raise SpecError.at("position", f"names {twice!r} twice; a kind acts once")
        return self


class BlockChange(Spec):
    """What differs in some blocks: a Python slice (or an index) of the blocks, and the fields that change there."""

    model_config = ConfigDict(extra="allow")

    at: str

    @model_validator(mode="before")
    @classmethod
    def _plain_data(cls, values: Any) -> Any:
        if not isinstance(values, Mapping):
            return values
        at = {"at": str(values["at"])} if type(values.get("at")) is int else {}
        return {**_without_nulls(plain(values)), **at}

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.model_extra:
            raise SpecError(f"changes nothing: give what differs there, fields are {', '.join(Block.model_fields)}")
        return self

    def dump(self) -> dict[str, Any]:
        return {"at": self.at, **(self.model_extra or {})}

    def blocks(self, depth: int) -> range:
        """The numbers of the blocks that are meant."""
        try:
            bounds = [int(part) if part.strip() else None for part in self.at.split(":")]
            if len(bounds) > 3:
                raise ValueError
        except ValueError:
            raise SpecError.at("at", f"must be an index or a Python slice such as '::2', came {self.at!r}") from None
        if len(bounds) == 1:
            index = bounds[0]
            if index is None or not -depth <= index < depth:
                raise SpecError.at("at", f"must name one of the {depth} blocks, came {self.at!r}")
            return range(index % depth, index % depth + 1)
        if len(bounds) == 3 and bounds[2] == 0:
            raise SpecError.at("at", f"has step 0, which names no block: {self.at!r}")
        chosen = range(depth)[slice(*bounds)]
        if not chosen:
            raise SpecError.at("at", f"{self.at!r} names none of the {depth} blocks")
        return chosen


class Architecture(Block):
    """A whole architecture. Nothing is allocated by declaring one; everything that can be refused is refused here.

    Fields (besides those of a block):
        form: `decoder` (a position sees no later one) or `encoder` (all see all).
        vocab: number of token ids.
        width: size D of the stream.
        depth: number of blocks.
        stack: how the blocks follow each other.
        init: the rule that initial weights are drawn by.
        tie_head: the output matrix is the embedding.
        scale_embedding: multiply embeddings by sqrt(width), as in the 2017 model.
        blocks: what differs in some blocks.
        plugins: modules that register the kinds used here, imported when the file is loaded.
    """

    outside_digest: ClassVar[frozenset[str]] = frozenset({"plugins"})

    form: Literal["decoder", "encoder"] = "decoder"
    vocab: Size = 256
    width: Size = 256
    depth: Size = 6
    stack: Stack = "plain"  # type: ignore[assignment]
    init: Init = "normal"  # type: ignore[assignment]
    tie_head: bool = True
    scale_embedding: bool = False
    blocks: Many[BlockChange] = ()
    plugins: Many[str] = ()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        for setting in self.settings:
            where = self._path_to_block(setting.number)
            try:
                _check_block(setting)
            except SpecError as error:
                raise error.under(*where) from None
        return self

    @cached_property
    def declarations(self) -> tuple[Block, ...]:
        """What each block declares, overrides applied, in order."""
        base = {name: value for name, value in super().dump().items() if name in Block.model_fields}
        tables = [base] * self.depth
        plain = Block(**base)
        for index, change in enumerate(self.blocks):
            try:
                for number in change.blocks(self.depth):
                    tables[number] = merge(tables[number], change.model_extra)
                    self._refuse_embed_in_blocks(Block.parse(tables[number]))
            except SpecError as error:
                raise error.under("blocks", index) from None
        return tuple(plain if table is base else Block.parse(table) for table in tables)

    @property
    def settings(self) -> list[Setting]:
        """Where each block stands, in order; what they share, they share within one list."""
        shared: dict[Hashable, Any] = {}
        return [Setting(self, block, number, self.causal, shared) for number, block in enumerate(self.declarations)]

    @property
    def causal(self) -> bool:
        """A position sees no later one."""
        return self.form == "decoder"

    @property
    def embed_positions(self) -> tuple[Position, ...]:
        """The position kinds that act on the embeddings."""
        return tuple(position for position in self.position if "embed" in position.stages)

    @property
    def limit(self) -> int | None:
        """How many positions a sequence may have; None for no end."""
        limits = [p.limit for block in (self, *self.declarations) for p in block.position if p.limit is not None]
        return min(limits, default=None)

    def check_length(self, length: int, what: str = "length") -> None:
        """Raise `SpecError` when a sequence of `length` does not fit the positions."""
        if self.limit is not None and length > self.limit:
            raise SpecError(f"{what} {length} is beyond the {self.limit} positions of this architecture")

    def _refuse_embed_in_blocks(self, block: Block) -> None:
        for position in block.position:
            if "embed" in position.stages and position not in self.position:
                raise SpecError.at(
                    "position",
                    f"{position.kind!r} acts on the embeddings, before the first block: set it for the whole model",
                )

    def _path_to_block(self, number: int) -> tuple[str | int, ...]:
        changed = [index for index, change in enumerate(self.blocks) if number in change.blocks(self.depth)]
        return ("blocks", changed[-1]) if changed else ()


def _without_nulls(value: Any) -> Any:
    """None as `"default"`, which means the same in a change and which TOML can hold."""
    if isinstance(value, Mapping):
        return {key: DEFAULT if item is None else _without_nulls(item) for key, item in value.items()}
    return value


def _check_block(setting: Setting) -> None:
    block = setting.block
    try:
        block.attention.check(setting)
    except SpecError as error:
        raise error.under("attention") from None
    for index, position in enumerate(block.position):
        try:
            position.check(setting)
        except SpecError as error:
            raise error.under("position", *([index] if len(block.position) > 1 else [])) from None
