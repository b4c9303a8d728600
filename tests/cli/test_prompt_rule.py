"""One rule for prompts: the same rows give training, filtering and evaluation the same tokens, whatever the path."""

import json
import shutil
import sys

import pytest
from datasets import Dataset, IterableDataset
from published_rows import dapo_row, user, write_rows
from transformers import AutoTokenizer

from leash_trl import gym
from leash_trl.cli.commands.train import build_trainer, load_training_data
from leash_trl.cli.errors import UserError
from leash_trl.cli.main import main
from leash_trl.cli.sampling_arguments import SamplingArguments, load_problems_to_sample
from leash_trl.cli.training_arguments import arguments_of, fields_of_command_line
from leash_trl.data import BOXED_SUFFIX, as_conversation
from leash_trl.data.prompts import check_prompts_not_blank
from leash_trl.gym.dataset import load_gym
from leash_trl.model_facts import prompt_ids
from leash_trl.model_paths import model_path


QUESTIONS = [f"{number} + 1 = ?" for number in range(8)]
SMALL = "--use_cpu true --bf16 false --report_to none --target_length 9 --max_completion_length 64"
ON_GYM = f"--model_name_or_path gym --gradient_checkpointing false {SMALL}".split()
SYSTEM = {"role": "system", "content": "Be brief."}


ROWS = {
    "strings": lambda text, gold: {"prompt": text, "solution": gold},
    "strings with blanks": lambda text, gold: {"prompt": f" {text}\n", "solution": gold},
    "strings with the suffix": lambda text, gold: {"prompt": text + BOXED_SUFFIX, "solution": gold},
    "suffix on its own line": lambda text, gold: {"prompt": f"{text}\n{BOXED_SUFFIX.strip()}\n", "solution": gold},
    "messages with a system": lambda text, gold: {"prompt": [SYSTEM, *user(text)], "solution": gold},
    "problem and answer": lambda text, gold: {"problem": text, "answer": gold},
    "question and answer": lambda text, gold: {"question": text, "answer": f"So it is #### {gold}"},
    "verl": lambda text, gold: dapo_row(text, gold, index=text),
    "slime": lambda text, gold: {"prompt": user(text), "label": gold},
}


def rows_of(kind):
    return [ROWS[kind](text, str(i + 1)) for i, text in enumerate(QUESTIONS)]


def trained_on(*words, evaluates=False):
    """What `leash train` trains on, and what it evaluates on meanwhile."""
    script_args, _, _, dataset_args = arguments_of(fields_of_command_line([*ON_GYM, *words]))
    return load_training_data(script_args, dataset_args, evaluates=evaluates)


def trained_prompts(*words):
    return trained_on(*words)[0]["prompt"][:]


def sampled_prompts(file, kind="benchmark", model="gym", **options):
    """What `leash eval`, or `leash filter` for the kind `train`, asks."""
    sampling = SamplingArguments(output_dir="", model_name_or_path=model, **options)
    tokenizer = AutoTokenizer.from_pretrained(model_path(model))
    return load_problems_to_sample(file, sampling, kind, tokenizer)["prompt"][:]


@pytest.mark.parametrize(("rows", "suffix"), [*((rows, None) for rows in ROWS), ("strings", " Be brief.")])
def test_train_filter_and_eval_give_the_model_the_same_prompts(rows, suffix, tmp_path):
    """Of a file, a folder and a mixture of TRL's."""
    file = write_rows(tmp_path / "rows.jsonl", rows_of(rows))
    folder = str(tmp_path / "folder")
    write_rows(tmp_path / "folder" / "train.jsonl", rows_of(rows))
    mixture = tmp_path / "mixture.yaml"
    mixture.write_text(json.dumps({"datasets": [{"path": "json", "data_files": file}]}))
    evaluated = sampled_prompts(file, prompt_suffix=suffix)
    assert len(evaluated) == len(QUESTIONS)
    words = [] if suffix is None else ["--prompt_suffix", suffix]
    assert trained_prompts("--config", str(mixture), *words) == evaluated
    for path in (file, folder):
        assert sampled_prompts(path, "train", prompt_suffix=suffix) == evaluated
        assert trained_prompts("--dataset_name", path, *words) == evaluated


OWN_REWARD = """
def reverses(completions, **kwargs):
    return [1.0 for _ in completions]

def math_reward(completions, **kwargs):
    return [1.0 for _ in completions]
"""


@pytest.mark.parametrize(
    ("reward_funcs", "suffix"),
    [
        ([], BOXED_SUFFIX),
        (["math_reward"], BOXED_SUFFIX),
        (["leash_trl.rewards.math_reward"], BOXED_SUFFIX),
        (["accuracy_reward"], BOXED_SUFFIX),
        (["letters.py:reverses", "math_reward"], BOXED_SUFFIX),
        (["letters.py:reverses"], ""),
        (["letters.py:math_reward"], ""),  # a namesake of the user's own
        (["reasoning_gym_reward"], ""),
    ],
    ids=str,
)
def test_a_box_is_requested_where_answers_are_graded_as_mathematics_and_else_prompts_stay(
    reward_funcs, suffix, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "letters", raising=False)
    (tmp_path / "letters.py").write_text(OWN_REWARD)
    file = write_rows(tmp_path / "rows.jsonl", rows_of("strings with blanks"))
    prompts = [user(f"{text}{suffix}") for text in QUESTIONS]
    words = ["--reward_funcs", *reward_funcs] if reward_funcs else []
    assert trained_prompts("--dataset_name", file, *words) == prompts
    for kind in ("benchmark", "train"):
        assert sampled_prompts(file, kind, reward_funcs=reward_funcs or None) == prompts


def test_prompts_for_a_reward_model_stay_as_they_are(tmp_path):
    file = write_rows(tmp_path / "rows.jsonl", rows_of("strings"))
    prompts = trained_prompts("--dataset_name", file, "--reward_model_name_or_path", "a/b")
    assert prompts == [user(text) for text in QUESTIONS]


@pytest.fixture
def make_trainer(tmp_path):
    """The trainer of `leash train`, and the ids of the prompts that it trains on."""

    def make(*words):
        fields = fields_of_command_line([*ON_GYM, "--output_dir", str(tmp_path / "run"), *words])
        trainer = build_trainer(*arguments_of(fields))
        return trainer, trainer._tokenize_prompts(trainer.train_dataset["prompt"][:])[0]

    return make


@pytest.fixture
def base_model(tmp_path):
    """A model without chat template."""
    folder = shutil.copytree(gym.CHECKPOINT, tmp_path / "base")
    (folder / "chat_template.jinja").unlink()
    return str(folder)


@pytest.mark.parametrize("rows", ["strings", "messages with a system"])
@pytest.mark.parametrize("is_base", [False, True], ids=["template replaced", "base model"])
def test_a_system_prompt_and_a_chat_template_of_a_recipe_are_the_same_in_training_and_eval(
    rows, is_base, base_model, tmp_path, make_trainer
):
    file = write_rows(tmp_path / "rows.jsonl", rows_of(rows))
    model = base_model if is_base else str(gym.CHECKPOINT)
    template = "{% for message in messages %}{{ message.content }} = {% endfor %}" + "{# long. #}" * 500
    prompts = {"system_prompt": "1 + 2\n", "chat_template": template}
    (tmp_path / "recipe.yaml").write_text(json.dumps(prompts))
    words = ["--config", str(tmp_path / "recipe.yaml"), "--dataset_name", file, "--model_name_or_path", model]
    trainer, trained_ids = make_trainer(*words)
    plan = SamplingArguments(output_dir="", model_name_or_path=model, **prompts).sampling_plan()
    evaluated = sampled_prompts(file, model=model, **prompts)
    tokenizer = AutoTokenizer.from_pretrained(model)
    assert trained_ids == prompt_ids(tokenizer, evaluated, **plan.chat_template_kwargs)
    system = SYSTEM["content"] if rows == "messages with a system" else "1 + 2\n"
    question = evaluated[0][1]["content"]
    assert trained_ids[0] == tokenizer(f"{system} = {question} = ")["input_ids"]
    trainer.save_model()
    assert AutoTokenizer.from_pretrained(tmp_path / "run").chat_template == template


def test_a_system_prompt_without_a_chat_template_is_an_error():
    with pytest.raises(ValueError, match="system_prompt"):
        as_conversation({"prompt": "1 + 1 = ?"}, has_chat_template=False, system_prompt="Be brief.")


@pytest.mark.parametrize("rows", ["problem and answer", "strings with the suffix"])
def test_a_base_model_without_chat_template_gets_strings_alike(rows, base_model, tmp_path, make_trainer):
    file = write_rows(tmp_path / "rows.jsonl", rows_of(rows))
    trainer, trained_ids = make_trainer("--dataset_name", file, "--model_name_or_path", base_model)
    texts = [text + BOXED_SUFFIX for text in QUESTIONS]
    assert sampled_prompts(file, model=base_model) == trainer.train_dataset["prompt"][:] == texts
    assert trained_ids == prompt_ids(trainer.processing_class, texts)
    words = f"eval --benchmarks {file} --model_name_or_path {base_model} --output_dir {tmp_path / 'eval'}"
    assert main(f"{words} --limit 2 --num_samples 2 --max_new_tokens 4".split()) == 0


@pytest.mark.parametrize("prompt", [None, "", " \n", [], [{"role": "user", "content": None}], user(" ")])
def test_nothing_to_ask_is_an_error(prompt):
    with pytest.raises(ValueError, match="prompt is "):
        as_conversation({"prompt": prompt})
    with pytest.raises(ValueError, match="row 0 "):
        check_prompts_not_blank(Dataset.from_list([{"prompt": prompt}]))


CALLS = [*user("Go."), {"role": "assistant", "content": None, "tool_calls": [{"type": "function"}]}]


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": user(""), "image": "?"},
        {"prompt": user(""), "images": ["?"]},
        {"prompt": CALLS},
    ],
)
def test_pictures_and_tool_calls_ask_too(row):
    assert as_conversation(row) == {"prompt": row["prompt"]}
    check_prompts_not_blank(Dataset.from_list([row]))


@pytest.mark.parametrize("gold", [{"question": "?", "answer": "7"}, {"label": True}])
def test_a_prompt_wins_for_training_and_all_rows_and_columns_stay(gold, tmp_path):
    """Though the other columns would make problems of another kind, whose prompts, columns and repeats would go."""
    rows = [{"prompt": [SYSTEM, *user("1 + 1 = ?")], "style": "kind", **gold}] * 3
    loaded = trained_on("--dataset_name", write_rows(tmp_path / "rows.jsonl", rows))[0]
    assert [{name: row[name] for name in rows[0]} for row in loaded] == rows
    assert [row.get("solution") for row in loaded] == [None] * 3  # a label of a reward's own is no gold


@pytest.mark.parametrize("streams", ["false", "true"])
@pytest.mark.parametrize("kind", ["verl", "slime", "question and answer"])
def test_a_gold_of_another_name_becomes_the_solution_beside_what_is_there(kind, streams, tmp_path):
    rows = [{**ROWS[kind]("1 + 1 = ?", "2"), "style": {"level": 1}}] * 3
    write_rows(tmp_path / "folder" / "train.jsonl", rows)
    loaded = trained_on("--dataset_name", str(tmp_path / "folder"), "--dataset_streaming", streams)[0]
    assert isinstance(loaded, IterableDataset) == (streams == "true")
    assert [*loaded] == [{**rows[0], "prompt": user(f"1 + 1 = ?{BOXED_SUFFIX}"), "solution": "2"}] * 3


def test_a_blank_prompt_is_named_by_its_row_where_a_run_reads_it(tmp_path):
    row = {"prompt": "1 + 1 = ?", "solution": "2"}
    write_rows(tmp_path / "folder" / "train.jsonl", [row])
    write_rows(tmp_path / "folder" / "test.jsonl", [row, {**row, "prompt": " "}])
    words = ["--dataset_name", str(tmp_path / "folder")]
    assert trained_on(*words)[1] is None
    with pytest.raises(UserError, match="row 1 "):
        trained_on(*words, evaluates=True)


def test_the_gym_and_what_filter_wrote_stay_as_they_are(tmp_path):
    prompts = load_gym("gym")["train"]["prompt"][:9]
    assert trained_prompts("--dataset_name", "gym", "--prompt_suffix", " Be brief.")[:9] == prompts
    words = "filter --dataset_name gym --model_name_or_path gym --limit 6 --num_samples 1 --temperature 1"
    words += f" --max_new_tokens 4 --min_passes 0 --max_passes 1 --output_dir {tmp_path}"
    assert main(words.split()) == 0
    assert trained_prompts("--dataset_name", str(tmp_path / "dataset" / "train.jsonl")) == prompts[:6]
