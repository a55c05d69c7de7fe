"""Writes byzfl.json: what ByzFL makes of fixed rows. Where profl is not: it needs torch.

python -m pip install torch && python -m pip install --no-deps byzfl==0.0.11 && python byzfl_rules.py
"""

from __future__ import annotations

import json
import sys
import types
from importlib.metadata import version
from pathlib import Path

import numpy as np


def rows(n: int, f: int, m: int, seed: int) -> np.ndarray:
    """n - f honest rows and f far to one side of them."""
    rng = np.random.default_rng(seed)
    return np.concatenate([rng.normal(size=(n - f, m)), 6.0 + rng.normal(size=(f, m))]).round(3)


def write(target: Path) -> None:
    sys.modules["byzfl.fed_framework"] = sys.modules["byzfl.benchmark"] = types.ModuleType("unused")  # want torchvision
    import byzfl

    rules = {
        "mean": lambda f: byzfl.Average(),
        "median": lambda f: byzfl.Median(),
        "trimmed_mean": byzfl.TrMean,
        "geometric_median": lambda f: byzfl.GeometricMedian(nu=1e-6, T=2000),
        "krum": lambda f: byzfl.Krum(f + 1),  # sums over n - f - 1 others, and Blanchard et al. over n - f - 2
        "centred_clipping": lambda f: byzfl.CenteredClipping(L=3, tau=1.5),
    }
    cases = []
    for n, f, m in ((10, 2, 5), (11, 3, 2), (20, 4, 7)):
        x = rows(n, f, m, n)
        found = {name: make(f)(x.copy()).tolist() for name, make in rules.items()}
        mixed = ("median", "trimmed_mean", "geometric_median")
        found |= {f"nnm+{name}": rules[name](f)(byzfl.NNM(f)(x.copy())).tolist() for name in mixed}
        sent = {"ipm": byzfl.InnerProductManipulation(tau=1.5)(x[: n - f]).tolist()}
        cases.append({"f": f, "rows": x.tolist(), "rules": found, "attacks": sent})
    target.write_text(json.dumps({"byzfl": version("byzfl"), "cases": cases}) + "\n")


if __name__ == "__main__":
    write(Path(__file__).with_name("byzfl.json"))
