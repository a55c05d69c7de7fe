"""Personal parts in ``prm``: a client minimises its fitted risk over its personal part, and reports what is left.

    theta = (shared, personal):   the server moves the shared part, each client its own personal part

``prm`` moves no part in its steps, so the personal part moves when mail comes (``update_personal``), and the report is
that of a client whose personal part follows the shared one (``report_shared_only``; ``partial_minimisation``). In place
of its personal part a client reports the one that the run began with.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.flatten_util import ravel_pytree

from profl import trees
from profl.methods.prm import partial_minimisation
from profl.methods.prm.messages import RiskFit
from profl.methods.prm.newton import inactive_bounds
from profl.methods.prm.settings import BOUND_PROBE
from profl.methods.prm.state import ClientState, PersonalPart
from profl.methods.prm.surrogate_risk import surrogate_risk
from profl.parts.personal import ModelSplit
from profl.problem.problem import View
from profl.server import entries
from profl.server.entries import Report
from profl.typing import Array, Theta


class PersonalRegion(NamedTuple):
    """Where a personal part may go from where it was deployed; steps (d,) in units, zero for shared parameters."""

    at: Array  # the present step
    model: Callable[[Array], Array]  # the flat model after a step
    project: Callable[[Array], Array]  # a step inside the trust region and the model space


def own_model(split: ModelSplit | None, state: ClientState, theta: Theta) -> Theta:
    """``theta`` with the client's personal part in it; ``theta`` where all of it is shared."""
    return theta if split is None else split.join(theta, parts(state).now)


def parts(state: ClientState) -> PersonalPart:
    """The personal part of a client that has one."""
    assert state.personal is not None
    return state.personal


def remember_deployed(split: ModelSplit | None, state: ClientState) -> ClientState:
    """The state in which the present personal part is the one that was deployed last."""
    if split is None:
        return state
    personal = parts(state)
    return state._replace(personal=personal._replace(deployed=personal.now, was_deployed=jnp.asarray(True)))


def update_personal(split: ModelSplit, problem: View, state: ClientState, theta: Theta) -> ClientState:
    """The state with the personal part nearer to where the client's fitted risk is least, beside a new ``theta``."""
    theta = own_model(split, state, theta)
    unravel, units, region = ravel_pytree(theta)[1], state.units, region_of(split, problem, state, theta)
    curvature = state.derivatives.curvature * units[:, None] * units
    y = partial_minimisation.newton_step(
        lambda y: surrogate_risk(problem, state.surrogate, unravel(region.model(y))),
        curvature,
        region.at,
        region.project,
    )
    now = split.personal(unravel(region.model(y)))
    return state._replace(personal=parts(state)._replace(now=now))


def report_shared_only(split: ModelSplit, problem: View, state: ClientState, theta: Theta, report: Report) -> Report:
    """The report of a client whose personal part follows the shared one; nothing of the personal part is in it."""
    (flat, unravel), units, personal = ravel_pytree(theta), state.units, split.mask(theta)
    square = units[:, None] * units
    fit = RiskFit.from_table(report["fit"].value)
    gradient, matrices = fit.gradient * units, tuple(matrix * square for matrix in fit[2:])
    region = region_of(split, problem, state, theta)
    held = personal & ~inactive_bounds(gradient, region.at, region.project)
    beyond = jnp.where(held, flat - BOUND_PROBE * units * jnp.sign(gradient), flat)
    carried = jax.jacfwd(lambda vector: trees.ravel(problem.project(unravel(vector))))(beyond)
    curvature = matrices[0]
    moves = partial_minimisation.response_to_shared(curvature, personal, held, carried * units / units[:, None])
    initial = trees.ravel(split.join(theta, parts(state).initial))
    offset = jnp.where(personal, (flat - initial) / units, 0.0)
    gradient, matrices_left = partial_minimisation.profile(gradient, matrices, offset, personal, moves)
    penalty = offset @ partial_minimisation.penalty(curvature, personal) @ offset / 2
    left = RiskFit(gradient / units, units, *[matrix / square for matrix in matrices_left])
    return {
        **report,
        "theta": entries.model(split.join(theta, parts(state).initial)),
        "risk": entries.statistic(report["risk"].value + penalty),
        "fit": entries.statistic(left.to_table()),
    }


def region_of(split: ModelSplit, problem: View, state: ClientState, theta: Theta) -> PersonalRegion:
    """Where the personal part of ``theta`` may go."""
    (flat, unravel), units, personal = ravel_pytree(theta), state.units, split.mask(theta)
    start = trees.ravel(split.join(theta, parts(state).deployed))

    def model(y: Array) -> Array:
        return jnp.where(personal, start + units * y, flat)

    def project(y: Array) -> Array:
        y = jnp.clip(y, -state.region, state.region)
        return jnp.where(personal, (trees.ravel(problem.project(unravel(model(y)))) - start) / units, 0.0)

    return PersonalRegion(jnp.where(personal, (flat - start) / units, 0.0), model, project)


def final_personal(state: ClientState) -> Any:
    """The personal part at the end of a run, NaN where no deployment is known here."""
    personal = parts(state)
    return jax.tree.map(lambda leaf: jnp.where(personal.was_deployed, leaf, jnp.nan), personal.now)
