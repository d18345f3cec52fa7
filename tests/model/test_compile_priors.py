"""torch.compile (inductor) on local priors: outputs and gradients of every parameter, in bf16. See `test_compile`."""

from typing import Any

import pytest
import torch
from test_compile import LENGTH, WIDTH, assert_same_gradients, small
from torch import Tensor, nn

from isoflop.model import build
from isoflop.model.attend import Dense
from isoflop.model.places import Places

GAUSS = {"kind": "gaussian"}
PRIORS: dict[str, Any] = {
    "penalty": {
        "heads": [1],
        "measure": {**GAUSS, "sigma_is": "predicted", "centre": "before"},
        "gamma_is": "per_head",
    },
    "mixture": {"kind": "mixture", "beta_is": "predicted", "measure": {**GAUSS, "offset_is": "learned"}},
    "multiplicative": {
        "kind": "multiplicative",
        "on": "absolute",
        "decay": "softmax",
        "measure": {**GAUSS, "sigma_is": "per_head"},
    },
}


class AllPriors(nn.Module):
    """The attention sublayer with a prior of each stage, on the same input."""

    def __init__(self) -> None:
        super().__init__()
        models = [build(small(**{"attention.priors": prior}), dtype=torch.bfloat16) for prior in PRIORS.values()]
        self.kinds = nn.ModuleList(model.blocks[0].attention for model in models)

    def forward(self, x_BTD: Tensor) -> Tensor:
        positions_BT = torch.arange(x_BTD.shape[1])[None]
        attend = Dense(Places(positions_BT, positions_BT, consecutive=True), "eager", self.training)
        return torch.stack([attention(x_BTD, attend) for attention in self.kinds])


@pytest.mark.slow
def test_attention_with_priors_in_bf16() -> None:
    torch._dynamo.reset()
    torch.manual_seed(0)
    module = AllPriors()
    with torch.no_grad():
        for name, parameter in module.named_parameters():
            if name.endswith(("inner", "outer")):
                parameter.normal_(std=0.5)
    x_BTD = torch.randn(2, LENGTH, WIDTH).bfloat16()
    compiled = torch.compile(
        module
    )  # the sums of a normalised decay are a loop over the length, which breaks the graph
    assert_same_gradients(module, lambda: module(x_BTD), lambda: compiled(x_BTD))
    torch._dynamo.reset()
