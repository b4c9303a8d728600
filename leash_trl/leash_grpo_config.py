"""Configuration of `LeashGRPOTrainer`: LEASH's own fields, and the paper's recipe as defaults of TRL's."""

import math
import warnings
from dataclasses import dataclass, field

from trl import GRPOConfig


@dataclass
class LeashGRPOConfig(GRPOConfig):
    r"""
    Configuration class for the [`LeashGRPOTrainer`].

    This class includes the parameters of LEASH and those of [`~trl.GRPOConfig`] whose defaults differ: the defaults
    are the recipe of the paper and of its authors' release. For all others see [`~trl.GRPOConfig`].

    Parameters:
        > Parameters that control the length constraint

        target_length (`int`):
            Target for the mean completion length, in tokens. Required; must be below `max_completion_length`.
        lambda_init (`float`, *optional*, defaults to `0.1`):
            Penalty coefficient lambda before the first dual step, in reward units. The paper uses 0.1 for the 1.5B and
            0.2 for the 4B model.
        lambda_lr (`float`, *optional*, defaults to `0.005`):
            Step size of the dual step; 0 freezes lambda, which is LEASH-C. The paper uses 0.005, and 0.05 for 4B at
            8k.
        lambda_min (`float`, *optional*, defaults to `0.0`):
            Lower bound of lambda.
        lambda_max (`float`, *optional*, defaults to `1.0`):
            Upper bound of lambda.
        advantage_epsilon (`float`, *optional*, defaults to `1e-8`):
            Added to the standard deviation of the shaped rewards when advantages are normalised. The paper has 1e-8,
            the authors' release 1e-6, TRL 1e-4.

        > Parameters whose defaults differ from GRPOConfig: the paper's recipe

        max_completion_length (`int`, *optional*, defaults to `32768`):
            Maximum number of tokens to generate per completion.
        epsilon_high (`float`, *optional*, defaults to `0.28`):
            Upper clipping range of the importance ratio (DAPO's clip-higher).
        lr_scheduler_type (`str`, *optional*, defaults to `"constant"`):
            Learning rate schedule.
        weight_decay (`float`, *optional*, defaults to `0.1`):
            Weight decay of AdamW. From the authors' release.
        vllm_importance_sampling_correction (`bool`, *optional*, defaults to `False`):
            Whether to correct for the mismatch between vLLM's and the trainer's probabilities. The paper does not;
            TRL's default mode drops whole sequences, long ones first. If you turn it on, prefer
            `vllm_importance_sampling_mode="token_truncate"`.
    """

    target_length: int | None = field(
        default=None,
        metadata={"help": "Target for the mean completion length, in tokens."},
    )
    lambda_init: float = field(
        default=0.1,
        metadata={"help": "Penalty coefficient lambda before the first dual step, in reward units."},
    )
    lambda_lr: float = field(
        default=0.005,
        metadata={"help": "Step size of the dual step; 0 freezes lambda, which is LEASH-C."},
    )
    lambda_min: float = field(default=0.0, metadata={"help": "Lower bound of lambda."})
    lambda_max: float = field(default=1.0, metadata={"help": "Upper bound of lambda."})
    advantage_epsilon: float = field(
        default=1e-8,
        metadata={"help": "Added to the standard deviation of the shaped rewards when advantages are normalised."},
    )

    max_completion_length: int | None = field(
        default=32768,
        metadata={"help": "Maximum number of tokens to generate per completion."},
    )
    epsilon_high: float | None = field(
        default=0.28,
        metadata={"help": "Upper clipping range of the importance ratio (DAPO's clip-higher)."},
    )
    lr_scheduler_type: str = field(default="constant", metadata={"help": "Learning rate schedule."})
    weight_decay: float = field(default=0.1, metadata={"help": "Weight decay of AdamW."})
    vllm_importance_sampling_correction: bool = field(
        default=False,
        metadata={"help": "Whether to correct for the mismatch between vLLM's and the trainer's probabilities."},
    )

    def __post_init__(self):
        super().__post_init__()
        self._check_target()
        self._check_lambda()
        if self.multi_objective_aggregation != "sum_then_normalize":
            raise ValueError(
                f"multi_objective_aggregation is {self.multi_objective_aggregation!r}, which would rescale the shaped "
                "reward unseen; LEASH penalises the weighted sum of the rewards: use 'sum_then_normalize'"
            )
        self._warn_about_legal_mistakes()

    def _check_target(self) -> None:
        if self.target_length is None:
            raise ValueError(
                "target_length is required: the mean completion length to aim for, in tokens, such as 4096"
            )
        if isinstance(self.target_length, bool) or not isinstance(self.target_length, int) or self.target_length < 1:
            raise ValueError(f"target_length is {self.target_length!r}, but must be a positive whole number of tokens")
        if self.max_completion_length is not None and self.target_length >= self.max_completion_length:
            raise ValueError(
                f"target_length is {self.target_length}, but must be below max_completion_length="
                f"{self.max_completion_length}: no completion could violate it; lower the target or raise the limit"
            )

    def _check_lambda(self) -> None:
        for name in ("lambda_init", "lambda_lr", "lambda_min", "lambda_max", "advantage_epsilon"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
                raise ValueError(f"{name} is {value!r}, but must be a finite number")
        if not 0 <= self.lambda_min <= self.lambda_init <= self.lambda_max:
            raise ValueError(
                "lambda needs 0 <= lambda_min <= lambda_init <= lambda_max, but they are "
                f"lambda_min={self.lambda_min}, lambda_init={self.lambda_init}, lambda_max={self.lambda_max}"
            )
        if self.lambda_lr < 0:
            raise ValueError(f"lambda_lr is {self.lambda_lr}, but must be 0 (lambda frozen, LEASH-C) or positive")
        if self.advantage_epsilon <= 0:
            raise ValueError(f"advantage_epsilon is {self.advantage_epsilon}, but must be positive, such as 1e-8")

    def _warn_about_legal_mistakes(self) -> None:
        if self.top_p < 1 or self.top_k > 0 or self.min_p:
            warnings.warn(
                f"top_p={self.top_p}, top_k={self.top_k}, min_p={self.min_p}: truncated sampling biases the "
                "importance ratio and hides the long tail that the constraint is about; the paper samples all tokens",
                UserWarning,
                stacklevel=4,
            )
        if self.mask_truncated_completions:
            warnings.warn(
                "mask_truncated_completions=True: the longest completions give no gradient, yet count in lambda's "
                "violation, so lambda rises while nothing teaches them to be shorter; the paper keeps them (False)",
                UserWarning,
                stacklevel=4,
            )
