"""Every pair of settings in some architecture; see `kinds.cover` and `properties`."""

from __future__ import annotations

from itertools import combinations

import pytest

import kinds
import properties

CHUNKS = 12
ARCHITECTURES = kinds.cover().architectures


@pytest.mark.parametrize("chunk", range(CHUNKS))
def test_pairs(chunk: int) -> None:
    for name, architecture in ARCHITECTURES[chunk::CHUNKS]:
        try:
            properties.check_combination(architecture)
        except Exception as error:
            error.add_note(f"with {name}")
            raise


def test_nothing_is_refused_but_what_must_be() -> None:
    """A pair that is refused is one of these; a new kind with pairs that cannot work adds a line here."""
    refused = {frozenset(pair) for pair in kinds.cover().refused}
    gaussian = "attention.priors.measure.{}(penalty,gaussian)"
    expected = {
        frozenset({"ffn.hidden=20(glu)", "ffn.multiple=8(glu)"}),
        *(
            frozenset({"position.fraction=0.5(rope)", f"position.scaling={scaling}(rope)"})
            for scaling in ("dynamic_ntk", "proportional")  # half of four components is one pair, too few for these
        ),
        frozenset(
            {"attention.priors.on=probabilities(multiplicative)", "attention.priors.decay=softmax(multiplicative)"}
        ),
        *(
            frozenset({gaussian.format(f"centre={centre}"), gaussian.format(offset)})
            for centre in ("before", "anywhere")
            for offset in ("offset=-1.0", "offset_is=learned", "offset_is=per_head", "offset_is=predicted")
        ),
    }
    beside_none = {name for pair in refused for name in pair if "position=none" in pair} - {"position=none"}
    assert {pair for pair in refused if "position=none" not in pair} == expected
    positions = {str(setting) for setting in kinds.paired_settings() if setting.path[0] == "position"}
    assert beside_none == positions - {"position=none"} - {name for name in positions if "(none)" in name}


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
