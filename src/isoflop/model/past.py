"""What segments of a text leave to the one that follows: the memory of Transformer-XL.

Letters beside those of `slots.py`: M positions of a memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

HIDDEN = -2
"""The document id of what a row must not see of a text before its own: no token is of it, and no padding."""


@dataclass(frozen=True)
class Past:
    """What attention read in the segments before, without gradient; nothing at first.

    Attributes:
        streams: x_BMD of each evaluation of attention that has a memory, in forward order.
        documents_BM: document ids of the last positions, as many as the longest stream has; None where all is one document.
    """

    streams: tuple[Tensor, ...] = ()
    documents_BM: Tensor | None = None

    def stream(self, number: int, x_BTD: Tensor, count: int) -> Tensor:
        """The last `count` positions, or as many as there are, of an evaluation that reads x now: (B, M, D)."""
        return self.streams[number][:, -count:] if self.streams else x_BTD.detach()[:, :0]

    def continued(self, continues_B: Tensor | None) -> Past:
        """The past of rows whose text goes on, hidden from the other rows; of nobody without telling."""
        if continues_B is None or not self.streams or not continues_B.any():
            return NOTHING
        if continues_B.all():
            return self
        documents_BM = self.documents_BM
        if documents_BM is None:
            shape = len(continues_B), longest(self.streams)
            documents_BM = torch.zeros(shape, dtype=torch.long, device=continues_B.device)
        return replace(self, documents_BM=torch.where(continues_B[:, None], documents_BM, HIDDEN))

    def tensors(self) -> dict[str, Tensor]:
        """All of it by name, for a file."""
        named = {str(number): stream for number, stream in enumerate(self.streams)}
        return named if self.documents_BM is None else {**named, "documents": self.documents_BM}

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> Past:
        """The inverse of `tensors`."""
        streams = sorted((name for name in tensors if name.isdecimal()), key=int)
        return cls(tuple(tensors[name] for name in streams), tensors.get("documents"))


NOTHING = Past()
"""What comes before a text."""


def longest(streams: Sequence[Tensor]) -> int:
    """Positions that the longest of some memories holds."""
    return max([0, *[x_BMD.shape[1] for x_BMD in streams]])
