"""The reward function by itself: what it gives, what it passes on, and how its copies in other processes follow."""

import contextlib
import pickle
import subprocess
import sys
from copy import deepcopy
from dataclasses import replace
from functools import partial
from textwrap import dedent
from types import SimpleNamespace

import pytest
from conftest import gym_tokenizer
from transformers import TrainerState
from trl import GRPOConfig

from leash_trl import LengthControlledReward
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.methods import METHODS
from leash_trl.length_control.rollouts import concatenated
from leash_trl.rewards import math_reward
from leash_trl.trainer.length_controlled_reward import without_padding
from leash_trl.trainer.trl_settings import RunSettings


END = 2
PAD = 0
MODEL = SimpleNamespace(generation_config=SimpleNamespace(eos_token_id=END))
pytestmark = pytest.mark.filterwarnings("ignore:.*which a reward function cannot:UserWarning")


def plus_one(completions, **kwargs):
    return [1.0] * len(completions)


def call(reward, *lengths, prompts=None, completions=None, **columns):
    """Scores completions of these lengths that end."""
    ids = [[7] * (length - 1) + [END] for length in lengths]
    prompts = prompts or ["question"] * len(lengths)
    completions = completions or [""] * len(lengths)
    columns.setdefault("trainer_state", TrainerState())
    return reward(prompts=prompts, completions=completions, completion_ids=ids, **columns)


SETTINGS = RunSettings(  # groups of two in training, and none in evaluation
    num_generations=2,
    num_generations_eval=1,
    max_completion_length=100.0,
    end_ids=frozenset([END]),
    pad_id=PAD,
    tokenizer=gym_tokenizer(),
)
TRAINING = SimpleNamespace(training=True)


@pytest.fixture
def config(tmp_path):
    """Factory of configurations of GRPO with groups of two."""

    def make(**fields):
        sizes = {"num_generations": 2, "generation_batch_size": 8}
        return GRPOConfig(str(tmp_path), bf16=False, use_cpu=True, **sizes, **fields)

    return make


def observed(reward):
    """What the callback would show the method."""
    return concatenated(reward.pop_scored_rollouts())


def make(method="leash", functions=plus_one, target=10, **hyperparameters):
    """A reward of a run that trains, in one process."""
    return begun(LengthControlledReward(functions, METHODS[method](**hyperparameters), target))


def begun(reward):
    reward.settings = SETTINGS
    reward.updated_model = TRAINING
    return reward


def metrics_of_call(reward, *lengths, **columns):
    """What a call logs."""
    metrics = {}
    columns.setdefault("log_extra", {}.__setitem__)
    call(reward, *lengths, log_metric=metrics.__setitem__, **columns)
    return metrics


def test_the_reward_is_the_methods_by_hand():
    reward = make(lambda_init=0.5)
    # a target of 10: 15 tokens are 0.5 over, 9 are within
    assert call(reward, 15, 9) == pytest.approx([1 - 0.5 * 0.5, 1.0], abs=1e-12)
    # the row's own target of 5: 2 and 0.8 over, and clipped at -1
    assert call(reward, 15, 9, target_length=[5, 5]) == pytest.approx([0.0, 1 - 0.5 * 0.8], abs=1e-12)


@pytest.mark.filterwarnings("ignore:correctness_func:UserWarning")
def test_functions_are_weighed_and_may_pass():
    def first(completions, **kwargs):
        return [0.5, None]

    reward = begun(LengthControlledReward((first, plus_one), "none", weights=[1.0, 0.25]))
    assert call(reward, 3, 3) == [0.75, 0.25]
    logged = metrics_of_call(reward, 3, 3)
    assert logged["rewards/first"] == 0.5
    assert logged["rewards/plus_one"] == 1.0
    reward = make(functions=[first])
    assert call(reward, 3, 3) == [0.5, None]
    assert observed(reward).lengths.tolist() == [3, 3]  # lambda counts the length of what cannot be scored


def constant(completions, value=0.5, **kwargs):
    return [value, None, *[1.0] * (len(completions) - 2)]


# of one name
HIGH = partial(constant, value=0.5)
LOW = partial(constant, value=-1.0)


@pytest.mark.parametrize(
    ("chosen", "share"),
    [
        (HIGH, 1.0),
        (LOW, 2 / 3),
        ("constant", 1.0),
    ],
)
def test_one_of_several_functions_says_what_is_correct(chosen, share):
    """Where it has no reward, it is not known what is correct, whatever the others say."""
    reward = begun(LengthControlledReward([constant, HIGH, LOW], "leash", 10, correctness_func=chosen))
    assert metrics_of_call(reward, 3, 3, 3, 3)["leash/accuracy"] == pytest.approx(share)


def test_with_several_functions_a_method_that_must_know_asks_for_one_of_them():
    with pytest.raises(ValueError, match=r"correctness_func is None.*plus_one, constant"):
        LengthControlledReward([plus_one, constant], "alp", 10)


def test_metrics_and_columns_of_the_completions_table_are_logged():
    table = {}
    # the second completion is 0.2 over its target of 10
    metrics = metrics_of_call(make(), 3, 12, log_extra=table.__setitem__)
    assert metrics["leash/lambda"] == 0.1
    assert metrics["leash/mean_length"] == 7.5
    assert metrics["leash/version"] == 0
    assert table["length"] == [3, 12]
    assert table["penalty"] == pytest.approx([0.0, 0.1 * 0.2])


@pytest.mark.parametrize(
    ("ids", "length", "pad"),
    [
        ([7, 7, END], 3, PAD),
        ([7, 7, END, PAD, PAD], 3, PAD),
        ([7, 7, END, END, END], 3, END),
        ([7, 7, PAD, PAD], 4, PAD),  # cut off: the model itself wrote what also is padding
        ([7, END, 7, END, PAD], 4, PAD),  # two turns
    ],
)
def test_padding_behind_the_end_is_no_length(ids, length, pad):
    assert len(without_padding(ids, replace(SETTINGS, pad_id=pad))) == length


@pytest.mark.parametrize(
    ("length_of", "num_warnings"),
    [
        ("completion", 1),
        ("turns", 0),
    ],
)
def test_the_output_of_tools_counts_as_length_and_is_said(length_of, num_warnings, recwarn):
    messages = [
        {"role": "assistant", "content": "", "tool_calls": [{"function": {"name": "add"}}]},
        {"role": "tool", "content": "7"},
        {"role": "assistant", "content": "It is 7."},
    ]
    reward = begun(LengthControlledReward(plus_one, "leash", 10, length_of=length_of))
    call(reward, 55, 55, completions=[messages] * 2)
    lines = [str(warning.message) for warning in recwarn if "LeashGRPOTrainer" in str(warning.message)]
    assert len(lines) == num_warnings
    for line in lines:
        assert repr(length_of) in line
        assert "\n" not in line


def test_weights_that_are_not_one_for_each_function_are_refused():
    with pytest.raises(ValueError, match="weights"):
        LengthControlledReward([plus_one, plus_one], "leash", target_length=10, weights=[1.0])


def test_a_target_out_of_range_is_refused_before_training(config, tokenizer):
    reward = LengthControlledReward(plus_one, "leash", 256)  # the generation limit
    for _ in range(2):  # also if it is tried again
        with pytest.raises(ValueError, match=r"\A.*target_length is 256.*\Z"):
            reward.read_run_settings(config(max_completion_length=256), MODEL, tokenizer)


def test_a_call_with_parts_of_groups_is_refused_where_the_group_counts():
    """Three completions of one prompt and one of the next, as in an evaluation with an odd batch size."""
    with pytest.raises(ValueError, match="num_generations=2"):
        call(make("efficient", target=None), 3, 4, 5, 6, prompts=["a", "a", "a", "b"])


def test_a_call_with_parts_of_groups_is_scored_where_the_group_does_not_count():
    assert len(call(make(), 3, 4, 5, prompts=["a", "a", "b"])) == 3


@pytest.mark.parametrize("name", ["l1_exact", "thinkprune", "dler"])
def test_what_a_reward_cannot_do_of_a_method_is_said(name, config, tokenizer):
    reward = LengthControlledReward(plus_one, name, target_length=10)
    with pytest.warns(UserWarning, match=name):
        reward.read_run_settings(config(max_completion_length=32768, scale_rewards="none"), MODEL, tokenizer)


def test_another_momentum_than_that_of_the_run_is_said(config, tokenizer):
    reward = LengthControlledReward(plus_one, "leash_predictive", target_length=10)
    with pytest.warns(UserWarning, match=r"adam_beta1 is 0\.5.*0\.9"):
        reward.read_run_settings(config(adam_beta1=0.5, scale_rewards="none"), MODEL, tokenizer)


def test_a_deep_copy_is_a_reward_of_its_own():
    reward = make(lambda_init=0.5)
    copied = deepcopy(reward)
    assert not copied.is_training  # until its own trainer trains
    copied.updated_model = TRAINING
    assert call(copied, 15, 15) == [0.75, 0.75]
    assert reward.pop_scored_rollouts() == []
    assert len(copied.pop_scored_rollouts()) == 1
    copied.method.multiplier("").lam = 0.0
    assert call(copied, 15, 15) == [1.0, 1.0]
    assert call(reward, 15, 15) == [0.75, 0.75]


def test_a_copy_scores_with_the_state_of_its_original_which_takes_what_it_scored(monkeypatch):
    reward = make(lambda_init=0.5)
    copy = pickle.loads(pickle.dumps(reward))

    def call_in_its_process():
        with monkeypatch.context() as elsewhere:
            elsewhere.setattr("os.getpid", lambda: 0)
            return call(copy, 15, 15)

    assert call_in_its_process() == [0.75, 0.75]
    reward.method.observe(observed(reward))
    reward.method.step()
    reward.publish_state(1)
    # 15 of 10 tokens: lambda rises by 0.005 * 0.5
    assert call_in_its_process() == pytest.approx([1 - 0.5025 * 0.5] * 2)
    assert [rollouts.lengths.tolist() for rollouts in reward.pop_scored_rollouts()] == [[15, 15]]
    assert reward.pop_scored_rollouts() == []


def test_a_copy_in_another_process_that_is_pickled_leaves_the_state_of_the_original(monkeypatch):
    reward = make(lambda_init=0.5)
    copy = pickle.loads(pickle.dumps(reward))
    reward.publish_state(8)
    with monkeypatch.context() as elsewhere:
        elsewhere.setattr("os.getpid", lambda: 0)
        pickle.dumps(copy)
        call(copy, 15, 15)
    assert copy.version == 8


def test_the_folder_of_copies_is_removed_with_its_process(tmp_path):
    script = """
        import pickle, tempfile
        from pathlib import Path
        from leash_trl import LengthControlledReward
        tempfile.tempdir = {folder!r}
        reward = LengthControlledReward(print, "leash", target_length=10)
        pickle.dumps(reward)
        assert list(Path({folder!r}).iterdir()) != []
    """
    subprocess.run([sys.executable, "-c", dedent(script.format(folder=str(tmp_path)))], check=True)
    assert list(tmp_path.iterdir()) == []


def test_functions_that_become_one_reward_are_refused_where_trl_would_normalize_each(config, tokenizer):
    args = config(multi_objective_aggregation="normalize_then_sum")
    LengthControlledReward(plus_one, Leash(), 10).read_run_settings(args, MODEL, tokenizer)
    two = LengthControlledReward([plus_one, plus_one], Leash(), 10, correctness_func=plus_one)
    with pytest.raises(ValueError, match=r"\A.*multi_objective_aggregation.*'normalize_then_sum'.*\Z"):
        two.read_run_settings(args, MODEL, tokenizer)


@pytest.mark.parametrize("is_text", [True, False])
@pytest.mark.parametrize(
    ("opening", "lengths"),
    [
        ("", [6, 0]),  # the second completion does not think
        ("<think>\n", [6, 3]),  # the second completion never ends the thinking
    ],
)
def test_thinking_alone_counts_whether_the_completion_or_the_prompt_opens_it(
    opening, lengths, is_text, config, tokenizer
):
    tokenizer.chat_template = "{{ messages[0].content }}<|assistant|>" + opening
    reward = LengthControlledReward(plus_one, Leash(lambda_init=0.5), target_length=4, length_of="thinking")
    reward.read_run_settings(config(), MODEL, tokenizer)
    reward.updated_model = TRAINING
    start, end, seven = [tokenizer.encode(text)[0] for text in ("<think>", "</think>", "7")]
    completion_ids = [
        [start, seven, seven, seven, seven, end, seven],
        [seven, seven, END],
    ]
    prompt = "?<|assistant|>" + opening if is_text else [{"role": "user", "content": "?"}]
    all_think = contextlib.nullcontext() if all(lengths) else pytest.warns(UserWarning, match="length_of")
    with all_think:
        rewards = reward(prompts=[prompt] * 2, completions=["", ""], completion_ids=completion_ids)
    # 6 tokens are 0.5 over the target of 4
    assert rewards == [1 - 0.5 * 0.5, 1.0]
    rollouts = observed(reward)
    assert rollouts.lengths.tolist() == lengths
    assert rollouts.completion_lengths.tolist() == [7, 3]


GUESS = r"\boxed{4} Wait, "
ANSWER = r"\boxed{4}[/THINK]\boxed{4}"


def test_messages_are_graded_by_what_the_template_writes_behind_them(config, tokenizer):
    tokenizer.chat_template = "{{ messages[0].content }}{{ '' if 'at once' in messages[0].content else '[THINK]' }}"
    reward = LengthControlledReward(math_reward, "none", thinking_end="[/THINK]")
    reward.read_run_settings(config(), MODEL, tokenizer)
    questions = ["1 +3 = ?", "1 +3 = ?", "1 +3 at once = ?", "1 +3 at once = ?"]
    prompts = [[{"role": "user", "content": question}] for question in questions]
    completions = [GUESS, ANSWER, GUESS, ANSWER]
    rewards = call(reward, 9, 9, 9, 9, prompts=prompts, completions=completions, solution=["4"] * 4)
    assert rewards == [-1.0, 1.0, 1.0, 1.0]
