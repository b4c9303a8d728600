"""The parts of test_gpu that train in a process of their own, on a GPU or the CPU.

python tests/gpu_run.py machine|gradients FOLDER OPTIONS, as JSON
"""

import importlib.metadata
import itertools
import json
import os
import platform
import sys
from pathlib import Path

import torch


# the weight of a micro-batch is the same for the first however rows are grouped, but not for the second
LOSS_TYPES = ("dapo", "grpo")
PACKAGES = ("leash-trl", "torch", "transformers", "trl", "accelerate", "peft", "flash-attn")


def machine(folder: Path, on_cpu: bool) -> dict:
    """What the parts run on: of the first card its name and memory; and what has a version."""
    has_cuda = torch.cuda.is_available()
    installed = [name for name in PACKAGES if [*importlib.metadata.distributions(name=name)]]
    return {
        "name": torch.cuda.get_device_name(0) if has_cuda else f"{platform.machine()} CPU",
        "memory_gib": torch.cuda.get_device_properties(0).total_memory / 2**30 if has_cuda else 0.0,
        "num_devices": torch.cuda.device_count(),
        "versions": {name: importlib.metadata.version(name) for name in installed},
    }


def gradients(folder: Path, on_cpu: bool, model_path: str, attention: str = "sdpa") -> None:
    """Writes the gradients of both trainers, in float32 and with bfloat16 autocast, one file per process.

    One iteration: with two, rounding decides which tokens' ratios are clipped, and so drop out.
    """
    import gradient_run

    seen = {}
    for loss_type, precision, name in itertools.product(LOSS_TYPES, ("float32", "bfloat16"), ("stock", "ours")):
        is_rounded = precision == "bfloat16"
        settings = {"loss_type": loss_type, "num_iterations": 1, "use_cpu": on_cpu, "bf16": is_rounded}
        # flash attention does not compute in float32
        model = {"dtype": torch.float32, "attn_implementation": attention if is_rounded else "sdpa"}
        output_dir, is_stock = str(folder / "runs"), name == "stock"
        seen[loss_type, precision, name] = gradient_run.run(model_path, output_dir, is_stock, settings, **model)
    torch.save(seen, folder / f"rank{os.environ.get('RANK', 0)}.pt")
    if torch.distributed.is_initialized():
        # as in_two_processes ends, and for its reasons
        torch.distributed.barrier()
        os._exit(0)


if __name__ == "__main__":
    part, folder, options = sys.argv[1], Path(sys.argv[2]), json.loads(sys.argv[3])
    found = globals()[part](folder, **options)
    (folder / f"{part}.json").write_text(json.dumps(found), encoding="utf-8")
