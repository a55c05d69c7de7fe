"""A problem: a loss, a family, a reaction, clients, and what is known exactly.

The performative risk is L(theta) = sum_i alpha_i E_{z ~ D_i(theta)} l(z; theta) (paper, Eq. 2). Its minimiser is the
performative optimum (PO); retraining on what comes in ends at a performatively stable point (PS, Eq. 3).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, html, random, trees
from profl.problem import oracle
from profl.problem.families import Family
from profl.problem.limits import MaxChange, Polyhedron, as_limits, limited_space, max_change
from profl.problem.model_space import bounds, everywhere
from profl.problem.oracle import MonteCarloReaction
from profl.problem.push import Push
from profl.problem.reaction import PooledReaction, Reaction
from profl.problem.validation import arguments
from profl.problem.validation.functions import check_functions, clear_stale_code, is_user_defined
from profl.typing import Array, Client, Loss, Theta


def check_problem(value: Any) -> None:
    """Refuse what is not a ``Problem``."""
    if not isinstance(value, Problem):
        raise checks.InputError(
            f"problem must be a profl.Problem such as profl.cases.pricing(), got {checks.shown(value)}"
        )


class View(NamedTuple):
    """What a method sees of a problem, at one client or at the server: everything but the reaction and the data."""

    loss: Loss
    family: Family
    project: Callable[[Theta], Theta]
    signal: Callable[[Theta], Array]
    jacobian: Callable[[Theta], Array] | None = None  # df/dtheta of this client, exactly, where it is known
    push: Push | None = None  # where a sample would lie under another model, where the problem says so
    live: bool = False  # whether real people react
    client_count: int = 0  # at the server
    client_ids: Array | None = None  # at the server, in ``combine``: the client of every row of the reports
    max_change: MaxChange | None = None  # how far a deployed model may lie from the one before


class Functions(NamedTuple):
    """The functions of a problem, without its data; hashable, so that compiled code is found again."""

    loss: Loss
    family: Family
    reaction: Reaction
    project: Callable[[Theta], Theta]
    signal: Callable[[Theta], Array]
    push: Push | None = None
    max_change: MaxChange | None = None

    def view(self, client: Client | None = None, family: Family | None = None) -> View:
        """What a method sees at a client; at the server where there is none. ``family`` stands in for the problem's."""
        exact = None
        if client is not None and self.reaction.parameters is not None:
            exact = partial(oracle.exact_jacobian, self.reaction, client=client)
        return View(
            self.loss,
            family or self.family,
            self.project,
            self.signal,
            exact,
            self.push,
            self.reaction.live,
            max_change=self.max_change,
        )


@checks.explain_call
@dataclass(frozen=True, eq=False)
class Problem:
    """What is to be learned, by whom, and how the data react.

    Args:
      name: shown in tables and plots.
      loss: ``loss(theta, z)`` of one sample, a scalar.
      family: describes the data's distribution by f; see ``profl.problem.families``.
      reaction: ``sample(key, theta, client, n) -> batch``, or a ``Reaction`` that also knows exact answers.
      clients: a pytree whose leaves have one row per client, or a list of dicts, one per client.
      initial: ``initial(key) -> theta``, or the model to start from.
      project: onto the model space.
      weights: alpha_i; equal by default. A client of weight 0 takes part, and its model counts for nothing.
      signal: what the data react to, a vector made from theta; theta itself by default.
      push: ``push(z, deployed, theta)``, where a sample z that came in under ``deployed`` would lie under ``theta``, if
        that is known. See ``profl.problem.push``.
      version: a word that stands for what cannot be compared from process to process, such as compiled code; a
        checkpoint or a Flower node with another one is refused.
      limits: ``profl.LinearLimits``, ``profl.MaxChange``, or a list of them: what every deployed model keeps.

    A global that a function here reads may change between two runs: the next one sees it, and compiles anew.

    >>> def sample(key, theta, client, n):
    ...     return 6.0 - client["gamma"] * theta + random.normal(key, n, 1)
    >>> from profl.problem.families import GaussianMean
    >>> from profl.problem.model_space import Box
    >>> problem = Problem(
    ...     "one good", lambda theta, z: -jnp.sum(theta * z), GaussianMean(), sample,
    ...     clients={"gamma": jnp.array([1.0, 2.0])}, initial=lambda key: jnp.ones(1), project=Box(0.0, 5.0),
    ... ).solve()
    >>> bool(abs(problem.optimum[0] - 2.0) < 0.02), bool(abs(problem.stable[0] - 4.0) < 0.04)
    (True, True)
    """

    name: str
    loss: Loss
    family: Family
    reaction: Reaction
    clients: Client
    initial: Any
    project: Callable[[Theta], Theta] = everywhere
    weights: Any = None
    signal: Callable[[Theta], Array] = trees.ravel
    push: Any = None
    version: str | None = None
    limits: Any = ()

    def __post_init__(self) -> None:
        parts = arguments.check_statement(self) | {"reaction": arguments.as_reaction(self.reaction)}
        for name, part in parts.items():
            arguments.check_hashable(name, part)
        parts |= {"initial": arguments.as_initial(self.initial), "clients": arguments.as_clients(self.clients)}
        parts["weights"] = checks.client_weights(self.weights, trees.rows(parts["clients"]))
        parts["limits"] = as_limits(self.limits)
        for name, part in parts.items():
            object.__setattr__(self, name, part)
        clear_stale_code(*self.functions)
        check_functions(self)
        if self.limits or isinstance(self.project, Polyhedron):
            object.__setattr__(self, "project", limited_space(self.project, self.limits, self._like))

    def __repr__(self) -> str:
        shapes = ", ".join(str(leaf.shape) for leaf in jax.tree.leaves(self._like))
        known = "exact answers known" if self.exact else "no exact answers: .solve() finds them"
        return f"<Problem {self.name!r}: {self.count} clients, model {shapes}, {known}>"

    def _repr_html_(self) -> str:
        return html.text(repr(self)[1:-1])

    @property
    def count(self) -> int:
        """The number of clients."""
        return trees.rows(self.clients)

    @property
    def functions(self) -> Functions:
        change = max_change(self.limits)
        return Functions(self.loss, self.family, self.reaction, self.project, self.signal, self.push, change)

    @property
    def exact(self) -> bool:
        """Whether the risk, the optimum and the stable point are known."""
        return self.reaction.decoupled is not None

    @property
    def live(self) -> bool:
        """Whether real people react, as in ``profl.LiveProblem``."""
        return self.reaction.live

    def pooled(self) -> Problem:
        """The same problem for one centralised learner with the data of all clients."""
        clients = jax.tree.map(lambda leaf: leaf[None], {"members": self.clients, "weights": self.weights})
        return replace(self, clients=clients, weights=None, reaction=PooledReaction(self.reaction))

    def solve(self, samples: int = 20_000) -> Problem:
        """This problem with numerical answers, from ``samples`` fixed draws per client.

        The optimum is the best local minimum from the starts of five seeds, the stable point and the best four of 64
        scattered models: it need not be the global one. A run that falls below it says so.
        """
        checks.positive_int("samples", samples)
        if self.exact:
            return self
        return replace(self, reaction=MonteCarloReaction(self.reaction, self.family, self.loss, samples))

    def at(self, time: float) -> Problem:
        """The problem with its world frozen after ``time`` deployments; this one, unless its world drifts."""
        checks.real("time", time)
        if not self.reaction.drifts:
            return self
        with jax.enable_x64(True):
            reaction, clients = self.reaction.at(trees.cast(self.clients, jnp.float64), time)
        return replace(self, reaction=reaction, clients=jax.tree.map(np.asarray, clients))

    # -- exact answers, in double precision ----------------------------------------------------------------------------

    def risk(self, theta: Theta) -> float:
        """L(theta), exactly."""
        return self.decoupled_risk(theta, theta)

    def risks(self, thetas: Theta) -> np.ndarray:
        """L(theta) of a stack of models, exactly."""
        return self._evaluate("risks", thetas, stacked=True)

    def client_risks(self, theta: Theta) -> np.ndarray:
        """L_i(theta) of every client, exactly."""
        return self._evaluate("client_risks", theta, theta)

    def own_risks(self, thetas: Theta) -> np.ndarray:
        """L_i(theta_i) of every client at a model of its own, one row of ``thetas`` each, exactly."""
        self._check_models(thetas, stacked=True)
        if (rows := trees.rows(thetas)) != self.count:
            raise checks.InputError(f"own_risks takes one model per client, {self.count}, got {rows}")
        return self._evaluate("own_risks", thetas, stacked=True)

    def decoupled_risk(self, deployed: Theta, theta: Theta) -> float:
        """DPR(deployed; theta): the risk of ``theta`` on the data that ``deployed`` brings in."""
        return float(self.weights @ self._evaluate("client_risks", deployed, theta))

    def risk_error(self, theta: Theta) -> float:
        """The standard error of L(theta), where ``solve`` estimates it from draws; else 0."""
        if not isinstance(self.reaction, MonteCarloReaction):
            return 0.0
        return float(np.sqrt(self.weights**2 @ self._evaluate("risk_variances", theta)))

    def gradient(self, theta: Theta) -> Theta:
        """The performative gradient, exactly: both terms of the paper's Eq. 4."""
        return self._evaluate("gradient", theta)

    def stable_gradient(self, theta: Theta) -> Theta:
        """The gradient that repeated gradient descent follows: the data held fixed, L1 alone."""
        return self._evaluate("stable_gradient", theta)

    def stable_jacobian(self, theta: Theta) -> np.ndarray:
        """The Jacobian (d, d) of ``stable_gradient`` of a flattened model, with the data's reaction in it, exactly."""
        self._need_risk()
        return self._evaluate("stable_jacobian", theta)

    def jacobian(self, theta: Theta) -> np.ndarray:
        """df_i/dtheta of every client, exactly: shape (clients, p, size of theta)."""
        if self.reaction.parameters is None:
            raise checks.InputError(f"problem {self.name!r} does not state f(theta) of a client: no exact Jacobian")
        return self._evaluate("jacobian", theta)

    def accuracy(self, theta: Theta) -> float:
        """Share of right decisions on the data of D(theta) (classification only)."""
        return self._evaluate("accuracy", theta)

    def accuracies(self, thetas: Theta) -> np.ndarray:
        """The accuracy of a stack of models."""
        return self._evaluate("accuracies", thetas, stacked=True)

    @property
    def optimum(self) -> Theta:
        """The performative optimum PO (float64)."""
        return self._known_points[0]

    @property
    def stable(self) -> Theta:
        """A performatively stable point PS (float64); the one that attracts, where one does."""
        return self._known_points[1]

    # -- inside --------------------------------------------------------------------------------------------------------

    @property
    def _known_points(self) -> tuple[Theta, Theta]:
        """(PO, PS), computed once, and again where a function has changed that they follow from."""
        self._need_risk()
        marks = clear_stale_code(self.reaction, self.project, self.initial)
        if self._cache.get("marks") != marks:
            self._cache.update(marks=marks, points=self._solve_points())
        return self._cache["points"]

    @cached_property
    def _cache(self) -> dict[str, Any]:
        return {}

    def initial_models(self, seeds: Sequence[int]) -> Theta:
        """The models that runs of these seeds start from, one row each, as NumPy arrays.

        They are made some at a time, so that any number of seeds takes the same small programs.
        """
        numbers = np.asarray(seeds)
        if numbers.ndim != 1 or numbers.dtype.kind not in "iu":
            raise checks.InputError(f"seeds must be whole numbers such as range(3), got {checks.shown(seeds)}")
        return trees.map_blocks(lambda block: jax.vmap(self.initial)(random.start_keys(block)), numbers)

    def _solve_points(self) -> tuple[Theta, Theta]:
        starts = self.initial_models(range(5))
        if all(np.all(leaf == leaf[:1]) for leaf in jax.tree.leaves(starts)):  # whatever the seed: one will do
            starts = jax.tree.map(lambda leaf: leaf[:1], starts)
        first, others = trees.take(starts, 0), None
        if is_user_defined(self.reaction):
            others = oracle.scattered_models(first, bounds(self.project))
        world = (self.reaction, self.project, self.clients, self.weights)
        optimum, stable, least = oracle.known_points(*world, starts, others)
        if not np.isfinite(least):
            self._need_finite(first)
        return optimum, stable

    def _need_finite(self, theta: Theta) -> None:
        """Refuse clients whose risk at ``theta`` is not finite, by their numbers."""
        bad = np.flatnonzero(~np.isfinite(self.client_risks(theta)))
        if not bad.size:
            return
        leaves = jax.tree_util.tree_leaves_with_path(trees.take(self.clients, bad))
        floats = [(jax.tree_util.keystr(path), leaf) for path, leaf in leaves if leaf.dtype.kind == "f"]
        names = [name for name, leaf in floats if not np.isfinite(leaf).all()]
        first = ", ".join(map(str, bad[:6])) + (", ..." if bad.size > 6 else "")
        raise checks.InputError(
            f"the risk of client {first} ({bad.size} of {self.count}) is NaN or Inf at the initial model, so there is "
            f"no optimum: look at {' and '.join(f'clients{name}' for name in names) or 'its data and the loss'}"
        )

    def _evaluate(self, name: str, *models: Theta, stacked: bool = False) -> Any:
        """The result of one of ``oracle.FUNCTIONS``; ``stacked`` where a model has one row more."""
        clear_stale_code(self.reaction)
        if "risk" in name or "gradient" in name:
            self._need_risk()
        if "accurac" in name and self.reaction.accuracy is None:
            raise checks.InputError(f"accuracy needs a classification problem, got {self.name!r}")
        for model in models:
            self._check_models(model, stacked)
        evaluate = oracle.evaluate_each if name in ("risks", "accuracies") else oracle.evaluate
        return evaluate(name, self.reaction, self.clients, self.weights, *models)

    def _check_models(self, models: Theta, stacked: bool) -> None:
        """Refuse what is no model of this problem; ``stacked`` where there is one row per model."""
        if stacked and any(np.ndim(leaf) == 0 for leaf in [*jax.tree.leaves(models), *([0] if models is None else [])]):
            raise checks.InputError(f"thetas must have one row per model, got {checks.shown(models)}")
        checks.same_structure("theta", trees.take(models, 0) if stacked else models, self._like)

    def _need_risk(self) -> None:
        if not self.exact:
            raise checks.InputError(
                f"problem {self.name!r} has no closed-form risk; call problem.solve() to find the answers numerically"
            )

    @cached_property
    def _like(self) -> Theta:
        return jax.eval_shape(self.initial, random.seed_key(0))
