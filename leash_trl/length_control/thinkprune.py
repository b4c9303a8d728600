"""ThinkPrune: no length reward; the generation limit is lowered in stages, and only the text up to it is graded."""

from dataclasses import field

from leash_trl.length_control import LengthControl, Paper, state_field


class ThinkPrune(LengthControl):
    """ThinkPrune: 1 for a correct answer within the generation limit, else 0; the limit is lowered in stages.

    A completion truncated at the limit still earns 1 if the text up to there contains the correct answer.

    Use: if there is a hard limit when the model is used later. The limit is the only training signal for length.

    Source: [ThinkPrune](https://huggingface.co/papers/2504.01296) and its
    [release](https://github.com/UCSB-NLP-Chang/ThinkPrune).

    Differs: the release states the limit in the system prompt; here, it is the last sentence of the prompt. The
    paper's iterative schedule ends at 2000 tokens, but the paper does not say after how many updates, so the default
    ends at 3000; `{0: 4000, 180: 3000, 360: 2000}` would have stages of equal length.

    Args:
        stages (`dict[int, int]`): Generation limit in tokens by the number of policy updates after which it applies.
            `{0: 4000}` is ThinkPrune in one stage. One must apply after 0 updates. If a stage is above the generation
            limit of the run, the latter applies, and prompts state the lower of the two.
        suffix (`str`): Text to append to each prompt, in which `{limit}` is replaced by the limit; `""` appends
            nothing.
    """

    name = "thinkprune"
    paper = Paper("ThinkPrune: Pruning Long Chain-of-Thought of LLMs", "2504.01296")
    needs_truncated = True

    stages: dict[int, int] = field(default_factory=lambda: {0: 4000, 180: 3000})
    suffix: str = " The output should be within {limit} tokens."
    steps_done: int = state_field(int)

    def __post_init__(self) -> None:
        super().__post_init__()
        # Generation limit in tokens by the number of policy updates from which on it applies. Keys from JSON and the
        # command line are strings.
        self.stages = {int(start): int(limit) for start, limit in self.stages.items()}
        if 0 not in self.stages or min(self.stages.values()) < 1:
            raise ValueError(
                f"stages is {self.stages}, but must have limits of at least 1 token, the first after 0 updates"
            )
        if self.suffix and "{limit}" not in self.suffix:
            raise ValueError(f'suffix is {self.suffix!r}, but must contain {{limit}} or be ""')

    def step(self) -> None:
        self.steps_done += 1

    def generation_cap(self, target_length: float | None) -> int:
        current_start = max(start for start in self.stages if start <= self.steps_done)
        return self.stages[current_start]

    def prompt_suffix(self, target_length: float | None, generation_limit: float) -> str:
        limit = int(min(self.generation_cap(None), generation_limit))
        return self.suffix.replace("{limit}", str(limit))

    def statistics(self) -> dict[str, float]:
        return {"generation_cap": float(self.generation_cap(None))}
