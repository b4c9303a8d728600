"""Speed, as ratios in one run; `make bench`. Not part of the default suite."""

import json
import random
import statistics
import time

import psutil
import pytest
import torch
from math_verify import parse, verify
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.engines.shrinking_batch import get_warpers, sample_tokens
from leash_trl.gym import CHECKPOINT
from leash_trl.gym.dataset import gym_problems
from leash_trl.length_control.leash import Leash
from leash_trl.rewards import grading, math_reward


ROUNDS, STEPS = 4, 8


class StepTimes(TrainerCallback):
    def __init__(self):
        self.seconds = []

    def on_step_begin(self, *args, **kwargs):
        self.start = time.perf_counter()

    def on_step_end(self, *args, **kwargs):
        self.seconds.append(time.perf_counter() - self.start)


def step_seconds(trainer_class, config_class, output_dir, **fields) -> list[float]:
    """Seconds of each step of a gym run; with lambda at 0 both trainers do the same work, token for token."""
    args = config_class(
        output_dir=str(output_dir),
        per_device_train_batch_size=64,
        max_completion_length=96,
        epsilon_high=0.28,
        weight_decay=0.1,
        lr_scheduler_type="constant",
        max_steps=STEPS,
        logging_steps=1,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        **fields,
    )
    times = StepTimes()
    trainer = trainer_class(
        str(CHECKPOINT), math_reward, args, train_dataset=gym_problems("train", 256), callbacks=[times]
    )
    trainer.train()
    step_seconds.tokens = trainer.state.num_input_tokens_seen
    return times.seconds


@pytest.mark.benchmark
def test_overhead_over_grpo_trainer(tmp_path):
    leash = {"target_length": 40, "lambda_init": 0.0, "lambda_lr": 0.0, "advantage_epsilon": 1e-4}
    ratios, tokens = [], set()
    arms = {"stock": (GRPOTrainer, GRPOConfig, {}), "ours": (LeashGRPOTrainer, LeashGRPOConfig, leash)}
    for round_ in range(ROUNDS):
        seconds = {}
        for name in sorted(arms, reverse=round_ % 2 == 0):  # who goes second is faster by some per cent
            trainer_class, config_class, fields = arms[name]
            seconds[name] = step_seconds(trainer_class, config_class, tmp_path, **fields)
            tokens.add(step_seconds.tokens)
        ratios += [mine / theirs for mine, theirs in zip(seconds["ours"][1:], seconds["stock"][1:], strict=True)]
    assert len(tokens) == 1  # the same work
    quartiles = statistics.quantiles(ratios, n=4)
    print(
        f"\nLeashGRPOTrainer / GRPOTrainer, step time: median {statistics.median(ratios):.3f}, "
        f"quartiles {quartiles[0]:.3f} to {quartiles[2]:.3f}, {len(ratios)} pairs of steps"
    )


@pytest.mark.benchmark
def test_time_spent_in_our_own_code(tmp_path, monkeypatch):
    """The same ratio without the machine's noise: our functions' seconds against the steps they are part of."""
    seconds = []

    def timed(owner, name):
        function = getattr(owner, name)

        def wrapper(*args, **kwargs):
            start = time.perf_counter()
            result = function(*args, **kwargs)
            seconds.append(time.perf_counter() - start)
            return result

        monkeypatch.setattr(owner, name, wrapper)

    for name in ("_with_targets", "_gather_rollouts", "_use_own_advantages", "_log_length_control"):
        timed(LeashGRPOTrainer, name)
    for name in ("shape", "observe", "step"):
        timed(Leash, name)
    steps = sum(step_seconds(LeashGRPOTrainer, LeashGRPOConfig, tmp_path, target_length=40))
    ratio = steps / (steps - sum(seconds))
    print(f"\nstep time with our code / without it: {ratio:.4f}")
    assert len(seconds) == 7 * STEPS
    assert ratio <= 1.02


@pytest.mark.benchmark
def test_sampling_with_a_shrinking_batch():
    """Tokens per second of `sample_tokens` over those of `generate`: 128 completions of the base model."""
    tokenizer = AutoTokenizer.from_pretrained(str(CHECKPOINT))
    model = AutoModelForCausalLM.from_pretrained(str(CHECKPOINT)).eval()
    rows = [prompt for prompt in gym_problems("train", 16)["prompt"] for _ in range(8)]
    ids = tokenizer.apply_chat_template(rows, add_generation_prompt=True, return_dict=False)
    batch = tokenizer.pad({"input_ids": ids}, padding_side="left", return_tensors="pt")
    ratios = []
    for seed in range(ROUNDS + 1):
        torch.manual_seed(seed)
        start = time.perf_counter()
        ours = sample_tokens(model, ids, [tokenizer.eos_token_id], tokenizer.pad_token_id, 256, get_warpers())
        middle = time.perf_counter()
        output = model.generate(**batch, do_sample=True, top_k=0, max_new_tokens=256)
        theirs = (output[:, batch["input_ids"].shape[1] :] != tokenizer.pad_token_id).sum().item()
        rate = sum(map(len, ours)) / (middle - start)
        ratios.append(rate / (theirs / (time.perf_counter() - middle)))
    print(
        f"\nsample_tokens / generate, tokens per second: median {statistics.median(ratios[1:]):.2f}, "
        f"{min(ratios[1:]):.2f} to {max(ratios[1:]):.2f}"
    )
    assert statistics.median(ratios[1:]) > 1


def completions_to_grade(data, seed: int, num_generations: int) -> list[tuple[str, str]]:
    """512 completions of 30,000 characters with their golds: half right, half with an answer of the same kind."""
    rng = random.Random(seed)
    rows = {
        name: [json.loads(line) for line in (data / f"{name}.jsonl").open(encoding="utf-8")]
        for name in ("traces", "aime24", "math500")
    }
    text = "".join(row["completion"].replace("\\boxed", "").replace("think>", "") for row in rows["traces"])
    golds = [str(row["answer"]) for name in ("aime24", "math500") for row in rows[name]]
    kinds = {is_number: [gold for gold in golds if gold.isdigit() == is_number] for is_number in (True, False)}
    cases = []
    for gold in rng.sample(golds, 512 // num_generations):
        for _ in range(num_generations):
            answer = gold if rng.random() < 0.5 else rng.choice(kinds[gold.isdigit()])
            tail = f"</think>\n\n**Final Answer**\n\\[\n\\boxed{{{answer}}}\n\\]"
            start = rng.randrange(len(text) - 30_000)
            cases.append((text[start : start + 30_000 - len(tail)] + tail, gold))
    return cases


def cpu_seconds() -> float:
    """CPU time of this process and its running children."""
    process = psutil.Process()
    times = [process.cpu_times(), *(child.cpu_times() for child in process.children(recursive=True))]
    return sum(time.user + time.system for time in times)


def seconds_of(function) -> tuple[float, float, list[bool]]:
    """Wall-clock and CPU seconds of a call, and its result."""
    wall, cpu = time.perf_counter(), cpu_seconds()
    result = function()
    return time.perf_counter() - wall, cpu_seconds() - cpu, result


@pytest.mark.benchmark
@pytest.mark.parametrize("num_generations", [8, 1])
def test_grading_against_direct_calls_of_math_verify(shared_data, num_generations):
    """Same completions, same verdicts: worker processes not yet started, and started on a batch before."""
    batches = [completions_to_grade(shared_data, seed, num_generations) for seed in (0, 1)]
    grading._pool.cache_clear()

    def ours(batch):
        return [bool(one.is_correct) for one in grading.grade(*map(list, zip(*batch, strict=True)))]

    def direct(batch):
        return [verify(parse(f"${gold}$"), parse(completion)) for completion, gold in batch]

    for name, batch in zip(("cold", "warm"), batches, strict=True):
        our_wall, our_cpu, our_verdicts = seconds_of(lambda batch=batch: ours(batch))
        wall, cpu, verdicts = seconds_of(lambda batch=batch: direct(batch))
        print(
            f"\ngrading 512 completions, groups of {num_generations}, {name}: "
            f"direct {wall:.2f} s, ours {our_wall:.2f} s, ratio {wall / our_wall:.1f}; "
            f"CPU {cpu:.2f} s, {our_cpu:.2f} s, ratio {cpu / our_cpu:.1f}"
        )
        assert our_verdicts == verdicts
        assert 0.4 < sum(verdicts) / len(verdicts) < 0.65
    assert our_wall < wall


def symbolic_answers(rng: random.Random) -> tuple[str, str]:
    """A formula, and one of the same kind that differs from it by a sign, a number, a power or a letter."""
    a, b, c, n = (rng.randint(2, 9) for _ in range(4))
    x, y = rng.sample("xyztuabn", 2)
    gold = rng.choice(
        [
            rf"{a}{x}^{n} - {b}{x} + {c}",
            rf"({x}+{a})({x}-{b})({x}+{c})",
            rf"\frac{{{x}+{a}}}{{{b}{x}-{c}}} + \frac{{{n}}}{{{x}}}",
            rf"\sqrt{{{x}^2+{a}}} + {b}{y}",
            rf"{a}\sin({b}{x}) + \cos^2({x}) - {c}",
            rf"{a}\ln({x}+{b}) - \frac{{{c}}}{{{x}^{n}}}",
            rf"e^{{-{a}{x}}}({b}\cos {x} + {c}\sin {x})",
            rf"\frac{{\sqrt{{{x}+{a}}} - \sqrt{{{b}}}}}{{{c}{x}^2 + {n}}}",
            rf"{a}^{{{x}}} + {b}^{{-{x}}} \cdot {c}",
            rf"\frac{{{a}{x}{y} + {b}}}{{({x}+{y})^{n}}}",
            rf"\left({x}^2 + {a}{y}\right)^{n} - {b}{x}{y}",
            rf"\frac{{{x}^{n}-1}}{{{x}-1}} + \sin^2({a}{x})",
        ]
    )
    digits = [place for place, sign in enumerate(gold) if sign.isdigit()]
    place = rng.choice(digits)
    wrong = [
        gold[:place] + str(int(gold[place]) % 9 + 1) + gold[place + 1 :],
        gold.replace("+", "-", 1) if "+" in gold else f"-{gold}",
        f"{gold} + {a}",
        gold.replace(x, y) if x not in "abn" or "\\" not in gold else f"{gold} - {x}",
    ]
    return rng.choice(wrong), gold


@pytest.mark.benchmark
def test_wrong_formulas_are_told_apart_faster_than_by_math_verify():
    """Seconds of one verdict on 200 wrong formulas: ours, math-verify's with its parser, and its `verify` alone."""
    rng = random.Random(0)
    cases = [case for case in (symbolic_answers(rng) for _ in range(260)) if case[0] != case[1]][:200]
    grading.grade([rf"\boxed{{{cases[0][0]} + 1}}"], [cases[0][1]])
    verify(parse("$x+1$"), parse("$x+2$"))
    times: dict[str, list[float]] = {"ours": [], "parse and verify": [], "verify": []}
    for answer, gold in cases:
        start = time.perf_counter()
        ours = grading.grade([rf"\boxed{{{answer}}}"], [gold])[0].is_correct
        middle = time.perf_counter()
        values = parse(f"${gold}$"), parse(rf"\boxed{{{answer}}}")
        parsed = time.perf_counter()
        theirs = verify(*values)
        end = time.perf_counter()
        assert ours == theirs, (answer, gold)
        for name, seconds in zip(times, (middle - start, end - middle, end - parsed), strict=True):
            times[name].append(seconds)
    quantiles = {name: statistics.quantiles(seconds, n=20) for name, seconds in times.items()}
    for name in ("parse and verify", "verify"):
        ratios = {
            "median": quantiles[name][9] / quantiles["ours"][9],
            "95th percentile": quantiles[name][18] / quantiles["ours"][18],
            "longest": max(times[name]) / max(times["ours"]),
            "sum": sum(times[name]) / sum(times["ours"]),
        }
        print(f"\nwrong formulas, {name} / ours:", ", ".join(f"{what} {ratio:.1f}" for what, ratio in ratios.items()))
        assert min(ratios["median"], ratios["95th percentile"]) >= 5
