"""`thinking_end: "[/THINK]"` in the trainer: a guess inside thinking that has not ended is no answer. The same of
`LengthControlledReward` is in its own file."""

import pytest
from conftest import quiet
from datasets import Dataset
from gradient_run import scripted_rollout
from tool_run import byte_tokenizer, tiny_model

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.rewards import math_reward


@pytest.mark.parametrize(
    ("in_template", "in_completion"),
    [
        ("[THINK]", ""),
        ("", "[THINK]"),
    ],
)
def test_only_what_follows_the_thinking_is_graded_whether_template_or_completion_opens_it(
    in_template, in_completion, tmp_path
):
    tokenizer = byte_tokenizer()
    tokenizer.chat_template = "{{ messages[0].content }}" + in_template

    def ids_of(trainer, index, code):
        said = r"\boxed{4} Wait, " if index % 2 == 0 else r"\boxed{4}[/THINK]\boxed{4}"
        return [*tokenizer.encode(in_completion + said), tokenizer.eos_token_id]

    row = {"prompt": [{"role": "user", "content": "1 + 3 = ?"}], "solution": "4"}
    trainer = LeashGRPOTrainer(
        tiny_model(),
        math_reward,
        LeashGRPOConfig(**quiet(tmp_path, max_steps=1, thinking_end="[/THINK]")),
        Dataset.from_list([row] * 8),
        processing_class=tokenizer,
        rollout_func=scripted_rollout(tokenizer, ids_of),
    )
    trainer.train()
    assert list(trainer._logs["rewards"]["math_reward"]) == [-1.0, 1.0] * 4


def test_an_end_that_texts_do_not_show_is_warned_of(make_trainer):
    with pytest.warns(UserWarning, match=r"thinking_end.*<\|end\|>"):
        make_trainer(thinking_end="<|end|>")
