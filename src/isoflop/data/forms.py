"""Which data a form of model can learn from."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Protocol

from isoflop.data.loader import Batch, Corpus, Data, Loader, load_text
from isoflop.data.masked_loader import MaskedLoader
from isoflop.data.objective import Masked, Next, Objective
from isoflop.data.pair_loader import ONE_ROW, TWO_ROWS, PairCorpus, PairLoader, load_pairs
from isoflop.spec import SpecError, did_you_mean

AnyCorpus = Corpus | PairCorpus


class Batches(Protocol):
    """What every loader gives: the batch of a step is a function of the step."""

    @property
    def corpus(self) -> AnyCorpus: ...
    @property
    def windows(self) -> int: ...
    @property
    def length(self) -> int: ...
    @property
    def dropped(self) -> tuple[int, int]: ...
    def tokens(self, steps: int) -> int: ...
    def batch(self, step: int) -> Batch: ...
    def validation(self, batch: int | None = None) -> Iterator[Batch]: ...
    def stream_digest(self, steps: int) -> str: ...


def load(data: Data) -> AnyCorpus:
    """Read, divide and tokenize the source of a declaration: text, or pairs. The same for every form and objective.

    Raises `SpecError` with a path at or below `source` when the source cannot be used.
    """
    if isinstance(data.source, str):
        return load_text(data, data.source)
    return load_pairs(data.source, data.tokenizer, data.limit)


def make_loader(
    data: Data, corpus: AnyCorpus, *, form: str, remembers: bool = False, batch: int, length: int, seed: int
) -> Batches:
    """The loader that a form of model needs for a declaration; `corpus` is what `load(data)` gave.

    A decoder learns from windows of text, or from pairs in one row. An encoder learns from windows with hidden tokens, an
    encoder-decoder from pairs. Where `data.objective` is absent it is the one that the form needs. A model that `remembers`
    the segment before learns from texts that go on, so that `data.order` is then `continuous` where it is absent.

    Raises `SpecError`, naming the field, for data that the form cannot learn from, and where the loader does.
    """
    if form not in _WANTED:
        raise SpecError.at("form", f"must be one of {', '.join(_WANTED)}, came {form!r}.{did_you_mean(form, _WANTED)}")
    objective = _WANTED[form]() if data.objective is None else data.objective
    maker = _MAKERS.get((form, type(corpus), type(objective)))
    if maker is None:
        raise _refusal(form, corpus, objective)
    if remembers:
        data = _continuous(data, corpus)
    return maker(data, corpus, objective, {"batch": batch, "length": length, "seed": seed})


def _continuous(data: Data, corpus: AnyCorpus) -> Data:
    if not isinstance(corpus, Corpus):
        raise SpecError.at(
            "source",
            f"a memory of the segment before needs a text that goes on, and pairs do not; came {corpus.source!r}",
        )
    if data.order == "shuffled":
        raise SpecError.at(
            "order", "a memory of the segment before needs 'continuous'; take that or leave it out, came 'shuffled'"
        )
    return data.model_copy(update={"order": "continuous"})


def _windows(data: Data, corpus: AnyCorpus, objective: Objective, sizes: dict[str, int]) -> Loader:
    assert isinstance(corpus, Corpus)
    return Loader(corpus, packing=data.packing, order=data.order or "shuffled", **sizes)


def _masked(data: Data, corpus: AnyCorpus, objective: Objective, sizes: dict[str, int]) -> MaskedLoader:
    assert isinstance(objective, Masked)
    return MaskedLoader(_windows(data, corpus, objective, sizes), objective)


def _flat_pairs(data: Data, corpus: AnyCorpus, objective: Objective, sizes: dict[str, int]) -> PairLoader:
    assert isinstance(corpus, PairCorpus)
    return PairLoader(corpus, layout=ONE_ROW, **sizes)


def _pairs(data: Data, corpus: AnyCorpus, objective: Objective, sizes: dict[str, int]) -> PairLoader:
    assert isinstance(corpus, PairCorpus)
    return PairLoader(corpus, layout=TWO_ROWS, **sizes)


_WANTED: Mapping[str, type[Objective]] = {"decoder": Next, "encoder": Masked, "encoder_decoder": Next}
"""The objective of each form of model."""

_MAKERS: Mapping[tuple[str, type, type], Callable[[Data, AnyCorpus, Objective, dict[str, int]], Batches]] = {
    ("decoder", Corpus, Next): _windows,
    ("decoder", PairCorpus, Next): _flat_pairs,
    ("encoder", Corpus, Masked): _masked,
    ("encoder_decoder", PairCorpus, Next): _pairs,
}

_WHY_NOT: Mapping[tuple[str, type], tuple[str, str]] = {
    ("decoder", Masked): (
        "objective",
        "a decoder sees no token behind a hidden one; use the objective 'next', or the form 'encoder'",
    ),
    ("encoder_decoder", Masked): (
        "objective",
        "an encoder-decoder is trained to write the target of a pair; use the objective 'next'",
    ),
    ("encoder", Next): (
        "objective",
        "every token of an encoder sees all others, its own target too; use the objective 'masked', or the form 'decoder'",
    ),
    ("encoder", PairCorpus): (
        "source",
        "an encoder reads a text and writes none, so pairs are of no use to it; name a source of plain text, or use the form 'decoder'",
    ),
    ("encoder_decoder", Corpus): (
        "source",
        "an encoder-decoder reads one text and writes another; name a source of pairs, such as 'task:copy' or 'translation:en-de', or use the form 'decoder'",
    ),
}


def _refusal(form: str, corpus: AnyCorpus, objective: Objective) -> SpecError:
    unknown = "objective", f"the form {form!r} has no loader for it"
    path, reason = _WHY_NOT.get((form, type(objective))) or _WHY_NOT.get((form, type(corpus)), unknown)
    came = objective.kind if path == "objective" else corpus.source
    return SpecError.at(path, f"{reason}; came {came!r}")
