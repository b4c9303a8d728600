"""Makes a model folder of a GGUF file: its weights, dequantised to float32, tokenizer and chat template.

    python recipes/smollm2_135m/from_gguf.py MODEL.gguf FOLDER

transformers dequantises the file, but a model loaded in this way can be neither saved nor trained, so its weights move
into a new one. Needs the package gguf.
"""

import sys
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main(file: Path, folder: Path) -> None:
    """Writes the model of a GGUF file into a new folder, which is complete or not there."""
    source = {"pretrained_model_name_or_path": str(file.parent), "gguf_file": file.name}
    loaded = AutoModelForCausalLM.from_pretrained(**source, dtype=torch.float32)
    config = loaded.config
    del config.quantization_config
    vars(config).pop("_model_name_or_path", None)  # the title that the file has
    model = type(loaded)(config)
    model.load_state_dict(loaded.state_dict())
    model.generation_config = loaded.generation_config
    partial = folder.with_name(f"{folder.name}.partial")
    model.save_pretrained(partial)
    AutoTokenizer.from_pretrained(**source).save_pretrained(partial)
    partial.rename(folder)
    print(f"wrote {folder}: {model.num_parameters():,} parameters")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
