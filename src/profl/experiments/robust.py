"""``profl bench robust``: what junk samples, small samples and hostile clients cost, and what the robust parts save.

Parts, each a table and the claims it must meet: the filter alone, junk in a run (Figure 2a), shared Jacobians
(Figure 2b), adaptive sample size (Figure 2c), hostile clients, and the filter's memory.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from profl.algorithms import profl
from profl.cases import pricing, strategic
from profl.client.filters import FILTERS, PaperFilter
from profl.client.sample_size import AdaptiveSamples
from profl.engines.simulate import simulate
from profl.experiments.claims import Part, at_least, at_most, item
from profl.problem.contamination import contaminate
from profl.problem.sources import SOURCES
from profl.results.record import Run
from profl.typing import Array, Key

D, N = 5, 500
SHARES = (0.0, 0.1, 0.2, 0.3, 0.4, 0.45)
DISTANCES = (5, 10, 30, 300)
FIXED_SOURCES = ("blob", "point", "uniform", "heavy_tail", "two_blobs", "scaled")
JUNK = ("blob", "heavy_tail", "adaptive")
ATTACKED = ("sign_flip", "scaled", "drift", "nan", "stale", "f_hat")
RULE = "nnm+trimmed_mean"
"""The rule that fits: mixing draws honest clients that differ together, trimming then drops what still lies apart."""


def bench(
    seeds: int = 10, quick: bool = False, progress: bool = False, advance: Callable[[int], None] = lambda steps: None
) -> dict[str, Any]:
    """All parts; ``quick`` makes short runs that show the form of the result but prove nothing."""
    settings = {"rounds": 20 if quick else 200, "seeds": range(seeds), "progress": progress}
    trials = 20 if quick else 200
    parts: list[Callable[[], Part]] = [
        partial(filter_alone, trials),
        *(partial(junk, settings, source) for source in JUNK),
        partial(flipped, settings),
        partial(sharing, settings),
        partial(adaptive, settings),
        partial(hostile, settings),
        memory,
    ]
    return item("robust", seeds, parts, advance)


PARTS = 9


def filter_alone(trials: int) -> Part:
    """Error of the filtered mean over that of the mean of the truly clean samples: d = 5, n = 500."""
    rows, worst = [], {"far": 0.0, "far, 0.45": 0.0, "near": 0.0, "plain": 0.0, "clean": 0.0, "kept": 1.0}
    keys = jax.random.split(jax.random.key(0), trials)
    for source in FIXED_SOURCES:
        table = _trial(source)
        for share in SHARES:
            for distance in DISTANCES:
                errors, kept, failed = table(keys, share, float(distance))
                robust, literal, clean, plain = np.sqrt(np.mean(errors, axis=0))
                ratio = robust / clean
                rows.append(
                    {
                        "part": "filter alone",
                        "source": source,
                        "share": share,
                        "distance": distance,
                        "robust / clean": ratio,
                        "paper / clean": literal / clean,
                        "plain / clean": plain / clean,
                        "paper failed": float(np.mean(failed)),
                    }
                )
                where = _bar(share, distance)
                if where:
                    worst[where] = max(worst[where], ratio)
                worst["plain"] = max(worst["plain"], robust / plain)
                worst["kept"] = min(worst["kept"], float(np.min(kept)))
    name = "filter alone, worst error over that of the clean mean: "
    return Part(
        rows,
        [
            at_most(name + "10 sigma or more, eps <= 0.4", worst["far"], 1.25),
            at_most(name + "10 sigma or more, eps = 0.45", worst["far, 0.45"], 1.5),
            at_most(name + "5 sigma, eps <= 0.2", worst["near"], 1.25),
            at_most(name + "clean data", worst["clean"], 1.03),
            at_most("filter alone, worst error over that of the plain mean", worst["plain"], 1.1),
            at_least("filter alone, least share kept", worst["kept"] + 1e-6, 0.5),
        ],
    )


def _bar(share: float, distance: float) -> str:
    if share == 0:
        return "clean"
    if distance >= 10:
        return "far" if share <= 0.4 else "far, 0.45"
    return "near" if share <= 0.2 else ""


def _trial(source: str) -> Callable[..., Any]:
    """Squared errors of the four means, the weight kept, and whether the literal rule failed: compiled, over keys."""
    sampler = SOURCES[source]

    def one(key: Key, share: Array, distance: Array) -> tuple[Array, Array, Array]:
        first, second = jax.random.split(key)
        clean = jax.random.normal(first, (N, D))
        bad = jnp.arange(N) < jnp.round(share * N)
        samples = jnp.where(bad[:, None], sampler(second, clean, jnp.zeros(D), distance), clean)
        weights = jnp.full(N, 1 / N)
        kept = FILTERS["robust"](samples, weights)
        literal, failed = PaperFilter().run(samples, weights)
        means = [w @ samples / jnp.sum(w) for w in (kept, literal, (~bad).astype(float), weights)]
        return jnp.stack([jnp.sum(mean**2) for mean in means]), jnp.sum(kept), failed

    return jax.jit(jax.vmap(one, (0, None, None)))


def junk(settings: dict[str, Any], source: str) -> Part:
    """Figure 2a: pricing with junk of one kind, filtered and not."""
    clean = _tail(simulate(pricing(), profl(), samples=N, **settings))
    rows = [_junk_row(source, 0.0, "robust", excess=clean)]
    claims = []
    for share in (0.1, 0.2, 0.4):
        case = contaminate(pricing(), share, source, distance=10)
        found = {name: _tail(simulate(case, profl(filter=name), samples=N, **settings)) for name in ("robust", "none")}
        rows += [_junk_row(source, share, name, excess=excess) for name, excess in found.items()]
        bar = 1.5 * clean + 0.01
        claims.append(at_most(f"pricing, {share:.0%} {source}: tail excess with the filter", found["robust"], bar))
    return Part(rows, claims)


def flipped(settings: dict[str, Any]) -> Part:
    """Strategic classification with a fifth of the labels flipped."""
    honest = _accuracy(simulate(strategic(), profl(0.1), samples=N, **settings))
    case = contaminate(strategic(), 0.2, "label_flip")
    lost = {
        name: 100 * (honest - _accuracy(simulate(case, profl(0.1, filter=name), samples=N, **settings)))
        for name in ("robust", "none")
    }
    rows = [_junk_row("label_flip", 0.2, name, **{"points lost": points}) for name, points in lost.items()]
    claim = "strategic, 20% labels flipped: accuracy lost with the filter"
    return Part(rows, [at_most(claim, lost["robust"], 1.0, " points")])


def _junk_row(source: str, share: float, name: str, **figure: float) -> dict[str, Any]:
    case = "strategic" if source == "label_flip" else "pricing"
    return {"part": "junk", "case": case, "source": source, "share": share, "filter": name, **figure}


def three_groups(clients: int = 100) -> Any:
    """Pricing with three groups of sensitivity: 0.75, 1.5 and 2.25."""
    case = pricing(clients=clients, heterogeneity=0)
    gamma = np.repeat([0.75, 1.5, 2.25], [clients // 3, clients - 2 * (clients // 3), clients // 3])
    return replace(case, name="pricing, three groups", clients={**case.clients, "gamma": gamma}), gamma


def sharing(settings: dict[str, Any]) -> Part:
    """Figure 2b: 100 clients with 60 samples each, three groups."""
    case, gamma = three_groups()
    local = simulate(case, profl(filter="none"), samples=60, **settings)
    shared = simulate(case, profl(filter="none", share="auto"), samples=60, **settings)
    assert shared.jacobians is not None
    exact = -gamma[:, None, None] * np.eye(D)
    errors = {
        name: np.sqrt(np.mean((getattr(shared.jacobians, name) - exact) ** 2, axis=(1, 2, 3)))
        for name in ("own", "shared")
    }
    truth = np.unique(gamma, return_inverse=True)[1]
    right = [_agreement(truth, groups) for groups in shared.jacobians.groups]
    wins = np.mean(shared.tail_excess() < local.tail_excess())
    rows = [
        {"part": "sharing", "Jacobian": "local", "error": float(errors["own"].mean()), "excess": _tail(local)},
        {"part": "sharing", "Jacobian": "shared", "error": float(errors["shared"].mean()), "excess": _tail(shared)},
    ]
    return Part(
        rows,
        [
            at_least(
                "sharing: local error over shared error of the Jacobian", (errors["own"] / errors["shared"]).mean(), 3
            ),
            at_least("sharing: share of seeds with lower tail excess", wins, 0.9),
            at_least("sharing: clients put in the right group", np.mean(right), 0.95),
        ],
    )


def _agreement(truth: np.ndarray, groups: np.ndarray) -> float:
    """Share of clients in the cluster that holds most of their own group, each cluster standing for one group."""
    table = np.array([[np.sum((truth == t) & (groups == g)) for g in np.unique(groups[groups >= 0])] for t in range(3)])
    best = 0
    while table.size and table.max() > 0:
        row, column = np.unravel_index(np.argmax(table), table.shape)
        best += table[row, column]
        table[row], table[:, column] = 0, 0
    return best / truth.size


def adaptive(settings: dict[str, Any]) -> Part:
    """Figure 2c: at most 1000 samples, tolerances 0.05 and 0.1."""
    case, rows, claims = pricing(), [], []
    timed = {**settings, "seeds": list(settings["seeds"])}
    fixed = _twice(case, profl(filter="none"), samples=1000, **timed)
    rows.append(_adaptive_row("fixed 1000", fixed))
    for tolerance in (0.05, 0.1):
        run = _twice(case, profl(filter="none", samples=AdaptiveSamples(tolerance, 50, 1000)), samples=1000, **timed)
        rows.append(_adaptive_row(f"tolerance {tolerance}", run))
        used = run.samples[:, -1].sum() / fixed.samples[:, -1].sum()
        claims += [
            at_most(f"adaptive n, tolerance {tolerance}: share of the samples of fixed 1000", used, 0.5),
            at_most(f"adaptive n, tolerance {tolerance}: tail excess", _tail(run), tolerance),
            at_most(
                f"adaptive n, tolerance {tolerance}: time over that of fixed 1000", run.seconds / fixed.seconds, 1.0
            ),
        ]
    return Part(rows, claims)


def _adaptive_row(name: str, run: Run) -> dict[str, Any]:
    mean = run.samples[:, -1].sum() / run.deployments[:, -1].sum()
    return {"part": "adaptive n", "n": name, "mean n": mean, "excess": _tail(run), "seconds": run.seconds}


def _twice(case: Any, algorithm: Any, **settings: Any) -> Run:
    """The second of two runs, whose time holds no compilation."""
    simulate(case, algorithm, **settings)
    return simulate(case, algorithm, **settings)


def hostile(settings: dict[str, Any]) -> Part:
    """20 % hostile clients among ten, every attack: with the rule that fits, and with the plain mean."""
    rows: list[dict[str, Any]] = []
    claims = []
    for name, heterogeneity in (("different clients", 0.5), ("equal clients", 0.0)):
        case = pricing(heterogeneity=heterogeneity)
        run = partial(_attacked, case, settings)
        free = run("mean", None)
        rows.append({"part": "hostile", "clients": name, "attack": "none", "rule": "mean", "excess": free})
        for attack in ATTACKED:
            for rule in ("mean", RULE):
                excess = run(rule, attack)
                rows.append({"part": "hostile", "clients": name, "attack": attack, "rule": rule, "excess": excess})
            # Nobody can tell a colluder one deviation off from an honest client with another sensitivity.
            if attack != "drift" or heterogeneity == 0:
                claims.append(at_most(f"hostile, {name}, {attack}: tail excess with {RULE}", excess, 2 * free + 0.01))
    case, _ = three_groups()
    run = partial(_attacked, case, settings, samples=60, share="auto")
    free = run("mean", None)
    excess = run("mean", "jacobian")
    rows += [
        {"part": "hostile", "clients": case.name, "attack": "none", "rule": "shared J", "excess": free},
        {"part": "hostile", "clients": case.name, "attack": "jacobian", "rule": "shared J", "excess": excess},
    ]
    claims.append(at_most("hostile, shared Jacobians, poisoned: tail excess", excess, 2 * free + 0.01))
    return Part(rows, claims)


def _attacked(
    case: Any, settings: dict[str, Any], rule: str, attack: str | None, samples: int = N, share: Any = None
) -> float:
    method = profl(filter="none", aggregate=rule, share=share)
    return _tail(simulate(case, method, samples=samples, attack=attack, hostile=0.2, **settings))


def memory() -> Part:
    """What the filter needs beside the gradients, d = 2000 and n = 500: the compiler's own account of it."""
    shapes = jax.ShapeDtypeStruct((N, 2000), jnp.float32), jax.ShapeDtypeStruct((N,), jnp.float32)
    analysis = jax.jit(FILTERS["robust"]).lower(*shapes).compile().memory_analysis()
    assert analysis is not None
    megabytes = analysis.temp_size_in_bytes / 1e6
    row = {"part": "memory", "d": 2000, "n": N, "megabytes": megabytes}
    return Part([row], [at_most("filter, d = 2000, n = 500: memory beside the gradients", megabytes, 50, " MB")])


def _tail(run: Run) -> float:
    return float(run.tail_excess().mean())


def _accuracy(run: Run) -> float:
    return float(run.tail("accuracy").mean())
