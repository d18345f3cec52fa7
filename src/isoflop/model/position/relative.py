"""Learned vectors for each offset of a key, added to queries, keys and values."""

from __future__ import annotations

from functools import partial, reduce
from typing import Annotated, ClassVar, Self

import torch
from pydantic import Field, model_validator
from torch import Tensor, nn

from isoflop.model.kernel.eager import expand
from isoflop.model.linear import Roles
from isoflop.model.position.band import by_key, by_query, collected
from isoflop.model.relation import Addition, Relation, Tensors, View
from isoflop.model.slots import Heads, Position, Setting
from isoflop.model.term import Meeting, Term
from isoflop.spec import SpecError


class Relative(Position, kind="relative"):
    """Each pair adds a learned vector of its offset to the query, the key and the value (eq. 8-12).

    `query`, `key`, `value` say which of them have a table; the paper has keys and values. Offsets are clipped at `reach`; a
    table has 2 reach + 1 rows, or reach + 1 where no later position is seen. `heads_share`: one table for all heads, or one
    for each. `blocks_share`: one for all blocks, or one for each.

    Formula: s_ij = scale (q_i + a^Q_n) (k_j + a^K_n)ᵀ, o_i = Σ_j p_ij (v_j + a^V_n), n = clip(j - i, -reach, reach)
    Paper: Shaw, Uszkoreit & Vaswani 2018, arXiv 1803.02155
    """

    stages: ClassVar[frozenset[str]] = frozenset({"relate", "values"})
    reach: Annotated[int, Field(ge=0)] = 16
    query: bool = False
    key: bool = True
    value: bool = True
    heads_share: bool = True
    blocks_share: bool = False

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not (self.query or self.key or self.value):
            raise SpecError("must have a table for one of query, key and value")
        if self.reach == 0 and self.key:
            raise SpecError.at(
                "key",
                "does nothing at reach 0: one vector for all keys moves all scores of a query alike; set key = false",
            )
        return self

    def term(self, setting: Setting, heads: int, head_width: int) -> Term:
        shape = setting.heads

        def make() -> RelativeVectors:
            return RelativeVectors(self, shape, setting.causal)

        return setting.share((self, shape, setting.causal), make) if self.blocks_share else make()


class RelativeVectors(Term):
    """See `Relative`. No vector is made for any pair: queries meet the table, and what they say to it is dealt to the keys."""

    def __init__(self, spec: Relative, shape: Heads, causal: bool) -> None:
        super().__init__()
        self.stages = frozenset({"relate"} if spec.query or spec.key else ()) | ({"values"} if spec.value else set())
        self.lowest, self.count = -spec.reach, spec.reach + 1 if causal else 2 * spec.reach + 1
        heads = () if spec.heads_share else (shape.query,)
        self.query_table, self.key_table, self.value_table = (
            nn.Parameter(torch.empty(*heads, self.count, width)) if wanted else None
            for wanted, width in ((spec.query, shape.width), (spec.key, shape.width), (spec.value, shape.value))
        )
        self.roles: Roles = dict.fromkeys(("query_table", "key_table", "value_table"), "position")

    def relate(self, meeting: Meeting) -> Relation:
        rows, columns = [], []
        if self.key_table is not None:
            rows.append(_met(meeting.q_BHTE, self.key_table))
        if self.query_table is not None:
            columns.append(expand(_met(meeting.k_BGSE, self.query_table), meeting.q_BHTE.shape[1]))
        if self.key_table is not None and self.query_table is not None:
            # a^Q a^K depends on the offset alone, as the numbers of a row do already.
            rows = [rows[0] + (self.query_table.float() * self.key_table.float()).sum(-1).unsqueeze(-2)]
        return Relation(partial(_related, lowest=self.lowest), tuple(rows), tuple(columns))

    def values(self, meeting: Meeting) -> Addition:
        assert self.value_table is not None
        return Addition(partial(_added, lowest=self.lowest), (self.value_table.float(),))


def _met(x_BHTE: Tensor, table: Tensor) -> Tensor:
    """Products of vectors with the rows of a table, (B, H, T, N); of key/value heads with those of every head where each has
    its own."""
    heads = len(table) if table.ndim == 3 else x_BHTE.shape[1]
    return expand(x_BHTE.float(), heads) @ table.float().mT


def _added(weights_BHTS: Tensor, shared: Tensors, view: View, *, lowest: int) -> Tensor:
    (table,) = shared
    return collected(weights_BHTS, view, lowest, table.shape[-2]) @ table


def _related(rows: Tensors, columns: Tensors, shared: Tensors, view: View, *, lowest: int) -> Tensor:
    dealt = [by_query(row, view, lowest) for row in rows] + [by_key(column, view, lowest) for column in columns]
    return reduce(torch.add, dealt)
