"""Prompts: from files and hub data sets to samples, their order, and their token ids."""

from muster.data.encoding import EncodedPrompt, EncodedPrompts, Tokenizer, encode_prompts, render_chats
from muster.data.loading import load_samples
from muster.data.order import num_steps, prompt_order, weighted_draw

__all__ = [
    "EncodedPrompt",
    "EncodedPrompts",
    "Tokenizer",
    "encode_prompts",
    "load_samples",
    "num_steps",
    "prompt_order",
    "render_chats",
    "weighted_draw",
]
