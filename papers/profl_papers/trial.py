"""How an item runs: its case, its methods and its runs are made from its settings, and from nothing else.

``Trial`` hands every setting to the function that takes it (the tables below say which) and notes it as used. A value
that is not stated is refused; ``check`` refuses settings that were stated and not used. So the settings of a result are
those it was made with. A setting with several values (a tuple) is varied: each call says which of them it takes.

    trial.case(heterogeneity=0.25)      the item's case, all other case settings as stated
    trial.method("profl", H=20)         a method; it gets those method settings that it has parameters for
    trial.simulate(case, method, n=50)  a run

None leaves a parameter at the default of its function: ``"H": (4, 20, None)`` states that one run gives no H.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from profl import cases, checks
from profl.methods import chain, literal, pfl, pg, profl
from profl.methods.method import Method
from profl.parts import EstimatedJacobian, EstimatedParameters, Optimiser
from profl.parts.filters import RobustFilter
from profl.parts.literal import ScoreGradient, WindowDifferences
from profl.parts.sample_size import AdaptiveSamples
from profl.problem.contamination import contaminate
from profl.problem.problem import Problem
from profl.results.record import Run
from profl.run.compiled.simulate import simulate
from profl_papers.groups import three_groups

CASES: dict[str, Callable[..., Problem]] = {**cases.CASES, "three_groups": three_groups}


def literal_pg(learning_rate: float = 0.01, window: int = 20) -> Method:
    """PG as printed: ``literal`` without its filter, by one learner on everybody's data."""
    estimate = EstimatedParameters(), EstimatedJacobian(WindowDifferences(window))
    return chain(*estimate, ScoreGradient(), Optimiser(learning_rate), name="pg, as printed", pooled=True)


METHODS: dict[str, Callable[..., Any]] = {
    "pfl": pfl,
    "pg": pg,
    "profl": profl,
    "literal": literal,
    "literal_pg": literal_pg,
}
AS_PRINTED = {"profl": "literal", "pg": "literal_pg"}
"""What runs under a method's name where the settings state the printed form of it."""

# Setting -> the parameter that gets it. Settings that the paper's table has bear the paper's letters.
CASE = {name: name for name in ("clients", "heterogeneity", "base_spread", "sensitivity", "reaction", "respond")}
JUNK = {"eps": "fraction", "source": "source", "distance": "distance"}
METHOD = {
    **{"eta": "learning_rate", "H": "window", "jacobian": "jacobian", "filter": "filter", "share": "share"},
    **{"C": "clusters", "averaged every": "local_steps"},
}
SAMPLE_SIZE = {"tolerance": "tolerance", "min n": "min_samples", "n": "max_samples"}
FILTER = {"most junk": "at_most", "core": "core"}
RUN = {"rounds": "rounds", "R": "local_steps", "n": "samples"}


@dataclass(frozen=True)
class Trial:
    """The settings of an item, the seeds to run them with, and which values of the settings were used so far."""

    settings: Mapping[str, Any]
    seeds: tuple[int, ...]
    used: dict[str, list[Any]] = field(default_factory=dict)

    def case(self, **chosen: Any) -> Problem:
        """The item's case; with junk among its data where ``eps`` is stated and not 0."""
        self._refuse_others("case", chosen, CASE, JUNK)
        problem = CASES[self._take("case", {})](**self._arguments(CASE, chosen))
        if not self._has("eps", chosen) or self._take("eps", chosen) == 0:
            return problem
        return contaminate(problem, **self._arguments(JUNK, chosen))

    def method(self, name: str, **chosen: Any) -> Method:
        """The method called ``name``, or its printed form where the settings state that.

        Its sample size follows the noise where ``tolerance`` is stated and not None.
        """
        self._refuse_others("method", chosen, METHOD, SAMPLE_SIZE)
        if AS_PRINTED.get(name) in _values(self.settings.get("method", ())):
            name = AS_PRINTED[name]
        make = METHODS[self._take("method", {"method": name})]
        parameters = inspect.signature(make).parameters
        taken = {setting: parameter for setting, parameter in METHOD.items() if parameter in parameters}
        arguments = self._arguments(taken, chosen)
        if self._has("tolerance", chosen) and self._take("tolerance", chosen) is not None:
            arguments["samples"] = AdaptiveSamples(**self._arguments(SAMPLE_SIZE, chosen))
        if arguments.get("filter") == "robust" and self._has("most junk", chosen):
            arguments["filter"] = RobustFilter(**self._arguments(FILTER, chosen))
        return make(**arguments)

    def simulate(self, problem: Problem, method: Method, **chosen: Any) -> Run:
        """A run with the item's rounds, local steps and samples."""
        self._refuse_others("simulate", chosen, RUN)
        return simulate(problem, method, **self._arguments(RUN, chosen), seeds=self.seeds, progress=False)

    def take(self, name: str) -> Any:
        """The value of a setting, for an item that does more than cases, methods and runs; several come as a tuple."""
        if name not in self.settings:
            raise checks.InputError(f"{name} is used but not stated; settings state {list(self.settings)}")
        self.used.setdefault(name, []).extend(_values(self.settings[name]))
        return self.settings[name]

    def check(self) -> None:
        """Refuse where a stated value was not used."""
        for name, stated in self.settings.items():
            unused = [value for value in _values(stated) if value not in self.used.get(name, [])]
            if unused:
                raise checks.InputError(
                    f"settings state {name} = {', '.join(map(repr, unused))}, which no run used: take it out, or use it"
                )

    def _arguments(self, taken: Mapping[str, str], chosen: Mapping[str, Any]) -> dict[str, Any]:
        """Parameter -> value, for those of the settings that are stated or chosen."""
        names = [name for name in taken if self._has(name, chosen)]
        values = {taken[name]: self._take(name, chosen) for name in names}
        return {parameter: value for parameter, value in values.items() if value is not None}

    def _has(self, name: str, chosen: Mapping[str, Any]) -> bool:
        return name in self.settings or name in chosen

    def _take(self, name: str, chosen: Mapping[str, Any]) -> Any:
        """The value of one setting for one call, noted as used: the one chosen, or the only one there is."""
        values = _values(self.settings.get(name, ()))
        if name not in chosen and len(values) != 1:
            raise checks.InputError(f"settings state {len(values)} values of {name}: choose one, as in {name}=...")
        value = chosen.get(name, values[0] if values else None)
        if value not in values:
            raise checks.InputError(f"{name} = {value!r} is used but not stated; settings state {list(values)}")
        self.used.setdefault(name, []).append(value)
        return value

    @staticmethod
    def _refuse_others(call: str, chosen: Mapping[str, Any], *tables: Mapping[str, str]) -> None:
        known: Iterable[str] = [name for table in tables for name in table]
        for name in chosen:
            checks.one_of(f"setting of {call}", name, known)


def _values(stated: Any) -> tuple[Any, ...]:
    return stated if isinstance(stated, tuple) else (stated,)
