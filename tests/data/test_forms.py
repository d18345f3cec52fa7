from pathlib import Path
from typing import Any

import pytest

from isoflop.data import (
    ONE_ROW,
    TWO_ROWS,
    Corpus,
    Data,
    Loader,
    Masked,
    MaskedLoader,
    Objective,
    PairLoader,
    load,
    make_loader,
)
from isoflop.spec import Spec, SpecError

PAIRS = {"kind": "copy", "items": 60, "validation_items": 9}
SIZES = {"batch": 4, "length": 20, "seed": 3}


def made(form: str, **fields: Any) -> Any:
    data = Data.parse(fields)
    return make_loader(data, load(data), form=form, **SIZES)


@pytest.mark.parametrize("form", ["decoder", "encoder", "encoder_decoder"])
def test_the_form_decides_where_no_objective_is_named(form: str, folder: Path) -> None:
    source = PAIRS if form == "encoder_decoder" else str(folder)
    kind = {"decoder": "next", "encoder": "masked", "encoder_decoder": "next"}[form]
    silent, named = made(form, source=source), made(form, source=source, objective=kind)
    assert type(silent) is type(named)
    assert silent.stream_digest(7) == named.stream_digest(7)


def test_a_decoder_reads_windows_as_before(folder: Path, corpus: Corpus) -> None:
    loader = made("decoder", source=str(folder), packing="documents")
    assert isinstance(loader, Loader)
    before = Loader(corpus, packing="documents", **SIZES)
    assert loader.stream_digest(9) == before.stream_digest(9)
    assert loader.batch(3).tokens_BT.equal(before.batch(3).tokens_BT)
    assert loader.batch(3).source_BS is None


def test_pairs_in_one_row_or_two() -> None:
    flat, apart = made("decoder", source=PAIRS), made("encoder_decoder", source=PAIRS)
    assert isinstance(flat, PairLoader)
    assert isinstance(apart, PairLoader)
    assert (flat.layout, apart.layout) == (ONE_ROW, TWO_ROWS)
    assert flat.corpus.digest == apart.corpus.digest
    assert flat.stream_digest(1) != apart.stream_digest(1)
    assert (flat.seed, flat.length, flat.batch_size) == (3, 20, 4)


def test_an_encoder_reads_windows_with_hidden_tokens(folder: Path) -> None:
    loader = made("encoder", source=str(folder), objective={"kind": "masked", "rate": 0.4}, packing="documents")
    assert isinstance(loader, MaskedLoader)
    batch = loader.batch(0)
    assert 0.2 < float((batch.targets_BT != -100).float().mean()) < 0.6
    assert batch.documents_BT is not None


def test_one_corpus_serves_every_form(folder: Path) -> None:
    data = Data(source=str(folder))
    shared = load(data)
    decoder, encoder = (make_loader(data, shared, form=form, **SIZES) for form in ("decoder", "encoder"))
    assert (decoder.corpus.vocab, encoder.corpus.vocab) == (256, 257)


@pytest.mark.parametrize(
    ("form", "fields", "message"),
    [
        (
            "encoder",
            {"objective": "next"},
            r"^objective: every token of an encoder sees all others, its own target too",
        ),
        ("encoder", {"source": PAIRS}, r"^source: an encoder reads a text and writes none.*came 'task:copy'"),
        (
            "encoder_decoder",
            {},
            r"^source: an encoder-decoder reads one text and writes another; .*'translation:en-de'",
        ),
        ("encoder_decoder", {"source": PAIRS, "objective": "masked"}, r"^objective: an encoder-decoder is trained to"),
        (
            "decoder",
            {"objective": "masked"},
            r"^objective: a decoder sees no token behind a hidden one; .*came 'masked'",
        ),
        ("decoder", {"source": PAIRS, "objective": "masked"}, r"^objective: a decoder sees no token"),
        ("endoder", {}, r"^form: must be one of decoder, encoder, encoder_decoder, came 'endoder'\. Did you mean"),
    ],
    ids=lambda value: value if isinstance(value, str) and len(value) < 20 else "",
)
def test_refusals(form: str, fields: dict[str, Any], message: str, folder: Path) -> None:
    with pytest.raises(SpecError, match=message):
        made(form, **{"source": str(folder), **fields})


def test_an_objective_without_a_loader_is_refused_in_words(folder: Path) -> None:
    class Other(Objective, kind="test_other"):
        """An objective of a user."""

    try:
        with pytest.raises(SpecError, match=r"^objective: the form 'decoder' has no loader for it; came 'test_other'"):
            made("decoder", source=str(folder), objective="test_other")
    finally:
        del Objective.kinds["test_other"]


def test_every_field_of_the_declaration_is_in_a_digest(folder: Path) -> None:
    """No change of a field goes unnoticed: declaration, corpus or stream."""
    base: dict[str, Any] = {"source": str(folder)}
    changes = {
        "source": PAIRS,
        "tokenizer": {"kind": "bpe", "vocab": 280},
        "packing": "documents",
        "order": "continuous",
        "limit": 9000,
        "seed": 1,
        "objective": "next",
    }
    assert changes.keys() == Data.model_fields.keys()
    assert (
        len({Data.parse({**base, name: value}).digest for name, value in changes.items()} | {Data.parse(base).digest})
        == 8
    )


def test_json_schema_and_field_paths() -> None:
    from isoflop.spec import field_paths

    schema = Data.model_json_schema()
    assert schema["properties"]["source"]["anyOf"][0] == {"type": "string"}
    assert "extrapolate" in str(schema["properties"]["source"]["anyOf"][1:])
    assert {"source", "source.extrapolate", "source.target", "objective.rate"} <= {*field_paths(Data)}
    assert issubclass(Masked, Spec)
