"""Does a user's problem fit its clients? One finding per question, each with a figure; nothing is trained.

structure    the problem's functions fit together; the client's batches have the shapes and dtypes it states
losses       finite where the run will go
gradient     automatic differentiation against central differences of the mean loss, in double precision
projection   onto the model space, twice is once
family       f_hat maximises the likelihood: the mean score is zero in every direction that f_hat can move
noise        the variance that the family states for f_hat, against the bootstrap
reaction     f_hat at theta + delta against theta - delta, in units of its sampling noise
memory       theta + delta is held, then theta - delta, then the first again: does f_hat still move while one is held?
drift        does it move with time, whatever is deployed?
spread       does the spread of the data differ between the two, where the family takes it for fixed?
junk         the share of samples that the robust filter would drop, with a histogram of the coordinate in which they
             lie farthest from the others
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, random, trees
from profl.client.filtering import MUCH, begin, filter_weights
from profl.client.filters import RobustFilter
from profl.client.scales import theta_scales
from profl.client.spreading import log_spread
from profl.engines import probes
from profl.engines.live import batches
from profl.engines.live.workers import call, taken
from profl.engines.step import WORLD
from profl.problem.families import Family
from profl.problem.live import LiveProblem
from profl.problem.problem import Functions, Problem
from profl.problem.reaction import Reaction
from profl.results.histogram import histogram
from profl.typing import Array, Batch, Client, Key, Theta

MOVE = 0.1  # how far models around theta lie, relative to its root mean square: as far as exploration goes at first
LEAST_SIZE = 0.1  # of a model, for that: around theta = 0 there is no size to go by

ENOUGH_SAMPLES = 2  # below, a batch has no variance
AROUND = 2  # pairs of models around theta where losses must be finite

# The gradient: double precision has 16 digits, so central differences are right to about H^2 = 1e-10 of the third
# derivative plus 1e-16 / H = 1e-11 of the loss.
H = 1e-5  # step of the differences, relative to the largest coordinate
DIRECTIONS = 5  # random ones, along which the two are compared
SMOOTH = 1e-4  # up to this relative error a gradient is right: far above what differences are off by
KINKED = 0.05  # up to this one the loss may have kinks and mean them (a hinge); beyond, it is another function's
NO_SLOPE = 1e-8  # slopes below this count as this one, so that two that are zero do not differ

FAR = 1e3  # how far outside a model lies that is projected: times its own size, and as much beyond
PROJECTED = 1e-5  # relative: a projection of single precision may move what it projected by rounding, 1e-7, not by more

# The family: at the maximum of the likelihood the mean score is zero but for rounding, whatever the noise.
REWEIGHTED = 8  # random weights, whose estimates say in which directions f_hat can move
FITS = 1.0  # standard errors up to which the estimate is the maximum, as one that is robust or rounded is nearly
FAR_OFF = 3.0  # from here on it is another point: a bias that noise cannot explain
NO_ERROR = 1e-12  # a score that does not vary along a direction has no standard error

RESAMPLED = 64  # bootstrap batches: their standard deviation is known to 1 / sqrt(128), 9 %
NOISE_LOW, NOISE_HIGH = 0.5, 2.0  # stated over measured noise: a factor of two costs the estimators little
NO_NOISE = 1e-30  # variances below this count as this one

PAIRS = 4  # of deployments, to see a reaction: with 5 goods, 20 squared changes
REACTS = (
    4.0  # standard deviations of a chi-square from which on data react; of 20 numbers, by chance once in a thousand
)

LEAST_HOLD = 3  # two deployments under a model say nothing of what is left of the one before
ASIDE = 0.4  # of a natural unit: how far the two models that are held lie from theta, on both sides
HOLD = 8  # deployments that each of two models is held for, where memory is looked for

SOUND = 0.97  # kept by the filter: of clean data it keeps 99.5 % and more (tests/test_filters.py)
IF_JUNK = "; if that is junk, profl.profl and profl.prm(filter='robust') train without it"
IF_MUCH = (
    ": so much may be a second kind of customer and not junk. Look at who they are. If it is junk, give the filter a "
    "vetted sample, RobustFilter(reference=...); if not, train with filter='none', or set a limit, at_most=..."
)

SHOWN = 5  # numbers of a model in a message


class Finding(NamedTuple):
    question: str
    verdict: str  # "ok", "warn" or "fail"
    detail: str
    picture: str = ""  # several lines


class Broken(Exception):
    """Nothing further can be asked."""


def check(
    problem: Problem | LiveProblem,
    client: Any = None,
    *,
    samples: int = 500,
    timeout: float = 60.0,
    hold: int = HOLD,
    seed: int = 0,
) -> list[Finding]:
    """Ask a problem, and a client where there is one, what a run would ask of them.

    Without a client the problem's own reaction is asked. "fail" will not run or will mislead; "warn" may be meant.

    Args:
      samples: per deployment.
      timeout: seconds that one deployment may take.
      hold: how many deployments each of two models is held for, to look for memory, drift and a spread that moves; the
        first is held twice. 0 does not look.
      seed: of the initial model and of simulated data.

    >>> import profl
    >>> [finding.question for finding in check(profl.cases.housing(clients=2)) if finding.verdict == "fail"]
    []
    """
    checks.positive_int("samples", samples)
    if hold and checks.positive_int("hold", hold) < LEAST_HOLD:
        raise checks.InputError(f"hold must be at least {LEAST_HOLD}, or 0 for not looking, got {hold}")
    found: list[Finding] = []
    try:
        for finding in _ask(
            problem, client, samples, timeout, hold, seed, lambda: not any(f.verdict == "fail" for f in found)
        ):
            found.append(finding)
    except Broken as stop:
        found.append(Finding(*stop.args[0]))
    return found


def _ask(
    problem: Problem | LiveProblem,
    client: Any,
    samples: int,
    timeout: float,
    hold: int,
    seed: int,
    ready: Callable[[], bool],
) -> Iterator[Finding]:
    """``ready()`` says whether nothing has failed so far: the filter is not asked about a problem that is broken."""
    world, theta, like = _structure(problem, seed)
    yield Finding("structure", "ok", f"{_size(theta)} numbers in a model, {_size(like)} in a sample")
    deploy = _deployer(world, client, samples, like, timeout, theta, seed)
    started = time.monotonic()
    batch = deploy(theta, 0)
    rows = batches.rows(batch)
    slow = f"{rows} of {samples} samples in {time.monotonic() - started:.2f} s"
    yield Finding("batch", "ok" if rows >= samples else "warn", slow)
    weights = jnp.full(rows, 1.0 / rows)
    yield _losses(world, theta, batch)
    yield _gradient(world, theta, batch)
    yield _projection(world, theta)
    f = _estimates(world.family, batch, weights[None])[0]
    yield _family(world, batch, weights, f)
    yield _noise(world, batch, weights, f)
    yield _reaction(world, theta, deploy)
    if hold and ready():
        yield from _world(world, theta, batch, deploy, hold)
    if ready():
        yield _junk(world, theta, batch, weights)


def _junk(world: Problem, theta: Theta, batch: Batch, weights: Array) -> Finding:
    after, kept = _filtered(world.functions, RobustFilter(), theta, batch, weights)
    share = max(0.0, 1.0 - float(kept))
    verdict, hint = ("ok", "") if share <= 1 - SOUND else ("warn", IF_JUNK if share < MUCH else IF_MUCH)
    picture = _picture(batch, np.asarray(after < weights / 2))
    return Finding("junk", verdict, f"the filter would drop {share:.1%} of the samples{hint}", picture)


def _picture(batch: Batch, dropped: np.ndarray) -> str:
    """A histogram of the coordinate in which the dropped samples are, in root mean square, the most standard deviations
    of the kept ones away from their mean; so are those that lie on both sides of it."""
    if not dropped.any() or dropped.all():
        return ""
    names, columns = [], []
    for path, leaf in jax.tree_util.tree_leaves_with_path(batch):
        shape = leaf.shape[1:]
        names += [f"sample{jax.tree_util.keystr(path)}{list(place) if place else ''}" for place in np.ndindex(*shape)]
        columns.append(np.asarray(leaf, np.float64).reshape(len(leaf), -1))
    points = np.concatenate(columns, axis=1)
    centre, spread = points[~dropped].mean(0), points[~dropped].std(0)
    away = np.sqrt(np.mean((points[dropped] - centre) ** 2, axis=0)) / np.maximum(spread, math.sqrt(NO_NOISE))
    farthest = int(np.argmax(away))
    return histogram(names[farthest], points[:, farthest], dropped)


def _structure(problem: Problem | LiveProblem, seed: int) -> tuple[Problem, Theta, Batch]:
    try:
        world = problem.problem(1) if isinstance(problem, LiveProblem) else problem
        if not isinstance(world, Problem):
            raise checks.InputError(f"expected a profl.Problem or a profl.LiveProblem, got {type(problem).__name__}")
        theta = world.project(trees.cast(world.initial(random.start_key(random.seed_key(seed)))))
        row = trees.take(trees.cast(world.clients), 0)
        like = jax.eval_shape(lambda t: world.reaction.sample(random.seed_key(0), t, row, 1), theta)
    except Exception as error:
        raise Broken(("structure", "fail", f"{type(error).__name__}: {error}")) from error
    if not bool(trees.all_finite(theta)):
        raise Broken(("structure", "fail", "the initial model is not finite"))
    return world, theta, like


def _deployer(
    world: Problem, client: Any, samples: int, like: Batch, timeout: float, start: Theta, seed: int
) -> Callable[[Theta, int], Batch]:
    """A function that deploys a model and reads what comes in; it stops the check where that cannot be used.

    Simulated people remember what it deployed before, as clients of one's own do by themselves.
    """
    row = trees.take(trees.cast(world.clients), 0)
    people = world.reaction.start(start, row)

    def own(theta: Theta, step: int) -> Batch:
        nonlocal people
        key = random.data_key(random.seed_key(seed), 0, step)
        people, batch = _drawn(world.reaction, samples, people, key, theta, row)
        return batch

    def theirs(theta: Theta, step: int) -> Batch:
        named = taken(client.deploy, step=step)
        answer = call(client.deploy, jax.tree.map(np.array, theta), samples, timeout=timeout, **named)
        return answer.batch if isinstance(answer, batches.Delayed) else answer

    def deploy(theta: Theta, step: int) -> Batch:
        try:
            answer = (own if client is None else theirs)(theta, step)
            if answer is None:
                raise checks.InputError("deploy sent nothing")
            batch = batches.read(answer, like)
            if batches.rows(batch) < ENOUGH_SAMPLES:
                raise checks.InputError(
                    f"deploy sent {batches.rows(batch)} samples; at least {ENOUGH_SAMPLES} are needed"
                )
        except Exception as error:
            raise Broken(("batch", "fail", f"{type(error).__name__}: {error}")) from error
        return batch

    return deploy


def _around(world: Problem, theta: Theta, count: int, relative: float = MOVE) -> list[Theta]:
    """theta and models around it, in pairs: theta + delta, theta - delta."""
    flat, back = _flat(theta)
    scale = relative * max(float(np.sqrt(np.mean(flat**2))), LEAST_SIZE)
    rng = np.random.default_rng(0)
    moves = [scale * rng.choice([-1.0, 1.0], flat.shape) for _ in range(count)]
    return [world.project(back(flat + sign * move)) for move in moves for sign in (1, -1)]


def _losses(world: Problem, theta: Theta, batch: Batch) -> Finding:
    for model in [theta, *_around(world, theta, AROUND)]:
        losses = np.asarray(jax.vmap(world.loss, (None, 0))(model, batch))
        bad = int(np.sum(~np.isfinite(losses)))
        if bad:
            return Finding("losses", "fail", f"{bad} of {losses.size} losses are NaN or Inf at theta = {_short(model)}")
    return Finding("losses", "ok", f"mean {losses.mean():.4g}, standard deviation {losses.std():.3g}")


def _gradient(world: Problem, theta: Theta, batch: Batch) -> Finding:
    """Central differences along random directions; a kink or a stopped gradient shows here."""
    with jax.enable_x64(True):
        theta64, batch64 = trees.cast((theta, batch), jnp.float64)
        flat, back = _flat(theta64)
        rng = np.random.default_rng(1)
        directions = rng.normal(size=(DIRECTIONS, flat.size)) / math.sqrt(flat.size)

        @jax.jit
        def mean(vector: Array, batch: Batch) -> Array:
            return jnp.mean(jax.vmap(world.loss, (None, 0))(back(vector), batch))

        slope = np.asarray(jax.grad(mean)(flat, batch64))
        h = H * max(1.0, float(np.abs(flat).max()))
        seen = [(mean(flat + h * d, batch64) - mean(flat - h * d, batch64)) / (2 * h) for d in directions]
    automatic = directions @ slope
    error = float(np.max(np.abs(np.array(seen) - automatic)) / max(float(np.max(np.abs(automatic))), NO_SLOPE))
    if not math.isfinite(error) or not np.any(slope):
        return Finding("gradient", "fail", "the gradient of the mean loss is zero or not finite: is theta used?")
    hint = ": the loss has a kink, or stops a gradient" if error > SMOOTH else ""
    verdict = "ok" if error <= SMOOTH else "warn" if error < KINKED else "fail"
    return Finding("gradient", verdict, f"differs from differences by {error:.1e} of its size{hint}")


def _projection(world: Problem, theta: Theta) -> Finding:
    far, back = _flat(theta)
    once = world.project(back(far * FAR + FAR))
    apart = float(np.max(np.abs(_flat(world.project(once))[0] - _flat(once)[0])))
    verdict = "ok" if apart <= PROJECTED * max(1.0, float(np.max(np.abs(_flat(once)[0])))) else "fail"
    return Finding("projection", verdict, f"projecting twice moves a model by {apart:.1e}")


def _family(world: Problem, batch: Batch, weights: Array, f: Array) -> Finding:
    """The mean score along the directions in which other weights would move f_hat, in standard errors."""
    scores = np.asarray(_scores(world.family, batch, f))
    others = np.random.default_rng(2).exponential(size=(REWEIGHTED, weights.shape[0]))
    moves = np.asarray(_estimates(world.family, batch, others / others.sum(axis=1, keepdims=True))) - np.asarray(f)
    along = scores @ moves.T  # (n, REWEIGHTED)
    if not np.all(np.isfinite(along)):
        return Finding("family", "fail", "the score or the estimate is not finite")
    error = along.std(axis=0) / math.sqrt(along.shape[0])
    worst = float(np.max(np.abs(along.mean(axis=0)) / np.maximum(error, NO_ERROR)))
    hint = ": the estimate does not fit log_prob" if worst > FITS else ""
    verdict = "ok" if worst <= FITS else "warn" if worst < FAR_OFF else "fail"
    return Finding("family", verdict, f"the score at the estimate is {worst:.2g} standard errors from zero{hint}")


def _noise(world: Problem, batch: Batch, weights: Array, f: Array) -> Finding:
    stated = np.asarray(world.family.variance(batch, weights, f))
    measured = _bootstrap(world, batch)
    ratio = float(np.sqrt(stated.sum() / max(float(measured.sum()), NO_NOISE)))
    if NOISE_LOW <= ratio <= NOISE_HIGH:
        return Finding("noise", "ok", f"the family states {ratio:.2f} times the noise that the data show")
    return Finding("noise", "warn", f"the family states {ratio:.2g} times the noise that the data show: set its sd")


def _reaction(world: Problem, theta: Theta, deploy: Callable[[Theta, int], Batch]) -> Finding:
    """Hotelling's idea without its covariance: the squared change in units of its variance, against chi-squared."""
    total, entries = 0.0, 0
    models = _around(world, theta, PAIRS)
    for number, (up, down) in enumerate(zip(models[::2], models[1::2], strict=True)):
        f, variance = zip(
            *[_estimate(world, deploy(m, 2 * number + 1 + i)) for i, m in enumerate((up, down))], strict=True
        )
        noise = np.maximum(variance[0] + variance[1], NO_NOISE)
        total += float(np.sum((f[0] - f[1]) ** 2 / noise))
        entries += f[0].size
    sigmas = (total - entries) / math.sqrt(2 * entries)
    if sigmas > REACTS:
        return Finding("reaction", "ok", f"the data move with the model: {sigmas:.0f} standard deviations")
    return Finding(
        "reaction",
        "warn",
        f"no reaction to models {MOVE:.0%} apart ({sigmas:.1f} standard deviations): take more samples; "
        "where there is none, profl.pfl is enough",
    )


def _world(
    world: Problem, theta: Theta, batch: Batch, deploy: Callable[[Theta, int], Batch], hold: int
) -> Iterator[Finding]:
    """Two models, held in turn: what moves while one is held, and what differs between them."""
    two, first = _two(world, theta, batch), 1 + 2 * PAIRS
    shifts = world.family.shift is not None
    estimates, noise, spreads = [], [], []
    for number, which in enumerate(probes.schedule(hold).astype(int)):
        came = deploy(two[which], first + number)
        f, resampled = _estimate_and_noise(world, came)
        estimates.append(f)
        noise.append(resampled - resampled.mean(0))
        if shifts:
            spreads.append(np.asarray(_log_spread(world.family, came, f), float))
    found = probes.look(np.stack(estimates), np.concatenate(noise), hold)
    yield _memory(found, hold)
    yield _drift(found, hold)
    if shifts:
        yield _spread(world, probes.compare(np.stack(spreads), found.rate, hold))


def _two(world: Problem, theta: Theta, batch: Batch) -> list[Theta]:
    """Models on both sides of theta, in natural units of what came in with it."""
    n = batches.rows(batch)
    flat, back = _flat(theta)
    scales = np.asarray(theta_scales(world.functions.view(), theta, batch, jnp.full(n, 1 / n)))
    move = ASIDE * scales * np.random.default_rng(0).choice([-1.0, 1.0], flat.shape)
    return [world.project(back(flat + sign * move)) for sign in (1, -1)]


def _memory(found: probes.World, hold: int) -> Finding:
    if not found.memory:
        seen = "the two models bring in too much the same to tell: take more samples"
        if found.fastest:
            seen = f"a rate of {found.fastest:.2g} or slower would be"
        return Finding("memory", "ok", f"none to be seen where a model is held for {hold} deployments; {seen}")
    settling = round(1 / found.rate)
    return Finding(
        "memory",
        "warn",
        f"people react slowly, {found.rate:.2g} of the way with a deployment ({found.low:.2g} to {found.high:.2g}): "
        f"train with jacobian='tracking', and judge a model only after {settling} deployments and more",
    )


def _drift(found: probes.World, hold: int) -> Finding:
    if not found.drift:
        least = f"; a trend below {found.visible:.2g} standard deviations of f_hat a deployment would not be"
        return Finding("drift", "ok", f"none to be seen in {3 * hold} deployments{least}")
    most = found.trend[np.argmax(np.abs(found.trend))]
    return Finding(
        "drift",
        "warn",
        f"the data move by themselves, by up to {most:.2g} a deployment: "
        "train with jacobian='tracking', which follows them, and go on deploying",
    )


def _spread(world: Problem, found: probes.Spread) -> Finding:
    size = f"{100 * (found.ratio - 1):+.2g} ± {100 * found.error * found.ratio:.1g} %"
    if not found.moves:
        return Finding("spread", "ok", f"the same under models {2 * ASIDE:g} natural units apart: {size}")
    return Finding(
        "spread",
        "warn",
        f"a standard deviation differs by {size} between models {2 * ASIDE:g} natural units apart, and "
        f"{type(world.family).__name__} takes it for fixed: use profl.LocationScale(), or Problem(push=...)",
    )


def _estimate_and_noise(world: Problem, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """f_hat, and that of RESAMPLED bootstrap batches."""
    n = batches.rows(batch)
    draws = np.random.default_rng(4).multinomial(n, np.full(n, 1 / n), size=RESAMPLED) / n
    both = np.asarray(_estimates(world.family, batch, np.concatenate([np.full((1, n), 1 / n), draws])), float)
    return both[0], both[1:]


def _estimate(world: Problem, batch: Batch) -> tuple[np.ndarray, np.ndarray]:
    """f_hat and its variance by the bootstrap, since the stated one may be wrong."""
    n = batches.rows(batch)
    return np.asarray(_estimates(world.family, batch, np.full((1, n), 1 / n))[0]), _bootstrap(world, batch)


def _bootstrap(world: Problem, batch: Batch) -> np.ndarray:
    """The variance of every entry of f_hat, from RESAMPLED batches."""
    n = batches.rows(batch)
    draws = np.random.default_rng(3).multinomial(n, np.full(n, 1 / n), size=RESAMPLED) / n
    return np.asarray(_estimates(world.family, batch, draws)).var(axis=0, ddof=1)


@partial(jax.jit, static_argnums=0)
def _estimates(family: Family, batch: Batch, weights: Array) -> Array:
    """f_hat under each row of weights."""
    return jax.vmap(family.estimate, (None, 0))(batch, weights)


@partial(jax.jit, static_argnums=0)
def _log_spread(family: Family, batch: Batch, f: Array) -> Array:
    n = batches.rows(batch)
    return log_spread(family, batch, jnp.full(n, 1 / n), f)


@partial(jax.jit, static_argnums=(0, 1))
def _drawn(reaction: Reaction, samples: int, people: Any, key: Key, theta: Theta, client: Client) -> tuple[Any, Batch]:
    """What a deployment makes of the people, and n samples of what comes in."""
    people = reaction.move(people, jax.random.fold_in(key, WORLD), theta, client)
    return people, reaction.sample_in(people, key, theta, client, samples)


@partial(jax.jit, static_argnums=0)
def _scores(family: Family, batch: Batch, f: Array) -> Array:
    return jax.vmap(jax.grad(family.log_prob, argnums=1), (0, None))(batch, f)


@partial(jax.jit, static_argnums=(0, 1))
def _filtered(
    problem: Functions, filter_: RobustFilter, theta: Theta, batch: Batch, weights: Array
) -> tuple[Array, Array]:
    memory = begin(problem, filter_, theta, batch)
    return filter_weights(problem, filter_, theta, batch, weights, memory)[:2]


def _flat(theta: Theta) -> tuple[np.ndarray, Callable[[Any], Theta]]:
    from jax.flatten_util import ravel_pytree

    vector, back = ravel_pytree(theta)
    return np.asarray(vector), lambda v: back(jnp.asarray(v, vector.dtype))


def _size(tree: Any) -> int:
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))


def _short(theta: Theta) -> str:
    return np.array2string(_flat(theta)[0][:SHOWN], precision=3)
