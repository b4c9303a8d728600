"""`thinking_end: "[/THINK]"` in the trainer: a guess inside thinking that has not ended is no answer. The same of
`LengthControlledReward` is in its own file."""

import pytest
from conftest import quiet
from datasets import Dataset
from tool_run import byte_tokenizer, tiny_model

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.rewards import math_reward


@pytest.mark.parametrize(
    ("in_template", "prompt", "in_completion", "reward_of_guess"),
    [
        ("[THINK]", [{"role": "user", "content": "1 + 3 = ?"}], "", -1.0),
        ("", [{"role": "user", "content": "1 + 3 = ?"}], "[THINK]", -1.0),
        # Text gets no chat template, so only its own end shows where completions begin.
        ("", "1 + 3 = ?[THINK]", "", -1.0),
        ("[THINK]", "1 + 3 = ?", "", 1.0),
    ],
)
def test_only_what_follows_the_thinking_is_graded_whoever_opens_it(
    in_template, prompt, in_completion, reward_of_guess, tmp_path
):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}" + in_template

    def rollout(prompts, trainer):
        rows = {"prompt_ids": [], "completion_ids": [], "logprobs": []}
        for index, prompt in enumerate(prompts):
            text = prompt if isinstance(prompt, str) else tokenizer.apply_chat_template(prompt, tokenize=False)
            said = r"\boxed{4} Wait, " if index % 2 == 0 else r"\boxed{4}[/THINK]\boxed{4}"
            completion_ids = [*tokenizer.encode(in_completion + said), tokenizer.eos_token_id]
            rows["prompt_ids"].append(tokenizer.encode(text))
            rows["completion_ids"].append(completion_ids)
            rows["logprobs"].append([0.0] * len(completion_ids))
        return rows

    trainer = LeashGRPOTrainer(
        tiny_model(),
        math_reward,
        LeashGRPOConfig(**quiet(tmp_path, max_steps=1, thinking_end="[/THINK]")),
        Dataset.from_list([{"prompt": prompt, "solution": "4"}] * 8),
        processing_class=tokenizer,
        rollout_func=rollout,
    )
    trainer.train()
    assert list(trainer._logs["rewards"]["math_reward"]) == [reward_of_guess, 1.0] * 4


def test_an_end_that_texts_do_not_show_is_warned_of(make_trainer):
    with pytest.warns(UserWarning, match=r"thinking_end.*<\|end\|>"):
        make_trainer(thinking_end="<|end|>")
