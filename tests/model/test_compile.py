"""torch.compile (inductor): the same outputs and the same gradients as without, and few compilations.

Inductor on a CPU gives silently wrong gradients for some ways of writing rotary positions in 16 bit, so gradients are
compared for every position kind and every kernel in bf16. To keep this short, the attention sublayers of all kinds are one
graph, whole models are one block deep, and fp32 is compared for one model alone.
"""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._dynamo.testing import CompileCounter

import isoflop
from isoflop.model import Architecture, Transformer, build
from isoflop.model.attend import Dense
from isoflop.model.places import Places
from models import TRAINING_KERNELS

WIDTH, HEADS, VOCAB, LENGTH = 32, 2, 64, 40
# Norm of the difference against the norm; in bf16 the compiled model rounds in other places (relative 2^-9 = 2e-3 each).
TOLERANCE = {torch.float32: 1e-5, torch.bfloat16: 3e-2}
IN_ATTENTION: dict[str, Any] = {
    "half": {"kind": "rope", "layout": "half"},
    "interleaved": {"kind": "rope", "layout": "interleaved"},
    "partial": {"kind": "rope", "layout": "half", "fraction": 0.5},
    "yarn": {"kind": "rope", "scaling": "yarn"},
    "alibi": "alibi",
    "t5": {"kind": "t5", "blocks_share": False},
    "relative": {"kind": "relative", "reach": 3, "query": True},
    "relative-scores": {"kind": "relative", "reach": 3, "query": True, "value": False},
    "transformer_xl": {"kind": "transformer_xl", "blocks_share": False},
}


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Iterator[None]:
    torch._dynamo.reset()
    torch.manual_seed(0)
    yield
    torch._dynamo.reset()


def small(recipe: str = "modern", **changes: Any) -> Architecture:
    sizes = {"width": WIDTH, "depth": 1, "vocab": VOCAB, "attention.heads": HEADS, "ffn.hidden": 48, "dropout": 0.0}
    if recipe == "modern":
        sizes["ffn.multiple"] = 1
    return isoflop.load(recipe, **{**sizes, **changes})


def assert_near(mine: Tensor, theirs: Tensor, name: str) -> None:
    assert mine.isfinite().all(), name
    error = (mine.double() - theirs.double()).norm() / theirs.double().norm()
    assert error < TOLERANCE[theirs.dtype], f"{name}: {error:.2g}"


def assert_same_gradients(module: nn.Module, eager: Callable[[], Tensor], compiled: Callable[[], Tensor]) -> None:
    """Outputs and the gradient of every parameter, without the compiler and with it."""
    out = eager().detach()
    weight = torch.randn_like(out)

    def gradients(run: Callable[[], Tensor]) -> tuple[Tensor, dict[str, Tensor]]:
        module.zero_grad()
        result = run()
        (result.float() * weight.float()).sum().backward()
        return result.detach(), {name: parameter.grad.clone() for name, parameter in module.named_parameters()}

    (mine, my_gradients), (theirs, their_gradients) = gradients(compiled), gradients(eager)
    assert_near(mine, theirs, "output")
    for name, gradient in their_gradients.items():
        assert gradient.abs().max() > 0, name
        assert_near(my_gradients[name], gradient, name)


class AllAttentions(nn.Module):
    """The attention sublayer of each position kind that a kernel can run, on the same input."""

    def __init__(self, kernel: str, dtype: torch.dtype) -> None:
        super().__init__()
        models = [build(small(position=kind), dtype=dtype) for kind in IN_ATTENTION.values()]
        sublayers = [model.blocks[0].attention for model in models]
        able = TRAINING_KERNELS[kernel].stages
        self.kinds = nn.ModuleList(sublayer for sublayer in sublayers if sublayer.scoring.stages <= able)
        self.kernel = kernel

    def forward(self, x_BTD: Tensor) -> Tensor:
        positions_BT = torch.arange(x_BTD.shape[1])[None]
        attend = Dense(Places(positions_BT, positions_BT, consecutive=True), self.kernel, self.training)
        return torch.stack([attention(x_BTD, attend) for attention in self.kinds])


@pytest.mark.slow
@pytest.mark.parametrize("kernel", list(TRAINING_KERNELS))
def test_attention_of_every_position_kind_in_bf16(kernel: str) -> None:
    module = AllAttentions(kernel, torch.bfloat16)
    x_BTD = torch.randn(2, LENGTH, WIDTH).bfloat16()
    loops = kernel in {"banded", "chunked"}  # over the length: they break the graph and run as they are
    compiled = torch.compile(module, fullgraph=not loops)
    assert_same_gradients(module, lambda: module(x_BTD), lambda: compiled(x_BTD))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("recipe", "kernel", "dtype"),
    [("modern", "sdpa", torch.float32), ("original_2017", "eager", torch.bfloat16)],
    ids=["rope-float32", "sinusoidal-bfloat16"],
)
def test_whole_model(recipe: str, kernel: str, dtype: torch.dtype) -> None:
    change = {"attention.dropout": 0.0, "form": "decoder"}
    model = build(small(recipe, **change), dtype=dtype, kernel=kernel)
    tokens_BT = torch.randint(VOCAB, (2, LENGTH))
    compiled = torch.compile(model, fullgraph=True)
    assert_same_gradients(model, lambda: model(tokens_BT), lambda: compiled(tokens_BT))


def block_compiled(model: Transformer, **options: Any) -> None:
    for block in model.blocks:
        block.compile(**options)


def test_block_by_block() -> None:
    """What blocks share in a pass crosses from one compiled block to the next; inductor's code is compared above."""
    architecture = small(depth=2)
    model, blockwise = (build(architecture, dtype=torch.bfloat16) for _ in range(2))
    block_compiled(blockwise, backend="aot_eager", fullgraph=True)
    tokens_BT = torch.randint(VOCAB, (2, LENGTH))
    losses = []
    for either in (model, blockwise):
        loss = F.cross_entropy(either(tokens_BT).float().flatten(0, 1), tokens_BT.flatten())
        loss.backward()
        losses.append(loss.item())
    assert losses[1] == pytest.approx(losses[0], rel=1e-3)
    theirs = dict(model.named_parameters())
    for name, parameter in blockwise.named_parameters():
        assert_near(parameter.grad, theirs[name].grad, name)


@pytest.mark.parametrize(
    ("kernel", "position"),
    [
        ("sdpa", "half"),
        ("sdpa", "alibi"),
        ("sdpa", "t5"),
        ("eager", "relative"),
        ("eager", "transformer_xl"),
    ],
)
def test_few_graphs_for_many_lengths(kernel: str, position: str) -> None:
    """Twenty lengths, training and evaluation: no graph for each of them (fault 085)."""
    model = build(small(position=IN_ATTENTION.get(position, position)), kernel=kernel)
    counter = CompileCounter()
    compiled = torch.compile(model, backend=counter, fullgraph=True, dynamic=True)
    seen = []
    for training in (True, False):
        compiled.train(training)
        for length in range(20, 40):
            tokens_BT = torch.randint(VOCAB, (2, length))
            torch.testing.assert_close(compiled(tokens_BT), model(tokens_BT), rtol=1e-5, atol=1e-5)
            seen.append(counter.frame_count)
    assert seen[0] == 1
    assert seen[19] <= 2  # a second one at most: the kernel's plain triangle, once the length is known to vary
    assert seen[-1] <= 4


def test_few_graphs_for_many_blocks_and_lengths() -> None:
    counts = {}
    for depth in (2, 4):
        torch._dynamo.reset()
        model, plain = (build(small(depth=depth)) for _ in range(2))
        counter = CompileCounter()
        block_compiled(model, backend=counter, fullgraph=True, dynamic=True)
        for length in range(20, 27):
            tokens_BT = torch.randint(VOCAB, (2, length))
            torch.testing.assert_close(model(tokens_BT), plain(tokens_BT), rtol=1e-5, atol=1e-5)
        counts[depth] = counter.frame_count
    assert counts[2] == counts[4]
    assert counts[4] <= 4
