"""Peers are built from a configuration with random weights: nothing is looked up on a network."""

import os

import pytest
import torch

os.environ["HF_HUB_OFFLINE"] = "1"
os.environ["TRANSFORMERS_OFFLINE"] = "1"


@pytest.fixture(autouse=True)
def _same_draws_every_time() -> None:
    torch.manual_seed(0)
