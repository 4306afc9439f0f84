"""Runs from Python: their numbers as tables, their curves as figures, what a notebook shows of them.

`panels` has the inspector's curves, `figures` and `drawing` draw them, `opened` is a run on disk, `following`
shows one that goes on.
"""

from muster.notebook.drawing import Drawing
from muster.notebook.following import follow, is_notebook
from muster.notebook.opened import OpenRun, open_run
from muster.notebook.samples import Samples

__all__ = ["Drawing", "OpenRun", "Samples", "follow", "is_notebook", "open_run"]
