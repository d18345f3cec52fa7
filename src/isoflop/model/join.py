"""How a sublayer joins the stream: residual forms.

Every form is a choice of what stands in the places of one module, so its forward has no branch.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from torch import Tensor, nn

from isoflop.model.slots import Join


class Pre(Join, kind="pre"):
    """Pre-norm: the sublayer reads a normalised stream, the stream itself is never normalised (eq. 14).

    Formula: z' = z + F(N(z))
    Paper: Wang et al. 2019, arXiv 1906.01787; Xiong et al. 2020, arXiv 2002.04745
    """

    final_norm: ClassVar[bool] = True
    adds: ClassVar[bool] = True

    def build(self, make_norm: Callable[[], nn.Module], dropout: float) -> nn.Module:
        return Residual(dropout, norm_in=make_norm())


class Post(Join, kind="post"):
    """Post-norm: the sum of stream and sublayer is normalised (eq. 13).

    Formula: z' = N(z + F(z))
    Paper: Vaswani et al. 2017, arXiv 1706.03762
    """

    final_norm: ClassVar[bool] = False

    def build(self, make_norm: Callable[[], nn.Module], dropout: float) -> nn.Module:
        return Residual(dropout, norm_out=make_norm())


class Sandwich(Join, kind="sandwich"):
    """A norm on both sides of the sublayer, none on the stream: what is added has a size of its own.

    Formula: z' = z + N'(F(N(z)))
    Paper: Ding et al. 2021 (CogView), arXiv 2105.13290; Gemma Team 2024 (Gemma 2), arXiv 2408.00118
    """

    final_norm: ClassVar[bool] = True
    adds: ClassVar[bool] = True

    def build(self, make_norm: Callable[[], nn.Module], dropout: float) -> nn.Module:
        return Residual(dropout, norm_in=make_norm(), norm_branch=make_norm())


class ResPost(Join, kind="respost"):
    """The output of the sublayer is normalised, the stream is not.

    Formula: z' = z + N(F(z))
    Paper: Liu et al. 2021 (Swin V2), arXiv 2111.09883; OLMo et al. 2024 (OLMo 2), arXiv 2501.00656
    """

    final_norm: ClassVar[bool] = True
    adds: ClassVar[bool] = True

    def build(self, make_norm: Callable[[], nn.Module], dropout: float) -> nn.Module:
        return Residual(dropout, norm_branch=make_norm())


class Residual(nn.Module):
    """`z' = norm_out(z + dropout(norm_branch(f(norm_in(z)))))`."""

    def __init__(
        self,
        dropout: float,
        norm_in: nn.Module | None = None,
        norm_branch: nn.Module | None = None,
        norm_out: nn.Module | None = None,
    ) -> None:
        super().__init__()
        self.norm_in = norm_in or nn.Identity()
        self.norm_branch = norm_branch or nn.Identity()
        self.norm_out = norm_out or nn.Identity()
        self.dropout = nn.Dropout(dropout) if dropout else nn.Identity()

    def forward(self, z_BTD: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        return self.norm_out(z_BTD + self.branch(z_BTD, f))

    def branch(self, z_BTD: Tensor, f: Callable[[Tensor], Tensor]) -> Tensor:
        """What is added to the stream."""
        return self.dropout(self.norm_branch(f(self.norm_in(z_BTD))))
