"""`leash merge`: the merged model is base and adapter, a complete folder or none, and mistakes are one line."""

import copy
import dataclasses
import json
import os
import shutil

import pytest
import yaml
from trl import ModelConfig

from leash_trl.cli.main import main
from leash_trl.hub.recipe import RECIPE_FILE


PROBLEM = [{"role": "user", "content": "16 (a) +9 (b) -8 = ?"}]


@pytest.fixture(scope="module")
def adapter(tmp_path_factory, tiny_model_path, tokenizer):
    """What a run leaves: an adapter that changes the model, its tokenizer, and the records of the run."""
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM

    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(1)
    config = LoraConfig(r=4, target_modules="all-linear", init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model_path), config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    (folder / "leash_state.json").write_text('{"controller": {"lambda": 0.25}}')
    (folder / "trainer_state.json").write_text('{"global_step": 7}')
    (folder / RECIPE_FILE).write_text("# Written by hand\n\ntarget_length: 12\n")
    (folder / "optimizer.pt").write_bytes(b"not part of a model")
    return folder


@pytest.fixture
def run(adapter, tmp_path):
    """A copy of it, to be spoilt."""
    return shutil.copytree(adapter, tmp_path / "run")


def error_line(arguments, capsys):
    """What `leash merge` says to a mistake."""
    assert main(["merge", *map(str, arguments)]) == 2
    captured = capsys.readouterr()
    lines = captured.err.strip().splitlines()
    assert lines[-1].startswith("leash merge: ")
    assert "Traceback" not in captured.err
    return lines[-1]


def logits(model):
    import torch

    with torch.no_grad():
        return model(torch.arange(2, 40)[None]).logits


@pytest.fixture(scope="module")
def merged(adapter, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out") / "merged"
    assert main(["merge", str(adapter), "--output_dir", str(folder)]) == 0
    return folder


def test_merged_model_is_base_and_adapter(adapter, merged, tiny_model_path):
    import torch
    from peft import PeftModel
    from transformers import AutoModelForCausalLM

    base = AutoModelForCausalLM.from_pretrained(tiny_model_path)
    alone = logits(base)
    expected = logits(PeftModel.from_pretrained(base, adapter))
    model = AutoModelForCausalLM.from_pretrained(merged)
    torch.testing.assert_close(logits(model), expected, rtol=0, atol=1e-5)
    assert (expected - alone).abs().max() > 0.01, "the adapter must change something"
    assert not [name for name, _ in model.named_parameters() if "lora" in name]


def test_merged_folder_is_complete(adapter, merged, tokenizer):
    from transformers import AutoTokenizer

    names = {path.name for path in merged.iterdir()}
    copied = {"leash_state.json", "trainer_state.json", "leash_recipe.yaml", "chat_template.jinja"}
    assert names >= {*copied, "model.safetensors", "config.json", "generation_config.json", "tokenizer.json"}
    assert not names & {"adapter_config.json", "adapter_model.safetensors", "optimizer.pt"}
    assert [path.name for path in merged.parent.iterdir()] == ["merged"]
    for name in copied:
        assert (merged / name).read_bytes() == (adapter / name).read_bytes()
    loaded = AutoTokenizer.from_pretrained(merged)
    ids = loaded.apply_chat_template(PROBLEM, add_generation_prompt=True, return_dict=False)
    assert ids == tokenizer.apply_chat_template(PROBLEM, add_generation_prompt=True, return_dict=False)


def test_the_recipe_of_a_merged_model_makes_no_adapter(run, tmp_path):
    """TRL's ModelConfig describes the model and the adapter; the run's other fields stay to the letter."""
    from leash_trl.cli.training_arguments import DATACLASS_TYPES

    names = [field.name for part in DATACLASS_TYPES for field in dataclasses.fields(part)]
    kinds = [["q_proj", "a: b"], {"a": [1, 2]}, "long " * 99, "two\n\nlines"]
    values = {name: copy.copy(kinds[index % 4]) for index, name in enumerate(names)}
    text = "# Written by hand\n\n" + yaml.safe_dump(values, sort_keys=False)
    (run / RECIPE_FILE).write_text(text)
    assert main(["merge", str(run), "--output_dir", str(tmp_path / "merged")]) == 0
    merged = (tmp_path / "merged" / RECIPE_FILE).read_text()
    kept = {"model_name_or_path", "model_revision", "dtype", "attn_implementation"}
    dropped = {field.name for field in dataclasses.fields(ModelConfig)} - kept
    assert yaml.safe_load(merged) == {name: value for name, value in values.items() if name not in dropped}
    assert merged.startswith("# Written by hand\n\n")


def test_resuming_with_a_merged_models_recipe_trains_the_merged_weights(tmp_path):
    import torch
    from safetensors.torch import load_file, save_file

    gym = ["--model_name_or_path", "gym", "--dataset_name", "gym", "--use_cpu", "true", "--bf16", "false"]
    gym += ["--target_length", "20", "--max_completion_length", "32", "--report_to", "none", "--disable_tqdm", "true"]
    gym += ["--per_device_train_batch_size", "8", "--num_generations", "4", "--max_steps", "1", "--use_peft", "true"]
    run, merged, resumed = (tmp_path / name for name in ("run", "merged", "resumed"))
    lora = ["--lora_r", "2", "--lora_target_modules", "q_proj", "v_proj"]
    assert main(["train", *gym, *lora, "--output_dir", str(run), "--learning_rate", "1e-6"]) == 0
    assert main(["merge", str(run), "--output_dir", str(merged)]) == 0
    weights = load_file(merged / "model.safetensors")
    name = next(name for name in weights if "down_proj" in name)
    weights[name].fill_(7)
    save_file(weights, merged / "model.safetensors", metadata={"format": "pt"})

    arguments = ["--config", str(merged / RECIPE_FILE), "--resume_from_checkpoint", str(merged), "--max_steps", "2"]
    with pytest.warns(UserWarning, match="holds no optimizer state"):
        assert main(["train", *arguments, "--output_dir", str(resumed)]) == 0
    assert not (resumed / "adapter_config.json").exists()
    trained = load_file(resumed / "model.safetensors")
    torch.testing.assert_close(trained[name], weights[name], rtol=0, atol=1e-4)


def test_a_tokenizer_that_is_not_there_is_the_base_models(run, tmp_path, tokenizer):
    from transformers import AutoTokenizer

    for path in [*run.glob("tokenizer*"), *run.glob("*.jinja")]:
        path.unlink()
    assert main(["merge", str(run), "--output_dir", str(tmp_path / "merged")]) == 0
    assert AutoTokenizer.from_pretrained(tmp_path / "merged").encode("16 (a) +9") == tokenizer.encode("16 (a) +9")


def test_weights_have_the_type_that_was_asked_for(adapter, tmp_path):
    import torch
    from safetensors.torch import load_file

    assert main(["merge", str(adapter), "--output_dir", str(tmp_path / "merged"), "--dtype", "bfloat16"]) == 0
    weights = load_file(tmp_path / "merged" / "model.safetensors")
    assert {weight.dtype for weight in weights.values()} == {torch.bfloat16}


def test_an_adapter_is_evaluated_like_its_merged_model(adapter, merged, tokenizer):
    """Both as `leash eval` loads them."""
    from leash_trl.engines.engine import Request, SamplingSettings
    from leash_trl.engines.transformers_engine import TransformersEngine

    ids = tuple(tokenizer.apply_chat_template(PROBLEM, add_generation_prompt=True, return_dict=False))
    requests = [Request(ids, seed, 16) for seed in range(4)]
    settings = SamplingSettings(temperature=1.0, top_p=1.0, max_new_tokens=16)
    generations = [
        TransformersEngine.from_pretrained(str(path)).generate(requests, settings) for path in (adapter, merged)
    ]
    assert generations[0] == generations[1]


def test_vllm_asks_for_a_merge(adapter):
    from leash_trl.engines.vllm_engine import VllmEngine

    with pytest.raises(ValueError, match=r"is an adapter.*leash merge"):
        VllmEngine(str(adapter))


def test_a_folder_without_adapter_is_one_line(tmp_path, tiny_model_path, capsys):
    output = ["--output_dir", tmp_path / "merged"]
    assert "no such folder" in error_line([tmp_path / "nowhere", *output], capsys)
    (tmp_path / "empty").mkdir()
    assert "holds no adapter (adapter_config.json); give a run" in error_line([tmp_path / "empty", *output], capsys)
    assert "complete model already" in error_line([tiny_model_path, *output], capsys)
    assert not (tmp_path / "merged").exists()


def test_a_stopped_run_is_told_to_take_its_last_checkpoint(adapter, tmp_path, capsys):
    for step, time in ((2, 200), (10, 300), (4, 100)):
        shutil.copytree(adapter, tmp_path / "stopped" / f"checkpoint-{step}")
        os.utime(tmp_path / "stopped" / f"checkpoint-{step}" / "adapter_config.json", (time, time))
    line = error_line([tmp_path / "stopped", "--output_dir", tmp_path / "merged"], capsys)
    assert line.endswith("stopped/checkpoint-10")


def change(run, **fields):
    path = run / "adapter_config.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def test_a_base_model_that_is_gone_is_one_line(run, tmp_path, capsys):
    change(run, base_model_name_or_path=str(tmp_path / "moved"))
    line = error_line([run, "--output_dir", tmp_path / "merged"], capsys)
    assert "moved' of" in line
    assert "no such folder" in line
    assert "--model_name_or_path" in line
    assert not (tmp_path / "merged").exists()


def test_the_base_model_may_be_named(run, merged, tiny_model_path, tmp_path):
    from safetensors.torch import load_file

    change(run, base_model_name_or_path="owner/not-there", revision="main")
    options = ["--output_dir", str(tmp_path / "merged"), "--model_name_or_path", str(tiny_model_path)]
    assert main(["merge", str(run), *options]) == 0
    expected, found = (load_file(folder / "model.safetensors") for folder in (merged, tmp_path / "merged"))
    assert expected.keys() == found.keys()
    assert all((expected[name] == found[name]).all() for name in expected)


def test_the_recipe_of_the_merged_model_names_the_base_that_was_named(run, tiny_model_path, tmp_path):
    (run / RECIPE_FILE).write_text("target_length: 12\nmodel_name_or_path: owner/not-there\nlora_r: 4\n")
    options = ["--output_dir", str(tmp_path / "merged"), "--model_name_or_path", str(tiny_model_path)]
    assert main(["merge", str(run), *options]) == 0
    recipe = yaml.safe_load((tmp_path / "merged" / RECIPE_FILE).read_text())
    assert recipe == {"target_length": 12, "model_name_or_path": str(tiny_model_path)}


def test_a_named_base_that_is_none_or_does_not_fit_is_one_line(run, tiny_model_path, tmp_path, capsys):
    from transformers import LlamaConfig, LlamaForCausalLM

    output = ["--output_dir", tmp_path / "merged"]
    line = error_line([run, *output, "--model_name_or_path", tmp_path / "away"], capsys)
    assert f"--model_name_or_path {tmp_path / 'away'} cannot be loaded: no such folder" in line
    config = LlamaConfig.from_pretrained(tiny_model_path)
    config.hidden_size *= 2
    LlamaForCausalLM(config).save_pretrained(tmp_path / "wider")
    line = error_line([run, *output, "--model_name_or_path", tmp_path / "wider"], capsys)
    assert f"--model_name_or_path {tmp_path / 'wider'} does not fit the adapter" in line
    assert not (tmp_path / "merged").exists()


def test_a_base_model_that_is_stored_quantised_is_one_line(run, tiny_model_path, tmp_path, capsys):
    base = shutil.copytree(tiny_model_path, tmp_path / "base")
    config = json.loads((base / "config.json").read_text())
    quantised = {"quant_method": "bitsandbytes", "load_in_4bit": True}
    (base / "config.json").write_text(json.dumps({**config, "quantization_config": quantised}))
    change(run, base_model_name_or_path=str(base))
    assert "is stored quantised" in error_line([run, "--output_dir", tmp_path / "merged"], capsys)


def test_what_is_there_is_not_written_over(adapter, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    assert "full is not empty" in error_line([adapter, "--output_dir", tmp_path / "full"], capsys)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["notes.txt"]
    assert "is a file" in error_line([adapter, "--output_dir", tmp_path / "full" / "notes.txt"], capsys)
    (tmp_path / "empty").mkdir()
    assert main(["merge", str(adapter), "--output_dir", str(tmp_path / "empty")]) == 0
    assert (tmp_path / "empty" / "model.safetensors").is_file()


def test_a_model_that_was_being_written_is_not_there(adapter, tmp_path, monkeypatch):
    from leash_trl.hub import merging

    (tmp_path / "merged.partial").mkdir()
    (tmp_path / "merged.partial" / "left.bin").write_text("of a run that was killed")
    seen = []

    def disk_full(folder, target, model_name_or_path):
        seen.extend(path.name for path in target.iterdir())
        assert not (tmp_path / "merged").exists()
        raise OSError("no space left on device")

    monkeypatch.setattr(merging, "_copy_companions", disk_full)
    model = merging.merged_model(adapter)
    with pytest.raises(OSError, match="no space left"):
        merging.write_model(model, adapter, tmp_path / "merged")
    assert "model.safetensors" in seen
    assert "left.bin" not in seen
    assert not [*tmp_path.iterdir()]
