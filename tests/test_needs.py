"""What a method must know and what it costs: as its ``needs`` and the table in docs/methods.md say it."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, replace
from pathlib import Path

import jax
import pytest

import profl
from profl.methods import ALGORITHMS
from profl.methods.method import NEEDS
from profl.problem.reaction import Unmeasured
from profl.run.config import RunConfig
from profl.run.plan import describe, make_plan

PAGE = Path(__file__).parents[1] / "docs" / "methods.md"
ROW = re.compile(r"^\| `([^`]+)` \| ([a-z, ]+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", re.MULTILINE)
ROWS = {row[0]: row[1:] for row in ROW.findall(PAGE.read_text())} if PAGE.is_file() else {}
SHORT = ("pfl", "rgd")  # to compile
CLIENTS, STEPS, SAMPLES = 2, 5, 500
SCHEDULE = {"rounds": 1, "local_steps": STEPS, "samples": SAMPLES, "seeds": (0,)}


def pushed(case):
    return replace(case, push=lambda z, deployed, theta: z + deployed - theta)


@pytest.fixture(scope="module")
def case():
    return replace(profl.cases.pricing(clients=CLIENTS), reaction=Unmeasured(profl.cases.pricing().reaction))


def counted(method, calls):
    """The same method, which counts how often the server combines reports."""

    def combine(self, *arguments):
        jax.debug.callback(lambda: calls.append(1))
        return super(kind, self).combine(*arguments)

    kind = type("Counted", (type(method),), {"combine": combine})
    made = copy.copy(method)
    object.__setattr__(made, "__class__", kind)
    return made


@pytest.mark.skipif(not ROWS, reason="needs the repository: docs/ is not in the package")
def test_the_table_has_every_method():
    assert set(ALGORITHMS) <= set(ROWS)


def of_row(row, case):
    method = eval(f"profl.methods.{row}" if "(" in row else f"profl.methods.{row}()")
    return method, pushed(case) if "push" in method.needs else case


@pytest.mark.parametrize("row", ROWS)
def test_the_table_says_what_a_method_needs_and_how_a_run_is_laid_out(row, case):
    """The short form of the next: nothing is run."""
    method, problem = of_row(row, case)
    layout = describe(make_plan(problem, method, RunConfig(**SCHEDULE)))
    up = STEPS * SAMPLES * layout.sample_bytes if method.pooled else layout.turns * layout.report_bytes + 8
    down = layout.turns * layout.mail_bytes
    figures = (STEPS, STEPS * SAMPLES, layout.turns, up, down)
    assert ROWS[row] == (", ".join(method.needs), *map(str, figures))


@pytest.mark.parametrize("row", [pytest.param(r, marks=() if r in SHORT else pytest.mark.slow) for r in ROWS])
def test_the_table_says_what_a_run_counts(row, case):
    calls, (method, problem) = [], of_row(row, case)
    run = profl.simulate(problem, counted(method, calls), **SCHEDULE, progress=False)
    jax.effects_barrier()
    totals = [getattr(run, name)[0, -1] for name in ("deployments", "samples", "bytes_up", "bytes_down")]
    deployments, samples, up, down = (str(int(total / CLIENTS)) for total in totals)
    assert ROWS[row] == (", ".join(method.needs), deployments, samples, str(len(calls)), up, down)


@pytest.mark.parametrize("name", ALGORITHMS)
def test_needs_are_words_of_the_list(name):
    assert set(ALGORITHMS[name]().needs) <= set(NEEDS)


@pytest.mark.parametrize(
    ("method", "needs"),
    [
        (profl.dfo(), ("losses",)),
        (profl.prm(), ("samples", "family")),
        (profl.pofl(second_term="pathwise"), ("samples", "family", "shift")),
        (profl.profl(second_term="push"), ("samples", "push")),
        (profl.pofl(jacobian="exact"), ("samples", "family", "exact map")),
    ],
)
def test_needs_follow_the_parts(method, needs):
    assert method.needs == needs


def test_losses_are_all_that_dfo_looks_at(case):
    """A loss without a gradient and a family that knows nothing: the run is the same."""

    @dataclass(frozen=True)
    class Blind(profl.GaussianMean):
        def log_prob(self, z, f):
            return 0 * f[0]

    def hidden(theta, z):
        return jax.lax.stop_gradient(case.loss(theta, z))

    def last(problem):
        run = profl.simulate(problem, profl.dfo(), rounds=2, samples=20, seeds=[0], progress=False)
        return run.theta[0, -1].tolist()

    assert last(replace(case, loss=hidden, family=Blind())) == last(case)


def test_what_is_lacking_is_named(case):
    pooled = "needs a problem that states f.*pooled over clients has none: use jacobian='tracking'"
    for method, problem, message in [
        (profl.pofl(second_term="push"), case, "pofl needs what becomes of a sample.*has none: use second_term='auto'"),
        (profl.pg(jacobian="exact", explore=None), profl.cases.pricing(), pooled),
    ]:
        with pytest.raises(profl.InputError, match=message):
            profl.simulate(problem, method, rounds=1)


def test_a_push_spares_the_exact_map(case):
    """With "auto" the push is taken, and nobody asks for f(theta)."""
    method, blind = profl.pofl(jacobian="exact"), pushed(replace(case, reaction=case.reaction.sample))
    assert method.needed(blind) == ("samples", "push")
    method.check(blind)
    with pytest.raises(profl.InputError, match="states f"):
        profl.pofl(jacobian="exact", second_term="pathwise").check(blind)


def test_a_method_of_ones_own_needs_samples_and_no_unknown_word(case):
    @dataclass(frozen=True)
    class Own(profl.methods.Method):
        needs: tuple = profl.methods.Method.needs

    assert Own().needs == ("samples",)
    with pytest.raises(profl.InputError, match="unknown need 'famly'; did you mean 'family'"):
        Own(("famly",)).check(case)
