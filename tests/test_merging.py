"""`leash merge`: the merged model is base and adapter, and its folder is complete."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from peft import IA3Config, LoraConfig, PeftConfig, PeftModel, PromptTuningConfig, get_peft_model
from safetensors.torch import load_file
from saved_run import save
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from leash_trl.cli.main import main
from leash_trl.merging import merge_adapter


PROMPT = [{"role": "user", "content": "16 (a) +9 (b) -8 = ?"}]


def lora(**fields):
    modules = {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
    return LoraConfig(r=4, **modules | fields)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory, tiny_model_path, tokenizer):
    """What a run leaves: an adapter that changes the model, its tokenizer, and the records of the run."""
    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(1)
    config = lora(target_modules="all-linear", init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model_path), config).save_pretrained(folder)
    recipe = {"target_length": 12, "use_peft": True, "lora_r": 4, "dtype": "float32"}
    not_of_the_model = {"optimizer.pt": b"moments"}
    save(folder, 7, recipe, **not_of_the_model)
    (folder / "config.json").unlink()
    (folder / "model.safetensors").unlink()
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture
def run(adapter, tmp_path):
    """A copy of it, to be spoilt."""
    return shutil.copytree(adapter, tmp_path / "run")


def merge(run, output_dir, *options):
    return main(["merge", str(run), "--output_dir", str(output_dir), *options])


def weights(folder):
    return load_file(Path(folder, "model.safetensors"))


def logits(model):
    with torch.no_grad():
        return model(torch.arange(2, 40)[None]).logits


@pytest.fixture(scope="module")
def merged(adapter, tmp_path_factory):
    folder = tmp_path_factory.mktemp("out") / "merged"
    assert merge(adapter, folder) == 0
    return folder


def test_merged_folder_is_complete(adapter, merged, tokenizer):
    names = {path.name for path in merged.iterdir()}
    assert names >= {"model.safetensors", "config.json", "generation_config.json", "tokenizer.json"}
    assert not [name for name in names if name.startswith(("adapter", "optimizer"))]
    assert (merged / "trainer_state.json").read_bytes() == (adapter / "trainer_state.json").read_bytes()
    merged_tokenizer = AutoTokenizer.from_pretrained(merged)
    assert merged_tokenizer.apply_chat_template(PROMPT) == tokenizer.apply_chat_template(PROMPT)


def test_the_recipe_of_a_merged_model_makes_no_adapter_and_names_the_base_that_was_named(
    run, merged, tiny_model_path, tmp_path
):
    assert yaml.safe_load((merged / "leash_recipe.yaml").read_text()) == {"target_length": 12, "dtype": "float32"}
    adapter_config = run / "adapter_config.json"
    gone = {"base_model_name_or_path": "owner/not-there", "revision": "main"}
    adapter_config.write_text(json.dumps({**json.loads(adapter_config.read_text()), **gone}))
    (run / "leash_recipe.yaml").write_text("model_name_or_path: owner/not-there\nload_in_4bit: true\n")
    assert merge(run, tmp_path / "merged", "--model_name_or_path", tiny_model_path) == 0
    recipe = yaml.safe_load((tmp_path / "merged" / "leash_recipe.yaml").read_text())
    assert recipe == {"model_name_or_path": tiny_model_path}
    torch.testing.assert_close(weights(tmp_path / "merged"), weights(merged), rtol=0, atol=0)


def test_a_tokenizer_that_is_not_there_is_the_base_models_and_weights_have_the_type_asked_for(
    run, tmp_path, tokenizer
):
    for path in run.glob("tokenizer*"):
        path.unlink()
    merged = tmp_path / "merged"
    assert merge(run, merged, "--dtype", "bfloat16") == 0
    assert AutoTokenizer.from_pretrained(merged).encode("16 (a) +9") == tokenizer.encode("16 (a) +9")
    assert {weight.dtype for weight in weights(merged).values()} == {torch.bfloat16}


@pytest.fixture
def trained_adapter(tmp_path, tiny_model_path, tokenizer):
    """Saves a base model into `base`, and an adapter that changes all that it can into `run`."""

    def make(config, **base_fields):
        torch.manual_seed(0)
        base_config = LlamaConfig.from_pretrained(tiny_model_path, attention_bias=True, **base_fields)
        LlamaForCausalLM(base_config).save_pretrained(tmp_path / "base")
        tokenizer.save_pretrained(tmp_path / "base")
        trained = get_peft_model(AutoModelForCausalLM.from_pretrained(tmp_path / "base"), config)
        with torch.no_grad():
            for parameter in trained.parameters():
                if parameter.requires_grad:
                    parameter.add_(torch.randn_like(parameter) / 10)
        trained.save_pretrained(tmp_path / "run")
        return tmp_path / "run"

    return make


@pytest.mark.parametrize("is_tied", [False, True])
@pytest.mark.parametrize(
    "fields",
    [
        {"target_modules": ["lm_head", "q_proj"]},
        {"target_modules": ["embed_tokens"]},
        {"target_modules": ["embed_tokens", "lm_head"], "use_dora": True},
        {"bias": "all", "use_rslora": True},
        {"modules_to_save": ["lm_head"]},
        {"modules_to_save": ["embed_tokens"], "ensure_weight_tying": True},
        {"trainable_token_indices": [3, 4]},
    ],
    ids=["head", "embedding", "DoRA", "bias", "saved_head", "saved_embedding", "tokens"],
)
def test_every_kind_of_adapter_keeps_its_logits(fields, is_tied, tmp_path, trained_adapter):
    """Also where the base uses one matrix as embedding and head, and the adapter changes one of the two."""
    run = trained_adapter(lora(init_lora_weights=False, **fields), tie_word_embeddings=is_tied)
    assert merge(run, tmp_path / "merged") == 0
    base = AutoModelForCausalLM.from_pretrained(tmp_path / "base")
    merged = AutoModelForCausalLM.from_pretrained(tmp_path / "merged")
    if is_tied and "bias" in fields:  # it changes neither
        assert merged.config.tie_word_embeddings
    base_logits = logits(base)
    adapted = logits(PeftModel.from_pretrained(base, run))
    assert (adapted - base_logits).abs().max() > 1e-3  # the adapter must change something
    torch.testing.assert_close(logits(merged), adapted, rtol=0, atol=1e-5)


def test_what_is_there_is_not_written_over_and_a_folder_without_adapter_is_one_line(adapter, tmp_path, capsys):
    empty = tmp_path / "empty"
    full = tmp_path / "full"
    merged = tmp_path / "merged"
    empty.mkdir()
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    for run, folder in [
        (tmp_path / "nowhere", merged),
        (empty, merged),
        (adapter, full),
        (adapter, full / "notes.txt"),
    ]:
        assert merge(run, folder) == 2
        assert capsys.readouterr().err.strip().splitlines()[-1].startswith("leash merge: ")
    assert [path.name for path in full.iterdir()] == ["notes.txt"]
    assert not any(merged.iterdir())
    assert merge(adapter, empty) == 0


@pytest.mark.parametrize(
    "config",
    [
        lora(modules_to_save=["lm_head"]),
        lora(use_dora=True),
        lora(init_lora_weights="pissa"),
        lora(bias="lora_only"),
        lora(trainable_token_indices=[3, 4]),
        IA3Config(feedforward_modules=[], target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"),
    ],
    ids=["saved_head", "DoRA", "pissa", "bias_lora_only", "tokens", "IA3"],
)
def test_a_strength_reaches_every_part_of_every_kind_of_adapter(config, tmp_path, trained_adapter):
    """At 0 the result is the base, at 1 the model as trained, and half of each weight's change at one half."""
    run = trained_adapter(config)
    for strength in ("0", "0.5", "1"):
        assert merge(run, tmp_path / strength, "--strength", strength) == 0
    base, none, half, whole = (
        AutoModelForCausalLM.from_pretrained(tmp_path / name) for name in ("base", "0", "0.5", "1")
    )
    half_weights = half.state_dict()
    whole_weights = whole.state_dict()
    torch.testing.assert_close(none.state_dict(), base.state_dict(), rtol=0, atol=0)
    for name, weight in base.state_dict().items():
        torch.testing.assert_close(half_weights[name], (weight + whole_weights[name]) / 2)
    adapted = logits(PeftModel.from_pretrained(base, run))
    assert (adapted - logits(none)).abs().max() > 1e-3  # the adapter must change something
    torch.testing.assert_close(logits(whole), adapted, rtol=0, atol=1e-5)


@pytest.mark.parametrize("strength", ["60", "-0.5", "nan"])
def test_a_strength_that_is_no_factor_from_0_to_2_is_refused(adapter, tmp_path, capsys, strength):
    assert merge(adapter, tmp_path / "out", f"--strength={strength}") == 2
    line = capsys.readouterr().err.splitlines()[-1]
    assert "strength" in line
    assert strength in line


def test_what_is_no_adapter_is_refused_before_anything_is_looked_for_elsewhere(
    adapter, tiny_model_path, tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(PeftConfig, "from_pretrained", lambda name: pytest.fail(f"{name} was looked for"))
    for run in ("nothing", "./nothing", "a/b/nothing", "~/nothing", tiny_model_path):
        assert merge(run, tmp_path / "merged") == 2
        line = capsys.readouterr().err.splitlines()[-1]
        assert line.startswith("leash merge: ")
        assert Path(run).name in line
        with pytest.raises(ValueError, match=Path(run).name):
            merge_adapter(Path(run), tmp_path / "merged")


def test_an_adapter_without_weights_is_one_line(tmp_path, tiny_model_path, capsys):
    prompt = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=2)
    get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model_path), prompt).save_pretrained(tmp_path / "run")
    assert merge(tmp_path / "run", tmp_path / "merged") == 2
    assert "PROMPT_TUNING" in capsys.readouterr().err.splitlines()[-1]
