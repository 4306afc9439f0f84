"""A run's stored rollouts under another reward or recipe, without sampling again."""

from muster.regrade.asking import Asked
from muster.regrade.regrading import Regraded, regrade

__all__ = ["Asked", "Regraded", "regrade"]
