"""Merges an adapter (LoRA, QLoRA, DoRA) into its base model, and saves a model that can be loaded without PEFT."""

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


# fields of TRL's ModelConfig that describe the model; the other fields configure adapters or quantization
MODEL_FIELDS = ("model_name_or_path", "model_revision", "dtype", "attn_implementation", "trust_remote_code")
# parts of an adapter to which PEFT does not apply its scale
UNSCALED = ("modules_to_save", "use_dora", "trainable_token_indices")


def merge_adapter(
    folder: Path,
    output_dir: Path,
    dtype: str = "auto",
    model_name_or_path: str | None = None,
    strength: float = 1.0,
) -> PreTrainedModel:
    r"""Merges the adapter in a folder into its base model, on the CPU, saves the merged model, and returns it.

    Every adapted matrix becomes `W + strength * scaling * B A`, added in the dtype of the weights. The base model is
    loaded as it is stored, even if it was quantized during training (QLoRA). If the base model's embedding and head
    share one matrix, but the adapter changes them differently, the merged model has two separate matrices.

    The tokenizer is saved too (the base model's, if the folder has none), and so are `trainer_state.json` and
    `leash_recipe.yaml`. The saved recipe has no fields that create an adapter or quantize the base model, so a resumed
    run trains the merged weights. `model_name_or_path` in the recipe still names the base model, which has the same
    architecture and remains the reference model of the KL penalty.

    Args:
        folder (`Path`): Folder of the adapter.
        output_dir (`Path`): Folder for the merged model, new or empty.
        dtype (`str`): Dtype of the merged model; `"auto"` is the base model's dtype.
        model_name_or_path (`str`): Base model, if it is not the one that the adapter's configuration names.
        strength (`float`): Factor of the adapter: 1 is the adapter as trained, 0 is the base model.
    """
    if output_dir.is_dir() and any(output_dir.iterdir()):
        raise ValueError(f"--output_dir {output_dir} is not empty; choose a new folder, or empty it")
    config = PeftConfig.from_pretrained(checkpoint_path(str(folder)))
    unscaled = [name for name in UNSCALED if getattr(config, name, None)]
    if strength != 1 and (unscaled or not isinstance(getattr(config, "init_lora_weights", True), bool)):
        kind = ", ".join(unscaled) or f"init_lora_weights={config.init_lora_weights!r}"
        raise ValueError(f"--strength is {strength}, but an adapter with {kind} cannot be scaled; omit the option")
    path = checkpoint_path(model_name_or_path or config.base_model_name_or_path)
    revision = None if model_name_or_path else config.revision
    base = AutoModelForCausalLM.from_pretrained(path, revision=revision, dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(str(folder) if any(folder.glob("tokenizer*")) else path)
    merged = _merge(base, folder, strength)
    merged.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
    for file in folder.glob(TRAINER_STATE_FILE):
        shutil.copy(file, output_dir)
    if recipe := read_saved_recipe(folder):
        dropped = {field.name for field in fields(ModelConfig)}.difference(MODEL_FIELDS)
        renamed = {"model_name_or_path": model_name_or_path} if model_name_or_path else {}
        write_recipe(output_dir, {name: recipe[name] for name in recipe if name not in dropped} | renamed)
    return merged


def _merge(base: PreTrainedModel, folder: Path, strength: float) -> PreTrainedModel:
    """Returns the merged model. A head tied to the embedding gets its own matrix if the two differ after merging."""
    matrix = base.get_input_embeddings().weight
    adapted = PeftModel.from_pretrained(base, str(folder))
    for module in base.get_output_embeddings().modules():  # one of PEFT's wrapped modules holds the matrix
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
