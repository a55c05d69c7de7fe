"""A problem: a loss, a family, how the data react, who the clients are, and what is known exactly.

The performative risk is L(theta) = sum_i alpha_i E_{z ~ D_i(theta)} l(z; theta) (paper, Eq. 2). Its minimiser is the
performative optimum (PO); retraining on what comes in ends at a performatively stable point (PS, Eq. 3).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property, partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, html, random, trees
from profl.problem import oracle
from profl.problem.families import Family
from profl.problem.monte_carlo import MonteCarloReaction
from profl.problem.push import Push
from profl.problem.push import check as check_push
from profl.problem.reaction import PooledReaction, Reaction, SampledReaction
from profl.typing import Array, Client, Key, Loss, Theta

TRIED_SAMPLES = 4  # on which a push is tried when a problem is made: one would do, if none of them is special


@dataclass(frozen=True)
class Box:
    """The model space [lower, upper] in every coordinate; calling it projects.

    >>> Box(0.0, 5.0)(jnp.array([-1.0, 2.0, 9.0]))
    Array([0., 2., 5.], dtype=float32)
    """

    lower: float
    upper: float

    def __call__(self, theta: Theta) -> Theta:
        return jax.tree.map(lambda leaf: jnp.clip(leaf, self.lower, self.upper), theta)


def everywhere(theta: Theta) -> Theta:
    """The model space without bounds: nothing to project."""
    return theta


class View(NamedTuple):
    """A problem as a method sees it, at one client or at the server: it can be learned from, and not sampled."""

    loss: Loss
    family: Family
    project: Callable[[Theta], Theta]
    signal: Callable[[Theta], Array]
    jacobian: Callable[[Theta], Array] | None = None  # df/dtheta of this client, exactly, where it is known
    push: Push | None = None  # where a sample would lie under another model, where the problem says so


class Functions(NamedTuple):
    """A problem without its data: only functions. Hashable, so that compiled code is found again."""

    loss: Loss
    family: Family
    reaction: Reaction
    project: Callable[[Theta], Theta]
    signal: Callable[[Theta], Array]
    push: Push | None = None

    def view(self, client: Client | None = None, family: Family | None = None) -> View:
        """What a method sees at a client; at the server where there is none. ``family`` stands in for the problem's."""
        exact = None
        if client is not None and self.reaction.parameters is not None:
            exact = partial(oracle.exact_jacobian, self.reaction, client=client)
        return View(self.loss, family or self.family, self.project, self.signal, exact, self.push)


@dataclass(frozen=True, eq=False)
class Problem:
    """What is to be learned, by whom, and how the data answer.

    Args:
      name: shown in tables and plots.
      loss: ``loss(theta, z)`` of one sample, a scalar.
      family: describes the data's distribution by f; see ``profl.problem.families``.
      reaction: ``sample(key, theta, client, n) -> batch``, or a ``Reaction`` that also knows exact answers.
      clients: a pytree whose leaves have one row per client.
      initial: ``initial(key) -> theta``.
      project: onto the model space.
      weights: alpha_i; equal by default.
      signal: what the data react to, a vector made from theta; theta itself by default.
      push: ``push(z, deployed, theta)``, where a sample z that came in under ``deployed`` would lie under ``theta``, if
        that is known; or a ``Push``, with parameters that clients estimate. See ``profl.problem.push``.

    >>> def sample(key, theta, client, n):
    ...     return 6.0 - client["gamma"] * theta + random.normal(key, n, 1)
    >>> from profl.problem.families import GaussianMean
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
    initial: Callable[[Key], Theta]
    project: Callable[[Theta], Theta] = everywhere
    weights: Any = None
    signal: Callable[[Theta], Array] = trees.ravel
    push: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.reaction, Reaction):
            object.__setattr__(self, "reaction", SampledReaction(self.reaction))
        if self.push is not None and not isinstance(self.push, Push):
            object.__setattr__(self, "push", Push(self.push))
        leaves = jax.tree.leaves(self.clients)
        if not leaves:
            raise checks.InputError("clients must be a pytree with at least one leaf that has a row per client")
        counts = sorted({np.shape(leaf)[0] if np.ndim(leaf) else 0 for leaf in leaves})
        if len(counts) > 1 or counts[0] < 1:
            raise checks.InputError(
                f"every leaf of clients must have one row per client, got leaves with {counts} rows"
            )
        object.__setattr__(self, "clients", jax.tree.map(np.asarray, self.clients))
        object.__setattr__(self, "weights", checks.client_weights(self.weights, counts[0]))
        self._check_functions()

    def __repr__(self) -> str:
        shapes = ", ".join(str(leaf.shape) for leaf in jax.tree.leaves(self._like))
        known = "exact answers known" if self.exact else "no exact answers: .solve() finds them"
        return f"<Problem {self.name!r}: {self.count} clients, model {shapes}, {known}>"

    def _repr_html_(self) -> str:
        return html.text(repr(self)[1:-1])

    # -- what it is made of --------------------------------------------------------------------------------------------

    @property
    def count(self) -> int:
        """How many clients there are."""
        return trees.rows(self.clients)

    @property
    def functions(self) -> Functions:
        return Functions(self.loss, self.family, self.reaction, self.project, self.signal, self.push)

    @property
    def exact(self) -> bool:
        """Whether the risk, the optimum and the stable point are known."""
        return self.reaction.decoupled is not None

    def pooled(self) -> Problem:
        """The same problem seen by one centralised learner who puts all clients' data together."""
        clients = jax.tree.map(lambda leaf: leaf[None], {"members": self.clients, "weights": self.weights})
        return replace(self, clients=clients, weights=None, reaction=PooledReaction(self.reaction))

    def solve(self, samples: int = 20_000) -> Problem:
        """This problem with its answers found numerically, from ``samples`` fixed draws per client."""
        if self.exact:
            return self
        checks.positive_int("samples", samples)
        return replace(self, reaction=MonteCarloReaction(self.reaction, self.family, self.loss, samples))

    def at(self, time: float) -> Problem:
        """The problem of a world that stands still after ``time`` deployments; this one, unless its world drifts."""
        if not self.reaction.drifts:
            return self
        with jax.enable_x64(True):
            reaction, clients = self.reaction.at(trees.cast(self.clients, jnp.float64), time)
        return replace(self, reaction=reaction, clients=jax.tree.map(np.asarray, clients))

    # -- exact answers, in double precision ----------------------------------------------------------------------------

    def risk(self, theta: Theta) -> float:
        """L(theta), exactly."""
        return self._evaluate("risk", theta)

    def risks(self, thetas: Theta) -> np.ndarray:
        """L(theta) of a stack of models, exactly."""
        return self._evaluate_each("risks", thetas)

    def client_risks(self, theta: Theta) -> np.ndarray:
        """L_i(theta) of every client, exactly."""
        return self._evaluate("client_risks", theta)

    def own_risks(self, thetas: Theta) -> np.ndarray:
        """L_i(theta_i) of every client at a model of its own, one row of ``thetas`` each, exactly."""
        if (rows := trees.rows(thetas)) != self.count:
            raise checks.InputError(f"own_risks takes one model per client, {self.count}, got {rows}")
        return self._evaluate("own_risks", thetas, stacked=True)

    def decoupled_risk(self, deployed: Theta, theta: Theta) -> float:
        """DPR(deployed; theta): the risk of ``theta`` on the data that ``deployed`` brings in."""
        return self._evaluate("decoupled_risk", deployed, theta)

    def gradient(self, theta: Theta) -> Theta:
        """The performative gradient, exactly: both terms of the paper's Eq. 4."""
        return self._evaluate("gradient", theta)

    def stable_gradient(self, theta: Theta) -> Theta:
        """The gradient that repeated gradient descent follows: the data held fixed, L1 alone."""
        return self._evaluate("stable_gradient", theta)

    def jacobian(self, theta: Theta) -> np.ndarray:
        """df_i/dtheta of every client, exactly: shape (clients, p, size of theta)."""
        if self.reaction.parameters is None:
            raise checks.InputError(f"problem {self.name!r} does not state f(theta) of a client: no exact Jacobian")
        return self._evaluate("jacobian", theta)

    def accuracy(self, theta: Theta) -> float:
        """Share of right decisions on the data that theta itself brings in (classification only)."""
        self._need_accuracy()
        return self._evaluate("accuracy", theta)

    def accuracies(self, thetas: Theta) -> np.ndarray:
        """The accuracy of a stack of models."""
        self._need_accuracy()
        return self._evaluate_each("accuracies", thetas)

    @property
    def optimum(self) -> Theta:
        """The performative optimum PO (float64)."""
        return self._known_points[0]

    @property
    def stable(self) -> Theta:
        """A performatively stable point PS (float64); the one that attracts, where one does."""
        return self._known_points[1]

    # -- inside --------------------------------------------------------------------------------------------------------

    @cached_property
    def _known_points(self) -> tuple[Theta, Theta]:
        self._need_risk()
        starts = jax.vmap(self.initial)(random.first_keys(range(5))[1])
        if all(jnp.all(leaf == leaf[:1]) for leaf in jax.tree.leaves(starts)):  # whatever the seed: one will do
            starts = jax.tree.map(lambda leaf: leaf[:1], starts)
        return oracle.known_points(self.reaction, self.project, self.clients, self.weights, starts)

    def _evaluate(self, name: str, *models: Theta, stacked: bool = False) -> Any:
        if "risk" in name or "gradient" in name:
            self._need_risk()
        for model in models:
            checks.same_structure("theta", trees.take(model, 0) if stacked else model, self._like)
        return oracle.evaluate(name, self.reaction, self.clients, self.weights, *models)

    def _evaluate_each(self, name: str, thetas: Theta) -> np.ndarray:
        if "risk" in name:
            self._need_risk()
        checks.same_structure("theta", trees.take(thetas, 0), self._like)
        return oracle.evaluate_each(name, self.reaction, self.clients, self.weights, thetas)

    def _need_risk(self) -> None:
        if not self.exact:
            raise checks.InputError(
                f"problem {self.name!r} has no closed-form risk; call problem.solve() to find the answers numerically"
            )

    def _need_accuracy(self) -> None:
        if self.reaction.accuracy is None:
            raise checks.InputError(f"problem {self.name!r} is no classification problem: accuracy is not defined")

    @cached_property
    def _like(self) -> Theta:
        return jax.eval_shape(self.initial, random.seed_key(0))

    def _check_functions(self) -> None:
        """Trace every function once, without computing anything, and refuse what does not fit together."""
        theta, key = self._like, random.seed_key(0)
        client = jax.eval_shape(lambda c: trees.take(c, 0), self.clients)
        batch = jax.eval_shape(lambda t, c: self.reaction.sample(key, t, c, 4), theta, client)
        sizes = sorted({leaf.shape[0] if leaf.ndim else 0 for leaf in jax.tree.leaves(batch)})
        if len(sizes) != 1 or sizes[0] % 4:
            raise checks.InputError(f"the reaction must return n samples in every leaf, got {sizes} for n = 4")
        z = jax.eval_shape(lambda b: trees.take(b, 0), batch)
        loss = jax.eval_shape(self.loss, theta, z)
        if getattr(loss, "shape", None) != ():
            raise checks.InputError(f"loss(theta, z) of one sample must be a scalar, got shape {_shape(loss)}")
        f = jax.eval_shape(self.family.estimate, batch, jax.ShapeDtypeStruct((sizes[0],), jnp.float32))
        if len(f.shape) != 1:
            raise checks.InputError(f"the family's estimate must be a vector of shape (p,), got shape {f.shape}")
        density = jax.eval_shape(self.family.log_prob, z, f)
        if _shape(density) != ():
            raise checks.InputError(f"the family's log_prob(z, f) must be a scalar, got shape {_shape(density)}")
        if self.reaction.parameters is not None:
            stated = jax.eval_shape(self.reaction.parameters, theta, client)
            if stated.shape != f.shape:
                raise checks.InputError(f"parameters(theta, client) has shape {stated.shape}, the estimate {f.shape}")
        projected = jax.eval_shape(self.project, theta)
        checks.same_structure("project(theta)", projected, theta)
        signal = jax.eval_shape(self.signal, theta)
        if len(signal.shape) != 1:
            raise checks.InputError(f"signal(theta) must be a vector, got shape {signal.shape}")
        self._check_memory()
        if self.push is not None:
            self._check_push()

    def _check_memory(self) -> None:
        """People's state has one shape for good, and what comes in from it is what comes in at once."""
        key, reaction = random.seed_key(0), self.reaction
        theta, client = jax.eval_shape(lambda c: trees.cast((self.initial(key), trees.take(c, 0))), self.clients)
        state = jax.eval_shape(reaction.start, theta, client)
        kinds = {str(leaf.dtype) for leaf in jax.tree.leaves(state) if not _numeric(leaf)}
        if kinds:
            raise checks.InputError(
                f"what the reaction's start returns must hold numbers alone, got {', '.join(sorted(kinds))}: "
                "move is given a key of its own with every deployment"
            )
        moved = jax.eval_shape(reaction.move, state, key, theta, client)
        checks.same_structure("what the reaction's move returns", moved, state)
        before, after = (jax.tree.map(lambda leaf: leaf.dtype.name, tree) for tree in (state, moved))
        if before != after:
            raise checks.InputError(
                f"what the reaction's move returns must have the dtypes of start, {before}, got {after}"
            )
        batch = jax.eval_shape(lambda t, c: reaction.sample(key, t, c, 4), theta, client)
        drawn = jax.eval_shape(lambda s, t, c: reaction.sample_in(s, key, t, c, 4), state, theta, client)
        checks.same_structure("what the reaction's sample_in returns", drawn, batch)

    def _check_push(self) -> None:
        """On a few samples, at the start and beside it: a start of zeros would hide what theta does."""
        key = random.seed_key(0)
        start = self.initial(random.start_key(key))
        beside = self.project(jax.tree.map(lambda leaf: leaf + 1 + jnp.arange(leaf.size).reshape(leaf.shape), start))
        client = trees.cast(trees.take(self.clients, 0))
        batch = self.reaction.sample(random.data_key(key, 0, 0), start, client, TRIED_SAMPLES)
        check_push(self.push, batch, [start, beside])


def _numeric(leaf: Any) -> bool:
    return jnp.issubdtype(leaf.dtype, jnp.number) or leaf.dtype == bool


def _shape(tree: Any) -> Any:
    return jax.tree.map(lambda leaf: leaf.shape, tree)
