"""Every verb, on input that is right: what it prints, where, and what it leaves."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import jsonschema
import pytest

import isoflop.recipes as isoflop_package
from isoflop import __version__, build, load, price
from isoflop.recipes import recipes
from isoflop.spec import read_toml, slots
from isoflop.train import load_model
from study_folders import TINY, TINY_BASE, TRAINING, Command, finish, needs_proc, start, wait_until, write_text
from tiny_runs import assert_bit_equal, metrics, saved, strict_json

VERBS = ("demo", "kinds", "plan", "train", "evaluate", "generate", "import", "export", "report", "study", "data")


# ---------------------------------------------------------------------------------------------- help


def test_help_answers_at_once() -> None:
    code = """
import sys
sys.argv = ["isoflop", "--help"]
from isoflop.cli import main
try:
    main()
finally:
    print(sorted({"torch", "numpy", "scipy", "plotly", "pydantic_core", "tokenizers"} & set(sys.modules)), file=sys.stderr)
"""
    begun = time.monotonic()
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert time.monotonic() - begun < 10
    assert {"torch", "numpy", "scipy", "plotly", "tokenizers"}.isdisjoint(eval(done.stderr.splitlines()[-1]))
    assert all(f"  {verb} " in done.stdout for verb in VERBS)


@pytest.mark.parametrize(
    "verb",
    [*((verb,) for verb in VERBS), *(("study", v) for v in ("run", "status", "report", "noise")), ("data", "list")],
)
def test_every_verb_has_help(isoflop: Command, verb: tuple[str, ...]) -> None:
    ended = isoflop(*verb, "--help")
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"Usage: isoflop {' '.join(verb)} ")
    if verb[-1] not in {"study", "data"}:
        assert "--json" in ended.out, "every verb can print JSON"


def test_version(isoflop: Command) -> None:
    assert isoflop("--version") == (0, f"isoflop {__version__}\n", "")


# ---------------------------------------------------------------------------------------------- kinds, plan, data


def test_kinds_lists_all_and_describes_one(isoflop: Command) -> None:
    ended = isoflop("kinds")
    assert (ended.code, ended.err) == (0, "")
    for slot in slots().values():
        for kind in slot.kinds:
            assert kind in ended.out
    ended = isoflop("kinds", "rms")
    assert ended.out.startswith("Norm.rms\nRMSNorm: unit root mean square")
    assert "formula  " in ended.out
    assert "source   Zhang & Sennrich 2019" in ended.out
    assert "  eps          number (default 1e-06)\n" in ended.out
    assert isoflop("kinds", "NORM").out.count("formula") == len(slots()["Norm"].kinds)
    assert isoflop("kinds", "norm.rms").out == ended.out


def test_kinds_as_json(isoflop: Command) -> None:
    rows = strict_json(isoflop("kinds", "norm", "--json").out)
    assert [row["kind"] for row in rows] == list(slots()["Norm"].kinds)
    assert {row["default"] for row in rows if row["kind"] == "layer"} == {True}
    everything = strict_json(isoflop("kinds", "--json").out)
    assert len(everything) == sum(len(slot.kinds) for slot in slots().values())


def test_the_schema_accepts_recipes_and_refuses_slips(isoflop: Command) -> None:
    schema = strict_json(isoflop("kinds", "--schema").out)
    jsonschema.Draft202012Validator.check_schema(schema)
    check = jsonschema.Draft202012Validator(schema)
    folder = Path(isoflop_package.__file__).parent
    for name in recipes():
        check.validate(read_toml(folder / f"{name}.toml"))
        check.validate(load(name).dump())
    for slip in (
        {"widht": 3},
        {"width": "3"},
        {"norm": "rsm"},
        {"norm": {"kind": "rms", "bias": True}},
        {"ffn": {"hiden": 3}},
    ):
        assert not check.is_valid(slip), slip


def test_plan_counts_what_is_built(isoflop: Command) -> None:
    arguments = ("plan", "modern", *TINY, "ffn.hidden=48", "ffn.multiple=default", "--length", 32)
    told = strict_json(isoflop(*arguments, "--json").out)
    architecture = load("modern", width=16, depth=1, **{"attention.heads": 2, "ffn.hidden": 48, "ffn.multiple": None})
    assert told == price(architecture, 32).dump()
    assert told["parameters"] == sum(p.numel() for p in build(architecture).parameters())
    ended = isoflop(*arguments)
    assert f"{told['parameters']:,}" in ended.out
    assert f"{round(told['training_flops_per_token']):,}" in ended.out


def test_an_encoder_has_no_cache(isoflop: Command) -> None:
    assert "KV cache" in isoflop("plan", "modern", *TINY).out
    encoder = isoflop("plan", "modern", *TINY, "form=encoder")
    assert (encoder.code, "KV" in encoder.out) == (0, False)
    assert strict_json(isoflop("plan", "modern", *TINY, "form=encoder", "--json").out)["kv_bytes_per_token"] == 0


def test_data_list(isoflop: Command) -> None:
    rows = strict_json(isoflop("data", "list", "--json").out)
    assert {"name", "bytes", "licence", "present"} <= set(rows[0])
    shown = isoflop("data", "list").out
    assert "task:copy" in shown
    assert {row["name"]: row["pairs"] for row in rows} == {
        "stdlib": None,
        "pydoc": None,
        "torch": None,
        "translation:en-de": 1,
    }
    for row in rows:
        assert row["name"] in shown
        assert row["licence"] in shown


# ---------------------------------------------------------------------------------------------- train, generate


def test_train_then_again_then_generate(isoflop: Command) -> None:
    command = ("train", "modern", *TINY, *TRAINING, "--out", "run", "--seed", 3)
    first = isoflop(*command)
    assert first.code == 0
    record = strict_json(Path("run/run.json").read_text())
    result = record["result"]
    assert (record["status"], record["seed"], record["training"]["steps"]) == ("finished", 3, 4)
    assert f"{result['loss']:.4f} nats/token, {result['bits_per_byte']:.4f} bits/byte" in first.out
    assert "step 4/4  validation loss" in first.err

    again = isoflop(*command, "--json")
    assert again.err == "run: this run is finished already\n"
    assert strict_json(again.out) == record

    text = isoflop("generate", "run", "-n", 12, "--seed", 5, "--prompt", "line 1 ")
    told = strict_json(isoflop("generate", "run", "-n", 12, "--seed", 5, "--prompt", "line 1 ", "--json").out)
    assert text.out == f"line 1 {told['text']}\n"
    assert (told["prompt"], len(told["tokens"])) == ("line 1 ", 12)
    other = strict_json(isoflop("generate", "run", "-n", 12, "--seed", 6, "--prompt", "line 1 ", "--json").out)
    assert other["tokens"] != told["tokens"]
    greedy = [isoflop("generate", "run", "-n", 8, "--seed", s, "--temperature", 0, "--json").out for s in (1, 2)]
    one = [isoflop("generate", "run", "-n", 8, "--seed", s, "--top-k", 1, "--json").out for s in (1, 2)]
    assert len({*greedy, *one}) == 1
    assert isoflop("generate", "run", "-n", 0).out == "import \n"


PAIRS = ("training.data.source.kind=reverse", "training.data.source.symbols=5", "training.data.source.longest=3",
         "training.data.source.items=60", "training.data.source.validation_items=6", "training.data.source.extrapolate=[5]")  # fmt: skip
ON_PAIRS = ("train", "modern", *TINY, "vocab=7", "training.length=7", "training.rate=1e-2", *PAIRS, "--out", "run")


def test_a_run_on_pairs_answers_a_source(isoflop: Command) -> None:
    """The answer is what greedy decoding writes behind the separator, up to the end id."""
    trained = isoflop(*ON_PAIRS, "training.steps=60", "training.batch=16")
    assert trained.code == 0
    assert re.search(r"size 5 +11 +\d+\.\d{4} +\d+\.\d{4} +36 +\d+\.\d%", trained.out)
    model, _, codec = load_model("run")
    assert codec.separator == 6
    for source in ("0", "31", "123"):
        [new] = model.generate([[*codec.encode(source), 6]], 9, stop={codec.end_id})
        ended = isoflop("generate", "run", "--prompt", source, "-n", 9, "--temperature", 0)
        assert (ended.code, ended.out) == (0, codec.decode(new) + "\n")
        told = strict_json(isoflop("generate", "run", "--prompt", source, "-n", 9, "--temperature", 0, "--json").out)
        assert told == {"prompt": source, "text": codec.decode(new), "tokens": new}
    refused = isoflop("generate", "run")
    assert (refused.code, "the run was trained on pairs; give a source" in refused.err) == (2, True)
    refused = isoflop("generate", "run", "--prompt", "5")
    assert (refused.code, "'5' is no symbol of this task; there are 01234" in refused.err) == (1, True)


def test_an_encoder_decoder_answers_a_source(isoflop: Command) -> None:
    """An encoder reads the source, and the target begins with the end id."""
    assert isoflop(*ON_PAIRS, "form=encoder_decoder", "training.steps=20", "training.batch=16").code == 0
    model, _, codec = load_model("run")
    for source in ("0", "31"):
        [new] = model.generate([[0]], 9, sources=[codec.encode(source)], stop={0})
        told = strict_json(isoflop("generate", "run", "--prompt", source, "-n", 9, "--temperature", 0, "--json").out)
        assert told == {"prompt": source, "text": codec.decode(new), "tokens": new}
    found = strict_json(isoflop("evaluate", "run", "--json").out)
    assert found["sets"] == strict_json(Path("run/run.json").read_text())["result"]["sets"]
    assert "KV cache bytes per token of the source" in isoflop("plan", "modern", *TINY, "form=encoder_decoder").out


def test_what_is_hardly_trained_writes_symbols_of_its_task_alone(isoflop: Command) -> None:
    """The vocabulary is wider than the tokenizer, whose last id is 5, and the separator's 6."""
    assert isoflop(*ON_PAIRS, "vocab=64", "form=encoder_decoder", "training.steps=1", "training.batch=2").code == 0
    drawn = [strict_json(isoflop("generate", "run", "--prompt", "31", "--seed", s, "--json").out) for s in range(3)]
    assert all(answer["tokens"] and max(answer["tokens"]) <= 6 for answer in drawn)
    refused = isoflop("generate", "run", "--prompt", "")
    assert (refused.code, "every source must have at least one token, and one is empty" in refused.err) == (1, True)


# ---------------------------------------------------------------------------------------------- evaluate


def test_evaluate_again_finds_what_the_run_found(isoflop: Command) -> None:
    lengths = "training.evaluate_lengths=[8,32]"
    trained = isoflop("train", "modern", *TINY, *TRAINING, lengths, "training.validation_windows=6", "--out", "run")
    result = strict_json(Path("run/run.json").read_text())["result"]
    for row in result["sets"]:
        assert re.search(
            rf"{row['set']} +{row['length']} +{row['bits_per_byte']:.4f} +{row['loss']:.4f} +96", trained.out
        )
    before = {path: path.stat().st_mtime_ns for path in Path().rglob("*")}
    again = strict_json(isoflop("evaluate", "run", "--json").out)
    assert {path: path.stat().st_mtime_ns for path in Path().rglob("*")} == before
    assert again["sets"] == result["sets"]
    assert again["validation"] == {
        "length": 16,
        **{name: result[name] for name in ("loss", "bits_per_byte", "targets", "bytes")},
    }
    assert (again["step"], again["same_text"]) == (4, True)

    shown = isoflop("evaluate", "run", "--lengths", "16,64", "--windows", 8, "--out", "more/found.json")
    found = strict_json(Path("more/found.json").read_text())
    assert [(row["set"], row["targets"]) for row in found["sets"]] == [("length 16", 128), ("length 64", 128)]
    assert found["sets"][0]["loss"] == found["validation"]["loss"]
    assert shown.out.splitlines()[0] == "step 4"
    assert re.search(rf"length 64 +64 .*{found['sets'][1]['loss']:.4f} +128", shown.out)


def test_evaluate_of_pairs_has_exact_matches(isoflop: Command) -> None:
    trained = isoflop(*ON_PAIRS, "training.steps=2", "training.batch=4")
    assert trained.code == 0
    assert len(re.findall(r"step 2/2  validation loss .* bits/byte\n", trained.err)) == 1
    assert len(re.findall(r"step 2/2  validation loss .*% exact matches\n", trained.err)) == 1
    shown = isoflop("evaluate", "run").out
    assert re.findall(r"^validation .*%$", shown, re.MULTILINE) == re.findall(r"^validation.*", shown, re.MULTILINE)
    found = strict_json(isoflop("evaluate", "run", "--json").out)
    assert found["sets"] == strict_json(Path("run/run.json").read_text())["result"]["sets"]
    assert {"token_accuracy", "exact_match"} <= found["sets"][1].keys()
    refused = isoflop("evaluate", "run", "--lengths", "8")
    assert (refused.code, "--lengths: are of windows of a text" in refused.err) == (2, True)


def test_evaluate_says_that_the_text_has_changed(isoflop: Command) -> None:
    assert isoflop("train", "modern", *TINY, *TRAINING, "--out", "run").code == 0
    Path("text/more.txt").write_text("something else\n" * 50)
    ended = isoflop("evaluate", "run", "--json")
    assert (ended.code, strict_json(ended.out)["same_text"]) == (0, False)
    assert "the source has changed since the run" in ended.err


def test_a_model_from_elsewhere_has_nothing_to_be_evaluated_on(isoflop: Command) -> None:
    assert isoflop("train", "modern", *TINY, *TRAINING, "--out", "run").code == 0
    record = strict_json(Path("run/run.json").read_text())
    Path("run/run.json").write_text(json.dumps({key: record[key] for key in record if key != "training"}))
    ended = isoflop("evaluate", "run")
    assert (ended.code, "error: run holds a model that was not trained here" in ended.err) == (1, True)


def test_evaluate_as_in_bf16(isoflop: Command) -> None:
    """Rounded as the run had rounded; fp32 weights would find another loss."""
    bf16 = ("training.precision=bf16", "training.evaluate_lengths=[8]", "training.validation_windows=6")
    assert isoflop("train", "modern", *TINY, *TRAINING, *bf16, "--out", "run").code == 0
    found = strict_json(isoflop("evaluate", "run", "--json").out)
    assert found["sets"] == strict_json(Path("run/run.json").read_text())["result"]["sets"]


def test_generate_from_a_recipe_says_that_weights_are_random(isoflop: Command) -> None:
    Path("tiny.toml").write_text("width = 16\ndepth = 1\nattention.heads = 2")
    ended = isoflop("generate", "tiny.toml", "-n", 4, "--json")
    assert ended.code == 0
    assert len(strict_json(ended.out)["tokens"]) == 4
    assert "the weights are random" in ended.err


def test_a_file_brings_its_training_and_the_command_line_changes_it(isoflop: Command) -> None:
    Path("mine.toml").write_text(
        "width = 16\ndepth = 1\nattention.heads = 2\n[training]\nsteps = 3\nrate = 0.01\nbatch = 4\nlength = 16\n"
        "schedule = { kind = 'wsd', warmup = 1 }\ndata = { source = 'text' }"
    )
    record = strict_json(
        isoflop("train", "mine.toml", "training.schedule.kind=cosine", "training.steps=2", "--json").out
    )
    training = record["training"]
    assert (training["steps"], training["rate"], training["schedule"]["kind"]) == (2, 0.01, "cosine")
    assert Path("runs/run/run.json").exists(), "the folder when --out is absent"


def test_ctrl_c_saves_and_the_printed_command_goes_on_to_the_bit(isoflop: Command, tmp_path: Path) -> None:
    many = [*TRAINING, "training.steps=150", "training.log_every=1", "training.checkpoint_every=10"]
    command = ["train", "modern", *TINY, *many, "--out"]
    assert isoflop(*command, "whole").code == 0
    process = start(*command, "cut", cwd=tmp_path)
    log = tmp_path / "cut" / "metrics.jsonl"
    wait_until(lambda: log.exists() and len(log.read_text().splitlines()) > 5)
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = finish(process)
    assert (code, out) == (130, "")
    assert "is saved" in err
    last = err.splitlines()[-1]
    assert last == f"To continue: isoflop {' '.join(command)} cut"
    assert "Traceback" not in err
    cut = strict_json((tmp_path / "cut" / "run.json").read_text())
    assert cut["status"] == "interrupted"
    assert 5 < cut["progress"]["step"] < 150
    ended = isoflop(*last.split()[3:])
    assert ended.code == 0
    assert f"going on from step {cut['progress']['step']} of 150" in ended.err
    assert_bit_equal(saved(tmp_path / "cut"), saved(tmp_path / "whole"))
    assert metrics(tmp_path / "cut") == metrics(tmp_path / "whole")


@needs_proc
def test_ctrl_c_before_anything_is_there_is_no_traceback(tmp_path: Path) -> None:
    write_text(tmp_path / "text")
    process = start("train", "modern", *TINY, *TRAINING, "--out", "run", cwd=tmp_path)
    wait_until(lambda: b"torch" in Path(f"/proc/{process.pid}/maps").read_bytes())
    os.killpg(process.pid, signal.SIGINT)
    code, out, err = finish(process)
    assert (code, out) == (130, "")
    assert "Traceback" not in err


# ---------------------------------------------------------------------------------------------- study

STUDY = f"""
name = "small"
{TINY_BASE}
[training]
steps = 4
batch = 4
length = 16
rate = 1e-2
log_every = 1
data = {{ source = "text" }}
[arms.alibi]
position = "alibi"
"""


def test_a_study_from_noise_to_report(isoflop: Command, tmp_path: Path) -> None:
    Path("study.toml").write_text(STUDY)
    noise = isoflop("study", "noise", "study.toml", "seeds=3", "--json", "--workers", 1)
    assert noise.code == 0, noise.err
    floor = strict_json(noise.out)
    assert (floor["arm"], floor["n"]) == ("base", 3)
    assert floor["smallest_difference"] > 0
    folder = Path("study/small")
    assert sorted(path.parent.name for path in folder.glob("runs/*/0")) == ["base"]
    base = (folder / "runs/base/0/run.json").stat().st_mtime_ns

    status = strict_json(isoflop("study", "status", folder, "--json").out)
    assert [(row["arm"], row["seed"], row["status"]) for row in status] == [
        (arm, seed, "finished" if arm == "base" else "pending") for seed in (0, 1, 2) for arm in ("base", "alibi")
    ]
    assert "3 of 6 runs are over." in isoflop("study", "status", folder).out

    run = isoflop("study", "run", "study.toml", "seeds=3", "--json", "--workers", 1)
    assert run.code == 0, run.err
    results = strict_json(run.out)
    assert results == strict_json((folder / "results.json").read_text())
    assert results["noise"] == {key: floor[key] for key in ("arm", "n", "mean", "sd", "band")}
    assert (folder / "runs/base/0/run.json").stat().st_mtime_ns == base, "the runs of the noise floor count"
    assert "3 of 6 runs are there already" in run.err
    assert (folder / "report.html").stat().st_size > 10_000

    table = isoflop("study", "report", folder, "--out", tmp_path / "page.html")
    assert (table.code, table.err) == (0, "")
    assert "alibi" in table.out
    assert f"report: {tmp_path / 'page.html'}" in table.out
    assert (tmp_path / "page.html").exists()
    assert strict_json(isoflop("report", folder, "--json").out) == results

    refused = isoflop("study", "run", "study.toml", "seeds=3", "training.steps=5")
    assert (refused.code, refused.out) == (2, "")
    assert "holds another study: the training of arm 'base' differs there (steps)" in refused.err


def test_json_is_all_there_is_on_stdout(isoflop: Command) -> None:
    assert isoflop("train", "modern", *TINY, *TRAINING, "--out", "run").code == 0
    for arguments in (
        ("kinds", "--json"),
        ("kinds", "rope", "--json"),
        ("kinds", "--schema"),
        ("plan", "modern", "--json"),
        ("train", "modern", *TINY, *TRAINING, "--out", "run", "--json"),
        ("generate", "run", "--json", "-n", 3),
        ("data", "list", "--json"),
    ):
        ended = isoflop(*arguments)
        assert ended.code == 0
        strict_json(ended.out)
        assert json.dumps(strict_json(ended.out), indent=2, ensure_ascii=False) + "\n" == ended.out
