"""One rule for prompts: the same rows give training, filtering and evaluation the same tokens, whatever the path."""

import json
import shutil

import pytest
from datasets import Dataset, IterableDataset
from published_rows import DAPO_PROCESSED, dapo_row, user
from trained_arguments import parse

from leash_trl import gym
from leash_trl.cli.main import main
from leash_trl.cli.sampling import SamplingArguments, load_checked
from leash_trl.cli.train import build_trainer, load_training_data
from leash_trl.data import BOXED_SUFFIX, as_conversation
from leash_trl.data.prompts import check_not_blank
from leash_trl.engines.chat_template import prompt_ids


QUESTIONS = [f"{number} + 1 = ?" for number in range(8)]
ON_GYM = ["--model_name_or_path", "gym", "--use_cpu", "true", "--bf16", "false", "--report_to", "none"]
ON_GYM += ["--target_length", "9", "--max_completion_length", "64", "--gradient_checkpointing", "false"]
SYSTEM = {"role": "system", "content": "Be brief."}


ROWS = {
    "strings": lambda text, gold: {"prompt": text, "solution": gold},
    "strings with blanks": lambda text, gold: {"prompt": f" {text}\n", "solution": gold},
    "strings with the suffix": lambda text, gold: {"prompt": text + BOXED_SUFFIX, "solution": gold},
    "strings with the suffix on its own line": lambda text, gold: {
        "prompt": f"{text}\n{BOXED_SUFFIX.strip()}\n",
        "solution": gold,
    },
    "messages": lambda text, gold: {"prompt": user(text), "solution": gold},
    "messages with a system": lambda text, gold: {"prompt": [SYSTEM, *user(text)], "solution": gold},
    "problem and answer": lambda text, gold: {"problem": text, "answer": gold},
    "question and answer": lambda text, gold: {"question": text, "answer": f"So it is #### {gold}"},
    "verl": lambda text, gold: dapo_row(text, gold, index=text),
    "dapo_processed": lambda text, gold: {**DAPO_PROCESSED, "prompt": text, "solution": gold},
    "dapo_processed messages": lambda text, gold: {**DAPO_PROCESSED, "prompt": user(text), "solution": gold},
    "slime": lambda text, gold: {"prompt": user(text), "label": gold},
}


def training_arguments(*words: str):
    return parse([*ON_GYM, *words])


def ids_of(prompts, tokenizer) -> list[list[int]]:
    return prompt_ids(tokenizer, prompts)


@pytest.mark.parametrize(("rows", "suffix"), [*((rows, None) for rows in ROWS), ("strings", " Be brief.")])
def test_train_filter_and_eval_give_the_model_the_same_tokens(rows, suffix, tmp_path, tokenizer):
    """Of a file, a folder and a mixture of TRL's; of the file, what training gets is what its trainer makes of it."""
    file, folder, mixture = tmp_path / "rows.jsonl", tmp_path / "folder", tmp_path / "mixture.yaml"
    folder.mkdir()
    for path in (file, folder / "train.jsonl"):
        path.write_text("".join(json.dumps(ROWS[rows](t, str(i + 1))) + "\n" for i, t in enumerate(QUESTIONS)))
    mixture.write_text(json.dumps({"datasets": [{"path": "json", "data_files": str(file)}]}))
    asked = {} if suffix is None else {"prompt_suffix": suffix}
    sampling = SamplingArguments(output_dir="", model_name_or_path="gym", **asked)
    evaluated = load_checked(str(file), sampling, "benchmark")["prompt"][:]
    assert len(evaluated) == len(QUESTIONS)
    for path in (file, folder):
        assert load_checked(str(path), sampling, "train")["prompt"][:] == evaluated
    given = [] if suffix is None else ["--prompt_suffix", suffix]
    for where in (["--dataset_name", str(file)], ["--dataset_name", str(folder)], ["--config", str(mixture)]):
        script_args, training_args, model_args, dataset_args = training_arguments(*where, *given)
        assert load_training_data(script_args, dataset_args)[0]["prompt"][:] == evaluated
        if str(file) in where:
            training_args.output_dir = str(tmp_path / "run")
            trainer = build_trainer(script_args, training_args, model_args, dataset_args)
            trained = trainer._tokenize_prompts(trainer.train_dataset["prompt"][:])[0]
            assert trained == ids_of(evaluated, tokenizer)


@pytest.mark.parametrize("rows", ["problem and answer", "strings with the suffix"])
def test_a_base_model_without_chat_template_gets_strings_alike(rows, tmp_path):
    base, path = tmp_path / "base", tmp_path / "rows.jsonl"
    shutil.copytree(gym.CHECKPOINT, base)
    (base / "chat_template.jinja").unlink()
    path.write_text("".join(json.dumps(ROWS[rows](t, str(i + 1))) + "\n" for i, t in enumerate(QUESTIONS)))
    texts = [text + BOXED_SUFFIX for text in QUESTIONS]
    where = ["--dataset_name", str(path), "--model_name_or_path", str(base), "--output_dir", str(tmp_path / "run")]
    trainer = build_trainer(*training_arguments(*where))
    assert trainer.train_dataset["prompt"][:] == texts
    sampling = SamplingArguments(output_dir="", model_name_or_path=str(base))
    evaluated = load_checked(str(path), sampling, "benchmark")["prompt"][:]
    assert evaluated == texts
    assert trainer._tokenize_prompts(texts)[0] == ids_of(evaluated, trainer.processing_class)
    short = ["--model_name_or_path", str(base), "--limit", "2", "--num_samples", "2", "--max_new_tokens", "4"]
    out = ["--output_dir", str(tmp_path / "eval")]
    assert main(["eval", "--benchmarks", str(path), *short, *out]) == 0


@pytest.mark.parametrize("suffix", ["", " Be brief."])
def test_a_string_gets_the_suffix_once_and_messages_never(suffix, tmp_path):
    text = f"1 + 1 = ?{suffix}"
    assert as_conversation({"prompt": "1 + 1 = ?"}, suffix) == {"prompt": user(text)}
    assert as_conversation({"prompt": text}, suffix) == {"prompt": user(text)}
    assert as_conversation({"prompt": user("1 + 1 = ?")}, suffix) == {"prompt": user("1 + 1 = ?")}


@pytest.mark.parametrize("prompt", [None, "", " \n", [], [{"role": "user", "content": None}], user(" ")])
def test_nothing_to_ask_is_an_error(prompt):
    with pytest.raises(ValueError, match="prompt is "):
        as_conversation({"prompt": prompt})


@pytest.mark.parametrize(
    "row",
    [
        {"prompt": user(""), "image": "a picture"},
        {"prompt": user(""), "images": ["a picture"]},
        {"prompt": [*user("Go."), {"role": "assistant", "content": None, "tool_calls": [{"type": "function"}]}]},
    ],
)
def test_pictures_and_tool_calls_ask_too(row):
    assert as_conversation(row) == {"prompt": row["prompt"]}
    check_not_blank(Dataset.from_list([row]))
    emptied = {**row, "images": None, "image": None, "prompt": user("")}
    with pytest.raises(ValueError, match="row 0"):
        check_not_blank(Dataset.from_list([emptied]))


@pytest.mark.parametrize("gold", [{"question": "?", "answer": "7"}, {"problem": "?", "answer": "7"}, {"label": True}])
def test_a_prompt_wins_for_training_and_all_rows_and_columns_stay(gold, tmp_path):
    """Though the other columns would make problems of another kind, whose prompts, columns and repeats would go."""
    path = tmp_path / "rows.jsonl"
    rows = [{"prompt": [SYSTEM, *user("1 + 1 = ?")], "style": "kind", **gold}] * 3
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    script_args, _, _, dataset_args = training_arguments("--dataset_name", str(path))
    loaded = load_training_data(script_args, dataset_args)[0]
    assert [{name: row[name] for name in rows[0]} for row in loaded] == rows


@pytest.mark.parametrize("streams", [False, True])
@pytest.mark.parametrize("kind", ["verl", "slime"])
def test_a_gold_of_another_name_becomes_the_solution_beside_what_is_there(kind, streams, tmp_path):
    (tmp_path / "folder").mkdir()
    rows = [{**ROWS[kind]("1 + 1 = ?", "2"), "style": "kind"}] * 3
    (tmp_path / "folder" / "train.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    where = ["--dataset_name", str(tmp_path / "folder"), "--dataset_streaming", str(streams).lower()]
    script_args, _, _, dataset_args = training_arguments(*where)
    loaded = list(load_training_data(script_args, dataset_args)[0])
    expected = {**rows[0], "prompt": user(f"1 + 1 = ?{BOXED_SUFFIX}"), "solution": "2"}
    assert loaded == [expected] * 3


def test_a_label_of_a_reward_s_own_is_there_to_reward_with(tmp_path):
    (tmp_path / "rows.jsonl").write_text(json.dumps({"prompt": "Say hi.", "label": None}) + "\n")
    script_args, _, _, dataset_args = training_arguments("--dataset_name", str(tmp_path / "rows.jsonl"))
    (row,) = load_training_data(script_args, dataset_args)[0]
    assert row == {"prompt": user(f"Say hi.{BOXED_SUFFIX}"), "label": None, "solution": None}


def test_a_blank_prompt_is_named_by_its_row_where_a_run_reads_it(tmp_path):
    good, blank = {"prompt": "1 + 1 = ?", "solution": "2"}, {"prompt": " ", "solution": "2"}
    for split, rows in (("train", [good]), ("test", [good, blank])):
        (tmp_path / f"{split}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    script_args, _, _, dataset_args = training_arguments("--dataset_name", str(tmp_path))
    assert load_training_data(script_args, dataset_args)[1] is None
    with pytest.raises(ValueError, match="row 1 "):
        load_training_data(script_args, dataset_args, evaluates=True)


def test_a_csv_file_trains_on_the_golds_and_targets_it_holds(tmp_path):
    (tmp_path / "rows.csv").write_text("prompt,solution,target_length\nWhat?,033,7\nWhy?,None,\n")
    script_args, _, _, dataset_args = training_arguments("--dataset_name", str(tmp_path / "rows.csv"))
    rows = load_training_data(script_args, dataset_args)[0]
    assert (rows["solution"][:], rows["target_length"][:]) == (["033", "None"], [7, None])


def test_a_stream_gets_the_same_prompts(tmp_path):
    (tmp_path / "folder").mkdir()
    lines = "".join(json.dumps(ROWS["strings"](text, "1")) + "\n" for text in QUESTIONS)
    (tmp_path / "folder" / "train.jsonl").write_text(lines)
    where = ["--dataset_name", str(tmp_path / "folder"), "--dataset_streaming", "true"]
    script_args, _, _, dataset_args = training_arguments(*where)
    loaded = load_training_data(script_args, dataset_args)[0]
    assert isinstance(loaded, IterableDataset)
    assert loaded.column_names == ["prompt", "solution"]
    assert [row["prompt"] for row in loaded] == [user(text + BOXED_SUFFIX) for text in QUESTIONS]


def test_the_gym_and_what_filter_wrote_stay_as_they_are(tmp_path, capsys):
    from leash_trl.gym.dataset import load_gym

    gym = load_gym("gym")["train"]
    script_args, _, _, dataset_args = training_arguments("--dataset_name", "gym", "--prompt_suffix", " Be brief.")
    assert load_training_data(script_args, dataset_args)[0]["prompt"][:9] == gym["prompt"][:9]
    small = [
        "--model_name_or_path",
        "gym",
        "--limit",
        "6",
        "--num_samples",
        "1",
        "--temperature",
        "1",
        "--max_new_tokens",
        "4",
    ]
    wide = ["--min_passes", "0", "--max_passes", "1"]
    assert main(["filter", "--dataset_name", "gym", *small, *wide, "--output_dir", str(tmp_path)]) == 0
    script_args, _, _, dataset_args = training_arguments("--dataset_name", str(tmp_path / "dataset" / "train.jsonl"))
    assert load_training_data(script_args, dataset_args)[0]["prompt"][:] == gym["prompt"][:6]
