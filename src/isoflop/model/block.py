"""One block: an attention and a feed-forward sublayer, each joined to the stream."""

from __future__ import annotations

from torch import Tensor, nn

from isoflop.model.slots import Attend, Setting


class TransformerBlock(nn.Module):
    """The module of one `Block` declaration."""

    def __init__(self, setting: Setting) -> None:
        super().__init__()
        width, block = setting.architecture.width, setting.block
        self.attention = block.attention.build(setting)
        self.attention_join = block.join.build(lambda: block.norm.build(width), block.dropout)
        self.ffn = block.ffn.build(width)
        self.ffn_join = block.join.build(lambda: block.norm.build(width), block.dropout)

    def forward(self, z_BTD: Tensor, attend: Attend) -> Tensor:
        z_BTD = self.attention_join(z_BTD, lambda x_BTD: self.attention(x_BTD, attend))
        return self.ffn_join(z_BTD, self.ffn)
