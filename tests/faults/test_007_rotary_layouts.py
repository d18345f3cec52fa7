"""An imported checkpoint is wrong, worse with distance: half and interleaved rotary pairs were mixed up."""

import torch
from torch import Tensor

from isoflop.model import Architecture, build
from isoflop.model.position import RoPE
from models import SETTING


def once(key: object, make):
    return make()


def turned(layout: str, x: Tensor, position: int) -> Tensor:
    return (
        RoPE(layout=layout)
        .term(SETTING, 1, x.shape[-1])
        .rotate(x[None, None, None], torch.tensor([[position]]), once)[0, 0, 0]
    )


def test_which_components_make_a_pair() -> None:
    e0 = torch.tensor([1.0, 0.0, 0.0, 0.0])
    assert turned("half", e0, 1).nonzero()[:, 0].tolist() == [0, 2]
    assert turned("interleaved", e0, 1).nonzero()[:, 0].tolist() == [0, 1]
    for layout, partner in {"half": 2, "interleaved": 1}.items():
        out = turned(layout, e0, 1)
        torch.testing.assert_close(out[0], torch.tensor(1.0).cos())
        torch.testing.assert_close(out[partner], torch.tensor(1.0).sin())


def test_layouts_agree_after_permuting_the_rows_of_q_and_k() -> None:
    heads, head_width, width = 2, 8, 16
    declared = Architecture(vocab=19, width=width, depth=2, position="rope", attention={"heads": heads, "kv_heads": 1})
    half = build(declared, seed=2).eval()
    other = build(declared.override({"position": {"0": {"layout": "interleaved"}}}), seed=2).eval()
    tokens_BT = torch.randint(19, (2, 30), generator=torch.Generator().manual_seed(0))
    for model in (half, other):
        for block in model.blocks:
            block.attention.qkv.weight.data.mul_(20)
    order = torch.arange(head_width).view(2, head_width // 2).T.flatten()  # 0, 4, 1, 5, ...
    q_and_k = heads + 1
    permuted = torch.cat([order + head_width * head for head in range(q_and_k)])
    with torch.no_grad():
        assert (other(tokens_BT) - half(tokens_BT)).abs().max() > 1e-3
        for block in other.blocks:
            rows = block.attention.qkv.weight
            rows[: q_and_k * head_width] = rows[permuted]
        torch.testing.assert_close(other(tokens_BT), half(tokens_BT), rtol=0, atol=1e-5)
