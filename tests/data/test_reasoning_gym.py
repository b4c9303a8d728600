"""Tasks of reasoning-gym as a source of problems, with their own reward."""

import json

import pytest
from reasoning_gym.factory import create_dataset

from leash_trl.cli.main import main
from leash_trl.completions.thinking import ThinkingMarkers
from leash_trl.data.problems import load_problems, load_training_rows
from leash_trl.rewards import reasoning_gym_reward


SUMS = "reasoning_gym:{task: chain_sum, max_terms: 2, max_digits: 1, size: 300}"
PARTS = [{"name": "chain_sum", "weight": 1, "config": {}}, {"name": "basic_arithmetic", "weight": 1, "config": {}}]


def test_problems_are_those_of_the_task_and_splits_share_none():
    train, test = load_training_rows("reasoning_gym:{task: chain_sum, seed: 7, size: 30}", test_split="test")
    entries = [create_dataset("chain_sum", seed=7, size=30)[index] for index in range(30)]
    assert train["solution"][:] == [entry["answer"] for entry in entries]
    assert all(
        entry["question"] in prompt[0]["content"] for entry, prompt in zip(entries, train["prompt"], strict=True)
    )
    assert load_problems("reasoning_gym:{task: chain_sum, seed: 7, size: 30}")["prompt"][:] == test["prompt"][:]
    trained, tested = (
        {prompt[0]["content"] for prompt in rows["prompt"]} for rows in load_training_rows(SUMS, test_split="test")
    )
    assert tested
    assert not trained & tested


@pytest.mark.parametrize(
    ("completion", "reward"),
    [
        ("<think>34?</think>\\boxed{ANSWER}", 1.0),
        ("It is <answer> ANSWER </answer>", 1.0),
        ("Answer: ANSWER", 1.0),
        ("\\boxed{wrong}", -1.0),
        ("<answer>ANSWER</answer></think>\\boxed{wrong}", -1.0),
        ("ANSWER", -1.0),
    ],
)
def test_the_task_scores_the_answer_where_the_grader_finds_it(completion, reward):
    (row,) = load_training_rows("reasoning_gym:{task: chain_sum, size: 1}")[0]
    said = completion.replace("ANSWER", row["solution"])
    assert reasoning_gym_reward([said], [row["reasoning_gym"]]) == [reward]
    assert reasoning_gym_reward([[{"role": "assistant", "content": said}]], [row["reasoning_gym"]]) == [reward]
    opened_thinking = ThinkingMarkers(is_opened=True)
    opened = reasoning_gym_reward([said], [row["reasoning_gym"]], thinking_markers=opened_thinking)
    assert opened == [reward if "</think>" in completion else -1.0]


def test_a_partly_right_answer_earns_its_share_and_one_that_the_task_cannot_read_is_wrong():
    (row,) = load_training_rows("reasoning_gym:{task: prime_factorization, size: 1}")[0]
    dataset = create_dataset("prime_factorization", seed=0, size=1)
    half = f"{row['solution']}7"
    score = dataset.score_answer(half, dataset[0])
    assert 0 < score < 1
    said = [f"<answer>{half}</answer>", "<answer>two</answer>", "none"]
    assert reasoning_gym_reward(said, [row["reasoning_gym"]] * 3) == [score - 1, -1.0, -1.0]


@pytest.mark.parametrize("task", ["prime_factorization", "simple_integration", "mini_sudoku", "sentence_reordering"])
@pytest.mark.parametrize("form", ["\\boxed{%s}", "**Answer:** %s", "Answer:\n%s", "Answer: <answer>%s</answer>"])
def test_the_task_gets_the_answer_as_it_was_written(task, form):
    rows, _ = load_training_rows(f"reasoning_gym:{{task: {task}, size: 3}}")
    assert reasoning_gym_reward([form % gold for gold in rows["solution"]], rows["reasoning_gym"][:]) == [1.0] * 3


def test_tasks_can_be_mixed_and_each_scores_its_own():
    reference = f"reasoning_gym:{json.dumps({'task': 'composite', 'size': 20, 'datasets': PARTS})}"
    rows, _ = load_training_rows(reference)
    said = [f"\\boxed{{{gold}}}" for gold in rows["solution"]]
    assert reasoning_gym_reward(said, rows["reasoning_gym"][:]) == [1.0] * len(rows)


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("", "task"),
        ("[1]", "task"),
        ("word_ladder", "word_ladder"),
        ("{task", "task"),
        ("{task: coin_flip, size: 3000}", "test"),
        ("no_such_task", "no_such_task"),
        ("{task: chain_sum, terms: 2}", "terms"),
        ("{task: chain_sum, size: 0}", "size"),
    ],
)
def test_a_task_that_cannot_be_made_is_one_line(text, named):
    with pytest.raises(ValueError, match=named) as error:
        load_training_rows(f"reasoning_gym:{text}")
    assert "\n" not in str(error.value)


def test_it_evaluates_filters_and_trains_on_what_the_filter_kept(tmp_path, capsys):
    small = ["--model_name_or_path", "gym", "--max_new_tokens", "16", "--num_samples", "2", "--limit", "4"]
    kept, unreadable = tmp_path / "kept" / "dataset" / "train.jsonl", tmp_path / "rows.jsonl"
    bounds = ["--min_passes", "0", "--max_passes", "2", "--output_dir", str(tmp_path / "kept")]
    assert not main(["filter", *small, *bounds, "--dataset_name", SUMS])
    assert all('"seed": 0' in json.loads(line)["reasoning_gym"] for line in kept.read_text().splitlines())
    own, by_hand = ["reasoning_gym_reward"], ["--reward_funcs", "math_reward"]
    for number, (names, expected) in enumerate([([SUMS], own), ([str(kept)], own), ([SUMS, *by_hand], None)]):
        folder = tmp_path / f"eval-{number}"
        assert not main(["eval", *small, "--benchmarks", *names, "--output_dir", str(folder)])
        assert json.loads((folder / "run.json").read_text()).get("reward_funcs") == expected
    unreadable.write_text('{"prompt": "A word?", "solution": "notfound", "reasoning_gym": "0 {}"}\n')
    for names, named in (([SUMS, "gym_test"], "reward_funcs"), ([str(unreadable), *by_hand], "notfound")):
        assert main(["eval", *small, "--benchmarks", *names, "--output_dir", str(tmp_path / "refused")]) == 2
        assert named in capsys.readouterr().err
    train = "train --model_name_or_path gym --target_length 8 --use_cpu true --max_completion_length 16 --max_steps 1 "
    train += "--bf16 false --per_device_train_batch_size 2 --num_generations 2 --gradient_accumulation_steps 1 "
    places = ["--report_to", "none", "--dataset_name", str(kept), "--output_dir", str(tmp_path / "run")]
    assert not main([*train.split(), *places])
    state = json.loads((tmp_path / "run" / "trainer_state.json").read_text())
    assert -1 <= state["log_history"][0]["rewards/reasoning_gym_reward/mean"] <= 1
    kept.write_text(kept.read_text().replace(r"\"seed\": 0", r"\"seed\": 1"))  # what the reward reads
    assert main(["eval", *small, "--benchmarks", str(kept), "--output_dir", str(tmp_path / "eval-1")]) == 2
