"""What a term tells about every pair of a query and a key, said by small tensors instead of a matrix of all pairs.

A kernel may ask for a part of the pairs at a time, forward and again backward, so that nothing of size T x S has to be held.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

Tensors = tuple[Tensor, ...]


@dataclass(frozen=True)
class View:
    """The queries and keys of a part of the pairs.

    Attributes:
        q_positions, k_positions: position ids, (B or 1, T) and (B or 1, S).
        first: key index minus query index of the first pair, where the distance between two indices is the distance
            between their positions (in one document); None where that does not hold.
    """

    q_positions: Tensor
    k_positions: Tensor
    first: int | None = None

    @property
    def offsets(self) -> Tensor:
        """Position of the key minus position of the query, (B or 1, 1, T, S)."""
        return self.k_positions[:, None, None, :] - self.q_positions[:, None, :, None]


def in_batch(tensor: Tensor, count: int, batch: int) -> Sequence[Tensor]:
    """So many sequences of a batch at a time; all of a tensor that is the same for every sequence."""
    return tensor.split(count) if tensor.shape[0] == batch else [tensor] * -(-batch // count)


Value = Callable[[Tensors, Tensors, Tensors, View], Tensor]


@dataclass(frozen=True)
class Relation:
    """A number for every head, query and key: `value(rows, columns, shared, view)` -> (B or 1, H or 1, T, S), in fp32.

    Attributes:
        value: the function. It must not close over tensors that need a gradient, and must treat pairs alone: the value of
            a part of the pairs is the part of the value.
        rows: tensors (B or 1, H or 1, T, ...) that belong to queries.
        columns: tensors (B or 1, H or 1, S, ...) that belong to keys.
        shared: tensors of any shape: tables, widths, slopes.
        relative: the value depends on `shared` and the offset from query to key alone. Where indices run with positions it
            is then computed once for each offset, and laid along the diagonals.
    """

    value: Value
    rows: Tensors = ()
    columns: Tensors = ()
    shared: Tensors = ()
    relative: bool = False

    @property
    def tensors(self) -> Tensors:
        """All tensors: rows, columns, shared."""
        return (*self.rows, *self.columns, *self.shared)

    @property
    def fixed(self) -> bool:
        """Whether the value depends on the positions and the parameters alone, and on no query or key."""
        return not len(self.rows) and not len(self.columns)

    @property
    def requires_grad(self) -> bool:
        """Whether a gradient flows into what the relation is made of."""
        return torch.is_grad_enabled() and any(tensor.requires_grad for tensor in self.tensors)

    def of(self, tensors: Sequence[Tensor]) -> Relation:
        """The same relation made of other tensors, in the order of `tensors`."""
        r, c = len(self.rows), len(self.rows) + len(self.columns)
        return replace(self, rows=tuple(tensors[:r]), columns=tuple(tensors[r:c]), shared=tuple(tensors[c:]))

    def part(self, queries: slice, keys: slice) -> Relation:
        """The relation of some queries and keys."""
        rows = tuple(tensor[:, :, queries] for tensor in self.rows)
        return replace(self, rows=rows, columns=tuple(tensor[:, :, keys] for tensor in self.columns))

    def split(self, count: int, batch: int) -> list[Relation]:
        """The relation of so many sequences at a time, of a batch of more than one."""
        pieces = [in_batch(tensor, count, batch) for tensor in (*self.rows, *self.columns)]
        return [self.of([*(piece[n] for piece in pieces), *self.shared]) for n in range(-(-batch // count))]

    def at(self, view: View) -> Tensor:
        """The values of a view, which must be of as many queries and keys as `rows` and `columns` have."""
        if not self.relative or view.first is None:
            return self.value(self.rows, self.columns, self.shared, view)
        rows, columns = view.q_positions.shape[1], view.k_positions.shape[1]
        offsets_1N = torch.arange(view.first - rows + 1, view.first + columns, device=view.k_positions.device)[None]
        value_1H1N = self.by_offset(offsets_1N)
        constant = value_1H1N.shape[-1] == 1
        return value_1H1N if constant else Diagonals.apply(value_1H1N.flatten(0, 2), rows).unsqueeze(0)

    def by_offset(self, offsets_1N: Tensor) -> Tensor:
        """What a relation that is `relative` says of some offsets from query to key, (1, H or 1, 1, N or 1)."""
        return self.value((), (), self.shared, View(torch.zeros_like(offsets_1N[:, :1]), offsets_1N))


def given(number: Tensor) -> Relation:
    """A number for all pairs, for each head, or for each head and query: (B or 1, H or 1, T or 1, 1).

    A number of queries must say so by its shape: see `given_by_query` for one whose T may be 1.
    """
    return Relation(_given, shared=(number,), relative=number.shape[0] == number.shape[2] == 1)


def given_by_query(number_BHT1: Tensor) -> Relation:
    """A number for each head and query."""
    return Relation(_given, rows=(number_BHT1,))


def _given(rows: Tensors, columns: Tensors, shared: Tensors, view: View) -> Tensor:
    return (*rows, *shared)[0]


def combined(function: Callable[..., Tensor], *relations: Relation) -> Relation:
    """`function` of what several relations say of a pair. It must treat pairs alone and hold no tensor."""
    # Not the relations themselves: a value must not hold their tensors.
    parts = tuple((of.value, len(of.rows), len(of.columns), len(of.shared)) for of in relations)

    def value(rows: Tensors, columns: Tensors, shared: Tensors, view: View) -> Tensor:
        said = []
        for inner, r, c, s in parts:
            said.append(inner(rows[:r], columns[:c], shared[:s], view))
            rows, columns, shared = rows[r:], columns[c:], shared[s:]
        return function(*said)

    return Relation(
        value,
        rows=tuple(tensor for of in relations for tensor in of.rows),
        columns=tuple(tensor for of in relations for tensor in of.columns),
        shared=tuple(tensor for of in relations for tensor in of.shared),
        relative=all(of.relative for of in relations),
    )


@dataclass(frozen=True)
class Mixture:
    """A distribution over the keys that is mixed into the weights: p' = (1 - share) p + share softmax(prior).

    Attributes:
        prior: logits of the distribution; they are masked before their softmax.
        share: (B or 1, H or 1, T or 1, 1), between 0 and 1.
        normalised: False for exp(prior) over the allowed keys as it is, which need not sum to 1.
    """

    prior: Relation
    share: Tensor
    normalised: bool = True

    def part(self, queries: slice, keys: slice) -> Mixture:
        """The mixture for some queries and keys."""
        share = self.share if self.share.shape[2] == 1 else self.share[:, :, queries]
        return replace(self, prior=self.prior.part(queries, keys), share=share)


@dataclass(frozen=True)
class Addition:
    """What the weights add to the output beside p v: `value(weights_BHTS, shared, view)` -> o_BHTE, linear in the weights.

    Attributes:
        value: the function. It must not close over tensors that need a gradient.
        shared: tensors of any shape.
    """

    value: Callable[[Tensor, Tensors, View], Tensor]
    shared: Tensors = ()

    @property
    def tensors(self) -> Tensors:
        """What a gradient may flow into."""
        return self.shared

    def of(self, tensors: Sequence[Tensor]) -> Addition:
        """The same addition made of other tensors."""
        return replace(self, shared=tuple(tensors))

    def at(self, weights_BHTS: Tensor, view: View) -> Tensor:
        """What the weights of a view add."""
        return self.value(weights_BHTS, self.shared, view)


def by_offset(table_HN: Tensor, view: View, lowest: int) -> Tensor:
    """`table[h, clip(k - q, lowest, lowest + N - 1) - lowest]` for every pair: (B or 1, H, T, S).

    Where indices run with positions, the matrix has equal diagonals: it is a view of a vector of T + S - 1 numbers, and
    its gradient is a sum along diagonals, many times faster than a look-up of every pair.
    """
    highest = lowest + table_HN.shape[1] - 1
    if view.first is None:
        index = (view.offsets.clamp(lowest, highest) - lowest).squeeze(1)
        return F.embedding(index, table_HN.t()).movedim(-1, 1)
    rows, columns = view.q_positions.shape[1], view.k_positions.shape[1]
    offsets = torch.arange(view.first - rows + 1, view.first + columns, device=table_HN.device)
    diagonals_HN = table_HN.index_select(1, offsets.clamp(lowest, highest) - lowest)
    return Diagonals.apply(diagonals_HN, rows).unsqueeze(0)


class Diagonals(torch.autograd.Function):
    """A vector laid along the diagonals: v_HN -> m_HTS with m[h, i, j] = v[h, j - i + T - 1], N = T + S - 1."""

    @staticmethod
    def forward(ctx: Any, v_HN: Tensor, rows: int) -> Tensor:
        # What `unfold` makes too, but torch.compile would make a graph of every length of it.
        heads, width = v_HN.shape
        return v_HN.contiguous().as_strided((heads, rows, width - rows + 1), (width, 1, 1)).flip(1)

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        (g_HTS,) = grads
        heads, rows, columns = g_HTS.shape
        # Rows padded by T numbers and read at a pitch one shorter move one place each: diagonals become columns.
        wide = F.pad(g_HTS.flip(1), (0, rows)).flatten(1)
        pitch = rows + columns - 1
        return wide[:, : rows * pitch].view(heads, rows, pitch).sum(1), None
