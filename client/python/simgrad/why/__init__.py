"""Why did my gradient change: runs of one piece of work, compared.

`Client.compare`, `Client.sensitivity` and `Client.tune` are made of Rollout and Gradient calls. The files
here know nothing of the wire.
"""

from simgrad.why.compare import Comparison, Pair
from simgrad.why.fork import Fork, Forks, Side
from simgrad.why.sentence import Sentence
from simgrad.why.sensitivity import Sensitivity, SiteSensitivity
from simgrad.why.split import Parts
from simgrad.why.tune import Knob, Trial, Tuned

__all__ = ["Comparison", "Fork", "Forks", "Knob", "Pair", "Parts", "Sensitivity", "Sentence", "Side", "SiteSensitivity", "Trial", "Tuned"]
