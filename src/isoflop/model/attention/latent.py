"""Latent attention: keys and values of all heads are made of one vector for each token, which is all that a cache keeps."""

from __future__ import annotations

from abc import abstractmethod
from typing import Annotated, ClassVar

import torch
from pydantic import Field
from torch import Tensor, nn

from isoflop.model.attention.declared import Scored, Size, check_divides
from isoflop.model.linear import Linear
from isoflop.model.slots import Attend, Attention, Expand, Heads, Norm, Setting


class Latent(Scored, kind="latent"):
    """Multi-head latent attention (MLA): a cache keeps `latent + rotary_width` numbers for each token, whatever the heads are.

    A key has two parts: one that all heads share and that rotations act on, and one that each head makes of the latent, as it
    makes its value. `rotary_width` is the width of the first, 0 for none; `head_width` of the second, absent = width / heads;
    `value_width` of a value, absent = head_width. `query_latent`: queries are made of a latent of their own; absent = of the
    stream. `latent_norm`: on both latents. One new token at a time meets the latents themselves: what would make keys and values
    of them is applied to its query and to what it reads, which is the same product in another order. `window`, `softcap`,
    `scale` (absent = 1 / sqrt(head_width + rotary_width)), `dropout`, `priors`: as in `multi_head`.

    Formula: c = N(W_c x), k = [rotated W_r x, W_k c], v = W_v c, q = [rotated W_qr x, W_q x]; o = softmax(scale q kᵀ) v
    Paper: DeepSeek-AI 2024 (DeepSeek-V2), arXiv 2405.04434
    """

    latent: Size = 64
    query_latent: Size | None = None
    head_width: Size | None = None
    rotary_width: Annotated[int, Field(ge=0)] = 16
    value_width: Size | None = None
    latent_norm: Norm = "rms"  # type: ignore[assignment]  # a name is parsed into its kind

    crosses: ClassVar[bool] = True

    def crossing(self) -> Attention:
        return self.model_copy(update={"window": None, "priors": ()})

    def content_width(self, width: int) -> int:
        """Of the part of a head that is made of the latent."""
        return self.head_width or width // self.heads

    def shape(self, width: int) -> Heads:
        content = self.content_width(width)
        return Heads(
            self.heads, self.heads, self.rotary_width + content, self.value_width or content, self.rotary_width
        )

    def check(self, setting: Setting) -> None:
        if self.head_width is None:
            check_divides("heads", self.heads, "width", setting.architecture.width)
        super().check(setting)

    def build(self, setting: Setting) -> nn.Module:
        return (CrossLatentAttention if setting.across else SelfLatentAttention)(self, setting)


class LatentAttention(nn.Module):
    """See `Latent`. Letters besides those of `slots`: L width of the latent, R of the shared part of a key."""

    def __init__(self, spec: Latent, setting: Setting) -> None:
        super().__init__()
        width = setting.architecture.width
        self.shape, self.content, self.latent = spec.shape(width), spec.content_width(width), spec.latent
        self.scoring, terms = spec.scoring(setting)
        self.terms, self.priors = (nn.ModuleList(each) for each in terms)
        self.q_latent = nn.Identity()
        if spec.query_latent is not None:
            norm = spec.latent_norm.build(spec.query_latent)
            self.q_latent = nn.Sequential(Linear(width, {"q_latent": spec.query_latent}), norm)
        self.q = Linear(spec.query_latent or width, {"q": spec.heads * self.shape.width})
        shared = {"k_shared": spec.rotary_width} if spec.rotary_width else {}
        self.kv_latent = Linear(width, {"kv_latent": spec.latent, **shared})
        self.norm = spec.latent_norm.build(spec.latent)
        self.kv = Linear(spec.latent, {"k": spec.heads * self.content, "v": spec.heads * self.shape.value})
        self.o = Linear(spec.heads * self.shape.value, {"o": width})
        # Terms that look at queries or keys would see them in another form.
        self.absorbs = all(term.stages <= {"rotate"} for term in self.scoring.terms)

    def forward(self, x_BTD: Tensor, attend: Attend) -> Tensor:
        q_BHTE = self._heads(self.q(self.q_latent(x_BTD)), self.shape.width)
        if self.absorbs and x_BTD.shape[1] == 1:
            o_BHTE = self._read(self.meet(attend, self._aimed(q_BHTE), x_BTD, as_one_head))
        else:
            o_BHTE = self.meet(attend, q_BHTE, x_BTD, self.expand)
        return self.o(o_BHTE.transpose(1, 2).flatten(2))

    @abstractmethod
    def meet(self, attend: Attend, q_BHTE: Tensor, x_BTD: Tensor, expand: Expand) -> Tensor:
        """Attention of queries to what is kept, expanded."""

    def kept(self, x_BTD: Tensor) -> tuple[Tensor, Tensor]:
        """What a cache keeps, as key and value of one head: the part that all heads share, and the latent."""
        latent_BTL, shared_BTR = self.kv_latent(x_BTD).split([self.latent, self.shape.rotary], dim=-1)
        return shared_BTR.unsqueeze(1), self.norm(latent_BTL).unsqueeze(1)

    def expand(self, shared_B1SR: Tensor, latent_B1SL: Tensor) -> tuple[Tensor, Tensor]:
        """Keys and values of every head."""
        heads = self.shape.query
        k_BSN, v_BSN = self.kv(latent_B1SL.squeeze(1)).split([heads * self.content, heads * self.shape.value], dim=-1)
        shared_BHSR = shared_B1SR.expand(-1, heads, -1, -1)
        return torch.cat([shared_BHSR, self._heads(k_BSN, self.content)], dim=-1), self._heads(v_BSN, self.shape.value)

    def _aimed(self, q_BHTE: Tensor) -> Tensor:
        """Queries to latents: q W_k, so that q (W_k c)ᵀ = (q W_k) cᵀ."""
        turned, content = q_BHTE.split([self.shape.rotary, self.content], dim=-1)
        return torch.cat([turned, content @ self._rows(0, self.content).to(content.dtype)], dim=-1)

    def _read(self, o_BHTL: Tensor) -> Tensor:
        """Values out of the latents that were read: Σ p (W_v c) = W_v Σ p c."""
        return o_BHTL @ self._rows(self.shape.query * self.content, self.shape.value).mT.to(o_BHTL.dtype)

    def _rows(self, start: int, width: int) -> Tensor:
        """The part of `kv` from a row on, by heads: (H, width, L)."""
        return self.kv.weight[start : start + self.shape.query * width].unflatten(0, (self.shape.query, width))

    def _heads(self, x_BTN: Tensor, width: int) -> Tensor:
        return x_BTN.unflatten(-1, (self.shape.query, width)).transpose(1, 2)


class SelfLatentAttention(LatentAttention):
    """See `Latent`."""

    def meet(self, attend: Attend, q_BHTE: Tensor, x_BTD: Tensor, expand: Expand) -> Tensor:
        return attend(q_BHTE, *self.kept(x_BTD), self.scoring, expand)


class CrossLatentAttention(LatentAttention):
    """`Latent` from a decoder to an encoder, whose stream the latents are of."""

    def meet(self, attend: Attend, q_BHTE: Tensor, x_BTD: Tensor, expand: Expand) -> Tensor:
        return attend.across(q_BHTE, self.kept, self.scoring, expand)


def as_one_head(shared_B1SR: Tensor, latent_B1SL: Tensor) -> tuple[Tensor, Tensor]:
    """The latents as keys and values of one head, which all queries read."""
    return torch.cat([shared_B1SR, latent_B1SL], dim=-1), latent_B1SL
