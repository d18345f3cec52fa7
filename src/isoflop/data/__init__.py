"""Text as token ids, the same on every machine, in an order that follows from a seed and a step number."""

from isoflop.data.corpora import Document, SourceRow, divide, read_documents, sources
from isoflop.data.loader import NO_TARGET, Batch, Corpus, Data, Loader, Packing, load
from isoflop.data.tokens import BPE, Bytes, Codec, Stream, Tokenizer, load_tokenizer

__all__ = [
    "BPE",
    "NO_TARGET",
    "Batch",
    "Bytes",
    "Codec",
    "Corpus",
    "Data",
    "Document",
    "Loader",
    "Packing",
    "SourceRow",
    "Stream",
    "Tokenizer",
    "divide",
    "load",
    "load_tokenizer",
    "read_documents",
    "sources",
]
