"""The whole configuration of a run: one TOML file and flags, checked before any model loads; torch-free."""

from muster.config.checks import reward_names
from muster.config.comparing import Changed, Differences, changed_settings, compare, shown_or_absent
from muster.config.describing import Field, fields
from muster.config.fingerprints import fingerprints
from muster.config.kinds import Choice, minutes_of
from muster.config.loading import from_mapping, load
from muster.config.names import is_name
from muster.config.own_code import own_code, own_functions
from muster.config.printing import explained_rows, explained_toml
from muster.config.sections import (
    AlgoConfig,
    Config,
    DataConfig,
    EngineConfig,
    EvalConfig,
    LoraConfig,
    ModelConfig,
    OptimConfig,
    RewardConfig,
    RunConfig,
    SamplingConfig,
)
from muster.config.toml import to_toml, toml_value

__all__ = [
    "AlgoConfig",
    "Choice",
    "Changed",
    "Config",
    "DataConfig",
    "Differences",
    "EngineConfig",
    "EvalConfig",
    "Field",
    "LoraConfig",
    "ModelConfig",
    "OptimConfig",
    "RewardConfig",
    "RunConfig",
    "SamplingConfig",
    "changed_settings",
    "compare",
    "explained_rows",
    "explained_toml",
    "fields",
    "fingerprints",
    "from_mapping",
    "is_name",
    "load",
    "minutes_of",
    "own_code",
    "own_functions",
    "reward_names",
    "shown_or_absent",
    "to_toml",
    "toml_value",
]
