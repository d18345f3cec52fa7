"""Reported parameters or FLOPs are wrong: a tied matrix is subtracted twice, a look-up is priced, counts are rounded."""

from itertools import product

import pytest

from isoflop.model import Architecture, build
from isoflop.plan.cost import count_parameters, price

GRID = list(product([False, True], [1, 2, 4], ["plain", "glu"], [False, True]))


@pytest.mark.parametrize(("tied", "kv_heads", "ffn", "bias"), GRID)
def test_closed_form(tied: bool, kv_heads: int, ffn: str, bias: bool) -> None:
    V, D, L, H, E, F, T = 53, 24, 3, 4, 6, 40, 16
    declared = Architecture(
        vocab=V,
        width=D,
        depth=L,
        norm={"kind": "layer", "bias": bias},
        attention={"heads": H, "kv_heads": kv_heads, "bias": bias},
        ffn={"kind": ffn, "hidden": F, "bias": bias},
        tie_head=tied,
    )
    rows_in = F * {"plain": 1, "glu": 2}[ffn]
    rows_qkv = (H + 2 * kv_heads) * E
    matmul = D * (rows_qkv + H * E + rows_in + F)
    biases = (rows_qkv + D + rows_in + D) if bias else 0
    norms = (2 * L + 1) * D * (2 if bias else 1)
    parameters = V * D * (1 if tied else 2) + L * (matmul + biases) + norms
    model, cost = build(declared), price(declared, T)
    unique = {parameter.data_ptr(): parameter.numel() for parameter in model.parameters()}
    assert sum(unique.values()) == cost.parameters == count_parameters(declared) == parameters
    assert sum(cost.components.values()) == parameters
    assert cost.components.get("head", 0) == (0 if tied else V * D)
    pairs = T * (T + 1) // 2  # q kᵀ and p v, each 2 FLOPs for every query, key, head and component
    assert cost.forward_flops_per_token * T == 2 * T * (L * matmul + V * D) + L * 4 * pairs * H * E
    assert cost.forward_flops_per_token_full * T == 2 * T * (L * matmul + V * D) + L * 4 * T * T * H * E
    assert cost.kv_elements_per_token == 2 * L * kv_heads * E


def test_counts_are_whole_numbers_where_float32_is_not() -> None:
    declared = Architecture(vocab=8153, width=7533, depth=1, position="none", attention={"heads": 3})
    assert price(declared, 1).components["embedding"] == 61416549  # float32 would say 61416548
