"""Figure 2a: junk among the samples, with the filter and without."""

from __future__ import annotations

from profl.algorithms import profl
from profl.cases import pricing
from profl.experiments.claims import at_least, at_most
from profl.experiments.paper.item import Found, Item, Trial, known, line, panel, spread, tail
from profl.problem.contamination import contaminate


def run(trial: Trial) -> Found:
    s = trial.settings
    rows, claims = [], []
    lines: dict[str, list] = {"robust": [], "none": []}
    bar = 0.0
    for eps in s["eps"]:
        case = contaminate(pricing(), eps, s["source"], distance=s["distance"]) if eps else pricing()
        for name in ("robust", "none"):
            ended = trial.simulate(case, profl(s["eta"], filter=name))
            lines[name].append(line(ended, f"eps = {eps}"))
            rows.append({"eps": eps, "filter": name, "excess": tail(ended), "sd": spread(ended)})
            if eps == 0:
                bar = max(bar, 1.5 * tail(ended) + 0.01)
                levels = known(ended)
            elif name == "robust":
                claims.append(at_most(f"eps = {eps}: excess with the filter", tail(ended), bar, paper="as at eps = 0"))
            else:
                claims.append(at_least(f"eps = {eps}: excess without it", tail(ended), bar, paper="clearly above"))
    titles = {"robust": "with the filter", "none": "without"}
    return Found(rows, claims, [panel(titles[name], lines[name], levels) for name in titles])


ITEM = Item(
    name="fig2a",
    title="Pricing with junk among the samples: with the filter, runs end where clean data would take them",
    paper={"eta": 0.001, "R": 5, "H": 25, "n": 500, "eps": "0, 0.1, 0.2, 0.4"},
    settings={
        "case": "pricing",
        "eta": 0.01,
        "R": 5,
        "n": 500,
        "rounds": 200,
        "clients": 10,
        "eps": (0, 0.1, 0.2, 0.4),
        "source": "blob",
        "distance": 10,
        "jacobian": "kalman",
    },
    why="With eta = 0.001 a run is still on its way after 200 rounds; 0.01 gets there. The filter is the default one: "
    "the paper's own rule can throw away every sample. The paper gives neither the mean nor the spread of its junk; "
    "here it lies 10 standard deviations away. A run ends where the clean one does if its excess is at most 1.5 times "
    "that of the clean run plus 0.01.",
    run=run,
)
