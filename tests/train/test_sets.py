"""Validation at other lengths and on further sets of a task, against logits and greedy decoding."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.nn.functional as F

from isoflop.data import ONE_ROW, Batches, Data, MaskedLoader, PairCorpus, PairLoader, load, make_loader
from isoflop.model import Architecture, Transformer, build
from isoflop.spec import SpecError
from isoflop.train import Training, evaluate, load_model, train, validation_sets
from isoflop.train.evaluate import first_places
from tiny_runs import IDLE_PROGRESS, metrics, strict_json, tiny_architecture, tiny_corpus, tiny_run, tiny_training

LENGTHS = (8, 16, 40)
PAIRS = {"kind": "copy", "symbols": 5, "longest": 3, "extrapolate": [4, 6], "items": 40, "validation_items": 12}


def text_losses(model: Transformer, length: int, places: int) -> torch.Tensor:
    """The loss of each of the first tokens of the validation text, read in windows of a length, one after the other."""
    text = torch.from_numpy(tiny_corpus().validation.astype("int64"))
    found = []
    for start in range(0, places, length):
        ids = text[start : start + length + 1]
        with torch.no_grad():
            found.append(F.cross_entropy(model(ids[None, :-1])[0], ids[1:], reduction="none"))
    return torch.cat(found)[:places]


@pytest.mark.parametrize("windows", [5, None])
def test_the_same_targets_at_every_length(tmp_path: Path, windows: int | None) -> None:
    record = tiny_run(tmp_path, evaluate_lengths=LENGTHS, validation_windows=windows)
    model, _, _ = load_model(tmp_path)
    places = 80 if windows else len(tiny_corpus().validation) - 1
    assert [row["set"] for row in record["result"]["sets"]] == ["length 8", "length 16", "length 40"]
    for length, row in zip(LENGTHS, record["result"]["sets"], strict=True):
        losses = text_losses(model, length, places)
        assert (row["length"], row["targets"], row["bytes"]) == (length, places, record["result"]["bytes"])
        assert row["loss"] == pytest.approx(losses.mean().item(), rel=1e-5)
        place = torch.arange(places) % length
        edges = [0, *(edge for edge in LENGTHS if edge < length), length]
        for part, first, last in zip(row.get("by_position", []), edges, edges[1:], strict=False):
            inside = (first <= place) & (place < last)
            assert (part["from"], part["to"], part["targets"]) == (first, last, int(inside.sum()))
            assert part["loss"] == pytest.approx(losses[inside].mean().item(), rel=1e-5)
        assert len(row.get("by_position", [None])) == len(edges) - 1
    for name in ("loss", "bits_per_byte", "targets", "bytes"):
        assert record["result"]["sets"][1][name] == pytest.approx(record["result"][name], rel=1e-6)


def test_sets_are_in_the_record_the_log_and_the_progress(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    record = tiny_run(tmp_path, evaluate_lengths=[8, 40], evaluate_every=4, on_progress=told.append)
    assert strict_json((tmp_path / "run.json").read_text()) == record
    lines = [line for line in metrics(tmp_path) if line["kind"] == "set"]
    assert [(line["step"], line["set"]) for line in lines] == [(8, "length 8"), (8, "length 40")]
    for line, row in zip(lines, record["result"]["sets"], strict=True):
        assert line.items() >= row.items()
    assert [line["set"] for line in told if line["kind"] == "set"] == ["length 8", "length 40"]


def test_a_run_cut_after_its_last_step_keeps_its_sets(tmp_path: Path) -> None:
    record = tiny_run(tmp_path, evaluate_lengths=[8, 40])
    cut = {**record, "status": "interrupted", "result": None}
    (tmp_path / "run.json").write_text(json.dumps(cut))
    assert tiny_run(tmp_path, evaluate_lengths=[8, 40])["result"]["sets"] == record["result"]["sets"]


def test_no_set_is_declared(tmp_path: Path) -> None:
    assert tiny_run(tmp_path)["result"]["sets"] == []
    assert "evaluate_lengths" not in tiny_training().dump()  # runs from before keep their digest


def test_a_loss_beyond_training_that_is_not_finite_is_null_and_flagged(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Training itself has not diverged."""
    encode = Transformer.encode

    def broken(model: Transformer, tokens_BT: torch.Tensor, *rest: Any, **options: Any) -> torch.Tensor:
        found = encode(model, tokens_BT, *rest, **options)
        return found * torch.nan if tokens_BT.shape[1] == 40 else found

    monkeypatch.setattr(Transformer, "encode", broken)
    record = tiny_run(tmp_path, evaluate_lengths=[8, 40])
    good, bad = strict_json((tmp_path / "run.json").read_text())["result"]["sets"]
    assert (record["status"], good["loss"] > 0) == ("finished", True)
    assert (bad["loss"], bad["bits_per_byte"], bad["nonfinite"]) == (None, None, ["loss", "bits_per_byte"])


def targets_of(loader: Batches, places: int) -> list[torch.Tensor]:
    return [batch.targets_BT.flatten() for batch in first_places(loader.validation(3), places)]


@pytest.mark.parametrize("length", [3, 16, 50])
def test_an_encoder_has_the_same_targets_at_every_length(length: int) -> None:
    data = Data.parse({"source": "stdlib", "objective": "masked"})
    corpus = tiny_corpus()
    model = build(tiny_architecture(form="encoder", vocab=257))
    made = [make_loader(data, corpus, form="encoder", batch=4, length=size, seed=0) for size in (length, 16)]
    assert all(isinstance(one, MaskedLoader) for one in made)
    targets = [targets_of(one, 333) for one in made]
    assert torch.cat(targets[0])[:333].equal(torch.cat(targets[1])[:333])
    training = tiny_training(evaluate_lengths=sorted({length, 16, 17}), data=data, validation_windows=None)
    sets = validation_sets(model.architecture, training, corpus, made[1])
    found = [one.evaluate(model) for one in sets]
    assert len({(row["targets"], row["bytes"]) for row in found}) == 1
    whole = torch.cat(targets_of(made[1], len(corpus.validation) - 1))
    assert found[0]["targets"] == int((whole != -100).sum())


# ------------------------------------------------------------------------------------------- pairs


def pair_run(folder: Path, form: str = "decoder", width: int = 16, **changes: Any) -> dict[str, Any]:
    fields = {"data": {"source": PAIRS}, "length": 7, "steps": 120, "batch": 16, "rate": 0.01, "log_every": 120}
    training = Training(**{**fields, **changes})
    return train(
        Architecture(vocab=7, form=form, width=width, depth=1, attention={"heads": 2}),
        training,
        folder,
        on_progress=IDLE_PROGRESS,
        device="cpu",
    )


@pytest.mark.parametrize(("form", "longer"), [("decoder", [7, 9, 13]), ("encoder_decoder", [7, 7, 7])])
def test_exact_match_is_what_greedy_decoding_writes(tmp_path: Path, form: str, longer: list[int]) -> None:
    more = {"data": {"source": {**PAIRS, "items": 80}}, "batch": 32, "steps": 300, "width": 32}
    record = pair_run(tmp_path, form, **({} if form == "decoder" else more))
    model, _, codec = load_model(tmp_path)
    corpus = load(Training.parse(record["training"]).data)
    assert isinstance(corpus, PairCorpus)
    splits = {"validation": corpus.validation, **corpus.sets}
    rows = record["result"]["sets"]
    assert [(row["set"], row["length"]) for row in rows] == [
        *zip(("validation", "size 4", "size 6"), longer, strict=True)
    ]
    for row, split in zip(rows, splits.values(), strict=True):
        right = 0
        for index in range(len(split)):
            source, target = split[index]
            ids = source.tolist()
            flat = {"prompts": [[*ids, corpus.separator]]}
            given = flat if form == "decoder" else {"prompts": [[codec.end_id]], "sources": [ids]}
            [new] = model.generate(new_tokens=len(target) + 1, stop={codec.end_id}, **given)
            right += new == target.tolist()  # the end id, which closes it, is not part of the result
        assert row["exact_match"] == right / len(split)
        assert row["targets"] == int((split.target_sizes + 1).sum())
        assert row["exact_match"] <= row["token_accuracy"] <= 1
    assert rows[0]["exact_match"] > rows[-1]["exact_match"]  # so that both answers were seen
    assert rows[0]["loss"] == record["result"]["loss"]


def test_tokens_are_those_of_pairs_and_flops_those_of_rows(tmp_path: Path) -> None:
    record = pair_run(tmp_path, steps=5)
    corpus = load(Training.parse(record["training"]).data)
    assert isinstance(corpus, PairCorpus)
    per_epoch = int((corpus.train.source_sizes + corpus.train.target_sizes + 1).sum())
    progress = record["progress"]
    assert progress["tokens"] == 2 * per_epoch < 5 * 16 * 7  # 80 of 40 pairs
    assert progress["flops"] == 5 * 16 * 7 * record["cost"]["training_flops_per_token"]
    result = record["result"]
    assert result["tokens_per_second"] == pytest.approx(progress["tokens"] / 5 / result["step_seconds"])


def test_pairs_that_are_left_out_are_reported(tmp_path: Path) -> None:
    """A pair of three symbols needs seven tokens. The sets of the task are as long as they need to be."""
    told: list[dict[str, Any]] = []
    training = Training(data={"source": {**PAIRS, "symbols": 9}}, length=5, steps=1, batch=2, rate=0.01)
    architecture = Architecture(vocab=11, width=16, depth=1, attention={"heads": 2})
    record = train(architecture, training, tmp_path, on_progress=told.append, device="cpu")
    corpus = load(training.data)
    assert isinstance(corpus, PairCorpus)
    long = [int((split.source_sizes == 3).sum()) for split in (corpus.train, corpus.validation)]
    assert record["dropped"] == {"training": long[0], "validation": long[1]}
    assert min(long) > 0
    text = f"left out, as longer than 5 tokens: {long[0]} training and {long[1]} validation pairs"
    assert text in [line["text"] for line in told if line["kind"] == "message"]


def test_nothing_is_left_out_of_a_text(tmp_path: Path) -> None:
    told: list[dict[str, Any]] = []
    assert tiny_run(tmp_path, on_progress=told.append)["dropped"] == {"training": 0, "validation": 0}
    assert not any("left out" in line.get("text", "") for line in told)


# ------------------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"evaluate_lengths": [16, 16]}, "evaluate_lengths: must hold at least one length, in rising order"),
        ({"evaluate_lengths": []}, "evaluate_lengths: must hold at least one length"),
        ({"evaluate_lengths": [0, 4]}, "evaluate_lengths.0: "),
        (
            {"evaluate_lengths": [8], "data": {"source": "task:copy"}},
            "evaluate_lengths: are of windows of a text, and 'task:copy' gives pairs, which are not cut; longer ones are",
        ),
    ],
    ids=str,
)
def test_what_cannot_be_declared(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(SpecError) as caught:
        tiny_training(**changes)
    assert str(caught.value).startswith(message)


def test_positions_that_end_are_refused_before_training(tmp_path: Path) -> None:
    short = tiny_architecture(position={"kind": "learned", "length": 16})
    with pytest.raises(SpecError, match=r"^training.evaluate_lengths 40 is beyond the 16 positions"):
        tiny_run(tmp_path / "a", architecture=short, evaluate_lengths=[8, 40])
    assert not (tmp_path / "a").exists()
    long = tiny_architecture(position={"kind": "learned", "length": 40})
    record = tiny_run(tmp_path / "b", architecture=long, evaluate_lengths=[8, 40])
    assert record["result"]["sets"][1]["length"] == 40


def test_a_set_of_pairs_beyond_the_positions_is_refused() -> None:
    training = Training(data={"source": PAIRS}, length=7, steps=1, rate=0.1)
    corpus = load(training.data)
    loader = make_loader(training.data, corpus, form="decoder", batch=16, length=7, seed=0)
    assert isinstance(loader, PairLoader)
    short = Architecture(vocab=7, width=16, attention={"heads": 2}, position={"kind": "learned", "length": 9})
    with pytest.raises(SpecError, match=r"^'size 6' of training.data.source: length 13 is beyond the 9 positions"):
        validation_sets(short, training, corpus, loader)


def test_a_text_too_short_for_a_window_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        SpecError, match=r"^training.evaluate_lengths 1000000: training.data.source: the training split .* must hold"
    ):
        tiny_run(tmp_path, evaluate_lengths=[8, 1_000_000])


def test_a_text_without_a_target_is_refused_in_words() -> None:
    class NoTargets(PairLoader):
        def validation(self, batch: int | None = None) -> Any:
            for part in super().validation(batch):
                part.targets_BT.fill_(-100)
                yield part

    corpus = load(Data.parse({"source": PAIRS}))
    assert isinstance(corpus, PairCorpus)
    model = build(Architecture(vocab=7, width=16, attention={"heads": 2}))
    with pytest.raises(ValueError, match="the validation text holds no target to evaluate; evaluate on more windows"):
        evaluate(model, NoTargets(corpus, layout=ONE_ROW, length=9), 4)
