"""`leash merge`: merges an adapter and its base model into one model, for vLLM, `leash eval` and the Hub."""

import warnings
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from leash_trl.cli.arguments import option, parse
from leash_trl.cli.errors import check_writable, user_errors


DESCRIPTION = (
    "Merge a LoRA or QLoRA adapter into its base model and write a complete model folder, with the run's "
    "trainer_state.json and, without the adapter's fields, leash_recipe.yaml."
)
EPILOG = (
    "QLoRA: the base model is loaded unquantised, which is not what the adapter was trained on, so the merged model "
    "answers a little differently; evaluate it. LoRA: the merge is exact up to rounding in --dtype. Where training "
    "had the base in float32 and it is stored in bfloat16, --dtype float32 keeps what bfloat16 would round away."
)


@dataclass
class MergeArguments:
    """Options of `leash merge`."""

    run: str = field(metadata={"positional": True, "help": "folder of an adapter: a run or checkpoint with use_peft"})
    output_dir: str = field(metadata={"help": "folder for the merged model, new or empty"})
    model_name_or_path: str | None = option("folder or Hub id of the base (default: the one that the adapter names)")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option("of the weights; auto is the base's", "auto")


def main(argv: list[str]) -> None:
    """Runs `leash merge`."""
    arguments = parse(MergeArguments, argv, prog="leash merge", description=DESCRIPTION, epilog=EPILOG)
    folder, output_dir = Path(arguments.run), Path(arguments.output_dir)

    warnings.filterwarnings("ignore", category=FutureWarning)  # from transformers' own code, while saving
    from leash_trl.hub.merge import merge_adapter

    with user_errors():
        check_writable(output_dir)
        model = merge_adapter(folder, output_dir, arguments.dtype, arguments.model_name_or_path)
    print(
        f"Merged {folder} and its base {model.name_or_path}, which stays as it is: {model.num_parameters():,} "
        f"parameters in {str(model.dtype).removeprefix('torch.')}; the model is in {output_dir}"
    )
