"""The declaration of a training run: everything but the architecture and the seed."""

from __future__ import annotations

from itertools import pairwise
from typing import Annotated, ClassVar, Literal, Self

from pydantic import Field, model_validator

from isoflop.data import Data
from isoflop.spec import Many, Spec, SpecError
from isoflop.train.optim import Optimizer
from isoflop.train.precision import Precision
from isoflop.train.schedule import Schedule

Count = Annotated[int, Field(ge=1)]
Rate = Annotated[float, Field(gt=0)]


class Training(Spec):
    """How a model is trained.

    Fields:
        data: what it is trained on.
        batch: windows per optimisation step, over all micro-batches.
        length: tokens per window.
        steps: optimisation steps.
        rate: peak learning rate.
        optimizer: how a gradient becomes an update.
        schedule: how the rate moves.
        clip: largest norm of the whole gradient, or `"off"`.
        accumulate: micro-batches that a step's batch is computed in, one after the other, to save memory; the gradient
            is that of the whole batch, each target weighing the same.
        precision: `fp32`, or `bf16` with fp32 master weights.
        compile: run each block through torch.compile.
        evaluate_every: steps between evaluations; absent = only at the end.
        validation_windows: windows of the validation split to evaluate on, from its start; absent = all.
        evaluate_lengths: at the end the same validation text is also evaluated in windows of each of these lengths, in
            rising order. Pairs have further sets of their own, see `extrapolate` of a task.
        log_every: steps between lines of the log; the last step always has one.
        checkpoint_every: steps between checkpoints; absent = only at the end, or when interrupted.
    """

    outside_digest: ClassVar[frozenset[str]] = frozenset({"log_every", "checkpoint_every", "evaluate_every"})

    data: Data = Data(limit=None)
    batch: Count = 16
    length: Count = 128
    steps: Count
    rate: Rate
    optimizer: Optimizer = "adamw"  # type: ignore[assignment]
    schedule: Schedule = "wsd"  # type: ignore[assignment]
    clip: Rate | Literal["off"] = 1.0
    accumulate: Count = 1
    precision: Precision = "fp32"
    compile: bool = False
    evaluate_every: Count | None = None
    validation_windows: Count | None = None
    evaluate_lengths: Many[Count] | None = None
    log_every: Count = 10
    checkpoint_every: Count | None = None

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.batch % self.accumulate:
            message = f"must divide the batch of {self.batch} windows, came {self.accumulate}"
            raise SpecError.at("accumulate", message)
        for name in ("evaluate_every", "checkpoint_every"):
            every = getattr(self, name)
            if every is not None and every > self.steps:
                message = f"has no effect beyond the {self.steps} steps, came {every}; lower it or leave it out"
                raise SpecError.at(name, message)
        self._check_lengths()
        try:
            self.schedule.check(self.steps)
        except SpecError as error:
            raise error.under("schedule") from None
        return self

    def _check_lengths(self) -> None:
        lengths = self.evaluate_lengths
        if lengths is None:
            return
        if not lengths or any(left >= right for left, right in pairwise(lengths)):
            raise SpecError.at(
                "evaluate_lengths", f"must hold at least one length, in rising order, came {list(lengths)}"
            )
        if not isinstance(self.data.source, str):
            message = (
                f"are of windows of a text, and {self.data.source.name!r} gives pairs, which are not cut; longer ones are "
                "declared as `extrapolate` of a task"
            )
            raise SpecError.at("evaluate_lengths", f"{message}, came {list(lengths)}")

    @property
    def clip_norm(self) -> float | None:
        """The largest gradient norm, None when clipping is off."""
        return None if self.clip == "off" else self.clip

    def rate_at(self, update: int) -> float:
        """The learning rate of update 0, 1, ..."""
        return self.rate * self.schedule.factor(update, self.steps)
