"""Measures the training step of `LeashGRPOTrainer` against TRL's, and generating without vLLM, as ratios in one run.

    python recipes/speed.py step --steps 3
    python recipes/speed.py rollout --steps 3

Models have random weights and completions drawn lengths. Each arm runs in a process of its own, on the first GPU or
else the CPU. Results and logs are in `--output_dir`.
"""

import json
import os
import platform
import random
import resource
import statistics
import subprocess
import sys
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import transformers
from trl import GRPOTrainer

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.engines.shrinking_batch import get_warpers, sample_tokens
from leash_trl.gym import CHECKPOINT
from leash_trl.gym.dataset import gym_problems
from leash_trl.planning.plan import PAPER_MODELS


# Shifted log-normal lengths, fitted to mean, median and 95th percentile of the authors' training log at its start and
# its end; at 32,768 tokens.
PAPER_LIMIT = 32_768
PAPER = {
    "paper-start": (1846.3821936022375, 8.665216938060484, 0.5581233112515733),
    "paper-end": (0.0, 7.505226132702646, 0.4386939152640985),
}
SHAPES = {
    "r1-distill-1.5b": PAPER_MODELS["deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"],
    "smollm2-135m": {
        "model_type": "llama",
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49152,
        "tie_word_embeddings": True,
    },
}
DEVICE = torch.device("cuda", 0) if torch.cuda.is_available() else torch.device("cpu")
DEVICE_NAME = torch.cuda.get_device_name(DEVICE) if DEVICE.type == "cuda" else f"{platform.machine()} CPU"
ARMS = {"stock": GRPOTrainer, "ours": LeashGRPOTrainer}


@dataclass
class Settings:
    model_name_or_path: str = "gym"  # gym, smollm2-135m, r1-distill-1.5b or a config.json; weights are random
    dtype: str = "float32"  # of weights and activations
    cudnn_attention: bool = True  # whether torch may choose it; our trainer refuses it where it is faulty
    lengths: str = "paper-start"  # paper-start, paper-end, or a CSV with a column length
    max_length: int = 512  # longest completion in tokens; the paper's lengths are scaled to it
    steps: int = 5  # steps or rounds to measure, after one more
    seed: int = 0  # of weights, lengths, tokens and rewards
    per_device_train_batch_size: int = 8
    gradient_accumulation_steps: int = 32
    num_generations: int = 8
    dead_share: float = 0.0  # share of groups with equal rewards, rounded to complete groups
    gradient_checkpointing: bool = False
    num_completions: int = 64  # in a round of `rollout`
    output_dir: str = "runs/speed"  # for results and logs
    arm: str = ""  # what the script calls itself with, to measure one arm in a process of its own


def drawn_lengths(settings: Settings, count: int, seed: int) -> list[int]:
    """Lengths in tokens, from 1 to `max_length`."""
    rng = random.Random(seed)
    if settings.lengths not in PAPER:
        return rng.choices(pd.read_csv(settings.lengths)["length"].clip(1, settings.max_length).tolist(), k=count)
    shift, mu, sigma = PAPER[settings.lengths]
    scale = settings.max_length / PAPER_LIMIT
    drawn = (round(scale * (shift + rng.lognormvariate(mu, sigma))) for _ in range(count))
    return [min(settings.max_length, max(1, length)) for length in drawn]


def random_model(settings: Settings) -> transformers.PreTrainedModel:
    name = settings.model_name_or_path
    if name in SHAPES:
        config = transformers.AutoConfig.for_model(**SHAPES[name])
    else:
        config = transformers.AutoConfig.from_pretrained(CHECKPOINT if name == "gym" else name)
    config.max_position_embeddings = max(config.max_position_embeddings, settings.max_length + 256)
    config.bos_token_id = config.eos_token_id = None  # nothing ends by chance
    config.pad_token_id = transformers.AutoTokenizer.from_pretrained(CHECKPOINT).pad_token_id
    torch.manual_seed(settings.seed)
    with DEVICE:
        return transformers.AutoModelForCausalLM.from_config(config, dtype=getattr(torch, settings.dtype))


def now() -> float:
    if DEVICE.type == "cuda":
        torch.cuda.synchronize(DEVICE)
    return time.perf_counter()


def memory_gib() -> float:
    """Highest memory of this process so far: of the GPU as torch counts it, else resident."""
    if DEVICE.type == "cuda":
        return torch.cuda.max_memory_allocated(DEVICE) / 2**30
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


class ScriptedRollouts:
    """Completions of drawn lengths with drawn tokens, and rewards by coin; dead groups have equal ones."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.tokenizer = settings, transformers.AutoTokenizer.from_pretrained(CHECKPOINT)
        self.lengths: list[list[int]] = []

    def __call__(self, prompts: Sequence[list[dict[str, str]]], trainer: Any) -> dict[str, Any]:
        tokenizer, size = self.tokenizer, self.settings.num_generations
        seed = self.settings.seed * 1_000_003 + len(self.lengths)
        rng = random.Random(seed)
        self.lengths.append(drawn_lengths(self.settings, len(prompts), seed))
        ordinary = sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids))
        completions = [[*rng.choices(ordinary, k=n - 1), tokenizer.eos_token_id] for n in self.lengths[-1]]
        num_groups = len(prompts) // size
        coins = [[1.0, -1.0, *rng.choices((-1.0, 1.0), k=size - 2)] for _ in range(num_groups)]
        for dead in rng.sample(range(num_groups), round(self.settings.dead_share * num_groups)):
            coins[dead] = [1.0] * size
        return {
            "prompt_ids": [tokenizer.encode(prompt[0]["content"]) for prompt in prompts],
            "completion_ids": completions,
            "logprobs": None,
            "coins": [coin for group in coins for coin in group],
        }


def coin_reward(completions: list, coins: list[float], **kwargs: Any) -> list[float]:
    return coins


class StepMeter(transformers.TrainerCallback):
    """Seconds and padding of each step, and the gradient of the first."""

    def __init__(self, trainer: Any, gradient_file: Path) -> None:
        self.gradient_file = gradient_file
        self.totals: dict[str, Any] = defaultdict(float)
        self.steps: list[dict[str, float]] = []
        for name in ("training_step", "_prepare_inputs"):
            setattr(trainer, name, self.timed(name, getattr(trainer, name)))
        trainer.model.register_forward_pre_hook(self.count, with_kwargs=True)
        trainer.add_callback(self)

    def timed(self, name: str, function: Callable) -> Callable:
        def wrapper(*args: Any, **kwargs: Any) -> Any:
            start = now()
            result = function(*args, **kwargs)
            self.totals[name] += now() - start
            return result

        return wrapper

    def count(self, model: torch.nn.Module, args: tuple, kwargs: dict[str, Any]) -> None:
        self.totals["positions"] += kwargs["attention_mask"].numel()
        self.totals["tokens"] += kwargs["attention_mask"].sum()

    def on_pre_optimizer_step(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if not self.steps:
            named = kwargs["model"].named_parameters()
            torch.save({name: w.grad.cpu() for name, w in named if w.grad is not None}, self.gradient_file)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        totals = self.totals
        seconds = totals["training_step"] - totals["_prepare_inputs"]
        padding = 1 - float(totals["tokens"]) / totals["positions"]
        self.steps.append({"forward and backward, s": seconds, "padding share": padding})
        totals.clear()


def measure_step(settings: Settings) -> dict[str, Any]:
    rollouts = ScriptedRollouts(settings)
    args = LeashGRPOConfig(
        output_dir=settings.output_dir,
        target_length=1,
        lambda_init=0.0,
        lambda_lr=0.0,
        advantage_epsilon=1e-4,
        per_device_train_batch_size=settings.per_device_train_batch_size,
        gradient_accumulation_steps=settings.gradient_accumulation_steps,
        num_generations=settings.num_generations,
        gradient_checkpointing=settings.gradient_checkpointing,
        max_completion_length=settings.max_length,
        learning_rate=0.0,
        max_grad_norm=0.0,
        max_steps=settings.steps + 1,
        seed=settings.seed,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=DEVICE.type == "cpu",
        bf16=False,
    )
    model, data, tokenizer = random_model(settings), gym_problems("train", 64), rollouts.tokenizer
    trainer = ARMS[settings.arm](model, coin_reward, args, data, None, tokenizer, rollout_func=rollouts)
    meter = StepMeter(trainer, Path(settings.output_dir, f"{settings.arm}.pt"))
    trainer.train()
    medians = pd.DataFrame(meter.steps[1:]).median().to_dict()
    tokens = statistics.median(map(sum, rollouts.lengths[1:]))
    return {**medians, "completion tokens per s": tokens / medians["forward and backward, s"]}


def gradient_difference(folder: Path) -> float:
    """Relative l2 of ours minus TRL's in the first step."""
    ours, stock = (
        torch.load(folder / f"{arm}.pt", mmap=True, map_location=DEVICE, weights_only=True)
        for arm in ("ours", "stock")
    )
    squares = sum((ours[name].double() - stock[name].double()).square().sum() for name in ours.keys() | stock.keys())
    return float((squares / sum(gradient.double().square().sum() for gradient in stock.values())).sqrt())


def generate(model: transformers.PreTrainedModel, prompts: list[list[int]], limits: list[int], pad: int) -> list[int]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(CHECKPOINT)
    batch = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt").to(DEVICE)
    width, ends = batch["input_ids"].shape[1], torch.tensor(limits, device=DEVICE)
    model.generation_config = transformers.GenerationConfig(do_sample=True, top_k=0, pad_token_id=pad)
    criteria = transformers.StoppingCriteriaList([lambda ids, scores, **kwargs: ends + width <= ids.shape[1]])
    output = model.generate(**batch, max_new_tokens=max(limits), stopping_criteria=criteria)
    return ends.clamp(max=output.shape[1] - width).tolist()


def shrinking(model: transformers.PreTrainedModel, prompts: list[list[int]], limits: list[int], pad: int) -> list[int]:
    # no token ends a completion
    return [len(ids) for ids in sample_tokens(model, prompts, [-1], pad, limits, get_warpers())]


ENGINES = {"generate": generate, "shrinking": shrinking}


def measure_rollout(settings: Settings) -> dict[str, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(CHECKPOINT)
    problems = gym_problems("train", settings.num_completions, seed=settings.seed)
    prompts = [tokenizer.encode(prompt[0]["content"]) for prompt in problems["prompt"]]
    limits = drawn_lengths(settings, len(prompts), settings.seed)
    model, seconds = random_model(settings).eval(), []
    for _ in range(settings.steps + 1):
        start = now()
        lengths = ENGINES[settings.arm](model, prompts, limits, tokenizer.pad_token_id)
        seconds.append(now() - start)
        if lengths != limits:
            raise RuntimeError(f"{settings.arm} generated {lengths} tokens, but was asked for {limits}")
    first, *rest = (sum(limits) / round_seconds for round_seconds in seconds)
    return {"completion tokens per s": statistics.median(rest), "the same in the first round": first}


def run_arm(arm: str, output: Path, words: list[str]) -> dict[str, Any]:
    """One arm's result from a process of its own; how it failed, if it did."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")[0]
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "CUDA_VISIBLE_DEVICES": visible}
    result = output / f"{arm}.json"
    result.unlink(missing_ok=True)
    with open(output / f"{arm}.log", "w", encoding="utf-8") as log:
        subprocess.run([sys.executable, __file__, *words, "--arm", arm], stdout=log, stderr=log, env=environment)
    if result.exists():
        return json.loads(result.read_text(encoding="utf-8"))
    lines = Path(log.name).read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return {"failed": lines[-1] if lines else "it was ended from outside, without a word"}


def main(argv: list[str]) -> int:
    what = argv[0] if argv else ""
    if what not in ("step", "rollout"):
        print(__doc__, file=sys.stderr)
        return 2
    (settings,) = transformers.HfArgumentParser(Settings).parse_args_into_dataclasses(argv[1:])
    output = Path(settings.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    if settings.arm:
        torch.backends.cuda.enable_cudnn_sdp(settings.cudnn_attention)
        before = memory_gib()
        result = measure_step(settings) if what == "step" else measure_rollout(settings)
        result |= {"peak memory, GiB": memory_gib() - before, "device": DEVICE_NAME}
        (output / f"{settings.arm}.json").write_text(json.dumps(result), encoding="utf-8")
        return 0
    results = {arm: run_arm(arm, output, argv) for arm in (ENGINES if what == "rollout" else ARMS)}
    frame = pd.DataFrame(results)
    difference = gradient_difference(output) if what == "step" and "failed" not in frame.index else None
    report = {"settings": vars(settings), "results": results, "gradient_difference": difference}
    (output / f"{what}.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    packages = ", ".join(f"{name} {version(name)}" for name in ("leash-trl", "torch", "trl", "transformers"))
    print(packages, frame.to_string(), sep="\n\n")
    if "failed" in frame.index:
        return 1
    numbers = frame.drop(index="device").astype(float)
    print(f"\nIn times of {frame.columns[0]}:\n{numbers.div(numbers.iloc[:, 0], axis=0).round(3).to_string()}")
    print(f"\nGradients of the first step, ours - TRL's, relative l2: {difference}" if difference else "")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
