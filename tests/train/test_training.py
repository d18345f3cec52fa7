"""The declaration of a run."""

from typing import Any

import pytest

from isoflop.spec import SpecError
from isoflop.train import Training


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"clip": "off", "accumulate": 4, "precision": "bf16", "compile": True},
        {"schedule": {"kind": "cosine", "warmup": 3}, "optimizer": {"beta2": 0.99}},
        {"evaluate_every": 10, "validation_windows": 2, "checkpoint_every": 5, "data": {"packing": "documents"}},
    ],
)
def test_parse_of_dump_is_equal(changes: dict[str, Any]) -> None:
    training = Training(steps=10, rate=1e-3, **changes)
    assert Training.parse(training.dump()) == training


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"batch": 6, "accumulate": 4}, "accumulate"),
        ({"evaluate_every": 11}, "evaluate_every"),
        ({"checkpoint_every": 11}, "checkpoint_every"),
        ({"clip": 0.0}, "clip"),
        ({"rate": 0.0}, "rate"),
        ({"optimizer": {"beta1": 1.0}}, "optimizer.beta1"),
        ({"precision": "fp16"}, "precision"),
    ],
)
def test_what_has_no_effect_or_cannot_work_is_refused_by_path(changes: dict[str, Any], path: str) -> None:
    with pytest.raises(SpecError) as caught:
        Training(**{"steps": 10, "rate": 1e-3, **changes})
    assert str(caught.value).startswith(path)


def test_digest_names_what_is_trained_and_not_how_it_is_watched() -> None:
    training = Training(steps=10, rate=1e-3)
    assert training.override({"log_every": 3, "checkpoint_every": 5, "evaluate_every": 2}).digest == training.digest
    assert training.override({"rate": 2e-3}).digest != training.digest
    assert training.override({"validation_windows": 3}).digest != training.digest


def test_rate_is_the_peak_times_the_factor() -> None:
    training = Training(steps=4, rate=0.5, schedule={"kind": "constant", "warmup": 2})
    assert [training.rate_at(update) for update in range(3)] == [0.25, 0.5, 0.5]


def test_clip_can_be_off() -> None:
    assert Training(steps=1, rate=1.0, clip="off").clip_norm is None
    assert Training(steps=1, rate=1.0).clip_norm == 1.0
