"""The page docs/attacks.md from the JSON that ``python -m benchmarks attacks --json FILE`` wrote.

python -m benchmarks.attacks_page docs/attacks.json > docs/attacks.md
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

INTRODUCTION = """# Every attack on every method with every rule

How much of the gap between the optimum and the stable point is left, in per cent, with 20 % hostile clients: 0 is the
optimum, 100 is where retraining ends. Means over seeds 0 to {last}; ten clients that differ, 100 samples per
deployment, {rounds}.
An attack changes every entry of a report in every turn, except `jacobian` (entries of that kind) and `f_hat` (the
client's own estimates). Without a filter and with `jacobian="kalman"`; `profl` has `share="shrink"` and
`correction="scaffold"`, `prm` keeps eight batches. "-": the method sends nothing that the attack changes;
"div.": a seed diverged. A rule that is missing for a method was not run.
The rows of `prm` are of the version before it compared what it tried with an incumbent.
Those of `history` are of the rule that left out clients which were far from all others; it now counts them less.
Made by `python -m benchmarks attacks --seeds {seeds} --json docs/attacks.json` and
`python -m benchmarks.attacks_page docs/attacks.json > docs/attacks.md`.
"""
CASES, METHODS = ("housing", "pricing", "orange_juice"), ("pfl", "pofl", "profl", "prm", "two_stage", "dfo")
ROUNDS = "40 rounds of 5 steps (20 deployments of prm and two_stage)"


def page(result: dict[str, Any]) -> str:
    """The whole page as Markdown: one table per case."""
    seeds = result["seeds"]
    rows = sorted(result["rows"], key=lambda row: (CASES.index(row["case"]), METHODS.index(row["method"])))
    text = [INTRODUCTION.format(last=seeds - 1, seeds=seeds, rounds=ROUNDS)]
    attacks = list(dict.fromkeys(row["attack"] for row in rows))
    for case in dict.fromkeys(row["case"] for row in rows):
        cells = {(r["method"], r["rule"], r["attack"]): percent(r) for r in rows if r["case"] == case}
        text.append(f"\n## {case}\n\n| method | rule | {' | '.join(attacks)} |\n|---|---|{'---|' * len(attacks)}")
        for method, rule in dict.fromkeys((r["method"], r["rule"]) for r in rows if r["case"] == case):
            line = " | ".join(cells.get((method, rule, attack), "-") for attack in attacks)
            text.append(f"| {method} | {rule} | {line} |")
    return "\n".join(text) + "\n"


def percent(row: dict[str, Any]) -> str:
    """A cell of the table.

    >>> percent({"left": 0.0123}), percent({"left": 3.0}), percent({"left": None})
    ('1.2', '300', 'div.')
    """
    if row["left"] is None:
        return "div."
    left = 100 * row["left"]
    return f"{left:.0f}" if abs(left) >= 10 else f"{left:.2g}"


if __name__ == "__main__":
    sys.stdout.write(page(json.loads(Path(sys.argv[1]).read_text())["items"][0]))
