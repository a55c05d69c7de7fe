"""The family of groups whose shares and whose means both move: D(theta) = sum_k nu_k(theta) N(mu_k(theta), sd^2 I).

It unites ``GroupShares`` (contribution dynamics: only nu moves) and ``ClassMeans`` (distribution dynamics: only mu
does). f is (nu_1, ..., nu_K, mu_1, ..., mu_K). The group of a sample is seen, so the two parts of f_hat are estimated
from counts and from means within groups, and are uncorrelated:

    n Cov(nu_hat) = diag(nu) - nu nu^T,    n Cov(mu_hat_k) = sd^2 / nu_k I

After f moves by (delta nu, delta mu), a sample of group k stands for (nu_k + delta nu_k) / nu_k samples at
x + delta mu_k. The slopes at delta = 0 are, for a share, the mean loss of the group less that of all, and for a mean
the group's share times the mean of grad_x l in it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import jax
import jax.numpy as jnp

from profl import checks
from profl.problem.counts import share_variance
from profl.problem.families import LEAST_SHARE, ROUNDING, Family, average, has
from profl.typing import Array, Batch


@checks.explain_call
@dataclass(frozen=True)
class GroupMixture(Family):
    """z = {"x": features, "group": 0, 1, ...}; f holds the share of each group, then the mean of x in each.

    A group that is not in the batch is given the mean of all samples, with a variance that covers how far they lie
    from it; nothing is known of its loss, and it gets the mean one.

    >>> batch = {"x": jnp.array([[1.0], [3.0], [8.0], [8.0]]), "group": jnp.array([0, 0, 1, 1])}
    >>> GroupMixture(2).estimate(batch, jnp.full(4, 0.25))  # half are of each group, with means 2 and 8
    Array([0.5, 0.5, 2. , 8. ], dtype=float32)
    """

    groups: int = 2
    sd: float = 1.0

    takes = '{"x": an array (n, d), "group": whole numbers (n,), the groups 0, 1, ...}'

    def __post_init__(self) -> None:
        checks.positive_int("groups", self.groups)
        checks.positive("sd", self.sd)

    def fits(self, batch: Batch) -> bool:
        return has(batch, "x", 2) and has(batch, "group", 1, whole=True)

    def labels(self, batch: Batch) -> Array | None:
        return batch["group"]

    @property
    def group_count(self) -> int:
        return self.groups

    def group_of(self, z: Batch) -> Array:
        return z["group"]

    def split(self, f: Array) -> tuple[Array, Array]:
        """(the shares (K,), the means (K, d)) in f."""
        return f[: self.groups], f[self.groups :].reshape(self.groups, -1)

    def estimate(self, batch: Batch, weights: Array) -> Array:
        member = weights[:, None] * jax.nn.one_hot(batch["group"], self.groups)
        share, x = member.sum(0), batch["x"]
        mean = member.T @ x / jnp.maximum(share, jnp.finfo(weights.dtype).tiny)[:, None]
        mean = jnp.where(share[:, None] > 0, mean, average(weights, x))
        return jnp.concatenate([share, mean.ravel()])

    def log_prob(self, z: Batch, f: Array) -> Array:
        share, mean = self.split(f)
        miss = (z["x"] - mean[z["group"]]) / self.sd
        return jnp.log(jnp.maximum(share[z["group"]], LEAST_SHARE)) - 0.5 * jnp.sum(miss**2)

    def moved_loss(self, loss: Callable[[Batch], Array], z: Batch, delta: Array, f: Array) -> Array:
        by_mean = self.split(delta)[1][z["group"]]
        ratio = self._normalised(f + delta) / self._normalised(f)
        return ratio[z["group"]] * loss({**z, "x": z["x"] + by_mean})

    def variance(self, batch: Batch, weights: Array, f: Array) -> Array:
        return self._variance(batch, weights, f, jnp.full(batch["x"].shape[1], self.sd**2, f.dtype))

    def observed_variance(self, batch: Batch, weights: Array, f: Array) -> Array:
        """The same with the variance of x within groups, pooled, in place of sd^2."""
        within = average(weights, (batch["x"] - self.split(f)[1][batch["group"]]) ** 2)
        least = ROUNDING * jnp.finfo(f.dtype).eps * (f**2 + jnp.mean(f**2)) + jnp.finfo(f.dtype).tiny
        return jnp.maximum(self._variance(batch, weights, f, within), least)

    def _variance(self, batch: Batch, weights: Array, f: Array, within: Array) -> Array:
        """The variance of f_hat, with ``within`` (d,) that of x in a group; the module says where it comes from."""
        share = self.split(f)[0]
        member = jax.nn.one_hot(batch["group"], self.groups)
        present = (weights @ member > 0)[:, None]
        effective = (weights**2 @ member / jnp.where(weights @ member > 0, weights @ member, 1.0) ** 2)[:, None]
        unknown = within + average(weights, (batch["x"] - average(weights, batch["x"])) ** 2)
        means = jnp.where(present, effective * within, unknown)
        return jnp.concatenate([share_variance(weights, share), means.ravel()])

    def _normalised(self, f: Array) -> Array:
        """The shares in f, above zero and with sum one."""
        share = jnp.maximum(self.split(f)[0], LEAST_SHARE)
        return share / jnp.sum(share)
