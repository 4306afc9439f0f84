"""The pool that rewards run in.

grader     which reward runs where, and scores from what comes back
crew       tasks over workers, each under a limit on the clock
launching  workers started and ended, from the run's side
serving    the fork server that is their parent
working    what a worker does
wire       what crosses the line, as JSON
channel    the run's end of the line
trees      processes with all that they started
"""

from muster.rewards.pool.grader import CallTimes, PoolGrader, default_workers

__all__ = ["CallTimes", "PoolGrader", "default_workers"]
