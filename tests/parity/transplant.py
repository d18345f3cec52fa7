"""Weights moved from a peer's model into ours, by a map that each test writes down."""

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from isoflop.model import Architecture, Transformer, build


def randomise(module: nn.Module, seed: int = 0) -> nn.Module:
    """Every parameter drawn anew, gains and biases too: defaults of 1 and 0 would hide a gain that is not copied."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator)
            if parameter.ndim > 1:
                parameter.copy_(noise * parameter.shape[-1] ** -0.5)
            else:
                parameter.copy_(0.3 * noise + (0.0 if name.endswith("bias") else 1.0))
    return module.eval()


def transplant(architecture: Architecture, weights: Mapping[str, Tensor], kernel: str | None = None) -> Transformer:
    """Our model with exactly these weights: a name too many or too few is an error."""
    model = build(architecture, kernel=kernel)
    model.load_state_dict(dict(weights), strict=True)
    return model.eval()


def stacked(weights: Mapping[str, Tensor], *names: str) -> Tensor:
    """Matrices of one input, one above the other."""
    return torch.cat([weights[name] for name in names])


def random_tokens(*shape: int, vocab: int, seed: int = 1) -> Tensor:
    """Token ids from a generator of their own."""
    return torch.randint(vocab, shape, generator=torch.Generator().manual_seed(seed))
