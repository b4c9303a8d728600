"""Merges an adapter (LoRA, QLoRA, DoRA) into its base model, and saves a model that can be loaded without PEFT."""

import shutil
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import torch
from peft import PeftConfig, PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer, PreTrainedModel
from trl import ModelConfig

from leash_trl.model_paths import model_path
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

    This holds for every kind of adapter, including biases and modules that the adapter replaces. The base model is
    loaded in `dtype` and without quantization, even if it was quantized during training (QLoRA), and the merged
    weights are rounded to this dtype. If the base model's embedding and head share one matrix, but the adapter changes
    them differently, the merged model has two separate matrices.

    Source: [Robust fine-tuning of zero-shot models](https://huggingface.co/papers/2109.01903) (WiSE-FT).

    The tokenizer is saved too (the base model's, unless `folder` is a local folder that has one), and so are
    `trainer_state.json` and `leash_recipe.yaml`, if the folder has them. The saved recipe has no fields that create an
    adapter or quantize the base model, so a resumed run trains the merged weights. `model_name_or_path` in the recipe
    still names the base model, which has the same architecture and remains the reference model of the KL penalty.

    Args:
        folder (`Path`): Folder of the adapter, or its Hub id.
        output_dir (`Path`): Folder for the merged model, new or empty.
        dtype (`str`): Dtype of the merged model; `"auto"` is the base model's dtype.
        model_name_or_path (`str`): Base model, if it is not the one that the adapter's configuration names.
        strength (`float`): Factor, from 0 to 2, by which the adapter's changes are multiplied: 1 is the adapter as
            trained, 0 is the base model. Other values than 1 need memory for a second copy of the base model.

    Raises:
        `ValueError`: If `folder` has no adapter; if the base model is a folder that does not exist or has no model; if
            `output_dir` is not empty; or if `strength` is out of range.
    """
    if output_dir.is_dir() and any(output_dir.iterdir()):
        raise ValueError(f"output_dir is {str(output_dir)!r}, but is not empty; choose a new folder, or empty it")
    if not 0 <= strength <= MAX_STRENGTH:
        raise ValueError(
            f"strength is {strength:g}, but must be a factor from 0, the base model, to {MAX_STRENGTH:g}; 1 is the "
            "adapter as trained, so write 0.6 for 60 percent of it"
        )
    base = _base_of(folder, model_name_or_path)
    base_model = AutoModelForCausalLM.from_pretrained(base.path, revision=base.revision, dtype=dtype)
    tokenizer = AutoTokenizer.from_pretrained(str(folder) if any(folder.glob("tokenizer*")) else base.path)
    merged = _merged_model(base_model, folder, strength)
    merged.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
    _copy_records(folder, output_dir, model_name_or_path)
    return merged


class BaseModel(NamedTuple):
    """The model that an adapter changes: its folder or Hub id, and its branch, tag or commit on the Hub."""

    path: str
    revision: str | None


def _base_of(folder: Path, model_name_or_path: str | None) -> BaseModel:
    """Returns the base model that the user names or, if it is `None`, that of the adapter's configuration."""
    if model_name_or_path:
        return BaseModel(model_path(model_name_or_path), revision=None)
    config = PeftConfig.from_pretrained(str(folder))
    path = model_path(config.base_model_name_or_path, f"base_model_name_or_path of {folder}")
    return BaseModel(path, config.revision)


def _copy_records(folder: Path, output_dir: Path, model_name_or_path: str | None) -> None:
    """Saves the trainer state and the recipe of the adapter's run with the merged model, if the folder has them, so
    that training can be continued."""
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


def _merged_model(base: PreTrainedModel, folder: Path, strength: float) -> PreTrainedModel:
    """Returns the merged model. A head that is tied to the embedding stays tied only if the two are equal after
    merging."""
    base_weights = {}
    if strength != 1:
        # PEFT merges into the base model in place, and `_scale_change` needs the weights from before.
        base_weights = {name: weight.clone() for name, weight in base.state_dict().items()}
    shared_matrix = base.get_input_embeddings().weight
    adapted = PeftModel.from_pretrained(base, str(folder))
    _untie_head(base, shared_matrix)
    # `safe_merge` raises if a merged weight is not finite.
    merged = adapted.merge_and_unload(safe_merge=True)
    if strength != 1:
        _scale_change(merged, base_weights, strength)
    # If embedding and head are still equal, `tie_weights` makes them share one matrix again, as in the base model.
    embedding = merged.get_input_embeddings().weight
    head = merged.get_output_embeddings().weight
    merged.config.tie_word_embeddings = torch.equal(embedding, head)
    merged.tie_weights()
    return merged


def _scale_change(merged: PreTrainedModel, base_weights: Mapping[str, torch.Tensor], strength: float) -> None:
    """Changes each weight W' of the merged model to W + strength * (W' - W), where W is that of the base model."""
    for name, weight in merged.named_parameters():
        # in float64, which `copy_` rounds to the dtype of the weight
        mixed = torch.lerp(base_weights[name].double(), weight.detach().double(), strength)
        weight.data.copy_(mixed)


def _untie_head(model: PreTrainedModel, shared_matrix: torch.nn.Parameter) -> None:
    """Gives a head that shares the embedding's matrix a copy, so that the adapter's change of the embedding and its
    change of the head are merged into different matrices."""
    # If the adapter changes the head, PEFT has put the head into a wrapper, so the matrix may be in an inner module.
    for module in model.get_output_embeddings().modules():
        for name, parameter in module.named_parameters(recurse=False):
            if parameter is shared_matrix:
                setattr(module, name, torch.nn.Parameter(shared_matrix.detach().clone()))
    model.config.tie_word_embeddings = False
