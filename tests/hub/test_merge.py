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


WEIGHTS = "adapter_model.safetensors"
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

    for path in run.glob("tokenizer*"):
        path.unlink()
    (run / "chat_template.jinja").write_text("the run's")
    assert main(["merge", str(run), "--output_dir", str(tmp_path / "merged")]) == 0
    assert (tmp_path / "merged" / "chat_template.jinja").read_text() == "the run's"
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


def test_a_base_model_whose_quantisation_is_null_is_merged(run, tiny_model_path, tmp_path):
    base = shutil.copytree(tiny_model_path, tmp_path / "base")
    config = json.loads((base / "config.json").read_text())
    (base / "config.json").write_text(json.dumps({**config, "quantization_config": None}))
    change(run, base_model_name_or_path=str(base))
    assert main(["merge", str(run), "--output_dir", str(tmp_path / "merged")]) == 0


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": ["lm_head", "q_proj"]},
        {"target_modules": ["embed_tokens"]},
        {"target_modules": ["embed_tokens", "lm_head"], "use_dora": True},
        {"target_modules": ["q_proj"], "bias": "all", "use_rslora": True},
        {"target_modules": ["q_proj"], "modules_to_save": ["lm_head"]},
        {"target_modules": ["q_proj"], "modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        {"target_modules": ["q_proj"], "trainable_token_indices": [3, 4]},
    ],
    ids=["head", "embedding", "DoRA", "bias", "saved_head", "saved_embedding", "tokens"],
)
def test_every_kind_of_adapter_keeps_its_logits(fields, is_tied, tmp_path, tokenizer):
    """Also where the base uses one matrix as embedding and head, and the adapter changes one of the two."""
    import torch
    from peft import LoraConfig, PeftModel, get_peft_model
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2}
    ends = {"bos_token_id": None, "eos_token_id": 1, "pad_token_id": 0}
    config = LlamaConfig(vocab_size=64, attention_bias=True, tie_word_embeddings=is_tied, **sizes, **ends)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    lora = LoraConfig(r=4, init_lora_weights=False, task_type="CAUSAL_LM", **fields)
    trained = get_peft_model(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), lora)
    with torch.no_grad():
        for name, parameter in trained.named_parameters():
            if parameter.requires_grad and "lora" not in name:
                parameter.add_(torch.randn_like(parameter) / 10)
    trained.save_pretrained(tmp_path / "run")
    assert main(["merge", str(tmp_path / "run"), "--output_dir", str(tmp_path / "merged")]) == 0
    base, merged = (AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("base", "merged"))
    adapted = logits(PeftModel.from_pretrained(base, tmp_path / "run"))
    torch.testing.assert_close(logits(merged), adapted, rtol=0, atol=1e-5)


def test_a_base_stays_tied_where_the_adapter_leaves_it_so(tiny_model_path, tmp_path, tokenizer):
    import torch
    from peft import LoraConfig, get_peft_model
    from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

    config = LlamaConfig.from_pretrained(tiny_model_path, tie_word_embeddings=True)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "base")
    tokenizer.save_pretrained(tmp_path / "base")
    lora = LoraConfig(r=4, target_modules=["q_proj"], init_lora_weights=False, task_type="CAUSAL_LM")
    get_peft_model(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), lora).save_pretrained(tmp_path / "run")
    assert main(["merge", str(tmp_path / "run"), "--output_dir", str(tmp_path / "merged")]) == 0
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    assert merged.config.tie_word_embeddings
    assert merged.get_output_embeddings().weight is merged.get_input_embeddings().weight
    assert torch.isfinite(logits(merged)).all()


@pytest.mark.parametrize(
    ("spoil", "said"),
    [
        (lambda weights: {}, "the adapter lacks 14 tensors, such as base_model.model.model.layers.0."),
        (
            lambda weights: {name.replace("layers", "blocks"): weight for name, weight in weights.items()},
            "and the base has no place for 14 tensors",
        ),
        (
            lambda weights: {**weights, **{n.replace("s.0", "s.1"): w.clone() for n, w in weights.items()}},
            ": the base has no place for 14 tensors",
        ),
        (
            lambda weights: {name: weight for name, weight in weights.items() if "up_proj" not in name},
            ": the adapter lacks 2 tensors, such as ",
        ),
    ],
    ids=["empty", "renamed", "deeper", "a_part_lacks"],
)
def test_weights_that_do_not_all_fit_are_one_line(spoil, said, run, tmp_path, capsys, recwarn):
    from safetensors.torch import load_file, save_file

    save_file(spoil(load_file(run / WEIGHTS)), run / WEIGHTS, metadata={"format": "pt"})
    line = error_line([run, "--output_dir", tmp_path / "merged"], capsys)
    assert "does not fit the adapter: " in line
    assert said in line
    assert line.endswith("; name another one with --model_name_or_path")
    assert not [warning for warning in recwarn if "adapter keys" in str(warning.message)]
    assert not (tmp_path / "merged").exists()


def test_a_base_that_lacks_what_the_adapter_changes_is_one_line(run, tiny_model_path, tmp_path, capsys):
    from transformers import LlamaConfig, LlamaForCausalLM

    output = ["--output_dir", tmp_path / "merged"]
    change(run, modules_to_save=["lm_head"])
    assert "does not fit the adapter: the adapter lacks base_model.model.lm_head.weight; " in error_line(
        [run, *output], capsys
    )
    change(run, modules_to_save=None, target_modules=["nowhere"])
    line = error_line([run, *output], capsys)
    assert "does not fit the adapter: Target modules {'nowhere'} not found in the base model" in line
    config = LlamaConfig.from_pretrained(tiny_model_path, num_hidden_layers=2)
    LlamaForCausalLM(config).save_pretrained(tmp_path / "deeper")
    change(run, target_modules="all-linear")
    line = error_line([run, *output, "--model_name_or_path", tmp_path / "deeper"], capsys)
    assert "deeper does not fit the adapter: the adapter lacks 14 tensors" in line


def test_a_base_of_a_smaller_vocabulary_is_one_line(run, tmp_path, tiny_model_path, tokenizer, capsys):
    from transformers import AutoTokenizer

    larger = AutoTokenizer.from_pretrained(tiny_model_path)
    larger.add_tokens(["<new>"])
    larger.save_pretrained(run)
    line = error_line([run, "--output_dir", tmp_path / "merged"], capsys)
    rows = len(tokenizer)
    assert f"does not fit the adapter: it has {rows} token embeddings, the run's tokenizer {rows + 1} tokens" in line
    larger.save_pretrained(base := shutil.copytree(tiny_model_path, tmp_path / "base"))
    options = ["--output_dir", str(tmp_path / "merged"), "--model_name_or_path", str(base)]
    assert main(["merge", str(run), *options]) == 0, "some models have tokens that they never embed"


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ('{"r": 4', "Expecting ',' delimiter"),
        ("[]", "it must be an object with a peft_type"),
        ("null", "it must be an object with a peft_type"),
        ('{"r": 4}', "it must be an object with a peft_type"),
        ('{"peft_type": "NEW"}', "'NEW'"),
        ('{"peft_type": "LORA", "r": "4"}', "'<=' not supported"),
        ('{"peft_type": "LORA", "lora_alpha": null}', "unsupported operand"),
    ],
)
def test_a_damaged_description_is_one_line_that_names_it(content, said, run, tiny_model_path, tmp_path, capsys):
    path = run / "adapter_config.json"
    if '"LORA"' in content:
        content = json.dumps({**json.loads(path.read_text()), **json.loads(content)})
    path.write_text(content)
    line = error_line([run, "--output_dir", tmp_path / "merged"], capsys)
    assert f"{path} cannot be used: " in line
    assert said in line
    assert line.endswith(("; copy the folder again, or give another checkpoint", "; update peft"))


@pytest.mark.parametrize("size", [None, 5, 300, -1])
def test_damaged_weights_are_one_line_that_names_the_folder(size, run, tiny_model_path, tmp_path, capsys):
    def cut(path):
        content = path.read_bytes()
        path.unlink() if size is None else path.write_bytes(content[:size])

    output = ["--output_dir", tmp_path / "merged"]
    base = shutil.copytree(tiny_model_path, tmp_path / "base")
    cut(base / "model.safetensors")
    line = error_line([run, *output, "--model_name_or_path", base], capsys)
    assert f"--model_name_or_path {base} cannot be loaded: " in line
    cut(run / WEIGHTS)
    line = error_line([run, *output], capsys)
    assert f"the weights of {run} cannot be read: " in line
    assert line.endswith("; copy the folder again, or give another checkpoint")


@pytest.mark.parametrize("name", [None, ""])
def test_an_adapter_that_names_no_base_asks_for_one(name, run, tiny_model_path, tmp_path, capsys):
    change(run, base_model_name_or_path=name)
    output = ["--output_dir", str(tmp_path / "merged")]
    assert error_line([run, *output], capsys).endswith("names no base model; name it with --model_name_or_path")
    assert main(["merge", str(run), *output, "--model_name_or_path", str(tiny_model_path)]) == 0


def test_a_base_that_cannot_be_fetched_is_one_sentence(run, tmp_path, capsys):
    change(run, base_model_name_or_path="owner/not-there")
    line = error_line([run, "--output_dir", tmp_path / "merged"], capsys)
    assert len(line) < 400
    assert ".;" not in line
    assert "cached files; name another one with --model_name_or_path" in line


def test_where_neither_run_nor_base_has_a_tokenizer_is_one_line(run, tiny_model_path, tmp_path, capsys):
    base = shutil.copytree(tiny_model_path, tmp_path / "base")
    for path in [path for folder in (run, base) for path in [*folder.glob("tokenizer*"), *folder.glob("*.jinja")]]:
        path.unlink()
    options = ["--output_dir", tmp_path / "merged", "--model_name_or_path", base]
    assert f"neither {run} nor its base model {base} has a tokenizer; put its files into {run}" in error_line(
        [run, *options], capsys
    )
    (run / "tokenizer.json").write_text("{")
    assert f"the tokenizer of {run} cannot be read: " in error_line([run, *options], capsys)
    assert not [path for path in tmp_path.iterdir() if "merged" in path.name]


def test_an_output_that_cannot_be_made_is_one_line(run, tmp_path, capsys):
    (tmp_path / "file").write_text("mine")
    for output in (tmp_path / "file" / "merged", "/proc/merged/x"):
        assert f"output_dir is '{output}', where nothing can be written" in error_line(
            [run, "--output_dir", output], capsys
        )


def test_what_is_there_is_not_written_over(adapter, tmp_path, capsys):
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "notes.txt").write_text("mine")
    assert "full is not empty" in error_line([adapter, "--output_dir", tmp_path / "full"], capsys)
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["notes.txt"]
    assert "is a file" in error_line([adapter, "--output_dir", tmp_path / "full" / "notes.txt"], capsys)
    (tmp_path / "empty").mkdir()
    assert main(["merge", str(adapter), "--output_dir", str(tmp_path / "empty")]) == 0
    assert (tmp_path / "empty" / "model.safetensors").is_file()


def test_a_model_that_was_being_written_is_not_there(adapter, tmp_path, monkeypatch, capsys):
    from leash_trl.hub import merging

    (tmp_path / "merged.partial").write_text("mine")
    seen = []

    def disk_full(folder, target, model_name_or_path):
        seen.extend(path.name for path in target.iterdir())
        assert not (tmp_path / "merged").exists()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(merging, "_copy_companions", disk_full)
    line = error_line([adapter, "--output_dir", tmp_path / "merged"], capsys)
    assert f"--output_dir {tmp_path / 'merged'} cannot be written: [Errno 28] No space left on device" in line
    assert "model.safetensors" in seen
    assert [path.name for path in tmp_path.iterdir()] == ["merged.partial"]


def test_of_two_merges_into_one_folder_the_first_to_end_stays(adapter, tmp_path, monkeypatch, capsys):
    from leash_trl.hub import merging

    copy_companions = merging._copy_companions

    def while_another_merges(*arguments):
        monkeypatch.setattr(merging, "_copy_companions", copy_companions)
        assert main(["merge", str(adapter), "--output_dir", str(tmp_path / "merged"), "--dtype", "bfloat16"]) == 0
        copy_companions(*arguments)

    monkeypatch.setattr(merging, "_copy_companions", while_another_merges)
    assert "merged is not empty" in error_line([adapter, "--output_dir", tmp_path / "merged"], capsys)
    assert json.loads((tmp_path / "merged" / "config.json").read_text())["dtype"] == "bfloat16"
    assert [path.name for path in tmp_path.iterdir()] == ["merged"]
