"""Text turns to garbage where the rotary rule switches with the length: cached keys were turned by the old one."""

from typing import Any

import pytest

import properties
from isoflop.model import Architecture
from models import lively, mixed

SCALINGS: dict[str, dict[str, Any]] = {
    "dynamic_ntk": {"kind": "dynamic_ntk", "original_length": 3, "longest": 7},
    "longrope": {"kind": "longrope", "original_length": 3, "longest": 7, "long_factors": [3.0, 9.0]},
    "longrope-short": {"kind": "longrope", "original_length": 3, "longest": 3, "short_factors": [1.0, 2.0]},
}


@pytest.mark.parametrize("name", SCALINGS)
def test_across_the_original_length_cached_equals_uncached(name: str) -> None:
    position = {"kind": "rope", "base": 20.0, "scaling": SCALINGS[name]}
    declared = Architecture(width=16, depth=2, vocab=11, attention={"heads": 4}, position=position)
    model = lively(declared)
    properties.check_cached(model, mixed(model))
