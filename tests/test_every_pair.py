"""Every pair of settings in some architecture; see `kinds.cover` and `properties`."""

from __future__ import annotations

import re
from itertools import combinations

import pytest

import kinds
import properties

CHUNKS = 36
ARCHITECTURES = kinds.cover().architectures


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_pairs(chunk: int) -> None:
    for name, architecture in ARCHITECTURES[chunk::CHUNKS]:
        try:
            properties.check_combination(architecture)
        except Exception as error:
            error.add_note(f"with {name}")
            raise


WHERE = r"(block 1: |encoder: )?"
MUST_BE_REFUSED = {
    "hidden is given, so that no multiple rounds it": (r"ffn\.hidden=.*\(glu\)", r"ffn\.multiple=.*"),
    "half of four components is one pair, too few": (
        r"position\.fraction=.*",
        r"position\.scaling=(dynamic_ntk|proportional).*",
    ),
    "a share of weights cannot be normalised before it is one": (
        r"attention\.priors\.on=probabilities.*",
        r"attention\.priors\.decay=softmax.*",
    ),
    "a predicted centre has no offset": (
        r"attention\.priors\.measure\.centre=(before|anywhere).*",
        r"attention\.priors\.measure\.offset.*",
    ),
    "none stands beside no other position": (WHERE + r"position=.*none.*", WHERE + r"position.*"),
    "attention without queries and keys has no position between them": (
        WHERE + r"(position=.*none.* )?attention(=|\..*none,).*hard_coded.*",
        WHERE + r"position.*",
    ),
    "attention without queries and keys has no window": (
        r"(encoder: position=.*none.* )?attention.*hard_coded.*",
        r"encoder: blocks=.*window.*",
    ),
    "attention without queries and keys neither keeps values for another block nor takes them": (
        r"(block 1: position=.*none.* )?attention.*none.*hard_coded.*|attention=hard_coded.*|block 1: .*hard_coded.*",
        WHERE + r"attention.*value_residual.*",
    ),
    "a memory is of a text that a decoder goes on with": (
        r"(block 1: )?attention.*memory.*",
        r"form=.*|cross.*|encoder: .*|.*centre=anywhere.*",
    ),
    "a memory needs positions that say how far a key is": (
        r"(block 1: )?attention.*memory.*",
        r"position.*(sinusoidal|learned).*",
    ),
    "values of the first block reach as far back as those of this one": (
        r"block 1: attention.*memory.*",
        r"attention\.value_residual.*",
    ),
    "latent attention neither keeps values for another block nor takes them": (
        r"attention(=|\..*\()latent.*|block 1: attention=.*latent.*",
        r"(block 1: )?attention.*value_residual.*",
    ),
    "norms of their own need a join that adds": (WHERE + r"arrangement\.norms=own.*", WHERE + r"join=.*post.*"),
    "where one join serves all, attention has no norm of its own": (
        WHERE + r"arrangement=.*parallel.*",
        WHERE + r"attention_norm=.*",
    ),
    "blocks that share their modules do not differ": (r"share=groups", r"block 1: .*"),
    "a block that uses the first one's modules takes no values of it": (
        r"share=groups",
        r"(encoder: )?attention.*value_residual.*",
    ),
    "values of the first block are no use to a block of another shape": (
        r"attention\.value_residual.*",
        r"block 1: attention=.*(heads|head_width).*",
    ),
}
"""Pairs that cannot work, by the reason; a new kind with such pairs adds a line here."""


def test_nothing_is_refused_but_what_must_be() -> None:
    refused = kinds.cover().refused
    reasons = {pair: [reason for reason, names in MUST_BE_REFUSED.items() if _are(pair, names)] for pair in refused}
    assert {pair for pair, found in reasons.items() if not found} == set()
    assert {reason for found in reasons.values() for reason in found} == set(MUST_BE_REFUSED)


def _are(pair: tuple[str, str], names: tuple[str, str]) -> bool:
    return any(all(map(re.fullmatch, names, ordered)) for ordered in (pair, pair[::-1]))


def test_every_pair_is_met() -> None:
    """The cover is what it says: all pairs of settings that are legal together stand in some architecture."""
    met = {pair for name, _ in ARCHITECTURES for pair in combinations(sorted(name.split(" + ")), 2)}
    missing = []
    for left, right in combinations(kinds.paired_settings(), 2):
        try:
            both = kinds.combine(left.change, right.change)
        except kinds.ConflictError:
            continue
        if both not in (left.change, right.change) and kinds.legal(both):
            pair = tuple(sorted((str(left), str(right))))
            if pair not in met:
                missing.append(pair)
    assert not missing
    assert len(met) > 1000
