"""Descent along the whole performative gradient L1 + L2: what PoFL, ProFL and PG have in common.

    f_hat  <- estimate(batch, w)               Algorithm 1, line 8/12
    J      <- what the deployments so far show line 13
    g      <- L1 + J^T u                       line 14
    n      <- what the noise of g asks for     line 15

What is deployed may be theta plus a small perturbation; the batch's terms are then those at what was deployed, and the
step goes on from theta.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, random, trees
from profl.methods.descent import Descent, State, shape_of_f
from profl.methods.method import Arrival, Report
from profl.parts import push_parameters, units, variance_shift
from profl.parts.gradient import pull_back, push_of, terms
from profl.parts.jacobian import estimators as jacobians
from profl.parts.jacobian.tracking import Tracking
from profl.parts.sample_size import Evidence
from profl.problem.problem import Problem, View
from profl.stages import stage
from profl.typing import Array, Batch, Key, Theta


def _nothing(state: Any) -> dict[str, Array]:
    return {}


SECOND_TERMS = ("auto", "push", "pathwise", "score")
TRACKING = Tracking()
MOST_SIGNAL = 2048  # numbers in a signal whose Jacobian is estimated: none could be learned from so few deployments
MOST_BYTES = 2**30  # that the estimators of all clients may keep


class Shared(NamedTuple):
    """The Jacobian that the server sent to a client."""

    jacobian: Array  # (p, s)
    ready: Array  # () bool: whether there is one yet
    group: Array  # () int32: the cluster it comes from, -1 for none


class Received(NamedTuple):
    """What a client keeps of it: with what it has learned since, J is jacobian + (its own now - its own then).

    Without that it would do with what it knew a round ago: on housing that alone is 1.13 times the excess.
    """

    shared: Shared
    own: Array  # its own estimate, when that came


class Jacobians(NamedTuple):
    """Where Jacobians are shared: what each client had at the end of a run."""

    own: np.ndarray  # its own estimate
    shared: np.ndarray  # what the server sent it
    groups: np.ndarray  # the cluster it was in, -1 for none


@dataclass(frozen=True)
class PerformativeDescent(Descent):
    """Follows L1 + L2; made by ``profl.pofl``, ``profl.pg`` and ``profl.profl``.

    Args:
      second_term: how L2 is computed: "push" (where the problem has one; no Jacobian is estimated), "pathwise" (where
        the family can shift samples), "score", or "auto", the first of these that the problem allows.
      jacobian: an estimator of df/dtheta; see ``profl.parts.jacobian.estimators``.
      explore: perturbs what is deployed, so that the Jacobian stays visible; None for no perturbation.
      share: how clients learn from each other's Jacobians, a ``Clusters`` or ``Shrinkage``; None for not at all.
      samples: says how many samples to draw, an ``AdaptiveSamples``; None for a fixed number.

    The others are those of ``Descent``.
    """

    second_term: str = "auto"
    jacobian: Any = TRACKING
    explore: Any = None
    share: Any = None
    samples: Any = None

    def __post_init__(self) -> None:
        super().__post_init__()
        checks.one_of("second_term", self.second_term, SECOND_TERMS)
        if self.explore is not None and not callable(getattr(self.explore, "explore", None)):
            raise checks.InputError(f"explore must be a profl.parts.Exploration(...) or None, got {self.explore!r}")
        if self.explore is not None and self.exact:
            raise checks.InputError("explore is for a Jacobian that is estimated: this method estimates none")
        if self.share is not None and self.exact:
            raise checks.InputError("share needs a method that estimates Jacobians: with jacobian='exact' none is")
        if self.samples is not None and not callable(getattr(self.samples, "next", None)):
            raise checks.InputError(f"samples must be profl.parts.AdaptiveSamples(...) or None, got {self.samples!r}")

    @property
    def exact(self) -> bool:
        return isinstance(self.jacobian, jacobians.Exact)

    @property
    def measures(self) -> bool:
        """Whether a part works in natural units."""
        return any(getattr(part, "measured", False) for part in (self.jacobian, self.explore))

    @property
    def rereads(self) -> bool:  # type: ignore[override]
        """Taking measures puts samples in memory, if not for long: whole batches then belong there, samples innermost.

        PoFL on pricing (10 clients, 100 rounds of R = 5, n = 500) takes 1.1 times as long as where nothing is measured;
        without this 3.5 times.
        """
        return self.measures or super().rereads

    @property
    def sizes(self) -> tuple[int, ...] | None:  # type: ignore[override]
        return None if self.samples is None else self.samples.sizes

    @property
    def needs(self) -> tuple[str, ...]:  # type: ignore[override]
        if self.second_term == "push":
            return ("samples", "push")
        shift = ["shift"] if self.second_term == "pathwise" else []
        return ("samples", "family", *shift, *(["exact map"] if self.exact else []))

    def needed(self, problem: Problem) -> tuple[str, ...]:
        return replace(self, second_term=self._second(problem)).needs

    def check(self, problem: Problem) -> None:
        super().check(problem)
        if self._pushes(problem):
            self._check_push()
        elif not self.exact:
            self._check_signal(problem)
        if self.share is not None:
            self.share.check(problem.count)

    # -- at a client ---------------------------------------------------------------------------------------------------

    def init(self, problem: View, theta: Theta, batch: Batch) -> State:
        f, signal = shape_of_f(problem, batch), jax.eval_shape(problem.signal, theta)
        n = jax.tree.leaves(batch)[0].shape[0]
        return State(
            self.transformation.init(theta),
            self._nothing_known(problem, theta, signal, f),
            self._nothing_shared(signal, f),
            self._nothing_explored(theta, signal) if self._explores(problem) else (),
            () if self.samples is None else self.samples.clip(jnp.asarray(n, float)),
            units.unmeasured(theta, signal, f) if self.measures and self._learns(problem) else (),
            spread=self._no_spread(problem, signal, f, batch),
        )._replace(**self._kept(problem, theta, batch))

    def deploy(self, problem: View, state: State, key: Key, theta: Theta) -> tuple[Theta, State]:
        if not self._explores(problem):
            return theta, state
        with stage("explore") as check:
            known: tuple[Any, ...] = self._of_push(problem, state) if self._pushes(problem) else self._known(state)
            if getattr(self.explore, "measured", False):
                known = *known, state.measures
            if hasattr(self.jacobian, "hold") and getattr(self.explore, "holds", False) and not self._pushes(problem):
                known = *known, self.jacobian.hold(state.jacobian)
            deployed, explored = check(self.explore.explore(problem, key, state.explored, theta, *known))
        return deployed, state._replace(explored=explored)

    def slope(self, problem: View, state: State, theta: Theta, arrival: Arrival) -> tuple[Array, Theta, State]:
        batch, weights, deployed, last = arrival
        pushes = self._pushes(problem)
        with stage("estimate f") as check:  # lines 8 and 12
            f = check(problem.family.estimate(batch, weights))
        with stage("Jacobian") as check:  # line 13
            follow = self._push if pushes else self._jacobian
            state, jacobian = check(follow(problem, state, theta, arrival, f))
        if pushes and push_of(problem).unknown:
            push = push_of(problem)
            problem = problem._replace(push=push.at(push_parameters.learned(push, state.jacobian).parameters))
        elif self.exact and not pushes:  # it stands in theta already, and needs no way back from a signal
            problem = problem._replace(signal=trees.ravel)
        with stage("gradient") as check:  # line 14
            second = self._second(problem)
            found = check(terms(problem, second, deployed, batch, weights, f))
            back = pull_back(problem, deployed, jacobian, found.f_gradient)
            gradient = check(jax.tree.map(jnp.add, found.first, back))
        samples = state.samples
        if self.samples is not None:
            with stage("sample size") as check:  # line 15, once a round
                known = Evidence(deployed, batch, weights, f, jacobian, gradient, second, self._stated_rate(state))
                samples = check(jax.lax.cond(last, lambda: self.samples.next(problem, known), lambda: state.samples))
        return found.loss, gradient, state._replace(samples=samples)

    def samples_wanted(self, state: State) -> Array:
        return state.samples

    def report(self, problem: View, state: State, theta: Theta) -> Report:
        told = super().report(problem, state, theta)
        if self.share is None:
            return told
        own, error = self._known(state)
        whole = getattr(self.share, "entrywise", False)
        return {**told, "jacobian": own, "jacobian_error": error if whole else jnp.mean(error)}

    def receive(self, problem: View, state: State, theta: Theta, mail: Any) -> tuple[Theta, State]:
        theta, state = super().receive(problem, state, theta, mail)
        if self.share is None:
            return theta, state
        new, old = mail["shared"], state.shared
        kept = old._replace(shared=old.shared._replace(group=new.group))
        return theta, state._replace(shared=trees.where(new.ready, Received(new, self._known(state)[0]), kept))

    def mail_like(self, problem: View, state: State) -> Any:
        mail = super().mail_like(problem, state)
        return mail if self.share is None else {**dict(mail), "shared": state.shared.shared}

    def figures(self, problem: View, state: State, theta: Theta) -> dict[str, Array]:
        """Mean square of an entry of J and of its error: as the client states it, and as it is, where that is known.

        And what the estimator has found of the world, where it looks; where a push is learned, the share of its
        parameters' variance that is left.
        """
        if not self._learns(problem):
            return {}
        if self._pushes(problem):
            return {"push_unknown": push_parameters.ignorance(push_of(problem), state.jacobian)}
        own, error = self._known(state)
        found = {"jacobian_error": jnp.mean(error), "jacobian_size": jnp.mean(own**2)}
        found |= getattr(self.jacobian, "figures", _nothing)(state.jacobian)
        if state.spread:
            found |= variance_shift.figures(state.spread)
        if "trend" in found:  # in units of f
            found["trend"] = jnp.mean(found["trend"] * state.measures.f.unit)
        if problem.jacobian is None or units.large(theta):  # the exact one is as large as f times the model
            return found
        to_theta = jax.vmap(lambda row: trees.ravel(jax.vjp(problem.signal, theta)[1](row)[0]))
        off = to_theta(self._used(state, own)) - problem.jacobian(theta)
        return {**found, "jacobian_off": jnp.mean(off**2)}

    def final(self, problem: View, state: State, report: Report) -> Any:
        if self._pushes(problem):
            return push_parameters.kept(push_of(problem), state.jacobian) if push_of(problem).unknown else None
        if self.share is None:
            return None
        return Jacobians(report["jacobian"], state.shared.shared.jacobian, state.shared.shared.group)

    # -- at the server -------------------------------------------------------------------------------------------------

    def combine(
        self, problem: View, server: Any, theta: Theta, reports: Report, weights: Array, accepted: Array, key: Key
    ) -> tuple[Theta, Any, Any]:
        model, server, mail = super().combine(problem, server, theta, reports, weights, accepted, key)
        if self.share is None:
            return model, server, mail
        shared, groups = self.share.share(key, reports["jacobian"], weights, accepted, reports["jacobian_error"])
        ready = jnp.broadcast_to(jnp.all(jnp.isfinite(shared)), groups.shape)
        return model, server, {**dict(mail), "shared": Shared(shared, ready, groups)}

    # -- inside --------------------------------------------------------------------------------------------------------

    def _stated_rate(self, state: State) -> Any:
        return state.pace.rate if self.finds_rate else self.learning_rate

    def _second(self, problem: View | Problem) -> str:
        if self.second_term != "auto":
            return self.second_term
        if problem.push is not None:
            return "push"
        return "score" if problem.family.shift is None else "pathwise"

    def _pushes(self, problem: View | Problem) -> bool:
        return self._second(problem) == "push"

    def _learns(self, problem: View) -> bool:
        """Whether something of the reaction is estimated: a Jacobian, or parameters of a push."""
        return push_of(problem).unknown if self._pushes(problem) else not self.exact

    def _explores(self, problem: View) -> bool:
        return self.explore is not None and self._learns(problem)

    def _nothing_explored(self, theta: Theta, signal: Array) -> Any:
        return (
            self.explore.init(theta, signal) if getattr(self.explore, "measured", False) else self.explore.init(theta)
        )

    def _nothing_known(self, problem: View, theta: Theta, signal: Array, f: Array) -> Any:
        """What is estimated of the reaction, before the first deployment."""
        if not self._learns(problem):
            return ()
        return (
            push_parameters.begin(push_of(problem), theta, f)
            if self._pushes(problem)
            else self.jacobian.init(signal, f)
        )

    def _nothing_shared(self, signal: Array, f: Array) -> Any:
        if self.share is None:
            return ()
        nothing = jnp.zeros((f.shape[0], signal.shape[0]), f.dtype)
        return Received(Shared(nothing, jnp.asarray(False), jnp.int32(-1)), nothing)

    def _no_spread(self, problem: View, signal: Array, f: Array, batch: Batch) -> Any:
        """Nothing known yet of how the spread moves; () where that is not looked for."""
        looks = self.measures and self._learns(problem) and not self._pushes(problem)
        if not looks or problem.family.shift is None or signal.shape[0] > variance_shift.MOST:
            return ()
        count = variance_shift.coordinates(problem.family, batch, f)
        return variance_shift.begin(count, signal.shape[0]) if count else ()

    def _jacobian(self, problem: View, state: State, theta: Theta, arrival: Arrival, f: Array) -> tuple[State, Array]:
        """The state with this deployment in it, and the Jacobian to use."""
        batch, weights, deployed, _ = arrival
        if self.exact:
            assert problem.jacobian is not None
            return state, problem.jacobian(deployed)
        variance = problem.family.variance(batch, weights, f)
        signal, at = problem.signal(deployed), problem.signal(theta)
        state = self._measured(problem, state, arrival, f, variance)
        if state.spread:
            where, some = state.measures.signal.measure(signal), units.some(batch, weights)
            state = state._replace(spread=variance_shift.followed(problem.family, state.spread, where, some, f))
        if getattr(self.jacobian, "measured", False):
            ruler, f_ruler = state.measures.signal, state.measures.f
            signal, at = ruler.measure(signal), ruler.measure(at)
            f, variance = f_ruler.measure(f), variance / f_ruler.unit**2
        state = state._replace(jacobian=self.jacobian.update(state.jacobian, signal, f, variance, at))
        return state, self._used(state, self._known(state)[0])

    def _push(self, problem: View, state: State, theta: Theta, arrival: Arrival, f: Array) -> tuple[State, Array]:
        """The same where samples are pushed: what is estimated are parameters of the push, and the Jacobian is none."""
        batch, weights, deployed, _ = arrival
        if push_of(problem).unknown:
            state = self._measured(problem, state, arrival, f, problem.family.variance(batch, weights, f))
            state = state._replace(jacobian=push_parameters.learn(problem, state.jacobian, deployed, batch, weights))
        return state, jnp.zeros((f.size, problem.signal(deployed).size), f.dtype)

    def _measured(self, problem: View, state: State, arrival: Arrival, f: Array, variance: Array) -> State:
        """The state with natural units in it, from the first batch on.

        Where a scale turns out to be far too large, what was learned in its units is forgotten.
        """
        batch, weights, deployed, _ = arrival
        if not self.measures:
            return state
        one, few, old = variance / jnp.sum(weights**2), units.some(batch, weights), state.measures
        batches = old.batches + 1

        def look(theta: Theta) -> units.Measures:
            return units.look_again(problem, old, units.take_measures(problem, theta, *few(), f, one), theta)

        once = units.large(deployed)  # to look again costs as many gradients as a step has, and is amortised late
        found = trees.cond_or_keep(~old.known if once else batches & (batches - 1) == 0, look, old, deployed)
        state = state._replace(measures=found._replace(batches=batches))
        signal, again = problem.signal(deployed), old.known & jnp.any(found.scales < old.scales)
        fresh: dict[str, Any] = {}
        if not self._pushes(problem):
            fresh["jacobian"] = self._nothing_known(problem, deployed, signal, f)
            fresh["shared"] = self._nothing_shared(signal, f)
        if state.spread:
            fresh["spread"] = self._no_spread(problem, signal, f, batch)
        kept = {name: getattr(state, name) for name in fresh}
        state = state._replace(**trees.where(again, fresh, kept))
        if hasattr(state.explored, "shrunk"):
            ratio = jnp.where(old.known, found.scales / old.scales, 1.0)
            state = state._replace(explored=state.explored.shrunk(ratio, deployed))
        return state

    def _of_push(self, problem: View, state: State) -> tuple[Array, Array]:
        """What exploration is told in place of J and its error: a share of what there is to know is not known yet."""
        push, seen = push_of(problem), state.jacobian
        unknown, f = push_parameters.ignorance(push, seen), seen.mean.size - len(push.parameters)
        of_one = jnp.ones((f, problem.signal(seen.origin).size), unknown.dtype)
        told = jnp.sqrt(1 - unknown) * of_one, unknown * of_one
        return state.measures.outside(*told) if self.measures else told

    def _known(self, state: State) -> tuple[Array, Array]:
        """The client's own estimate of J and its squared error."""
        known = self.jacobian.estimate(state.jacobian), self.jacobian.error(state.jacobian)
        return state.measures.outside(*known) if getattr(self.jacobian, "measured", False) else known

    def _used(self, state: State, own: Array) -> Array:
        if self.share is None:
            return own
        (shared, ready, _), then = state.shared
        return jnp.where(ready, shared + (own - then), own)

    def _check_signal(self, problem: Problem) -> None:
        """Before any work: what an estimator keeps of a client grows with the square of the signal."""
        theta = jax.eval_shape(problem.initial, random.seed_key(0))
        signal = jax.eval_shape(lambda t: trees.cast(problem.signal(t)), theta)
        clients = 1 if self.pooled else problem.count
        kept = jax.eval_shape(lambda: self.jacobian.init(signal, jnp.zeros(1)))  # of one entry of f
        size = clients * sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(kept))
        if size > MOST_BYTES or signal.size > MOST_SIGNAL:
            raise checks.InputError(
                f"the data of {problem.name!r} may react to {signal.size} numbers, too many for df/dsignal to be "
                f"estimated (at most {MOST_SIGNAL}, and {MOST_BYTES // 2**20} MiB for all clients; this takes "
                f"{size // 2**20} MiB): give Problem a signal of a few numbers, such as the mean score of each group, "
                "or use jacobian='exact' where the problem states f(theta), or profl.pfl, which needs none"
            )

    def _check_push(self) -> None:
        if self.share is not None:
            raise checks.InputError(
                "share is for Jacobians, and a problem with a push needs none: drop it, or set second_term='pathwise'"
            )
        if getattr(self.samples, "rule", None) == "paper":
            raise checks.InputError("AdaptiveSamples(rule='paper') needs a Jacobian, and with a push there is none")
