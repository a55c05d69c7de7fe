"""Problems drawn from a seed: ``draw(seed)``.

A compiled program belongs to a loss, a family, a number of parameters, clients and samples; ``SHAPES`` has thirty such
combinations, a fixed balanced draw, and every problem takes one. All else (reaction, noise, how clients differ,
weights, where the optimum lies in the box, where a run starts) is drawn anew and stands in numbers. Seeds below 1,000
are for tuning; what is reported comes from others.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import jax.numpy as jnp
import numpy as np

from profl.problem.families import Family, GaussianMean, LocationScale
from profl.problem.model_space import Box
from profl.problem.problem import Problem
from profl_papers.drawn.world import LOSSES, World

PRICES, CENTRED = Box(0.0, 10.0), Box(-5.0, 5.0)
DIMENSIONS = (1, 2, 3, 5, 10, 20)
CLIENTS = (1, 3, 10, 10, 30)
SAMPLES = (1, 7, 50, 50, 500, 1000)
SHAPE_COUNT = 30
ENOUGH = 50
"""Samples from which on a family with a spread is taken: it has none of one row."""
LINKS = ("linear", "exponential", "threshold", "choice")
STEEP = 3.0
"""How much steeper a threshold is than a line of the same reach."""
HEAVIEST = 0.7
"""Of all weights, the most that one client has."""


class Shape(NamedTuple):
    """What a compiled program belongs to."""

    loss: str
    counts: bool
    both: bool
    size: int
    clients: int
    samples: int

    @property
    def box(self) -> Box:
        return CENTRED if self.loss in ("square", "logistic") else PRICES

    @property
    def family(self) -> Family:
        return LocationScale() if self.both else GaussianMean()


class Drawn(NamedTuple):
    problem: Problem
    samples: int
    text: str  # what was drawn, in words


def _shapes() -> tuple[Shape, ...]:
    rng = np.random.default_rng([29, 0])

    def balanced(values: tuple) -> list:
        return [values[i % len(values)] for i in rng.permutation(SHAPE_COUNT)]

    sizes, clients, samples = balanced(DIMENSIONS), balanced(CLIENTS), balanced(SAMPLES)
    found = []
    for i, loss in enumerate(balanced(tuple(LOSSES))):
        counts = loss not in ("square", "logistic") and i % 2 == 0
        both = samples[i] >= ENOUGH and i % 3 == 0
        found.append(Shape(loss, counts, both, sizes[i], clients[i], samples[i]))
    return tuple(found)


SHAPES = _shapes()


def by_shape(seeds: Iterable[int]) -> dict[Shape, list[int]]:
    """Seeds whose problems share compiled programs, together.

    >>> sum(map(len, by_shape(range(50)).values()))
    50
    """
    groups: dict[Shape, list[int]] = {}
    for seed in seeds:
        groups.setdefault(_shape(_rng(seed)), []).append(seed)
    return groups


def _rng(seed: int) -> np.random.Generator:
    return np.random.default_rng([29, 1, seed])


def _shape(rng: np.random.Generator) -> Shape:
    return SHAPES[rng.integers(len(SHAPES))]


def draw(seed: int) -> Drawn:
    """A problem, how many samples a deployment of it has, and a line that describes it.

    >>> draw(3).problem.count == draw(3).problem.count
    True
    """
    rng = _rng(seed)
    return draw_of_shape(rng, _shape(rng), f"wild {seed}")


def draw_of_shape(rng: np.random.Generator, shape: Shape, name: str, link: str | None = None) -> Drawn:
    """A problem of this shape; ``link``: one of LINKS, which is drawn by default."""
    clients, words = _clients(rng, shape, link)
    weights, weighing = draw_weights(rng, shape.clients)
    start, place = _start(rng, shape, clients["ref"][0])
    family = type(shape.family).__name__
    text = f"{shape.loss} d{shape.size} c{shape.clients} n{shape.samples} {family} | {words}, {weighing}, {place}"
    problem = Problem(
        name,
        LOSSES[shape.loss],
        shape.family,
        World(shape.loss, shape.counts, shape.both),
        clients,
        jnp.asarray(start, jnp.float32),
        shape.box,
        weights,
    )
    return Drawn(problem, shape.samples, text)


def _clients(rng: np.random.Generator, shape: Shape, chosen: str | None) -> tuple[dict[str, np.ndarray], str]:
    """The stacked clients of a problem, and what they are like."""
    d, count = shape.size, shape.clients
    tight, link = bool(rng.random() < 0.4), int(rng.integers(len(LINKS)))
    link = link if chosen is None else LINKS.index(chosen)
    level, scale, ref, slope = _centre(rng, shape, tight, link)
    matrix, form = _matrix(rng, d, shape.loss)
    none = rng.random() < 1 / 8
    a = (0.0 if none else STEEP if link == 2 else 1.0) * slope * matrix / scale[:, None]
    different = rng.random() < 0.5
    reach = np.ones(count) if count == 1 else 1 + 0.05 * rng.normal(size=count)
    if different and count > 1:
        reach = rng.lognormal(-0.2, 0.7, count) * (rng.random(count) < 0.7)
        reach *= 1 / max(reach.mean(), 0.3)
    levels = level * (1 + (0.25 if different else 0.03) * rng.normal(size=(count, d)))
    noise, numbers = _noise(rng, shape, level)
    moves = not shape.counts and rng.random() < 0.2
    unit = np.maximum(np.abs(ref), 2.0)
    k = (rng.uniform(0.2, 0.8) * rng.choice([-1, 1]) / unit) if moves else np.zeros(d)
    same = {"ref": ref, "k": k, "link": np.eye(len(LINKS))[link], **numbers}
    clients = {name: np.stack([np.asarray(value, float)] * count) for name, value in same.items()}
    clients |= {"level": levels, "scale": levels / level * scale, "a": reach[:, None, None] * a}
    kind = "no reaction" if none else f"{form} {LINKS[link]}"
    spread = ", spread moves" if moves else ""
    return clients, f"{kind}{spread}, {noise}, {'different' if different else 'alike'}, {'tight' if tight else 'wide'}"


def _centre(rng: np.random.Generator, shape: Shape, tight: bool, link: int) -> tuple[np.ndarray, ...]:
    """(level, scale, ref, dmean/dtheta at ref times the reaction's matrix), one number per entry.

    In a tight box the optimum lies near its edge, or beyond; in a wide one the box is several times as far.
    """
    d = shape.size
    if shape.box is CENTRED:
        level = rng.normal(size=d) * (1.5 / np.sqrt(d) if shape.loss == "logistic" else 4.0 if tight else 1.0)
        level = np.where(np.abs(level) < 0.1, 0.1, level)
        scale = np.ones(d) if link == 0 else rng.uniform(0.5, 2.0) * np.maximum(np.abs(level), 0.5)
        if shape.loss == "logistic":  # people move away from the decision: towards it there is little to gain
            return level, scale, np.zeros(d), np.full((d, 1), rng.uniform(-2.0, 0.4))
        return level, scale, np.zeros(d), np.full((d, 1), rng.choice([-1, 1]) * rng.uniform(0.3, 0.8))
    ref = (rng.uniform(5.0, 9.0) if tight else rng.uniform(1.0, 2.5)) * rng.uniform(0.8, 1.2, d)
    if shape.loss == "revenue":
        level = rng.uniform(2.0, 12.0) * rng.uniform(0.8, 1.2, d)
        return level, level, ref, -(rng.uniform(0.6, 2.0) * level / ref)[:, None]
    level = ref * rng.uniform(0.7, 1.3, d)
    most = 0.3 if shape.loss == "profit" else 0.6  # of more, a profit has no maximum
    return level, rng.uniform(0.5, 1.5) * level, ref, np.full((d, 1), rng.choice([-1, 1]) * rng.uniform(0.15, most))


def _matrix(rng: np.random.Generator, d: int, loss: str) -> tuple[np.ndarray, str]:
    """A reaction matrix of spectral norm about one, (d, d), and its form; own effects outweigh for revenue."""
    form = rng.choice(["diagonal", "dense", "low rank"]) if d > 2 else "diagonal" if d == 1 else "dense"
    if form == "diagonal":
        return np.diag(rng.uniform(0.6, 1.0, d)), form
    if form == "low rank":
        sides = np.linalg.qr(rng.normal(size=(d, 2)))[0]
        return np.sqrt(d / 2) * sides @ sides.T if loss == "revenue" else sides @ sides.T, form
    other = rng.normal(size=(d, d))
    other /= np.linalg.norm(other, 2)
    return np.eye(d) + 0.4 * other if loss == "revenue" else 0.5 * np.eye(d) + 0.5 * other, form


def _noise(rng: np.random.Generator, shape: Shape, level: np.ndarray) -> tuple[str, dict[str, float]]:
    """The kind of noise and the numbers that state it."""
    if shape.counts:
        kind = str(rng.choice(["Poisson", "Bernoulli", "negative binomial"]))
        flags = {"poisson": float(kind == "Poisson"), "bernoulli": float(kind == "Bernoulli")}
        more = {"size": rng.uniform(1.5, 6.0), "top": rng.uniform(1.5, 3.0) * level.mean()}
        return kind, {**flags, **more, "sd": 1.0, "tail": 0.0, "zeros": 0.0}
    kind = str(rng.choice(["Gaussian", "t", "30 % zeros"]))
    zeros = 0.3 if kind == "30 % zeros" else 0.0
    return kind, {"sd": rng.uniform(0.5, 1.5), "tail": float(kind == "t"), "zeros": zeros}


def draw_weights(rng: np.random.Generator, count: int) -> tuple[np.ndarray, str]:
    """Weights of clients and what they are like: equal, random, or one client with most."""
    kind = rng.random()
    if count == 1 or kind < 0.5:
        return np.full(count, 1 / count), "equal weights"
    if kind < 0.7:
        drawn = rng.dirichlet(np.ones(count))
        return np.minimum(drawn, HEAVIEST) / np.minimum(drawn, HEAVIEST).sum(), "random weights"
    most = rng.uniform(max(0.4, 1 / count), HEAVIEST)
    return np.where(np.arange(count) == 0, most, (1 - most) / (count - 1)), f"weight {most:.2f}"


def _start(rng: np.random.Generator, shape: Shape, ref: np.ndarray) -> tuple[np.ndarray, str]:
    box = shape.box
    if rng.random() < 0.3:
        upper = rng.random() < 0.5
        return np.full(shape.size, box.upper if upper else box.lower), f"from the {'upper' if upper else 'lower'} edge"
    if box is CENTRED:
        far = 1.0 if shape.loss == "logistic" else 3.0
        return rng.uniform(-far, far, shape.size), "from inside"
    return np.clip(ref * rng.uniform(0.4, 1.8, shape.size), box.lower, box.upper), "from inside"
