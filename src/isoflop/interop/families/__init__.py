"""Public models by family, in the order in which an export asks them."""

from isoflop.interop.families.albert import ALBERT
from isoflop.interop.families.bart import BART, MARIAN
from isoflop.interop.families.bert import BERT, CAMEMBERT, ROBERTA, XLM_ROBERTA
from isoflop.interop.families.bloom import BLOOM
from isoflop.interop.families.falcon import FALCON
from isoflop.interop.families.gemma import GEMMA2, GEMMA3
from isoflop.interop.families.gpt2 import GPT2
from isoflop.interop.families.llama import LLAMA, MISTRAL, QWEN2, QWEN3
from isoflop.interop.families.modernbert import MODERNBERT
from isoflop.interop.families.mpt import MPT
from isoflop.interop.families.neox import GPT_NEOX
from isoflop.interop.families.opt import OPT
from isoflop.interop.families.t5 import T5

DECODERS = (LLAMA, MISTRAL, QWEN2, QWEN3, GEMMA2, GEMMA3, GPT2, GPT_NEOX, OPT, MPT, FALCON, BLOOM)
ENCODERS = (BERT, ROBERTA, XLM_ROBERTA, CAMEMBERT, ALBERT, MODERNBERT)
ENCODER_DECODERS = (T5, BART, MARIAN)
FAMILIES = {family.name: family for family in (*DECODERS, *ENCODERS, *ENCODER_DECODERS)}
