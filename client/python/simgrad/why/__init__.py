"""Why did my gradient change: runs of one piece of work, compared.

The runs of `Client.compare` and `Client.sensitivity` are one call of Compare where the server has it, else calls of
Rollout and Gradient, as those of `Client.tune` are. The files here know nothing of the wire.
"""

from simgrad.why.compare import Comparison, Pair
from simgrad.why.fork import Fork, Forks, Side
from simgrad.why.sentence import Sentence
from simgrad.why.sensitivity import Sensitivity, SiteSensitivity
from simgrad.why.split import Parts
from simgrad.why.tune import Knob, Trial, Tuned

__all__ = ["Comparison", "Fork", "Forks", "Knob", "Pair", "Parts", "Sensitivity", "Sentence", "Side", "SiteSensitivity", "Trial", "Tuned"]
