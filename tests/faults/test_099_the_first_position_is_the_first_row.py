"""Tables of learned positions begin with rows for padding: row 2 is the first place, and 514 rows are 512 places."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import OPTConfig, OPTForCausalLM, RobertaConfig, RobertaForMaskedLM

from isoflop.interop import import_model
from isoflop.spec import SpecError

PLACES, VOCAB = 12, 29
SIZES: dict[str, Any] = {
    "vocab_size": VOCAB,
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "bos_token_id": None,
    "eos_token_id": None,
}
PEERS: dict[str, tuple[type[Any], Any, str]] = {
    "opt": (
        OPTForCausalLM,
        OPTConfig(**SIZES, init_std=0.3, ffn_dim=16, max_position_embeddings=PLACES, pad_token_id=1),
        "model.decoder.embed_positions.weight",
    ),
    "opt-pad-0": (
        OPTForCausalLM,
        OPTConfig(**SIZES, init_std=0.3, ffn_dim=16, max_position_embeddings=PLACES, pad_token_id=0),
        "model.decoder.embed_positions.weight",
    ),
    "roberta": (
        RobertaForMaskedLM,
        RobertaConfig(**SIZES, initializer_range=0.3, intermediate_size=16, max_position_embeddings=PLACES + 2),
        "roberta.embeddings.position_embeddings.weight",
    ),
}


def texts(length: int) -> Tensor:
    """Ids above that of padding, whose own places theirs does not count."""
    return torch.arange(length)[None] % (VOCAB - 3) + 3


@pytest.mark.parametrize("name", PEERS)
@torch.no_grad()
def test_rows_and_places(name: str, tmp_path: Path) -> None:
    cls, config, table = PEERS[name]
    torch.manual_seed(0)
    peer = cls(config).eval()
    peer.save_pretrained(tmp_path)
    model = import_model(tmp_path).model
    rows = peer.state_dict()[table]
    assert len(rows) == PLACES + 2
    assert torch.equal(model.positions[0].table.weight, rows[2:])
    assert model.architecture.limit == PLACES
    for length in (1, PLACES):
        torch.testing.assert_close(model(texts(length)), peer(texts(length)).logits, rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=f"position {PLACES} is beyond the {PLACES} learned positions"):
        model(texts(PLACES + 1))
    if model.architecture.causal:
        assert model.generate(texts(PLACES - 1).tolist(), 1)
        with pytest.raises(ValueError, match=f"13 is beyond the {PLACES} positions"):
            model.generate(texts(PLACES).tolist(), 1)


def test_another_padding_moves_the_first_place_of_roberta_and_is_refused(tmp_path: Path) -> None:
    """Its first place is the id of padding plus one, so that a table of another id would be read from the wrong row."""
    config = RobertaConfig(**SIZES, intermediate_size=16, max_position_embeddings=PLACES + 2, pad_token_id=0)
    RobertaForMaskedLM(config).save_pretrained(tmp_path)
    with pytest.raises(SpecError, match="pad_token_id: must be 1"):
        import_model(tmp_path)
