"""What a configuration names to be imported and called."""

from collections.abc import Iterator

from muster.config.sections import Config

AXES = ("advantage", "objective", "correction", "gate", "kl", "weights")


def own_functions(config: Config) -> Iterator[tuple[str, str]]:
    """The choices of a recipe that name a function to import, each with its field."""
    for axis in AXES:
        choice = getattr(config.algo, axis)
        if choice is not None and ":" in choice.use:
            yield f"algo.{axis}", choice.use


def own_code(config: Config) -> Iterator[tuple[str, str]]:
    """The same, and the rewards, the function over rows and the environment that are named so."""
    yield from own_functions(config)
    for use in config.reward.use:
        if ":" in use:
            yield "reward.use", use
    if config.data.map is not None:
        yield "data.map", config.data.map
    if config.data.environment is not None and ":" in config.data.environment:
        yield "data.environment", config.data.environment
