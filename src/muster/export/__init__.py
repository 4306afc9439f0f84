"""The trained model on disk: written, read back by a fresh process, compared, then published."""

from muster.export.card import model_card
from muster.export.gguf import Gguf
from muster.export.process import shared_reader
from muster.export.proof import Proof
from muster.export.writing import export_model, form_of

__all__ = ["Gguf", "Proof", "export_model", "form_of", "model_card", "shared_reader"]
