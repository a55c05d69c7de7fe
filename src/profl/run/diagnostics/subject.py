"""What is checked: a problem with its initial model, functions that deploy a model, and the form of a finding."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.flatten_util import ravel_pytree

from profl import checks, random, trees
from profl.parts.units import theta_scales
from profl.problem.live import LiveProblem
from profl.problem.problem import Functions, Problem
from profl.problem.reaction import Reaction
from profl.problem.validation.samples import check_labels
from profl.run.live import batches
from profl.run.live.batches import as_failure, deploy_at
from profl.run.live.workers import call_client
from profl.run.step import WORLD
from profl.typing import Batch, Client, Key, Theta

MIN_SAMPLES = 2  # below, a batch has no variance


class Finding(NamedTuple):
    """The answer to one question."""

    question: str
    verdict: str  # "ok", "warn" or "fail"
    detail: str
    picture: str = ""  # several lines


class CheckStopped(Exception):
    """Raised when nothing further can be checked; its argument is the finding that says why."""


@dataclass(frozen=True)
class Deploy:
    """Deploys a model at one client: ``deploy(theta, step) -> batch``; an unusable batch stops the check."""

    ask: Callable[[Callable[[Any], Batch], Theta, int], Batch]  # ask(read, theta, step), as in ``live.workers.Ask``
    samples: int
    like: Batch
    problem: Problem
    number: int | None = None  # which client of the problem is asked; None for one that came from outside
    memoryless: Callable[[Theta, int], Batch] | None = None  # the same without memory; where people are simulated

    def __call__(self, theta: Theta, step: int) -> Batch:
        try:
            return self.ask(self._read, theta, step)
        except Exception as error:
            raise CheckStopped(Finding("batch", "fail", str(as_failure(error)))) from error

    def _read(self, answer: Any) -> Batch:
        """The batch of a client's answer; raises ``InputError`` if it cannot be used."""
        answer = answer.batch if isinstance(answer, batches.Delayed) else answer
        if answer is None:
            raise checks.InputError("deploy sent nothing")
        batch, _ = batches.read(answer, self.like, self.samples)
        if batches.rows(batch) < MIN_SAMPLES:
            raise checks.InputError(f"deploy sent {batches.rows(batch)} samples; at least {MIN_SAMPLES} are needed")
        check_labels(self.problem.family, self.problem.family.labels(batch))
        return batch


@dataclass(frozen=True)
class Subject:
    """A problem under test, with its initial model."""

    world: Problem
    theta: Theta
    like: Batch
    scales: np.ndarray | None = None  # natural units of the parameters, once a batch has come in

    def finding(self) -> Finding:
        """That the functions of the problem fit together, with the sizes of a model and a sample."""
        return Finding(
            "structure", "ok", f"{_entry_count(self.theta)} numbers in a model, {_entry_count(self.like)} in a sample"
        )

    def with_scales(self, batch: Batch) -> Subject:
        """The subject with the natural units of its parameters."""
        n = batches.rows(batch)
        scales = _theta_scales(self.world.functions, self.theta, batch, np.full(n, 1 / n, np.float32))
        return replace(self, scales=np.asarray(scales))

    def around(self, count: int, step: float) -> list[Theta]:
        """``count`` pairs of models, theta + delta and theta - delta, ``step`` natural units away in each parameter."""
        assert self.scales is not None
        flat, back = flatten(self.theta)
        rng = np.random.default_rng(0)
        moves = [step * self.scales * rng.choice([-1.0, 1.0], flat.shape) for _ in range(count)]
        return [self.world.project(back(flat + sign * move)) for move in moves for sign in (1, -1)]


def make_subject(problem: Problem | LiveProblem, client: Any, seed: int) -> Subject:
    """The problem with its initial model; raises ``CheckStopped`` if its functions do not fit together."""
    try:
        world = problem
        if isinstance(problem, LiveProblem):
            world = problem.problem(1 if problem.weights is None else np.size(problem.weights))
        if not isinstance(world, Problem):
            raise checks.InputError(f"expected a profl.Problem or a profl.LiveProblem, got {type(problem).__name__}")
        theta = world.project(trees.cast(world.initial(random.start_key(random.seed_key(seed)))))
        row = trees.take(trees.cast(world.clients), 0)
        like = jax.eval_shape(lambda t: world.reaction.sample(random.seed_key(0), t, row, 1), theta)
        if not bool(trees.all_finite(theta)):
            raise checks.InputError("the initial model is not finite")
        if isinstance(problem, LiveProblem) and client is None:
            raise checks.InputError("a LiveProblem has no data of its own: name a client, --client FILE.py:NAME")
    except Exception as error:
        raise CheckStopped(Finding("structure", "fail", f"{type(error).__name__}: {error}")) from error
    return Subject(world, theta, like)


def deployments(subject: Subject, client: Any, samples: int, timeout: float, seed: int) -> list[Deploy]:
    """One for the given client; without one, for the first, the middle and the last client of the problem."""
    if client is not None:

        def ask(read: Callable[[Any], Batch], theta: Theta, step: int) -> Batch:
            theta_copy = jax.tree.map(np.array, theta)
            return call_client(lambda: deploy_at(client, theta_copy, samples, step=step), read, timeout)

        return [Deploy(ask, samples, subject.like, subject.world)]
    count = subject.world.count
    return [_simulated_deploy(subject, number, samples, seed) for number in sorted({0, count // 2, count - 1})]


def _simulated_deploy(subject: Subject, number: int, samples: int, seed: int) -> Deploy:
    """A simulated client of the problem, whose population remembers earlier deployments."""
    reaction = subject.world.reaction
    row = trees.take(trees.cast(subject.world.clients), number)
    people = start = reaction.start(subject.theta, row)

    def draw(state: Any, theta: Theta, step: int) -> tuple[Any, Batch]:
        return _draw(reaction, samples, state, random.data_key(random.seed_key(seed), number, step), theta, row)

    def ask(read: Callable[[Any], Batch], theta: Theta, step: int) -> Batch:
        nonlocal people
        people, batch = draw(people, theta, step)
        return read(batch)

    return Deploy(ask, samples, subject.like, subject.world, number, lambda theta, step: draw(start, theta, step)[1])


@partial(jax.jit, static_argnums=(0, 1))
def _draw(reaction: Reaction, samples: int, people: Any, key: Key, theta: Theta, client: Client) -> tuple[Any, Batch]:
    """(the state of the population after a deployment, its samples)."""
    people = reaction.move(people, jax.random.fold_in(key, WORLD), theta, client)
    return people, reaction.sample_in(people, key, theta, client, samples)


@partial(jax.jit, static_argnums=0)
def _theta_scales(functions: Functions, theta: Theta, batch: Batch, weights: Any) -> Any:
    return theta_scales(functions.view(), theta, batch, weights)


def flatten(theta: Theta) -> tuple[np.ndarray, Callable[[Any], Theta]]:
    """(the model as a vector, the function from vectors back to models)."""
    vector, back = ravel_pytree(theta)
    return np.asarray(vector), lambda v: back(jnp.asarray(v, vector.dtype))


def _entry_count(tree: Any) -> int:
    """The number of entries of a pytree of arrays."""
    return sum(math.prod(leaf.shape) for leaf in jax.tree.leaves(tree))
