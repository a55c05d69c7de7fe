"""What decides in ``prm``: the options of a run, and the constants behind them, all in this file.

Lengths are in natural units of the parameters and of the signal (``profl.parts.units``), changes of f in standard
deviations of one sample, evidence in nats.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from profl import checks
from profl.parts import filters
from profl.parts.personal import ModelSplit
from profl.server import rules


@dataclass(frozen=True)
class Settings:
    """The options of one run of ``prm``.

    Attributes:
      filter: which samples a client trusts; "none", or a filter of ``profl.parts.filters``.
      aggregate: the rule by which the server combines reports (``profl.server.rules``).
      share: whether clients learn from each other how data react.
      curiosity: what exploration may cost in a deployment, in multiples of the expected excess risk.
      region: the first trust region, in natural units.
      keep: how many of its newest batches a client minimises over.
      buffer_size: how many observations of f a client keeps; more are merged.
      sharing_turns: turns of messages in a round in which clients learn from each other.
      newton_turns: turns of messages in a round in which the server minimises the fitted risk.
      personal: which part of theta stays at the client; None where all of it is shared.
      history: what past deployments say of the reaction; None where nothing is known.
    """

    filter: Any = "none"
    aggregate: Any = "mean"
    share: bool = True
    curiosity: float = 16.0
    region: float = 1.0
    keep: int = 32
    buffer_size: int = 64
    sharing_turns: int = 10
    newton_turns: int = 5
    personal: ModelSplit | None = None
    history: Any = field(default=None, metadata={"unstated": True})

    def __post_init__(self) -> None:
        checks.flag("share", self.share)
        checks.positive("curiosity", self.curiosity)
        checks.positive("region", self.region)
        checks.positive_int("keep", self.keep)
        checks.positive_int("newton_turns", self.newton_turns)
        checks.positive_int("buffer_size", self.buffer_size, least=4)
        checks.positive_int("sharing_turns", self.sharing_turns, least=0)
        filters.check(filters.get(self.filter))
        rules.get(self.aggregate)

    @property
    def turns_before_newton(self) -> int:
        """Turns of messages before the first Newton step: the verdict on what was tried, and learning from others."""
        return max(self.sharing_turns, 1) if self.share else 1

    @property
    def last_turn(self) -> int:
        """The number of a round's last turn; the first is number 0."""
        return self.turns_before_newton + self.newton_turns


MOST_PARAMETERS = 512
"""The largest model: the server solves for a matrix of so many rows."""

SURE = 2.0
"""Standard errors from which on something counts as observed: a rise of the risk, a discrepancy, a slope at an edge."""

# -- what is believed of the reaction before anything is known ---------------------------------------------------------

PRIOR_SLOPE = 3.0
"""Standard deviation of a slope of f: deviations that f changes by with one unit of the signal."""

PRIOR_CURVATURE = 0.2
"""The same of a curvature, with one unit squared; 1.0 ended about the same on four rows of the benchmark."""

PRIOR_THIRD_ORDER = 0.1
"""The same of what is not fitted, with one unit cubed. The estimate starts here and then follows the evidence."""

THIRD_ORDER_SHARE = 0.1
"""The variance of third-order coefficients is at least this share of the squared curvature: a curve seldom ends with
its second order."""

MOST_CURVED = 6
"""Size of the signal up to which products of two of its entries are fitted as well."""

SPARSE_COEFFICIENT = 0.1
"""Deviations: the size that a coefficient is taken to have, with the weight of one observation, by a client alone."""

LEAST_DIFFERENCE = 0.001
"""Deviations by which the coefficients of clients are taken to differ at least."""

# -- memory of the population ------------------------------------------------------------------------------------------

EVIDENCE_NEEDED = 20.0
"""Nats by which a memory must explain the observations better than none. With 6, a curve is taken for a memory in the
beginning."""

REACTION_SIZES = 1.0, 0.1, 0.01, 0.0001
"""Sizes of the reaction, as shares of the prior's, that are tried for each memory; the last is none."""

# -- the fitted risk ---------------------------------------------------------------------------------------------------

CURVATURE_STEP = 0.25
"""Units over which differences of the gradient are taken: few enough for a smooth loss, enough for one with kinks."""

CURVATURE_SAMPLES = 2048
"""Samples, the same share of every batch, from which curvature and covariances are computed."""

DISCREPANCY_FLOOR = 1e-4
"""Share of the variance of a mean loss that is noise at least: where risks of batches differ by rounding, that says
nothing."""

DISCREPANCY_REST = 0.01
"""Share of the differences between batches that is noise at least."""

NO_NOISE = 1e-6
"""Share of the squared size of f: a family that states less variance than that states none."""

# -- exploration -------------------------------------------------------------------------------------------------------

FIRST_PERTURBATION = 40.0
"""The first perturbation is sqrt(40 / n) units for n samples: f then moves visibly, if it moves at all."""

# -- the incumbent -----------------------------------------------------------------------------------------------------

PROMISE_KEPT = 0.5
"""Share of the promised decrease that must be observed for the trust region to grow; with less it shrinks."""

CAUTION = 1.0
"""A step is worth its expected decrease of the risk less this many standard errors of it."""

REWEIGHTINGS = 3
"""Turns in which the standard error of a step's decrease is taken into the curvature."""

# -- the server's trust region -----------------------------------------------------------------------------------------

LEAST_REGION = 0.25
"""Units: the smallest trust region, unless a step was taken back."""

FIRST_STEP = 0.6
"""Share of the trust region that the first round may use: nothing is known of the reaction then."""

REGION_USED = 0.9
"""The region may grow where a step used more than this share of it."""

REGION_IDLE = 0.25
"""The region shrinks where a step used less than this share of it, so that a run at rest does not jump."""

SHORTER_STEP = 4
"""A step that raised the fitted risk is tried again with one over this of the length."""

# -- limits on what comes in -------------------------------------------------------------------------------------------

NORMAL_SHARES = 9
"""Lengths of a normal step that are tried, from none to all of it."""

ROOM_GROWTH = 2.0
"""Factor by which a round may make more room for perturbations than the last one used: only then its cost shows."""

HALVINGS = 12
"""Halvings of a step that is drawn back until a limit holds."""

# -- consensus between clients -----------------------------------------------------------------------------------------

DAMPING = 0.1
"""Weight of the old variance in its update: where no client knows anything by itself it stays as it is."""

LEAST_KNOWN_SHARE = 1e-4
"""Least mean of 1 - v / variance: below it that difference is rounding."""

LEAST_ERROR = 0.05
"""Share of its error that is left to a coefficient that is shrunk to zero."""

# -- numerics ----------------------------------------------------------------------------------------------------------

RIDGE = 8
"""Machine epsilons added to a normalised precision matrix, so that rounding does not make it indefinite."""

LEAST_CURVATURE = 1e-4
"""Share of the largest curvature: a flatter direction is taken to be as curved as this."""

FARTHEST_MINIMUM = 16.0
"""Units: a minimum farther away is not believed, so that a straight line gets a curvature as well."""

ACTIVE_SET_ROUNDS = 4
"""Rounds of guessing which coordinates the region holds; each starts from the last one's answer."""

BOUND_PROBE = 2.0**-10
"""Units: what a coordinate is moved by to see whether a bound holds it."""

PERSONAL_PENALTY = 1e-3
"""The penalty on personal parts, as a share of the curvature; single precision leaves three digits of it."""

NEWTON_SHARES = 0.0, 0.25, 1.0
"""Shares of a client's Newton step on its personal part that are tried."""
