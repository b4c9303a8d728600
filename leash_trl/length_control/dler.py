"""DLER: truncation as the only length penalty, advantages standardized over the complete batch."""

import torch

from leash_trl.length_control import (
    AdvantageRule,
    LengthControl,
    Paper,
    Rollouts,
    group_advantages,
    hyperparameter,
    standardized,
)


class DLER(LengthControl):
    r"""DLER: correct answers longer than the target earn 0; in DA-DLER, the limit of easy prompts is `easy_limit`.

    $$ R_i = \begin{cases} r_i & L_i \le L_t \\ 0 & L_i > L_t \end{cases}, \qquad
       A_i = \frac{(R_i - \bar R_{\text{group}}) - \mu_{\text{batch}}}{\sigma_{\text{batch}} + \epsilon} $$

    The limit is `target_length`; the paper uses 4000 tokens. Truncated answers earn 0 too. The advantage is
    `reward - group mean`, standardized over the complete batch; `scale_rewards` has no effect. The paper also
    resamples groups without signal, for which the trainer has `dynamic_sampling_rounds`.

    Use: if the target may be a hard limit from the first update on. Set `dynamic_sampling_rounds` too.

    Source: section 3 of [DLER](https://huggingface.co/papers/2510.15110).

    Differs: the authors' release gives answers beyond the limit 0.1 of their reward, weights the standardization by
    tokens, and adds 0.1 to the advantage of every correct answer within the limit.

    As in the paper, generation also stops at the target. If prompts have their own targets, set `cut_generation:
    false`; a completion longer than its target earns nothing in either case.

    Args:
        easy_limit (`int`): Limit in tokens for prompts whose solve rate within the target is above `easy_threshold`;
            2000 in the paper's DA-DLER. Targets below this limit stay in force. `None` for no such limit.
        easy_threshold (`float`): Solve rate above which a prompt is easy, in [0, 1].
        cut_generation (`bool`): Whether to stop generation at the target, which saves time, or at
            `max_completion_length`.
    """

    name = "dler"
    paper = Paper("DLER: Doing Length pEnalty Right", "2510.15110")
    depends_on = "batch"
    advantages_have_mean_zero = True
    target_use = "required"
    needs_truncated = True

    easy_limit: int | None = hyperparameter(None, ge=1)
    easy_threshold: float = hyperparameter(0.5, ge=0, le=1)
    cut_generation: bool = True

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        return self._rewards_within(self.limits(rollouts), rollouts)

    def _rewards_within(self, limits_N: torch.Tensor, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Correctness within these limits, 0 beyond them, NaN where unscorable."""
        is_within_N = ~rollouts.is_truncated & (rollouts.lengths <= limits_N)
        # not the number 0, so that unscorable completions, whose correctness is NaN, stay NaN
        zeros_N = 0.0 * rollouts.correctness
        return rollouts.correctness.where(is_within_N, zeros_N)

    def limits(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: The limit of each completion in tokens."""
        targets_N = rollouts.target_lengths
        if self.easy_limit is None:
            return targets_N
        # A prompt is easy if the share of its completions that are correct within the full target is high enough. One
        # without scorable completions has a share of NaN, which is not above the threshold.
        rewards_PG = rollouts.by_group(self._rewards_within(targets_N, rollouts))
        is_easy_P1 = rewards_PG.nanmean(dim=1, keepdim=True) > self.easy_threshold
        targets_PG = rollouts.by_group(targets_N)
        # targets of easy prompts; a target below `easy_limit` stays
        easy_limits_PG = targets_PG.clamp(max=self.easy_limit)
        return easy_limits_PG.where(is_easy_P1, targets_PG).flatten()

    def advantages(self, rollouts: Rollouts, shaped: torch.Tensor, rule: AdvantageRule) -> torch.Tensor:
        # shaped reward R_i minus the mean of its group; without a scale, it is not divided by anything
        centered_N = group_advantages(shaped, rollouts.num_generations, scale_rewards="none", epsilon=rule.epsilon)
        # Unscorable completions have an advantage of 0 here, which must not count in the mean and the standard
        # deviation of the batch. NaN is left out of both.
        centered_N = centered_N.masked_fill(torch.isnan(shaped), torch.nan)
        advantages_N = standardized(centered_N, correction=0, epsilon=rule.epsilon)
        return advantages_N.nan_to_num(nan=0.0)

    def generation_cap(self, target_length: float | None) -> int | None:
        if target_length is None or not self.cut_generation:
            return None
        return int(target_length)
