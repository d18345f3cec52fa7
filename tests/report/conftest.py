from __future__ import annotations

from pathlib import Path

import pytest
from synthetic_study import write_study

LOST = {("deep", 1): "diverged", ("window", 4): "failed"} | {("post", seed): "diverged" for seed in (2, 5)}


@pytest.fixture(scope="session")
def study_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Seven arms by six seeds: three runs diverged, one failed, one point of one run is not finite."""
    return write_study(tmp_path_factory.mktemp("study") / "demo", lost=LOST)
