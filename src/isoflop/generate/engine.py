"""The loop: prefill, then one token for each row until its end."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence

import torch
from torch import Tensor

from isoflop.generate.cache import Cached, ContiguousCache
from isoflop.generate.sample import Sampling
from isoflop.model.memory import Source
from isoflop.model.transformer import Transformer
from isoflop.seeds import seed_for

PADDING = -1
"""The document id of padding: no real token sees it."""


@torch.no_grad()
def generate(
    model: Transformer,
    prompts: Sequence[Sequence[int]] | Tensor,
    new_tokens: int,
    *,
    sources: Sequence[Sequence[int]] | None = None,
    temperature: float = 0.0,
    top_k: int | None = None,
    top_p: float | None = None,
    seed: int = 0,
    stop: Collection[int] = (),
    ids: int | None = None,
    on_token: Callable[[int, int], None] | None = None,
) -> list[list[int]]:
    """New tokens for each prompt, as lists of ids without the prompt.

    Args:
        prompts: token ids, rows of any lengths.
        new_tokens: how many tokens at most.
        sources: for an encoder-decoder, what its encoder reads for each prompt; the prompt is then how the target begins,
            after training on pairs the end id.
        temperature, top_k, top_p: see `Sampling`; the default is greedy.
        seed: row r draws from its own stream of (seed, r), whatever other rows there are.
        stop: ids that end a row; they are not part of the result, and in a prompt they mean nothing.
        ids: only the first so many ids are chosen from; absent = the whole vocabulary, which may be wider than the tokenizer.
        on_token: called with (row, id) as tokens come.

    Raises:
        ValueError: an empty prompt or source, an id outside the vocabulary, more tokens than the architecture has
            positions, a form that needs sources and gets none, or the other way round.
    """
    sampling = Sampling(temperature, top_k, top_p)
    rows = [[int(token) for token in row] for row in prompts]
    _check(model, rows, new_tokens)
    if ids is not None and ids < 1:
        raise ValueError(f"ids must be at least 1, came {ids}")
    texts = _checked_sources(model, sources, len(rows))
    generators = [torch.Generator().manual_seed(seed_for("generate", seed, row)) for row in range(len(rows))]
    produced: list[list[int]] = [[] for _ in rows]
    running = set(range(len(rows))) if new_tokens else set()
    was_training = model.training
    model.eval()
    try:
        decoder = _Decoder(model, rows, new_tokens, texts)
        while running:
            logits_BV = decoder.logits()
            tokens = [0] * len(rows)
            for row in sorted(running):
                token = sampling.pick(logits_BV[row, :ids], generators[row])
                tokens[row] = token
                if token in stop:
                    running.discard(row)
                    continue
                produced[row].append(token)
                if on_token is not None:
                    on_token(row, token)
                if len(produced[row]) == new_tokens:
                    running.discard(row)
            if running:
                decoder.feed(tokens)
    finally:
        model.train(was_training)
    return produced


class _Decoder:
    """The rows of a batch, padded on the left so that they end together, and their cache."""

    def __init__(
        self, model: Transformer, rows: list[list[int]], new_tokens: int, sources: list[list[int]] | None
    ) -> None:
        device = model.head_weight.device
        longest = max(map(len, rows))
        tokens_BT = torch.tensor([[0] * (longest - len(row)) + row for row in rows], device=device)
        padding_B1 = torch.tensor([[longest - len(row)] for row in rows], device=device)
        positions_BT = torch.arange(longest, device=device) - padding_B1
        documents_BT = torch.where(positions_BT < 0, PADDING, 0)
        memory = model.read(None if sources is None else _padded(sources, device))
        self.model, self.cache = model, ContiguousCache(len(rows), longest + new_tokens, device, memory)
        self.next_position_B1 = longest - padding_B1
        self.features_BD = self._forward(tokens_BT, positions_BT.clamp(min=0), documents_BT)

    def logits(self) -> Tensor:
        """Logits of the next token of every row, (B, V)."""
        return self.model.logits(self.features_BD)

    def feed(self, tokens: list[int]) -> None:
        """One token more for every row."""
        tokens_B1 = torch.tensor(tokens, device=self.next_position_B1.device)[:, None]
        self.features_BD = self._forward(tokens_B1, self.next_position_B1, torch.zeros_like(tokens_B1))
        self.next_position_B1 = self.next_position_B1 + 1

    def _forward(self, tokens_BT: Tensor, positions_BT: Tensor, documents_BT: Tensor) -> Tensor:
        places = self.cache.place(positions_BT, documents_BT)
        features_BTD = self.model.encode(tokens_BT, positions_BT, Cached(self.cache, places, self.model.kernel))
        self.cache.advance(tokens_BT.shape[1])
        return features_BTD[:, -1]


def _padded(sources: list[list[int]], device: torch.device) -> Source:
    """Texts of any lengths as one, padded on the right."""
    longest = max(map(len, sources))
    tokens_BS = torch.tensor([row + [0] * (longest - len(row)) for row in sources], device=device)
    sizes_B1 = torch.tensor([[len(row)] for row in sources], device=device)
    return Source(tokens_BS, documents_BS=torch.where(torch.arange(longest, device=device) < sizes_B1, 0, PADDING))


def _check(model: Transformer, rows: list[list[int]], new_tokens: int) -> None:
    if not rows or not all(rows):
        raise ValueError("every prompt must have at least one token")
    if new_tokens < 0:
        raise ValueError(f"new_tokens must be at least 0, came {new_tokens}")
    if not model.architecture.causal:
        raise ValueError(
            f"form {model.architecture.form!r} sees every position from every other and cannot go on with a text; "
            "generation needs form 'decoder'"
        )
    _check_vocabulary(model, rows)
    model.architecture.check_length(max(map(len, rows)) + new_tokens, "prompt and new tokens together,")


def _checked_sources(
    model: Transformer, sources: Sequence[Sequence[int]] | None, prompts: int
) -> list[list[int]] | None:
    reader = model.architecture.reader
    if (sources is None) != (reader is None):
        wanted = "needs `sources` for its encoder" if sources is None else "has no encoder to read `sources`"
        raise ValueError(f"a model of form {model.architecture.form!r} {wanted}")
    if sources is None or reader is None:
        return None
    rows = [[int(token) for token in row] for row in sources]
    if len(rows) != prompts:
        raise ValueError(f"each of the {prompts} prompts must have a source, came {len(rows)} sources")
    if not all(rows):
        raise ValueError("every source must have at least one token, and one is empty")
    _check_vocabulary(model, rows)
    reader.check_length(max(map(len, rows)), "source,")
    return rows


def _check_vocabulary(model: Transformer, rows: list[list[int]]) -> None:
    vocab = model.architecture.vocab
    bad = next((token for row in rows for token in row if not 0 <= token < vocab), None)
    if bad is not None:
        raise ValueError(f"token id {bad} is outside the vocabulary of {vocab}")
