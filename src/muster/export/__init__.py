"""The trained model on disk: written, read back by a fresh process, compared, then published."""

from muster.export.card import model_card
from muster.export.gguf import Gguf
from muster.export.process import shared_reader
from muster.export.proof import Proof
from muster.export.writing import export_model

__all__ = ["Gguf", "Proof", "export_model", "model_card", "shared_reader"]
