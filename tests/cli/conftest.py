"""The `isoflop` command inside this process, in a folder of its own, on a machine with one catalogue."""

import sys
from pathlib import Path

import pytest

from catalogues import catalogue, install
from isoflop.cli import main
from study_folders import Command, Ended, write_text


@pytest.fixture
def isoflop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs the command; the folder `text` holds something to train on."""
    write_text(tmp_path / "text")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "200")
    install(tmp_path / "locale", "de", "program", catalogue({"Quit": "Beenden"}))
    monkeypatch.setattr("isoflop.data.translation.catalogue_roots", lambda: [tmp_path / "locale"])

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
