"""Validation beyond the training length: the same text in windows of other lengths, and the further sets of a task."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Any

from isoflop.data import AnyCorpus, Batches, Corpus, PairLoader
from isoflop.model import Architecture, Transformer
from isoflop.spec import SpecError
from isoflop.train.batches import batches
from isoflop.train.evaluate import Sums, evaluate_answers, evaluate_parts
from isoflop.train.log import strict
from isoflop.train.training import Training


@dataclass(frozen=True)
class ValidationSet:
    """What is evaluated at the end of a run.

    Attributes:
        name: `length 128`; of pairs `validation`, or that of a further set such as `size 32`.
        loader: whose validation it is; its length is that of the set's rows.
        rows: of a batch, so that it holds no more tokens than one in training.
        places: how much of it is evaluated, in tokens; None for all.
        edges: places in a row between which the loss is also told apart, from 0 to the length.
        answers: how often the answers are right is evaluated too.
    """

    name: str
    loader: Batches
    rows: int
    places: int | None
    edges: tuple[int, ...]
    answers: bool

    def evaluate(self, model: Transformer) -> dict[str, Any]:
        """Strict JSON: what was found, as `results.sets` of run.json holds it."""
        parts = evaluate_parts(model, self.loader, self.rows, self.places, self.edges)
        whole = Sums(*map(sum, zip(*parts, strict=True))).evaluation()
        found = {"set": self.name, "length": self.loader.length, **strict(whole._asdict())}
        if len(parts) > 1:
            found["by_position"] = [
                strict({"from": first, "to": last, **part.evaluation()._asdict()})
                for (first, last), part in zip(pairwise(self.edges), parts, strict=True)
            ]
        if self.answers:
            found |= evaluate_answers(model, self.loader, self.rows, self.places)._asdict()
        return found


def validation_sets(
    architecture: Architecture, training: Training, corpus: AnyCorpus, loader: Batches
) -> list[ValidationSet]:
    """The sets that a recipe declares: `evaluate_lengths` of text; validation and the further sets of pairs.

    Args:
        loader: of the training; see `batches`.

    Raises:
        SpecError: the architecture has no position for a row of a set, or the text is too short for one.
    """
    if isinstance(loader, PairLoader):
        return _pair_sets(architecture, training, loader)
    return _text_sets(architecture, training, corpus)


def _text_sets(architecture: Architecture, training: Training, corpus: AnyCorpus) -> list[ValidationSet]:
    """The validation text in windows of each length: as many targets for all, and the same ones."""
    assert isinstance(corpus, Corpus)
    windows, lengths, sets = training.validation_windows, training.evaluate_lengths or (), []
    whole = len(corpus.validation) - 1  # the last token is an input in a window that is filled up, and in no other
    places = whole if windows is None else min(whole, windows * training.length)
    for length in lengths:
        for side in architecture.sides:
            side.check_length(length, "training.evaluate_lengths")
        try:
            loader = batches(architecture, training, corpus, seed=0, length=length)
        except SpecError as error:
            raise SpecError(f"training.evaluate_lengths {length}: {error}") from None
        edges = (0, *(other for other in lengths if other < length), length)
        sets.append(
            ValidationSet(f"length {length}", loader, batch_rows(training, length), places, edges, answers=False)
        )
    return sets


def _pair_sets(architecture: Architecture, training: Training, loader: PairLoader) -> list[ValidationSet]:
    sets = []
    for name, of_set in {"validation": loader, **loader.extrapolation()}.items():
        for side in architecture.sides:
            side.check_length(of_set.length, f"{name!r} of training.data.source: length")
        windows = training.validation_windows
        places = None if windows is None else windows * of_set.length
        rows = batch_rows(training, of_set.length)
        sets.append(ValidationSet(name, of_set, rows, places, (0, of_set.length), answers=True))
    return sets


def batch_rows(training: Training, length: int) -> int:
    """Rows of a batch in evaluation: as many tokens as a micro-batch of the training holds, one row at least."""
    return max(1, training.batch // training.accumulate * training.length // length)
