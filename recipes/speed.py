"""Measures the training step of `LeashGRPOTrainer` against TRL's, and generating without vLLM, as ratios in one run.

    python recipes/speed.py step --steps 3
    python recipes/speed.py rollout --steps 3

Models have random weights and completions drawn lengths. Each arm runs in a process of its own, on the first GPU or
else the CPU. Results and logs are in `--output_dir`.
"""

import functools
import itertools
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
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import torch
import transformers
from trl import GRPOTrainer

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.engines.shrinking_batch import sample_tokens
from leash_trl.gym import CHECKPOINT
from leash_trl.gym.dataset import gym_problems
from leash_trl.planning.plan import PAPER_MODELS


# Shifted log-normal lengths, fitted to mean, median and 95th percentile of the authors' training log at its start and
# its end; at 32,768 tokens.
PAPER_LIMIT = 32_768
PAPER = {
    # shift, and mean and standard deviation of the logarithm
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
    # of `rollout`: generate, static-cache, continuous-batching (on a CPU it takes half of the memory) and shrinking
    engines: list[str] = field(default_factory=lambda: ["generate", "shrinking"])
    output_dir: str = "runs/speed"  # for results and logs
    arm: str = ""  # what the script calls itself with, to measure one arm in a process of its own


def drawn_lengths(settings: Settings, count: int, seed: int) -> list[int]:
    """Lengths in tokens, from 1 to `max_length`."""
    rng = random.Random(seed)
    if settings.lengths not in PAPER:
        measured = pd.read_csv(settings.lengths)["length"].clip(1, settings.max_length)
        return rng.choices(measured.tolist(), k=count)
    shift, mu, sigma = PAPER[settings.lengths]
    scale = settings.max_length / PAPER_LIMIT
    lengths = []
    for _ in range(count):
        length = round(scale * (shift + rng.lognormvariate(mu, sigma)))
        lengths.append(min(settings.max_length, max(1, length)))
    return lengths


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
        self.settings = settings
        self.tokenizer = transformers.AutoTokenizer.from_pretrained(CHECKPOINT)
        self.lengths: list[list[int]] = []  # of each generation batch

    def __call__(self, prompts: Sequence[list[dict[str, str]]], trainer: Any) -> dict[str, Any]:
        tokenizer = self.tokenizer
        group_size = self.settings.num_generations
        seed = self.settings.seed * 1_000_003 + len(self.lengths)
        rng = random.Random(seed)
        lengths = drawn_lengths(self.settings, len(prompts), seed)
        self.lengths.append(lengths)
        ordinary_ids = sorted(set(range(len(tokenizer))) - set(tokenizer.all_special_ids))
        completion_ids = []
        for length in lengths:
            completion_ids.append([*rng.choices(ordinary_ids, k=length - 1), tokenizer.eos_token_id])
        num_groups = len(prompts) // group_size
        # both rewards are in every group, but for the dead ones
        groups = [[1.0, -1.0, *rng.choices((-1.0, 1.0), k=group_size - 2)] for _ in range(num_groups)]
        num_dead_groups = round(self.settings.dead_share * num_groups)
        for dead in rng.sample(range(num_groups), num_dead_groups):
            groups[dead] = [1.0] * group_size
        return {
            "prompt_ids": [tokenizer.encode(prompt[0]["content"]) for prompt in prompts],
            "completion_ids": completion_ids,
            "logprobs": None,
            "coins": [*itertools.chain.from_iterable(groups)],
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
            gradients = {}
            for name, parameter in kwargs["model"].named_parameters():
                if parameter.grad is not None:
                    gradients[name] = parameter.grad.cpu()
            torch.save(gradients, self.gradient_file)

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
    trainer = ARMS[settings.arm](
        random_model(settings),
        coin_reward,
        args,
        train_dataset=gym_problems("train", 64),
        processing_class=rollouts.tokenizer,
        rollout_func=rollouts,
    )
    meter = StepMeter(trainer, Path(settings.output_dir, f"{settings.arm}.pt"))
    trainer.train()
    medians = pd.DataFrame(meter.steps[1:]).median().to_dict()  # the first step is slower
    tokens = statistics.median(sum(lengths) for lengths in rollouts.lengths[1:])
    return {**medians, "completion tokens per s": tokens / medians["forward and backward, s"]}


def gradient_difference(folder: Path) -> float:
    """Relative l2 of ours minus TRL's in the first step."""
    ours = load_gradients(folder / "ours.pt")
    stock = load_gradients(folder / "stock.pt")
    difference = sum(
        (ours[name].double() - stock[name].double()).square().sum() for name in ours.keys() | stock.keys()
    )
    norm = sum(gradient.double().square().sum() for gradient in stock.values())
    return float((difference / norm).sqrt())


def load_gradients(file: Path) -> dict[str, torch.Tensor]:
    return torch.load(file, mmap=True, map_location=DEVICE, weights_only=True)


def generate(
    model: transformers.PreTrainedModel,
    prompts: list[list[int]],
    limits: list[int],
    pad: int,
    cache_implementation: str | None = None,
) -> list[int]:
    """The numbers of tokens that transformers generates, of which each row keeps as many as its limit."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(CHECKPOINT)
    batch = tokenizer.pad({"input_ids": prompts}, padding_side="left", return_tensors="pt").to(DEVICE)
    prompt_width = batch["input_ids"].shape[1]
    limits_of_rows = torch.tensor(limits, device=DEVICE)

    def has_reached_limit(ids: torch.Tensor, scores: Any, **kwargs: Any) -> torch.Tensor:
        return ids.shape[1] >= prompt_width + limits_of_rows

    model.generation_config = sampling_config(pad, cache_implementation=cache_implementation)
    criteria = transformers.StoppingCriteriaList([has_reached_limit])
    output = model.generate(**batch, max_new_tokens=max(limits), stopping_criteria=criteria)
    return limits_of_rows.clamp(max=output.shape[1] - prompt_width).tolist()


def sampling_config(pad: int, **options: Any) -> transformers.GenerationConfig:
    return transformers.GenerationConfig(do_sample=True, top_k=0, pad_token_id=pad, **options)


def continuous_batching(
    model: transformers.PreTrainedModel, prompts: list[list[int]], limits: list[int], pad: int
) -> list[int]:
    """The numbers of tokens that transformers' continuous batching generates, which TRL's
    `use_transformers_continuous_batching` samples with."""
    lengths = {}
    batching = model.continuous_batching_context_manager(generation_config=sampling_config(pad), block=True)
    with batching as manager:
        for row, (prompt, limit) in enumerate(zip(prompts, limits, strict=True)):
            manager.add_request(prompt, request_id=str(row), max_new_tokens=limit)
        while len(lengths) < len(prompts) and manager.is_running():
            result = manager.get_result(timeout=1)
            if result is not None and result.is_finished():
                lengths[int(result.request_id)] = len(result.generated_tokens)
    return [lengths.get(row, 0) for row in range(len(prompts))]


def shrinking(model: transformers.PreTrainedModel, prompts: list[list[int]], limits: list[int], pad: int) -> list[int]:
    """The numbers of tokens that our engine generates."""
    no_token: list[list[int]] = [[]] * len(prompts)  # ends a completion
    completions = sample_tokens(model, prompts, no_token, limits, pad, transformers.LogitsProcessorList())
    return [len(ids) for ids in completions]


ENGINES = {
    "generate": generate,
    # transformers compiles the forward pass for a static cache on a GPU
    "static-cache": functools.partial(generate, cache_implementation="static"),
    "continuous-batching": continuous_batching,
    "shrinking": shrinking,
}


def measure_rollout(settings: Settings) -> dict[str, Any]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(CHECKPOINT)
    problems = gym_problems("train", settings.num_completions, seed=settings.seed)
    prompts = [tokenizer.encode(prompt[0]["content"]) for prompt in problems["prompt"]]
    limits = drawn_lengths(settings, len(prompts), settings.seed)
    model = random_model(settings).eval()
    tokens_per_second = []
    for _ in range(settings.steps + 1):
        start = now()
        lengths = ENGINES[settings.arm](model, prompts, limits, tokenizer.pad_token_id)
        tokens_per_second.append(sum(limits) / (now() - start))
        if lengths != limits:
            raise RuntimeError(f"{settings.arm} generated {lengths} tokens, but was asked for {limits}")
    first, *rest = tokens_per_second
    return {"completion tokens per s": statistics.median(rest), "the same in the first round": first}


def run_arm(arm: str, output: Path, words: list[str]) -> dict[str, Any]:
    """One arm's result from a process of its own; how it failed, if it did."""
    first_gpu, _, _ = os.environ.get("CUDA_VISIBLE_DEVICES", "0").partition(",")
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "CUDA_VISIBLE_DEVICES": first_gpu}
    result = output / f"{arm}.json"
    result.unlink(missing_ok=True)
    with open(output / f"{arm}.log", "w", encoding="utf-8") as log:
        subprocess.run([sys.executable, __file__, *words, "--arm", arm], stdout=log, stderr=log, env=environment)
    if result.exists():
        return json.loads(result.read_text(encoding="utf-8"))
    lines = (output / f"{arm}.log").read_text(encoding="utf-8", errors="replace").strip().splitlines()
    return {"failed": lines[-1] if lines else "it was ended from outside, without a word"}


def measure_arm(benchmark: str, settings: Settings, output: Path) -> None:
    """Writes the result of one arm, in the process that `run_arm` has started for it."""
    torch.backends.cuda.enable_cudnn_sdp(settings.cudnn_attention)
    memory_before = memory_gib()
    result = measure_step(settings) if benchmark == "step" else measure_rollout(settings)
    result["peak memory, GiB"] = memory_gib() - memory_before
    result["device"] = DEVICE_NAME
    (output / f"{settings.arm}.json").write_text(json.dumps(result), encoding="utf-8")


def main(argv: list[str]) -> int:
    benchmark = argv[0] if argv else ""
    if benchmark not in ("step", "rollout"):
        print(__doc__, file=sys.stderr)
        return 2
    (settings,) = transformers.HfArgumentParser(Settings).parse_args_into_dataclasses(argv[1:])
    output = Path(settings.output_dir)
    output.mkdir(parents=True, exist_ok=True)
    if settings.arm:
        measure_arm(benchmark, settings, output)
        return 0
    arms = ARMS if benchmark == "step" else settings.engines
    results = {arm: run_arm(arm, output, argv) for arm in arms}
    has_failed = any("failed" in result for result in results.values())
    difference = gradient_difference(output) if benchmark == "step" and not has_failed else None
    report = {"settings": vars(settings), "results": results, "gradient_difference": difference}
    (output / f"{benchmark}.json").write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    frame = pd.DataFrame(results)
    packages = ", ".join(f"{name} {version(name)}" for name in ("leash-trl", "torch", "trl", "transformers"))
    print(packages, frame.to_string(), sep="\n\n")
    if has_failed:
        return 1
    numbers = frame.drop(index="device").astype(float)
    ratios = numbers.div(numbers.iloc[:, 0], axis=0).round(3)
    print(f"\nIn times of {frame.columns[0]}:\n{ratios.to_string()}")
    if difference is not None:
        print(f"\nGradients of the first step, ours - TRL's, relative l2: {difference}")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
