"""Runs as tables: plain text for a terminal or a notebook, plain numbers for JSON."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from profl import html
from profl.parts.privacy import SEED_WARNING, PrivacyAccount
from profl.parts.trusted_samples import ALARMING_SHARE
from profl.results.callbacks import sentence
from profl.results.cells import count, number
from profl.results.record import Run, mean_over_seeds
from profl.results.warnings import warnings

_LAST = ("risk", "deployed_regret", "to_optimum", "to_stable", "accuracy", "expected_excess", "expected_error")
SHOWN = 3  # clients that lost most
NOTICED = 0.0005  # less is shown as 0.0%, and may be rounding
ADVICE = (
    "That may be a second kind of customer and not junk: look at the data (profl check), give the filter a vetted",
    "sample, RobustFilter(reference=...), or a limit, at_most=..., or take filter='none' if the data are clean.",
)
LABELS = {
    "tail_excess": "excess over PO, last 10 %",
    "risk": "risk at the end",
    "deployed_regret": "deployed regret",
    "to_optimum": "distance to PO",
    "to_stable": "distance to PS",
    "accuracy": "accuracy",
}
_FEW = ("method", "excess", "gap closed", "deployments", "accuracy")
"""What a comparison shows unless more is asked for."""
_COSTS = ("deployments", "samples", "bytes_up", "bytes_down", "refused")


class Text(str):
    """A string that a notebook or a prompt shows as it is, not quoted."""

    def __repr__(self) -> str:
        return str(self)

    def _repr_html_(self) -> str:
        return html.text(self)


def figures(run: Run) -> dict[str, Any]:
    """The main figures of a run: tail excess and end values over the seeds that did not diverge, and what it cost."""
    result: dict[str, Any] = {
        "case": run.case,
        "algorithm": run.algorithm,
        "settings": run.settings,
        "seeds": list(run.seeds),
        "optimum_risk": _finite(run.optimum_risk),
        "stable_risk": _finite(run.stable_risk),
        "tail_excess": _over_seeds(run, run.tail_excess()),
    }
    for name in _LAST:
        values = getattr(run, name)
        result[name] = None if values is None else _over_seeds(run, values[:, -1])
    for name in _COSTS:
        result[name] = float(getattr(run, name)[:, -1].mean())
    result |= {"seconds": run.seconds, "diverged": int(run.diverged.sum()), "failures": run.failures()}
    result |= {"settled": list(run.settled), "stop_reason": list(run.stop_reason)}
    result["dropped"] = None if run.dropped is None else _over_clients(run.dropped[~run.diverged])
    if run.privacy is not None:
        result["privacy"] = {name: np.asarray(part).tolist() for name, part in run.privacy._asdict().items()}
    return result


def summarise(run: Run) -> str:
    """One run as an aligned table."""
    lines = [_head(run), *([run.answers()] if run.exact else []), "", align(_measured(run)), "", align(_costs(run))]
    return Text("\n".join([*lines, "", f"seconds {run.seconds:.2f}", *remarks(run)]))


def as_html(run: Run) -> str:
    """One run as HTML, for a notebook."""
    text = "\n".join([run.answers(), f"seconds {run.seconds:.2f}", *remarks(run)])
    return html.table(_measured(run), _head(run)) + html.table(_costs(run)) + html.text(text.strip())


def remarks(run: Run) -> list[str]:
    """Sentences on a run, for its summary."""
    values = figures(run)
    return [
        *_forecast(run, values),
        *_outcomes(run),
        *_dropped(values["dropped"]),
        *warnings(run),
        *run.failures(),
        *_live(run),
        *_incidents(run),
    ]


def _head(run: Run) -> str:
    settings = ", ".join(f"{key} {value}" for key, value in run.settings.items())
    return f"{run.algorithm} on {run.case}: {settings}, {len(run.seeds)} seeds"


def _measured(run: Run) -> list[list[str]]:
    """Rows with the final figures; where the exact risk is not known, with the clients' own."""
    values = figures(run)
    rows = [["", "mean", "sd over seeds", "min", "max"]]
    for name, label in LABELS.items():
        if values[name] is not None and values[name]["mean"] is not None:
            rows.append([label, *(number(values[name][key]) for key in ("mean", "sd", "min", "max"))])
    if len(rows) > 1 or run.estimated_risk is None:
        return rows
    later = run.estimated_risk[:, 1:]
    rows = [["clients' own risk", "mean", "lowest client", "highest client"]]
    ends = {"first record": 0, "last record": -1}
    if run.live is not None:
        for label, i in ends.items():
            band = (run.live.risk, run.live.low, run.live.high)
            rows.append([label, *(number(float(values[:, 1:][:, i].mean())) for values in band)])
        return rows
    rows[0] = ["clients' own risk", "mean", "lowest seed", "highest seed"]
    for label, i in ends.items():
        ends_ = later[~run.diverged, i] if later.size else np.array([])
        low, high = (ends_.min(), ends_.max()) if ends_.size else (np.nan, np.nan)
        rows.append([label, *(number(float(v)) for v in (ends_.mean() if ends_.size else np.nan, low, high))])
    return rows


def _costs(run: Run) -> list[list[str]]:
    values, clients = figures(run), run.settings["clients"]
    return [
        ["", "total", "per client"],
        *([name.replace("_", " "), count(values[name]), count(values[name] / clients)] for name in _COSTS),
    ]


def _forecast(run: Run, values: dict[str, Any]) -> list[str]:
    """The expected excess, and which seeds stopped before the last round."""
    lines = []
    if values["expected_excess"] is not None:
        expected, error = (number(values[name]["mean"]) for name in ("expected_excess", "expected_error"))
        lines.append(f"expected excess over PO {expected} ± {error}, if this is no local minimum")
    for reason in sorted({reason for reason in run.stop_reason if reason}):
        ends = [end for end, why in zip(run.settled, run.stop_reason, strict=True) if end and why == reason]
        steps = sorted({min(ends) * run.settings["local_steps"], max(ends) * run.settings["local_steps"]})
        seeds = f"{len(ends)} of {len(run.seeds)} seeds " if len(run.seeds) > 1 else ""
        lines.append(f"{seeds}stopped after {' to '.join(map(str, steps))} deployments per client because {reason}")
    return lines


def _outcomes(run: Run) -> list[str]:
    """One sentence per limit on what comes in: its value at the end, and whether it holds."""
    lines = []
    for k, limit in enumerate(run.limits):
        assert run.outcomes is not None
        ends = run.outcomes[~run.diverged, -1, k]
        if not np.isfinite(ends).any():
            lines.append(f"limit {limit.words}: not known yet")
            continue
        over = limit.sign * (ends - limit.bound)
        what, how = "estimated" if run.live is not None else "in the end", f"broken by {number(float(over.max()))}"
        seeds = f" in {int(np.sum(over > 0))} of {over.size} seeds" if over.size > 1 else ""
        held = f"{how}{seeds}" if over.max() > 0 else "it holds"
        lines.append(f"limit {limit.words}: {what} {number(float(np.mean(ends)))}, {held}")
    return lines


def _dropped(values: dict[str, Any] | None) -> list[str]:
    """The share that the filter dropped, and a warning where it is large."""
    if values is None or not values["most"]:
        return []
    names = {f"client {client} ({share:.1%})": share for client, share in values["most"]}
    lines = [f"the filter dropped {values['mean']:.1%} of the samples, most at {', '.join(names)}"]
    if values["much"]:
        listed = [name for name, share in names.items() if share > ALARMING_SHARE]
        more = f" and {count(values['much'] - len(listed))} more" if values["much"] > len(listed) else ""
        lines.append(f"WARNING: more than {ALARMING_SHARE:.0%} was dropped at {', '.join(listed)}{more}.")
        lines += ADVICE
    return lines


def _live(run: Run) -> list[str]:
    """What stands in for exact figures in a live run, and the last incidents."""
    if run.live is None:
        return []
    risk, error = run.live.risk[:, -1].mean(), run.live.jacobian_error[:, -1].mean()
    lines = _privacy(run.privacy) or [f"the clients' own risk in the end: {number(risk)}"]
    if np.isfinite(error):
        lines.append(f"estimated error of an entry of the Jacobian: {number(np.sqrt(error))}")
    return lines


def _incidents(run: Run) -> list[str]:
    """The last incidents."""
    lines = [f"{len(run.incidents)} incidents, the last ones:"] if run.incidents else []
    return lines + [sentence(incident) for incident in run.incidents[-5:]]


def _privacy(spent: PrivacyAccount | None) -> list[str]:
    """The privacy spent."""
    if spent is None:
        return []
    worst = int(np.argmax(spent.epsilon))
    noised = "models and Jacobians" if spent.mechanisms > 1 else "models"
    lines = [
        f"privacy: {noised} with noise z = {spent.noise:g}; epsilon {number(spent.epsilon[worst])} at delta "
        f"{spent.delta:g} after {count(spent.reports[worst])} reports of client {worst}, the most of all clients"
    ]
    return lines + (["WARNING: " + SEED_WARNING + "."] if spent.seeded else [])


def comparison(runs: Sequence[Run], wide: bool = True) -> list[list[str]]:
    """Several runs on one case as rows; the first row is the header. Few columns, or, ``wide``, all.

    "gap closed" is against PFL where it ran, else against the stable point.
    """
    columns: dict[str, Callable[[Run, dict[str, Any]], str]] = {
        "method": lambda run, row: run.algorithm,
        "risk": lambda run, row: number(row["risk"]["mean"]),
        "excess": lambda run, row: _mean_and_sd(row["tail_excess"], len(run.seeds)),
        "gap closed": lambda run, row: _percent(gap_closed(run, baseline(runs))),
        "accuracy": lambda run, row: "-" if row["accuracy"] is None else number(row["accuracy"]["mean"]),
        "to PO": lambda run, row: number(row["to_optimum"]["mean"]),
        "to PS": lambda run, row: number(row["to_stable"]["mean"]),
        "regret": lambda run, row: number(row["deployed_regret"]["mean"]),
        "deployments": lambda run, row: count(row["deployments"] / run.settings["clients"]),
        "samples": lambda run, row: count(row["samples"]),
        "MB up": lambda run, row: f"{row['bytes_up'] / 1e6:,.2f}",
        "seconds": lambda run, row: f"{run.seconds:.1f}",
    }
    header = [name for name in columns if wide or name in _FEW]
    if all(run.accuracy is None for run in runs):
        header.remove("accuracy")
    return [header, *([columns[name](run, row) for name in header] for run in runs for row in [figures(run)])]


def baseline(runs: Sequence[Run]) -> Run | None:
    """The run of PFL, where there is one."""
    return next((run for run in runs if run.algorithm == "pfl"), None)


def gap_closed(run: Run, other: Run | None = None) -> float:
    """1 - excess / excess of the other run, from the mean tail excess; NaN where a run has none. Without another, the
    stable point's excess."""
    own = mean_over_seeds(run, run.tail_excess())
    gap = run.stable_risk - run.optimum_risk if other is None else mean_over_seeds(other, other.tail_excess())
    return float(1 - own / gap) if gap else float("nan")


def align(rows: Sequence[Sequence[str]]) -> str:
    """Rows of text as columns: the first to the left, the others to the right.

    >>> print(align([["a", "b"], ["long", "1.0"]]))
    a       b
    long  1.0
    """
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = []
    for row in rows:
        cells = [
            cell.ljust(w) if i == 0 else cell.rjust(w) for i, (cell, w) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def _over_seeds(run: Run, values: np.ndarray) -> dict[str, float | None]:
    good = values[~run.diverged]
    if good.size == 0:
        return dict.fromkeys(("mean", "sd", "min", "max"))
    parts = {
        "mean": good.mean(),
        "sd": good.std(ddof=1) if good.size > 1 else 0.0,
        "min": good.min(),
        "max": good.max(),
    }
    return {name: _finite(float(value)) for name, value in parts.items()}


def _over_clients(dropped: np.ndarray) -> dict[str, Any]:
    """What the filter dropped: mean over clients, (client, share) of those that lost most, and how many lost much."""
    known = np.isfinite(dropped)
    total, seeds = np.where(known, dropped, 0.0).sum(0), known.sum(0)
    each = np.divide(total, seeds, out=np.zeros(total.shape), where=seeds > 0)
    worst = [client for client in np.argsort(-each, kind="stable")[:SHOWN].tolist() if each[client] > NOTICED]
    return {
        "mean": float(each[seeds > 0].mean()) if known.any() else None,
        "most": [(client, float(each[client])) for client in worst],
        "much": int(np.sum(each > ALARMING_SHARE)),
    }


def _mean_and_sd(values: dict[str, float | None], seeds: int) -> str:
    return f"{number(values['mean'])} ± {number(values['sd'])}" if seeds > 1 else number(values["mean"])


def _percent(share: float) -> str:
    return f"{share:.2%}" if np.isfinite(share) else "-"


def _finite(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
