"""``prm``: performative risk minimisation, the counterpart of repeated risk minimisation that ends at the optimum.

A deployment is dear, a message is cheap. In every round each client

    deploys   theta, and a little beside it: as much as there is left to learn
    fits      f near theta from all that it ever tried, with what the other clients found as its prior

and then, without deploying anything, all of them together minimise the fitted performative risk
sum_i alpha_i L_i(theta) inside a trust region: clients report value, slope and curvature of theirs, the server takes
Newton steps. So there is no learning rate, and no drift of local steps: what is minimised is the weighted sum itself.

    profl.methods.prm.response      the fitted f, how well it is known
    profl.methods.prm.surrogate_risk        the fitted risk, and the covariance of its slope, C
    profl.methods.prm.consensus     clients learn from each other
    profl.methods.prm.newton        steps from curvature, H

C and H say what the model still lacks: the expected excess is tr(H^-1 C) / 2. Perturbations are sized so that they cost
``curiosity`` times that, all lengths are in natural units (``profl.parts.units``), and nothing depends on where zero
is or on what a parameter is measured in.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from profl import checks, random, trees
from profl.methods.descent import shape_of_f
from profl.methods.method import Arrival, Forecast, Method, Report
from profl.methods.prm import partial_minimisation
from profl.methods.prm.consensus import Common, Found, consensus
from profl.methods.prm.newton import TOUCH, free, least_inside, upright
from profl.methods.prm.observation_buffer import Trials, add, no_trials
from profl.methods.prm.response import (
    Moments,
    Prior,
    Response,
    curvatures,
    evidence,
    feared,
    feature_units,
    fit,
    moved,
    posterior,
    remembered,
)
from profl.methods.prm.surrogate_risk import Bend, Fitted, bend, fitted_risk, keep, none_kept
from profl.parts import filters, trusted_samples
from profl.parts.jacobian import reaction_memory
from profl.parts.jacobian.reaction_memory import Peak, follow, meant, peak
from profl.parts.personal import kept as keeping
from profl.parts.units import Ruler, signal_scales, theta_scales
from profl.problem.problem import Problem, View
from profl.server import rules
from profl.stages import stage
from profl.typing import Array, Batch, Key, Theta

# Units are those of ``profl.parts.units``, deviations those of one sample in an entry of f.
WIDE = 3.0  # deviations that f may answer to one unit with, before anything is known
CURVED = 0.2  # deviations per unit^2 of its curvature; 1.0 ended about the same on four of the benchmark's rows
STIFF = 0.1  # deviations per unit^3 of what is not fitted; follows the evidence from there
THIRD = 0.1  # of the squared curvature: no less is not fitted; a curve seldom ends with its second order
DOUBT = 20.0  # nats by which a memory must explain more than none; with 6 a curve is taken for one, in the beginning
LEAST = 0.001  # deviations by which clients are taken to differ at the least
FIRST = 40.0  # samples' worth: the first perturbation is sqrt(40 / n) units, f then moves visibly if it moves at all
LARGER, LARGEST = 2.0, 1.0  # times the first perturbation, and units: no later one is larger
SLOWLY = 0.8  # a perturbation is at least so much of the last: early confidence may be mistaken
AGAIN = 0.25, 2.0  # units: least and largest trust region
USED, IDLE = 0.9, 0.25  # of it: it may grow where so much was used, and shrinks where less: a run at rest does not leap
BLINDLY = 0.6  # of the trust region, for the first step: nothing is known of the reaction then
WELL, BADLY = (0.2, 0.6), (0.5, 1.5)  # misses, as a share of what f moved by and in noises: the region doubles, halves
MOST = 512  # parameters: the server solves for a matrix of so many rows


class State(NamedTuple):
    """What a client knows."""

    made: Array  # deployments so far
    scale: Array  # (d,), of theta
    spread: Array  # (p,): variance of a sample in every entry of f, mean over all deployments
    trials: Trials  # their signals are (memories, s): what people were used to
    seen: Array  # (memories, s): what they are used to now
    habit: Peak  # which of these they seem to answer to
    moments: Moments  # of the trials, as seen from theta
    prior: Prior
    before: Array  # (p, m - 1): the common mean that the server sent last
    error: Array  # (p, m - 1): its variance
    fear: Array  # variance of what is not fitted, in units of ``spread``
    fitted: Fitted
    variance: Array  # (p, m - 1): of the response's coefficients
    bend: Bend
    delta: Array  # (d,): the last perturbation, in units
    due: Array  # bool: whether its opposite comes next
    left: Array  # deployments for which it is still held
    size: Array  # of the next one
    miss: Array  # (2,): squared misses of the last prediction beyond what was expected, and what it had moved by
    held: Array  # share of the parameters that the trust region held in the last round
    region: Array  # the server's trust region, in units
    filter: Any  # what the filter remembers, where it does


class Server(NamedTuple):
    """The minimisation of a round, and what goes on to the next."""

    turn: Array
    rounds: Array
    scale: Array  # (d,)
    region: Array  # the trust region, in units
    base: Array  # (d,): the model that the round began with
    best: Array  # (d,): the best so far
    value: Array  # the fitted risk there, its slope (d,) and the curvature (d, d) at the base, in units
    slope: Array
    curvature: Array
    doubt: Array  # (d, d): C at the base, in units
    reach: Array  # share of the trust region that the next step may go
    size: Array  # of perturbations
    largest: Array
    fear: Array  # mean of the clients'
    held: Array
    forecast: Forecast


class Mail(NamedTuple):
    size: Array
    held: Array
    region: Array
    fear: Array
    common: Common  # what all clients found
    alone: Array  # bool: whether all clients are only one
    ready: Array  # bool: whether there is something new in it
    speed: Array  # Nesterov's


class Room(NamedTuple):
    """Where one's own part may go from where it was deployed, in units: zero there, and at what is shared."""

    at: Array
    there: Callable[[Array], Array]  # the flat model, from there
    inside: Callable[[Array], Array]


@dataclass(frozen=True)
class PRM(Method):
    """Made by ``profl.prm``."""

    filter: Any = "none"
    aggregate: Any = "mean"
    share: bool = True
    curiosity: float = 16.0
    region: float = 1.0
    keep: int = 32
    room: int = 64
    agreeing: int = 10
    minimising: int = 5

    name = "prm"
    needs = ("samples", "family")
    least_deployments = 3
    rereads = True

    def __post_init__(self) -> None:
        for name in ("curiosity", "region"):
            checks.positive(name, getattr(self, name))
        for name in ("keep", "minimising"):
            checks.positive_int(name, getattr(self, name))
        checks.positive_int("room", self.room, least=4)
        checks.positive_int("agreeing", self.agreeing, least=0)
        filters.check(filters.get(self.filter))
        rules.get(self.aggregate)

    @property
    def info(self) -> tuple[str, ...]:  # type: ignore[override]
        return ("loss",) if self.filter == "none" else ("loss", "kept")

    @property
    def talks(self) -> int:
        """Turns of messages in which clients learn from each other."""
        return self.agreeing if self.share else 0

    @property
    def exchanges(self) -> int:  # type: ignore[override]
        return self.talks + self.minimising

    def check(self, problem: Problem) -> None:
        super().check(problem)
        size = sum(leaf.size for leaf in jax.tree.leaves(jax.eval_shape(problem.initial, random.seed_key(0))))
        if size > MOST:
            raise checks.InputError(
                f"prm solves for a matrix of the model's size and takes at most {MOST} parameters, got {size}: use pofl"
            )

    # -- at a client ---------------------------------------------------------------------------------------------------

    def init(self, problem: View, theta: Theta, batch: Batch) -> State:
        d = jax.eval_shape(trees.ravel, theta).size
        s, p = jax.eval_shape(problem.signal, theta).size, shape_of_f(problem, batch).size
        m, zero = 1 + s + curvatures(s), jnp.zeros(())
        table, square = jnp.zeros((p, m - 1)), jnp.zeros((d, d))
        response = Response(jnp.zeros(s), jnp.zeros((p, m)), jnp.zeros((p, 1 + s, 1 + s)))
        return State(
            made=jnp.int32(0),
            scale=jnp.ones(d),
            spread=jnp.ones(p),
            trials=no_trials(self.room, (reaction_memory.DOUBLINGS, s), p),
            seen=jnp.zeros((reaction_memory.DOUBLINGS, s)),
            habit=peak(jnp.zeros(reaction_memory.DOUBLINGS)),
            moments=Moments(jnp.zeros(p), jnp.zeros((m, m)), jnp.zeros((p, m))),
            prior=Prior(table, table + 1),
            before=table,
            error=table,
            fear=zero + STIFF**2,
            fitted=Fitted(Ruler(jnp.zeros(s), jnp.ones(s)), response, none_kept(batch, self.keep, p)),
            variance=table + 1,
            bend=Bend(square, square, square),
            delta=jnp.zeros(d),
            due=jnp.asarray(False),
            left=jnp.int32(0),
            size=zero,
            miss=jnp.zeros(2),
            held=zero,
            region=zero + self.region,
            filter=trusted_samples.begin(problem, filters.get(self.filter), theta, batch),
        )

    def deploy(self, problem: View, state: State, key: Key, theta: Theta) -> tuple[Theta, State]:
        """theta the first time; then to a random corner and to the opposite one, in turns; each held while people
        get used to it."""
        flat, unravel = ravel_pytree(theta)
        with stage("explore") as check:
            signs = random.signs(random.explore_key(key), flat.size).astype(flat.dtype)
            held = (state.left > 0) & (state.made > 0)
            delta = jnp.where(held, state.delta, jnp.where(state.due, -state.delta, signs))
            delta = jnp.where(state.made == 0, 0.0, delta)
            step = state.size * state.scale * delta
            deployed = check(problem.project(unravel(flat + step)))
            due = jnp.where(held, state.due, ~state.due) & (state.made > 0)
            left = jnp.where(held, state.left, reaction_memory.hold(state.habit, DOUBT)) - 1
        return deployed, state._replace(delta=delta, due=due, left=left)

    def step(
        self, problem: View, state: State, theta: Theta, arrival: Arrival, key: Key
    ) -> tuple[Theta, State, dict[str, Array]]:
        batch, weights, deployed, _ = arrival
        told = {}
        if self.filter != "none":
            with stage("filter") as check:
                chosen = filters.get(self.filter)
                weights, told["kept"], memory = check(
                    trusted_samples.filter_weights(problem, chosen, deployed, batch, weights, state.filter)
                )
                state = state._replace(filter=memory)
        with stage("estimate f") as check:
            f = check(problem.family.estimate(batch, weights))
            share = jnp.sum(weights**2)
            spread = problem.family.observed_variance(batch, weights, f) / share
        state = trees.where(state.made == 0, self._begun(problem, state, deployed, batch, weights, spread), state)
        state = state._replace(spread=state.spread + (spread - state.spread) / (state.made + 1))
        with stage("fit") as check:
            state = check(self._learned(problem, state, theta, deployed, f, 1 / share))
            kept = keep(state.fitted.kept, state.made % self.keep, batch, weights, f)
            state = state._replace(made=state.made + 1, fitted=state.fitted._replace(kept=kept))
        with stage("curvature") as check:
            unknown = jnp.minimum(state.variance / state.prior.variance, 1.0) ** 2 * state.error
            size = state.fitted.ruler.unit.size
            state = state._replace(bend=check(bend(problem, state.fitted, theta, unknown[:, :size])))
        loss = weights @ jax.vmap(problem.loss, (None, 0))(deployed, batch)
        return theta, state, {"loss": loss, **told}

    def report(self, problem: View, state: State, theta: Theta) -> Report:
        flat, unravel = ravel_pytree(theta)
        value, slope = jax.value_and_grad(lambda vector: fitted_risk(problem, state.fitted, unravel(vector)))(flat)
        unit = feature_units(state.fitted.ruler.unit)
        mean, prior = state.fitted.response.mean[:, 1:], state.prior
        found = Found((mean - prior.mean) / unit, state.variance / unit**2, prior.mean / unit, prior.variance / unit**2)
        return {
            "theta": theta,
            "fit": jnp.concatenate([slope[:, None], state.scale[:, None], *state.bend], 1),
            "value": value,
            "miss": jnp.concatenate([state.miss, jnp.stack([state.size, state.fear])]),
            "jacobian": jnp.stack(found),
        }

    def receive(self, problem: View, state: State, theta: Theta, mail: Mail) -> tuple[Theta, State]:
        state = state._replace(size=mail.size, held=mail.held, region=mail.region)
        if not self.share:
            return theta, state
        unit, old = feature_units(state.fitted.ruler.unit), state.fitted.response
        mean, least = mail.common.mean * unit, LEAST**2 * state.spread[:, None]
        common = Prior(mean + mail.speed * (mean - state.before), mail.common.spread * unit**2 + least)
        slopes = state.fitted.ruler.unit.size
        mine = evidence(state.prior, old.mean[:, 1:], state.variance, state.spread, slopes)
        prior = trees.where(mail.alone, mine, common)
        response, cov = posterior(state.moments, old.anchor, prior, state.spread)
        new = state._replace(
            prior=prior,
            before=mean,
            error=jnp.where(mail.alone, 0.0, mail.common.error * unit**2),
            fear=mail.fear,
            fitted=state.fitted._replace(response=response),
            variance=jnp.diagonal(cov, axis1=-2, axis2=-1)[:, 1:],
        )
        return theta, trees.where(mail.ready, new, state)

    def settle(self, problem: View, state: State, theta: Theta, base: Theta, mine: np.ndarray) -> Theta:
        """One's own part, which was deployed as in ``base``, nearer to where the client's fitted risk is least."""
        unravel, units, room = ravel_pytree(theta)[1], state.scale, self._room(problem, state, theta, base, mine)
        curvature = state.bend.curvature * units[:, None] * units
        y = partial_minimisation.nearer(
            lambda y: fitted_risk(problem, state.fitted, unravel(room.there(y))), curvature, room.at, room.inside
        )
        return unravel(room.there(y))

    def withhold(
        self, problem: View, state: State, theta: Theta, base: Theta, first: Theta, mine: np.ndarray, told: Report
    ) -> Report:
        """The report of a client whose own part follows the shared one: that is all that is left in it."""
        (flat, unravel), units, d = ravel_pytree(theta), state.scale, state.scale.size
        square = units[:, None] * units
        slope, bends = told["fit"][:, 0] * units, told["fit"][:, 2:].reshape(d, 3, d).swapaxes(0, 1) * square
        room = self._room(problem, state, theta, base, mine)
        held = mine & ~free(slope, room.at, room.inside)
        beyond = jnp.where(held, flat - TOUCH * units * jnp.sign(slope), flat)
        carried = jax.jacfwd(lambda vector: trees.ravel(problem.project(unravel(vector))))(beyond)
        moves = partial_minimisation.follows(bends[0], mine, held, carried * units / units[:, None])
        off = jnp.where(mine, (flat - trees.ravel(first)) / units, 0.0)
        slope, found = partial_minimisation.of_shared(slope, tuple(bends), off, mine, moves)
        pull = off @ partial_minimisation.light(bends[0], mine) @ off / 2
        fit = jnp.concatenate([(slope / units)[:, None], units[:, None], *[bend / square for bend in found]], 1)
        return {**told, "fit": fit, "value": told["value"] + pull}

    def mail_like(self, problem: View, state: State) -> Mail:
        zero = jnp.zeros(())
        no = jnp.asarray(False)
        return Mail(zero, zero, zero, zero, Common(*[jnp.zeros_like(state.before)] * 3), no, no, zero)

    def figures(self, problem: View, state: State, theta: Theta) -> dict[str, Array]:
        """How far it explores, in units, how many parameters the trust region or the model space holds, and the
        evidence of a memory."""
        found = state.habit
        return {
            "exploration": state.size,
            "held": state.held,
            "memory": found.gain - (DOUBT - reaction_memory.DOUBT),  # so that one threshold suits all methods
            "doublings": found.doublings,
            "doublings_error": found.width,
        }

    # -- at the server -------------------------------------------------------------------------------------------------

    def open(self, problem: View, theta: Theta) -> Server:
        flat, zero = trees.ravel(theta), jnp.zeros(())
        none, square = jnp.zeros_like(flat), jnp.zeros((flat.size, flat.size), flat.dtype)
        unknown = Forecast(*[zero + jnp.nan] * 4)
        start = jnp.int32(0), jnp.int32(0), none + 1, zero + self.region
        return Server(*start, flat, flat, zero, none, square, square, zero + 1, zero, zero, zero, zero, unknown)

    def combine(
        self, problem: View, server: Server, theta: Theta, reports: Report, weights: Array, accepted: Array, key: Key
    ) -> tuple[Theta, Server, Mail]:
        rule, (flat, unravel) = rules.get(self.aggregate), ravel_pytree(theta)
        share = jnp.where(accepted, weights, 0.0)
        concentration = jnp.sum(share**2) / jnp.maximum(jnp.sum(share), jnp.finfo(share.dtype).tiny) ** 2

        def agreed(rows: Array) -> Array:
            wide = rows.reshape(rows.shape[0], -1)
            return rule(wide, weights, accepted, jnp.zeros(wide.shape[1])).reshape(rows.shape[1:])

        turn, last = server.turn, server.turn == self.exchanges
        new = self._opened(server, flat, agreed(reports["fit"][:, :, 1]), agreed(reports["miss"]))
        new = self._compared(new, flat, reports, agreed, concentration)

        def allowed(y: Array) -> Array:
            return (trees.ravel(problem.project(unravel(new.base + new.scale * y))) - new.base) / new.scale

        def inside(y: Array) -> Array:
            return allowed(jnp.clip(y, -new.region, new.region))

        at = (new.best - new.base) / new.scale
        step = least_inside(new.curvature, new.slope, at, inside) - at
        step = jnp.clip(step, -new.reach * new.region, new.reach * new.region)
        tried = new.base + new.scale * inside(at + step)
        model = jnp.where(turn < self.talks, flat, jnp.where(last, new.best, tried))
        new = trees.where(
            last, self._closed(new, free(new.slope, at, inside), free(new.slope, at, allowed)), new
        )._replace(turn=jnp.where(last, 0, turn + 1))
        somebody = jnp.any(accepted)
        server, flat = trees.where(somebody, (new, model), (server._replace(turn=new.turn), flat))
        speed = turn / (turn + 3.0)
        found = consensus(reports["jacobian"], agreed, concentration)
        alone, ready = jnp.sum(share > 0) < 2, somebody & (turn < self.talks)
        mail = Mail(server.size, server.held, server.region, server.fear, found, alone, ready, speed)
        return unravel(flat), server, trees.repeat(mail, len(weights))

    def forecast(self, problem: View, server: Server) -> Forecast:
        return server.forecast

    # -- inside, at a client -------------------------------------------------------------------------------------------

    def _begun(self, problem: View, state: State, theta: Theta, batch: Batch, weights: Array, spread: Array) -> State:
        """Units, and what is believed before anything is known, from the first batch."""
        scale = theta_scales(problem, theta, batch, weights)
        unit = signal_scales(problem, theta, scale)
        return state._replace(
            scale=scale,
            spread=spread,
            prior=Prior(state.prior.mean, spread[:, None] * self._width(state) ** 2),
            fitted=state.fitted._replace(ruler=Ruler(problem.signal(theta), unit)),
            size=jnp.minimum(jnp.sqrt(FIRST * jnp.sum(weights**2)), LARGEST),
        )

    def _learned(self, problem: View, state: State, theta: Theta, deployed: Theta, f: Array, samples: Array) -> State:
        """The response with one more trial in it, seen from theta."""
        ruler, old, fear = state.fitted.ruler, state.fitted.response, self._fear(state)
        anchor, now = ruler.measure(problem.signal(theta)), ruler.measure(problem.signal(deployed))
        seen = follow(state.seen, now, state.made == 0)
        signal = meant(state.habit, seen, DOUBT)
        guess, unsure, variance = old(signal), old.variance(signal), state.spread / samples
        miss = jnp.mean(jnp.maximum((f - guess) ** 2 - variance - unsure, 0.0) / variance)
        went = jnp.mean((guess - old.mean[:, 0]) ** 2 / variance)
        trials = add(state.trials, seen, f, samples)
        habit = remembered(trials, self._width(state), state.spread, STIFF**2)
        tried = trials._replace(signal=jax.vmap(lambda row: meant(habit, row, DOUBT))(trials.signal))
        prior = moved(state.prior, jnp.where(state.made == 0, 0.0, anchor - old.anchor), fear * state.spread)
        found = fit(tried, anchor, prior, state.spread, fear)
        if not self.share:
            prior = evidence(prior, found.response.mean[:, 1:], found.variance[:, 1:], state.spread)
            found = fit(tried, anchor, prior, state.spread, fear)
        return state._replace(
            trials=trials,
            seen=seen,
            habit=habit,
            moments=found.moments,
            prior=prior,
            fear=feared(state.fear, found.third),
            fitted=state.fitted._replace(response=found.response),
            variance=found.variance[:, 1:],
            miss=jnp.where(state.made > 1, jnp.stack([miss, went]), 0.0),
        )

    def _width(self, state: State) -> Array:
        """What slopes and curvatures may be before anything is known, in deviations."""
        return jnp.where(jnp.arange(state.before.shape[1]) < state.fitted.ruler.unit.size, WIDE, CURVED)

    def _fear(self, state: State) -> Array:
        """Variance of third-order coefficients, in units of ``spread``: what misses show, no less than a share of the
        curvature."""
        bends = state.prior.mean[:, state.fitted.ruler.unit.size :]
        return state.fear + THIRD * jnp.mean(jnp.sum(bends**2, 1) / state.spread)

    def _room(self, problem: View, state: State, theta: Theta, base: Theta, mine: np.ndarray) -> Room:
        (flat, unravel), start, units = ravel_pytree(theta), trees.ravel(base), state.scale

        def there(y: Array) -> Array:
            return jnp.where(mine, start + units * y, flat)

        def inside(y: Array) -> Array:
            y = jnp.clip(y, -state.region, state.region)
            return jnp.where(mine, (trees.ravel(problem.project(unravel(there(y)))) - start) / units, 0.0)

        return Room(jnp.where(mine, (flat - start) / units, 0.0), there, inside)

    # -- inside, at the server -----------------------------------------------------------------------------------------

    def _opened(self, server: Server, flat: Array, scale: Array, news: Array) -> Server:
        """The first turn of a round: how well did the last one foresee what came in?"""
        miss, went, size, fear = news
        well, badly = (miss < WELL[0] * went + WELL[1]), (miss > BADLY[0] * went + BADLY[1])
        step = jnp.max(jnp.abs(server.best - server.base) / server.scale)
        used, idle = step > USED * server.region, step < IDLE * server.region
        region = jnp.clip(server.region * jnp.where(well & used, 2.0, jnp.where(badly | idle, 0.5, 1.0)), *AGAIN)
        region = jnp.where(
            server.rounds == 0, BLINDLY * self.region, jnp.where(server.rounds == 1, self.region, region)
        )
        start = server.rounds == 0
        new = server._replace(
            region=region,
            base=flat,
            scale=jnp.where(start, scale, server.scale),
            size=jnp.where(start, size, server.size),
            largest=jnp.where(start, jnp.minimum(LARGER * size, LARGEST), server.largest),
            fear=fear,
        )
        return trees.where(server.turn == 0, new, server)

    def _compared(self, server: Server, flat: Array, reports: Report, agreed: Any, concentration: Array) -> Server:
        """What was tried is the best so far, or the next step is shorter."""
        d, units = flat.size, server.scale
        fits = reports["fit"] * units[:, None] * jnp.concatenate([jnp.ones(2), *[units] * 3])
        found = agreed(jnp.concatenate([reports["value"][:, None, None] + jnp.zeros((1, d, 1)), fits], 2))
        value, slope, curvature = found[0, 0], found[:, 1], found[:, 3 : 3 + d]
        doubt = found[:, 3 + d : 3 + 2 * d] * concentration + found[:, 3 + 2 * d :]
        first = server.turn == self.talks
        better = first | (value <= server.value)
        reach = jnp.where(first, 1.0, jnp.where(better, server.reach, server.reach / 4))
        old = server.best, server.value, server.slope
        best, value, slope = trees.where(better, (flat, value, slope), old)
        curvature, doubt = trees.where(first, (curvature, doubt), (server.curvature, server.doubt))
        return server._replace(best=best, value=value, slope=slope, curvature=curvature, doubt=doubt, reach=reach)

    def _closed(self, server: Server, loose: Array, free: Array) -> Server:
        """The last turn: what is left to gain, and how much to explore for it.

        Parameters that are not ``loose`` are held by the trust region or the model space, those not ``free`` by the
        model space: there is nothing to gain of them.
        """
        whole, free = upright(server.curvature, server.slope), free | (server.slope == 0)  # at rest nothing holds it
        lacking = jnp.linalg.solve(whole, jnp.where(free[:, None] & free, server.doubt, 0.0))
        slope = jnp.where(free, server.slope, 0.0)
        unknown, known = jnp.trace(lacking) / 2, slope @ jnp.linalg.solve(whole, slope) / 2
        error = jnp.sqrt(jnp.maximum(jnp.sum(lacking * lacking.T), 0.0) / 2)
        cost = jnp.trace(whole) / 2
        wanted = jnp.minimum(jnp.sqrt(self.curiosity * unknown / cost), server.largest)
        size = jnp.where(server.rounds == 0, server.size, jnp.maximum(wanted, SLOWLY * server.size))
        rounds = server.rounds + 1
        excess = known + unknown
        forecast = Forecast(excess, error, known + unknown / (rounds + 1.0), size**2 * cost)
        return server._replace(rounds=rounds, size=size, held=jnp.mean(~loose * 1.0), forecast=forecast)


def prm(
    *,
    filter: Any = "none",
    aggregate: Any = "mean",
    share: bool = True,
    curiosity: float = 16.0,
    region: float = 1.0,
    keep: int = 32,
    personal: Any = None,
) -> PRM:
    """Performative risk minimisation: the optimum within some thirty deployments, without a learning rate.

    Args:
      filter: which samples to trust: "none", "robust", "paper", or a function ``(gradients, weights) -> weights``.
      aggregate: how the server combines reports: "mean", or a robust rule of ``profl.server.rules.RULES``.
      share: whether clients learn from each other how data react; each keeps its own answer where it differs.
      curiosity: what exploring may cost in a deployment, in multiples of the expected excess. More learns faster.
      region: the first trust region, in natural units (``profl.parts.units``); it grows and shrinks by itself.
      keep: how many of its newest batches a client minimises over.
      personal: names of parts of theta that stay at the client, or True for all (``profl.parts.personal``).

    >>> prm(region=0.0)
    Traceback (most recent call last):
        ...
    profl.checks.InputError: region must be a finite number above 0, got 0.0
    """
    return keeping(PRM(filter, aggregate, share, curiosity, region, keep), personal)
