"""The mean squared error of the estimated L2 = J^T u where group shares and group means both move with theta.

The paper's Lemmas 2 to 4 treat the two dynamics apart, and bound. Here D(theta) = sum_k nu_k N(mu_k, sd^2 I), which is
the family ``GroupMixture``, f = (nu, mu), and the error is exact to leading order in 1 / n. With L_k and g_k the means
of l and of grad_x l in group k, and L that of l,

    u = (L_k - L)_k, (nu_k g_k)_k                                    the slopes of the risk in f
    E|J_hat^T u_hat - J^T u|^2 = u^T Omega u + tr(J J^T S) / n + tr((B J^T + J B^T + Omega) S) / n

J_hat = J + dJ comes from other batches than u_hat, B = E dJ and Omega = E dJ dJ^T. The score at f_hat has the bias
E du = -(0, g_k) / n, which adds 2 (B^T u).(J^T E du) to the last part; the pathwise u_hat has none. S = n Cov(u_hat) is
the covariance of what one sample of group k adds to u_hat:

    to the share's slope of group j     1[j = k] (l - L_k) / nu_k - (l - L)
    to the mean's slope of group j      1[j = k] grad_x l - nu_j g_j                       ("pathwise")
                                        1[j = k] (l - L_k) (x - mu_k) / sd^2 - nu_j g_j    ("score", at f_hat)

Contribution dynamics are the rows nu of J alone, distribution dynamics the rows mu. docs/theory.md derives it.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from profl import checks, random, trees
from profl.problem.mixtures import GroupMixture
from profl.problem.problem import Problem, check_problem
from profl.typing import Array, Loss, Theta

MOST_POINTS = 10**6  # of the quadrature in a group


class JacobianError(NamedTuple):
    """The error dJ of an estimated Jacobian."""

    bias: np.ndarray  # E dJ, (p, size of theta)
    square: np.ndarray  # E dJ dJ^T, (p, p)


class SecondTermError(NamedTuple):
    """E|L2_hat - L2|^2 in its three parts."""

    jacobian: float  # u^T Omega u: the slopes are right, the Jacobian is not
    sampling: float  # tr(J J^T S) / n: the Jacobian is right, the slopes are not
    product: float  # both: smaller by 1 / n than the first, up to biases

    @property
    def total(self) -> float:
        return self.jacobian + self.sampling + self.product


def second_term_error(
    problem: Problem,
    theta: Theta,
    n: int,
    *,
    client: int = 0,
    jacobian_error: JacobianError | None = None,
    second_term: str = "pathwise",
    nodes: int = 12,
) -> SecondTermError:
    """E|L2_hat - L2|^2 at one client from n samples, to leading order.

    Expectations over a group are Gauss-Hermite sums with ``nodes`` per feature: exact for losses that are polynomials
    in x of degree ``nodes`` - 1 or less (score: ``nodes`` - 2).

    Args:
      problem: has the family ``GroupMixture``, and states f(theta).
      jacobian_error: that of J_hat, such as ``least_squares_error`` gives; by default J is known.
      second_term: "pathwise" or "score", as in ``profl.parts.PerformativeGradient``.

    >>> import profl
    >>> second_term_error(profl.cases.unified_pricing(), jnp.ones(2), 500).sampling.__round__(5)
    0.00059
    """
    family, number = _check(problem, client), checks.positive_int("n", n)
    checks.one_of("second_term", second_term, ("pathwise", "score"))
    if not isinstance(jacobian_error, (JacobianError, type(None))):
        raise checks.InputError(
            f"jacobian_error must be a profl.theory.JacobianError, such as least_squares_error gives, got "
            f"{checks.shown(jacobian_error)}"
        )
    f, jacobian = _parameters(problem, theta, client), problem.jacobian(theta)[client]
    with jax.enable_x64(True):
        u, u_bias, spread = _slopes(
            problem.loss, family, second_term, trees.cast(theta, jnp.float64), f, _grid(family, f, nodes)
        )
    bias, square = jacobian_error or JacobianError(np.zeros_like(jacobian), np.zeros((f.size, f.size)))
    cross = bias @ jacobian.T
    return SecondTermError(
        jacobian=float(u @ square @ u),
        sampling=float(np.sum(jacobian @ jacobian.T * spread) / number),
        product=float(np.sum((cross + cross.T + square) * spread) / number + 2 * (u @ cross @ u_bias) / number),
    )


def f_covariance(problem: Problem, theta: Theta, *, client: int = 0) -> np.ndarray:
    """n Cov(f_hat), (p, p): diag(nu) - nu nu^T for the shares, sd^2 / nu_k for the mean of group k, to leading order.

    >>> import profl
    >>> case = profl.cases.unified_pricing(heterogeneity=0)
    >>> np.diag(f_covariance(case, jnp.zeros(2))).round(6).tolist()  # nobody pays: half of the customers each
    [0.25, 0.25, 2.0, 2.0, 2.0, 2.0]
    """
    family = _check(problem, client)
    f = _parameters(problem, theta, client)
    share, means = f[: family.groups], f[family.groups :]
    covariance = np.zeros((f.size, f.size))
    covariance[: family.groups, : family.groups] = np.diag(share) - np.outer(share, share)
    of_means = np.repeat(family.sd**2 / share, means.size // family.groups)
    covariance[family.groups :, family.groups :] = np.diag(of_means)
    return covariance


def least_squares_error(problem: Problem, deployed: Any, n: int, theta: Theta, *, client: int = 0) -> JacobianError:
    """The error at ``theta`` of the slopes of f_hat over the models ``deployed`` (m, d), n samples at each.

    With x_t the models less their mean, A = sum_t x_t x_t^T and c_t = A^-1 x_t, the slopes are sum_t f_hat_t c_t^T.
    Where f is curved they have the bias B = sum_t f_t c_t^T - J; E dJ dJ^T = B B^T + sum_t |c_t|^2 Cov(f_hat_t).
    """
    _check(problem, client)
    number = checks.positive_int("n", n)
    models = checks.numbers_of("deployed", deployed, "an array of shape (m, d), one row per model")
    moves = models - models.mean(0) if models.ndim == 2 else models
    if models.ndim != 2 or np.linalg.matrix_rank(moves) < models.shape[1]:
        raise checks.InputError(
            f"deployed must be models (m, d) that differ in all d directions, got shape {models.shape}"
        )
    loadings = np.linalg.pinv(moves).T  # c_t, (m, d)
    f = np.stack([_parameters(problem, model, client) for model in models])
    bias = f.T @ loadings - problem.jacobian(theta)[client]
    covariances = np.stack([f_covariance(problem, model, client=client) for model in models])
    noise = np.einsum("td,tpq->pq", loadings**2, covariances) / number
    return JacobianError(bias, bias @ bias.T + noise)


def _check(problem: Problem, client: int) -> GroupMixture:
    """The family of the problem."""
    check_problem(problem)
    if not isinstance(problem.family, GroupMixture) or problem.reaction.parameters is None:
        raise checks.InputError(
            f"problem {problem.name!r} must have the family GroupMixture and state f(theta), as "
            "profl.cases.unified_pricing() does"
        )
    if checks.positive_int("client", client, least=0) >= problem.count:
        raise checks.InputError(f"client must be below {problem.count}, got {client}")
    return problem.family


def _parameters(problem: Problem, theta: Theta, client: int) -> np.ndarray:
    """f(theta) of a client, (p,), in double precision."""
    assert problem.reaction.parameters is not None
    checks.same_structure("theta", theta, jax.eval_shape(problem.initial, random.seed_key(0)))
    with jax.enable_x64(True):
        row = trees.cast(trees.take(problem.clients, client), jnp.float64)
        return np.asarray(problem.reaction.parameters(trees.cast(theta, jnp.float64), row), float)


class Grid(NamedTuple):
    """Points of every group, and how likely each is."""

    x: np.ndarray  # (K, points, d)
    weights: np.ndarray  # (points,): in a group


def _grid(family: GroupMixture, f: np.ndarray, nodes: int) -> Grid:
    """The product of ``nodes`` Gauss-Hermite points per feature."""
    means = f[family.groups :].reshape(family.groups, -1)
    d = means.shape[1]
    if checks.positive_int("nodes", nodes) ** d > MOST_POINTS:
        most = int(MOST_POINTS ** (1 / d) + 1e-9)
        raise checks.InputError(f"{nodes} nodes in {d} features are too many points: take nodes={most}")
    points, weights = np.polynomial.hermite_e.hermegauss(nodes)
    weights /= weights.sum()
    mesh = np.stack(np.meshgrid(*[points] * d, indexing="ij"), -1).reshape(-1, d)
    product = np.prod(np.stack(np.meshgrid(*[weights] * d, indexing="ij"), -1), -1).ravel()
    return Grid(means[:, None, :] + family.sd * mesh, product)


def _slopes(
    loss: Loss, family: GroupMixture, second_term: str, theta: Theta, f: np.ndarray, grid: Grid
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """(u (p,), n times the bias of u_hat (p,), the covariance S of what one sample adds to u_hat, (p, p))."""
    share, means = f[: family.groups], f[family.groups :].reshape(family.groups, -1)

    def of_x(group: Array, x: Array) -> Array:
        return loss(theta, {"x": x, "group": group})

    both = jax.vmap(jax.vmap(jax.value_and_grad(of_x, argnums=1), (None, 0)))
    losses, slopes = map(np.asarray, both(jnp.arange(family.groups), jnp.asarray(grid.x)))
    group_loss = losses @ grid.weights
    mean_loss = share @ group_loss
    group_slope = np.einsum("kqd,q->kd", slopes, grid.weights)
    own = (losses - group_loss[:, None])[..., None]
    by_mean = slopes if second_term == "pathwise" else own * (grid.x - means[:, None]) / family.sd**2
    kind = np.eye(family.groups)
    to_share = kind[:, None] * own / share[:, None, None] - (losses - mean_loss)[..., None]
    to_mean = np.einsum("kj,kqd->kqjd", kind, by_mean).reshape(*losses.shape, -1)
    added = np.concatenate([to_share, to_mean], -1)  # (K, points, p)
    likely = share[:, None] * grid.weights
    mean = np.einsum("kq,kqp->p", likely, added)
    spread = np.einsum("kq,kqp,kqr->pr", likely, added, added) - np.outer(mean, mean)
    u = np.concatenate([group_loss - mean_loss, (share[:, None] * group_slope).ravel()])
    bias = np.concatenate([np.zeros(family.groups), -group_slope.ravel()])
    return u, bias if second_term == "score" else np.zeros_like(bias), spread
