"""The rivals of ``python -m benchmarks rivals``: what is tried of each, and where each stands in the table.

Of several settings the excess is that of the setting with the least mean excess at the end, and the regret that of the
one with the least regret, which may be another: rivals are handed the best in hindsight twice, ``prm`` its defaults.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Sequence
from functools import partial
from itertools import product
from time import process_time
from typing import Any

import numpy as np

from benchmarks.rivals.federation import Known, Observe, Search, Track, observer, play
from benchmarks.rivals.moved_risk import MovedRisk
from benchmarks.rivals.spsa import FIRST, WIDTHS, Spsa
from benchmarks.rivals.switchback import RADII, Switchback
from profl.methods import prm
from profl.run.compiled.simulate import simulate

SAMPLES = 500
JUDGED_ON = 128
"""Samples of every client, of its newest deployment, that the composite acquisition moves to f."""
HOW = (
    "BoTorch is not installed, and its rivals are left out: pip install -c constraints.txt -e '.[bench]' (a build of "
    "torch for the CPU will do)"
)
Tried = dict[str, Callable[[np.ndarray, int], Search]]
"""Setting -> what begins a search, of the start and the seed."""


def has_botorch() -> bool:
    return all(importlib.util.find_spec(name) is not None for name in ("torch", "botorch"))


def prm_track(row: Known, rounds: int, seeds: Sequence[int]) -> Track:
    """``prm`` with its defaults."""
    began = process_time()
    run = simulate(row.problem, prm(), rounds=rounds, local_steps=1, samples=SAMPLES, seeds=seeds, progress=False)
    lower = run.optimum_risk - row.optimum_risk  # a run's own optimum may be another local minimum
    excess = np.where(np.isfinite(run.excess), run.excess + lower, np.inf)
    mean = np.where(np.isfinite(run.deployed_regret), run.deployed_regret + lower, np.inf)[:, 1:]
    return Track("default", excess, mean * np.arange(1, rounds + 1), (process_time() - began) / len(seeds))


def tried(row: Known, rounds: int) -> dict[str, Tried]:
    """Rival -> its settings."""
    weights = np.asarray(row.problem.weights, float)

    def risk() -> MovedRisk:
        return MovedRisk(row.problem, row.lower, row.upper, JUDGED_ON)

    def spsa(width: float, first: float, start: np.ndarray, seed: int) -> Search:
        return Spsa(start, weights, rounds, seed, width, first)

    def switchback(radius: float, own: bool, start: np.ndarray, seed: int) -> Search:
        return Switchback(start, risk(), rounds, seed, radius, own)

    found: dict[str, Tried] = {
        "spsa": {f"c = {c}, first step {a}": partial(spsa, c, a) for c, a in product(WIDTHS, FIRST)},
        "switchback": {
            f"radius {radius}, {'own slopes' if own else 'common slopes'}": partial(switchback, radius, own)
            for radius, own in product(RADII, (False, True))
        },
    }
    if has_botorch():
        found |= bayesian(row, rounds, weights, risk)
    return found


def bayesian(row: Known, rounds: int, weights: np.ndarray, risk: Callable[[], MovedRisk]) -> dict[str, Tried]:
    """The rivals that need BoTorch."""
    from benchmarks.rivals import bayes

    def scalar(design: bayes.Design, start: np.ndarray, seed: int) -> Search:
        return bayes.Scalar(start, weights, rounds, seed, design)

    def composite(design: bayes.Design, start: np.ndarray, seed: int) -> Search:
        return bayes.Composite(start, risk(), rounds, seed, design)

    return {
        "botorch": {name: partial(scalar, design) for name, design in bayes.DESIGNS.items()},
        "botorch, composite": {name: partial(composite, design) for name, design in bayes.DESIGNS.items()},
    }


def compare(row: Known, rounds: int, seeds: Sequence[int]) -> dict[str, Track]:
    """``prm``, and the best of every rival's settings."""
    observe: Observe = observer(row.problem, SAMPLES)
    found = {"prm": prm_track(row, rounds, seeds)}
    for name, settings in tried(row, rounds).items():
        tracks: list[Track] = []
        for text, make in settings.items():
            tracks += play(text, row, observe, make, rounds=rounds, seeds=seeds)
        found[name] = best_of(tracks)
    return found


def best_of(tracks: Sequence[Track]) -> Track:
    """The excess of the track with the least at the end, and the regret of the one with the least of that.

    >>> one, other = (Track(name, np.full((1, 2), x), np.full((1, 1), -x), 1.0) for name, x in (("a", 1), ("b", 2)))
    >>> best_of([one, other])
    Track(setting='a; regret: b', excess=array([[1, 1]]), regret=array([[-2]]), seconds=1.0)
    """

    def ends(values: np.ndarray) -> float:
        return float(np.nan_to_num(values[:, -1], nan=np.inf).mean())

    nearest = min(tracks, key=lambda track: ends(track.excess))
    cheapest = min(tracks, key=lambda track: ends(track.regret))
    if np.array_equal(nearest.regret, cheapest.regret):
        return nearest
    return nearest._replace(setting=f"{nearest.setting}; regret: {cheapest.setting}", regret=cheapest.regret)


def figures(track: Track, unit: float, after: Sequence[int]) -> dict[str, Any]:
    """Excess and summed regret after some deployments in units of the gap, and the CPU time of a seed."""
    shares = {f"left after {k}": track.excess[:, k].mean() / unit for k in after}
    regrets = {f"regret after {k}": track.regret[:, k - 1].mean() / unit for k in after}
    return shares | regrets | {"CPU seconds": track.seconds}
