"""Small parts: random numbers, participation, aggregation, layers."""

from __future__ import annotations

import ast
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import profl
from profl import random
from profl.server import entries
from profl.server.gate import accept
from profl.server.participation import choose, first_occurrence
from profl.server.rule_base import weighted_mean

SOURCE = Path(profl.__file__).parent
LAYERS = [
    {
        "typing",
        "checks",
        "trees",
        "random",
        "progress",
        "objects",
        "numerics",
        "stages",
        "html",
        "interrupts",
        "packing",
    },
    {"storage"},
    {"problem"},
    {"data"},
    {"cases"},
    {"server"},
    {"parts"},
    {"methods"},
    {"results"},
    {"run"},
    {"campaign"},
    {"callbacks", "worlds"},
    {"deploy"},
    {"theory"},
    {"cli"},
    {"__main__"},
]


def test_layers_import_downwards_only():
    rank = {name: i for i, layer in enumerate(LAYERS) for name in layer}
    for file in SOURCE.rglob("*.py"):
        relative = file.relative_to(SOURCE)
        own = relative.parts[0].removesuffix(".py")
        if own in ("__init__", "py"):
            continue
        assert own in rank, f"{own} has no layer: add it to LAYERS"
        for imported in imports(file):
            assert rank[imported] <= rank[own], f"{relative} imports {imported}, a later layer"


def test_only_two_commands_know_the_papers_and_nothing_the_benchmarks():
    beside = {
        (file.relative_to(SOURCE).as_posix(), package)
        for file in SOURCE.rglob("*.py")
        for package in packages(file) & {"benchmarks", "profl_papers"}
    }
    assert beside == {("cli/leaderboard.py", "profl_papers"), ("cli/reproduce.py", "profl_papers")}


def test_the_command_line_starts_without_the_papers():
    code = "import sys, profl.cli; print([m for m in ('profl_papers', 'benchmarks') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


def packages(file: Path) -> set[str]:
    """The top-level packages a file imports, wherever in it."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module:
            names.add(node.module)
        elif isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
    return {name.split(".")[0] for name in names}


def imports(file: Path) -> set[str]:
    """The parts of profl a file imports."""
    found = set()
    for node in ast.walk(ast.parse(file.read_text())):
        if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "profl":
            parts = node.module.split(".")
            found |= {parts[1]} if len(parts) > 1 else {alias.name for alias in node.names}
    return found


def test_no_module_uses_a_private_name_of_another():
    for file in SOURCE.rglob("*.py"):
        tree = ast.parse(file.read_text())
        imports = [
            node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom) and "profl" in (node.module or "")
        ]
        modules = {alias.asname or alias.name for node in imports for alias in node.names}
        used = {alias.name for node in imports for alias in node.names}
        used |= {
            node.attr
            for node in ast.walk(tree)
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in modules
        }
        private = {name for name in used if name.startswith("_") and not name.startswith("__")}
        assert not private, f"{file.relative_to(SOURCE)} uses {private}"


def test_the_core_imports_neither_plots_nor_tables_nor_networks():
    heavy = "matplotlib pandas sklearn sqlalchemy flwr cryptography tomli_w typer rich"
    code = f"import sys, profl; print([m for m in '{heavy}'.split() if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout.strip() == "[]"


@pytest.mark.parametrize(("n", "shape"), [(5, (3,)), (1000, (2, 2)), (7, ())])
def test_normals_are_the_stock_ones(n, shape):
    key = random.seed_key(9)
    stock = np.moveaxis(np.asarray(jax.random.normal(key, (*shape, n))), -1, 0)
    np.testing.assert_array_equal(random.normal(key, n, *shape), stock)


def test_normals_are_standard_and_finite():
    draws = np.asarray(random.normal(random.seed_key(1), 1_000_000, 4), dtype=np.float64)
    assert np.all(np.isfinite(draws))
    assert np.all(np.abs(draws.mean(0)) < 4 / 1000)
    assert np.all(np.abs(draws.var(0) - 1) < 4 * np.sqrt(2) / 1000)
    assert np.max(np.abs(np.corrcoef(draws.T) - np.eye(4))) < 5 / 1000


@pytest.mark.parametrize(("scheme", "count"), [("uniform", 3), ("weighted", 3), ("uniform", 5)])
def test_participation_is_unbiased(scheme, count):
    """Clients are asked as often as the scheme says, and the shares of those who are asked sum to one."""
    weights = np.array([0.1, 0.15, 0.2, 0.25, 0.3], np.float32)

    @jax.jit
    def draw():
        keys = jax.random.split(random.seed_key(0), 4000)
        return jax.vmap(lambda key: choose(key, scheme, count, jnp.asarray(weights)))(keys)

    chosen, shares = map(np.asarray, draw())
    np.testing.assert_allclose(shares.sum(1), 1.0, rtol=1e-5)
    counts = np.bincount(chosen.ravel(), minlength=5) / chosen.size
    expected = weights if scheme == "weighted" else np.full(5, 0.2)
    assert np.all(np.abs(counts - expected) < 4 * np.sqrt(0.25 / chosen.size))
    if scheme == "uniform":
        assert all(len(set(row)) == count for row in chosen.tolist())
        np.testing.assert_allclose(shares[0], weights[chosen[0]] / weights[chosen[0]].sum(), rtol=1e-5)


def test_first_occurrence():
    assert jax.jit(first_occurrence)(jnp.array([2, 1, 2, 1, 4])).tolist() == [True, True, False, False, True]


def test_averaging_renormalises_over_those_who_can_be_used():
    models = {"a": jnp.array([1.0, 2.0, jnp.inf]), "b": jnp.array([[1.0], [4.0], [0.0]])}
    accepted, _ = accept({"theta": entries.model(models)}, {"a": jnp.zeros(()), "b": jnp.zeros(1)})
    assert accepted.tolist() == [True, True, False]
    mean = weighted_mean(models, jnp.array([0.1, 0.3, 0.6]), accepted)
    assert float(mean["a"]) == pytest.approx(1.75)
    assert float(mean["b"][0]) == pytest.approx(3.25)


FILES = 43  # of these 14 are the filter's, and two look for memory and drift


def test_a_round_can_be_followed_through_few_files():
    """Whoever reads what one round of ProFL does has this many files of the package to open."""
    import os
    import sys

    from profl import trees
    from profl.run.compiled.placement import place
    from profl.run.compiled.scan import initial_carries, simulated_round
    from profl.run.config import RunConfig
    from profl.run.plan import make_plan
    from profl.run.round import RoundState
    from profl.run.totals import zero_totals

    config = RunConfig(rounds=1, samples=20, seeds=0)
    plan = make_plan(profl.cases.pricing(clients=4, goods=2), profl.profl(), config)
    settings, population = plan.settings, plan.population
    carry = trees.take(initial_carries(settings, population, plan.models), 0)
    where, tally = place(settings, population, plan.models, None), zero_totals(settings.method.info)
    seen = set()

    def listen(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(str(SOURCE)):
            seen.add(os.path.relpath(frame.f_code.co_filename, SOURCE))

    sys.setprofile(listen)
    try:
        root, zero = plan.roots[0], jnp.int32(0)
        jax.eval_shape(lambda: simulated_round(settings, 20, where, population, root, zero, RoundState(carry, tally)))
    finally:
        sys.setprofile(None)
    assert {"run/step.py", "methods/chain.py"} <= seen
    assert len(seen) <= FILES, sorted(seen)
