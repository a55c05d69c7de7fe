"""``literal``: Algorithm 1 and 2 of the paper as they are printed, to be compared with ``profl``.

Nothing is added: no exploration, no baseline, no units, plain means at the server. Four things the text leaves open are
read so:

* Line 21 averages where t mod R = 0, right after the first of R local steps, and line 3 hands that average out R - 1
  steps later, which would throw all other steps away. Models are averaged after the last of R steps.
* Where Algorithm 2 keeps no sample, the set before that cut is used (``run.info["emptied"]`` counts it).
* Where the bound for n_i has a negative denominator, the largest n is drawn.
* How k-means is seeded: by k-means++, once.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from profl import checks
from profl.methods.chain import Chain, chain
from profl.parts.averaging import Averaging
from profl.parts.filters.paper import PaperFilter
from profl.parts.jacobian.estimated import EstimatedJacobian
from profl.parts.literal import RobustGradient, ScoreGradient, SharedUpdate, WindowDifferences
from profl.parts.optimiser import Optimiser
from profl.parts.parameters import EstimatedParameters
from profl.parts.part import Part
from profl.parts.sample_size import AdaptiveSamples


@checks.explain_call
def literal(
    learning_rate: float = 0.01,
    window: int = 20,
    *,
    filter: Any = "paper",
    clusters: int | None = None,
    local_steps: int = 1,
    samples: AdaptiveSamples | None = None,
) -> Chain:
    """Algorithm 1 with Algorithm 2, as printed.

    Args:
      learning_rate: eta.
      window: H, the earlier deployments that df/dtheta is estimated from; for t <= H the update is L1 alone.
      filter: "paper" (Algorithm 2 with B = 50, J1 = 0.01, J2 = 0.05), a ``profl.parts.PaperFilter``, or "none" for the
        algorithm without lines 7 and 11, which the paper calls PoFL.
      clusters: C, with which Jacobians are shared at every local step (lines 18-20); None leaves these lines out. Run
        it with ``profl.simulate(..., local_steps=1)``: a round is then one local step.
      local_steps: R, after how many of them models are averaged where Jacobians are shared; otherwise R is the
        ``local_steps`` of the run.
      samples: a ``profl.parts.AdaptiveSamples``, which then uses the paper's bound for n_i; None for a fixed number.

    >>> import profl
    >>> run = profl.simulate(profl.cases.housing(), literal(window=2), rounds=5, samples=50, seeds=0, progress=False)
    >>> run.excess.shape
    (1, 6)
    """
    if filter not in ("paper", "none") and not isinstance(filter, PaperFilter):
        raise checks.InputError(
            f"filter must be 'paper', 'none' or a profl.parts.PaperFilter, got {checks.shown(filter)}"
        )
    if samples is not None and not isinstance(samples, AdaptiveSamples):
        raise checks.InputError(
            f"samples must be profl.parts.AdaptiveSamples(...) or None, got {checks.shown(samples)}"
        )
    if clusters is None and local_steps != 1:
        raise checks.InputError(
            f"local_steps is for clusters; without them it belongs to the run: simulate(..., local_steps={local_steps})"
        )
    sized = None if samples is None else replace(samples, rule="paper", window=window, learning_rate=learning_rate)
    robust = None if filter == "none" else RobustGradient(PaperFilter() if filter == "paper" else filter)
    estimated = (EstimatedParameters(), EstimatedJacobian(WindowDifferences(window)))  # lines 8, 12 and 13
    update: tuple[Part | None, ...]
    if clusters is None:
        update = (ScoreGradient(), sized, Optimiser(learning_rate))  # lines 9 and 14, and 15
    else:
        update = (SharedUpdate(learning_rate, clusters, local_steps), sized)  # lines 9 and 14, 18-20, and 15
    return chain(robust, *estimated, *update, Averaging("mean"), name="literal")
