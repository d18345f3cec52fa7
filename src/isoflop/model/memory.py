"""What a decoder looks at: the text that an encoder reads, and what it makes of it."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from isoflop.model.places import Places


@dataclass(frozen=True)
class Source:
    """A text for an encoder.

    Attributes:
        tokens_BS: token ids.
        positions_BS: position ids; None means 0..S-1 in every row.
        documents_BS: document ids; a token sees only its own document, and is seen by the target of the same id. None
            means one document a row, of id 0.
        types_BS: token types; None means 0 for all.
    """

    tokens_BS: Tensor
    positions_BS: Tensor | None = None
    documents_BS: Tensor | None = None
    types_BS: Tensor | None = None

    @property
    def places(self) -> Places:
        """Where its tokens stand."""
        consecutive = self.positions_BS is None
        count = torch.arange(self.tokens_BS.shape[1], device=self.tokens_BS.device)[None]
        positions = count if self.positions_BS is None else self.positions_BS
        return Places(positions, positions, self.documents_BS, self.documents_BS, consecutive)


@dataclass(frozen=True)
class Memory:
    """What an encoder made of a source.

    Attributes:
        states_BSD: its stream after the final norm.
        places: where the tokens of the source stand.
    """

    states_BSD: Tensor
    places: Places

    def seen_from(self, target: Places) -> Places:
        """Where the queries of a target and the keys of the source stand.

        Documents that only one side tells are 0 on the other.
        """
        q_documents, k_documents = target.q_documents, self.places.k_documents
        if q_documents is None and k_documents is not None:
            q_documents = torch.zeros_like(target.q_positions)
        if k_documents is None and q_documents is not None:
            k_documents = torch.zeros_like(self.places.k_positions)
        return Places(target.q_positions, self.places.k_positions, q_documents, k_documents)
