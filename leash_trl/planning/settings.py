"""What a plan depends on: the model, the machines and the fields of the recipe that memory follows from."""

import math
from dataclasses import dataclass

from leash_trl.planning.architecture import Architecture


GIB = 2**30
SHARDINGS = ("none", "zero1", "zero2", "zero3", "fsdp")


@dataclass(frozen=True)
class Settings:
    """
    One run to plan; field names are those of the recipe where it has them, errors name the options of `leash plan`.

    Args:
        architecture (`Architecture`):
            Shapes of the policy.
        num_gpus (`int`):
            GPUs that train. Must be positive.
        gpu_memory (`float`):
            Memory of one GPU, in GiB. Must be positive.
        headroom (`float`):
            Share of it that nothing may plan with: CUDA context, NCCL's buffers, fragments. In [0, 1).
        sharding (`str`):
            `none` (DDP), `zero1`, `zero2`, `zero3` (DeepSpeed) or `fsdp` (FSDP2).
        weight_bytes (`int`):
            Bytes per element of the weights as loaded: 4, TRL's default, or 2 with `dtype: bfloat16`.
        bf16 (`bool`):
            Whether matrices are multiplied in bfloat16.
        gradient_checkpointing (`bool`):
            Whether layers are computed again in the backward pass.
        has_reference (`bool`):
            Whether a reference model is held, which `beta` other than 0 asks for.
        keeps_attention_mask (`bool`):
            Whether padded batches get a mask of T x T, as `sdpa` attention does and flash attention does not.
        groups_lengths (`bool`):
            Whether micro-batches are filled by tokens (`length_grouped_microbatches`).
        reasons_against_grouping (`tuple[str, ...]`):
            Why they cannot be; empty if they can.
        per_device_train_batch_size (`int`):
            Completions of one GPU and micro-batch, on average.
        gradient_accumulation_steps (`int`):
            Micro-batches per policy update.
        steps_per_generation (`int`):
            Micro-batches per generation batch.
        num_iterations (`int`):
            Passes over a generation batch.
        max_prompt_length (`int`):
            Tokens of the longest prompt.
        max_completion_length (`int`):
            Tokens of the longest completion.
        mean_completion_length (`int`):
            Mean tokens of a completion; the maximum if it is not known. Bounds on memory hold where no
            `window_completions` have a greater mean.
        use_vllm (`bool`):
            Whether vLLM generates.
        vllm_mode (`str`):
            `colocate` or `server`.
        vllm_gpu_memory_utilization (`float`):
            Share of a GPU that colocated vLLM takes.
        vllm_enable_sleep_mode (`bool`):
            Whether colocated vLLM gives its memory back while training.
        vllm_tensor_parallel_size (`int`):
            GPUs that share one colocated engine.
        vllm_max_model_length (`int`):
            Tokens of the longest sequence that vLLM makes room for.

    Raises:
        `ValueError`: If a value is out of its range.
    """

    architecture: Architecture
    num_gpus: int
    gpu_memory: float
    headroom: float
    sharding: str
    weight_bytes: int
    bf16: bool
    gradient_checkpointing: bool
    has_reference: bool
    keeps_attention_mask: bool
    groups_lengths: bool
    reasons_against_grouping: tuple[str, ...]
    per_device_train_batch_size: int
    gradient_accumulation_steps: int
    steps_per_generation: int
    num_iterations: int
    max_prompt_length: int
    max_completion_length: int
    mean_completion_length: int
    use_vllm: bool
    vllm_mode: str
    vllm_gpu_memory_utilization: float
    vllm_enable_sleep_mode: bool
    vllm_tensor_parallel_size: int
    vllm_max_model_length: int

    def __post_init__(self) -> None:
        positive = {
            "--num_gpus": self.num_gpus,
            "--gpu_memory": self.gpu_memory,
            "--prompt_length": self.max_prompt_length,
            "--max_completion_length": self.max_completion_length,
            "--mean_length": self.mean_completion_length,
        }
        for option, value in positive.items():
            if not 0 < value < math.inf:
                raise ValueError(f"{option} is {value}, but must be positive and finite")
        if not 0 <= self.headroom < 1:
            raise ValueError(f"--headroom is {self.headroom}, but must be a share from 0 to below 1, such as 0.05")
        if self.sharding not in SHARDINGS:
            raise ValueError(f"--sharding is {self.sharding!r}, but must be one of {', '.join(SHARDINGS)}")
        if self.groups_lengths and self.reasons_against_grouping:
            raise ValueError(
                f"groups_lengths is True, but {'; '.join(self.reasons_against_grouping)}; set it to False"
            )
        if self.mean_completion_length > self.max_completion_length:
            raise ValueError(
                f"--mean_length is {self.mean_completion_length}, but cannot be above max_completion_length="
                f"{self.max_completion_length}; lower it"
            )

    @property
    def is_colocated(self) -> bool:
        """Whether vLLM shares the training GPUs."""
        return self.use_vllm and self.vllm_mode == "colocate"

    @property
    def window_size(self) -> int:
        """Micro-batches of one GPU among which completions may move: those of one generation and one update."""
        return math.gcd(self.gradient_accumulation_steps, self.steps_per_generation)

    @property
    def window_completions(self) -> int:
        """Completions, over all GPUs, that are split into micro-batches together where lengths are grouped."""
        return self.num_gpus * self.per_device_train_batch_size * self.window_size

    @property
    def max_length(self) -> int:
        """Tokens of the longest row, prompt included."""
        return self.max_prompt_length + self.max_completion_length

    @property
    def usable_bytes(self) -> float:
        """Bytes of one GPU that may be planned with."""
        return self.gpu_memory * GIB * (1 - self.headroom)
