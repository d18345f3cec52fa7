from pathlib import Path

import pytest

from isoflop.data import Corpus, Data, load

LINES = "the quick brown fox\njumps over the lazy dog\n"


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Thirty small files in three folders, of 45 to 1349 bytes."""
    root = tmp_path_factory.mktemp("texts")
    for index in range(30):
        path = root / f"part{index % 3}" / f"file{index:02}.txt"
        path.parent.mkdir(exist_ok=True)
        path.write_text(f"{index:02}" + LINES * (1 + index) + "." * (index % 7), encoding="utf-8")
    return root


@pytest.fixture(scope="session")
def corpus(folder: Path) -> Corpus:
    return load(Data(source=str(folder)))
