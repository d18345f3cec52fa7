"""The vocabulary: every slot of an architecture, what its modules receive and what they return.

Letters in tensor names: B batch, T queries, S keys, D width, H heads, G key/value heads, E head width, F hidden width of
the feed-forward, V vocabulary. A kind is a subclass of a slot; it lives in the file of its family beside its module.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
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
        shared: modules that several blocks have in common, by a key of their maker.
    """

    architecture: Architecture
    block: Block
    number: int = 0
    causal: bool = True
    shared: dict[Hashable, nn.Module] = field(default_factory=dict)

    @property
    def heads(self) -> tuple[int, int]:
        """Query heads of the block's attention, and the width of each."""
        shape = self.block.attention.shape(self.architecture.width)
        return shape.query, shape.width

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
        there, _ = setting.heads
        if not self.heads or len(set(self.heads)) != len(self.heads) or max(self.heads) >= there:
            raise SpecError.at(
                "heads", f"must name each head once, 0 to {there - 1} and at least one, came {list(self.heads)}"
            )


class Attend(Protocol):
    """Evaluates attention. One object serves one forward pass and knows positions, documents and caches; nothing else does.

    Each call is one *site*: sites are numbered in forward order, so a sublayer that is evaluated twice has two.
    """

    def __call__(self, q_BHTE: Tensor, k_BGTE: Tensor, v_BGTE: Tensor, scoring: Scoring) -> Tensor: ...


class Heads(NamedTuple):
    """The shape of an attention: query heads, key/value heads, width of each."""

    query: int
    key_value: int
    width: int


class Attention(Slot, default="multi_head"):
    """How positions exchange information: (x_BTD, attend) -> x_BTD."""

    @abstractmethod
    def shape(self, width: int) -> Heads:
        """The heads of a model of this width."""

    @abstractmethod
    def build(self, setting: Setting) -> nn.Module: ...

    def check(self, setting: Setting) -> None:
        """Raise `SpecError` (paths relative to this attention) when the kind cannot work here."""


class Join(Slot, default="pre"):
    """How a sublayer f joins the stream z: (z_BTD, f) -> z_BTD.

    `final_norm` says whether the stream leaves the last block unnormalised, so that the model must end with a norm.
    """

    final_norm: ClassVar[bool]

    @abstractmethod
    def build(self, make_norm: Callable[[], nn.Module], dropout: float) -> nn.Module: ...


class Stack(Slot, default="plain"):
    """How the blocks follow each other in depth: (z_BTD, blocks, attend) -> z_BTD."""

    @abstractmethod
    def build(self, depth: int) -> nn.Module: ...


class Rule(Protocol):
    """A distribution that initial values are drawn from; `str()` of it is one line of the golden listing."""

    def draw(self, shape: tuple[int, ...], generator: Any) -> Tensor: ...


class Init(Slot, default="normal"):
    """Which distribution a matrix is drawn from, by role and depth."""

    @abstractmethod
    def rule(self, part: Part, architecture: Architecture) -> Rule: ...
