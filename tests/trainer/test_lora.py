"""LoRA: the adapter alone is saved, and a resumed run repeats the uninterrupted one."""

from pathlib import Path

import killable_run
import torch
from conftest import log_rows
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM

from leash_trl.run_folder import length_control_state


def make(model_path, folder):
    torch.manual_seed(0)  # the adapter starts at random
    adapter = LoraConfig(r=4, target_modules="all-linear", task_type="CAUSAL_LM", lora_dropout=0.2)
    model = get_peft_model(AutoModelForCausalLM.from_pretrained(model_path), adapter)
    return killable_run.make_trainer(model, str(folder), max_steps=4)


def adapter_weights(trainer):
    weights = trainer.model.named_parameters()
    return {name: values.detach().clone() for name, values in weights if "lora_" in name}


def assert_same(weights, others):
    assert weights.keys() == others.keys() != set()
    assert all(torch.equal(weights[name], others[name]) for name in weights)


def test_the_adapter_alone_is_saved_with_its_state_and_resumed_from(tiny_model_path, tmp_path):
    whole = make(tiny_model_path, tmp_path / "whole")
    before = adapter_weights(whole)
    whole.train()
    whole.save_model()
    after = adapter_weights(whole)
    assert all(not torch.equal(before[name], after[name]) for name in before)  # lora_A too, once lora_B is not zero
    run = Path(whole.args.output_dir)
    for folder in (run, run / "checkpoint-4"):
        saved = load_file(folder / "adapter_model.safetensors")
        assert_same({name.replace(".weight", ".default.weight"): value for name, value in saved.items()}, after)
        assert not (folder / "model.safetensors").exists()
        assert length_control_state(folder)["state"] == whole.length_control.state_dict()
    resumed = make(tiny_model_path, tmp_path / "resumed")
    resumed.train(resume_from_checkpoint=run / "checkpoint-2")
    for row, repeated in zip(log_rows(whole), log_rows(resumed), strict=True):
        for key in ("step", "loss", "grad_norm", "leash/lambda"):
            assert repeated[key] == row[key]
    assert_same(adapter_weights(resumed), after)
    assert resumed.length_control.lam == whole.length_control.lam != 0.1
