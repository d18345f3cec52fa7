"""One run: a folder, a loop, and what happens when it is stopped, fails or diverges."""

from __future__ import annotations

import contextlib
import math
from pathlib import Path
from typing import Any

import torch

from isoflop.data import AnyCorpus, Batches, load, make_loader
from isoflop.files import write_json
from isoflop.model import Architecture, build, parameter_roles
from isoflop.plan import Cost, price
from isoflop.seeds import seed_for
from isoflop.train import checkpoint
from isoflop.train.clock import Clock
from isoflop.train.evaluate import Evaluation, evaluate
from isoflop.train.interrupt import Interrupted, Interrupts
from isoflop.train.log import MetricsLog, OnProgress, Reporter
from isoflop.train.optim import load_state, save_state
from isoflop.train.precision import PRECISIONS
from isoflop.train.record import IDENTITY, PeakMemory, check_same_run, new_record, now, read_record
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
    corpus = load(training.data) if corpus is None else corpus
    architecture.check_length(training.length, "training.length")
    data = training.data
    order = data_order(data.seed, seed)
    loader = make_loader(data, corpus, form=architecture.form, batch=training.batch, length=training.length, seed=order)
    loader.corpus.check_vocab(architecture.vocab)
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
        return Run(architecture, training, folder, record, loader, cost, told, place).execute()


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
        cost: Cost,
        told: OnProgress,
        device: torch.device,
    ) -> None:
        self.training, self.folder, self.record, self.loader, self.told = training, folder, record, loader, told
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
        self.whole = True
        """Weights, moments and log are those of `step`, not half way to the next."""

    # ------------------------------------------------------------------------------------------ from start to end

    def execute(self) -> dict[str, Any]:
        """Train to the end, and leave a record whatever happens."""
        try:
            self._resume()
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
            for block in self.model.blocks:
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
            gradient_norm_by_block=norms_by_block(norms, names, self.roles, len(self.model.blocks)),
        )

    def _evaluate(self) -> None:
        rows = self.training.batch // self.training.accumulate
        found = evaluate(self.model, self.loader, rows, self.training.validation_windows)
        self._write_line("validation", self.step, loss=found.loss, bits_per_byte=found.bits_per_byte)
        if not math.isfinite(found.loss):
            raise Diverged("validation loss", self.step)
        self.evaluation = self.step, found

    def _write_line(self, kind: str, step: int, **numbers: Any) -> None:
        line = {"kind": kind, "step": step, **numbers, **self._spent(step)}
        self.told({**self.log.write(line), "steps": self.training.steps})

    def _spent(self, step: int) -> dict[str, Any]:
        tokens = step * self.training.batch * self.training.length
        return {"tokens": tokens, "flops": tokens * self.flops_per_token, "seconds": self.clock.seconds}

    # ------------------------------------------------------------------------------------------ what is on disk

    def _save(self) -> None:
        state = {
            **{name: self.record[name] for name in IDENTITY},
            "step": self.step,
            "clock": {"seconds": self.clock.seconds, "steps": self.clock.steps},
            "evaluation": self.evaluation and {"step": self.evaluation[0], **self.evaluation[1]._asdict()},
            "torch": torch.__version__,
        }
        weights = {**checkpoint.named_tensors(self.model), **self.masters.weights}
        checkpoint.save(self.folder, weights, save_state(self.optimizer, self.masters.weights), state)
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
        self.step = state["step"]
        self.clock.seconds, self.clock.steps = state["clock"]["seconds"], state["clock"]["steps"]
        if state["evaluation"]:
            values = dict(state["evaluation"])
            self.evaluation = values.pop("step"), Evaluation(**values)
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
            "tokens_per_second": seconds and self.training.batch * self.training.length / seconds,
            "peak_memory_bytes": self.memory.read(),
        }

    def _write_record(self, status: str, reason: str | None = None, *, ended: bool = False) -> None:
        progress = {"step": self.step, "steps": self.training.steps, **self._spent(self.step)}
        ending = now() if ended else None
        self.record.update(status=status, reason=reason, progress=progress, ended=ending)
        write_json(self.folder / "run.json", self.record)

    def _say(self, text: str) -> None:
        self.told(_message(text, self.step, self.training.steps))


def _message(text: str, step: int, steps: int) -> dict[str, Any]:
    return {"kind": "message", "text": text, "step": step, "steps": steps}
