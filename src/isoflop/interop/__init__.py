"""Models from elsewhere and for elsewhere: Hugging Face folders and GGUF files."""

from isoflop.interop.families import FAMILIES
from isoflop.interop.gguf import import_gguf
from isoflop.interop.huggingface import Imported, export_model, import_model
from isoflop.interop.vectors import embed_texts

__all__ = ["FAMILIES", "Imported", "embed_texts", "export_model", "import_gguf", "import_model"]
