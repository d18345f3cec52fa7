"""The whole model: embed -> stack -> head, and how it is built."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from isoflop.model.architecture import Architecture
from isoflop.model.attend import Dense
from isoflop.model.block import TransformerBlock
from isoflop.model.head import Output
from isoflop.model.init import initialise
from isoflop.model.kernel import check_kernel
from isoflop.model.linear import Embedding
from isoflop.model.memory import Memory, Source
from isoflop.model.past import Past
from isoflop.model.places import Places
from isoflop.model.slots import Attend
from isoflop.model.term import Scoring


class Tower(nn.Module):
    """From embedded tokens to features: positions, types, blocks in depth, and the norm that ends the stream where it needs one."""

    def __init__(self, architecture: Architecture) -> None:
        super().__init__()
        width, last = architecture.width, architecture.declarations[-1]
        summed = architecture.embed.sum_width(width)
        self.positions = nn.ModuleList(position.embedding(summed) for position in architecture.embed_positions)
        self.types = Embedding(architecture.types, summed, "token_type") if architecture.types else None
        self.embed_norm = architecture.embed_norm.build(summed) if architecture.embed_norm else nn.Identity()
        self.dropout = nn.Dropout(architecture.dropout) if architecture.dropout else nn.Identity()
        self.sum_map = architecture.embed.build_sum_map(width)
        self.blocks = _blocks(architecture)
        self.stack = architecture.stack.build(architecture.depth)
        self.final_norm = architecture.norm.build(width) if last.join.final_norm else nn.Identity()

    def climb(self, z_BTE: Tensor, positions_BT: Tensor, attend: Attend, types: Tensor | None = None) -> Tensor:
        """Features of embedded tokens."""
        z_BTD = self.stream(z_BTE, positions_BT, types)
        return self.final_norm(self.stack(z_BTD, self.blocks, attend))

    def stream(self, z_BTE: Tensor, positions_BT: Tensor, types: Tensor | None = None) -> Tensor:
        """The stream before the first block, (B, T, D)."""
        for position in self.positions:
            z_BTE = z_BTE + position(positions_BT).to(z_BTE.dtype)
        if self.types is not None:
            z_BTE = z_BTE + (self.types.weight[0] if types is None else self.types(types))
        elif types is not None:
            raise ValueError("this architecture has no token types; declare `types` to give it some")
        return self.sum_map(self.dropout(self.embed_norm(z_BTE)))


class Transformer(Tower):
    """The module of an `Architecture`. An encoder-decoder is a decoder with another tower, `encoder`, beside its own.

    Args:
        architecture: what to build. Parameters are left uninitialised; `build` makes a model that is ready.
        kernel: a kernel's name to force it (see `isoflop.model.kernel.KERNELS`); None for the fastest that can.
    """

    def __init__(self, architecture: Architecture, kernel: str | None = None) -> None:
        super().__init__(architecture)
        self.architecture, self.kernel = architecture, kernel
        width = architecture.width
        self.embed = Embedding(architecture.vocab, architecture.embed.table_width(width), "embed")
        self.token_map = architecture.embed.build_token_map(width)
        self.encoder = None if architecture.reader is None else Tower(architecture.reader)
        self.head = architecture.head.build(architecture)
        self.embedding_scale = width**0.5 if architecture.scale_embedding else 1.0
        for module in self.modules():
            if isinstance(scoring := getattr(module, "scoring", None), Scoring):
                check_kernel(scoring, kernel)  # refuses a forced kernel that cannot work, before anything runs

    @property
    def towers(self) -> tuple[Tower, ...]:
        """The encoder, where there is one beside the decoder, and the model itself."""
        return (self,) if self.encoder is None else (self.encoder, self)

    @property
    def head_weight(self) -> nn.Parameter:
        """The output matrix, (V, D) or (V, E) where embeddings are factorised; what is done beside it is `output`'s."""
        own: nn.Parameter | None = getattr(self.head, "weight", None)
        return self.embed.weight if own is None else own

    def output(self, features: Tensor) -> Output:
        """What logits are made of: the one way from features, (..., D), to logits and to the loss."""
        return self.head(features, self.embed.weight)

    def logits(self, features: Tensor) -> Tensor:
        """Logits, (..., V), of features, (..., D)."""
        return self.output(features).logits()

    def forward(
        self,
        tokens_BT: Tensor,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        consecutive: bool = False,
        types: Tensor | None = None,
        source: Source | Tensor | None = None,
    ) -> Tensor:
        """Logits, (B, T, V), of the next token (of the token itself in an encoder); arguments as in `features`."""
        return self.logits(self.features(tokens_BT, positions, documents, consecutive, types, source))

    def features(
        self,
        tokens_BT: Tensor,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        consecutive: bool = False,
        types: Tensor | None = None,
        source: Source | Tensor | None = None,
    ) -> Tensor:
        """The stream that the head reads, (B, T, D).

        Args:
            tokens_BT: token ids.
            positions: position ids, (B, T); None means 0..T-1 in every row.
            documents: document ids, (B, T); a token sees only its own document. None means one document a row.
            consecutive: a promise that within each document positions follow each other by one, as in packed batches;
                then a window saves time. It always holds when `positions` is None.
            types: token types, (B, T); None means 0 for all. Those of a source are its own.
            source: what the encoder of an encoder-decoder reads: a `Source`, or token ids (B, S) that all count.

        Raises:
            ValueError: an encoder-decoder without a source, or a source for another form; token types for an architecture
                without them.
        """
        return self.segment(tokens_BT, Past(), positions, documents, consecutive, types, source)[0]

    def segment(
        self,
        tokens_BT: Tensor,
        past: Past,
        positions: Tensor | None = None,
        documents: Tensor | None = None,
        consecutive: bool = False,
        types: Tensor | None = None,
        source: Source | Tensor | None = None,
    ) -> tuple[Tensor, Past]:
        """`features` of a text that goes on from the segments before, and what this one leaves to the next.

        Args:
            past: what they left, or `Past()` at the start. Position n of a row follows its last one, where n is the position
                of the row's first token: positions may go on or begin anew. A document that goes on keeps its id.
        """
        consecutive = consecutive or positions is None
        if positions is None:
            positions = torch.arange(tokens_BT.shape[1], device=tokens_BT.device)[None]
        places = Places(positions, positions, documents, documents, consecutive)
        attend = Dense(places, self.kernel, self.training, self.read(source), past)
        features_BTD = self.encode(tokens_BT, positions, attend, types)
        return features_BTD, attend.leaves()

    def encode(self, tokens_BT: Tensor, positions_BT: Tensor, attend: Attend, types: Tensor | None = None) -> Tensor:
        """The stream that the head reads, with attention evaluated by `attend`: the one forward of training and generation."""
        return self.climb(self.embedded(tokens_BT), positions_BT, attend, types)

    def read(self, source: Source | Tensor | None, attend: Attend | None = None) -> Memory | None:
        """What the encoder makes of a source, to be looked at by any number of forward passes; None in other forms.

        `attend` evaluates its attention, by default as training does.
        """
        if (source is None) != (self.encoder is None):
            wanted = "needs a source for its encoder" if source is None else "has no encoder to read a source"
            raise ValueError(f"a model of form {self.architecture.form!r} {wanted}")
        if source is None or self.encoder is None:
            return None
        source = Source(source) if isinstance(source, Tensor) else source
        places, z_BSE = source.places, self.embedded(source.tokens_BS)
        attend = attend or Dense(places, self.kernel, self.training)
        return Memory(self.encoder.climb(z_BSE, places.q_positions, attend, source.types_BS), places)

    def embedded(self, tokens_BT: Tensor) -> Tensor:
        """The vectors of tokens, the same for an encoder and its decoder."""
        z_BTE = self.embed(tokens_BT)
        return self.token_map(z_BTE if self.embedding_scale == 1.0 else z_BTE * self.embedding_scale)

    def generate(
        self, prompts: Sequence[Sequence[int]] | Tensor, new_tokens: int, **options: object
    ) -> list[list[int]]:
        """New tokens for each prompt; options as in `isoflop.generate.generate`."""
        from isoflop.generate import generate  # the one upward import: a model is asked to generate, not a module

        return generate(self, prompts, new_tokens, **options)  # type: ignore[arg-type]


def _blocks(architecture: Architecture) -> nn.ModuleList:
    """A block for each depth; those that share are one module in several places."""
    owners = architecture.share.owners(architecture.depth)
    own = {setting.number: TransformerBlock(setting) for setting in architecture.settings if setting.number in owners}
    return nn.ModuleList(own[owner] for owner in owners)


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
