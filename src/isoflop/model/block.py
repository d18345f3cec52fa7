"""One block: sublayers, and how they are joined to the stream."""

from __future__ import annotations

from torch import Tensor, nn

from isoflop.model.slots import Attend, Setting, Sublayer


class TransformerBlock(nn.Module):
    """The module of one `Block` declaration: its sublayers, beside the joins that they go through."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        width, block, crossing = setting.architecture.width, setting.block, setting.crossing
        self.attention = block.attention.build(setting)
        self.cross = None if crossing is None else crossing.block.attention.build(crossing)
        self.ffn = block.ffn.build(width)
        names = ["attention", "ffn"] if crossing is None else ["attention", "cross", "ffn"]
        joins = block.arrangement.joins(names)
        norms = dict.fromkeys(joins.values(), block.norm)
        if block.attention_norm is not None:
            norms[joins["attention"]] = block.attention_norm
        for name, norm in norms.items():
            self.add_module(name, block.join.build(lambda norm=norm: norm.build(width), block.dropout))
        self.joins = tuple(norms)
        self.arrangement = block.arrangement.build()

    def forward(self, z_BTD: Tensor, attend: Attend) -> Tensor:
        sublayers: list[Sublayer] = [lambda x_BTD: self.attention(x_BTD, attend), self.ffn]
        if (cross := self.cross) is not None:
            sublayers.insert(1, lambda x_BTD: cross(x_BTD, attend))
        return self.arrangement(z_BTD, [self.get_submodule(name) for name in self.joins], sublayers)
