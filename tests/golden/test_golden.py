"""Each recipe as it is resolved, and the shape, role and distribution of every part, against a file that is reviewed."""

from __future__ import annotations

import difflib
import os
from pathlib import Path

import pytest
import torch

from isoflop.files import write_atomic
from isoflop.model import Transformer, parts
from isoflop.model.init import rule_for
from isoflop.recipes import load, recipes
from isoflop.spec import to_toml

FOLDER = Path(__file__).parent
RENEW = "ISOFLOP_RENEW_GOLDEN"


def listing(recipe: str) -> str:
    architecture = load(recipe)
    with torch.device("meta"):
        model = Transformer(architecture)
    lines = [
        f"{part.name} {part.role} {'x'.join(map(str, part.shape))} {rule_for(part, architecture)}"
        for part in parts(model)
    ]
    return to_toml(architecture) + "\n# name role shape distribution\n" + "\n".join(lines) + "\n"


@pytest.mark.parametrize("recipe", recipes())
def test_recipe_is_what_the_golden_file_says(recipe: str) -> None:
    file = FOLDER / f"{recipe}.txt"
    found = listing(recipe)
    if os.environ.get(RENEW):
        write_atomic(file, found)
    assert file.exists(), f"no golden file of {recipe}: run pytest with {RENEW}=1 and review what it writes"
    expected = file.read_text()
    diff = "\n".join(
        difflib.unified_diff(expected.splitlines(), found.splitlines(), file.name, "now", lineterm="", n=1)
    )
    assert not diff, f"{recipe} is no longer what it was; if that is meant, run pytest with {RENEW}=1\n{diff}"


def test_golden_files_are_of_recipes_that_exist() -> None:
    assert {file.stem for file in FOLDER.glob("*.txt")} == set(recipes())
