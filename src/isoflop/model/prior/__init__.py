"""Local priors: which keys a query prefers before queries and keys are looked at.

A prior is a *measure* G of how far a key is from where a query would look, and a way it acts: as a penalty, as a
distribution mixed into the weights, as a factor, or in the place of the weights.
"""

# Kinds are listed in this order.
# isort: off
from isoflop.model.prior.measure import Distance, Gaussian, GaussianTransformer
from isoflop.model.prior.penalty import Penalty
from isoflop.model.prior.mixture import Mixing
from isoflop.model.prior.multiplicative import Multiplicative
from isoflop.model.prior.hard_coded import HardCoded
from isoflop.model.prior.sink import Sink

__all__ = ["Distance", "Gaussian", "GaussianTransformer", "HardCoded", "Mixing", "Multiplicative", "Penalty", "Sink"]
