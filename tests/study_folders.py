"""Study files small enough to train in seconds, the `isoflop` command in a process of its own, and readers for what it leaves."""

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tiny_runs import assert_bit_equal, metrics, saved

PLUGIN = '''
"""Activations that are slow, deadly or faulty where a test wants them to be; elsewhere each is a ReLU."""

import os
import signal
import time
from pathlib import Path

from torch import nn

from isoflop.model.slots import Activation

HERE = Path(__file__).parent


class Trouble(nn.ReLU):
    def __init__(self, do, file):
        super().__init__()
        self.do, self.file = do, file

    def forward(self, x):
        if self.training and x.device.type != "meta" and (HERE / self.file).exists():
            self.do()
        return super().forward(x)


class Slow(Activation, kind="test_slow"):
    """Sleeps while the file `slow` is there."""

    def build(self):
        return Trouble(lambda: time.sleep(0.15), "slow")


class Deadly(Activation, kind="test_deadly"):
    """Takes its process with it while the file `deadly` is there."""

    def build(self):
        return Trouble(lambda: os.kill(os.getpid(), signal.SIGKILL), "deadly")


class Faulty(Activation, kind="test_faulty"):
    """Raises while the file `faulty` is there."""

    def build(self):
        def fail():
            raise RuntimeError("the part is broken")

        return Trouble(fail, "faulty")
'''

BASE = """
width = 16
depth = 1
position = "rope"
plugins = ["troublesome"]

[attention]
heads = 2

[ffn]
hidden = 32
activation = "test_slow"
"""

STUDY = """
name = "tiny"
base = "bases/base.toml"
seeds = 2

[training]
steps = 8
batch = 4
length = 16
rate = 0.01
log_every = 1
checkpoint_every = 2
data = { source = "SOURCE" }

[arms]
"""


TINY_BASE = """base = "modern"
[change]
width = 16
depth = 1
attention.heads = 2
"""
"""The head of a study file, after its name and seeds: a base that trains in seconds."""
TINY = ("width=16", "depth=1", "attention.heads=2")
TRAINING = (
    *("training.steps=4", "training.rate=1e-3", "training.batch=4", "training.length=16"),
    "training.data.source=text",
)
"""Changes on the command line that make a recipe small enough, and train it on the folder `text`."""


needs_proc = pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="looks at processes through /proc")


class Ended(NamedTuple):
    """How a command ended."""

    code: int
    out: str
    err: str


Command = Callable[..., Ended]


def write_text(folder: Path) -> Path:
    """About 15 kB in twenty files."""
    folder.mkdir()
    for index in range(20):
        lines = (f"line {index * number} of file {index}: {number**2}\n" for number in range(10 + 2 * index))
        (folder / f"{index}.txt").write_text("".join(lines))
    return folder


def write_study(folder: Path, arms: str) -> Path:
    """A study file, its text, and in a folder of their own its base and the plugin that this names."""
    declared = STUDY.replace("SOURCE", str(write_text(folder / "text")))
    (folder / "bases").mkdir()
    (folder / "bases" / "troublesome.py").write_text(PLUGIN)
    (folder / "bases" / "base.toml").write_text(BASE)
    (folder / "study.toml").write_text(f"{declared}\n{arms}")
    return folder / "study.toml"


def start(*arguments: object, cwd: Path) -> "subprocess.Popen[str]":
    """The `isoflop` command in a session of its own, as a terminal would start it."""
    return subprocess.Popen(
        [sys.executable, "-c", "from isoflop.cli import main; main()", *map(str, arguments)],
        cwd=cwd,
        env={**os.environ, "OMP_NUM_THREADS": "1", "COLUMNS": "200"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )


def finish(process: "subprocess.Popen[str]", timeout: float = 120) -> Ended:
    """Wait for its end."""
    try:
        out, err = process.communicate(timeout=timeout)
    except subprocess.TimeoutExpired:
        os.killpg(process.pid, signal.SIGKILL)
        raise AssertionError(f"still running after {timeout} s: {process.communicate()}") from None
    return Ended(process.returncode, out, err)


def isoflop(*arguments: object, cwd: Path) -> Ended:
    """Run the command to its end."""
    return finish(start(*arguments, cwd=cwd))


def wait_until(condition: Callable[[], Any], timeout: float = 60) -> Any:
    """The first true value of the condition."""
    deadline = time.monotonic() + timeout
    while time.monotonic() < deadline:
        if value := condition():
            return value
        time.sleep(0.02)
    raise AssertionError("what was waited for did not happen")


def children(pid: int) -> list[int]:
    """Worker processes of a process; the helper that tracks resources is none."""
    found = [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [child for child in found if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes()]


def alive(pid: int) -> bool:
    """Whether a process is there and at work (a zombie is not)."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False


def records(folder: Path) -> dict[str, dict[str, Any]]:
    """Every run.json of a study folder, by `arm/seed`."""
    return {
        path.parent.relative_to(folder / "runs").as_posix(): json.loads(path.read_text())
        for path in sorted(folder.glob("runs/*/*/run.json"))
    }


def statuses(folder: Path) -> dict[str, str]:
    return {run: record["status"] for run, record in records(folder).items()}


def ages(folder: Path) -> dict[str, int]:
    """When the record of each finished run was written."""
    return {
        run: (folder / "runs" / run / "run.json").stat().st_mtime_ns
        for run, status in statuses(folder).items()
        if status == "finished"
    }


def assert_same_outcome(folder: Path, reference: Path) -> None:
    """Every run has ended as in the reference, weights, moments, log and result to the bit."""
    assert set(statuses(folder).values()) == {"finished"}
    assert statuses(folder) == statuses(reference)
    for run, record in records(folder).items():
        here, there = folder / "runs" / run, reference / "runs" / run
        assert_bit_equal(saved(here), saved(there))
        assert metrics(here) == metrics(there)
        for name in ("loss", "bits_per_byte", "targets", "bytes"):
            assert record["result"][name] == records(reference)[run]["result"][name]
