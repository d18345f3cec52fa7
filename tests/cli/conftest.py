"""The `isoflop` command inside this process, in a folder of its own."""

import sys
from pathlib import Path

import pytest

from isoflop.cli import main
from study_folders import Command, Ended, write_text


@pytest.fixture
def isoflop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command; the folder `text` holds something to train on."""
    write_text(tmp_path / "text")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")

    def run(*arguments: object) -> Ended:
        monkeypatch.setattr(sys, "argv", ["isoflop", *map(str, arguments)])
        capsys.readouterr()
        try:
            main()
            code = 0
        except SystemExit as error:
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        return Ended(code, *capsys.readouterr())

    return run
