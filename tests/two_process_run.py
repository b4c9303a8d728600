"""Everything that test_distributed looks at in two processes, in one go: starting them takes longest.

Used by test_distributed, which starts it with torchrun.
"""

import os
import sys
from pathlib import Path

import conftest  # noqa: F401  puts tests/support on the path
import cut_run
import gradient_run
import scripted_run
import torch


if __name__ == "__main__":
    model_path, folder = sys.argv[1], Path(sys.argv[2])
    seen = {
        "scenarios": {name: scripted_run.run_scenario(name, model_path, folder) for name in scripted_run.SCENARIOS},
        "cuts": {name: cut_run.run(name, model_path, folder / "cuts") for name in cut_run.SCENARIOS},
        "gradients": gradient_run.run_all(model_path, str(folder / "gradients")),
    }
    torch.save(seen, folder / f"rank{torch.distributed.get_rank()}.pt")
    # the first process to leave would otherwise pull the connection from under the other
    torch.distributed.barrier()
    # gloo's threads hold tensors of Python's and can abort a process that winds down the interpreter:
    # https://github.com/pytorch/pytorch/pull/179291
    os._exit(0)
