"""Merges an adapter (LoRA, QLoRA, DoRA) into its base model, and writes a model folder that loads without PEFT."""

import shutil
from dataclasses import fields
from pathlib import Path

import torch
from peft import PeftConfig, PeftModel
from peft.helpers import rescale_adapter_scale
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from trl import ModelConfig

from leash_trl.run_folder import TRAINER_STATE_FILE, checkpoint_path, read_saved_recipe
from leash_trl.saved_recipe import write_recipe


# what TRL's ModelConfig says of the model; its other fields make adapters or quantize the base
MODEL_FIELDS = ("model_name_or_path", "model_revision", "dtype", "attn_implementation", "trust_remote_code")
# parts of an adapter that PEFT's scale does not reach
UNSCALED = ("modules_to_save", "use_dora", "trainable_token_indices")


def merge_adapter(
    folder: Path,
    output_dir: Path,
    dtype: str = "auto",
    model_name_or_path: str | None = None,
    strength: float = 1.0,
) -> PreTrainedModel:
    r"""Merges the adapter of a folder into its base model, on the CPU, and writes the model and the run's records.

    Every adapted matrix becomes `W + strength * scaling * B A`, added in the type of the weights. The base model is
    loaded as it is stored, even if training quantized it (QLoRA). Where one matrix is its embedding and its head, and
    the adapter changes them in different ways, the merged model has two.

    Beside it lie the run's tokenizer (the base model's if it has none) and `trainer_state.json`. `leash_recipe.yaml`
    loses the fields that make an adapter or quantize the base, so that resuming with it trains the merged weights;
    `model_name_or_path` still names the base model, which has the same architecture and stays the reference of a KL
    penalty.

    `output_dir` is new or empty; `dtype="auto"` is the base model's own; `model_name_or_path` is the base model, where
    it is not what the adapter names. `strength` is 1 for the adapter as it was trained, 0 for the base model.
    """
    if output_dir.is_dir() and any(output_dir.iterdir()):
        raise ValueError(f"--output_dir {output_dir} is not empty; choose a new folder, or empty it")
    config = PeftConfig.from_pretrained(checkpoint_path(str(folder)))
    unscaled = [name for name in UNSCALED if getattr(config, name, None)]
    if strength != 1 and (unscaled or not isinstance(getattr(config, "init_lora_weights", True), bool)):
        kind = ", ".join(unscaled) or f"init_lora_weights={config.init_lora_weights!r}"
        raise ValueError(f"--strength is {strength}, but it cannot scale an adapter with {kind}; drop it")
    path = checkpoint_path(model_name_or_path or config.base_model_name_or_path)
    revision = None if model_name_or_path else config.revision
    base = AutoModelForCausalLM.from_pretrained(path, revision=revision, dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(str(folder) if any(folder.glob("tokenizer*")) else path)
    merged = _merged(base, folder, strength)
    merged.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
    for file in folder.glob(TRAINER_STATE_FILE):
        shutil.copy(file, output_dir)
    if recipe := read_saved_recipe(folder):
        of_adapter = {field.name for field in fields(ModelConfig)}.difference(MODEL_FIELDS)
        named = {"model_name_or_path": model_name_or_path} if model_name_or_path else {}
        write_recipe(output_dir, {name: recipe[name] for name in recipe if name not in of_adapter} | named)
    return merged


def _merged(base: PreTrainedModel, folder: Path, strength: float) -> PreTrainedModel:
    """Base and adapter as one model; the head that is the embedding's matrix gets its own if they differ then."""
    matrix = base.get_input_embeddings().weight
    adapted = PeftModel.from_pretrained(base, str(folder))
    for module in base.get_output_embeddings().modules():  # of PEFT's wrappers, one holds the matrix
        for name, parameter in module.named_parameters(recurse=False):
            if parameter is matrix:
                setattr(module, name, torch.nn.Parameter(matrix.detach().clone()))
    base.config.tie_word_embeddings = False
    with rescale_adapter_scale(adapted, strength):
        merged = adapted.merge_and_unload(safe_merge=True)
    embedding, head = merged.get_input_embeddings().weight, merged.get_output_embeddings().weight
    merged.config.tie_word_embeddings = torch.equal(embedding, head)
    merged.tie_weights()
    return merged
