"""Merges an adapter (LoRA, QLoRA, DoRA) into its base model, and writes a model folder that loads without PEFT."""

import json
import os
import re
import shutil
import tempfile
import warnings
from pathlib import Path
from pickle import UnpicklingError

import torch
from peft import PeftConfig, PeftModel
from peft.utils import load_peft_weights
from safetensors import SafetensorError
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, PreTrainedModel, PreTrainedTokenizerBase

from leash_trl.checkpoints.completeness import ADAPTER_FILE, TRAINER_STATE_FILE
from leash_trl.checkpoints.state_file import STATE_FILE
from leash_trl.engines.checkpoint_path import checkpoint_path, missing_folder
from leash_trl.hub.recipe import RECIPE_FILE


TOKENIZER_FILES = (
    "tokenizer*",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.*",
    "merges.txt",
)
COMPANIONS = (
    *TOKENIZER_FILES,
    "*.jinja",
    "additional_chat_templates",
    "generation_config.json",
    "*processor_config.json",
    STATE_FILE,
    TRAINER_STATE_FILE,
)
# fields of TRL's ModelConfig that make adapters or quantise the base
ADAPTER_FIELD = re.compile("use_peft|use_rslora|use_dora|lora_|load_in_|bnb_|use_bnb_")
TAKE_ANOTHER = "copy the folder again, or give another checkpoint"
# PEFT's: the first names every key, and our error says it shorter; the second is about a tie that merging undoes
TOLD_OTHERWISE = "Found missing adapter keys|Model has `tie_word_embeddings=True`"
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
    is stored, even if training quantised it (QLoRA). Where one matrix is its embedding and its head, and the adapter
    changes them in different ways, the merged model has two.

    Args:
        folder (`Path`):
            Folder with `adapter_config.json` and the adapter's weights.
        dtype (`str`, *optional*, defaults to `"auto"`):
            Type of the weights, such as `"bfloat16"`; `"auto"` is the base model's own.
        model_name_or_path (`str`, *optional*):
            The base model, where it is not what the adapter names; `gym` is embedded.

    Raises:
        `ValueError`: If there is no adapter or it is damaged, if its base model cannot be loaded or is stored
            quantised, if the two do not fit in every tensor, or if the base has fewer token embeddings than the run's
            tokenizer has tokens.
    """
    config = _config(folder)
    _check_weights(folder)
    path, revision = config.base_model_name_or_path, config.revision
    base_model, remedy = f"the base model {path!r} of {folder}", "name another one with --model_name_or_path"
    if model_name_or_path is not None:
        path, revision = checkpoint_path(model_name_or_path), None
        base_model = f"--model_name_or_path {model_name_or_path}"
        remedy = "name the model that the adapter was trained on"
    if not path:
        raise ValueError(f"{folder / ADAPTER_FILE} names no base model; name it with --model_name_or_path")
    try:
        base = _unquantised(path, revision, dtype)
    except (OSError, ValueError, SafetensorError) as error:
        reason = missing_folder(path) or _first_sentence(error)
        raise ValueError(f"{base_model} cannot be loaded: {reason}; {remedy}") from error
    tokenizer = _tokenizer(folder, base)
    try:
        _check_vocabulary(tokenizer, base)
        return _merged(base, folder)
    except (RuntimeError, ValueError) as error:  # RuntimeError is torch's, for matrices of other sizes
        raise ValueError(f"{base_model} does not fit the adapter: {_first_sentence(error)}; {remedy}") from error
    except TypeError as error:
        raise ValueError(f"{folder / ADAPTER_FILE} cannot be used: {error}; {TAKE_ANOTHER}") from error


def _first_sentence(error: Exception) -> str:
    return re.split(r"\.\s", " ".join(str(error).split()))[0].rstrip(".")


def _config(folder: Path) -> PeftConfig:
    """The description of the adapter in a folder."""
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
    try:
        fields = json.loads((folder / ADAPTER_FILE).read_text(encoding="utf-8"))
        if not isinstance(fields, dict) or "peft_type" not in fields:
            raise ValueError("it must be an object with a peft_type")
        return PeftConfig.from_pretrained(str(folder))
    except (ValueError, TypeError) as error:
        raise ValueError(f"{folder / ADAPTER_FILE} cannot be used: {error}; {TAKE_ANOTHER}") from error
    except KeyError as error:
        raise ValueError(
            f"{folder / ADAPTER_FILE} cannot be used: peft_type is {error}, which PEFT does not know; update peft"
        ) from error


def _check_weights(folder: Path) -> None:
    """Raises `ValueError` if the adapter's weights are not there or damaged."""
    if not any(folder.glob("adapter_model.*")):  # PEFT would look for them on the Hub
        raise ValueError(f"the weights of {folder} cannot be read: no adapter_model.safetensors; {TAKE_ANOTHER}")
    try:
        load_peft_weights(str(folder), device="cpu")
    except (OSError, RuntimeError, EOFError, SafetensorError, UnpicklingError) as error:
        reason = _first_sentence(error)
        raise ValueError(f"the weights of {folder} cannot be read: {reason}; {TAKE_ANOTHER}") from error


def _unquantised(path: str, revision: str | None, dtype: str) -> PreTrainedModel:
    if AutoConfig.from_pretrained(path, revision=revision).to_dict().get("quantization_config"):
        raise ValueError("it is stored quantised, so nothing can be merged into it")
    return AutoModelForCausalLM.from_pretrained(path, revision=revision, dtype=dtype)


def _tokenizer(folder: Path, base: PreTrainedModel) -> PreTrainedTokenizerBase:
    """The tokenizer of a run, or of its base model where the run has none."""
    has_own = _has_tokenizer(folder)
    try:
        return AutoTokenizer.from_pretrained(str(folder) if has_own else base.name_or_path, config=base.config)
    except (OSError, ValueError, KeyError) as error:
        fault = f"neither {folder} nor its base model {base.name_or_path} has a tokenizer; put its files into {folder}"
        if has_own:
            fault = f"the tokenizer of {folder} cannot be read: {_first_sentence(error)}; {TAKE_ANOTHER}"
        raise ValueError(fault) from error


def _has_tokenizer(folder: Path) -> bool:
    return any(path for pattern in TOKENIZER_FILES for path in folder.glob(pattern))


def _check_vocabulary(tokenizer: PreTrainedTokenizerBase, base: PreTrainedModel) -> None:
    """Raises `ValueError` if a base model has no embedding for a token that the run added to the base's own.

    Some models have tokens without an embedding themselves, so their own tokenizer always passes.
    """
    rows = base.get_input_embeddings().weight.shape[0]
    if len(tokenizer) > rows and AutoTokenizer.from_pretrained(base.name_or_path).get_vocab() != tokenizer.get_vocab():
        raise ValueError(f"it has {rows} token embeddings, the run's tokenizer {len(tokenizer)} tokens")


def _merged(base: PreTrainedModel, folder: Path) -> PreTrainedModel:
    """A base model with the adapter of a folder merged into it; `ValueError` if a tensor of the two is left over."""
    matrix, head = base.get_input_embeddings().weight, base.get_output_embeddings()
    is_tied = head is not None and head.weight is matrix
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", TOLD_OTHERWISE)
        try:
            adapted = PeftModel.from_pretrained(base, str(folder))
        except KeyError as error:  # modules_to_save
            raise ValueError(f"the adapter lacks {error.args[0]}") from error
    keys = adapted.load_adapter(str(folder), "default")  # once more, for what from_pretrained does not return
    faults = {"the adapter lacks": keys.missing_keys, "the base has no place for": keys.unexpected_keys}
    if said := [f"{fault} {len(names)} tensors, such as {names[0]}" for fault, names in faults.items() if names]:
        raise ValueError(" and ".join(said))
    if not is_tied:
        return adapted.merge_and_unload(safe_merge=True)
    for module in base.get_output_embeddings().modules():  # of PEFT's wrappers, one holds the matrix
        for name, parameter in module.named_parameters(recurse=False):
            if parameter is matrix:
                setattr(module, name, torch.nn.Parameter(matrix.detach().clone()))
    base.config.tie_word_embeddings = False
    merged = adapted.merge_and_unload(safe_merge=True)
    if torch.equal(merged.get_input_embeddings().weight, merged.get_output_embeddings().weight):
        merged.config.tie_word_embeddings = True
        merged.tie_weights()
    return merged


def write_model(model: PreTrainedModel, folder: Path, output_dir: Path, model_name_or_path: str | None = None) -> None:
    """Writes a merged model with the other files of its run's folder.

    It copies tokenizer, chat template, generation configuration, `leash_state.json` and `trainer_state.json`; if there
    is no tokenizer, it takes the base model's. `leash_recipe.yaml` loses the fields that make an adapter or quantise
    the base, so that resuming with it trains the merged weights; `model_name_or_path` still names the base model,
    which has the same architecture and stays the reference of a KL penalty. All files go into a folder beside
    `output_dir` first, which is renamed at the end, so a folder named `output_dir` is always complete.

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
        `ValueError`: If `output_dir` is neither new nor empty, before or after the model is written, or cannot be
            written.
    """
    check_output(output_dir)
    try:
        _write_beside(model, folder, output_dir.resolve(), model_name_or_path)
    except (OSError, SafetensorError) as error:  # the second where the disk is full
        raise ValueError(
            f"--output_dir {output_dir} cannot be written: {error}; choose a folder that can, with room for the model"
        ) from error


def _write_beside(model: PreTrainedModel, folder: Path, output_dir: Path, model_name_or_path: str | None) -> None:
    output_dir.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{output_dir.name}.", dir=output_dir.parent) as beside:
        partial = Path(beside, "model")  # with the permissions of new folders, which `beside` has not
        model.save_pretrained(partial)
        if not _has_tokenizer(folder):
            _tokenizer(folder, model).save_pretrained(partial)
        _copy_companions(folder, partial, model_name_or_path)
        check_output(output_dir)  # another merge may have ended first
        if output_dir.is_dir():
            output_dir.rmdir()
        partial.rename(output_dir)


def _copy_companions(folder: Path, target: Path, model_name_or_path: str | None) -> None:
    for path in {path for pattern in COMPANIONS for path in folder.glob(pattern)}:
        if path.is_dir():
            shutil.copytree(path, target / path.name, dirs_exist_ok=True)
        else:
            shutil.copyfile(path, target / path.name)
    if (recipe := folder / RECIPE_FILE).is_file():
        fields = FIELD_START.split(recipe.read_text(encoding="utf-8"))  # comments and their order are kept
        kept = [field for field in fields if not ADAPTER_FIELD.match(field)]
        if model_name_or_path is not None:
            named = f"model_name_or_path: {json.dumps(model_name_or_path)}\n"
            kept = [named if field.startswith("model_name_or_path:") else field for field in kept]
        (target / RECIPE_FILE).write_text("".join(kept), encoding="utf-8")
