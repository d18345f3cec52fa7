"""The vocabulary: every slot of an architecture, what its modules receive and what they return.

Letters in tensor names: B batch, T queries, S keys, D width, H heads, G key/value heads, E head width, F hidden width of
the feed-forward, V vocabulary. A kind is a subclass of a slot; it lives in the file of its family beside its module.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol

from torch import Tensor, nn

from isoflop.spec import Slot

if TYPE_CHECKING:
    from isoflop.model.architecture import Architecture, Block
    from isoflop.model.linear import Part

Once = Callable[[Any, Callable[[], Any]], Any]
"""`once(key, make)`: `make()` the first time a key comes up in a forward pass, its value after that."""


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


class Term(nn.Module):
    """What a position kind (or a prior) adds to attention, in the stages it names.

    `rotate` turns queries and keys before they meet (and before keys are cached); `add` is a bias on the scores.
    Terms of equal `key` give equal values, so that blocks share what one of them has computed in a forward pass.
    """

    stages: frozenset[str] = frozenset()

    @property
    def key(self) -> Hashable:
        return self

    def rotate(self, x_BHTE: Tensor, positions_BT: Tensor, once: Once) -> Tensor:
        """Queries or keys at these positions, rotated. `once` remembers for these positions alone."""
        raise TypeError(f"{type(self).__name__} has no rotate stage")

    def add(self, q_positions_BT: Tensor, k_positions_BS: Tensor, once: Once) -> Tensor:
        """A bias for every query and key: (B or 1, H, T, S), in fp32."""
        raise TypeError(f"{type(self).__name__} has no add stage")


class Position(Slot, default="rope"):
    """How the model knows where a token stands.

    `stages` says where the kind acts: `embed` (vectors added to the embeddings), `rotate`, `add`.
    """

    stages: ClassVar[frozenset[str]]

    def embedding(self, width: int) -> nn.Module:
        """For stage `embed`: positions_BT -> x_BTD."""
        raise TypeError(f"{self.kind} has no embed stage")

    def term(self, heads: int, head_width: int) -> Term:
        """For the stages inside attention."""
        raise TypeError(f"{self.kind} acts in no stage of attention")

    @property
    def limit(self) -> int | None:
        """How many positions there are; None for no end."""
        return None

    def check(self, architecture: Architecture, block: Block) -> None:
        """Raise `SpecError` (paths relative to this position) when the kind cannot work here."""


@dataclass(frozen=True)
class Scoring:
    """How one attention layer turns queries and keys into weights; see `kernel.eager` for the formula.

    Attributes:
        scale: factor on q kᵀ.
        causal: a query sees no later position.
        window: keys a query sees, itself included; None for all.
        softcap: bound c of `c tanh(score / c)`; None for none.
        dropout: probability, on the weights, in training mode.
        terms: what positions (and priors) add.
    """

    scale: float
    causal: bool
    window: int | None
    softcap: float | None
    dropout: float
    terms: tuple[Term, ...]

    def acting(self, stage: str) -> tuple[Term, ...]:
        """The terms that act in a stage."""
        return tuple(term for term in self.terms if stage in term.stages)

    @property
    def stages(self) -> frozenset[str]:
        """The stages that a kernel must be able to run (`rotate` is done before it)."""
        cap = {"cap"} if self.softcap is not None else set()
        return frozenset().union(*(term.stages for term in self.terms), cap) - {"rotate"}


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
    def build(self, architecture: Architecture, block: Block) -> nn.Module: ...

    def check(self, architecture: Architecture, block: Block) -> None:
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
