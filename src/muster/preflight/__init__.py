"""What a run will meet, before it starts: `muster check`.

Some groups of the run's first steps are sampled and scored, and one update is rehearsed at a learning
rate of 0, so that the weights stay what they are.

report     the record that comes out, and `preflight`, which makes it
outlook    the same run on other machines, by arithmetic; outline counts what it is from
rehearsal  groups sampled and an update taken, with their seconds and bytes
costs      from these to the time and memory of the whole run
template   whether the chat template ends turns with a stop token
"""

from muster.preflight.costs import Costs
from muster.preflight.outlook import Laid, Outlook, look_ahead
from muster.preflight.report import Preflight, Prompts, preflight
from muster.preflight.template import TurnEnd

__all__ = ["Costs", "Laid", "Outlook", "Preflight", "Prompts", "TurnEnd", "look_ahead", "preflight"]
