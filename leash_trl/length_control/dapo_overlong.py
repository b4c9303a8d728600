"""DAPO's soft punishment of overlong completions."""

import math

import torch

from leash_trl.length_control import LengthControl, Paper, Rollouts, hyperparameter


class DapoOverlong(LengthControl):
    r"""DAPO: correctness (1 or -1) plus the soft overlong punishment, for correct and wrong answers alike.

    $$ R_{\text{length}}(y) = \begin{cases}
       0 & |y| \le L_{\max} - L_{\text{cache}} \\
       \frac{(L_{\max} - L_{\text{cache}}) - |y|}{L_{\text{cache}}} & L_{\max} - L_{\text{cache}} < |y| \le L_{\max} \\
       -1 & L_{\max} < |y| \end{cases} $$

    Use: against completions that reach the generation limit; it does not shorten those that end well before it.

    Source: Eq. (13) in section 3.4 of [DAPO](https://huggingface.co/papers/2503.14476). verl leaves out the last case,
    which cannot occur if generation stops at $L_{\max}$. DAPO's overlong filter is TRL's `mask_truncated_completions`.

    Args:
        cache_length (`int`): Range below the maximum, in tokens, in which the punishment grows. `None` is a fifth of
            the maximum, as in the paper, which has 4096 of 20480.
        max_length (`int`): Length in tokens from which on the punishment is -1; `None` is the generation limit. It
            must be set where lengths have no limit.
    """

    name = "dapo_overlong"
    paper = Paper(
        "DAPO: An Open-Source LLM Reinforcement Learning System at Scale",
        "2503.14476",
        "Qiying Yu and Zheng Zhang and Ruofei Zhu and Yufeng Yuan and Xiaochen Zuo and Yu Yue and Tiantian Fan "
        "and Gaohong Liu and Lingjun Liu and Xin Liu and Haibin Lin and Zhiqi Lin and Bole Ma and Guangming Sheng "
        "and Yuxuan Tong and Chi Zhang and Mofan Zhang and Wang Zhang and Hang Zhu and Jinhua Zhu and Jiaze Chen "
        "and Jiangjie Chen and Chengyi Wang and Hongli Yu and Weinan Dai and Yuxuan Song and Xiangpeng Wei and "
        "Hao Zhou and Jingjing Liu and Wei-Ying Ma and Ya-Qin Zhang and Lin Yan and Mu Qiao and Yonghui Wu and "
        "Mingxuan Wang",
    )

    cache_length: int | None = hyperparameter(4096, ge=1)
    max_length: int | None = hyperparameter(None, ge=2)

    def check(self, target_length: int | None, max_completion_length: float) -> None:
        max_length = self.max_length or max_completion_length
        # The limit is infinite if there is none, or if lengths are not in tokens. No length would then be punished.
        if math.isinf(max_length):
            raise ValueError(
                "max_length is None, but dapo_overlong needs it where lengths have no limit; set max_length"
            )
        # The punishment grows over the last `cache_length` tokens before the maximum; `None` is a fifth of it.
        if self.cache_length is not None and self.cache_length >= max_length:
            raise ValueError(f"cache_length is {self.cache_length}, but must be below {max_length} tokens")

    def base_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        return 2.0 * rollouts.correctness - 1.0  # 1 or -1

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        max_length = self.max_length or rollouts.max_completion_length  # L_max
        cache_length = self.cache_length or max(1, int(max_length // 5))  # L_cache
        # The second case of the formula. Its value is above 0 in the first case and below -1 in the third, where the
        # clamp gives what the formula has there.
        punishments_N = (max_length - cache_length - rollouts.lengths.double()) / cache_length
        return self.base_rewards(rollouts) + punishments_N.clamp(min=-1.0, max=0.0)
