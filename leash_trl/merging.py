"""Merges an adapter (LoRA, QLoRA, DoRA) into its base model, and saves a model that can be loaded without PEFT."""

import shutil
from dataclasses import fields
from pathlib import Path

import torch
from peft import PeftConfig, PeftModel, PeftType
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from trl import ModelConfig

from leash_trl.model_paths import model_path
from leash_trl.paths import path_or_hub_id
from leash_trl.run_folder import TRAINER_STATE_FILE, read_saved_recipe
from leash_trl.saved_recipe import write_recipe


# fields of TRL's ModelConfig that describe the model; the other fields configure adapters or quantization
MODEL_FIELDS = ("model_name_or_path", "model_revision", "dtype", "attn_implementation", "trust_remote_code")
MAX_STRENGTH = 2.0


def merge_adapter(
    folder: Path,
    output_dir: Path,
    dtype: str = "auto",
    model_name_or_path: str | None = None,
    strength: float = 1.0,
) -> PreTrainedModel:
    r"""Merges the adapter in a folder into its base model, on the CPU, saves the merged model, and returns it.

    Let $W$ be a weight of the base model and $W'$ the same weight with the adapter as trained, which for LoRA is
    $W + s B A$ with PEFT's `scaling` $s$. The merged weight is

    $$ W + \mathrm{strength} \cdot (W' - W) $$

    This holds for every kind of adapter, its biases and the modules that it replaces, as in WiSE-FT. The base model is
    loaded as it is stored, even if it was quantized during training (QLoRA), and sums are rounded to the dtype of its
    weights. If the base model's embedding and head share one matrix, but the adapter changes them differently, the
    merged model has two separate matrices.

    Source: [Robust fine-tuning of zero-shot models](https://huggingface.co/papers/2109.01903).

    The tokenizer is saved too (the base model's, if the folder has none), and so are `trainer_state.json` and
    `leash_recipe.yaml`. The saved recipe has no fields that create an adapter or quantize the base model, so a resumed
    run trains the merged weights. `model_name_or_path` in the recipe still names the base model, which has the same
    architecture and remains the reference model of the KL penalty.

    Args:
        folder (`Path`): Folder of the adapter, or its Hub id.
        output_dir (`Path`): Folder for the merged model, new or empty.
        dtype (`str`): Dtype of the merged model; `"auto"` is the base model's dtype.
        model_name_or_path (`str`): Base model, if it is not the one that the adapter's configuration names.
        strength (`float`): Factor from 0 to 2 of what the adapter changes: 1 is the adapter as trained, 0 is the base
            model. Other values than 1 need memory for a second copy of the base model.

    Raises:
        `ValueError`: If `folder` or the base model does not exist, or has no adapter or no model; if `output_dir` is
            not empty; if `strength` is out of range; or if the adapter adds tokens to prompts, and no weights.
    """
    if output_dir.is_dir() and any(output_dir.iterdir()):
        raise ValueError(f"output_dir is {str(output_dir)!r}, but is not empty; choose a new folder, or empty it")
    if not 0 <= strength <= MAX_STRENGTH:
        raise ValueError(
            f"strength is {strength:g}, but must be a factor from 0, the base model, to {MAX_STRENGTH:g}; 1 is the "
            "adapter as trained, so write 0.6 for 60 percent of it"
        )
    config = PeftConfig.from_pretrained(path_or_hub_id(str(folder), "folder"))
    if model_name_or_path:
        base_path = model_path(model_name_or_path, "model_name_or_path")
        revision = None  # that of the configuration belongs to the base model which the configuration names
    else:
        base_path = model_path(config.base_model_name_or_path, f"base_model_name_or_path of {folder}")
        revision = config.revision
    base = AutoModelForCausalLM.from_pretrained(base_path, revision=revision, dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(str(folder) if any(folder.glob("tokenizer*")) else base_path)
    merged = _merged_model(base, folder, strength)
    merged.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
    # `glob` finds one file or, if `folder` is a Hub id or was not written by `leash train`, none.
    for file in folder.glob(TRAINER_STATE_FILE):
        shutil.copy(file, output_dir)
    recipe = read_saved_recipe(folder)
    if recipe:
        # The merged model has neither adapter nor quantization, so its recipe must not create them again.
        adapter_fields = {field.name for field in fields(ModelConfig)}.difference(MODEL_FIELDS)
        merged_recipe = {name: value for name, value in recipe.items() if name not in adapter_fields}
        if model_name_or_path:
            merged_recipe["model_name_or_path"] = model_name_or_path
        write_recipe(output_dir, merged_recipe)
    return merged


def _merged_model(base: PreTrainedModel, folder: Path, strength: float) -> PreTrainedModel:
    """Returns the merged model. A head tied to the embedding gets its own matrix if the two differ after merging."""
    base_weights = {}
    if strength != 1:
        # PEFT merges into the base model in place, and the mixture below needs the weights from before.
        base_weights = {name: weight.clone() for name, weight in base.state_dict().items()}
    matrix = base.get_input_embeddings().weight  # which a tied head shares
    adapted = PeftModel.from_pretrained(base, str(folder))
    if not hasattr(adapted, "merge_and_unload"):
        # Prompt tuning, for example, adds tokens to prompts and changes no weights.
        adapter_type = PeftType(adapted.peft_type).value
        raise ValueError(f"{folder} holds an adapter of type {adapter_type}, which has no weights to merge")
    # A tied head gets a copy of the embedding's matrix, so that the adapter's change of the embedding and its change
    # of the head are merged into different matrices. If the adapter changes the head, PEFT has put it into a wrapper,
    # so the parameter is searched among the wrapper's modules.
    for module in base.get_output_embeddings().modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter is matrix:
                setattr(module, name, torch.nn.Parameter(matrix.detach().clone()))
    base.config.tie_word_embeddings = False
    # `safe_merge` raises if a merged weight is not finite.
    merged = adapted.merge_and_unload(safe_merge=True)
    if strength != 1:
        for name, weight in merged.named_parameters():
            # W + strength * (W' - W) in float64, which `copy_` rounds to the dtype of the weight
            mixed = torch.lerp(base_weights[name].double(), weight.detach().double(), strength)
            weight.data.copy_(mixed)
    # If the two are still equal, they share one matrix again, as in the base model.
    embedding = merged.get_input_embeddings().weight
    head = merged.get_output_embeddings().weight
    merged.config.tie_word_embeddings = torch.equal(embedding, head)
    merged.tie_weights()
    return merged
