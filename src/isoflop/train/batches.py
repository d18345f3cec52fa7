"""From a recipe to the batches that it declares."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from isoflop.data import AnyCorpus, Batches, Data, load, make_loader
from isoflop.model import Architecture
from isoflop.spec import Problem, SpecError
from isoflop.train.training import Training


def read_corpus(training: Training) -> AnyCorpus:
    """What `training.data` names, read and tokenized.

    Raises:
        SpecError: it cannot be used; paths are those of an architecture file.
    """
    with _paths_of_a_file():
        return load(training.data)


def batches(
    architecture: Architecture, training: Training, corpus: AnyCorpus, *, seed: int, length: int | None = None
) -> Batches:
    """The batches of a form of model, of the training length or of another.

    Raises:
        SpecError: the form cannot learn from the data, or the data are too short; paths are those of an architecture file.
    """
    sizes = {"batch": training.batch, "length": training.length if length is None else length, "seed": seed}
    with _paths_of_a_file():
        remembers = architecture.remembered > 0
        return make_loader(training.data, corpus, form=architecture.form, remembers=remembers, **sizes)


@contextmanager
def _paths_of_a_file() -> Iterator[None]:
    try:
        yield
    except SpecError as error:
        raise SpecError(_in_a_file(problem) for problem in error.problems) from None


def _in_a_file(problem: Problem) -> Problem:
    field, above = problem.path[:1], ()
    if field and field[0] in Data.model_fields:
        above = ("training", "data")
    elif field and field[0] in Training.model_fields:
        above = ("training",)
    return Problem((*above, *problem.path), problem.message)
