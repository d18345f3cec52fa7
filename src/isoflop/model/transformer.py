"""The whole model: embed -> stack -> head, and how it is built."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from isoflop.model.architecture import Architecture
from isoflop.model.attend import Dense
from isoflop.model.block import TransformerBlock
from isoflop.model.init import initialise
from isoflop.model.kernel import check_kernel
from isoflop.model.linear import Embedding, Linear, linear
from isoflop.model.places import Places
from isoflop.model.slots import Attend
from isoflop.model.term import Scoring


class Transformer(nn.Module):
    """The module of an `Architecture`.

    Args:
        architecture: what to build. Parameters are left uninitialised; `build` makes a model that is ready.
        kernel: a kernel's name to force it (see `isoflop.model.kernel.KERNELS`); None for the fastest that can.
    """

    def __init__(self, architecture: Architecture, kernel: str | None = None) -> None:
        super().__init__()
        self.architecture, self.kernel = architecture, kernel
        width, declarations = architecture.width, architecture.declarations
        self.embed = Embedding(architecture.vocab, width, "embed")
        self.positions = nn.ModuleList(position.embedding(width) for position in architecture.embed_positions)
        self.dropout = nn.Dropout(architecture.dropout) if architecture.dropout else nn.Identity()
        self.blocks = nn.ModuleList(TransformerBlock(setting) for setting in architecture.settings)
        self.stack = architecture.stack.build(architecture.depth)
        self.final_norm = architecture.norm.build(width) if declarations[-1].join.final_norm else nn.Identity()
        self.head = None if architecture.tie_head else Linear(width, {"head": architecture.vocab})
        self.embedding_scale = width**0.5 if architecture.scale_embedding else 1.0
        for module in self.modules():
            if isinstance(scoring := getattr(module, "scoring", None), Scoring):
                check_kernel(scoring, kernel)  # refuses a forced kernel that cannot work, before anything runs

    @property
    def head_weight(self) -> nn.Parameter:
        """The output matrix (V, D): logits are `features @ head_weight.T`."""
        return self.embed.weight if self.head is None else self.head.weight

    def forward(
        self,
        tokens_BT: Tensor,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        consecutive: bool = False,
    ) -> Tensor:
        """Logits, (B, T, V), of the next token (of the token itself in an encoder); arguments as in `features`."""
        return linear(self.features(tokens_BT, positions, documents, consecutive), self.head_weight)

    def features(
        self,
        tokens_BT: Tensor,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        consecutive: bool = False,
    ) -> Tensor:
        """The stream that the head reads, (B, T, D).

        Args:
            tokens_BT: token ids.
            positions: position ids, (B, T); None means 0..T-1 in every row.
            documents: document ids, (B, T); a token sees only its own document. None means one document a row.
            consecutive: a promise that within each document positions follow each other by one, as in packed batches;
                then a window saves time. It always holds when `positions` is None.
        """
        consecutive = consecutive or positions is None
        if positions is None:
            positions = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]
        places = Places(positions, positions, documents, documents, consecutive)
        return self.encode(tokens_BT, positions, Dense(places, self.kernel, self.training))

    def encode(self, tokens_BT: Tensor, positions_BT: Tensor, attend: Attend) -> Tensor:
        """The stream that the head reads, with attention evaluated by `attend`: the one forward of training and generation."""
        z_BTD = self.embed(tokens_BT)
        if self.embedding_scale != 1.0:
            z_BTD = z_BTD * self.embedding_scale
        for position in self.positions:
            z_BTD = z_BTD + position(positions_BT).to(z_BTD.dtype)
        return self.final_norm(self.stack(self.dropout(z_BTD), self.blocks, attend))

    def generate(
        self, prompts: Sequence[Sequence[int]] | Tensor, new_tokens: int, **options: object
    ) -> list[list[int]]:
        """New tokens for each prompt; options as in `isoflop.generate.generate`."""
        from isoflop.generate import generate  # the one upward import: a model is asked to generate, not a module

        return generate(self, prompts, new_tokens, **options)  # type: ignore[arg-type]


def build(
    architecture: Architecture,
    seed: int = 0,
    *,
    device: torch.device | str = "cpu",
    dtype: torch.dtype = torch.float32,
    kernel: str | None = None,
) -> Transformer:
    """An initialised model. The same seed gives the same value to every weight that two architectures have in common.

    Raises:
        ValueError: the forced kernel cannot run what the architecture needs.
    """
    with torch.device("meta"):
        model = Transformer(architecture, kernel)
    model = model.to(dtype).to_empty(device=device)
    initialise(model, architecture, seed)
    return model
