"""Rewards: how functions are called, what they give, and the ones that come with Muster."""

from muster.rewards.calling import Logged, TrainerState
from muster.rewards.grading import Grader, InlineGrader, grade, refuse_failures
from muster.rewards.json_extraction import json_extraction
from muster.rewards.library import isolations
from muster.rewards.loading import BUILTINS, load_rewards
from muster.rewards.pool import CallTimes, PoolGrader
from muster.rewards.reward import Reward, check_columns, count_levels, describe
from muster.rewards.texts import char_count, contains_answer

__all__ = [
    "BUILTINS",
    "CallTimes",
    "Grader",
    "InlineGrader",
    "Logged",
    "PoolGrader",
    "Reward",
    "TrainerState",
    "char_count",
    "check_columns",
    "contains_answer",
    "count_levels",
    "describe",
    "grade",
    "isolations",
    "json_extraction",
    "load_rewards",
    "refuse_failures",
]
