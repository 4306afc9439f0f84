"""The optimizer of a run: chosen by name, tried before a model loads, kept in checkpoints."""

from muster.optimizer.choosing import Chosen, choose, make_optimizer, optimizer_order
from muster.optimizer.rehearsal import Rehearsed, rehearse
from muster.optimizer.state import Kept, kept, put_back, state_bytes

__all__ = [
    "Chosen",
    "Kept",
    "Rehearsed",
    "choose",
    "kept",
    "make_optimizer",
    "optimizer_order",
    "put_back",
    "rehearse",
    "state_bytes",
]
