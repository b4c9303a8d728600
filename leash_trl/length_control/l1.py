"""LCPO of L1: every prompt requests a length, which the answer should meet (Exact) or stay below (Max)."""

import random

import torch

from leash_trl.length_control import LengthControl, Paper, Rollouts, hyperparameter


class L1Exact(LengthControl):
    r"""L1-Exact: correctness (1 or 0) minus a penalty for the distance to the requested length, for all answers.

    $$ r = c - \alpha \cdot |n_{gold} - n_y| $$

    Use: to train a model that follows a length stated in its prompt.

    Source: LCPO section of [L1](https://huggingface.co/papers/2503.04697).

    Differs: the requested length is drawn at random with the prompt's question number as seed, so it is the same in
    every process, epoch and run; the release draws it when it writes the data set.

    Args:
        alpha (`float`): Penalty in reward units per token of distance. The first release has 1/3000.
        budget_range (`tuple[int, int]`): Bounds in tokens, both inclusive, of the uniform draw for prompts without
            their own target. With `None`, these prompts request the configured `target_length`.
        suffix (`str`): Text to append to each prompt, in which `{n}` is replaced by the requested length; `""` appends
            nothing.
    """

    name = "l1_exact"
    paper = Paper("L1: Controlling How Long A Reasoning Model Thinks", "2503.04697")
    target_use = "optional"

    alpha: float = hyperparameter(0.0003, ge=0)
    budget_range: tuple[int, int] | list[int] | None = (100, 4000)
    suffix: str = " Think for {n} tokens."

    def __post_init__(self) -> None:
        super().__post_init__()
        # `suffix` is appended to each prompt, with the requested length in place of {n}; without it, the model could
        # not know the length.
        if self.suffix and "{n}" not in self.suffix:
            raise ValueError(f'suffix is {self.suffix!r}, but must contain {{n}}, the requested length, or be ""')

    def check(self, target_length: int | None, max_completion_length: float) -> None:
        if self.budget_range is None and target_length is None:
            raise ValueError("budget_range and target_length are None, so no length is requested; set one of them")
        if self.budget_range is not None and self.budget_range[1] > max_completion_length:
            raise ValueError(
                f"budget_range is {self.budget_range!r}, but the generation limit is {max_completion_length} tokens"
            )

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        distances_N = (rollouts.target_lengths - rollouts.lengths).abs()  # |n_gold - n_y|
        return self.base_rewards(rollouts) - self.alpha * distances_N

    def target_for(self, question: int, target_length: float | None) -> float | None:
        """Returns the requested length, in tokens, of a prompt without its own target."""
        if self.budget_range is None:
            return target_length
        low, high = self.budget_range
        # with the question's number as seed, the draw is the same in every process, epoch and run
        return float(random.Random(question).randint(low, high))

    def prompt_suffix(self, target_length: float | None, generation_limit: float) -> str:
        if target_length is None:
            return ""
        return self.suffix.replace("{n}", str(round(target_length)))


class L1Max(L1Exact):
    r"""L1-Max: a correct answer earns more the shorter it is than its budget, a wrong one earns 0 at any length.

    $$ r = c \cdot \mathrm{clip}(\alpha \cdot (n_{gold} - n_y) + \delta, 0, 1) $$

    Use: to train a model that stays below a limit stated in its prompt.

    Source: LCPO section of [L1](https://huggingface.co/papers/2503.04697).

    Differs: the paper trains Max from an Exact model on prompts of both kinds; here, every prompt is of the Max kind.

    Args:
        alpha (`float`): Slope per token; the paper gives one value for both methods. The first release has 1/1000.
        delta (`float`): Reward of a correct answer whose length equals the budget.
    """

    name = "l1_max"

    suffix: str = " Think for maximum {n} tokens."
    delta: float = hyperparameter(0.5, ge=0, le=1)

    def shaped_rewards(self, rollouts: Rollouts) -> torch.Tensor:
        unused_N = rollouts.target_lengths - rollouts.lengths  # n_gold - n_y
        factors_N = (self.alpha * unused_N + self.delta).clamp(min=0.0, max=1.0)
        return self.base_rewards(rollouts) * factors_N
