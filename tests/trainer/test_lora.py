"""LoRA: the adapter alone is saved, and killed runs repeat."""

import signal
from pathlib import Path

import killable_run
import pytest
import torch
import yaml
from conftest import ROOT, log_rows
from peft import LoraConfig, get_peft_model
from processes import exit_code
from safetensors.torch import load_file
from trained_arguments import parse
from transformers import AutoModelForCausalLM
from trl import get_peft_config, get_quantization_config

from leash_trl.engines.checkpoint_path import length_control_state


RECIPES = ROOT / "recipes"


def rows(trainer):
    return [(row["step"], row["loss"], row["grad_norm"], row["leash/lambda"]) for row in log_rows(trainer)]


def adapter_weights(trainer):
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters() if "lora_" in name}


def assert_same(weights, others):
    assert weights.keys() == others.keys() != set()
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def make_killable(model_path, output_dir, kill_in_step=None):
    torch.manual_seed(0)  # the adapter starts at random
    adapter = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.2)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(model_path), adapter)
    return killable_run.make_trainer(model, str(output_dir), kill_in_step, max_steps=4)


@pytest.fixture(scope="module")
def trained(tmp_path_factory, tiny_model_path):
    """A run of four steps with checkpoints at 2 and 4, and the adapter that it began with."""
    trainer = make_killable(tiny_model_path, tmp_path_factory.mktemp("lora") / "run")
    before = adapter_weights(trainer)
    trainer.train()
    trainer.save_model()
    return trainer, before


def test_the_adapter_alone_is_saved_with_its_state(trained):
    trainer, before = trained
    after = adapter_weights(trainer)
    assert all(not torch.equal(before[name], after[name]) for name in before)  # lora_A too, once lora_B is not zero
    run = Path(trainer.args.output_dir)
    for folder in (run, run / "checkpoint-4"):
        saved = load_file(folder / "adapter_model.safetensors")
        assert_same({name.replace(".weight", ".default.weight"): value for name, value in saved.items()}, after)
        assert not (folder / "model.safetensors").exists()
        assert length_control_state(folder)["state"] == trainer.length_control.state_dict()
    assert trainer.length_control.lam != 0.1


def test_a_killed_run_repeats_the_uninterrupted_one(trained, tmp_path, tiny_model_path):
    """SIGKILL in the middle of step 4: two steps, and two after the checkpoint, are four."""
    whole, _ = trained
    assert exit_code(make_killable(tiny_model_path, tmp_path / "run", kill_in_step=4).train) == -signal.SIGKILL
    resumed = make_killable(tiny_model_path, tmp_path / "run")
    resumed.train(resume_from_checkpoint=True)
    assert rows(resumed) == rows(whole)
    assert len(rows(whole)) == 4
    assert_same(adapter_weights(resumed), adapter_weights(whole))
    assert resumed.length_control.lam == whole.length_control.lam


@pytest.mark.parametrize("name", ["leash_1.5b_4k_lora", "leash_7b_4k_qlora"])
def test_recipes_for_one_gpu_train_all_matrices_without_dropout(name):
    path = RECIPES / f"{name}.yaml"
    _, training_args, model_args, _ = parse(["--config", str(path), "--use_cpu", "true", "--bf16", "false"])
    adapter = get_peft_config(model_args)
    assert (adapter.target_modules, adapter.lora_dropout) == ("all-linear", 0.0)
    assert training_args.generation_batch_size <= 512
    # LEASH's own settings are those of the full recipe
    full, recipe = (yaml.safe_load(file.read_text()) for file in (RECIPES / "leash_1.5b_4k.yaml", path))
    for field in ("target_length", "lambda_init", "lambda_lr", "dataset_name", "prompt_suffix"):
        assert recipe[field] == full[field]
    if name.endswith("qlora"):
        quantization = get_quantization_config(model_args)
        assert (quantization.load_in_4bit, quantization.bnb_4bit_quant_type) == (True, "nf4")
        # TRL takes it from dtype, whose default is float32
        assert quantization.bnb_4bit_compute_dtype in ("bfloat16", torch.bfloat16)
        assert not training_args.use_vllm, "merging into 4 bits for vLLM loses the adapter"
