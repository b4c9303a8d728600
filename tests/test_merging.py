"""`leash merge`: the merged model is base and adapter, and its folder is complete."""

import json
import shutil
from pathlib import Path

import pytest
import torch
import yaml
from peft import IA3Config, LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file
from saved_run import save
from transformers import AutoModelForCausalLM, AutoTokenizer, LlamaConfig, LlamaForCausalLM

from leash_trl.cli.main import main


PROMPT = [{"role": "user", "content": "16 (a) +9 (b) -8 = ?"}]


def lora(**fields):
    modules = {"target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM"}
    return LoraConfig(r=4, **modules | fields)


@pytest.fixture(scope="module")
def adapter(tmp_path_factory, tiny_model_path, session_tokenizer):
    """What a run leaves: an adapter that changes the model, its tokenizer, and the records of the run."""
    folder = tmp_path_factory.mktemp("run")
    torch.manual_seed(1)
    config = lora(target_modules="all-linear", init_lora_weights=False)
    get_peft_model(AutoModelForCausalLM.from_pretrained(tiny_model_path), config).save_pretrained(folder)
    recipe = {
        "target_length": 12,
        "use_peft": True,
        "lora_r": 4,
        "dtype": "float32",
    }
    not_of_the_model = {"optimizer.pt": b"moments"}
    save(folder, 7, recipe, **not_of_the_model)
    (folder / "config.json").unlink()
    (folder / "model.safetensors").unlink()
    session_tokenizer.save_pretrained(folder)
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


TIED = {"tie_word_embeddings": True}  # a base with one matrix for embedding and head


@pytest.mark.parametrize(
    ("config", "base_fields"),
    [
        (lora(init_lora_weights=False, target_modules=["lm_head", "q_proj"]), TIED),
        (lora(init_lora_weights=False, target_modules=["embed_tokens"]), TIED),
        (lora(init_lora_weights=False, target_modules=["embed_tokens", "lm_head"], use_dora=True), TIED),
        (lora(init_lora_weights=False, bias="all", use_rslora=True), TIED),
        (lora(modules_to_save=["embed_tokens"], ensure_weight_tying=True), TIED),
        (lora(modules_to_save=["lm_head"]), {}),
        (lora(init_lora_weights="pissa"), {}),
        (lora(trainable_token_indices=[3, 4]), {}),
        (IA3Config(feedforward_modules=[], target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM"), {}),
    ],
    ids=["head", "embedding", "DoRA", "bias", "saved embedding", "saved head", "pissa", "tokens", "IA3"],
)
def test_a_strength_reaches_every_part_of_every_kind_of_adapter(config, base_fields, tmp_path, trained_adapter):
    """At 0 the result is the base, at 1 the model as trained, and at 2 each weight has changed twice as much."""
    run = trained_adapter(config, **base_fields)
    models = {"base": AutoModelForCausalLM.from_pretrained(tmp_path / "base")}
    for strength in ("0", "1", "2"):
        assert merge(run, tmp_path / strength, "--strength", strength) == 0
        models[strength] = AutoModelForCausalLM.from_pretrained(tmp_path / strength)
    weights = {name: model.state_dict() for name, model in models.items()}
    torch.testing.assert_close(weights["0"], weights["base"], rtol=0, atol=0)
    for name, weight in weights["base"].items():
        change = weights["1"][name] - weight
        torch.testing.assert_close(weights["2"][name], weight + 2 * change)
    is_tied_still = base_fields == TIED and config.bias == "all"  # which changes neither of the two
    assert not is_tied_still or models["1"].config.tie_word_embeddings
    merged_logits = logits(models["1"])
    assert (merged_logits - logits(models["base"])).abs().max() > 1e-3  # the adapter must change something
    adapted = PeftModel.from_pretrained(models["base"], run)
    torch.testing.assert_close(merged_logits, logits(adapted), rtol=0, atol=1e-5)


def test_what_is_there_is_not_written_over(adapter, tmp_path, capsys):
    full = tmp_path / "full"
    full.mkdir()
    (full / "notes.txt").write_text("mine")
    for folder in (full, full / "notes.txt"):
        assert merge(adapter, folder) == 2
        assert capsys.readouterr().err.strip().splitlines()[-1].startswith("leash merge: ")
    assert [path.name for path in full.iterdir()] == ["notes.txt"]


def test_what_is_no_adapter_is_one_line(tmp_path, capsys):
    assert merge(tmp_path, tmp_path / "merged") == 2
    assert str(tmp_path) in capsys.readouterr().err.splitlines()[-1]
