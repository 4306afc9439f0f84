"""A small model of what a run costs on other machines: bytes and seconds of a step by arithmetic alone.

Free of torch. What goes in is counted from the model's own configuration (`facts`) or stated as an
assumption (`rates`); nothing in it was measured on the machines it speaks of.

layouts  on how many nodes, devices and servers
facts    what the model and the run are
rates    what a device and a network are taken to do
paces    seconds of a pass, of a token and of an optimizer's step on one device
memory   bytes on one device
step     a step on a layout: its parts in seconds and bytes, and where more devices stop helping
"""

from muster.scaling.facts import Model, Work
from muster.scaling.layouts import Layout, read_layouts
from muster.scaling.memory import Memory, memory_of, tokens_within
from muster.scaling.paces import Paces, assumed_paces
from muster.scaling.rates import Assumption, Rates, read_rates
from muster.scaling.step import Limit, Part, Step, curve, limit_of, step_of

__all__ = [
    "Assumption",
    "Layout",
    "Limit",
    "Memory",
    "Model",
    "Paces",
    "Part",
    "Rates",
    "Step",
    "Work",
    "assumed_paces",
    "curve",
    "limit_of",
    "memory_of",
    "read_layouts",
    "read_rates",
    "step_of",
    "tokens_within",
]
