"""Merges an adapter (LoRA, QLoRA, DoRA) into its base model, and writes a model folder that loads without PEFT."""

import json
import os
import re
import shutil
from pathlib import Path

from peft import PeftConfig, PeftModel
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel

from leash_trl.checkpoints.completeness import TRAINER_STATE_FILE
from leash_trl.checkpoints.state_file import STATE_FILE
from leash_trl.engines.checkpoint_path import checkpoint_path, missing_folder
from leash_trl.hub.recipe import RECIPE_FILE
from leash_trl.hub.run_record import ADAPTER_FILE


TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
    "*.jinja",
    "additional_chat_templates",
)
COMPANIONS = (
    *TOKENIZER_FILES,
    "generation_config.json",
    "*processor_config.json",
    STATE_FILE,
    TRAINER_STATE_FILE,
)
# fields of TRL's ModelConfig that make adapters or quantise the base
ADAPTER_FIELD = re.compile("use_peft|use_rslora|use_dora|lora_|load_in_|bnb_|use_bnb_")
FIELD_START = re.compile(r"^(?=[^\s-])", re.MULTILINE)  # continuation lines are indented, or items of a list


def check_output(output_dir: Path) -> None:
    """Raises `ValueError` if a model must not go there: the path is a file, or a folder that is not empty."""
    if output_dir.exists() and not output_dir.is_dir():
        raise ValueError(f"--output_dir {output_dir} is a file, but must be a folder that is new or empty")
    if output_dir.is_dir() and any(output_dir.iterdir()):
        raise ValueError(f"--output_dir {output_dir} is not empty; choose a new folder, or empty it")


def merged_model(folder: Path, dtype: str = "auto", model_name_or_path: str | None = None) -> PreTrainedModel:
    r"""Base model of an adapter with the adapter merged into its weights, on the CPU.

    Every adapted matrix becomes `W + scaling * B A`, added in the type of the weights. The base model is loaded as it
    is stored, even if training quantised it (QLoRA).

    Args:
        folder (`Path`):
            Folder with `adapter_config.json` and the adapter's weights.
        dtype (`str`, *optional*, defaults to `"auto"`):
            Type of the weights, such as `"bfloat16"`; `"auto"` is the base model's own.
        model_name_or_path (`str`, *optional*):
            The base model, where it is not what the adapter names; `gym` is embedded.

    Raises:
        `ValueError`: If there is no adapter, or its base model cannot be loaded or is stored quantised.
    """
    path, revision = _base(folder)
    if model_name_or_path is None:
        base_model, remedy = f"the base model {path!r} of {folder}", "name another one with --model_name_or_path"
    else:
        path, revision = checkpoint_path(model_name_or_path), None
        base_model, remedy = (
            f"--model_name_or_path {model_name_or_path}",
            "name the model that the adapter was trained on",
        )
    try:
        if "quantization_config" in AutoConfig.from_pretrained(path, revision=revision).to_dict():
            raise ValueError(f"{base_model} is stored quantised, so nothing can be merged into it; {remedy}")
        base = AutoModelForCausalLM.from_pretrained(path, revision=revision, dtype=dtype)
    except OSError as error:
        reason = missing_folder(path) or str(error)
        raise ValueError(f"{base_model} cannot be loaded: {reason}; {remedy}") from error
    try:
        adapted = PeftModel.from_pretrained(base, str(folder))
    except RuntimeError as error:  # torch's, for matrices of other sizes
        raise ValueError(f"{base_model} does not fit the adapter: {error}; {remedy}") from error
    return adapted.merge_and_unload(safe_merge=True)


def _base(folder: Path) -> tuple[str, str | None]:
    """Name or folder of an adapter's base model, and its revision."""
    if not folder.is_dir():
        raise ValueError(f"no such folder: {str(folder)!r}; give a run that was trained with use_peft")
    if not (folder / ADAPTER_FILE).is_file():
        checkpoints = sorted(folder.glob(f"checkpoint-*/{ADAPTER_FILE}"), key=os.path.getmtime)
        remedy = "give a run that was trained with use_peft, or a checkpoint"
        if (folder / "config.json").is_file():
            remedy = "it is a complete model already, and needs no merging"
        elif checkpoints:
            remedy = f"its run has not ended: merge a checkpoint, such as {checkpoints[-1].parent}"
        raise ValueError(f"{folder} holds no adapter ({ADAPTER_FILE}); {remedy}")
    config = PeftConfig.from_pretrained(str(folder))
    return str(config.base_model_name_or_path), config.revision


def write_model(model: PreTrainedModel, folder: Path, output_dir: Path, model_name_or_path: str | None = None) -> None:
    """Writes a merged model with the other files of its run's folder.

    It copies tokenizer, chat template, generation configuration, `leash_state.json` and `trainer_state.json`; if there
    is no tokenizer, it takes the base model's. `leash_recipe.yaml` loses the fields that make an adapter or quantise
    the base, so that resuming with it trains the merged weights; `model_name_or_path` still names the base model,
    which has the same architecture and stays the reference of a KL penalty. All files go into `<output_dir>.partial`
    first, which is renamed at the end, so a folder named `output_dir` is always complete.

    Args:
        model (`PreTrainedModel`):
            From [`merged_model`].
        folder (`Path`):
            Folder of the adapter.
        output_dir (`Path`):
            New or empty folder.
        model_name_or_path (`str`, *optional*):
            The base model, where it is not what the adapter names: `leash_recipe.yaml` then names this one.

    Raises:
        `ValueError`: If `output_dir` is neither new nor empty.
    """
    check_output(output_dir)
    output_dir = output_dir.resolve()
    partial = output_dir.with_name(f"{output_dir.name}.partial")
    shutil.rmtree(partial, ignore_errors=True)  # of a run that was killed
    partial.mkdir(parents=True)
    try:
        model.save_pretrained(partial)
        _copy_companions(folder, partial, model_name_or_path)
        if not any(path for pattern in TOKENIZER_FILES for path in partial.glob(pattern)):
            AutoTokenizer.from_pretrained(model.name_or_path).save_pretrained(partial)
        if output_dir.is_dir():
            output_dir.rmdir()
        partial.rename(output_dir)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _copy_companions(folder: Path, target: Path, model_name_or_path: str | None) -> None:
    for path in {path for pattern in COMPANIONS for path in folder.glob(pattern)}:
        if path.is_dir():
            shutil.copytree(path, target / path.name)
        else:
            shutil.copyfile(path, target / path.name)
    if (recipe := folder / RECIPE_FILE).is_file():
        fields = FIELD_START.split(recipe.read_text(encoding="utf-8"))  # comments and their order are kept
        kept = [field for field in fields if not ADAPTER_FIELD.match(field)]
        if model_name_or_path is not None:
            named = f"model_name_or_path: {json.dumps(model_name_or_path)}\n"
            kept = [named if field.startswith("model_name_or_path:") else field for field in kept]
        (target / RECIPE_FILE).write_text("".join(kept), encoding="utf-8")
