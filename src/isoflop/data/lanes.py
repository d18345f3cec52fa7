"""The order in which the rows of a batch go through a text as it was written, for models that remember the segment before.

Shapes: B rows of a batch, W windows of the text.
"""

from __future__ import annotations

import numpy as np

from isoflop.data.objective import random_bits
from isoflop.spec import SpecError


class LaneOrder:
    """Which windows the batch of a step holds, when each row goes through a lane of its own, window after window.

    The windows are a ring, which each epoch cuts at a place drawn from (seed, epoch) into B lanes that differ in length by
    one window at most. A row whose lane is done holds the window behind the last, which has no target, until all are.
    """

    name = "lanes-1"
    """Names this rule in digests; a new rule needs a new name."""

    def __init__(self, samples: int, seed: int, batch: int) -> None:
        """Raises `SpecError` where a row would have no window."""
        if samples < batch:
            raise SpecError.at(
                "order",
                f"'continuous' gives each row a part of the text, and its {samples} windows are fewer than the "
                f"{batch} rows of a batch; give more text, a smaller batch or a shorter length",
            )
        self._samples, self._seed = samples, seed
        self._first_B = np.arange(batch) * samples // batch
        self._size_B = np.diff(self._first_B, append=samples)
        self._steps = int(self._size_B.max())

    def ids(self, step: int, batch: int) -> np.ndarray:
        """int64[B]: the windows of a step; W where a lane is done."""
        if step < 0:
            raise ValueError(f"step must be at least 0, came {step}")
        epoch, place = divmod(step, self._steps)
        window_B = (self._cut(epoch) + self._first_B + place) % self._samples
        return np.where(place < self._size_B, window_B, self._samples)

    def continues(self, step: int, batch: int) -> np.ndarray | None:
        """bool[B]: which rows go on where they stopped in the step before."""
        return self.ids(step, batch) == self.ids(step - 1, batch) + 1 if step else np.zeros(batch, dtype=bool)

    def total(self, steps: int, batch: int, sizes: np.ndarray) -> int:
        """Sum of the sizes of all windows that the first `steps` batches hold."""
        epochs, rest = divmod(steps, self._steps)
        begun = [self.ids(step, batch) for step in range(steps - rest, steps)]
        return epochs * int(sizes.sum()) + int(np.append(sizes, 0)[np.concatenate(begun)].sum() if begun else 0)

    def _cut(self, epoch: int) -> int:
        return int(random_bits((1,), "lanes", self._seed, epoch)[0] % np.uint64(self._samples))
