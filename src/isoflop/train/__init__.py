"""Training: one loop of plain PyTorch, which can be cut anywhere and goes on as if it had not been."""

from isoflop.train.again import evaluate_run
from isoflop.train.batches import batches, read_corpus
from isoflop.train.checkpoint import CheckpointError, load_model
from isoflop.train.evaluate import Evaluation, evaluate
from isoflop.train.imported import save_imported
from isoflop.train.interrupt import Interrupted
from isoflop.train.log import Reporter
from isoflop.train.loss import linear_cross_entropy
from isoflop.train.optim import AdamW, Optimizer
from isoflop.train.record import RunMismatch
from isoflop.train.run import train
from isoflop.train.schedule import Schedule
from isoflop.train.sets import ValidationSet, validation_sets
from isoflop.train.step import Step, batch_loss, optimise
from isoflop.train.training import Training

__all__ = [
    "AdamW",
    "CheckpointError",
    "Evaluation",
    "Interrupted",
    "Optimizer",
    "Reporter",
    "RunMismatch",
    "Schedule",
    "Step",
    "Training",
    "ValidationSet",
    "batch_loss",
    "batches",
    "evaluate",
    "evaluate_run",
    "linear_cross_entropy",
    "load_model",
    "optimise",
    "read_corpus",
    "save_imported",
    "train",
    "validation_sets",
]
