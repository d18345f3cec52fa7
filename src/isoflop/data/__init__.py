"""Text and pairs of texts as token ids, the same on every machine, in an order that follows from a seed and a step number."""

from isoflop.data.codecs import MarkedCodec, SymbolCodec
from isoflop.data.corpora import Document, SourceRow, divide, read_documents, sources
from isoflop.data.foreign import NO_END, IdCodec, LibraryCodec
from isoflop.data.forms import AnyCorpus, Batches, load, make_loader
from isoflop.data.loader import Batch, Corpus, Data, Loader, Packing, Tokenized
from isoflop.data.masked_loader import MaskedLoader
from isoflop.data.objective import NO_TARGET, Masked, Next, Objective
from isoflop.data.pair_loader import ONE_ROW, TWO_ROWS, PairCorpus, PairLoader
from isoflop.data.pairs import Pair, Pairs
from isoflop.data.tasks import Task
from isoflop.data.tokens import BPE, Bytes, Codec, Stream, Tokenizer, load_tokenizer
from isoflop.data.translation import Translation, translations

__all__ = [
    "BPE",
    "NO_END",
    "NO_TARGET",
    "ONE_ROW",
    "TWO_ROWS",
    "AnyCorpus",
    "Batch",
    "Batches",
    "Bytes",
    "Codec",
    "Corpus",
    "Data",
    "Document",
    "IdCodec",
    "LibraryCodec",
    "Loader",
    "MarkedCodec",
    "Masked",
    "MaskedLoader",
    "Next",
    "Objective",
    "Packing",
    "Pair",
    "PairCorpus",
    "PairLoader",
    "Pairs",
    "SourceRow",
    "Stream",
    "SymbolCodec",
    "Task",
    "Tokenized",
    "Tokenizer",
    "Translation",
    "divide",
    "load",
    "load_tokenizer",
    "make_loader",
    "read_documents",
    "sources",
    "translations",
]
