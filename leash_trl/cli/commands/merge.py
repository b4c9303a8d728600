"""`leash merge`: merges an adapter with its base model into one model for vLLM, `leash eval` and the Hub."""

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from leash_trl import process
from leash_trl.cli.arguments import parse
from leash_trl.cli.errors import create_writable_folder, errors_to_user_errors
from leash_trl.paths import path_or_hub_id


@dataclass(kw_only=True)
class MergeArguments:
    """Merge a LoRA or QLoRA adapter into its base model and write a complete model folder.

    With QLoRA, the base is loaded without quantization, unlike in training, so evaluate the merged model. With LoRA,
    the merge is exact up to rounding to --dtype; set it to float32 if the base is stored in bfloat16 and you want no
    rounding.

    Args:
        run (`str`): Folder or Hub id of an adapter, such as a run or a checkpoint of leash train with use_peft.
        output_dir (`str`): New or empty folder for the merged model.
        model_name_or_path (`str`): Folder or Hub id of the base model (default: that of the adapter).
        dtype (`str`): Type of the weights; auto is the type of the base model.
        strength (`float`): Factor from 0 to 2 by which the adapter's changes are multiplied: 0.6 stays closer to the
            base model; several merges of one run give a curve of accuracy over tokens.
    """

    run: str = field(metadata={"positional": True})
    output_dir: str
    model_name_or_path: str | None = None
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    strength: float = 1.0


def main(argv: list[str]) -> None:
    """Merges the adapter and prints where the merged model is."""
    arguments = parse(MergeArguments, argv, "leash merge")
    process.ignore_future_warnings()  # transformers' own code causes some while it saves
    from leash_trl.merging import merge_adapter

    with errors_to_user_errors():
        create_writable_folder(arguments.output_dir)
        folder = Path(path_or_hub_id(arguments.run, "run"))
        merged = Path(arguments.output_dir)
        model = merge_adapter(folder, merged, arguments.dtype, arguments.model_name_or_path, arguments.strength)
    print(f"Merged {folder} with a copy of its base {model.name_or_path} in {model.dtype}: {merged}")
