"""Queries, keys and values of each head by matrices on the stream: MHA, GQA, MQA."""

from __future__ import annotations

from abc import abstractmethod
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from isoflop.model.attention.declared import Scored, Size, Terms, check_divides
from isoflop.model.linear import Linear
from isoflop.model.slots import Attend, Attention, Heads, Norm, Setting, ValueResidual
from isoflop.model.term import Scoring
from isoflop.model.value_residual import build_values, check_values
from isoflop.spec import SpecError

Gate = Literal["none", "head", "element"]


class MultiHead(Scored, kind="multi_head"):
    """Scaled dot-product attention in several heads: MHA, GQA (fewer key/value heads), MQA (one).

    Fields: `kv_heads` absent = one for each query head. `head_width` absent = width / heads. `window`: keys a query
    sees, itself included; absent = all. `qk_norm`: a norm over each head of q and k. `softcap`: c in c tanh(s / c) on
    the scores. `scale`: factor on q kᵀ; absent = 1 / sqrt(head width). `bias`: on q, k, v, o and the gate, or on all but o,
    `qkv`. `dropout`: on the weights. `priors`: which keys are preferred before q and k are looked at. `gate`: what a head puts
    out is multiplied by a sigmoid of a projection of x, one number for the `head` or one for each `element`. `value_residual`:
    values of the first block are mixed into those of this one; the first keeps its own. `memory`: positions before a segment
    of a text that its queries see too; their keys and values are made of what this attention read there, h, which gets no
    gradient. It is for training on texts in order, where each segment goes on from the one before.

    Formula: o = sigmoid(g) * softmax(scale q kᵀ + bias) v per head, heads concatenated, times W_o; g = W_g x where gated;
        k, v = W_k, W_v of [stop_gradient(h), x] with a memory
    Paper: Vaswani et al. 2017, arXiv 1706.03762; Shazeer 2019 (MQA), 1911.02150; Ainslie et al. 2023 (GQA), 2305.13245;
        Qiu et al. 2025 (gate), arXiv 2505.06708; Dai et al. 2019 (memory), 1901.02860
    """

    kv_heads: Size | None = None
    head_width: Size | None = None
    qk_norm: Norm | None = None
    bias: bool | Literal["qkv"] = False
    gate: Gate = "none"
    value_residual: ValueResidual | None = None
    memory: Size | None = None

    crosses: ClassVar[bool] = True

    @property
    def remembered(self) -> int:
        return self.memory or 0

    @property
    def mixes_values(self) -> bool:
        return self.value_residual is not None

    def value_shape(self, width: int) -> tuple[int, int] | None:
        shape = self.shape(width)
        return shape.key_value, shape.value

    def crossing(self) -> Attention:
        return self.model_copy(update={"window": None, "priors": (), "value_residual": None, "memory": None})

    def shape(self, width: int) -> Heads:
        return Heads.alike(self.heads, self.kv_heads or self.heads, self.head_width or width // self.heads)

    def check(self, setting: Setting) -> None:
        if self.head_width is None:
            check_divides("heads", self.heads, "width", setting.architecture.width)
        if self.kv_heads is not None:
            check_divides("kv_heads", self.kv_heads, "heads", self.heads)
        super().check(setting)
        self._check_memory(setting)
        try:
            check_values(self.value_residual, setting)
        except SpecError as error:
            raise error.under("value_residual") from None

    def _check_memory(self, setting: Setting) -> None:
        if self.memory is None:
            return
        form, absolute = setting.architecture.form, [position.kind for position in setting.architecture.embed_positions]
        turns, meets = (
            [position.kind for position in setting.block.position if stage in position.stages]
            for stage in ("rotate", "relate")
        )
        if setting.across or form != "decoder":
            raise SpecError.at(
                "memory",
                f"is of the text that a decoder goes on with; remove it or set form = 'decoder', came {form!r}",
            )
        if absolute:
            raise SpecError.at(
                "memory",
                f"needs positions that say how far a key is, and {absolute[0]!r} counts each segment from its own start: "
                "set a position that acts in attention, such as 'transformer_xl', 'rope' or 'alibi'",
            )
        if turns and meets:
            raise SpecError.at(
                "memory",
                f"needs positions that say how far a key is, and where {turns[0]!r} turns queries and keys before vectors of "
                f"{meets[0]!r} meet them, scores tell where in its segment a token is: remove one of the two",
            )
        if self.window is not None and self.memory >= self.window:
            raise SpecError.at(
                "memory",
                f"must be at most {self.window - 1}, since no query sees further in a window of {self.window}, "
                f"came {self.memory}",
            )

    def build(self, setting: Setting) -> nn.Module:
        own = RecurrentAttention if self.memory else SelfAttention
        make = CrossAttention if setting.across else own
        return make(self, setting, *self.scoring(setting))


class MultiHeadAttention(nn.Module):
    """What attention to one's own text and to another's have in common. Query head h reads key/value head h // (H / G)."""

    def __init__(self, spec: MultiHead, setting: Setting, scoring: Scoring, terms: Terms) -> None:
        super().__init__()
        width = setting.architecture.width
        self.shape, self.scoring = spec.shape(width), scoring
        self.gate: Gate = spec.gate
        self.project(width, bool(spec.bias))
        self.q_norm, self.k_norm = (
            spec.qk_norm.build(self.shape.width) if spec.qk_norm else nn.Identity() for _ in range(2)
        )
        self.terms, self.priors = (nn.ModuleList(each) for each in terms)
        self.o = Linear(self.shape.query * self.shape.width, {"o": width}, spec.bias is True)

    @abstractmethod
    def project(self, width: int, bias: bool) -> None:
        """Make the matrices of queries, keys, values and the gate."""

    def rows(self, **heads: int) -> dict[str, int]:
        """The parts of a stacked matrix that has so many heads of each, and the gate."""
        return {part: count * self.shape.width for part, count in heads.items()} | gate_rows(
            self.gate, self.shape.query, self.shape.width
        )

    def split(self, x_BTN: Tensor, *heads: int) -> tuple[Tensor, ...]:
        """Projections of so many heads each, stacked on the last axis, as heads: (B, heads, T, E)."""
        return x_BTN.unflatten(-1, (sum(heads), self.shape.width)).transpose(1, 2).split(heads, dim=1)

    def merge(self, o_BHTE: Tensor, gate_BTN: Tensor) -> Tensor:
        """The outputs of all heads to the stream."""
        return self.o(gated(o_BHTE, gate_BTN).transpose(1, 2).flatten(2))


class SelfAttention(MultiHeadAttention):
    """See `MultiHead`. q, k, v and the gate are one stacked matrix."""

    def __init__(self, spec: MultiHead, setting: Setting, scoring: Scoring, terms: Terms) -> None:
        super().__init__(spec, setting, scoring, terms)
        self.values = build_values(spec.value_residual, setting)

    def project(self, width: int, bias: bool) -> None:
        self.qkv = Linear(width, self.rows(q=self.shape.query, k=self.shape.key_value, v=self.shape.key_value), bias)

    def forward(self, x_BTD: Tensor, attend: Attend) -> Tensor:
        heads = (self.shape.query, self.shape.key_value, self.shape.key_value)
        qkv_BTN, gate_BTN = self.qkv(x_BTD).tensor_split([sum(heads) * self.shape.width], dim=-1)
        q_BHTE, k_BGTE, v_BGTE = self.split(qkv_BTN, *heads)
        k_BGSE, v_BGSE, beside = self.with_past(k_BGTE, v_BGTE, x_BTD, attend)
        v_BGSE = self.values(v_BGSE, attend)
        return self.merge(beside(self.q_norm(q_BHTE), self.k_norm(k_BGSE), v_BGSE, self.scoring), gate_BTN)

    def with_past(self, k_BGTE: Tensor, v_BGTE: Tensor, x_BTD: Tensor, attend: Attend) -> tuple[Tensor, Tensor, Attend]:
        """All keys and values that the queries of x meet, and what evaluates that."""
        return k_BGTE, v_BGTE, attend


class RecurrentAttention(SelfAttention):
    """`MultiHead` with a memory of the segment before."""

    def __init__(self, spec: MultiHead, setting: Setting, scoring: Scoring, terms: Terms) -> None:
        super().__init__(spec, setting, scoring, terms)
        self.memory = spec.remembered

    def with_past(self, k_BGTE: Tensor, v_BGTE: Tensor, x_BTD: Tensor, attend: Attend) -> tuple[Tensor, Tensor, Attend]:
        past_BMD, beside = attend.recall(x_BTD, self.memory)
        query, groups, width = self.shape.query, self.shape.key_value, self.shape.width
        rows = slice(query * width, (query + 2 * groups) * width)
        k_BGME, v_BGME = self.split(self.qkv.some(past_BMD, rows), groups, groups)
        return torch.cat([k_BGME, k_BGTE], dim=2), torch.cat([v_BGME, v_BGTE], dim=2), beside


class CrossAttention(MultiHeadAttention):
    """`MultiHead` from a decoder to an encoder. k and v are one stacked matrix, on the encoder's stream."""

    def project(self, width: int, bias: bool) -> None:
        rows_kv = self.shape.key_value * self.shape.width
        self.q = Linear(width, self.rows(q=self.shape.query), bias)
        self.kv = Linear(width, {"k": rows_kv, "v": rows_kv}, bias)

    def forward(self, x_BTD: Tensor, attend: Attend) -> Tensor:
        q_BTN, gate_BTN = self.q(x_BTD).tensor_split([self.shape.query * self.shape.width], dim=-1)
        (q_BHTE,) = self.split(q_BTN, self.shape.query)
        return self.merge(attend.across(self.q_norm(q_BHTE), self.keys_values, self.scoring), gate_BTN)

    def keys_values(self, states_BSD: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of what the encoder made of the source."""
        k_BGSE, v_BGSE = self.split(self.kv(states_BSD), self.shape.key_value, self.shape.key_value)
        return self.k_norm(k_BGSE), v_BGSE


def gate_rows(gate: Gate, heads: int, head_width: int) -> dict[str, int]:
    """The part that a gate is of a stacked projection."""
    rows = {"none": 0, "head": heads, "element": heads * head_width}[gate]
    return {"gate": rows} if rows else {}


def gated(o_BHTE: Tensor, gate_BTN: Tensor) -> Tensor:
    """Outputs times a sigmoid: of one number for each head or for each component; without any they stay as they are."""
    if gate_BTN.shape[-1] == 0:
        return o_BHTE
    return o_BHTE * gate_BTN.unflatten(-1, (o_BHTE.shape[1], -1)).transpose(1, 2).sigmoid()
