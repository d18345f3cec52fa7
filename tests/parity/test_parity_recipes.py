"""Recipes against the configurations of transformers that they stand for."""

from transformers import BertConfig, T5Config

from isoflop.interop import FAMILIES
from isoflop.interop.config import Config
from isoflop.interop.family import say
from isoflop.recipes import load


def test_bert_base() -> None:
    theirs = BertConfig(architectures=["BertForMaskedLM"])
    assert FAMILIES["bert"].architecture(Config(theirs.to_dict())) == load("bert")


def test_t5_small() -> None:
    """All but the rule that weights are drawn by."""
    theirs = T5Config(num_layers=6, vocab_size=32128, architectures=["T5ForConditionalGeneration"])
    read = FAMILIES["t5"].architecture(Config(theirs.to_dict()))
    assert not say(read).differences(say(load("t5")))
