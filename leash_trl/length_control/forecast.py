"""`Forecast` of LEASH-Predictive: how the mean length responds to lambda, estimated by a Kalman filter."""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from leash_trl.length_control.dual import clipped


# Chosen on simulated systems of CHOICE_SEED (recipes/gym/length_plants.py) and on seed 51 of the gym.
LOG_LENGTH_NOISE = 0.1  # s, standard deviation of the logarithm of a batch's mean length
LOG_RATIO_WALK = 0.003  # q_y, unexplained change of that logarithm per update
RESPONSE_WALK = 0.6  # q_b, change of the logarithm of the response while the length changes by a factor of e
DRIFT_WALK = 0.0003  # q_d, change of the drift per update
SPREAD_UPDATES = 5.0  # H, number of updates over which the remaining change of length is spread
RESPONSE_INIT = 0.04  # b before the first batch
COVARIANCE_INIT = np.diag([LOG_LENGTH_NOISE**2, 0.8**2, 0.005**2])  # of y, log b and d, which are independent at first
MIN_RESPONSE = 5e-4
MAX_RESPONSE = 0.4
MAX_DRIFT = 0.95  # as a share of the response
MIN_LENGTH_RATIO = 0.05  # smaller ratios of length to target are raised to this one, so that their logarithm is finite


def propagated(covariance: np.ndarray, fall: float) -> np.ndarray:
    r"""Returns the covariance of $y$, $\log b$ and $d$ after an update, of shape `(3, 3)`, without the noise that the
    update adds.

    $$ F P F^\top, \qquad F = \begin{pmatrix} 1 & -b u & 1 \\ 0 & 1 & 0 \\ 0 & 0 & 1 \end{pmatrix} $$

    Args:
        covariance (`np.ndarray` of shape `(3, 3)`): $P$.
        fall (`float`): $b u$.
    """
    # F P changes only the first row of P, and (F P) F^T only the first column. No matrix product is used, since its
    # last bit depends on the processor, and a resumed run must be the same everywhere.
    product = covariance.copy()
    product[0] = product[0] - fall * product[1] + product[2]
    product[:, 0] = product[:, 0] - fall * product[:, 1] + product[:, 2]
    return product


class Forecast(NamedTuple):
    r"""An extended Kalman filter of how the mean length responds to lambda. Its state is $(y, \log b, d)$:
    `after_batch` corrects it by a measured length, `after_update` moves it by one policy update, and `needed_lambda`
    returns the lambda that brings the length to its target.

    Args:
        log_ratio (`float`): $y$, logarithm of the ratio of length to target that is expected for the next batch;
            `None` before the first batch.
        push (`float`): $u$, running mean of lambda, dimensionless, which models the momentum of the optimizer.
        response (`float`): $b$, by how much the logarithm falls in one update if the push is 1.
        drift (`float`): $d$, by how much the logarithm rises in one update if the push is 0; negative if it falls.
        last_lambda (`float`): Lambda of the batch on which the policy was last updated.
        target (`float`): Target of all completions of that batch; `None` if they had different targets.
        covariance (`Sequence[Sequence[float]]`): $P$, covariance of the errors of $y$, $\log b$ and $d$, of shape
            `(3, 3)`; lists, since checkpoints hold it.
    """

    log_ratio: float | None = None
    push: float = 0.0
    response: float = RESPONSE_INIT
    drift: float = 0.0
    last_lambda: float = 0.0
    target: float | None = None
    covariance: Sequence[Sequence[float]] = COVARIANCE_INIT.tolist()

    def for_target(self, target: float | None) -> "Forecast":
        """Returns the forecast for a new target: the expected length stays the same, its ratio to the target
        changes."""
        if self.log_ratio is None or self.target is None or target is None:
            return self._replace(target=target)
        return self._replace(log_ratio=self.log_ratio + math.log(self.target / target), target=target)

    def after_batch(self, violation: float, lambda_min: float = 0.0) -> "Forecast":
        r"""Returns the forecast after a batch with the measured violation $\hat J_P$.

        $$ e = \log(1 + \hat J_P) - y, \qquad k = \frac{P_{\cdot y}}{P_{yy} + s^2}, \qquad
           (y, \log b, d) \leftarrow (y, \log b, d) + k e, \qquad P \leftarrow P - k P_{y \cdot} $$

        $e$ is the surprise. In the first batch, $y$ is the measured logarithm, so $e$ is 0. $b$ is clipped to
        `MIN_RESPONSE` and `MAX_RESPONSE`, and $d$ to $[0.95 b \min(0, \lambda_{\min}), 0.95 b]$, the drifts that some
        lambda balances. Source: ours.
        """
        # 1 + violation is the mean ratio of length to target. The state of the filter is the logarithm of this ratio
        # (`log_ratio`), the logarithm of the response to lambda, and the drift.
        measured = math.log(max(1.0 + violation, MIN_LENGTH_RATIO))
        expected = measured if self.log_ratio is None else self.log_ratio
        surprise = measured - expected
        # Only the logarithm of the ratio is measured. The other two parts are corrected as far as their errors vary
        # with the error of this logarithm, by the first row of the covariance.
        covariance = np.array(self.covariance)  # P, of shape (3, 3)
        log_ratio_row = covariance[0]  # P_y.
        gain = log_ratio_row / (log_ratio_row[0] + LOG_LENGTH_NOISE**2)  # k, the Kalman gain
        log_ratio_gain, response_gain, drift_gain = gain.tolist()
        # The correction of the logarithm of the response is a factor of the response.
        response = clipped(self.response * math.exp(response_gain * surprise), MIN_RESPONSE, MAX_RESPONSE)
        return self._replace(
            log_ratio=expected + log_ratio_gain * surprise,
            response=response,
            drift=clipped(
                self.drift + drift_gain * surprise,
                minimum=MAX_DRIFT * response * min(0.0, lambda_min),
                maximum=MAX_DRIFT * response,
            ),
            covariance=(covariance - np.outer(gain, log_ratio_row)).tolist(),
        )

    def after_update(self, lam: float, momentum: float) -> "Forecast":
        r"""Returns the forecast after one policy update with this lambda, by an optimizer with this momentum $\beta$.
        Source: ours.

        $$ u \leftarrow \beta u + (1 - \beta) \lambda, \qquad y \leftarrow y - b u + d, \qquad
           P \leftarrow F P F^\top + \mathrm{diag}(q_y^2, 0, q_d^2) + q_b^2 |b u - d| \, g g^\top, \qquad
           g = (0, 1, d) $$

        $F$ is the identity matrix except for its first row, $(1, -b u, 1)$. The response is expected to change only
        while the length changes, and the drift by the same factor, so that the same lambda as before holds the length.
        """
        # The optimizer's momentum averages over updates, so lambda acts by its running mean, the push.
        push = momentum * self.push + (1.0 - momentum) * lam
        if self.log_ratio is None:  # no length has been measured yet
            return self._replace(push=push, last_lambda=lam)
        # The logarithm of length over target (`log_ratio`) falls by `fall` and rises by `drift`.
        fall = self.response * push
        # The response is expected to change only while the length does, so its variance grows with the change of
        # length. A change of the response by a factor changes the drift by the same factor: what makes a policy answer
        # faster to lambda also makes it drift faster.
        common_factor = np.array([0.0, 1.0, self.drift])  # g, by how much (y, log b, d) change with log b
        response_noise = RESPONSE_WALK**2 * abs(fall - self.drift) * np.outer(common_factor, common_factor)
        process_noise = np.diag([LOG_RATIO_WALK**2, 0.0, DRIFT_WALK**2]) + response_noise
        covariance = propagated(np.array(self.covariance), fall) + process_noise
        return self._replace(
            log_ratio=self.log_ratio - fall + self.drift,
            push=push,
            last_lambda=lam,
            covariance=covariance.tolist(),
        )

    def needed_lambda(self, momentum: float) -> float:
        r"""Returns the lambda that the next batch needs, dimensionless. It is negative if the length would fall too
        far even with a lambda of 0, and infinite before the first batch.

        $$ \frac{y - b u m + d (H + m)}{b H}, \qquad m = \frac{\beta}{1 - \beta} $$

        Without any further push, the momentum would still add a push of $m u$ in all. Of the distance to the target
        that then remains, including the drift until then, the next update is to cover $1 / H$. If $y = 0$ and $b u =
        d$, the result is $u$, so the length stays at the target. Source: ours.

        Example:
            >>> round(Forecast(log_ratio=0.375, push=0.125, response=0.125).needed_lambda(momentum=0.9), 9)
            0.375
        """
        if self.log_ratio is None:  # no length has been measured yet: as much as `lambda_max` allows
            return math.inf
        # The optimizer's momentum goes on with the last push. Its whole effect is that of `carried_updates` updates
        # with this push.
        carried_updates = momentum / (1.0 - momentum)  # m
        carried_fall = self.response * self.push * carried_updates
        rise = self.drift * (SPREAD_UPDATES + carried_updates)
        # By this much, the logarithm of length over target must still fall. The push is chosen to cover
        # 1 / SPREAD_UPDATES of it in the next update.
        remaining = self.log_ratio - carried_fall + rise
        return remaining / (self.response * SPREAD_UPDATES)
