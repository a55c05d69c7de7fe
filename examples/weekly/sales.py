"""The outside world: eighty-three stores whose customers answer the prices of a week.

    python sales.py next_week.csv sales.csv     a week goes by: what each store sells on each of its seven days
    python sales.py --worth next_week.csv       what these prices earn in truth, which nobody at the chain knows

Demand is as fitted to real weeks (``profl.data.orange_juice``); days of one store differ as its weeks did.
"""

import sys

import numpy as np
import pandas
from problem import BRANDS, COSTS, OUNCES, USUAL, problem

from profl.data.orange_juice import demand

DAYS = 7
NAMES, SOLD = problem.names, problem.columns


def cartons(store: str, times_usual: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(the mean number of cartons that a store sells in a day, the spread of its logarithm)."""
    known = demand()
    row = list(known.store).index(int(store.removeprefix("store ")))
    sd = known.sd[row]
    return np.exp(known.log_ounces[row] + known.elasticity[row] * np.log(times_usual) + sd**2 / 2) / OUNCES / 7, sd


def sell(asked: pandas.DataFrame) -> pandas.DataFrame:
    """A row for each day of each store."""
    rows = []
    for one in asked.to_dict("records"):
        mean, sd = cartons(one["client"], np.array([one[name] for name in NAMES]))
        chance = np.random.default_rng(one["deployment"])
        sold = mean * np.exp(sd * chance.normal(size=(DAYS, len(BRANDS))) - sd**2 / 2)
        rows += [{"client": one["client"], **dict(zip(SOLD, day, strict=True))} for day in np.round(sold, 2)]
    return pandas.DataFrame(rows)


def worth(asked: pandas.DataFrame) -> float:
    """The mean profit of a store and week, in $."""
    prices = [np.array([one[name] for name in NAMES]) for one in asked.to_dict("records")]
    means = [cartons(store, own)[0] for store, own in zip(asked["client"], prices, strict=True)]
    return 7 * float(np.mean([np.sum((own * USUAL - COSTS) * mean) for own, mean in zip(prices, means, strict=True)]))


if __name__ == "__main__":
    first, second = sys.argv[1:]
    if first == "--worth":
        print(f"{worth(pandas.read_csv(second)):.2f} $ a store and week")
    else:
        sell(pandas.read_csv(first)).to_csv(second, index=False)
