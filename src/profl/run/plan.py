"""The plan of a run, which every engine makes before its first round: arguments checked, clients as arrays."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, random, trees
from profl.methods.method import Forecast, Method, check_method
from profl.methods.stopping import StopWhenSettled
from profl.problem.limits import check_start
from profl.problem.model_space import check_resolution
from profl.problem.problem import Functions, Problem, View, check_problem
from profl.problem.validation.functions import clear_stale_code
from profl.results.measure import Layout
from profl.run.config import RunConfig
from profl.server import attacks, entries
from profl.server.attacks import Attack
from profl.server.entries import Report
from profl.server.participation import hostile_clients, slots
from profl.typing import Array, Batch, Client, Key, Theta


class Settings(NamedTuple):
    """The fixed part of a run. Hashable: equal settings share compiled code."""

    functions: Functions
    method: Method
    rounds: int
    local_steps: int  # R
    samples: int  # the largest n_i
    record_every: int
    scheme: str
    clients: int  # how many there are
    slots: int  # how many of them take part in a round
    attack: Attack | None
    min_reports: int  # a round with fewer usable reports changes nothing
    patience: int  # the run stops after so many such rounds in a row
    measured: bool  # whether the exact risk is known
    stop: StopWhenSettled | None  # when a run is done before its last round

    @property
    def sizes(self) -> tuple[int, ...]:
        """The batch sizes that may occur, increasing."""
        return self.method.sizes or (self.samples,)

    def size(self, wanted: int) -> int:
        """The smallest compiled batch size that holds ``wanted`` samples."""
        return next(n for n in self.sizes if n >= wanted) if self.method.sizes else self.samples

    @property
    def server(self) -> View:
        """The problem as the server sees it."""
        return self.functions.view()._replace(client_count=self.clients)


def compile_for_settings(
    function: Callable[..., Any], static: tuple[int, ...] = (), donated: tuple[int, ...] = ()
) -> Callable[..., Any]:
    """``function(settings, ...)``, compiled; runs of different lengths share the code.

    The function must not read ``settings.rounds`` or ``settings.record_every``. The numbers that a method says may be
    arguments, such as its learning rate, are: methods that differ in them share the code, too. ``static`` are the
    positions of further static arguments, ``donated`` those of arguments whose memory may be reused.
    """

    def with_numbers(settings: Settings, numbers: Any, *arguments: Any) -> Any:
        return function(settings._replace(method=settings.method.with_numbers(numbers)), *arguments)

    with_numbers.__name__ = with_numbers.__qualname__ = function.__name__
    code = jax.jit(
        with_numbers, static_argnums=(0, *(i + 1 for i in static)), donate_argnums=tuple(i + 1 for i in donated)
    )

    def call(settings: Settings, *arguments: Any) -> Any:
        method, numbers = settings.method, settings.method.numbers()
        unnumbered = method.with_numbers(jax.tree.map(lambda _: "argument", numbers))
        return code(settings._replace(rounds=0, record_every=1, method=unnumbered), numbers, *arguments)

    return call


def shapes_for_settings(function: Callable[..., Any]) -> Callable[..., Any]:
    """The shapes of what ``function(settings, ...)`` returns, traced once for equal settings and shapes."""
    return jax.jit(function, static_argnums=0).eval_shape


class Population(NamedTuple):
    """The clients as arrays, one row each."""

    clients: Client
    weights: Array  # alpha_i
    counts: Array  # n_i
    floor: Array  # L_i(PO), or NaN where it is not known
    hostile: Array  # bool


class CompiledPlan(NamedTuple):
    """A problem, a method and a ``RunConfig``, checked and turned into settings and arrays for an engine."""

    settings: Settings
    population: Population
    seeds: tuple[int, ...]
    roots: Key  # one key per seed
    models: Theta  # one initial model per seed
    members: int  # clients behind each row: more than one when pooled
    report: Report  # the shapes of what a client sends
    mail: Any  # the shapes of what is sent back to it beside the model


def make_plan(problem: Problem, method: Method, config: RunConfig, patience: int = 1) -> CompiledPlan:
    """The plan of a run; raises ``profl.InputError`` for invalid arguments before any work is done."""
    check_problem(problem)
    check_method(method)
    clear_stale_code(*problem.functions, method, config.attack, config.stop)
    counts = checks.client_counts(config.samples, problem.count)
    world = problem.pooled() if method.pooled else problem
    method.check(world)
    if config.rounds * config.local_steps < method.least_deployments:
        raise checks.InputError(
            f"{method.name} learns nothing from fewer than {method.least_deployments} deployments, "
            f"got {config.rounds} rounds of {config.local_steps}"
        )
    settings = _settings(problem, world, method, config, int(counts.max()), patience)
    seeds: Any = config.seeds  # a tuple, once the config is made
    roots = random.root_keys(seeds)
    population = _population(problem, world, config, counts[None] if method.pooled else counts)
    models = _initial_models(problem, seeds, config.initial)
    check_resolution(problem.project, models)
    check_start(problem.limits, models)
    _check_reaction_states(settings, population, models)
    if settings.stop is not None and _first_forecast(settings, models) is None:
        raise checks.InputError(
            "stop needs a method that states what it expects of its model, "
            f"got {method.name}: this method states no uncertainty; prm does"
        )
    report, mail = _message_shapes(settings, population, models)
    entries.check(report, method.name)
    members = problem.count if method.pooled else 1
    return CompiledPlan(settings, population, seeds, roots, models, members, report, mail)


def _settings(
    problem: Problem, world: Problem, method: Method, config: RunConfig, samples: int, patience: int
) -> Settings:
    """The fixed part of a run on ``world``, the problem or its pooled form."""
    participants = slots(config.participation, world.count)
    if config.min_reports > participants:
        raise checks.InputError(
            f"min_reports must be at most {participants}, the clients that a round asks, got {config.min_reports}"
        )
    # Where some clients have weight 0, a round may have only those, as in simulations of a share of the clients. Such a
    # round changes nothing, and the run goes on.
    weightless = config.min_reports == 0 and bool(np.any(world.weights == 0))
    return Settings(
        functions=world.functions,
        method=method,
        rounds=config.rounds,
        local_steps=config.local_steps,
        samples=samples,
        record_every=config.record_every,
        scheme=config.scheme,
        clients=world.count,
        slots=participants,
        attack=None if config.attack is None else attacks.get(config.attack),
        min_reports=1 if weightless else config.min_reports,
        patience=config.rounds + 1 if weightless else patience,
        measured=problem.exact,
        stop=config.stop,
    )


def _population(problem: Problem, world: Problem, config: RunConfig, counts: np.ndarray) -> Population:
    """The clients of ``world`` as arrays on the device, one row each."""
    floor = world.client_risks(problem.optimum) if problem.exact else np.full(world.count, np.nan)
    nobody = np.zeros(world.count, bool)
    hostile = nobody if config.attack is None else hostile_clients(config.hostile, world.count)
    return Population(
        clients=trees.to_device(world.clients),
        weights=trees.to_device(world.weights),
        counts=jax.device_put(counts),
        floor=trees.to_device(floor),
        hostile=jax.device_put(hostile),
    )


class ClientState(NamedTuple):
    """What a client carries from step to step. Checkpoints store the names of the fields."""

    own: Any  # the method's state
    world: Any  # the state of its simulated population (``Reaction.start``), () for real clients
    last: Any = ()  # the model that it deployed last, where the problem says how far one may move from it


def first_states(settings: Settings, population: Population, theta: Theta, first: int = 0) -> ClientState:
    """The states of all clients before their first step, one row each; the first row is client number ``first``."""
    batch, count = batch_shape(settings, population, theta, settings.samples), trees.rows(population.clients)
    method = settings.method
    states = trees.repeat(method.init(settings.server, theta, batch), count)
    if type(method).init_client is not Method.init_client:
        states = jax.vmap(method.init_client)(states, first + jnp.arange(count))
    world = jax.vmap(lambda client: settings.functions.reaction.start(theta, client))(population.clients)
    last = () if settings.functions.max_change is None else trees.repeat(theta, count)
    return ClientState(states, world, last)


def remember_deployed(state: ClientState, deployed: Theta) -> ClientState:
    """The state after ``deployed``, of one client or stacked."""
    return state._replace(last=deployed) if jax.tree.leaves(state.last) else state


def first_state(settings: Settings, population: Population, theta: Theta, client: int = 0) -> ClientState:
    """The state of one client before its first step."""
    return _one_first_state(settings, trees.take(population, slice(client, client + 1)), theta, client)


def _one_first_state(settings: Settings, row: Population, theta: Theta, client: int) -> ClientState:
    """The same for a population that is that client alone."""
    return trees.take(first_states(settings, row, theta, client), 0)


def compiled_first_state(settings: Settings, population: Population, theta: Theta, client: int = 0) -> ClientState:
    """``first_state``, as one program for all clients: outside of compiled code it would be dozens."""
    return _FIRST_STATE(settings, trees.take(population, slice(client, client + 1)), theta, np.int32(client))


_FIRST_STATE = compile_for_settings(_one_first_state)


def batch_shape(settings: Settings, population: Population, theta: Theta, n: int) -> Batch:
    """The shapes of n samples of one client; if the method pools data, n samples of each member."""

    def draw(theta: Theta, clients: Client) -> Batch:
        return settings.functions.reaction.sample(random.seed_key(0), theta, trees.take(clients, 0), n)

    return jax.eval_shape(draw, theta, population.clients)


def batch_shape_of(problem: Problem, n: int = 1) -> Batch:
    """The shapes of n samples of one client of a problem."""
    theta = trees.take(trees.to_device(problem.initial_models((0,))), 0)

    def draw(theta: Theta, clients: Client) -> Batch:
        return problem.reaction.sample(random.seed_key(0), theta, trees.take(clients, 0), n)

    return jax.eval_shape(draw, theta, trees.to_device(problem.clients))


def describe(plan: CompiledPlan) -> Layout:
    """The layout of the records of a run: seeds, rounds, and bytes per message."""
    settings, population, method = plan.settings, plan.population, plan.settings.method
    theta = trees.row_shape(plan.models)
    batch = batch_shape(settings, population, theta, 1)
    return Layout(
        seeds=plan.seeds,
        rounds=settings.rounds,
        local_steps=settings.local_steps,
        record_every=settings.record_every,
        members=plan.members,
        clients=population.weights.shape[0] * plan.members,
        turns=1 + method.exchanges,
        sample_bytes=_byte_count(batch) // trees.rows(batch),
        report_bytes=sum(_byte_count(entry.value) for entry in plan.report.values()),
        mail_bytes=_byte_count(theta) + _byte_count(plan.mail),
    )


def forecast(settings: Settings, server: Any) -> Forecast | None:
    """The method's forecast for its model, from its server state; None if the method makes none."""
    figures = settings.method.forecast(settings.server, server)
    return None if figures is None else Forecast(*(jnp.asarray(figure, float).reshape(()) for figure in figures))


def _first_forecast(settings: Settings, models: Theta) -> Forecast | None:
    """The shapes of a forecast; None if the method makes none."""
    return jax.eval_shape(
        lambda theta: forecast(settings, settings.method.open(settings.server, theta)), trees.row_shape(models)
    )


@shapes_for_settings
def _message_shapes(settings: Settings, population: Population, models: Theta) -> tuple[Report, Any]:
    """The shapes of a client's report and of its mail."""
    theta = trees.take(models, 0)
    state = first_state(settings, population, theta).own
    view = settings.functions.view(trees.take(population.clients, 0))
    return settings.method.report(view, state, theta), settings.method.mail_like(view, state)


def _check_reaction_states(settings: Settings, population: Population, models: Theta) -> None:
    """Refuse initial population states that are not finite. Later ones make a report that is refused."""
    start = settings.functions.reaction.start
    if not jax.tree.leaves(jax.eval_shape(start, *trees.row_shape((models, population.clients)))):
        return
    bad = ~np.asarray(_finite_reaction_states(start, models, population.clients))
    if bad.any():
        seed, client = np.argwhere(bad)[0]
        raise checks.InputError(
            f"what the reaction's start returns must be finite, got NaN or Inf at client {client} "
            f"({bad.any(0).sum()} of {bad.shape[1]} clients), seed number {seed}"
        )


@partial(jax.jit, static_argnums=0)
def _finite_reaction_states(start: Callable[..., Any], models: Theta, clients: Client) -> Array:
    """Whether each population's initial state is finite, shape (seeds, clients)."""
    return jax.vmap(lambda theta: jax.vmap(lambda c: trees.all_finite(start(theta, c)))(clients))(models)


def _byte_count(tree: Any) -> int:
    """The bytes of a pytree of arrays."""
    return sum(leaf.size * leaf.dtype.itemsize for leaf in jax.tree.leaves(tree))


def _initial_models(problem: Problem, seeds: tuple[int, ...], initial: Theta | None) -> Theta:
    """One initial model per seed, projected onto the model space."""
    if initial is None:
        models = problem.initial_models(seeds)
    else:
        like = jax.eval_shape(problem.initial, random.seed_key(0))
        checks.same_structure("initial", initial, like)
        models = jax.tree.map(lambda leaf: np.broadcast_to(leaf, (len(seeds), *np.shape(leaf))), initial)
    checks.finite_tree("the initial model", models)
    return trees.to_device(
        trees.map_blocks(jax.vmap(problem.project), jax.tree.map(np.asarray, trees.to_device(models)))
    )
