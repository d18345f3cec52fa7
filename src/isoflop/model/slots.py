"""The vocabulary: every slot of an architecture, what its modules receive and what they return.

Letters in tensor names: B batch, T queries, S keys, D width, H heads, G key/value heads, E head width, F hidden width of
the feed-forward, V vocabulary. A kind is a subclass of a slot; it lives in the file of its family beside its module.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple, Protocol, TypeVar, cast

from pydantic import Field
from torch import Tensor, nn

from isoflop.model.chosen import Chosen
from isoflop.model.term import Scoring, Term
from isoflop.spec import OneOrMany, Slot, SpecError

if TYPE_CHECKING:
    from isoflop.model.architecture import Architecture, Block
    from isoflop.model.linear import Part


HeadNumber = Annotated[int, Field(ge=0)]


Module = TypeVar("Module", bound=nn.Module)


class Norm(Slot, default="layer"):
    """A normalisation over the last axis: x_..D -> x_..D."""

    @abstractmethod
    def build(self, width: int) -> nn.Module: ...


class Activation(Slot, default="relu"):
    """An elementwise function: x -> x."""

    @abstractmethod
    def build(self) -> nn.Module: ...


class FeedForward(Slot, default="plain"):
    """What a block does to each position alone: x_BTD -> x_BTD."""

    @abstractmethod
    def build(self, width: int) -> nn.Module: ...


@dataclass(frozen=True)
class Setting:
    """Where a block stands in the model, for what depends on more than its own fields.

    Attributes:
        architecture: the whole declaration.
        block: what this block declares.
        number: of the block, from 0.
        causal: its attention sees no later position.
        across: queries are of a decoder and keys of an encoder.
        shared: modules that several blocks have in common, by a key of their maker.
    """

    architecture: Architecture
    block: Block
    number: int = 0
    causal: bool = True
    across: bool = False
    shared: dict[Hashable, nn.Module] = field(default_factory=dict)

    @property
    def heads(self) -> Heads:
        """The shape of the block's attention."""
        return self.block.attention.shape(self.architecture.width)

    @property
    def crossing(self) -> Setting | None:
        """Where the block's attention to an encoder stands; None in a model without one.

        What `cross` does not declare is the block's own attention, without what is about places in one text.
        """
        if self.architecture.form != "encoder_decoder":
            return None
        cross = self.block.cross or self.block.attention.crossing()
        block = self.block.model_copy(update={"attention": cross, "position": ()})
        return replace(self, block=block, causal=False, across=True)

    def share(self, key: Hashable, make: Callable[[], Module]) -> Module:
        """The module of a key, made by the first block that asks: its parameters are tied."""
        if key not in self.shared:
            self.shared[key] = make()
        return cast("Module", self.shared[key])


class Position(Slot, default="rope"):
    """How the model knows where a token stands.

    `stages` says where the kind acts: `embed` (vectors added to the embeddings), or stages of attention, see `Term`.
    """

    stages: ClassVar[frozenset[str]]

    def embedding(self, width: int) -> nn.Module:
        """For stage `embed`: positions_BT -> x_BTD."""
        raise TypeError(f"{self.kind} has no embed stage")

    def term(self, setting: Setting, heads: int, head_width: int) -> Term:
        """For the stages inside attention."""
        raise TypeError(f"{self.kind} acts in no stage of attention")

    @property
    def limit(self) -> int | None:
        """How many positions there are; None for no end."""
        return None

    def check(self, setting: Setting) -> None:
        """Raise `SpecError` (paths relative to this position) when the kind cannot work here."""


class Scaling(Slot, default="none"):
    """How rotary positions are changed for texts longer than those a model was trained on: base -> frequencies.

    What depends on the length of a text goes by a length that is declared, never by the text at hand: keys that are cached
    were turned before its end was known.
    """

    @abstractmethod
    def frequencies(self, rotated: int, base: float) -> list[float]:
        """Radians by which a position turns each of the rotated / 2 pairs."""

    @property
    def magnitude(self) -> float:
        """What turned queries and turned keys are multiplied by, each."""
        return 1.0

    def check(self, rotated: int) -> None:
        """Raise `SpecError` (paths relative to this scaling) when the kind cannot work on so many components."""


class Measure(Slot, default="distance"):
    """How far a key is from where a query would look, the G of eq. 1-7: at least 0, and 0 where nothing is held against it.

    A measure of your own is also a decay of your own: G = -log G' turns exp(-G) into any G'.
    """

    @abstractmethod
    def build(self, chosen: Chosen) -> nn.Module:
        """meeting -> Relation: G for the chosen heads, any number for the rest."""

    def check(self, setting: Setting, heads: int) -> None:
        """Raise `SpecError` (paths relative to this measure) when the kind cannot work here, on so many heads."""


class Prior(Slot, default="penalty"):
    """A preference for keys that the content of queries and keys does not make: where to look before looking.

    `heads`: those it acts on; absent = all.
    """

    heads: OneOrMany[HeadNumber] | None = None

    @abstractmethod
    def term(self, setting: Setting, heads: int, head_width: int) -> Term:
        """What it does in attention, in the stages that the term names."""

    def chosen(self, heads: int, head_width: int) -> Chosen:
        """The heads that it acts on, out of so many."""
        return Chosen(heads, tuple(range(heads)) if self.heads is None else tuple(sorted(self.heads)), head_width)

    def check(self, setting: Setting) -> None:
        """Raise `SpecError` (paths relative to this prior) when the kind cannot work here."""
        if self.heads is None:
            return
        there = setting.heads.query
        if not self.heads or len(set(self.heads)) != len(self.heads) or max(self.heads) >= there:
            raise SpecError.at(
                "heads", f"must name each head once, 0 to {there - 1} and at least one, came {list(self.heads)}"
            )


KeysValues = Callable[[Tensor], tuple[Tensor, Tensor]]
"""states_BSD -> (k_BGSE, v_BGSE), as a site keeps them."""

Expand = Callable[[Tensor, Tensor], tuple[Tensor, Tensor]]
"""(k, v) as a site keeps them -> (k_BGSE, v_BGSE) as queries meet them."""


def as_kept(k_BGSE: Tensor, v_BGSE: Tensor) -> tuple[Tensor, Tensor]:
    """The `Expand` of a site that keeps what queries meet."""
    return k_BGSE, v_BGSE


class Attend(Protocol):
    """Evaluates attention. One object serves one forward pass and knows positions, documents and caches; nothing else does.

    Each call is one *site*: sites are numbered in forward order, so a sublayer that is evaluated twice has two.
    """

    def __call__(
        self, q_BHTE: Tensor, k_BGTE: Tensor, v_BGTE: Tensor, scoring: Scoring, expand: Expand = as_kept
    ) -> Tensor:
        """Keys and values are what a cache keeps for each token, keys after rotation; `expand` makes of all that is kept
        what queries meet."""
        ...

    def once(self, key: Any, make: Callable[[], Any]) -> Any:
        """`make()` the first time a key comes up in this forward pass, its value after that."""
        ...

    def recall(self, x_BTD: Tensor, memory: int) -> tuple[Tensor, Attend]:
        """What attention read at this site in the last `memory` positions before x, or as many as there are, (B, M, D), and
        what evaluates attention whose first M keys and values are made of it. x itself is kept for the segment after it.

        M is 0 where keys and values of the past are kept, as in a cache, or where there is no past.
        """
        ...

    def across(self, q_BHTE: Tensor, keys_values: KeysValues, scoring: Scoring, expand: Expand = as_kept) -> Tensor:
        """Attention to what an encoder made of the source. What a site keeps of it does not change while decoding."""
        ...


class ValueResidual(Slot, default="learned"):
    """How a block mixes values of the first block into its own: (first_BGTE, own_BGTE) -> v_BGTE."""

    @abstractmethod
    def build(self) -> nn.Module: ...

    def check(self) -> None:
        """Raise `SpecError` (paths relative to this residual) when its fields cannot work together."""


class Heads(NamedTuple):
    """The shape of an attention.

    Attributes:
        query, key_value: heads of queries, and of keys and values.
        width: of a query and of a key.
        value: width of a value.
        rotary: the part of a query and of a key that rotations act on; it stands first.
    """

    query: int
    key_value: int
    width: int
    value: int
    rotary: int

    @classmethod
    def alike(cls, query: int, key_value: int, width: int) -> Heads:
        """Values are as wide as keys, and rotations act on all of these."""
        return cls(query, key_value, width, value=width, rotary=width)


class Attention(Slot, default="multi_head"):
    """How positions exchange information: (x_BTD, attend) -> x_BTD.

    `crosses` says whether the kind can look from a decoder at an encoder: then `build` of a setting that is `across` makes
    a module that asks `attend.across`.
    """

    crosses: ClassVar[bool] = False

    def crossing(self) -> Attention:
        """The attention to an encoder of a block that declares none: this one without what is about places in one text."""
        return self

    @abstractmethod
    def shape(self, width: int) -> Heads:
        """The heads of a model of this width."""

    @property
    def remembered(self) -> int:
        """Positions before a segment of a text that its queries look at; see `isoflop.model.past`."""
        return 0

    @property
    def mixes_values(self) -> bool:
        """Whether values of the first block are mixed into its own; see `ValueResidual`."""
        return False

    def value_shape(self, width: int) -> tuple[int, int] | None:
        """Heads and width of the values that later blocks may mix in; None where there are none."""
        return None

    @abstractmethod
    def build(self, setting: Setting) -> nn.Module: ...

    def check(self, setting: Setting) -> None:
        """Raise `SpecError` (paths relative to this attention) when the kind cannot work here."""


class Join(Slot, default="pre"):
    """How a sublayer f joins the stream z: (z_BTD, f) -> z_BTD.

    `final_norm` says whether the stream leaves the last block unnormalised, so that the model must end with a norm.
    `adds` says that z' is z and something that is added: the module is an `Adding`.
    """

    final_norm: ClassVar[bool]
    adds: ClassVar[bool] = False

    @abstractmethod
    def build(self, make_norm: Callable[[], nn.Module], dropout: float) -> nn.Module: ...


Sublayer = Callable[[Tensor], Tensor]
"""x_BTD -> x_BTD, with whatever else it needs handed in already."""


class Adding(Protocol):
    """The module of a join that `adds`."""

    def branch(self, z_BTD: Tensor, f: Sublayer) -> Tensor:
        """What is added to the stream."""
        ...


class Arrangement(Slot, default="serial"):
    """How the sublayers of a block stand to each other: (z_BTD, joins, sublayers) -> z_BTD."""

    def joins(self, sublayers: Sequence[str]) -> dict[str, str]:
        """The name of the join that each sublayer goes through, by the sublayer's own name."""
        return {name: f"{name}_join" for name in sublayers}

    @abstractmethod
    def build(self) -> nn.Module: ...

    def check(self, join: Join) -> None:
        """Raise `SpecError` (paths relative to this arrangement) when it cannot work with a join."""


class Stack(Slot, default="plain"):
    """How the blocks follow each other in depth: (z_BTD, blocks, attend) -> z_BTD."""

    @abstractmethod
    def build(self, depth: int) -> nn.Module: ...


class Share(Slot, default="none"):
    """Which blocks use the same modules: parameters are shared, evaluations of attention (and their caches) are not."""

    @abstractmethod
    def owners(self, depth: int) -> tuple[int, ...]:
        """For each block the number of the one whose modules it uses; a block that others use uses its own."""

    def check(self, depth: int) -> None:
        """Raise `SpecError` (paths relative to this slot) when the kind cannot work at this depth."""


class Embed(Slot, default="direct"):
    """How wide the table of tokens is, and how its vectors come to the width of the stream and back."""

    @abstractmethod
    def table_width(self, width: int) -> int:
        """Of the table, in a model of this width."""

    @abstractmethod
    def sum_width(self, width: int) -> int:
        """Of the sum of token, positions and type."""

    @abstractmethod
    def build_token_map(self, width: int) -> nn.Module:
        """From the table to the sum."""

    @abstractmethod
    def build_sum_map(self, width: int) -> nn.Module:
        """From the sum to the stream."""

    @abstractmethod
    def build_reader(self, width: int) -> nn.Module:
        """From the stream to the table's width, for a head that has no map of its own."""


class Head(Slot, default="linear"):
    """From the stream to logits: (features_..D, table_VE) -> Output. Fields that every kind has are described at `linear`."""

    bias: bool = False
    softcap: Annotated[float, Field(gt=0)] | None = None
    scale: Annotated[float, Field(gt=0)] | None = None

    @abstractmethod
    def build(self, architecture: Architecture) -> nn.Module: ...


class Rule(Protocol):
    """A distribution that initial values are drawn from; `str()` of it is one line of the golden listing."""

    def draw(self, shape: tuple[int, ...], generator: Any) -> Tensor: ...


class Init(Slot, default="normal"):
    """Which distribution a matrix is drawn from, by role and depth."""

    @abstractmethod
    def rule(self, part: Part, architecture: Architecture) -> Rule: ...
