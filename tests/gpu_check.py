"""What only a GPU can show: `make gpu-check`; with `--on_cpu`, stand-ins with the gym's model.

Each part is a process with a time limit, which writes its row of the table when it ends. Parts that
time nothing run side by side, the others after them, one by one. The steps of the 1.5B model need 7 GiB in the
temporary folder, for gradients of both trainers.
"""

import argparse
import contextlib
import filecmp
import functools
import itertools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections import deque
from datetime import UTC, datetime
from importlib.metadata import version
from operator import itemgetter
from pathlib import Path

import torch
from conftest import ROOT, gym_tokenizer, parity_reward, quiet
from peft import LoraConfig, get_peft_model
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import TrainerCallback

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer, shrinking_rollout
from leash_trl.cli.commands.plan import make_settings, parse_plan
from leash_trl.engines.cudnn_attention import is_cudnn_attention_faulty
from leash_trl.gym import CHECKPOINT
from leash_trl.gym.dataset import gym_problems
from leash_trl.planning import plan
from recipes import speed


ON_CPU = "--on_cpu" in sys.argv
FOLDER = ROOT / "runs" / ("gpu-stand-ins" if ON_CPU else "gpu")
TIME = 3600 if ON_CPU else 520  # seconds, of all parts
LORA = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
BACKENDS = {"math": SDPBackend.MATH, "flash": SDPBackend.FLASH_ATTENTION}
BACKENDS |= {"memory-efficient": SDPBackend.EFFICIENT_ATTENTION, "cuDNN": SDPBackend.CUDNN_ATTENTION}
CHOICES = {"cuDNN on": [*BACKENDS.values()], "cuDNN off": [*BACKENDS.values()][:3]}
CHOICES |= {f"{name} alone": [backend] for name, backend in BACKENDS.items()}
# shares of the longest completion; with this seed both steps draw one whole, two halves, and the rest shorter
LENGTH_SHARES, LENGTH_SEED, NUM_ROWS = (1, 1 / 2, 1 / 4, 1 / 8), 100, 8
STEP = {"dtype": "float32" if ON_CPU else "bfloat16", "per_device_train_batch_size": 1}
STEP |= {"gradient_accumulation_steps": NUM_ROWS, "num_generations": NUM_ROWS}


def random_model():
    """SmolLM2's architecture with random weights, as its recipe loads it; the gym's model on a CPU."""
    return speed.random_model(speed.Settings("gym" if ON_CPU else "smollm2-135m", "bfloat16"))


def is_bad(tensor: torch.Tensor | None) -> bool:
    return tensor is not None and not bool(tensor.isfinite().all())


def pass_of(model, ids: torch.Tensor, mask: torch.Tensor, backends: list[SDPBackend]) -> str:
    """Forward and backward of a micro-batch: "finite", or of how many weights the gradient is not, and the module of
    whose outputs, or gradients of outputs, the first is not; or that torch refuses these backends."""
    seen: list[str] = []

    def watch(name, module, args, output):
        output = output[0] if isinstance(output, tuple) else output
        if isinstance(output, torch.Tensor) and output.requires_grad:
            seen.extend([f"the output of {name}"] if is_bad(output) else [])
            output.register_hook(lambda grad: seen.extend([f"the gradient at {name}"] if is_bad(grad) else []))

    named = model.named_modules()
    hooks = [module.register_forward_hook(functools.partial(watch, name)) for name, module in named]
    model.zero_grad()
    try:
        with sdpa_kernel(backends), torch.autocast(ids.device.type, torch.bfloat16):
            logits = model(input_ids=ids, attention_mask=mask).logits[:, -33:-1].float()
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, -32:].flatten()).backward()
    except RuntimeError as error:
        return f"refused ({str(error)[:40]})"
    finally:
        for hook in hooks:
            hook.remove()
    gradients = [weights.grad for weights in model.parameters() if weights.requires_grad]
    num_bad = sum(map(is_bad, gradients))
    return f"{num_bad} of {len(gradients)} gradients not finite, first {seen[:1]}" if num_bad or seen else "finite"


def attention(measured: list[str], folder: Path) -> None:
    """Left-padded micro-batches of SmolLM2's architecture, bfloat16, LoRA, by the attention that torch may choose."""
    model, generator, is_finite = get_peft_model(random_model(), LORA), torch.Generator().manual_seed(0), {}
    measured.append(f"the package avoids cuDNN's attention here: {is_cudnn_attention_faulty()}")
    for name, backends in CHOICES.items():
        said: dict[str, list[int]] = {}
        for width in (64, 192, 320, 65, 128):  # the first three are of cuDNN's fault
            ids = torch.randint(5, model.config.vocab_size, (4, width), generator=generator).to(model.device)
            mask = (torch.arange(width) >= torch.tensor([[0], [3], [7], [12]])).long().to(model.device)
            said.setdefault(pass_of(model, ids, mask, backends), []).append(width)
        is_finite[name] = [*said] == ["finite"]
        measured.append(f"{name}: {', '.join(f'{what} at {widths}' for what, widths in said.items())}")
    assert is_finite["cuDNN off"]
    assert is_finite["cuDNN on"] or is_cudnn_attention_faulty()


class Watch(TrainerCallback):
    """Names what is not finite before and after an update, and keeps the micro-batches of the last one."""

    def __init__(self):
        self.bad, self.widths, self.batches = [], set(), deque(maxlen=2)

    def keep(self, model, args, named):
        if torch.is_grad_enabled():
            self.batches.append((named["input_ids"], named["attention_mask"]))
            self.widths.add(named["input_ids"].shape[1])

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        self.bad += [name for name, weights in model.named_parameters() if is_bad(weights.grad) or is_bad(weights)]

    on_step_end = on_pre_optimizer_step


def updates(measured: list[str], folder: Path, cudnn: bool) -> None:
    """Updates of LeashGRPOTrainer without a penalty; they may end with cuDNN's attention on. Prompts are padded to 64
    tokens and completions to 128, so that the widest micro-batches are of the fault's width."""
    settings = {"length_control": "none", "lambda_lr": None, "max_steps": 10, "num_generations": 8}
    settings |= {"pad_to_multiple_of": 64, "max_completion_length": 128, "gradient_accumulation_steps": 2}
    settings |= {"learning_rate": 3e-4, "use_cpu": ON_CPU, "bf16": True, "gradient_checkpointing": False}
    watch, args = Watch(), LeashGRPOConfig(**quiet(folder, **settings))
    data = {"train_dataset": gym_problems("train", 256), "processing_class": gym_tokenizer(), "peft_config": LORA}
    made = {"callbacks": [watch], "rollout_func": shrinking_rollout, **data}
    trainer = LeashGRPOTrainer(random_model(), parity_reward, args, **made)
    if cudnn:
        torch.backends.cuda.enable_cudnn_sdp(True)
    trainer.model.register_forward_pre_hook(watch.keep, with_kwargs=True)
    error = ""
    try:
        trainer.train()
    except (FloatingPointError, RuntimeError) as why:
        error = f"{type(why).__name__}: {why}"
    norms = [row["grad_norm"] for row in trainer.state.log_history if "grad_norm" in row]
    measured.append(f"{len(norms)} updates at widths {sorted(watch.widths)}; largest norm {max(norms, default=0):.2g}")
    measured += [*watch.bad[:1], error or "nothing raised"]
    for (ids, mask), (name, backends) in itertools.product([*watch.batches], CHOICES.items()):
        if error or watch.bad:
            measured.append(f"width {ids.shape[1]}, {name}: {pass_of(trainer.model, ids, mask, backends)}")
    assert any(width % 128 == 64 for width in watch.widths)
    assert error if watch.bad else len(norms) == args.max_steps and max(norms) > 0
    assert cudnn or not error


def rows_of(output_dir: Path) -> list[tuple]:
    """What each step of a run of eight logged."""
    state = json.loads((output_dir / "checkpoint-8" / "trainer_state.json").read_text(encoding="utf-8"))
    read = itemgetter("step", "loss", "grad_norm", "leash/lambda", "leash/mean_length", "num_tokens")
    return [read(row) for row in state["log_history"] if "loss" in row]


def killed(measured: list[str], folder: Path) -> None:
    """SIGKILL in the middle of step 6, then resume from the checkpoint of step 4. The steps before it, computed twice
    without resuming, say whether the kernels that `full_determinism` takes give equal bits on the card at all."""
    changes = json.dumps({"use_cpu": ON_CPU, "bf16": True, "full_determinism": True})

    def code_of(name: str, *words: str) -> int:
        script = ROOT / "tests" / "support" / "killable_run.py"
        command = [sys.executable, script, CHECKPOINT, folder / name, "--changes", changes, *words]
        return subprocess.run(command).returncode

    assert code_of("killed", "--kill_in_step", "6") == -signal.SIGKILL
    assert {path.name for path in (folder / "killed").glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}
    assert (code_of("whole"), code_of("killed", "--resume")) == (0, 0)
    whole, resumed = rows_of(folder / "whole"), rows_of(folder / "killed")
    measured += [f"step, loss, norm, lambda at the end {rows[-1][:4]}" for rows in (whole, resumed)]
    assert resumed[:4] == whole[:4], "without any resuming, two runs differ: the card is not deterministic here"
    assert resumed == whole
    files = (folder / name / "checkpoint-8" / "model.safetensors" for name in ("whole", "killed"))
    assert filecmp.cmp(*files, shallow=False)
    assert len({row[3] for row in whole}) > 1, "lambda has not moved"


def words_of(options: dict[str, object]) -> list[str]:
    return [str(word) for name, value in options.items() for word in (f"--{name}", value)]


def speed_of(what: str, folder: Path, **options: object) -> dict[str, dict]:
    """What recipes/speed.py writes."""
    subprocess.run([sys.executable, speed.__file__, what, *words_of({"output_dir": folder, **options})])
    made = json.loads((folder / f"{what}.json").read_text(encoding="utf-8"))
    assert not (failed := [arm["failed"] for arm in made["results"].values() if "failed" in arm]), failed
    return made


def planned_gib(max_length: int) -> float:
    """What `leash plan` makes of the settings of the benchmark."""
    model = "gym" if ON_CPU else "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"
    options = {"model_name_or_path": model, "output_dir": FOLDER, "target_length": 1, **STEP}
    options |= {"bf16": "false", "gradient_checkpointing": "true", "num_gpus": 1, "gpu_memory": 80}
    options |= {"prompt_length": 21, "max_completion_length": max_length}  # the gym's longest prompt
    return plan.peak_bytes(make_settings(*parse_plan(words_of(options))))[0] / plan.GIB


def step(measured: list[str], folder: Path, max_length: int) -> None:
    """A step of R1-Distill-Qwen-1.5B's architecture, of both trainers."""
    lengths = (f"{int(share * max_length)}\n" for share in LENGTH_SHARES)
    (folder / "lengths.csv").write_text("length\n" + "".join(lengths))
    options = {"model_name_or_path": "gym" if ON_CPU else "r1-distill-1.5b", "gradient_checkpointing": True, **STEP}
    options |= {"lengths": folder / "lengths.csv", "max_length": max_length, "steps": 1, "seed": LENGTH_SEED}
    made = speed_of("step", folder, **options)
    keys = ("forward and backward, s", "padding share", "peak memory, GiB")
    seconds, padding, memory = ([made["results"][name][key] for name in ("stock", "ours")] for key in keys)
    times, apart, planned = seconds[0] / seconds[1], made["gradient_difference"], planned_gib(max_length)
    measured += [
        f"TRL {seconds[0]:.2f} s, ours {seconds[1]:.2f} s: {times:.2f} times",
        f"padding {padding[0]:.0%}, {padding[1]:.0%}; gradients {apart:.1g} apart",
        f"peak memory {memory[0]:.2f}, {memory[1]:.2f} GiB; planned {planned:.2f} GiB",
    ]
    assert padding[1] < 0.01 < 0.5 < padding[0]
    # on a model of as many layers in bfloat16, a CPU gave 0.009; gradients of other completions differ by more than 1
    assert apart < (1e-5 if ON_CPU else 0.1)
    # on a CPU the model is tiny, and a process holds more and less than tensors
    assert ON_CPU or (times > 1 and memory[1] <= 1.02 * memory[0] and 1 <= planned / memory[1] <= 1.35)


def rollout(measured: list[str], folder: Path, cudnn: bool) -> None:
    """Sampling with transformers at SmolLM2's architecture."""
    options = {"model_name_or_path": "gym" if ON_CPU else "smollm2-135m", "dtype": "bfloat16", "max_length": 128}
    for name, arm in speed_of("rollout", folder, cudnn_attention=cudnn, steps=1, **options)["results"].items():
        rates = arm["completion tokens per s"], arm["the same in the first round"]
        measured.append(f"{name} {rates[0]:,.0f} tokens/s, {rates[1]:,.0f} in the first round")


# limit in seconds, and what runs; on an H200 with a slow host the first four took 112 together, the steps 82 and 89
PARTS = {
    "attention": (140, attention),
    "updates": (140, functools.partial(updates, cudnn=False)),
    "updates-cudnn": (140, functools.partial(updates, cudnn=True)),
    "killed": (140, killed),
    "step-8192": (160, functools.partial(step, max_length=128 if ON_CPU else 8192)),
    "rollout-cudnn": (100, functools.partial(rollout, cudnn=True)),
    "rollout": (100, functools.partial(rollout, cudnn=False)),
    "step-16384": (200, functools.partial(step, max_length=256 if ON_CPU else 16384)),
}
TOGETHER = ("attention", "updates", "updates-cudnn", "killed")


def write(*lines: str) -> None:
    with open(FOLDER / "table.md", "a", encoding="utf-8") as table:
        print(*lines, sep="\n", file=table)


def run_part(name: str) -> None:
    """Runs a part in this process, which it makes the leader of a group, and writes its row."""
    os.setpgrp()
    with open(FOLDER / "log", "ab") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    start, measured, result = time.monotonic(), [], "passed"
    with tempfile.TemporaryDirectory(prefix="gpu-check-", ignore_cleanup_errors=True) as folder:
        try:
            PARTS[name][1](measured, Path(folder))
        except Exception as why:
            traceback.print_exc()
            claim = traceback.extract_tb(why.__traceback__)[-1].line or ""
            result = f"{type(why).__name__}: {(str(why) or claim).splitlines()[0]}"
    cells = (name, f"{time.monotonic() - start:.0f}", "; ".join(measured), result)
    write(f"| {' | '.join(' '.join(cell.replace('|', '/').split()) for cell in cells)} |")


def main() -> int:
    parser = argparse.ArgumentParser()
    parser.add_argument("--parts", nargs="+", choices=[*PARTS], default=[*PARTS])
    parser.add_argument("--on_cpu", action="store_true")
    chosen = parser.parse_args().parts
    if not ON_CPU and not torch.cuda.is_available():
        parser.error("no CUDA device; run it by make gpu-check, or --on_cpu for stand-ins")
    FOLDER.mkdir(parents=True, exist_ok=True)
    for name in ("table.md", "log"):  # of an earlier check
        (FOLDER / name).unlink(missing_ok=True)
    card = "CPU, no GPU" if ON_CPU else f"{torch.cuda.get_device_name()}, cuDNN {torch.backends.cudnn.version()}"
    versions = ", ".join(f"{name} {version(name)}" for name in ("torch", "transformers", "trl", "accelerate", "peft"))
    write(f"`make gpu-check` · {datetime.now(UTC).date()} · {card} · {versions}", "")
    write("| part | seconds | measured | result |", "| --- | --- | --- | --- |")
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    end, spawn = time.monotonic() + TIME, multiprocessing.get_context("spawn")
    for names in (TOGETHER, *([name] for name in PARTS if name not in TOGETHER)):
        start, processes = time.monotonic(), {}
        try:
            for name in [name for name in names if name in chosen]:
                processes[name] = spawn.Process(target=run_part, args=(name,))
                processes[name].start()
            for name, process in processes.items():
                limit = TIME if ON_CPU else PARTS[name][0]
                process.join(max(0, min(start + limit, end) - time.monotonic()))
                if process.exitcode != 0:
                    how = "out of time" if process.is_alive() else f"died, exit code {process.exitcode}"
                    write(f"| {name} | {time.monotonic() - start:.0f} | see the file log | {how} |")
        finally:
            for process in processes.values():
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(process.pid, signal.SIGKILL)
                process.kill()
    print(table := (FOLDER / "table.md").read_text(encoding="utf-8"))
    rows = table.splitlines()[4:]  # more than parts, if one died after its row or another check ran beside this one
    return 0 if len(rows) == len(chosen) and all(row.endswith("| passed |") for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
