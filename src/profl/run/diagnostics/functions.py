"""The loss and the model space: finite losses, a true gradient, a projection that is one."""

from __future__ import annotations

import math
from functools import partial

import jax
import jax.numpy as jnp
import numpy as np

from profl import trees
from profl.run.diagnostics.subject import Finding, Subject, flatten
from profl.typing import Array, Batch, Loss, Theta

AROUND = 2  # pairs of models around theta where losses must be finite
ASIDE = 0.4  # of a natural unit: how far they lie from it

# The gradient: double precision has 16 digits, so central differences are right to about H^2 = 1e-10 of the third
# derivative plus 1e-16 / H = 1e-11 of the loss.
H = 1e-5  # step of the differences, relative to the largest coordinate
DIRECTIONS = 5  # random ones, along which the two are compared
SMOOTH = 1e-4  # up to this relative error a gradient is right: far above what differences are off by
KINKED = 0.05  # up to this one the loss may have kinks and mean them (a hinge); beyond, it is another function's
NO_SLOPE = 1e-8  # slopes below this count as this one, so that two that are zero do not differ

FAR = 1e3  # how far outside a model lies that is projected: times its own size, and as much beyond
PROJECTED = 1e-5  # relative: a projection of single precision may move what it projected by rounding, 1e-7, not by more

SHOWN = 5  # numbers of a model in a message


def losses(subject: Subject, batch: Batch) -> Finding:
    """Whether losses are finite at theta and around it."""
    for model in [subject.theta, *subject.around(AROUND, ASIDE)]:
        values = np.asarray(_losses(subject.world.loss, model, batch))
        bad = int(np.sum(~np.isfinite(values)))
        if bad:
            return Finding(
                "losses", "fail", f"{bad} of {values.size} losses are NaN or Inf at theta = {_format_model(model)}"
            )
    return Finding("losses", "ok", f"mean {values.mean():.4g}, standard deviation {values.std():.3g}")


def gradient(subject: Subject, batch: Batch) -> Finding:
    """Whether the gradient agrees with central differences along random directions; kinks show here."""
    loss = subject.world.loss
    with jax.enable_x64(True):
        theta64, batch64 = trees.cast((subject.theta, batch), jnp.float64)
        flat, back = flatten(theta64)
        rng = np.random.default_rng(1)
        directions = rng.normal(size=(DIRECTIONS, flat.size)) / math.sqrt(flat.size)

        @jax.jit
        def mean_and_slope(vector: np.ndarray, batch: Batch) -> tuple[Array, Array]:
            return jax.value_and_grad(lambda v: jnp.mean(jax.vmap(loss, (None, 0))(back(v), batch)))(vector)

        def mean(vector: np.ndarray) -> float:
            return float(mean_and_slope(vector, batch64)[0])

        slope = np.asarray(mean_and_slope(flat, batch64)[1])
        h = H * max(1.0, float(np.abs(flat).max()))
        differences = np.array([(mean(flat + h * d) - mean(flat - h * d)) / (2 * h) for d in directions])
    automatic = directions @ slope
    error = float(np.max(np.abs(differences - automatic)) / max(float(np.max(np.abs(automatic))), NO_SLOPE))
    if not math.isfinite(error) or not np.any(slope):
        return Finding("gradient", "fail", "the gradient of the mean loss is zero or not finite: is theta used?")
    hint = ": the loss has a kink, or stops a gradient" if error > SMOOTH else ""
    verdict = "ok" if error <= SMOOTH else "warn" if error < KINKED else "fail"
    return Finding("gradient", verdict, f"differs from differences by {error:.1e} of its size{hint}")


@partial(jax.jit, static_argnums=0)
def _losses(loss: Loss, theta: Theta, batch: Batch) -> Array:
    """The loss of every sample."""
    return jax.vmap(loss, (None, 0))(theta, batch)


def projection(subject: Subject) -> Finding:
    """Whether projecting twice is the same as projecting once."""
    project = subject.world.project
    far, back = flatten(subject.theta)
    projected = project(back(far * FAR + FAR))
    distance = float(np.max(np.abs(flatten(project(projected))[0] - flatten(projected)[0])))
    verdict = "ok" if distance <= PROJECTED * max(1.0, float(np.max(np.abs(flatten(projected)[0])))) else "fail"
    return Finding("projection", verdict, f"projecting twice moves a model by {distance:.1e}")


def _format_model(theta: Theta) -> str:
    """The first entries of a model, as text."""
    return np.array2string(flatten(theta)[0][:SHOWN], precision=3)
