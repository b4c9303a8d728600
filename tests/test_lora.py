"""LoRA: lambda moves as in a full fine-tune, only the adapter is trained and saved, and killed runs repeat."""

import json
import multiprocessing
import shutil
import signal
from pathlib import Path

import killable_run
import pytest
import torch
import yaml
from conftest import ROOT
from peft import LoraConfig, get_peft_model
from scripted_run import make_rollout, odd_length_reward
from transformers import AutoModelForCausalLM

from leash_trl.checkpoints.state_file import read_state
from leash_trl.cli.main import main


RECIPES = ROOT / "recipes"
GPU_RECIPES = ("leash_1.5b_4k_lora", "leash_7b_4k_qlora")


def lora(**overrides) -> LoraConfig:
    return LoraConfig(**{"r": 4, "target_modules": "all-linear", "task_type": "CAUSAL_LM", **overrides})


def rows(trainer, first=1):
    logged = [row for row in trainer.state.log_history if "loss" in row and row["step"] >= first]
    return [(row["step"], row["loss"], row["grad_norm"], row["leash/lambda"]) for row in logged]


def adapter_weights(trainer):
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters() if "lora_" in name}


def assert_same(weights, others):
    assert weights.keys() == others.keys() != set()
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def test_lambda_moves_as_in_the_full_fine_tune(make_trainer, tokenizer):
    settings = {"reward_funcs": odd_length_reward, "rollout_func": make_rollout(tokenizer), "max_steps": 5}
    settings = {**settings, "max_completion_length": 40, "lambda_lr": 0.03, "target_length": 11}
    full, adapted = make_trainer(**settings), make_trainer(peft_config=lora(), **settings)
    for trainer in (full, adapted):
        trainer.train()
    lambdas = [[row[-1] for row in rows(trainer)] for trainer in (full, adapted)]
    assert lambdas[0] == lambdas[1]
    assert full.length_control.lam == adapted.length_control.lam
    assert len(set(lambdas[0])) == 5, "the lengths must move lambda at every step"
    assert rows(full)[0][2] != rows(adapted)[0][2], "both train the same weights"


def test_only_the_adapter_is_trained_and_saved(make_trainer, tiny_model_path, tmp_path):
    from safetensors.torch import load_file

    trainer = make_trainer(peft_config=lora(), max_steps=2, save_strategy="steps", save_steps=2)
    before = adapter_weights(trainer)
    trainer.train()
    trainer.save_model()
    after = adapter_weights(trainer)
    assert all(not torch.equal(before[name], after[name]) for name in before), "lora_A moves once lora_B is not zero"

    base = AutoModelForCausalLM.from_pretrained(tiny_model_path).state_dict()
    frozen = {
        name.removeprefix("base_model.model.").replace(".base_layer", ""): value
        for name, value in trainer.model.state_dict().items()
        if "lora_" not in name
    }
    assert frozen.keys() == base.keys()
    assert all(torch.equal(frozen[name], base[name]) for name in base)

    for folder in (tmp_path / "run", tmp_path / "run" / "checkpoint-2"):
        saved = load_file(folder / "adapter_model.safetensors")
        assert {
            name.replace(".weight", ".default.weight"): value for name, value in saved.items()
        }.keys() == after.keys()
        assert not (folder / "model.safetensors").exists()
        assert read_state(folder)["controller"]["lambda"] == trainer.length_control.lam != 0.1


def test_two_and_two_steps_are_four(make_trainer, tmp_path):
    settings = {"peft_config": lora(lora_dropout=0.2), "max_steps": 4, "save_strategy": "steps", "save_steps": 2}
    whole = make_trainer(output_dir=str(tmp_path / "whole"), **settings)
    whole.train()
    resumed = make_trainer(output_dir=str(tmp_path / "resumed"), **settings)
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-2"))
    assert rows(resumed, 3) == rows(whole, 3)
    assert len(rows(whole)) == 4
    assert_same(adapter_weights(resumed), adapter_weights(whole))
    assert resumed.length_control.lam == whole.length_control.lam


def killable_trainer(model_path, output_dir, kill_in_step=None):
    torch.manual_seed(0)  # the adapter starts at random
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(model_path), lora())
    return killable_run.make_trainer(model, output_dir, kill_in_step)


def train_until_killed(model_path, output_dir):
    killable_trainer(model_path, output_dir, kill_in_step=6).train()


def test_killed_run_repeats_the_uninterrupted_run(tmp_path, tiny_model_path):
    """SIGKILL in the middle of step 6, then resume from the checkpoint of step 4."""
    arguments = (tiny_model_path, str(tmp_path / "killed"))
    # a fork, which does not import everything again; test_resume.py kills another program
    process = multiprocessing.get_context("fork").Process(target=train_until_killed, args=arguments)
    process.start()
    process.join()
    assert process.exitcode == -signal.SIGKILL
    assert sorted(p.name for p in (tmp_path / "killed").glob("checkpoint-*")) == ["checkpoint-2", "checkpoint-4"]

    whole = killable_trainer(tiny_model_path, str(tmp_path / "whole"))
    whole.train()
    resumed = killable_trainer(*arguments)
    resumed.train(resume_from_checkpoint=True)
    assert rows(resumed) == rows(whole)
    assert len(rows(whole)) == 8
    assert_same(adapter_weights(resumed), adapter_weights(whole))
    assert resumed.length_control.lam == whole.length_control.lam != 0.1


def test_an_adapter_and_the_state_alone_restore_both(make_trainer, tmp_path):
    """What the root of a Hub repository may hold: an adapter and lambda, no trainer state, no optimizer."""
    first = make_trainer(peft_config=lora(), max_steps=2)
    first.train()
    first.save_model(str(tmp_path / "saved"))
    (tmp_path / "root").mkdir()
    for name in ("adapter_config.json", "adapter_model.safetensors", "leash_state.json"):
        shutil.copy(tmp_path / "saved" / name, tmp_path / "root")

    second = make_trainer(peft_config=lora(), max_steps=1, learning_rate=0.0)
    assert any(not torch.equal(p, adapter_weights(first)[name]) for name, p in adapter_weights(second).items())
    with pytest.warns(UserWarning, match="no optimizer state"):
        second.train(resume_from_checkpoint=str(tmp_path / "root"))
    assert rows(second)[0][-1] == first.length_control.lam != 0.1
    assert_same(adapter_weights(second), adapter_weights(first))


def test_gym_recipe_trains_an_adapter_that_merges(tmp_path, monkeypatch, capsys):
    """The recipe with less of everything, from the command line, and what comes out of it into one model."""
    monkeypatch.chdir(tmp_path)
    small = {"max_steps": 2, "per_device_train_batch_size": 8, "gradient_accumulation_steps": 1, "save_steps": 2}
    recipe = yaml.safe_load((RECIPES / "gym" / "leash_lora.yaml").read_text())
    Path("small.yaml").write_text(yaml.safe_dump({**recipe, **small, "max_completion_length": 64}))
    assert main(["train", "--config", "small.yaml", "--output_dir", "run"]) == 0
    assert json.loads(Path("run/adapter_config.json").read_text())["r"] == recipe["lora_r"]
    assert not Path("run/model.safetensors").exists()
    for folder in ("run", "run/checkpoint-2"):
        assert main(["merge", folder, "--output_dir", f"{folder}-merged"]) == 0
        assert read_state(f"{folder}-merged") == read_state(folder)
        assert Path(f"{folder}-merged/model.safetensors").is_file()


@pytest.mark.parametrize("name", GPU_RECIPES)
def test_recipes_for_one_gpu_train_all_matrices_without_dropout(name, tmp_path, monkeypatch):
    from trl import get_peft_config

    from leash_trl.cli.training_arguments import parse

    monkeypatch.chdir(tmp_path)
    path = RECIPES / f"{name}.yaml"
    _, training_args, model_args, _ = parse(["--config", str(path), "--use_cpu", "true", "--bf16", "false"])
    adapter = get_peft_config(model_args)
    assert (adapter.target_modules, adapter.lora_dropout) == ("all-linear", 0.0)
    assert training_args.generation_batch_size <= 512
    # LEASH's own settings are those of the full recipe
    full = yaml.safe_load((RECIPES / "leash_1.5b_4k.yaml").read_text())
    recipe = yaml.safe_load(path.read_text())
    for field in ("target_length", "lambda_init", "lambda_lr", "dataset_name", "prompt_suffix"):
        assert recipe[field] == full[field]


def test_qlora_recipe_computes_in_bfloat16(tmp_path, monkeypatch):
    from trl import get_quantization_config

    from leash_trl.cli.training_arguments import parse

    monkeypatch.chdir(tmp_path)
    path = RECIPES / "leash_7b_4k_qlora.yaml"
    _, training_args, model_args, _ = parse(["--config", str(path), "--use_cpu", "true", "--bf16", "false"])
    quantization = get_quantization_config(model_args)
    assert quantization.load_in_4bit
    assert quantization.bnb_4bit_quant_type == "nf4"
    # TRL takes it from dtype, whose default is float32
    assert quantization.bnb_4bit_compute_dtype in ("bfloat16", torch.bfloat16)
    assert not training_args.use_vllm, "merging into 4 bits for vLLM loses the adapter"
