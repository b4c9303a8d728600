"""Makes a model folder of a GGUF file: its weights, dequantized to float32, tokenizer and chat template.

    python recipes/smollm2_135m/from_gguf.py MODEL.gguf FOLDER

transformers dequantizes the file, but a model loaded in this way can be neither saved nor trained, so its weights move
into a new one. Needs the package gguf.
"""

import struct
import sys
import tempfile
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(file: Path, folder: Path) -> None:
    """Writes the model of a GGUF file into a new folder, which is complete or not there."""
    if folder.is_file() or (folder.is_dir() and any(folder.iterdir())):
        sys.exit(f"{folder} is there already; name a new folder, or remove it")
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    try:
        loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
        tokenizer = AutoTokenizer.from_pretrained(**source)
    except (OSError, ValueError, LookupError, struct.error) as error:
        sys.exit(f"{file} cannot be read: {error!r}; make real-model fetches it again")
    config = loaded.config
    del config.quantization_config
    vars(config).pop("_model_name_or_path", None)  # the title that the file has
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f"{folder.name}.", dir=folder.parent) as beside:
        partial = Path(beside, "model")  # with the permissions of new folders, which `beside` has not
        model.save_pretrained(partial)
        tokenizer.save_pretrained(partial)
        partial.rename(folder)
    print(f"wrote {folder}: {model.num_parameters():,} parameters")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: python recipes/smollm2_135m/from_gguf.py MODEL.gguf FOLDER")
    main(Path(sys.argv[1]), Path(sys.argv[2]))
