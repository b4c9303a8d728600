"""The model card: base model and method, training results, an example and how to continue training."""

import shlex

import pytest
import yaml
from huggingface_hub import ModelCard
from saved_run import RECIPE, trainer_state

from leash_trl.hub.card import write_model_card


TRL_S = "It has been trained using [TRL](https://github.com/huggingface/trl)."


@pytest.fixture
def card_of(tmp_path):
    def make(recipe=RECIPE, repo_id="me/short", step=40, folder=tmp_path, **state):
        write_model_card(folder, trainer_state(step, **state), recipe, repo_id)
        return ModelCard.load(folder / "README.md")

    return make


def fact(card, name):
    """The value that the table of training shows beside a name."""
    (line,) = [line for line in card.text.splitlines() if line.startswith(f"| {name}")]
    return line.split("|")[2].strip()


def block(card, language):
    return card.text.split(f"```{language}\n")[1].split("\n```\n")[0]


def test_it_names_model_data_method_paper_target_state_and_recipe(card_of):
    card = card_of()
    metadata = {
        "base_model": RECIPE["model_name_or_path"],
        "datasets": [RECIPE["dataset_name"]],
        "library_name": "transformers",
        "pipeline_tag": "text-generation",
        "model_name": "short",
    }
    assert metadata.items() <= vars(card.data).items()
    assert {"trl", "leash", "generated_from_trainer"} <= {*card.data.tags}
    assert fact(card, "target of the mean completion length") == "4,096 tokens"
    assert fact(card, "state at the end of training") == "lambda 0.25"
    assert fact(card, "policy updates") == "40"
    assert {"`lambda_lr` 0.05", "`lambda_init` 0.1"} <= {*fact(card, "hyper-parameters").split(", ")}
    assert "https://huggingface.co/papers/2512.21540" in card.text
    for entry in ("@inproceedings{arxiv2512.21540", "@misc{arxiv2503.14476", "@software{vonwerra2020trl"):
        assert card.text.count(entry) == 1
    assert yaml.safe_load(block(card, "yaml")) == RECIPE


def test_fields_of_trl_are_not_hyper_parameters_of_a_method_but_the_momentum_is_the_optimizers(card_of):
    drpo = RECIPE | {"length_control": "drpo", "temperature": 0.8, "beta": 0.01}
    assert "`temperature` 0.1" in fact(card_of(drpo), "hyper-parameters")
    predictive = RECIPE | {"length_control": "leash_predictive", "lambda_lr": None, "adam_beta1": 0.8}
    assert "`adam_beta1` 0.8" in fact(card_of(predictive), "hyper-parameters")


def test_means_of_both_ends_by_hand(card_of):
    # steps 1 to 10: 8000 - 100 * 5.5; steps 31 to 40: 8000 - 100 * 35.5
    card = card_of()
    assert fact(card, "mean completion length in tokens") == "7,450.0 → 4,450.0"
    assert fact(card, "tokens generated during training") == "40,000"
    # of three rows the ends are one each, so that they do not overlap
    assert fact(card_of(step=3), "mean completion length in tokens") == "7,900.0 → 7,700.0"


@pytest.mark.parametrize(
    ("length_of", "quantity", "target"),
    [
        ("thinking", "thinking length", "4,096 tokens"),
        ("costs.py:num_lines", "number of num_lines", "4,096 num_lines"),
    ],
)
def test_a_target_is_one_of_what_is_controlled(length_of, quantity, target, card_of):
    card = card_of(RECIPE | {"length_of": length_of}, length_of=length_of)
    assert fact(card, f"target of the mean {quantity}") == target
    assert "mean completion length" not in card.text


def test_a_target_that_changed_is_told_by_steps_and_means_are_of_the_last(tmp_path):
    state = trainer_state(4, target_length=1024)
    for row in state["log_history"][:2]:
        row["leash/common_target"] = 4096
    for row in state["log_history"][2:]:
        row["leash/common_target"] = 1024
    write_model_card(tmp_path, state, RECIPE | {"target_length": 1024}, "me/short")
    card = ModelCard.load(tmp_path / "README.md")
    assert fact(card, "target of the mean completion length, from step 1") == "4,096 tokens"
    assert fact(card, "target of the mean completion length, from step 3") == "1,024 tokens"
    assert fact(card, "mean completion length in tokens from step 3") == "7,700.0 → 7,600.0"
    assert "| target of the mean completion length |" not in card.text


def test_a_model_of_several_efforts_names_them_and_their_multipliers(card_of):
    multipliers = {"low": {"lam": 0.25, "accuracy": None}, "high": {"lam": 0.5, "accuracy": [0.5, 0.0, 1, 1.0, 0.0]}}
    state = {"multipliers": multipliers, "is_warm": True, "budgets": {str(i): i for i in range(99)}}
    card = card_of(RECIPE | {"efforts": {"low": 1024, "high": 8192}}, state=state)
    assert fact(card, "target of effort `low`") == "1,024 tokens"
    assert "4,096" not in card.text.split("## Training")[1].split("```")[0]  # the configured target is of no prompt
    assert fact(card, "state at the end of training") == "multipliers.low.lambda 0.25, multipliers.high.lambda 0.5"


def test_a_card_says_with_which_arguments_of_the_template_an_effort_is_asked(card_of):
    card = card_of(RECIPE | {"efforts": {"off": 8}, "effort_template_kwargs": {"off": {"enable_thinking": False}}})
    assert fact(card, 'target of effort `off`, with `{"enable_thinking": false}` of the chat template') == "8 tokens"


def test_names_are_quoted_in_the_command_that_trains_on_and_in_code(card_of, tmp_path):
    folder = tmp_path / 'n; touch "X"'
    folder.mkdir()
    card = card_of(repo_id=None, folder=folder)
    words = ["leash", "train", "--config", f"{folder}/leash_recipe.yaml", "--resume_from_checkpoint", str(folder)]
    command = shlex.split(block(card, "bash").replace("\\\n", " "))
    assert command[:8] == [*words, "--max_steps", "80"]  # twice the 40 steps that it has
    assert 'touch \\"X\\"", device_map' in block(card, "python")
    compile(block(card, "python"), "card", "exec")


def test_a_model_on_the_hub_is_trained_on_with_its_recipe_from_there(card_of):
    download, command = block(card_of(), "bash").replace("\\\n", " ").splitlines()
    assert download.startswith("hf download me/short leash_recipe.yaml --local-dir .")
    assert command.startswith("leash train --config leash_recipe.yaml --resume_from_checkpoint hf://me/short ")


def test_settings_without_data_promise_no_command(card_of):
    text = card_of({"target_length": 4096}).text
    assert "leash train --config" not in text
    assert 'trainer.train(resume_from_checkpoint="hf://me/short")' in text


def test_a_card_written_by_hand_is_left_alone(card_of, tmp_path, caplog):
    card = tmp_path / "README.md"
    card.write_text("# My model\n\nAll about it.\n")
    assert card_of().text.strip() == "# My model\n\nAll about it."
    assert str(card) in caplog.text


def test_metadata_of_trl_s_card_is_kept_and_a_second_card_is_the_same(card_of, tmp_path):
    (tmp_path / "README.md").write_text(
        f"---\nbase_model: a/b\ntags: [trl, unsloth]\nlicense: mit\n---\n# old\n\n{TRL_S}\n"
    )
    card = card_of()
    assert (card.data.license, card.data.base_model) == ("mit", "a/b")
    assert {"unsloth", "leash"} <= {*card.data.tags}
    assert "# old" not in card.text
    assert card_of().content == card.content


def test_a_local_model_and_data_are_not_linked(card_of):
    card = card_of({"model_name_or_path": "/data/models/mine", "dataset_name": "o/n; touch X"})
    assert (card.data.base_model, card.data.datasets) == (None, None)
    assert "/data/models" not in card.text.split("<details>")[0]
