"""Environments: what a policy talks to for several turns, with tools or without; free of torch.

    reset(row) -> opening     step(text) -> reply, None at the end     reward() -> number or named numbers

base      the protocol, its limits, and what may be said
tools     functions that the policy may call, and the calls found in its texts
loading   environments by name: built in, or `file.py:Name`
hosting   the environments of one process, by episode; whatever user code does is an answer or a failure
stage     where they live, as the run sees it: in this process, or in processes that can be ended
worker    such a process
glue      what the chat template puts between turns, as token ids
opening   the prompts that environments open with, and how the policy is told of tools
trl       environments written for TRL
verifiers tasks written for verifiers
"""

from muster.envs.base import MAX_TURNS, Environment, Limits
from muster.envs.glue import Glue
from muster.envs.loading import BUILTINS
from muster.envs.pool import StagePool
from muster.envs.stage import Failed, InlineStage, Order, Stage
from muster.envs.tools import Tool, tool
from muster.envs.trl import from_trl
from muster.envs.verifiers import from_verifiers

__all__ = [
    "BUILTINS",
    "MAX_TURNS",
    "Environment",
    "Failed",
    "Glue",
    "InlineStage",
    "Limits",
    "Order",
    "Stage",
    "StagePool",
    "Tool",
    "from_trl",
    "from_verifiers",
    "tool",
]
