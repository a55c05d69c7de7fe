"""Mofakhami, Mitliagkas and Gidel, "Performative prediction with neural networks" (AISTATS 2023): resample if rejected.

A network f(x) = (1 - delta) sigmoid(W2 leaky_relu(W1 x)) with 8 hidden units scores people for credit, loss
(f - y)^2 / 2 with y = 1 - delta for a default. With probability f(x) + delta a person is rejected and comes back with
the strategic features of another, drawn at random. Retraining (RRM) is by Adam, warm from round to round, until the
loss changes by no more than ``STOP``; its steps do not depend on the loss's scale, (1 - delta)^2, which is therefore
left to the stop: the first fit of all deltas is one path that ends sooner or later. People react
to predictions, not to parameters: that is what lets networks in.

``window`` retrains on the last tau snapshots together (``profl_papers.khorsandi2025``).
"""

from __future__ import annotations

from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax

from profl.problem.rejection import ResampleIfRejected
from profl.typing import Array
from profl_papers.claims import Claim, at_least, at_most, close
from profl_papers.credit import STRATEGIC, rows
from profl_papers.item import Found, Item
from profl_papers.lines import line
from profl_papers.measures import panel
from profl_papers.trial import Trial

STOP, HIDDEN = 1e-9, 8
ADAM = optax.adam(3e-4)
PRINTED = {
    0.1: (0.7737, 0.754, 0.756),
    0.4: (0.7773, 0.741, 0.758),
    0.7: (0.7582, 0.743, 0.754),
    0.9: (0.7588, 0.744, 0.756),
}
"""delta -> accuracy on the rows as they are, just after the first deployment, and after retraining in round 25."""
POINT = 0.01
LOG_RISK = {0.1: (-2.674, -2.693), 0.4: (-3.446, -3.488), 0.7: (-4.815, -4.851), 0.9: (-7.021, -7.062)}
"""delta -> log risk just after the first deployment and in the end, read off the figure."""
READ, HALF = 0.05, 0.5
"""How near a log risk must be, and how near its fall to what is read off, relative."""


class Fit(NamedTuple):
    weights: Any
    adam: Any
    loss: Array
    change: Array
    steps: Array


class Path(NamedTuple):
    first: float  # accuracy on the rows as they are
    before: np.ndarray  # accuracy of every round's model on those who have answered to it
    after: np.ndarray  # and of the model that was then trained on them
    risk: np.ndarray  # PR(theta_t)
    shift: np.ndarray  # |DPR(theta_{t-1}; theta_t) - PR(theta_t)|


@jax.jit
def score(weights: Any, x: Array) -> Array:
    """sigmoid of the network; times 1 - delta it is f."""
    return jax.nn.sigmoid((jax.nn.leaky_relu(x @ weights["in"]) @ weights["out"])[..., 0])


@jax.jit
def loss(weights: Any, x: Array, y: Array) -> Array:
    """Over (1 - delta)^2; y is 0 or 1."""
    return jnp.mean((score(weights, x) - y) ** 2) / 2


@jax.jit
def train(weights: Any, adam: Any, x: Array, y: Array, delta: float, most: Array) -> Fit:
    """Adam until the loss changes by no more than ``STOP``, or ``most`` steps."""

    def step(fit: Fit) -> Fit:
        value, gradient = jax.value_and_grad(loss)(fit.weights, x, y)
        updates, adam = ADAM.update(gradient, fit.adam)
        return Fit(optax.apply_updates(fit.weights, updates), adam, value, jnp.abs(value - fit.loss), fit.steps + 1)

    def goes_on(fit: Fit) -> Array:
        return (fit.change * (1 - delta) ** 2 > STOP) & (fit.steps < most)

    far = jnp.asarray(jnp.inf, x.dtype)
    return jax.lax.while_loop(goes_on, step, Fit(weights, adam, far, far, jnp.asarray(0)))


@jax.jit
def answered(key: Array, weights: Any, x: Array, delta: float) -> Array:
    """People after ``weights`` were deployed: the rejected have somebody else's strategic features."""
    rejected, other = jax.random.split(key)
    chance = (1 - delta) * score(weights, x) + delta
    others = x[jax.random.randint(other, (len(x),), 0, len(x))]
    return ResampleIfRejected(score, STRATEGIC).resample(rejected, chance, x, others)


def accuracy(weights: Any, x: Any, y: Any) -> float:
    return float(np.mean((np.asarray(score(weights, x)) > 0.5) == (np.asarray(y) > 0.5)))


@partial(jax.jit, static_argnums=1)
def start(seed: int, size: int) -> Any:
    """As PyTorch begins a linear layer: uniform within 1 / sqrt(inputs)."""
    first, second = jax.random.split(jax.random.key(seed))
    low = jax.random.uniform(first, (size, HIDDEN), minval=-1.0, maxval=1.0) / np.sqrt(size)
    return {"in": low, "out": jax.random.uniform(second, (HIDDEN, 1), minval=-1.0, maxval=1.0) / np.sqrt(HIDDEN)}


def first_fits(seed: int, deltas: tuple[float, ...], most: int) -> dict[float, Fit]:
    """On the rows as they are; a smaller delta goes on from where a larger one stopped."""
    x, y = (jnp.asarray(values) for values in rows())
    weights = start(seed, x.shape[1])
    fits, adam, left = {}, jax.jit(ADAM.init)(weights), most
    for delta in sorted(deltas, reverse=True):
        fits[delta] = fit = train(weights, adam, x, y, delta, left)
        weights, adam, left = fit.weights, fit.adam, left - int(fit.steps)
    return fits


def retrain(seed: int, fit: Fit, delta: float, rounds: int, most: int, window: int = 1) -> Path:
    """RRM from a fit on the rows as they are, each round on the last ``window`` snapshots."""
    x, y = (jnp.asarray(values) for values in rows())
    first, scale = accuracy(fit.weights, x, y), (1 - delta) ** 2
    before, after, risks, shifts = [], [], [], []
    snapshots: list[np.ndarray] = []
    for t in range(rounds):
        seen = np.asarray(answered(jax.random.fold_in(jax.random.key(seed), t), fit.weights, x, delta))
        before.append(accuracy(fit.weights, seen, y))
        risks.append(scale * float(loss(fit.weights, seen, y)))
        if snapshots:
            shifts.append(abs(scale * float(loss(fit.weights, snapshots[-1], y)) - risks[-1]))
        snapshots = [*snapshots, seen][-window:]
        people = np.concatenate(snapshots), np.tile(np.asarray(y), len(snapshots))
        fit = train(fit.weights, fit.adam, *people, delta, most)
        after.append(accuracy(fit.weights, seen, y))
    return Path(first, np.array(before), np.array(after), np.array(risks), np.array(shifts))


def run(trial: Trial) -> Found:
    table, claims, panels = [], [], []
    rounds, most, later = trial.take("rounds"), trial.take("most steps"), {}
    with jax.enable_x64(True):
        deltas, seeds = trial.take("delta"), trial.seeds[: trial.take("networks")]
        fits = {seed: first_fits(seed, deltas, trial.take("first steps")) for seed in seeds}
        for delta in deltas:
            paths = [retrain(seed, fits[seed][delta], delta, rounds, most) for seed in seeds]
            seen = {
                "on the rows as they are": np.mean([path.first for path in paths]),
                "after the first deployment": np.mean([path.before[0] for path in paths]),
                "after retraining": np.mean([path.after[-1] for path in paths]),
            }
            table.append({"delta": delta, **seen, "log risk": np.log(np.mean([path.risk[-1] for path in paths]))})
            claims += as_printed(delta, seen, paths)
            panels.append(picture(delta, paths))
            later[delta] = np.abs(np.diff(np.log([path.risk[1:] for path in paths])))
    if rounds > 2:
        ratio = later[max(deltas)].mean() / later[min(deltas)].mean()
        name = f"later changes of the log risk, delta {max(deltas)} over {min(deltas)}"
        claims.append(at_most(name, ratio, 1.0, paper="smaller for larger delta"))
    return Found(table, claims, panels)


def as_printed(delta: float, seen: dict[str, Any], paths: list[Path]) -> list[Claim]:
    """Accuracies within a point; one big drop of the risk, and then no more than what sampling does."""
    claims = [
        close(f"delta {delta}: accuracy {when}", mean, figure, POINT, direction=mean > 0.7, paper=f"{figure}")
        for (when, mean), figure in zip(seen.items(), PRINTED[delta], strict=True)
    ]
    fall = seen["on the rows as they are"] - seen["after the first deployment"]
    claims.append(at_least(f"delta {delta}: accuracy lost by the first deployment", fall, 0.0, paper="a drop"))
    logs = np.log([path.risk for path in paths])
    claims += [
        close(f"delta {delta}: log risk {when}", logs[:, at].mean(), figure, READ, paper=f"{figure}")
        for when, at, figure in zip(("at first", "in the end"), (0, -1), LOG_RISK[delta], strict=True)
    ]
    first, last = LOG_RISK[delta]
    fell = np.mean(logs[:, 0] - logs[:, -1])
    name = f"delta {delta}: fall of the log risk, first to last"
    claims.append(close(name, fell, first - last, HALF * (first - last), fell > 0, f"{first - last:.3f}"))
    if logs.shape[1] > 3:
        ratio = np.mean(np.abs(np.diff(logs[:, 1:]))) / np.mean(np.abs(logs[:, 1] - logs[:, 0]))
        claims.append(
            at_most(f"delta {delta}: later changes of the log risk over the first", ratio, 1.0, paper="small")
        )
    return claims


def picture(delta: float, paths: list[Path]) -> dict[str, Any]:
    x = range(len(paths[0].before))
    lines = [line("just deployed", "RRM", x, [path.before for path in paths])]
    lines.append(line("retrained", "RRM", x, [path.after for path in paths]))
    return panel(f"delta {delta}", lines, {}, "accuracy", x="round")


ITEM = Item(
    name="mofakhami2023",
    title="A network and people who come back changed if rejected: one drop, then retraining is stable",
    paper={"delta": "0.1, 0.4, 0.7, 0.9", "rounds": 30, "hidden": "8, also 16, 32, 64"},
    settings={"delta": (0.1, 0.4, 0.7, 0.9), "rounds": 26, "first steps": 60_000, "most steps": 4000, "networks": 3},
    why="Three networks (seeds 0-2), up to round 25, in which printed accuracies after retraining are read; with at "
    "most 60,000 steps of Adam at first and 4000 a round.",
    run=run,
    data=("credit",),
    work="mofakhami2023",
    citation="Mofakhami, Mitliagkas, Gidel: Performative prediction with neural networks (AISTATS 2023)",
    finding="One drop, then retraining is stable, as printed. At delta 0.7 the first fit is better on the rows as "
    "they are than the printed one and loses more when it is deployed, as if the printed one had stopped sooner.",
    changed="Claims on the log risk and their tolerance of 0.05 came after accuracies had been seen; 0.05 is more "
    "than the log risk falls, so how far it falls is a claim of its own now, and a log risk that is off no longer "
    "holds in direction. Six rounds of one network became 26 of three.",
    short={"rounds": 2, "first steps": 20, "most steps": 5},
)
