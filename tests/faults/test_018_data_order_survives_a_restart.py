"""Fault 018: a resumed run replays or skips data, because the place in the epoch was a state that got lost."""

import numpy as np
import pytest
import torch

from isoflop.data import Batch, Data, Loader, load


def fresh() -> Loader:
    """All that a restarted process has: the declaration."""
    return Loader(load(Data(source="pydoc", limit=20_000)), batch=16, length=64, seed=7)


def tokens_and_targets(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    return batch.tokens_BT, batch.targets_BT


STEPS = 40
EDGE = fresh().windows // 16  # the batch of this step reaches into the second epoch


@pytest.mark.parametrize("cut", [3, 5, EDGE, EDGE + 1, 2 * EDGE + 1])
def test_batches_after_a_restart_are_those_of_the_uninterrupted_run(cut: int) -> None:
    assert 0 < EDGE < STEPS / 2
    whole = fresh()
    expected = [tokens_and_targets(whole.batch(step)) for step in range(STEPS)]
    before, after = fresh(), fresh()
    parts = [before.batch(step) for step in range(cut)]
    list(before.validation())  # an evaluation right before the cut changes nothing
    parts += [after.batch(step) for step in range(cut, STEPS)]
    for part, (tokens, targets) in zip(parts, expected, strict=True):
        assert torch.equal(part.tokens_BT, tokens)
        assert torch.equal(part.targets_BT, targets)


def test_any_step_can_be_had_without_those_before() -> None:
    far = 1_000_003
    assert torch.equal(fresh().batch(far).tokens_BT, fresh().batch(far).tokens_BT)
    backwards = fresh()
    ids = [backwards.sample_ids(step) for step in reversed(range(STEPS))][::-1]
    forwards = fresh()
    assert np.array_equal(ids, [forwards.sample_ids(step) for step in range(STEPS)])


def test_sample_ids_over_an_epoch_form_a_permutation_and_the_next_epoch_another() -> None:
    loader = fresh()
    count = loader.windows
    ids = np.concatenate([loader.sample_ids(step) for step in range(2 * count // 16 + 1)])
    first, second = ids[:count].tolist(), ids[count : 2 * count].tolist()
    assert sorted(first) == sorted(second) == list(range(count))
    assert first != second
