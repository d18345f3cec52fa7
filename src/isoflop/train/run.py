"""One run: a folder, a loop, and what happens when it is stopped, fails or diverges."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from isoflop.data import AnyCorpus, Batches
from isoflop.files import write_json
from isoflop.model import Architecture, Past, build, parameter_roles
from isoflop.plan import Cost, price
from isoflop.seeds import seed_for
from isoflop.train import checkpoint
from isoflop.train.batches import batches, read_corpus
from isoflop.train.clock import Clock
from isoflop.train.evaluate import Evaluation, evaluate
from isoflop.train.interrupt import Interrupted, Interrupts
from isoflop.train.log import MetricsLog, OnProgress, Reporter
from isoflop.train.optim import load_state, save_state
from isoflop.train.precision import PRECISIONS
from isoflop.train.record import IDENTITY, PARTS, PeakMemory, check_same_run, new_record, now, read_record
from isoflop.train.sets import ValidationSet, batch_rows, validation_sets
from isoflop.train.step import Step, norms_by_block, optimise
from isoflop.train.training import Training

ENDED = frozenset({"finished", "diverged"})
"""A run of this status has nothing left to do: it would come out the same."""


class Diverged(ArithmeticError):  # noqa: N818
    """Inside a run: a number that must be finite is not."""

    def __init__(self, what: str, step: int) -> None:
        super().__init__(f"{what} became non-finite at step {step}")
        self.step = step


def train(
    architecture: Architecture,
    training: Training,
    folder: str | Path,
    *,
    seed: int = 0,
    resume: bool = True,
    corpus: AnyCorpus | None = None,
    cost: Cost | None = None,
    on_progress: OnProgress | None = None,
    device: str | torch.device | None = None,
) -> dict[str, Any]:
    """Train a model into a folder, or go on with the run that is there, bit for bit as if it had never stopped (on a CPU).

    Args:
        folder: gets run.json, metrics.jsonl, tokenizer.json and checkpoint/.
        seed: of the initial weights, of dropout and, with `training.data.seed`, of the order of the data: runs of one
            seed see the same tokens in the same order, and the spread over seeds is that of a whole repetition.
        resume: False starts the same run again from step 0. A folder of another run is refused either way.
        corpus: the loaded `training.data`, where the caller has it already.
        cost: the price of the architecture at `training.length`, where the caller has it already.
        on_progress: told of every logged line and message; None shows progress on stderr.
        device: where to train; None for the GPU if there is one.

    Returns:
        The content of run.json. A run whose loss or gradient is no longer finite ends with status `diverged`; its last
        checkpoint stays as it was.

    Raises:
        SpecError: architecture, training and data do not fit together.
        RunMismatch: the folder holds another run, or files that are no run's.
        CheckpointError: a checkpoint is damaged or cannot be written.
        Interrupted: Ctrl-C or SIGTERM; the state is saved and the next call goes on from it.
    """
    folder = Path(folder)
    corpus = read_corpus(training) if corpus is None else corpus
    for side in architecture.sides:
        side.check_length(training.length, "training.length")
    loader = batches(architecture, training, corpus, seed=data_order(training.data.seed, seed))
    loader.corpus.check_vocab(architecture.vocab)
    sets = validation_sets(architecture, training, corpus, loader)
    cost = price(architecture, training.length) if cost is None else cost
    record = new_record(architecture, training, seed, loader, cost)
    old = read_record(folder)
    if old is not None:
        check_same_run(folder, old, record)
    with contextlib.ExitStack() as stack:
        told = stack.enter_context(Reporter(training.steps)) if on_progress is None else on_progress
        if old is not None and resume and old["status"] in ENDED:
            told(_message(f"{folder}: this run is {old['status']} already", old["progress"]["step"], training.steps))
            return old
        if old is not None and not resume:
            checkpoint.delete(folder)
            (folder / "metrics.jsonl").unlink(missing_ok=True)
        if old is not None and resume:
            record["started"] = old["started"]
        place = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
        return Run(architecture, training, folder, record, loader, sets, cost, told, place).execute()


def data_order(data_seed: int, seed: int) -> int:
    """The loader's seed for a run: another order for each pair of seeds."""
    return seed_for("order", data_seed, seed)


class Run:
    """The state of a run in memory."""

    def __init__(
        self,
        architecture: Architecture,
        training: Training,
        folder: Path,
        record: dict[str, Any],
        loader: Batches,
        sets: Sequence[ValidationSet],
        cost: Cost,
        told: OnProgress,
        device: torch.device,
    ) -> None:
        self.training, self.folder, self.record, self.loader, self.told = training, folder, record, loader, told
        self.sets = sets
        self.found_in_sets: list[dict[str, Any]] = []
        """What the sets came to, after the last step."""
        self.flops_per_token, self.seed = cost.training_flops_per_token, record["seed"]
        self.memory = PeakMemory(device)
        self.model = build(architecture, self.seed, device=device)
        self.roles = parameter_roles(self.model)
        self.masters = PRECISIONS[training.precision](self.model)
        self.optimizer = training.optimizer.build(self.masters.weights, self.roles)
        self.step = 0
        self.clock = Clock(device)
        self.evaluation: tuple[int, Evaluation] | None = None
        self.unread: list[tuple[int, Step]] = []
        self.pasts: list[Past] = []
        """What the last step has left to each micro-batch of the next."""
        self.whole = True
        """Weights, moments and log are those of `step`, not half way to the next."""

    # ------------------------------------------------------------------------------------------ from start to end

    def execute(self) -> dict[str, Any]:
        """Train to the end, and leave a record whatever happens."""
        try:
            self._resume()
            if any(self.loader.dropped):
                self._say(_left_out(self.loader))
            self._write_record("running")
            self.loader.corpus.tokenizer.save_tokenizer(self.folder / "tokenizer.json")
            self.log = MetricsLog(self.folder / "metrics.jsonl", self.step)
            with contextlib.closing(self.log), Interrupts() as interrupts:
                try:
                    self._loop(interrupts)
                except KeyboardInterrupt:
                    raise self._interrupted(interrupts) from None
        except Diverged as error:
            self.step = error.step
            self._write_record("diverged", str(error), ended=True)
        except Interrupted as error:
            self._write_record("interrupted", str(error), ended=True)
            raise
        except Exception as error:
            with contextlib.suppress(OSError):  # the disk may be full: then the error itself must come through
                self._write_record("failed", f"{type(error).__name__}: {error}", ended=True)
            raise
        else:
            self._write_record("finished", ended=True)
        return self.record

    def _loop(self, interrupts: Interrupts) -> None:
        if self.training.compile:
            for tower in self.model.towers:
                for block in tower.blocks:
                    block.compile()
        self.model.train()
        self.clock.start()
        while self.step < self.training.steps:
            if interrupts.received:
                raise KeyboardInterrupt
            self.whole = False
            self._update()
            if any(self._due(every) for every in self._intervals):
                self.clock.stop()
                self._pause()
                self.clock.start()
            self.whole = True
        self.record["result"] = self._result()

    def _update(self) -> None:
        training = self.training
        batch = self.loader.batch(self.step)
        measured = optimise(
            self.model,
            self.masters,
            self.optimizer,
            batch,
            rate=training.rate_at(self.step),
            clip=training.clip_norm,
            accumulate=training.accumulate,
            randomness=(self.seed, self.step),
            pasts=self.pasts,
        )
        self.step += 1
        self.clock.tick()
        if measured is not None:
            self.unread.append((self.step, measured))

    # ------------------------------------------------------------------------------------------ between steps

    @property
    def _intervals(self) -> tuple[int | None, ...]:
        return self.training.log_every, self.training.evaluate_every, self.training.checkpoint_every

    def _due(self, every: int | None) -> bool:
        """Something that happens at multiples of `every` steps, and at the last."""
        return self.step == self.training.steps or (every is not None and self.step % every == 0)

    def _pause(self) -> None:
        self._read(log=self._due(self.training.log_every))
        if self._due(self.training.evaluate_every):
            self._evaluate()
        if self._due(self.training.checkpoint_every):
            self._save()

    def _read(self, *, log: bool) -> None:
        """Fetch what the steps since the last time have measured, in one transfer; stop at the first non-finite."""
        if not self.unread:
            return
        unread, self.unread = self.unread, []
        scalars = torch.stack([value for _, measured in unread for value in (measured.loss.float(), measured.norm)])
        values = torch.cat([scalars, unread[-1][1].norms]).tolist()
        losses, norms = values[: 2 * len(unread) : 2], values[1 : 2 * len(unread) : 2]
        for (step, measured), loss, norm in zip(unread, losses, norms, strict=True):
            for what, value in (("loss", loss), ("gradient norm", norm)):
                if not math.isfinite(value):
                    self._log_train(step, loss, norm, measured.norms.tolist(), measured.names)
                    raise Diverged(what, step)
        step, measured = unread[-1]
        if log and step == self.step:  # a step without targets has measured nothing
            self._log_train(step, losses[-1], norms[-1], values[2 * len(unread) :], measured.names)

    def _log_train(self, step: int, loss: float, norm: float, norms: list[float], names: tuple[str, ...]) -> None:
        self._write_line(
            "train",
            step,
            loss=loss,
            rate=self.training.rate_at(step - 1),
            gradient_norm=norm,
            gradient_norm_by_block=norms_by_block(norms, names),
        )

    def _evaluate(self) -> None:
        rows = batch_rows(self.training, self.training.length)
        found = evaluate(self.model, self.loader, rows, self.training.validation_windows)
        self._write_line("validation", self.step, loss=found.loss, bits_per_byte=found.bits_per_byte)
        if not math.isfinite(found.loss):
            raise Diverged("validation loss", self.step)
        self.evaluation = self.step, found
        if self.step == self.training.steps:
            self.found_in_sets = [one.evaluate(self.model) for one in self.sets]
            for in_set in self.found_in_sets:
                self._write_line("set", self.step, **in_set)

    def _write_line(self, kind: str, step: int, **numbers: Any) -> None:
        line = {"kind": kind, "step": step, **numbers, **self._spent(step)}
        self.told({**self.log.write(line), "steps": self.training.steps})

    def _spent(self, step: int) -> dict[str, Any]:
        """Tokens without those that fill rows up, and the FLOPs of all: filling is computed too."""
        computed = step * self.training.batch * self.training.length
        flops = computed * self.flops_per_token
        return {"tokens": self.loader.tokens(step), "flops": flops, "seconds": self.clock.seconds}

    # ------------------------------------------------------------------------------------------ what is on disk

    def _save(self) -> None:
        state = {
            **{name: self.record[name] for name in IDENTITY},
            "step": self.step,
            "clock": {"seconds": self.clock.seconds, "steps": self.clock.steps},
            "evaluation": self.evaluation and {"step": self.evaluation[0], **self.evaluation[1]._asdict()},
            "sets": self.found_in_sets,
            "torch": torch.__version__,
        }
        weights = {**checkpoint.named_tensors(self.model), **self.masters.weights}
        checkpoint.save(
            self.folder, weights, save_state(self.optimizer, self.masters.weights), state, _past_tensors(self.pasts)
        )
        self._write_record("running")

    def _resume(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        found = checkpoint.find(self.folder)
        if found is None:
            return
        state = found.state
        if any(state.get(name) != self.record[name] for name in IDENTITY):
            raise checkpoint.CheckpointError(f"{found.path} belongs to another run than {self.folder / 'run.json'}")
        own = {**checkpoint.named_tensors(self.model), **self.masters.weights}
        checkpoint.restore(own, found.weights(), found.path / checkpoint.MODEL)
        self.masters.publish()
        load_state(self.optimizer, self.masters.weights, found.optimizer())
        self.pasts = _pasts(found.past(), self.training.accumulate, self.model.head_weight.device)
        self.step = state["step"]
        self.clock.seconds, self.clock.steps = state["clock"]["seconds"], state["clock"]["steps"]
        if state["evaluation"]:
            values = dict(state["evaluation"])
            self.evaluation = values.pop("step"), Evaluation(**values)
        self.found_in_sets = state.get("sets", [])
        self._say(f"going on from step {self.step} of {self.training.steps}, found in {found.path}")
        if state["torch"] != torch.__version__:
            self._say(
                f"the checkpoint was written by torch {state['torch']}, this is {torch.__version__}: the rest may differ in the last bits"
            )

    def _interrupted(self, interrupts: Interrupts) -> Interrupted:
        cause = interrupts.received or "Ctrl-C"
        self.clock.stop()
        if self.whole:
            self._read(log=False)
            self._save()
            saved = f"the state of step {self.step} is saved"
        else:
            saved = "the last complete checkpoint is untouched"
        again = f"train into {self.folder} again to go on"
        self._say(f"stopped by {cause}; {saved}; {again}")
        return Interrupted(f"stopped by {cause} at step {self.step}; {saved}; {again}")

    def _result(self) -> dict[str, Any]:
        assert self.evaluation is not None, "the last step is always evaluated"
        found, seconds = self.evaluation[1], self.clock.step_seconds
        return {
            **found._asdict(),
            "step_seconds": seconds,
            "tokens_per_second": seconds and self.loader.tokens(self.step) / self.step / seconds,
            "peak_memory_bytes": self.memory.read(),
            "sets": self.found_in_sets,
        }

    def _write_record(self, status: str, reason: str | None = None, *, ended: bool = False) -> None:
        progress = {"step": self.step, "steps": self.training.steps, **self._spent(self.step)}
        ending = now() if ended else None
        self.record.update(status=status, reason=reason, progress=progress, ended=ending)
        write_json(self.folder / "run.json", self.record)

    def _say(self, text: str) -> None:
        self.told(_message(text, self.step, self.training.steps))


def _past_tensors(pasts: Sequence[Past]) -> dict[str, Tensor]:
    """What is left to every micro-batch by name, for a file."""
    return {f"{part}.{name}": tensor for part, past in enumerate(pasts) for name, tensor in past.tensors().items()}


def _pasts(tensors: Mapping[str, Tensor], parts: int, device: torch.device) -> list[Past]:
    """The inverse of `_past_tensors`."""
    of_part: list[dict[str, Tensor]] = [{} for _ in range(parts)]
    for path, tensor in tensors.items():
        part, _, name = path.partition(".")
        of_part[int(part)][name] = tensor.to(device)
    return [Past.of(own) for own in of_part]


def _left_out(loader: Batches) -> str:
    counts = " and ".join(f"{count} {part}" for count, part in zip(loader.dropped, PARTS, strict=True))
    return f"left out, as longer than {loader.length} tokens: {counts} pairs"


def _message(text: str, step: int, steps: int) -> dict[str, Any]:
    return {"kind": "message", "text": text, "step": step, "steps": steps}
