"""Muster fine-tunes language models with GRPO: it gathers groups of completions and inspects them."""
