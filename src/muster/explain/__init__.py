"""The teaching pictures: what the algorithm's own functions say, on a real model, as numbers to look at."""

from muster.explain.advantages import explain_advantages as explain_advantages
from muster.explain.clip import explain_clip as explain_clip
from muster.explain.kl import explain_kl as explain_kl
from muster.explain.next_token import explain_next_token as explain_next_token
from muster.explain.step import explain_step as explain_step
from muster.explain.weights import explain_weights as explain_weights
