"""The command line: one module per verb, each of which imports what it runs when it runs."""

from muster.cli.entry import main

__all__ = ["main"]
