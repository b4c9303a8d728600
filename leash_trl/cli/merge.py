"""`leash merge`: merges an adapter and its base model into one model, for vLLM, `leash eval` and the Hub."""

import warnings
from pathlib import Path

from leash_trl.cli.command_parser import CommandParser
from leash_trl.cli.errors import check_writable, user_errors


def main(argv: list[str]) -> None:
    """Runs `leash merge`."""
    parser = CommandParser(
        prog="leash merge",
        description="Merge a LoRA or QLoRA adapter into its base model and write a complete model folder: weights, "
        "tokenizer, chat template, generation configuration, and the run's trainer_state.json and, without the "
        "adapter's fields, leash_recipe.yaml.",
        epilog="QLoRA: the base model is loaded unquantised, which is not what the adapter was trained on, so the "
        "merged model answers a little differently; evaluate it. LoRA: the merge is exact up to rounding in --dtype. "
        "Where training had the base in float32 and it is stored in bfloat16, --dtype float32 keeps what bfloat16 "
        "would round away.",
    )
    parser.add_argument("run", help="folder with adapter_config.json: a run trained with use_peft, or a checkpoint")
    parser.add_argument("--output_dir", required=True, help="folder for the merged model, new or empty")
    parser.add_argument(
        "--model_name_or_path", help="folder or Hub id of the base model (default: the one that the adapter names)"
    )
    parser.add_argument(
        "--dtype",
        choices=("auto", "float32", "bfloat16", "float16"),
        default="auto",
        help="type of the weights (default: the base model's)",
    )
    arguments = parser.parse_args(argv)
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
