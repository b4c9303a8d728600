"""What only a GPU can show: `make gpu-check`; with `--on_cpu`, stand-ins with the gym's model.

Each part is a process with a time limit, which writes its row of the table when it ends. Parts that
time nothing run side by side, the others after them, one by one. The steps of the 1.5B model need 7 GiB in the
temporary folder, for gradients of both trainers.
"""

import argparse
import contextlib
import filecmp
import functools
import json
import multiprocessing
import os
import signal
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import pandas as pd
import torch
from conftest import ROOT, gym_tokenizer, logged, parity_reward, quiet
from peft import LoraConfig, get_peft_model
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoConfig, AutoModelForCausalLM, TrainerCallback

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer, shrinking_rollout
from leash_trl.cli.commands.plan import parse_plan, plan_settings
from leash_trl.engines.cudnn_attention import is_cudnn_attention_faulty
from leash_trl.gym import CHECKPOINT
from leash_trl.gym.dataset import gym_problems
from leash_trl.planning import plan
from recipes import speed


ON_CPU = "--on_cpu" in sys.argv
FOLDER = ROOT / "runs" / ("gpu-stand-ins" if ON_CPU else "gpu")
TIME = 3600 if ON_CPU else 520  # seconds, of all parts
LORA = LoraConfig(r=8, lora_alpha=16, target_modules="all-linear", task_type="CAUSAL_LM", init_lora_weights=False)
MATH = SDPBackend.MATH
FLASH = SDPBackend.FLASH_ATTENTION
EFFICIENT = SDPBackend.EFFICIENT_ATTENTION
CUDNN = SDPBackend.CUDNN_ATTENTION
CHOICES = {  # implementations of attention that torch may choose from
    "cuDNN on": [MATH, FLASH, EFFICIENT, CUDNN],
    "cuDNN off": [MATH, FLASH, EFFICIENT],
    "math alone": [MATH],
    "flash alone": [FLASH],
    "memory-efficient alone": [EFFICIENT],
    "cuDNN alone": [CUDNN],
}
# shares of the longest completion; with this seed both steps draw one whole, two halves, and the rest shorter
LENGTH_SHARES = (1, 1 / 2, 1 / 4, 1 / 8)
LENGTH_SEED = 100
NUM_ROWS = 8
STEP = {
    "dtype": "float32" if ON_CPU else "bfloat16",
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": NUM_ROWS,
    "num_generations": NUM_ROWS,
}


def random_model():
    """SmolLM2's architecture with random weights, as its recipe loads it; the gym's model on a CPU."""
    return speed.random_model(speed.Settings("gym" if ON_CPU else "smollm2-135m", "bfloat16"))


def is_bad(tensor):
    """Whether a number of it is infinite or NaN."""
    return tensor is not None and not bool(tensor.isfinite().all())


def pass_of(model, ids, mask, backends):
    """Forward and backward of a micro-batch: "finite", or of how many weights the gradient is not; or that torch
    refuses these backends."""
    model.zero_grad()
    try:
        with sdpa_kernel(backends), torch.autocast(ids.device.type, torch.bfloat16):
            logits = model(input_ids=ids, attention_mask=mask).logits[:, -33:-1].float()
            torch.nn.functional.cross_entropy(logits.flatten(0, 1), ids[:, -32:].flatten()).backward()
    except RuntimeError as error:
        return f"refused ({str(error)[:40]})"
    gradients = [weights.grad for weights in model.parameters() if weights.requires_grad]
    num_bad = sum(is_bad(gradient) for gradient in gradients)
    return "finite" if num_bad == 0 else f"{num_bad} of {len(gradients)} gradients not finite"


def attention(measured, folder):
    """Left-padded micro-batches of SmolLM2's architecture, bfloat16, LoRA, by the attention that torch may choose."""
    model = get_peft_model(random_model(), LORA)
    generator = torch.Generator().manual_seed(0)
    num_padding = torch.tensor([[0], [3], [7], [12]])  # of the four rows
    measured.append(f"the package avoids cuDNN's attention here: {is_cudnn_attention_faulty()}")
    is_finite = {}
    for name, backends in CHOICES.items():
        widths_by_outcome = {}
        for width in (64, 192, 320, 65, 128):  # the first three are of cuDNN's fault
            ids = torch.randint(5, model.config.vocab_size, (4, width), generator=generator).to(model.device)
            mask = (torch.arange(width) >= num_padding).long().to(model.device)
            outcome = pass_of(model, ids, mask, backends)
            widths_by_outcome.setdefault(outcome, []).append(width)
        is_finite[name] = list(widths_by_outcome) == ["finite"]
        outcomes = ", ".join(f"{outcome} at {widths}" for outcome, widths in widths_by_outcome.items())
        measured.append(f"{name}: {outcomes}")
    assert is_finite["cuDNN off"]
    assert is_finite["cuDNN on"] or is_cudnn_attention_faulty()


class Watch(TrainerCallback):
    """Names what is not finite before and after an update, and keeps the widths of the micro-batches."""

    def __init__(self):
        self.bad = []  # names of parameters
        self.widths = set()

    def keep(self, model, args, kwargs):
        """A hook before each forward pass of the model."""
        if torch.is_grad_enabled():
            self.widths.add(kwargs["input_ids"].shape[1])

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        for name, weights in model.named_parameters():
            if is_bad(weights.grad) or is_bad(weights):
                self.bad.append(name)

    on_step_end = on_pre_optimizer_step


def updates(measured, folder, cudnn):
    """Updates of LeashGRPOTrainer without a penalty; they may end with cuDNN's attention on. Prompts are padded to 64
    tokens and completions to 128, so that the widest micro-batches are of the fault's width."""
    settings = {
        "length_control": "none",
        "lambda_lr": None,
        "max_steps": 10,
        "num_generations": 8,
        "pad_to_multiple_of": 64,
        "max_completion_length": 128,
        "gradient_accumulation_steps": 2,
        "learning_rate": 3e-4,
        "use_cpu": ON_CPU,
        "bf16": True,
        "gradient_checkpointing": False,
    }
    args = LeashGRPOConfig(**quiet(folder, **settings))
    watch = Watch()
    trainer = LeashGRPOTrainer(
        random_model(),
        parity_reward,
        args,
        train_dataset=gym_problems("train", 256),
        processing_class=gym_tokenizer(),
        peft_config=LORA,
        callbacks=[watch],
        rollout_func=shrinking_rollout,
    )
    if cudnn:
        torch.backends.cuda.enable_cudnn_sdp(True)
    trainer.model.register_forward_pre_hook(watch.keep, with_kwargs=True)
    error = ""
    try:
        trainer.train()
    except (FloatingPointError, RuntimeError) as raised:
        error = f"{type(raised).__name__}: {raised}"
    norms = logged(trainer, "grad_norm")
    measured.append(f"{len(norms)} updates at widths {sorted(watch.widths)}; largest norm {max(norms, default=0):.2g}")
    measured += watch.bad[:1]
    measured.append(error or "nothing raised")
    assert any(width % 128 == 64 for width in watch.widths)
    if watch.bad:
        assert error  # the trainer has noticed
    else:
        assert len(norms) == args.max_steps
        assert max(norms) > 0
    assert cudnn or not error


def exit_code_of_run(launcher, model, folder, *words, **changes):
    """The exit code of `killable_run.py` with these words behind it and these changes to its configuration."""
    script = ROOT / "tests" / "support" / "killable_run.py"
    changes = json.dumps({"use_cpu": ON_CPU, "bf16": True, **changes})
    command = [sys.executable, *launcher, script, model, folder, "--changes", changes, *words]
    return subprocess.run(command).returncode


def logged_by(checkpoint):
    """What each update until a checkpoint logged, without the times."""
    names = ["step", "loss", "grad_norm", "leash/lambda", "leash/violation", "leash/mean_length", "num_tokens"]
    state = json.loads((checkpoint / "trainer_state.json").read_text(encoding="utf-8"))
    return [{name: row[name] for name in names} for row in state["log_history"] if "loss" in row]


def killed(measured, folder):
    """SIGKILL in the middle of step 6, then resume from the checkpoint of step 4. The steps before it, computed twice
    without resuming, say whether the kernels that `full_determinism` takes give equal bits on the card at all."""
    run = functools.partial(exit_code_of_run, [], CHECKPOINT, full_determinism=True)
    assert run(folder / "killed", "--kill_in_step", "6") == -signal.SIGKILL
    assert {path.name for path in (folder / "killed").glob("checkpoint-*")} == {"checkpoint-2", "checkpoint-4"}
    assert run(folder / "whole") == 0
    assert run(folder / "killed", "--resume") == 0
    last = folder / "whole" / "checkpoint-8"
    last_of_resumed = folder / "killed" / "checkpoint-8"
    whole = logged_by(last)
    resumed = logged_by(last_of_resumed)
    measured += [f"at the end {rows[-1]}" for rows in (whole, resumed)]
    assert resumed[:4] == whole[:4], "without any resuming, two runs differ: the card is not deterministic here"
    assert resumed == whole
    assert filecmp.cmp(last / "model.safetensors", last_of_resumed / "model.safetensors", shallow=False)
    assert len({row["leash/lambda"] for row in whole}) > 1, "lambda has not moved"


def r1_with_the_gyms_vocabulary(folder):
    """Saves a model of R1-Distill-Qwen-1.5B's architecture, whose random weights write tokens of the gym."""
    tokenizer = gym_tokenizer()
    shape = speed.SHAPES["r1-distill-1.5b"] | {"vocab_size": len(tokenizer)}
    config = AutoConfig.for_model(**shape, eos_token_id=tokenizer.eos_token_id, pad_token_id=tokenizer.pad_token_id)
    AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def fsdp(measured, folder):
    """Three updates with `recipes/accelerate/fsdp2.yaml` in one process, killed in the third and resumed; on a CPU,
    where accelerate refuses FSDP, without it."""
    model = CHECKPOINT if ON_CPU else r1_with_the_gyms_vocabulary(folder / "model")
    launcher = ["--config_file", ROOT / "recipes" / "accelerate" / "fsdp2.yaml", "--num_processes", "1"]
    if ON_CPU:
        launcher = ["--cpu", "--num_processes", "1"]
    launcher = ["-m", "accelerate.commands.launch", *launcher]
    run = functools.partial(exit_code_of_run, launcher, model, folder / "run", max_steps=3)
    assert run("--kill_in_step", "3") != 0
    assert (folder / "run" / "checkpoint-2" / "trainer_state.json").exists()
    assert run("--resume") == 0
    rows = logged_by(folder / "run" / "checkpoint-3")
    lambdas = [row["leash/lambda"] for row in rows]
    violations = [row["leash/violation"] for row in rows]
    measured.append(f"lambda {lambdas}; violations {violations}; norms {[row['grad_norm'] for row in rows]}")
    assert len(rows) == 3
    args = LeashGRPOConfig(**quiet(folder))
    for lam, violation, next_lam in zip(lambdas, violations, lambdas[1:], strict=False):
        expected = min(max(lam + args.lambda_lr * violation, 0.0), 1.0)  # the paper's Algorithm 1
        assert abs(next_lam - expected) < 1e-6


def words_of(options):
    """Options as words of a command line."""
    words = []
    for name, value in options.items():
        values = value if isinstance(value, list) else [value]
        words += [f"--{name}", *map(str, values)]
    return words


def speed_of(benchmark, folder, **options):
    """The report that recipes/speed.py writes of its benchmark `step` or `rollout`."""
    words = words_of({"output_dir": folder} | options)
    subprocess.run([sys.executable, speed.__file__, benchmark, *words])
    report = json.loads((folder / f"{benchmark}.json").read_text(encoding="utf-8"))
    failures = [arm["failed"] for arm in report["results"].values() if "failed" in arm]
    assert not failures, failures
    return report


def planned_gib(max_length):
    """What `leash plan` makes of the settings of the benchmark."""
    options = {
        "model_name_or_path": "gym" if ON_CPU else "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B",
        "output_dir": FOLDER,
        "target_length": 1,
        "bf16": "false",
        "gradient_checkpointing": "true",
        "num_gpus": 1,
        "gpu_memory": 80,
        "prompt_length": 21,  # the gym's longest prompt
        "max_completion_length": max_length,
    }
    arguments, _, training_args, model_args = parse_plan(words_of(options | STEP))
    settings = plan_settings(arguments, training_args, model_args)
    return plan.memory_table(settings)["training"].sum() / plan.GIB


def step(measured, folder, max_length):
    """A step of R1-Distill-Qwen-1.5B's architecture, of both trainers."""
    lengths = [int(share * max_length) for share in LENGTH_SHARES]
    pd.DataFrame({"length": lengths}).to_csv(folder / "lengths.csv", index=False)
    options = {
        "model_name_or_path": "gym" if ON_CPU else "r1-distill-1.5b",
        "gradient_checkpointing": True,
        "lengths": folder / "lengths.csv",
        "max_length": max_length,
        "steps": 1,
        "seed": LENGTH_SEED,
    }
    report = speed_of("step", folder, **options, **STEP)
    results = pd.DataFrame(report["results"]).T  # a row for TRL's trainer, `stock`, and one for ours
    seconds = results["forward and backward, s"]
    padding = results["padding share"]
    memory = results["peak memory, GiB"]
    speedup = seconds["stock"] / seconds["ours"]
    difference = report["gradient_difference"]
    planned = planned_gib(max_length)
    measured += [
        f"TRL {seconds['stock']:.2f} s, ours {seconds['ours']:.2f} s: {speedup:.2f} times",
        f"padding {padding['stock']:.0%}, {padding['ours']:.0%}; gradients {difference:.1g} apart",
        f"peak memory {memory['stock']:.2f}, {memory['ours']:.2f} GiB; planned {planned:.2f} GiB",
    ]
    assert padding["ours"] < 0.01
    assert padding["stock"] > 0.5
    # on a model of as many layers in bfloat16, a CPU gave 0.009; gradients of other completions differ by more than 1
    assert difference < (1e-5 if ON_CPU else 0.1)
    if not ON_CPU:  # there the model is tiny, and a process holds more and less than tensors
        assert speedup > 1
        assert memory["ours"] <= 1.02 * memory["stock"]
        assert 1 <= planned / memory["ours"] <= 1.35


def rollout(measured, folder, cudnn):
    """Sampling with transformers at SmolLM2's architecture."""
    options = {"model_name_or_path": "gym" if ON_CPU else "smollm2-135m", "dtype": "bfloat16", "max_length": 128}
    if not cudnn:
        options["engines"] = ["generate", "static-cache", "shrinking"]
        if not ON_CPU:
            options["engines"].append("continuous-batching")
    report = speed_of("rollout", folder, cudnn_attention=cudnn, steps=1, **options)
    for name, arm in report["results"].items():
        rate = arm["completion tokens per s"]
        first_rate = arm["the same in the first round"]
        measured.append(f"{name} {rate:,.0f} tokens/s, {first_rate:,.0f} in the first round")


class Part(NamedTuple):
    """A part of the check: its limit in seconds, and a function that appends to what it measured and raises if it
    fails."""

    limit: float
    check: Callable[[list[str], Path], None]


# on an H200 with a slow host the first four took 112 seconds together, the steps 82 and 89
PARTS = {
    "attention": Part(140, attention),
    "updates": Part(140, functools.partial(updates, cudnn=False)),
    "updates-cudnn": Part(140, functools.partial(updates, cudnn=True)),
    "killed": Part(140, killed),
    "fsdp": Part(200, fsdp),
    "step-8192": Part(160, functools.partial(step, max_length=128 if ON_CPU else 8192)),
    "rollout-cudnn": Part(100, functools.partial(rollout, cudnn=True)),
    "rollout": Part(160, functools.partial(rollout, cudnn=False)),
    "step-16384": Part(200, functools.partial(step, max_length=256 if ON_CPU else 16384)),
}
# these time nothing, so they run side by side; the others follow one by one
TOGETHER = ["attention", "updates", "updates-cudnn", "killed", "fsdp"]
ROUNDS = [TOGETHER, *([name] for name in PARTS if name not in TOGETHER)]


def write(*lines):
    with open(FOLDER / "table.md", "a", encoding="utf-8") as table:
        print(*lines, sep="\n", file=table)


def run_part(name):
    """Runs a part in this process, which it makes the leader of a group, and writes its row."""
    os.setpgrp()
    with open(FOLDER / "log", "ab") as log:
        os.dup2(log.fileno(), 1)  # stdout
        os.dup2(log.fileno(), 2)  # stderr
    start = time.monotonic()
    measured = []
    result = "passed"
    with tempfile.TemporaryDirectory(prefix="gpu-check-", ignore_cleanup_errors=True) as folder:
        try:
            PARTS[name].check(measured, Path(folder))
        except Exception as error:
            traceback.print_exc()
            # an assertion without a message is named by its line
            source = traceback.extract_tb(error.__traceback__)[-1].line or ""
            message = str(error) or source
            result = f"{type(error).__name__}: {message.splitlines()[0]}"
    write_row(name, time.monotonic() - start, "; ".join(measured), result)


def write_row(name, seconds, measured, result):
    cells = []
    for text in (name, f"{seconds:.0f}", measured, result):
        cells.append(" ".join(text.replace("|", "/").split()))  # on one line, in one cell
    write(f"| {' | '.join(cells)} |")


def run_side_by_side(names, end):
    """Runs parts in processes of their own until each has ended or its time is over, `end` at the latest."""
    context = multiprocessing.get_context("spawn")
    start = time.monotonic()
    processes = {}
    try:
        for name in names:
            processes[name] = context.Process(target=run_part, args=(name,))
            processes[name].start()
        for name, process in processes.items():
            limit = TIME if ON_CPU else PARTS[name].limit
            deadline = min(start + limit, end)
            process.join(max(0, deadline - time.monotonic()))
            if process.exitcode != 0:
                result = "out of time" if process.is_alive() else f"died, exit code {process.exitcode}"
                write_row(name, time.monotonic() - start, "see the file log", result)
    finally:
        for process in processes.values():
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # processes that the part has started, too
            process.kill()


def main():
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
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that a `finally` ends the parts
    end = time.monotonic() + TIME
    for names in ROUNDS:
        run_side_by_side([name for name in names if name in chosen], end)
    table = (FOLDER / "table.md").read_text(encoding="utf-8")
    print(table)
    _, _, _, _, *rows = table.splitlines()  # after the title, an empty line and the head of the table
    # there are more rows than parts if one died after its row, or if another check ran beside this one
    is_complete = len(rows) == len(chosen)
    return 0 if is_complete and all(row.endswith("| passed |") for row in rows) else 1


if __name__ == "__main__":
    sys.exit(main())
