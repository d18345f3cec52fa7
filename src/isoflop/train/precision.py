"""Number formats of training: what the model computes in, and what the optimizer updates.

fp32: both are the model's own parameters. bf16: the model computes in bf16, and the optimizer updates fp32 copies (the
*masters*), because a bf16 weight has 8 significant bits and swallows any update below half a unit in its last place:
w = 1 minus a hundred times 0.001 stays exactly 1. Gradients of several micro-batches are summed in fp32.
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor, nn

_add = torch._foreach_add_  # pyright: ignore[reportPrivateImportUsage]
_copy = torch._foreach_copy_  # pyright: ignore[reportPrivateImportUsage]

Precision = Literal["fp32", "bf16"]


class Masters:
    """The fp32 weights of a model by name, which the optimizer updates and checkpoints keep. Here: its own parameters."""

    dtype = torch.float32
    """What the model computes in."""

    def __init__(self, model: nn.Module) -> None:
        self.weights: dict[str, Tensor] = dict(model.named_parameters())

    def clear(self) -> None:
        """Forget gradients, before the first micro-batch of a step."""
        for weight in self.weights.values():
            weight.grad = None

    def collect(self) -> None:
        """Take the gradients of one micro-batch, after its backward pass. Autograd has added them up already."""

    def gradients(self) -> dict[str, Tensor]:
        """The step's gradients, in fp32, of the weights that took part in it."""
        return {name: weight.grad for name, weight in self.weights.items() if weight.grad is not None}

    def publish(self) -> None:
        """Let the model compute with the updated weights. They are its own."""


class CopiedMasters(Masters):
    """fp32 copies of the weights of a model that computes in bf16. The copies are exact: fp32 draws, rounded once.

    `model` must still hold its fp32 values; it is converted here.
    """

    dtype = torch.bfloat16

    def __init__(self, model: nn.Module) -> None:
        super().__init__(model)
        fp32 = {name: weight.detach().clone() for name, weight in self.weights.items()}
        model.to(self.dtype)
        self._computing = dict(model.named_parameters())
        self.weights = fp32

    def clear(self) -> None:
        super().clear()
        for weight in self._computing.values():
            weight.grad = None

    def collect(self) -> None:
        fresh, sums, parts = [], [], []
        for name, weight in self._computing.items():
            if weight.grad is None:
                continue
            master = self.weights[name]
            if master.grad is None:
                master.grad = torch.empty_like(master)
                fresh.append((master.grad, weight.grad))
            else:
                sums.append(master.grad)
                parts.append(weight.grad)
            weight.grad = None
        if fresh:
            buffers, gradients = zip(*fresh, strict=True)
            _copy(buffers, gradients)
        if sums:
            _add(sums, [part.float() for part in parts])

    @torch.no_grad()
    def publish(self) -> None:
        _copy(list(self._computing.values()), list(self.weights.values()))


PRECISIONS: dict[Precision, type[Masters]] = {"fp32": Masters, "bf16": CopiedMasters}
