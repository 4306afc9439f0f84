"""The run folder: one writer under a lock, many readers; torch-free.

config.toml  meta.json  tokenizer.json  metrics.jsonl  timings.jsonl  index  groups.jsonl  events.jsonl
rollouts/000012.parquet  eval/000050.parquet  checkpoints/  final/
"""

from muster.store.groups import Got, groups_line, quantile
from muster.store.lock import is_being_written
from muster.store.meta import collect_meta
from muster.store.reading import (
    CONFIG,
    EVENTS,
    GROUPS,
    INDEX,
    META,
    METRICS,
    SCHEMA_VERSION,
    STATES,
    TIMINGS,
    TOKENIZER,
    RunInfo,
    choose_name,
    eval_file,
    eval_steps,
    held_out_rewards,
    list_runs,
    read_eval,
    read_events,
    read_index,
    read_meta,
    read_metrics,
    read_prompt_scores,
    read_rollouts,
    read_timings,
    rollout_steps,
    rollouts_file,
    was_stopped,
)
from muster.store.rows import SCHEMA, PromptScores, Rollouts, from_parquet, to_parquet
from muster.store.strict import Line, to_json
from muster.store.writer import RunStore

__all__ = [
    "CONFIG",
    "EVENTS",
    "GROUPS",
    "INDEX",
    "META",
    "METRICS",
    "SCHEMA",
    "SCHEMA_VERSION",
    "STATES",
    "TIMINGS",
    "TOKENIZER",
    "Got",
    "Line",
    "PromptScores",
    "Rollouts",
    "RunInfo",
    "RunStore",
    "choose_name",
    "collect_meta",
    "eval_file",
    "eval_steps",
    "from_parquet",
    "groups_line",
    "held_out_rewards",
    "is_being_written",
    "list_runs",
    "quantile",
    "read_eval",
    "read_events",
    "read_index",
    "read_meta",
    "read_metrics",
    "read_prompt_scores",
    "read_rollouts",
    "read_timings",
    "rollout_steps",
    "rollouts_file",
    "to_json",
    "to_parquet",
    "was_stopped",
]
