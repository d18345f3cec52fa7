"""Studies in processes that are killed, interrupted and started twice."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from isoflop.study.claim import claim
from isoflop.study.design import Design, load_study
from isoflop.study.execute import OtherStudy, prepare, status
from isoflop.study.results import read_runs, summarise
from study_folders import (
    ages,
    alive,
    assert_same_outcome,
    children,
    finish,
    isoflop,
    needs_proc,
    records,
    start,
    statuses,
    wait_until,
    write_study,
)

ARMS = """
alibi = { position = "alibi" }
narrow = { attention = { kv_heads = 1 } }
"""
RUNS = {f"{arm}/{seed}" for arm in ("base", "alibi", "narrow") for seed in (0, 1)}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study file, and in `reference` what comes out when nothing disturbs it."""
    place = tmp_path_factory.mktemp("place")
    write_study(place, ARMS)
    code, out, err = isoflop("study", "run", "study.toml", "--out", "reference", "--workers", 1, cwd=place)
    assert (code, statuses(place / "reference")) == (0, dict.fromkeys(sorted(RUNS), "finished")), err
    assert "alibi" in out
    # One key/value head of two saves 2 * 16 * 8 weights; a hidden unit costs 2 * 16.
    assert "narrow: ffn.hidden=40 matches params (+0.00%)" in err
    assert "6/6 runs" in err
    (place / "bases" / "slow").touch()
    return place


@pytest.fixture(scope="module")
def killed(place: Path) -> Path:
    """A study whose process was killed, and after that one of its workers; then it ran to its end."""
    folder = place / "killed"
    command = ("study", "run", "study.toml", "--out", "killed", "--workers", 2)
    process = start(*command, cwd=place)
    wait_until(lambda: len(ages(folder)) >= 2 and at_work(folder))
    workers = children(process.pid)
    assert len(workers) == 2
    os.kill(process.pid, signal.SIGKILL)
    finish(process)
    wait_until(lambda: not any(map(alive, workers)), timeout=10)

    before = ages(folder)
    assert len(before) >= 2
    process = start(*command, cwd=place)
    wait_until(lambda: len(children(process.pid)) == 2 and at_work(folder))
    os.kill(children(process.pid)[0], signal.SIGKILL)
    code, _, err = finish(process)
    assert code == 0, err
    assert f"{len(before)} of 6 runs are there already" in err
    assert {run: ages(folder)[run] for run in before} == before, "a finished run was repeated"
    return folder


@pytest.mark.slow
@needs_proc
def test_killed_studies_end_as_if_nothing_had_happened(place: Path, killed: Path) -> None:
    assert_same_outcome(killed, place / "reference")


def test_a_finished_study_is_not_repeated(place: Path) -> None:
    before = ages(place / "reference")
    code, out, _ = isoflop("study", "run", "study.toml", "--out", "reference", "--json", cwd=place)
    assert code == 0
    assert ages(place / "reference") == before
    assert json.loads(out) == json.loads((place / "reference" / "results.json").read_text())


def at_work(folder: Path) -> list[str]:
    """Runs in the middle of their steps."""
    if not (folder / "study.json").exists():
        return []
    logs = {run.path: folder / run.path / "metrics.jsonl" for run in status(folder) if run.status == "running"}
    return [run for run, log in logs.items() if log.exists() and len(log.read_text().splitlines()) >= 2]


TWICE = """
from isoflop.study.design import load_study
from isoflop.study.execute import execute, prepare
prepare(load_study("study.toml"), "interrupted")
execute("interrupted", 1, lambda e: e.kind == "start" and print(e.arm, e.seed, sep="/", flush=True))
"""


@pytest.mark.slow
@needs_proc
def test_interrupted_then_continued_by_two_at_once(place: Path) -> None:
    folder = place / "interrupted"
    process = start("study", "run", "study.toml", "--out", "interrupted", "--workers", 1, cwd=place)
    wait_until(lambda: "finished" in statuses(folder).values() and at_work(folder))
    workers = children(process.pid)
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = finish(process)
    assert (code, out) == (130, "")
    assert "finished runs are kept" in err
    assert err.endswith("To continue: isoflop study run study.toml --out interrupted --workers 1\n")
    assert "Traceback" not in err
    assert not any(map(alive, workers))
    assert "running" not in statuses(folder).values()
    stopped = [run for run, record in records(folder).items() if record["status"] == "interrupted"]
    assert stopped, "the runs at work were saved"

    before = ages(folder)
    left = RUNS - set(before)
    both = [start_python(TWICE, place), start_python(TWICE, place)]
    ends = [finish(process) for process in both]
    assert [code for code, _, _ in ends] == [0, 0], ends
    taken = [out.split() for _, out, _ in ends]
    assert sorted(taken[0] + taken[1]) == sorted(left), "each run was taken once"
    assert {run: ages(folder)[run] for run in before} == before
    assert_same_outcome(folder, place / "reference")


def start_python(code: str, cwd: Path) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", code], cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


MIXED = """
hot = { training = { rate = 1e9, clip = "off" } }
deadly = { ffn = { activation = "test_deadly" } }
faulty = { ffn = { activation = "test_faulty" } }
"""


@pytest.mark.slow
def test_runs_that_diverge_die_or_fail_do_not_poison_the_others(tmp_path: Path) -> None:
    write_study(tmp_path, MIXED)
    (tmp_path / "bases" / "deadly").touch()
    (tmp_path / "bases" / "faulty").touch()
    folder = tmp_path / "study" / "tiny"
    code, _, err = isoflop("study", "run", "study.toml", "seeds=[0]", "--workers", 1, cwd=tmp_path)
    assert code == 1
    assert err.count("deadly seed 0: failed: the worker process ended with code -9 in 2 attempts") == 1
    assert err.count("faulty seed 0: failed: RuntimeError: the part is broken") == 1
    assert "2 runs failed; the same command tries them again" in err
    expected = {"base/0": "finished", "deadly/0": "failed", "faulty/0": "failed", "hot/0": "diverged"}
    assert statuses(folder) == expected
    assert "non-finite" in records(folder)["hot/0"]["reason"]
    assert json.loads((folder / "results.json").read_text())["spent"]["failed"] == 2
    before = {run: (folder / "runs" / run / "run.json").stat().st_mtime_ns for run in ("base/0", "hot/0")}

    (tmp_path / "bases" / "deadly").unlink()
    (tmp_path / "bases" / "faulty").unlink()
    code, out, err = isoflop("study", "run", "study.toml", "--workers", 1, "--json", cwd=tmp_path)
    assert code == 0, err
    results = json.loads(out)
    lost = {arm["name"]: (arm["n"], arm["diverged"], arm["failed"], arm["verdict"]) for arm in results["arms"]}
    assert lost["hot"] == (0, 2, 0, "failed")
    assert {name: lost[name][:3] for name in ("base", "deadly", "faulty")} == dict.fromkeys(
        ("base", "deadly", "faulty"), (2, 0, 0)
    )
    # Freed of their troubles, these arms are the base (all ReLU): seeds pair to the bit.
    assert lost["deadly"][3] == lost["faulty"][3] == "equivalent"
    for run, when in before.items():
        assert (folder / "runs" / run / "run.json").stat().st_mtime_ns == when


# ------------------------------------------------------------------------------- without processes


@pytest.fixture
def plain(tmp_path: Path) -> Path:
    """A study file without plugins, which this process can load."""
    file = write_study(tmp_path, ARMS)
    base = tmp_path / "bases" / "base.toml"
    base.write_text(base.read_text().replace('plugins = ["troublesome"]', "").replace("test_slow", "relu"))
    return file


def write_record(folder: Path, design: Design, arm: str, seed: int, status: str) -> Path:
    path = folder / "runs" / arm / str(seed)
    path.mkdir(parents=True, exist_ok=True)
    record = {"format": 1, "status": status, "seed": seed, "reason": None, "cost": None, "progress": None}
    (path / "run.json").write_text(json.dumps({**record, "result": None}))
    return path


def test_arms_and_seeds_may_be_added(plain: Path, tmp_path: Path) -> None:
    folder = prepare(load_study(plain, {"seeds": 1}), tmp_path / "study")
    write_record(folder, load_study(plain), "base", 0, "finished")
    prepare(load_study(plain, {"seeds": 3, "arms": {"more": {"norm": "rms"}}}), folder)
    assert [(run.arm, run.seed, run.status) for run in read_runs(folder)] == [
        (arm, seed, "finished" if (arm, seed) == ("base", 0) else "pending")
        for seed in (0, 1, 2)
        for arm in ("base", "alibi", "narrow", "more")
    ]


def test_a_folder_of_another_study_is_refused_and_left_as_it_is(plain: Path, tmp_path: Path) -> None:
    design = load_study(plain)
    folder = prepare(design, tmp_path / "study")
    prepare(load_study(plain, {"arms": {"alibi": {"norm": "rms"}}}), folder)  # nothing has begun, nothing is mixed up
    prepare(design, folder)
    write_record(folder, design, "base", 0, "finished")
    write_record(folder, design, "alibi", 0, "running")
    before = (folder / "study.json").read_bytes()
    for change, message in (
        ({"arms": {"alibi": {"norm": "rms"}}}, r"architecture of arm 'alibi' differs there \(norm\.kind"),
        ({"training": {"steps": 9}}, r"training of arm 'base' differs there \(steps\)"),
    ):
        with pytest.raises(OtherStudy, match=message):
            prepare(load_study(plain, change), folder)
    assert (folder / "study.json").read_bytes() == before


def test_no_run_on_record_is_left_out(plain: Path, tmp_path: Path) -> None:
    """Seeds cannot be dropped once their outcome is known, nor arms."""
    design = load_study(plain)
    folder = prepare(design, tmp_path / "study")
    write_record(folder, design, "base", 1, "diverged")
    with pytest.raises(OtherStudy, match=r"leaves out: runs/base/1\. Every run that was made counts"):
        prepare(load_study(plain, {"seeds": 1}), folder)
    prepare(load_study(plain, {"seeds": [1]}), folder)  # what has not begun may go


def test_a_file_of_another_program_is_refused(plain: Path, tmp_path: Path) -> None:
    for name, read in (("study.json", summarise), ("runs/base/0/run.json", read_runs)):
        folder = prepare(load_study(plain), tmp_path / name.replace("/", "-"))
        for content, message in (("[1]", r"in format 1"), ('{"format": 2}', r"in format 1"), ("{", "not valid JSON")):
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_text(content)
            with pytest.raises(ValueError, match=message):
                read(folder)
    with pytest.raises(ValueError, match=r"is no study folder: it has no study\.json"):
        status(tmp_path / "none")


def test_status_tells_processes_from_records(plain: Path, tmp_path: Path) -> None:
    design = load_study(plain)
    folder = prepare(design, tmp_path / "study")
    recorded = {"base/0": "finished", "base/1": "running", "alibi/0": "running", "alibi/1": "failed"}
    for run, word in recorded.items():
        write_record(folder, design, *run.split("/"), word)  # type: ignore[arg-type]
    work = folder / "runs"
    with claim(work / "alibi/0") as first, claim(work / "alibi/1"), claim(work / "narrow/0"), claim(work / "base/0"):
        assert first
        with claim(work / "alibi/0") as second:
            assert not second, "a run that is held is not given away"
        assert {f"{run.arm}/{run.seed}": run.status for run in status(folder)} == {
            "base/0": "finished",
            "base/1": "interrupted",  # on record as running, and nobody is at work
            "alibi/0": "running",
            "alibi/1": "running",  # tried again
            "narrow/0": "running",  # nothing on record yet
            "narrow/1": "pending",
        }
    assert [run.status for run in status(folder)] == [
        *("finished", "interrupted", "pending"),
        *("interrupted", "failed", "pending"),
    ]


def test_unusable_data_is_told_before_a_run_begins(plain: Path, tmp_path: Path) -> None:
    (tmp_path / "binary.txt").write_bytes(b"\xff\xfe\x00")
    (tmp_path / "empty.txt").write_text("")
    (tmp_path / "short.txt").write_text("too short")
    for change, message in (
        ({"training": {"data": {"source": str(tmp_path / "none.txt")}}}, r"^training\.data\.source: no such file"),
        ({"training": {"data": {"source": str(tmp_path / "binary.txt")}}}, r"^training\.data\.source: .*not text"),
        ({"training": {"data": {"source": str(tmp_path / "empty.txt")}}}, r"^training\.data\.source: "),
        ({"training": {"data": {"source": str(tmp_path / "short.txt")}}}, r"^training\.data\.source: "),
        ({"arms": {"small": {"vocab": 100}}, "match": "none"}, r"^arms\.small\.vocab: must be at least 256"),
    ):
        with pytest.raises(ValueError, match=message):
            prepare(load_study(plain, change), tmp_path / "study")
        assert not (tmp_path / "study").exists()
