"""DOT: cuts the outliers in length of a group that is all correct, and grades them again."""

from dataclasses import replace

import torch

from leash_trl.length_control.advantages import mean_and_std, robust_centre_and_spread
from leash_trl.length_control.method import AdvantageRule, LengthControl, Paper, Rollouts, Score, hyperparameter


class DOT(LengthControl):
    r"""DOT: where all answers of a prompt are correct, cuts those far longer than the rest, and grades them again.

    $$ T(q) = \lfloor \operatorname{mean}(L) + \alpha \operatorname{std}(L) \rfloor, \qquad
       L_i \gets T(q) \text{ if } L_i - T(q) \ge m $$

    A completion that is cut gets the reward of the text that is left, as a rule that of a wrong answer, and its tail
    leaves the loss. All other rewards are the task rewards. No end token follows the cut. Evaluation cuts nothing.

    `leash/cut_share` logs the share of completions that were cut; the column `kept_length` of the completions table
    holds what is left. `length`, the violation and the truncated share stay those of what the model generated, which
    is what it costs. Accuracy and rewards are those after the cut.

    Use: without a target, to take the long tail off easy prompts; with groups of 11 or more, or with `robust`; with
    `scale_rewards="group"`, `loss_type="grpo"` and dynamic sampling, as in the release.

    Source: [DOT](https://huggingface.co/papers/2601.03969): its abstract, and the README and `length_truncation.py` of
    the authors' release (U-rara/DOT, commit 9e6574b). The body of the paper we could not read. The standard deviation
    is the sample one (n - 1). The authors add oversampling by a running share of live groups, and KL-Cov (weight 1 on
    0.2 % of the tokens); $G = 32$, 8192 tokens.

    Differs: the release calls an answer correct if its reward is 1, we if it is positive. It has knobs that its README
    does not name: a share of right answers below 1, and a margin $m$ as a share of the length. It counts unscorable
    completions as wrong; here they do not count. `robust` is not in the release.

    Args:
        alpha (`float`): $\alpha$, spreads above the centre, dimensionless. In a group of n, no completion is more than
            $(n - 1) / \sqrt n$ standard deviations above the mean: 3 needs 11 completions.
        min_excess (`int`): $m$, least number of tokens to cut.
        robust (`bool`): Median and 1.4826 MAD instead of mean and standard deviation, so that small groups have
            outliers, see [`robust_centre_and_spread`]. A group that hardly spreads is then left alone.
    """

    name = "dot"
    paper = Paper(
        "Anti-Length Shift: Dynamic Outlier Truncation for Training Efficient Reasoning Models",
        "2601.03969",
        "Wei Wu and others",
    )
    cuts = True

    alpha: float = hyperparameter(3.0, ge=0)
    min_excess: int = hyperparameter(32, ge=1)
    robust: bool = False

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        return rollouts.task_rewards

    def score(self, rollouts: Rollouts, rule: AdvantageRule) -> Score:
        return replace(super().score(rollouts, rule), cut=self.cut_lengths(rollouts))

    def cut_lengths(self, rollouts: Rollouts) -> torch.Tensor:
        """`torch.Tensor` of shape `(N,)`: Tokens to keep of each completion; its length where it stays whole."""
        lengths_PG = rollouts.by_group(rollouts.scorable_lengths)
        centres_P1, spreads_P1 = (robust_centre_and_spread if self.robust else mean_and_std)(lengths_PG)
        limits_P1 = (centres_P1 + self.alpha * spreads_P1).floor()
        is_all_correct_P1 = (rollouts.by_group(rollouts.solve_rates) == 1.0)[:, :1]
        is_cut_PG = is_all_correct_P1 & (lengths_PG - limits_P1 >= self.min_excess)
        limits_N = limits_P1.expand_as(lengths_PG).flatten()
        return torch.where(is_cut_PG.flatten(), limits_N, rollouts.lengths.double()).long()
