"""The whole declaration of a model, and the checks that need more than one slot."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import ConfigDict, Field, model_validator

from isoflop.model.slots import (
    Arrangement,
    Attention,
    Embed,
    FeedForward,
    Head,
    Init,
    Join,
    Norm,
    Position,
    Setting,
    Share,
    Stack,
)
from isoflop.spec import DEFAULT, Many, OneOrMany, Spec, SpecError, did_you_mean, merge, merge_trees, plain

Positions = OneOrMany[Position]
Probability = Annotated[float, Field(ge=0, lt=1)]
Size = Annotated[int, Field(ge=1)]


class Block(Spec):
    """What one block declares. The fields of an architecture that may differ from block to block.

    Fields:
        position: how the block knows where a token stands; a list combines several.
        norm: the normalisation that `join` places.
        attention_norm: the one that it places at the attention sublayer, where that is another.
        join: how the sublayers join the stream.
        arrangement: how the sublayers stand to each other.
        attention, ffn: the two sublayers.
        cross: the attention of an encoder-decoder's block to the encoder; absent = shaped as `attention`, without its window
            and priors.
        dropout: on the output of each sublayer (and on the embeddings, at the top level).
    """

    position: Positions = ("rope",)  # type: ignore[assignment]  # names are parsed into kinds
    norm: Norm = "layer"  # type: ignore[assignment]
    attention_norm: Norm | None = None
    join: Join = "pre"  # type: ignore[assignment]
    arrangement: Arrangement = "serial"  # type: ignore[assignment]
    attention: Attention = "multi_head"  # type: ignore[assignment]
    cross: Attention | None = None
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


class Change(Spec):
    """Fields of a block that change, as plain data: what they mean depends on what they are laid over."""

    model_config = ConfigDict(extra="allow")

    @model_validator(mode="before")
    @classmethod
    def _plain_data(cls, values: Any) -> Any:
        return _without_nulls(plain(values)) if isinstance(values, Mapping) else values

    @property
    def change(self) -> dict[str, Any]:
        """What is laid over the fields of a block."""
        return self.model_extra or {}

    def dump(self) -> dict[str, Any]:
        return {**super().dump(), **self.change}


class BlockChange(Change):
    """What differs in some blocks: a Python slice (or an index) of the blocks, and the fields that change there."""

    at: str

    @model_validator(mode="before")
    @classmethod
    def _index_as_text(cls, values: Any) -> Any:
        at = values.get("at") if isinstance(values, Mapping) else None
        return {**values, "at": str(at)} if type(at) is int else values

    @model_validator(mode="after")
    def _changes_something(self) -> Self:
        if not self.change:
            raise SpecError(f"changes nothing: give what differs there, fields are {', '.join(Block.model_fields)}")
        return self

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


class EncoderChange(Change):
    """What differs in the encoder of an encoder-decoder from what is declared for its decoder.

    Fields, besides those of a block:
        depth: number of blocks; absent = as many as the decoder's.
        blocks: what differs in some of its blocks.
    """

    depth: Size | None = None
    blocks: Many[BlockChange] = ()


class Architecture(Block):
    """A whole architecture. Nothing is allocated by declaring one; everything that can be refused is refused here.

    Fields (besides those of a block):
        form: `decoder` (a position sees no later one), `encoder` (all see all) or `encoder_decoder` (a decoder that looks
            at what an encoder made of another text).
        vocab: number of token ids.
        width: size D of the stream.
        depth: number of blocks.
        stack: how the blocks follow each other.
        share: which blocks use the same modules.
        init: the rule that initial weights are drawn by.
        embed: the width of the table of tokens, and the way from there to the stream.
        types: how many types a token may have (which of two texts it stands in, say); each has a vector that is added to
            the embedding. Absent = tokens have no types.
        embed_norm: a norm on the sum of token, positions and type.
        head: how logits are made of the stream.
        tie_head: the output matrix is the embedding.
        scale_embedding: multiply embeddings by sqrt(width), as in the 2017 model.
        blocks: what differs in some blocks; in an encoder-decoder, of the decoder.
        encoder: what differs in the encoder of an encoder-decoder. The embeddings are shared.
        plugins: modules that register the kinds used here, imported when the file is loaded.
    """

    outside_digest: ClassVar[frozenset[str]] = frozenset({"plugins"})

    form: Literal["decoder", "encoder", "encoder_decoder"] = "decoder"
    vocab: Size = 256
    width: Size = 256
    depth: Size = 6
    stack: Stack = "plain"  # type: ignore[assignment]
    share: Share = "none"  # type: ignore[assignment]
    init: Init = "normal"  # type: ignore[assignment]
    embed: Embed = "direct"  # type: ignore[assignment]
    types: Size | None = None
    embed_norm: Norm | None = None
    head: Head = "linear"  # type: ignore[assignment]
    tie_head: bool = True
    scale_embedding: bool = False
    blocks: Many[BlockChange] = ()
    encoder: EncoderChange | None = None
    plugins: Many[str] = ()

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.encoder is not None and self.reader is None:
            raise SpecError.at("encoder", f"is part of the form 'encoder_decoder', came form {self.form!r}; remove one")
        for setting in self.settings:
            where = self._path_to_block(setting.number)
            try:
                _check_block(setting)
            except SpecError as error:
                raise error.under(*where) from None
        return self

    @model_validator(mode="after")
    def _shares_what_is_equal(self) -> Self:
        try:
            self.share.check(self.depth)
        except SpecError as error:
            raise error.under("share") from None
        for number, owner in enumerate(self.share.owners(self.depth)):
            mine, theirs = (self.declarations[block].dump() for block in (number, owner))
            if mine != theirs:
                differ = ", ".join(name for name in {**mine, **theirs} if mine.get(name) != theirs.get(name))
                message = (
                    f"block {number} uses the modules of block {owner}, so both must declare the same; they differ in"
                )
                raise SpecError.at("share", f"{message} {differ}")
        return self

    def override(self, change: Mapping[str, Any]) -> Self:
        return self.parse(lay_over(self.dump(), change))

    @cached_property
    def declarations(self) -> tuple[Block, ...]:
        """What each block declares, overrides applied, in order."""
        base = {name: value for name, value in super().dump().items() if name in Block.model_fields}
        tables = [base] * self.depth
        plain = Block(**base)
        for index, change in enumerate(self.blocks):
            try:
                for number in change.blocks(self.depth):
                    tables[number] = merge(tables[number], change.change)
                    self._refuse_embed_in_blocks(Block.parse(tables[number]))
            except SpecError as error:
                raise error.under("blocks", index) from None
        return tuple(plain if table is base else Block.parse(table) for table in tables)

    @cached_property
    def reader(self) -> Architecture | None:
        """The encoder of an encoder-decoder, as an architecture of its own; None in the other forms."""
        if self.form != "encoder_decoder":
            return None
        change = self.encoder or EncoderChange()
        kept = {
            name for name in Architecture.model_fields if name not in {"form", "depth", "blocks", "encoder", "cross"}
        }
        base = {name: value for name, value in super().dump().items() if name in kept}
        unknown = next((name for name in change.change if name not in Block.model_fields), None)
        if unknown is not None:
            allowed = [*EncoderChange.model_fields, *Block.model_fields]
            message = f"unknown field; fields here are {', '.join(allowed)}.{did_you_mean(unknown, allowed)}"
            raise SpecError.at(f"encoder.{unknown}", message)
        try:
            sides = {"form": "encoder", "depth": change.depth or self.depth, "blocks": change.blocks}
            return Architecture.parse({**merge(base, change.change), **sides})
        except SpecError as error:
            raise error.under("encoder") from None

    @property
    def sides(self) -> tuple[Architecture, ...]:
        """The encoder, where there is one beside the decoder, and the architecture itself."""
        return (self,) if self.reader is None else (self.reader, self)

    def side_of(self, parameter: str) -> Architecture:
        """The side that a parameter belongs to, by its name."""
        return self.reader if self.reader is not None and parameter.startswith("encoder.") else self

    @property
    def settings(self) -> list[Setting]:
        """Where each block stands, in order; what they share, they share within one list."""
        shared: dict[Hashable, Any] = {}
        return [
            Setting(self, block, number, self.causal, shared=shared) for number, block in enumerate(self.declarations)
        ]

    @property
    def causal(self) -> bool:
        """A position sees no later one."""
        return self.form != "encoder"

    @property
    def embed_positions(self) -> tuple[Position, ...]:
        """The position kinds that act on the embeddings."""
        return tuple(position for position in self.position if "embed" in position.stages)

    @property
    def remembered(self) -> int:
        """Positions before a segment of a text that some block looks at; 0 where segments stand alone."""
        return max(block.attention.remembered for block in self.declarations)

    @property
    def limit(self) -> int | None:
        """How many positions a sequence may have; None for no end."""
        limits = [p.limit for block in (self, *self.declarations) for p in block.position if p.limit is not None]
        return min(limits, default=None)

    def check_length(self, length: int, what: str = "length") -> None:
        """Raise `SpecError` when a sequence of `length` does not fit the positions; in an encoder-decoder, of the decoder."""
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


def lay_over(table: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """The table of an architecture with a change laid over it; see `spec.merge`.

    What an encoder has of its own is a change itself, so "default" inside stays: there it undoes what the decoder declares.
    """
    merged, encoder = merge(table, change), change.get("encoder")
    return (
        {**merged, "encoder": merge_trees(table.get("encoder", {}), encoder)}
        if isinstance(encoder, Mapping)
        else merged
    )


def _without_nulls(value: Any) -> Any:
    """None as `"default"`, which means the same in a change and which TOML can hold."""
    if isinstance(value, Mapping):
        return {key: DEFAULT if item is None else _without_nulls(item) for key, item in value.items()}
    return value


def _check_block(setting: Setting) -> None:
    block, crossing = setting.block, setting.crossing
    try:
        block.attention.check(setting)
    except SpecError as error:
        raise error.under("attention") from None
    try:
        block.arrangement.check(block.join)
    except SpecError as error:
        raise error.under("arrangement") from None
    joins = block.arrangement.joins(("attention", "ffn"))
    if block.attention_norm is not None and joins["attention"] == joins["ffn"]:
        raise SpecError.at(
            "attention_norm",
            f"is that of the attention's own join, and in this {block.arrangement.kind!r} arrangement both sublayers go through "
            "one; set `norm`, or give each a join of its own",
        )
    if crossing is not None:
        _check_crossing(crossing)
    elif block.cross is not None:
        form = setting.architecture.form
        raise SpecError.at(
            "cross", f"looks at an encoder, and form {form!r} has none; remove it or set form = 'encoder_decoder'"
        )
    for index, position in enumerate(block.position):
        try:
            position.check(setting)
        except SpecError as error:
            raise error.under("position", *([index] if len(block.position) > 1 else [])) from None


def _check_crossing(crossing: Setting) -> None:
    attention = crossing.block.attention
    try:
        if not attention.crosses:
            able = ", ".join(name for name, kind in Attention.kinds.items() if kind.crosses)
            raise SpecError(f"kind {attention.kind!r} cannot look at an encoder; declare one that can: {able}")
        attention.check(crossing)
    except SpecError as error:
        raise error.under("cross") from None
