"""Tasks of reasoning-gym as a source of problems, with their own reward."""

import json

import pytest
from reasoning_gym.factory import create_dataset

from leash_trl.cli.main import main
from leash_trl.completions.thinking import ThinkingMarkers
from leash_trl.data.problems import load_problems, load_training_rows
from leash_trl.rewards import reasoning_gym_reward


SUMS = "reasoning_gym:{task: chain_sum, max_terms: 2, max_digits: 1, size: 300}"
PARTS = [
    {"name": "chain_sum", "weight": 1, "config": {}},
    {"name": "basic_arithmetic", "weight": 1, "config": {}},
]


def questions(rows):
    return [prompt[0]["content"] for prompt in rows["prompt"]]


def test_problems_are_those_of_the_task():
    reference = "reasoning_gym:{task: chain_sum, seed: 7, size: 30}"
    train, test = load_training_rows(reference, test_split="test")
    entries = [*create_dataset("chain_sum", seed=7, size=30)]
    assert train["solution"][:] == [entry["answer"] for entry in entries]
    assert questions(train) == [entry["question"] for entry in entries]
    assert load_problems(reference)["prompt"][:] == test["prompt"][:]


def test_splits_have_no_question_in_common():
    train, test = load_training_rows(SUMS, test_split="test")
    assert len(test) > 0
    assert not {*questions(train)} & {*questions(test)}


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
    text = completion.replace("ANSWER", row["solution"])
    reference = [row["reasoning_gym"]]
    assert reasoning_gym_reward([text], reference) == [reward]
    assert reasoning_gym_reward([[{"role": "assistant", "content": text}]], reference) == [reward]
    # where the prompt opens the thinking, a completion that does not end it has no answer
    reward_if_opened = reward if "</think>" in completion else -1.0
    assert reasoning_gym_reward([text], reference, thinking_markers=ThinkingMarkers(begins_in_thinking=True)) == [
        reward_if_opened
    ]


def test_a_partly_right_answer_earns_its_share():
    (row,) = load_training_rows("reasoning_gym:{task: prime_factorization, size: 1}")[0]
    dataset = create_dataset("prime_factorization", seed=0, size=1)
    partly_right = f"{row['solution']}7"
    score = dataset.score_answer(partly_right, dataset[0])
    assert 0 < score < 1
    assert reasoning_gym_reward([f"<answer>{partly_right}</answer>"], [row["reasoning_gym"]]) == [score - 1]


@pytest.mark.parametrize("task", ["prime_factorization", "simple_integration", "mini_sudoku", "sentence_reordering"])
@pytest.mark.parametrize("form", ["\\boxed{%s}", "**Answer:** %s", "Answer:\n%s", "Answer: <answer>%s</answer>"])
def test_the_task_gets_the_answer_as_it_was_written(task, form):
    rows, _ = load_training_rows(f"reasoning_gym:{{task: {task}, size: 3}}")
    assert reasoning_gym_reward([form % gold for gold in rows["solution"]], rows["reasoning_gym"][:]) == [1.0] * 3


def test_tasks_can_be_mixed_and_each_scores_its_own():
    settings = json.dumps({"task": "composite", "size": 20, "datasets": PARTS})
    rows, _ = load_training_rows(f"reasoning_gym:{settings}")
    completions = [f"\\boxed{{{gold}}}" for gold in rows["solution"]]
    assert reasoning_gym_reward(completions, rows["reasoning_gym"][:]) == [1.0] * len(rows)


def test_a_task_whose_problems_differ_between_processes_is_refused():
    mixed = json.dumps({"task": "composite", "datasets": [{"name": "word_ladder", "weight": 1, "config": {}}]})
    for task in ("word_ladder", mixed):
        with pytest.raises(ValueError, match="word_ladder"):
            load_training_rows(f"reasoning_gym:{task}")


SMALL = ["--model_name_or_path", "gym", "--max_new_tokens", "16", "--num_samples", "2", "--limit", "4"]


@pytest.fixture(scope="module")
def kept(tmp_path_factory):
    """The training rows that `leash filter` writes: all, since they may be solved 0 to 2 times of 2."""
    folder = tmp_path_factory.mktemp("kept")
    bounds = ["--min_passes", "0", "--max_passes", "2"]
    assert main(["filter", *SMALL, *bounds, "--dataset_name", SUMS, "--output_dir", str(folder)]) == 0
    return folder / "dataset" / "train.jsonl"


def evaluate(output_dir, *words):
    return main(["eval", *SMALL, "--output_dir", str(output_dir), "--benchmarks", *words])


def test_an_evaluation_is_scored_by_the_task_unless_another_reward_is_named(kept, tmp_path):
    assert evaluate(tmp_path / "task", SUMS) == 0
    assert evaluate(tmp_path / "kept", str(kept)) == 0
    assert evaluate(tmp_path / "graded", SUMS, "--reward_funcs", "math_reward") == 0
    runs = [json.loads((tmp_path / name / "run.json").read_text()) for name in ("task", "kept", "graded")]
    # the grader is no reward function of the user's
    assert [run.get("reward_funcs") for run in runs] == [["reasoning_gym_reward"], ["reasoning_gym_reward"], None]


def test_training_on_filtered_rows_logs_the_reward_of_the_task(kept, tmp_path):
    settings = (
        "--target_length 8 --max_completion_length 16 --max_steps 1 --use_cpu true --bf16 false --report_to none"
    )
    settings += " --per_device_train_batch_size 2 --num_generations 2 --gradient_accumulation_steps 1"
    words = ["--model_name_or_path", "gym", "--dataset_name", str(kept), "--output_dir", str(tmp_path)]
    assert main(["train", *words, *settings.split()]) == 0
    state = json.loads((tmp_path / "trainer_state.json").read_text())
    assert -1 <= state["log_history"][0]["rewards/reasoning_gym_reward/mean"] <= 1


def test_an_evaluation_is_not_resumed_where_other_problems_are_scored(kept, tmp_path):
    rows = tmp_path / "train.jsonl"
    rows.write_text(kept.read_text())
    assert evaluate(tmp_path / "run", str(rows)) == 0
    rows.write_text(rows.read_text().replace(r"\"seed\": 0", r"\"seed\": 1"))
    assert evaluate(tmp_path / "run", str(rows)) == 2
