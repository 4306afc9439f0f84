"""Prompts: from files and hub data sets to samples, their order, and their token ids."""

from muster.data.answer_tokens import EncodedAnswer, EncodedAnswers, encode_answers
from muster.data.answers import Answered
from muster.data.encoding import EncodedPrompt, EncodedPrompts, Tokenizer, encode_prompts, render_chats
from muster.data.loading import load_answers, load_samples
from muster.data.order import num_steps, prompt_order, weighted_draw

__all__ = [
    "Answered",
    "EncodedAnswer",
    "EncodedAnswers",
    "EncodedPrompt",
    "EncodedPrompts",
    "Tokenizer",
    "encode_answers",
    "encode_prompts",
    "load_answers",
    "load_samples",
    "num_steps",
    "prompt_order",
    "render_chats",
    "weighted_draw",
]
