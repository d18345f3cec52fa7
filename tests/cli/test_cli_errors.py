"""What goes wrong is said in a line or a few on stderr, with the exit code that is promised, and without a traceback."""

import errno
import json
import os
import re
from pathlib import Path

import pytest

from study_folders import TINY, TINY_BASE, TRAINING, Command

STUDY = f"""
seeds = 2
{TINY_BASE}
[training]
steps = 4
batch = 4
length = 16
rate = 1e-3
data = {{ source = "text" }}
"""

ON_COPIES, HIDDEN = "training.data.source=task:copy", "training.data.objective=masked"
CASES: list[tuple[int, str, tuple[str, ...]]] = [
    (2, "error: widht: unknown field; .*Did you mean 'width'", ("plan", "modern", "widht=3")),
    (2, "error: width: must be a valid integer, came '64'", ("plan", "modern", "width='64'")),
    (2, "error: width: must be a valid integer, came 1.5", ("plan", "modern", "width=1.5")),
    (2, "error: attention.heads: must divide width 512, came 3; nearest", ("plan", "modern", "attention.heads=3")),
    (2, "error: position: 'none' stands beside rope", ("plan", "modern", 'position=["none","rope"]')),
    (2, "error: training: unknown field", ("plan", "modern", "training.steps=3")),
    (2, "error: 'width' must look like key.path=value", ("plan", "modern", "width")),
    (2, "error: length must be at least 1, came 0", ("plan", "modern", "--length", "0")),
    (2, "error: length 2000 is beyond the 1024 positions", ("plan", "gpt2", "--length", "2000")),
    (2, "error: no such file: .*none.toml", ("plan", "none.toml")),
    (2, "error: .*binary.toml is not text in UTF-8", ("plan", "binary.toml")),
    (2, "error: base: must name a recipe or an architecture file, came None", ("study", "run", "empty.toml")),
    (2, "error: 'modrn' is neither a recipe .*Did you mean 'modern'", ("plan", "modrn")),
    (2, "error: training.steps: must be given", ("train", "modern", *TINY)),
    (2, "error: training: must be a table of Training fields, came 3", ("train", "modern", "training=3")),
    (
        2,
        "error: training.stepz: unknown field; .*Did you mean 'steps'",
        ("train", "modern", *TRAINING, "training.stepz=3"),
    ),
    *(
        (2, f"error: {said}", ("train", "modern", *TINY, *TRAINING, *changes))
        for said, *changes in (
            (
                "training.data.source: an encoder-decoder reads one text and writes another; .*text",
                "form=encoder_decoder",
            ),
            ("training.data.source: an encoder reads a text and writes none", "form=encoder", ON_COPIES),
            ("training.data.objective: an encoder-decoder is .*'masked'", "form=encoder_decoder", ON_COPIES, HIDDEN),
            ("training.data.objective: a decoder sees no token behind", HIDDEN),
            ("training.data.packing: has no effect on pairs", ON_COPIES, "training.data.packing=documents"),
            ("training.data.source.longst: .*Did you mean 'longest'", ON_COPIES, "training.data.source.longst=3"),
            ("training.data.source: 'copi' is no kind .*Did you mean 'copy'", "training.data.source=task:copi"),
            ("training.data.source.target: no gettext catalogue", "training.data.source=translation:en-xx"),
            (
                "training.length: must be at least 2 for the shortest",
                ON_COPIES,
                "form=encoder_decoder",
                "training.length=1",
            ),
            ("cross: looks at an encoder, and form 'decoder' has none", ON_COPIES, "cross.heads=2"),
            ("cross.window: is about places in one text", ON_COPIES, "form=encoder_decoder", "cross.window=3"),
            ("encoder.depht: unknown field; .*Did you mean 'depth'", "form=encoder_decoder", "encoder.depht=3"),
        )
    ),
    (2, "error: vocab: must be at least 256, .*came 100", ("train", "modern", *TINY, *TRAINING, "vocab=100")),
    *(
        (2, f"error: .*source: .*{said}", ("train", "modern", *TINY, *TRAINING, f"training.data.source={name}"))
        for name, said in (
            ("none.txt", "no such file or folder: none.txt"),
            ("binary.txt", "is not text in UTF-8: byte 0xff at offset 0"),
            ("empty.txt", "empty"),
            ("stdlb", "Did you mean 'stdlib'"),
        )
    ),
    (2, "error: vocab: must be 256, .*came 100", ("generate", "small.toml")),
    (2, "error: vocab: must be 256, .*came 50257", ("generate", "gpt2")),
    (2, "lengths.*whole numbers with commas", ("evaluate", "run", "--lengths", "8,x")),
    (1, "error: no such file: none.*run.json", ("evaluate", "none")),
    (2, "temperature", ("generate", "modern", "--temperature", "-1")),
    (2, "top-k", ("generate", "modern", "--top-k", "0")),
    (2, "top-p", ("generate", "modern", "--top-p", "1.5")),
    (2, "tokens", ("generate", "modern", "-n", "-1")),
    (2, "unexpected extra argument", ("generate", "modern", "width=3")),
    (2, "error: 'nope' is neither a recipe", ("generate", "nope")),
    (2, "error: .*text is a folder", ("generate", "text")),
    (1, "error: every prompt must have at least one token", ("generate", "tiny.toml", "--prompt", "")),
    (2, "error: 'rsm' is neither a slot nor a kind. Did you mean 'rms'", ("kinds", "rsm")),
    (2, "--schema", ("kinds", "rms", "--schema")),
    (2, "error: plugins: module 'nope' was not found", ("kinds", "--plugin", "nope")),
    *(
        (2, "error: text is no study folder", (*verb, "text"))
        for verb in (("study", "status"), ("study", "report"), ("report",))
    ),
    (2, "error: none is no study folder", ("study", "status", "none")),
    (2, "error: no such file: none.toml", ("study", "run", "none.toml")),
    (2, "error: arms.a.norm: 'rsm' is no kind of Norm", ("study", "run", "study.toml", "arms.a.norm=rsm")),
    (2, "error: seeds: holds 1 twice", ("study", "run", "study.toml", "seeds=[1,1]")),
    (2, "error: training.data.source: no such file", ("study", "run", "study.toml", "training.data.source=none.txt")),
    (2, "error: arms.a.vocab: must be at least 256", ("study", "run", "study.toml", "arms.a.vocab=100", "match=none")),
    (
        4,
        "error: arm 'a': no value of depth meets the params of the base within 0.50%; nearest is depth=1",
        ("study", "run", "study.toml", "arms.a.ffn.kind=plain", "arms.a.ffn.hidden=999", "match.knob=depth"),
    ),
    (2, "workers", ("study", "run", "study.toml", "--workers", "0")),
    (2, "seed", ("train", "modern", "--seed", "-1")),
    (2, "No such command", ("nope",)),
    (2, "No such option", ("plan", "modern", "--lenght", "3")),
]


@pytest.mark.parametrize(
    ("code", "said", "arguments"), CASES, ids=lambda value: " ".join(value)[:60] if isinstance(value, tuple) else None
)
def test_bad_input(isoflop: Command, code: int, said: str, arguments: tuple[str, ...]) -> None:
    Path("binary.toml").write_bytes(b"\xff\xfe")
    Path("binary.txt").write_bytes(b"\xff\xfe\x00")
    Path("empty.txt").write_text("")
    Path("empty.toml").write_text("")
    Path("small.toml").write_text("vocab = 100\nwidth = 16\nattention.heads = 2")
    Path("tiny.toml").write_text("width = 16\nattention.heads = 2")
    Path("study.toml").write_text(STUDY)
    before = sorted(Path().rglob("*"))
    ended = isoflop(*arguments)
    assert ended.code == code, ended
    assert ended.out == ""
    assert re.search(said, ended.err), ended.err
    assert len(ended.err.splitlines()) <= 5
    assert "Traceback" not in ended.err
    assert sorted(Path().rglob("*")) == before, "nothing was left behind"


@pytest.fixture
def trained(isoflop: Command) -> Path:
    assert isoflop("train", "modern", *TINY, *TRAINING, "--out", "run").code == 0
    return Path("run")


def contents(folder: Path) -> dict[str, bytes]:
    return {path.as_posix(): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_a_run_folder_of_another_run_is_refused_and_kept(isoflop: Command, trained: Path) -> None:
    before = contents(trained)
    for change, said in (
        ("depth=2", "architecture.depth was 1, now 2"),
        ("training.rate=2e-3", "training.rate was 0.001, now 0.002"),
    ):
        ended = isoflop("train", "modern", *TINY, *TRAINING, change, "--out", "run")
        assert (ended.code, ended.out) == (2, "")
        assert ended.err.startswith("error: run holds another run: ")
        assert said in ended.err
    ended = isoflop("train", "modern", *TINY, *TRAINING, "--seed", "1", "--out", "run")
    assert (ended.code, "seed was 0, now 1" in ended.err) == (2, True)
    ended = isoflop("train", "modern", *TINY, *TRAINING, "--out", "text")
    assert (ended.code, ended.err.startswith("error: text must be empty or hold a run")) == (2, True)
    assert contents(trained) == before


@pytest.mark.parametrize("name", ["model.safetensors", "state.json", "../run.json", "../tokenizer.json"])
@pytest.mark.parametrize("damage", ["truncated", "foreign"])
def test_a_damaged_run_is_not_used(isoflop: Command, trained: Path, name: str, damage: str) -> None:
    path = trained / "checkpoint" / name
    path.write_bytes(path.read_bytes()[:-7] if damage == "truncated" else b'{"made": "by another program"}')
    ended = isoflop("generate", "run", "-n", 3)
    assert (ended.code, ended.out) == (1, "")
    assert ended.err.startswith("error: ")
    assert path.name in ended.err
    assert len(ended.err.splitlines()) <= 3


def test_a_full_disk_is_said_and_what_was_there_stays(
    isoflop: Command, trained: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    before = contents(trained)

    def full(descriptor: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "fsync", full)
    ended = isoflop("train", "modern", *TINY, *TRAINING, "--out", "other")
    assert (ended.code, ended.out) == (1, "")
    assert "No space left on device" in ended.err
    assert "Traceback" not in ended.err
    assert not list(Path("other").rglob("*.partial*"))
    assert contents(trained) == before


def test_a_run_that_diverges_ends_in_a_failure_that_says_so(isoflop: Command, tmp_path: Path) -> None:
    ended = isoflop(
        "train",
        "modern",
        *TINY,
        *TRAINING,
        "training.rate=1e9",
        "training.clip=off",
        "--out",
        tmp_path / "hot",
        "--json",
    )
    assert ended.code == 1
    assert json.loads(ended.out)["status"] == "diverged"
    assert "diverged: " in ended.err
    assert "non-finite at step" in ended.err
