"""A misspelt or misplaced key is dropped and the run trains with defaults."""

from typing import Any

import pytest

import isoflop
from isoflop.model import Architecture
from isoflop.spec import SpecError

CASES: list[tuple[dict[str, Any], str, str]] = [
    ({"widht": 64}, "widht", "Did you mean 'width'?"),
    ({"tie-head": True}, "tie-head", "Did you mean 'tie_head'?"),
    ({"heads": 4}, "heads", "Did you mean 'attention.heads'?"),
    ({"attention": {"hedas": 4}}, "attention.hedas", "Did you mean 'heads'?"),
    ({"attention": {"hidden": 4}}, "attention.hidden", "unknown field"),
    ({"ffn": {"kind": "glu", "hiden": 4}}, "ffn.hiden", "Did you mean 'hidden'?"),
    ({"norm": {"kind": "rms", "bias": True}}, "norm.bias", "unknown field"),
    ({"norm": "rsm"}, "norm", "Did you mean 'rms'?"),
    ({"position": "ropee"}, "position", "Did you mean 'rope'?"),
    ({"width": "64"}, "width", "must be a valid integer, came '64'"),
    ({"width": 64.0}, "width", "must be a valid integer, came 64.0"),
    ({"width": True}, "width", "must be a valid integer, came True"),
    ({"width": 0}, "width", "greater than or equal to 1, came 0"),
    ({"dropout": 1.0}, "dropout", "less than 1, came 1.0"),
    ({"dropout": float("nan")}, "dropout", "finite number"),
    ({"form": "decodr"}, "form", "Did you mean 'decoder'"),
    ({"blocks": [{"at": "0", "attention": {"hedas": 2}}]}, "blocks.0", "Did you mean 'heads'?"),
    ({"blocks": [{"at": "0", "widht": 2}]}, "blocks.0", "unknown field"),
    ({"blocks": [{"at": "0", "width": 2}]}, "blocks.0", "unknown field"),
    ({"blocks": [{"at": "9", "dropout": 0.5}]}, "blocks.0.at", "must name one of the 6 blocks"),
    ({"ffn": {"kind": "glu", "hidden": 64, "multiple": 8}}, "ffn.multiple", "does nothing when hidden is given"),
]


@pytest.mark.parametrize(("declared", "path", "message"), CASES, ids=lambda value: str(value)[:40])
def test_the_error_names_the_place_and_the_nearest_key(declared: dict[str, Any], path: str, message: str) -> None:
    with pytest.raises(SpecError) as caught:
        Architecture(**declared)
    problem = str(caught.value)
    assert problem.startswith(path)
    assert message in problem


def test_overrides_and_names_of_recipes() -> None:
    with pytest.raises(SpecError, match=r"attention\.kv_haeds: .*Did you mean 'kv_heads'\?"):
        isoflop.load("modern", **{"attention.kv_haeds": 2})
    with pytest.raises(SpecError, match=r"'modrn' is neither a recipe .* Did you mean 'modern'\?"):
        isoflop.load("modrn")


def test_every_problem_is_named_at_once() -> None:
    with pytest.raises(SpecError) as caught:
        Architecture(widht=64, dropout=2.0)
    assert [problem.path for problem in caught.value.problems] == [("dropout",), ("widht",)]
