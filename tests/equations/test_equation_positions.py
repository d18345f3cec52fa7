"""Relative positions: numbers by offset against a look-up, what must be equal, and kernels that see them in blocks."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from test_equation_model import weights_of
from torch import Tensor

import formulas
import properties
from isoflop.model import Architecture, Transformer, build
from isoflop.model.attend import Dense
from isoflop.model.places import Places
from isoflop.model.position.band import by_key, by_query, collected
from isoflop.model.relation import View
from isoflop.model.term import Scoring
from models import TRAINING_KERNELS, lively, logits_of, meeting, mixed, some_tokens

# ------------------------------------------------------------------------------------------------ numbers by offset


def views() -> list[tuple[View, int, int]]:
    """Views of any shape, before, across and behind a band of any width."""
    cases = itertools.product([1, 2, 5], [1, 3, 7], [-9, -3, 0, 2, 11], [-4, -1, 0], [1, 3, 5])
    return [
        (View(torch.arange(rows)[None], torch.arange(columns)[None] + first, first), lowest, count)
        for rows, columns, first, lowest, count in cases
    ]


def drawn(*shape: int) -> Tensor:
    return torch.randn(shape, dtype=torch.float64, requires_grad=True)


def looked_up(view: View, lowest: int, count: int) -> list[list[int]]:
    q, k = view.q_positions[0].tolist(), view.k_positions[0].tolist()
    return [[min(max(j - i, lowest), lowest + count - 1) - lowest for j in k] for i in q]


def test_numbers_by_query_and_by_key() -> None:
    torch.manual_seed(0)
    for view, lowest, count in views():
        index = looked_up(view, lowest, count)
        rows, columns = len(index), len(index[0])
        for function, size, owner in ((by_query, rows, 0), (by_key, columns, 1)):
            table = drawn(2, 3, size, count)
            pairs = itertools.product(range(rows), range(columns))
            picked = [table[:, :, pair[owner], index[pair[0]][pair[1]]] for pair in pairs]
            expected = torch.stack(picked, -1).unflatten(-1, (rows, columns))
            cotangent = torch.randn_like(expected)
            wanted = torch.autograd.grad(expected, table, cotangent)[0]
            for seen in (view, View(view.q_positions, view.k_positions)):
                found = function(table, seen, lowest)
                assert torch.equal(found, expected)
                torch.testing.assert_close(torch.autograd.grad(found, table, cotangent)[0], wanted)


def test_collected_is_the_transpose() -> None:
    torch.manual_seed(0)
    for view, lowest, count in views():
        index = looked_up(view, lowest, count)
        rows, columns = len(index), len(index[0])
        x = drawn(2, 3, rows, columns)
        expected = torch.zeros(2, 3, rows, count, dtype=torch.float64)
        for i, j in itertools.product(range(rows), range(columns)):
            expected[:, :, i, index[i][j]] += x[:, :, i, j].detach()
        for seen in (view, View(view.q_positions, view.k_positions)):
            torch.testing.assert_close(collected(x, seen, lowest, count).detach(), expected)


def test_rows_of_a_batch_at_positions_of_their_own() -> None:
    torch.manual_seed(0)
    view = View(torch.tensor([[4, 9], [0, 3]]), torch.tensor([[0, 4, 9], [3, 2, 0]]))
    table = drawn(2, 3, 2, 3)
    found = by_query(table, view, -1)
    for b, i, j in itertools.product(range(2), range(2), range(3)):
        offset = int(view.k_positions[b, j] - view.q_positions[b, i])
        assert torch.equal(found[b, :, i, j], table[b, :, i, min(max(offset, -1), 1) + 1])


# ------------------------------------------------------------------------------------------------ both directions

KINDS: dict[str, dict[str, Any]] = {
    "t5": {"kind": "t5", "buckets": 8, "max_distance": 12},
    "relative": {"kind": "relative", "reach": 2, "query": True},
    "relative-heads": {"kind": "relative", "reach": 2, "query": True, "heads_share": False, "blocks_share": True},
    "relative-query": {"kind": "relative", "reach": 2, "query": True, "key": False, "value": False},
    "transformer_xl": {"kind": "transformer_xl"},
    "transformer_xl-blocks": {"kind": "transformer_xl", "blocks_share": False},
}


def declared(position: Any, **changes: Any) -> Architecture:
    sizes: dict[str, Any] = {"width": 24, "depth": 2, "vocab": 13, "ffn": {"hidden": 24, "activation": "gelu"}}
    return Architecture(**{**sizes, "position": position, "attention": {"heads": 4, "kv_heads": 2}, **changes})


@pytest.mark.parametrize("form", ["encoder", "decoder"])
@pytest.mark.parametrize("window", [None, 4])
@pytest.mark.parametrize("name", KINDS)
def test_formula_with_grouped_heads(name: str, window: int | None, form: str) -> None:
    architecture = declared(KINDS[name], form=form, attention={"heads": 4, "kv_heads": 2, "window": window})
    model, tokens = lively(architecture), some_tokens(architecture, 1, 9)
    expected = torch.tensor(formulas.logits(architecture, weights_of(model), tokens[0].tolist()), dtype=torch.float64)
    torch.testing.assert_close(logits_of(model, tokens)[0].double(), expected, atol=2e-5, rtol=1e-5)


def test_blocks_share_tables_as_declared() -> None:
    counts = {
        name: sum(p.numel() for n, p in Transformer(declared(kind)).named_parameters() if ".terms." in n)
        for name, kind in KINDS.items()
    }
    assert counts == {
        "t5": 8 * 4,
        "relative": 2 * 3 * (3 * 6),  # blocks, tables, reach + 1 rows of 6: nothing is seen that comes after
        "relative-heads": 3 * 4 * (3 * 6),
        "relative-query": 2 * (3 * 6),
        "transformer_xl": 2 * 24 * 24 + 2 * 24,
        "transformer_xl-blocks": 2 * (24 * 24 + 2 * 24),
    }
    both_ways = Transformer(declared(KINDS["relative"], form="encoder"))
    assert both_ways.blocks[0].attention.terms[0].key_table.shape == (5, 6)


def test_blocks_of_other_shapes_share_nothing() -> None:
    blocks = [{"at": "1", "attention": {"heads": 2, "kv_heads": 2}}]
    model = Transformer(declared("t5", blocks=blocks))
    tables = [block.attention.terms[0].table.weight for block in model.blocks]
    assert [table.shape for table in tables] == [(32, 4), (32, 2)]


# ------------------------------------------------------------------------------------------------ from block to block

PER_BLOCK: dict[str, list[dict[str, Any]]] = {
    "no positions in one block": [{"at": "1", "position": "none"}],
    "two bases, local and global": [
        {"at": "2::3", "position": {"base": 10000.0}, "attention": {"window": "default"}},
    ],
    "scaled in one block": [{"at": "0", "position": {"scaling": {"kind": "yarn", "original_length": 16}}}],
    "biases in two blocks": [{"at": "1:", "position": "t5"}],
    "all kinds": [
        {"at": "0", "position": ["t5", "rope"]},
        {"at": "1", "position": ["alibi", "transformer_xl"]},
        {"at": "2", "position": ["t5", "transformer_xl", {"kind": "relative", "reach": 2}]},
    ],
}


@pytest.mark.parametrize("name", PER_BLOCK)
def test_positions_that_differ_from_block_to_block(name: str) -> None:
    attention = {"heads": 4, "kv_heads": 2, "window": 3}
    architecture = declared({"kind": "rope", "base": 30.0}, depth=3, attention=attention, blocks=PER_BLOCK[name])
    model, tokens = lively(architecture), some_tokens(architecture, 1, 9)
    expected = torch.tensor(formulas.logits(architecture, weights_of(model), tokens[0].tolist()), dtype=torch.float64)
    torch.testing.assert_close(logits_of(model, tokens)[0].double(), expected, atol=2e-5, rtol=1e-5)
    same = logits_of(lively(declared({"kind": "rope", "base": 30.0}, depth=3, attention=attention)), tokens)
    assert (same[0] - expected).abs().max() > 0.01
    properties.check_cached(model, mixed(model), [[3, 1, 2, 1]])


# ------------------------------------------------------------------------------------------------ identities


def changed(model: Transformer, **tables: Any) -> Transformer:
    """The model with every row of the named tables set to one value or vector."""
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            for table, value in tables.items():
                if name.endswith(f".{table}"):
                    parameter.copy_(torch.as_tensor(value).expand_as(parameter))
    return model


@pytest.mark.parametrize("form", ["encoder", "decoder"])
def test_a_key_table_of_equal_rows_has_no_effect(form: str) -> None:
    """It moves all scores of a query alike."""
    architecture = declared({"kind": "relative", "reach": 2, "value": False}, form=form)
    tokens, vector = some_tokens(architecture, 2, 9), torch.linspace(-3, 3, 6)
    without, same = (changed(lively(architecture), key_table=value) for value in (0.0, vector))
    torch.testing.assert_close(logits_of(same, tokens), logits_of(without, tokens), atol=1e-5, rtol=1e-5)
    assert (logits_of(lively(architecture), tokens) - logits_of(without, tokens)).abs().max() > 0.1


def test_a_value_table_of_equal_rows_is_added_to_the_output() -> None:
    architecture = declared({"kind": "relative", "reach": 2, "key": False}, depth=1)
    x_BTD, positions = torch.randn(2, 9, 24), torch.arange(9)[None]
    vector, outputs = torch.linspace(-1, 1, 6), []
    for value in (0.0, vector):
        attention = changed(lively(architecture), value_table=value).blocks[0].attention
        with torch.no_grad():
            outputs.append(attention(x_BTD, Dense(Places(positions, positions, consecutive=True))))
            moved = attention.o(vector.repeat(4))
    torch.testing.assert_close(outputs[1] - outputs[0], moved.expand(2, 9, -1), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", ["encoder", "decoder"])
def test_a_reach_beyond_the_text_clips_nothing(form: str) -> None:
    """n - 1 is as good as any larger, row for row; one less is not."""
    length, outputs, plain = 9, [], lively(declared("none", form=form)).state_dict()
    for reach in (length - 1, length + 4, length - 2):
        architecture = declared({"kind": "relative", "reach": reach, "query": True}, form=form)
        rows = torch.arange(-reach, 1 if form == "decoder" else reach + 1)
        numbers = torch.sin(rows[:, None] * torch.linspace(1, 2, 6))
        model = changed(build(architecture), query_table=numbers, key_table=numbers, value_table=numbers).eval()
        model.load_state_dict(plain, strict=False)
        outputs.append(logits_of(model, some_tokens(architecture, 2, length)))
    torch.testing.assert_close(outputs[1], outputs[0], atol=1e-5, rtol=1e-5)
    assert (outputs[2] - outputs[0]).abs().max() > 1e-3


def test_two_tables_make_four_products() -> None:
    """Eq. 12: (q + a)(k + b)ᵀ = q kᵀ + q bᵀ + a kᵀ + a bᵀ, the last a bias of the offset alone."""
    architecture = declared({"kind": "relative", "reach": 2, "query": True, "value": False}, form="encoder", depth=1)
    term = lively(architecture).blocks[0].attention.terms[0]
    q, k = torch.randn(2, 4, 7, 6), torch.randn(2, 2, 7, 6)
    positions = torch.arange(7)[None]
    scoring = Scoring(1.0, False, None, None, 0.0, (term,))
    met = meeting(q, k, k, scoring, Places(positions, positions))
    offsets = (positions - positions.T).clamp(-2, 2) + 2
    a, b = term.query_table[offsets], term.key_table[offsets]  # (T, S, E)
    keys = k.repeat_interleave(2, 1)
    four = torch.einsum("bhie,bhje->bhij", q, keys), torch.einsum("bhie,ije->bhij", q, b)
    four += torch.einsum("ije,bhje->bhij", a, keys), torch.einsum("ije,ije->ij", a, b)
    found = four[0] + term.relate(met).at(met.places.view(met.places.whole))
    torch.testing.assert_close(found, four[0] + four[1] + four[2] + four[3], atol=1e-5, rtol=1e-5)
    whole = torch.einsum("bhije,bhije->bhij", q[:, :, :, None] + a, keys[:, :, None] + b)
    torch.testing.assert_close(found, whole, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("form", ["encoder", "decoder"])
def test_a_query_table_of_equal_rows_is_a_bias_of_each_key(form: str) -> None:
    """a kᵀ, as if every query were moved by one vector."""
    architecture = declared({"kind": "relative", "reach": 2, "query": True, "key": False, "value": False}, form=form)
    vector = torch.linspace(-1, 1, 6)
    found = changed(lively(architecture), query_table=vector)
    moved = build(declared("none", form=form, attention={"heads": 4, "kv_heads": 2, "bias": True})).eval()
    state = {name: value for name, value in found.state_dict().items() if ".terms." not in name}
    for name in moved.state_dict().keys() - state.keys():  # biases: of the queries the vector, of the rest nothing
        queries = vector.repeat(4) if name.endswith("qkv.bias") else torch.zeros(0)
        state[name] = torch.nn.functional.pad(queries, (0, len(moved.state_dict()[name]) - len(queries)))
    moved.load_state_dict(state)
    tokens = some_tokens(architecture, 2, 9)
    torch.testing.assert_close(logits_of(found, tokens), logits_of(moved, tokens), atol=1e-5, rtol=1e-5)


def test_at_reach_0_all_keys_are_alike() -> None:
    """One query vector is a bias of the keys, and the order of what comes before is not seen."""
    architecture = declared({"kind": "relative", "reach": 0, "key": False, "query": True}, form="encoder")
    model, tokens = lively(architecture), some_tokens(architecture, 1, 9)
    turned = torch.cat([tokens[:, :-1].flip(1), tokens[:, -1:]], dim=1)
    torch.testing.assert_close(logits_of(model, turned)[:, -1], logits_of(model, tokens)[:, -1], atol=1e-5, rtol=1e-5)


def test_rows_of_a_table_that_no_pair_meets_are_idle() -> None:
    for position, table, met in (
        ({"kind": "relative", "reach": 16}, "key_table", range(16 - 8, 17)),
        ({"kind": "relative", "reach": 4}, "value_table", range(5)),
        ({"kind": "t5", "buckets": 8, "max_distance": 12}, "table.weight", range(7)),
    ):
        model = lively(declared(position, depth=1))
        logits = model(some_tokens(model.architecture, 2, 9))
        (logits * torch.linspace(-1, 1, 13)).tanh().sum().backward()
        gradient = model.get_parameter(f"blocks.0.attention.terms.0.{table}").grad
        assert gradient.abs().amax(1).nonzero()[:, 0].tolist() == list(met)


def test_t5_with_one_number_for_all_buckets_has_no_effect() -> None:
    architecture = declared("t5")
    tokens = some_tokens(architecture, 2, 9)
    for value in (0.0, 5.0):
        model = changed(lively(architecture), **{"table.weight": value})
        found = logits_of(model, tokens)
        plain = build(declared("none"))
        plain.load_state_dict({n: p for n, p in model.state_dict().items() if ".terms." not in n})
        torch.testing.assert_close(found, logits_of(plain.eval(), tokens), atol=1e-5, rtol=1e-5)


# ------------------------------------------------------------------------------------------------ kernels, in blocks


def stages(architecture: Architecture) -> frozenset[str]:
    scoring = Transformer(architecture).blocks[0].attention.scoring
    assert isinstance(scoring, Scoring)
    return scoring.stages


@pytest.mark.parametrize("form", ["encoder", "decoder"])
@pytest.mark.parametrize("window", [None, 40])
@pytest.mark.parametrize("name", KINDS)
def test_kernels_over_several_blocks(name: str, window: int | None, form: str) -> None:
    attention = {"heads": 4, "kv_heads": 2, "window": window}
    architecture = declared(KINDS[name], depth=1, form=form, attention=attention)
    tokens = some_tokens(architecture, 2, 150)
    documents = (torch.arange(150) > 70).long().expand(2, -1)
    found = {}
    for kernel, able in TRAINING_KERNELS.items():
        if not stages(architecture) <= able.stages:
            continue
        model = lively(architecture, kernel)
        logits = model(tokens, None, documents, True)
        loss = (logits * torch.linspace(-1, 1, 13)).tanh().mean()
        found[kernel] = [logits, *torch.autograd.grad(loss, list(model.parameters()))]
    assert {"eager", "chunked"} <= found.keys()
    for values in found.values():
        for value, expected in zip(values, found["eager"], strict=True):
            torch.testing.assert_close(value, expected, atol=2e-5, rtol=1e-4)
