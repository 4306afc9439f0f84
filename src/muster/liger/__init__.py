"""liger-kernel's norms and gated activations on a GPU: used where they equal the modules' own and are faster.

Its kernels (arXiv:2410.10989) compute in one pass what modules do in several. None takes a module's place
untried: on the sizes and in the precision in which the model meets it, its results and gradients are compared
with those of `muster.lean`'s functions in float64, and it is timed against the module's own code. Outside of
GPUs nothing is tried, and liger-kernel isn't imported.
"""

from muster.liger.fitting import fit
from muster.liger.parts import Kernels, installed
from muster.liger.pieces import MARGIN, Pieces, Trial
from muster.liger.trying import BOUNDS

__all__ = ["BOUNDS", "MARGIN", "Kernels", "Pieces", "Trial", "fit", "installed"]
