"""The model card: what made the model, how training went, how it scores."""

from dataclasses import replace

import pytest
import yaml
from huggingface_hub import ModelCard

from leash_trl.hub.model_card import training_facts, write_model_card
from leash_trl.hub.run_record import RunRecord, load_run_record
from leash_trl.length_control.toggle import Toggle


STATE = {"method": "leash", "controller": {"lambda": 0.25}, "target_length": 4096, "global_step": 40}
RECIPE = {
    "model_name_or_path": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
    "dataset_name": "open-r1/DAPO-Math-17k-Processed",
    "target_length": 4096,
    "lambda_lr": 0.05,
}
TRL_S = "It has been trained using [TRL](https://github.com/huggingface/trl)."
LOG = [
    {
        "step": step,
        "leash/mean_length": 8000.0 - 100 * step,
        "leash/generated_tokens": 1000.0 * step,
        "leash/lambda": 0.1,
    }
    for step in range(1, 41)
]


def card_of(folder, **changes):
    fields = {"state": STATE, "log_history": LOG, "recipe": RECIPE, **changes}
    write_model_card(folder, RunRecord(**fields), "short", "me/short")
    return ModelCard.load(folder / "README.md")


def test_the_metadata_names_model_data_and_method(tmp_path):
    data = card_of(tmp_path).data
    assert data.base_model == RECIPE["model_name_or_path"]
    assert data.datasets == [RECIPE["dataset_name"]]
    assert (data.library_name, data.pipeline_tag) == ("transformers", "text-generation")
    assert {"trl", "leash", "generated_from_trainer"} <= set(data.tags)


def test_the_text_names_paper_target_state_and_recipe(tmp_path):
    text = card_of(tmp_path).text
    for part in (
        "2512.21540",
        "4,096 tokens",
        "lambda 0.25",
        "`lambda_lr` 0.05",
        "`lambda_init` 0.1",
        "@misc{arxiv2512",
    ):
        assert part in text
    recipe = text.split("```yaml\n")[1].split("```")[0]
    assert yaml.safe_load(recipe) == RECIPE
    assert "hf://me/short/last-checkpoint" in text
    assert "--max_steps 80" in text  # twice the 40 that it has


def test_means_of_both_ends_by_hand():
    # steps 1 to 10: 8000 - 100 * 5.5; steps 31 to 40: 8000 - 100 * 35.5
    record = RunRecord(STATE, LOG, RECIPE)
    assert record.ends("leash/mean_length") == (10, 7450.0, 4450.0)
    facts = dict(training_facts(record))
    assert facts["mean length in tokens, first and last 10 batches"] == "7,450.0 → 4,450.0"
    assert facts["tokens generated in training"] == "40,000"
    # of three rows the ends are one each, so that they do not overlap
    assert RunRecord(STATE, LOG[:3], RECIPE).ends("leash/mean_length") == (1, 7900.0, 7700.0)
    assert RunRecord(STATE, [], RECIPE).ends("leash/mean_length") is None


def test_a_model_of_several_efforts_names_them_their_multipliers_and_how_to_ask(tmp_path):
    state = {**STATE, "controller": {"multipliers": {"low": {"lambda": 0.25}, "high": {"lambda": 0.5}}}}
    recipe = {**RECIPE, "efforts": {"low": 1024, "high": 8192}}
    text = card_of(tmp_path, state=state, recipe=recipe).text
    for part in ("lambda of low 0.25", "lambda of high 0.5", "'low': 1024, 'high': 8192", "Effort: low."):
        assert part in text


@pytest.mark.parametrize(
    ("method", "kwargs", "shown"),
    [
        ("leash", {"lambda_init": 0.25}, "steps_done 2, lambda 0.25"),
        ("leash", {"lambda_init": 0.25, "multiplier_per": "effort"}, "steps_done 2, lambda of low 0.25"),
        # its own count of one update with a budget, of both, would bear the same name
        ("kimi", {}, "steps_done 2"),
    ],
)
def test_a_run_inside_toggle_shows_the_state_of_the_method_that_is_switched(make_rollouts, method, kwargs, shown):
    toggle = Toggle(method, kwargs, period=1)
    toggle.observe(replace(make_rollouts([1, 1], [10, 10], 10.0), columns={"effort": ["low", "low"]}))
    toggle.step()
    toggle.step()
    record = RunRecord({"method": "toggle", "controller": toggle.state_dict()}, [], {})
    assert dict(training_facts(record))["state at the end"] == shown


def test_the_card_shows_no_secret_of_the_recipe(tmp_path):
    secrets = {"hub_token": "abc123", "env": {"WANDB_API_KEY": "def456"}}
    content = card_of(tmp_path, recipe={**RECIPE, **secrets, "push_to_hub": True}).content
    assert "abc123" not in content
    assert "def456" not in content
    assert "push_to_hub" not in content


def test_a_card_of_a_folder_names_it_as_it_was_given(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    write_model_card("runs/short", RunRecord(STATE, LOG, RECIPE), "short")
    text = ModelCard.load("runs/short/README.md").text
    assert "leash train --config runs/short/leash_recipe.yaml --resume_from_checkpoint runs/short" in text
    assert 'model="runs/short"' in text


def test_settings_without_data_promise_no_command(tmp_path):
    text = card_of(tmp_path, recipe={"target_length": 4096}).text
    assert "leash train --config" not in text
    assert 'trainer.train(resume_from_checkpoint="hf://me/short")' in text


def test_a_card_written_by_hand_is_left_alone(tmp_path, caplog):
    (tmp_path / "README.md").write_text("# My model\n\nAll about it.\n")
    assert card_of(tmp_path).text.strip() == "# My model\n\nAll about it."
    assert "is not ours to replace" in caplog.text


def test_trl_s_metadata_and_links_to_trackers_are_kept(tmp_path):
    badge = '[<img src="x.svg" alt="Visualize in Weights & Biases"/>](https://wandb.ai/run)'
    (tmp_path / "README.md").write_text(
        f"---\ntags: [trl, unsloth]\nlicense: mit\n---\n# old\n\n{badge} \n\nold text\n{TRL_S}\n"
    )
    card = card_of(tmp_path)
    assert card.data.license == "mit"
    assert "unsloth" in card.data.tags
    assert badge in card.text
    assert "old text" not in card.text


def test_writing_a_card_twice_changes_nothing(tmp_path):
    first = card_of(tmp_path).content
    assert card_of(tmp_path).content == first


def test_an_adapter_says_that_it_is_one(tmp_path):
    card = card_of(tmp_path, is_adapter=True)
    assert card.data.library_name == "peft"
    assert "leash merge" in card.text


def test_a_local_model_and_data_are_not_linked(tmp_path):
    card = card_of(tmp_path, recipe={"model_name_or_path": "/data/models/mine", "dataset_name": "gym"})
    assert card.data.base_model is None
    assert card.data.datasets is None
    assert "/data/models" not in card.text.split("<details>")[0]
    assert "16 (a) +9 (b) -8 = ?" in card.text


def test_a_run_on_stories_is_asked_a_story(tmp_path):
    text = card_of(tmp_path, recipe={**RECIPE, "dataset_name": "gym_stories"}).text
    assert "How many shells does Nora have now?" in text
    assert "boxed" not in text.split("How many shells")[1].split("\n")[0]


def test_a_method_of_the_users_own_needs_no_import(tmp_path):
    state = {**STATE, "method": "mine", "controller": {"price": 2.0, "window": [1]}}
    text = card_of(tmp_path, state=state, recipe={"length_control": "nowhere.Mine"}).text
    assert "`mine`" in text
    assert "price 2" in text


def test_a_trainer_its_folder_and_every_checkpoint_say_the_same(make_trainer, tmp_path):
    trainer = make_trainer(max_steps=2, save_strategy="steps", save_steps=1)
    trainer.train()
    for step in (1, 2):
        folder = tmp_path / "run" / f"checkpoint-{step}"
        assert yaml.safe_load((folder / "leash_recipe.yaml").read_text())["target_length"] == 12
        assert "`lambda_lr` 0.1" in (folder / "README.md").read_text()
    trainer.save_model()
    record = load_run_record(tmp_path / "run")
    assert record.state["controller"] == trainer.length_control.state_dict()
    logged = [row["leash/lambda"] for row in trainer.state.log_history if "leash/lambda" in row]
    assert record.logged("leash/lambda") == logged  # of the newest checkpoint
    trainer.save_state()
    assert load_run_record(tmp_path / "run").logged("leash/lambda") == logged
    trainer.create_model_card()
    text = (tmp_path / "run" / "README.md").read_text()
    assert "training_curves.png" in text
    assert (tmp_path / "run" / "training_curves.png").stat().st_size > 10_000
    assert f"lambda {trainer.length_control.lam:.4g}" in text
