"""What can go wrong, as exceptions.

MusterError
├── ConfigError      (ValueError)    a setting, a flag or a file named by one is wrong
├── DataError        (ValueError)    a data file or one of its rows is wrong
├── RewardError      (RuntimeError)  a reward function can't be used, or too many of its calls failed
├── EngineError      (RuntimeError)  sampling failed, or the sampler is not the trainer's policy
│   └── EngineLostError              no server that samples can be reached
├── ModelError       (RuntimeError)  a model can't be loaded, adapted or verified
├── TrainingError    (RuntimeError)  the update can't go on (non-finite gradients in a row)
│   └── RankError                    another of the processes that train together failed or is gone
├── CheckpointError  (RuntimeError)  a checkpoint or an export can't be written, found or trusted
└── DiskFullError    (OSError)       a file has no room; gives the bytes needed and free

Each message says what was wrong, the value, where, and what to do.
"""


class MusterError(Exception):
    """Base of every error that Muster raises on purpose."""


class ConfigError(MusterError, ValueError):
    """A setting is wrong; found before any model is loaded."""


class DataError(MusterError, ValueError):
    """A data file or one of its rows is wrong; names file and row."""


class RewardError(MusterError, RuntimeError):
    """A reward function can't be used, or too many of its calls failed."""


class EngineError(MusterError, RuntimeError):
    """Sampling failed, or the sampler disagrees with the trainer."""


class EngineLostError(EngineError):
    """No server that samples can be reached: a run can be saved, and goes on once one is back."""


class ModelError(MusterError, RuntimeError):
    """A model can't be loaded, adapted or verified."""


class TrainingError(MusterError, RuntimeError):
    """The update can't go on."""


class RankError(TrainingError):
    """Another of the processes that train together failed, or is gone."""


class CheckpointError(MusterError, RuntimeError):
    """A checkpoint or an export can't be written, found or trusted."""


class DiskFullError(MusterError, OSError):
    """A file has no room on its disk."""
