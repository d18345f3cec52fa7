"""What is saved, and what is refused."""

import json
from pathlib import Path

import pytest
import safetensors.torch
import torch
from safetensors import safe_open

from isoflop.model import build
from isoflop.train import CheckpointError, load_model
from isoflop.train.checkpoint import find, named_tensors, restore, save
from tiny_runs import assert_bit_equal, saved, tiny_architecture, tiny_run

STATE = {"step": 1}
TENSORS = {"a": torch.arange(4.0), "b": torch.eye(3)}


def test_round_trip_of_names_values_and_state(tmp_path: Path) -> None:
    save(tmp_path, TENSORS, {"a::exp_avg": torch.ones(4)}, STATE)
    found = find(tmp_path)
    assert found is not None
    assert_bit_equal(found.weights(), TENSORS)
    assert_bit_equal(found.optimizer(), {"a::exp_avg": torch.ones(4)})
    assert found.state["step"] == 1
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint"]


def test_a_folder_without_any_has_none(tmp_path: Path) -> None:
    assert find(tmp_path) is None


def test_the_one_that_stepped_aside_is_found(tmp_path: Path) -> None:
    save(tmp_path, TENSORS, {}, STATE)
    (tmp_path / "checkpoint").rename(tmp_path / "checkpoint.old-x")
    found = find(tmp_path)
    assert found is not None
    assert found.state["step"] == 1


@pytest.mark.parametrize("name", ["model.safetensors", "optimizer.safetensors"])
def test_truncation_is_named(tmp_path: Path, name: str) -> None:
    save(tmp_path, TENSORS, TENSORS, STATE)
    file = tmp_path / "checkpoint" / name
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(CheckpointError, match=rf"{name} is truncated or missing: \d+ bytes of \d+"):
        find(tmp_path)


def test_a_flipped_bit_is_noticed(tmp_path: Path) -> None:
    save(tmp_path, TENSORS, TENSORS, STATE)
    file = tmp_path / "checkpoint" / "model.safetensors"
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)
    found = find(tmp_path)
    assert found is not None
    with pytest.raises(CheckpointError, match=r"model\.safetensors is damaged"):
        found.weights()


def test_state_of_another_program_is_refused(tmp_path: Path) -> None:
    (tmp_path / "checkpoint").mkdir()
    (tmp_path / "checkpoint" / "state.json").write_text(json.dumps({"epoch": 3}))
    with pytest.raises(CheckpointError, match="no checkpoint of this program"):
        find(tmp_path)


def test_masters_are_saved_in_fp32_and_a_tied_matrix_once(tmp_path: Path) -> None:
    tiny_run(tmp_path, precision="bf16", steps=2)
    with safe_open(tmp_path / "checkpoint" / "model.safetensors", "pt") as file:
        assert {file.get_tensor(name).dtype for name in file.keys()} == {torch.float32}  # noqa: SIM118
        assert sorted(file.keys()) == sorted(name for name, _ in build(tiny_architecture()).named_parameters())
        assert len([name for name in file.keys() if file.get_tensor(name).shape == (256, 16)]) == 1  # noqa: SIM118


def test_load_model_gives_the_trained_weights_in_eval_mode(tmp_path: Path) -> None:
    tiny_run(tmp_path, steps=2)
    model, architecture, codec = load_model(tmp_path)
    weights = safetensors.torch.load_file(tmp_path / "checkpoint" / "model.safetensors")
    assert_bit_equal({name: weight.data for name, weight in model.named_parameters()}, weights)
    assert architecture == tiny_architecture()
    assert codec.decode(codec.encode("größer")) == "größer"
    assert not model.training


def test_load_model_names_what_is_missing(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"no such file: .*run\.json"):
        load_model(tmp_path)
    tiny_run(tmp_path, steps=2)
    (tmp_path / "checkpoint").rename(tmp_path / "elsewhere")
    with pytest.raises(CheckpointError, match="no complete checkpoint"):
        load_model(tmp_path)


def test_load_model_refuses_weights_of_another_architecture(tmp_path: Path) -> None:
    tiny_run(tmp_path / "a", steps=2)
    tiny_run(tmp_path / "b", steps=2, architecture=tiny_architecture(depth=3))
    for name in saved(tmp_path / "a"):
        assert name in saved(tmp_path / "b")
    (tmp_path / "a" / "run.json").write_bytes((tmp_path / "b" / "run.json").read_bytes())
    with pytest.raises(CheckpointError, match="another architecture"):
        load_model(tmp_path / "a")


def test_restore_copies_into_place() -> None:
    model = build(tiny_architecture(), seed=0)
    other = build(tiny_architecture(), seed=1)
    own = named_tensors(model)
    restore(own, named_tensors(other), "here")
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters(), strict=True))
