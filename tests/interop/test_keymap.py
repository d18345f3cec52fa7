"""Forms of tensors against the rows that they must have, written out."""

from __future__ import annotations

import pytest
import torch

from isoflop.interop.family import changes
from isoflop.interop.keymap import GROUPED, TRANSPOSED, Form, Offset
from isoflop.model import BlockChange
from isoflop.model.slots import Heads


def test_rows_by_head_of_one_head_of_keys_are_as_they_are() -> None:
    theirs = torch.randn(12, 5)
    assert torch.equal(GROUPED.ours(theirs, Heads.alike(4, 1, 2)), theirs)


@pytest.mark.parametrize(
    ("form", "shape"), [(Form(), (6, 5)), (TRANSPOSED, (6, 5)), (GROUPED, (24, 5)), (GROUPED, (24,))]
)
def test_a_form_is_undone(form: Form, shape: tuple[int, ...]) -> None:
    heads, theirs = Heads.alike(4, 4, 2), torch.randn(shape)
    assert torch.equal(form.theirs(form.ours(theirs, heads), heads), theirs)


def test_an_offset_table_loses_its_first_rows_and_gets_zeros_back() -> None:
    heads, theirs = Heads.alike(1, 1, 1), torch.randn(7, 3)
    ours = Offset(2).ours(theirs, heads)
    assert torch.equal(ours, theirs[2:])
    back = Offset(2).theirs(ours, heads)
    assert torch.equal(back[2:], theirs[2:])
    assert not back[:2].any()


@pytest.mark.parametrize("depth", range(1, 8))
def test_changes_name_exactly_the_blocks_that_are_meant(depth: int) -> None:
    for mask in range(2**depth):
        numbers = [number for number in range(depth) if mask >> number & 1]
        made = [BlockChange.parse(change) for change in changes(numbers, depth, {"norm": "rms"})]
        assert sorted(number for change in made for number in change.blocks(depth)) == numbers
