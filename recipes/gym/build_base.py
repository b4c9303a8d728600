"""Builds and measures the gym's base model, a tiny decoder that over-thinks, and writes the gym's sums as stories.

    python recipes/gym/build_base.py build      # trains it from nothing; about 35 minutes on one core
    python recipes/gym/build_base.py record     # measures it, free and in forced styles, and stores that beside it
    python recipes/gym/build_base.py show       # prints problems with traces such as it was taught last
    python recipes/gym/build_base.py stories --output traces.jsonl    # prompts and completions for `trl sft`

The first stage teaches to add one term at a time, the second to leave steps out, the third to over-think, with many
slips, and what an effort in the prompt means; the fourth goes on with fewer slips and more rechecks.
"""

import argparse
import itertools
import json
import random
from collections.abc import Mapping
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import pandas as pd
import torch
from matplotlib.figure import Figure
from matplotlib.ticker import NullLocator, ScalarFormatter
from transformers import (
    AutoModelForCausalLM,
    DataCollatorForSeq2Seq,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

from leash_trl.cli.gym_run import measure
from leash_trl.evaluation.intervals import mean_share
from leash_trl.figures import style
from leash_trl.gym import CHECKPOINT, RECORD, base_digest, base_record
from leash_trl.gym.dataset import SIZES
from leash_trl.gym.stories import stories
from leash_trl.gym.styles import force_styles
from leash_trl.gym.task import (
    ALL_LEVELS,
    LEVELS,
    MAX_NUMBER,
    SHORTCUTS,
    STEP_BY_STEP,
    Problem,
    TraceStyle,
    problems,
    solution_trace,
)
from leash_trl.gym.tokenizer import EFFORTS, build_tokenizer


MAX_POSITIONS = 1024
SAVE_EVERY = 500  # steps
POOLED = 8  # batches whose traces are sorted by length together
NUM_SAMPLES = 16  # of each problem for the record: the base is measured once, and all runs compare with it
OTHER_WORDS = " "  # a prompt may end with unknown words, and with numbers that are no terms


def build_model(tokenizer: PreTrainedTokenizerBase) -> LlamaForCausalLM:
    """An untrained decoder of 0.3 M parameters in the Llama architecture, which PEFT and vLLM load too."""
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=3,  # 32 per head: the smallest head that vLLM's attention kernels accept
        num_key_value_heads=3,
        max_position_embeddings=MAX_POSITIONS,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return LlamaForCausalLM(config)


@dataclass(frozen=True)
class Stage:
    """One stage of pretraining.

    Args:
        name (`str`):
            Name of its folder.
        styles (`Mapping[str, TraceStyle]`):
            Style of the traces by the end of their prompt; each is as likely.
        steps (`int`):
            Optimizer steps.
        batch_size (`int`):
            Traces per step.
        learning_rate (`float`):
            Peak learning rate, warmed up over 100 steps, then a cosine to 0.
    """

    name: str
    styles: Mapping[str, TraceStyle]
    steps: int
    batch_size: int
    learning_rate: float


def _row(
    tokenizer: PreTrainedTokenizerBase, problem: Problem, styles: Mapping[str, TraceStyle], rng: random.Random
) -> dict[str, list[int]]:
    suffix, style = rng.choice(list(styles.items()))
    if suffix == OTHER_WORDS:
        suffix += " ".join(rng.choices(("word", "word,", str(rng.randint(0, MAX_NUMBER)), "."), k=rng.randint(1, 12)))
    message = [{"role": "user", "content": problem.question + suffix}]
    prompt = tokenizer.apply_chat_template(message, add_generation_prompt=True, return_dict=False)
    completion = [*tokenizer.encode(solution_trace(problem, style, rng)), tokenizer.eos_token_id]
    return {"input_ids": prompt + completion, "labels": [-100] * len(prompt) + completion}


def trace_rows(tokenizer: PreTrainedTokenizerBase, stage: Stage, seed: int) -> list[dict[str, list[int]]]:
    """Tokenized traces on training problems, batch by batch; the loss is on the completion, end token included.

    Each trace has one of the stage's styles at random; its prompt ends with that style's text. The traces of a batch
    have similar lengths, and batches of different lengths follow each other at random.
    """
    rng = random.Random(seed)
    stream = problems(seed + 1, ALL_LEVELS, "train")
    rows: list[dict[str, list[int]]] = []
    while len(rows) < stage.steps * stage.batch_size:
        pool = [_row(tokenizer, next(stream), stage.styles, rng) for _ in range(POOLED * stage.batch_size)]
        pool.sort(key=lambda row: len(row["input_ids"]))
        for batch in rng.sample(range(POOLED), POOLED):
            rows += pool[batch * stage.batch_size : (batch + 1) * stage.batch_size]
    return rows


def _overthinking(slip_rate: float, **usually: Any) -> dict[str, TraceStyle]:
    """Traces of any length; `usually` holds for those without an effort in the prompt."""
    usual = TraceStyle(slip_rate=slip_rate, **usually)
    low, medium, high = EFFORTS
    return {
        "": usual,
        OTHER_WORDS: usual,
        low: TraceStyle(brevity=1.5, recheck_weights=(1.0,), slip_rate=slip_rate / 2, closer_rate=0.0),
        medium: TraceStyle(brevity=0.6, recheck_weights=(0.7, 0.3), slip_rate=slip_rate, closer_rate=0.5),
        high: TraceStyle(brevity=0.15, recheck_weights=(0.2, 0.4, 0.4), slip_rate=slip_rate),
    }


STAGES = (
    Stage("steps", {"": STEP_BY_STEP}, steps=1500, batch_size=64, learning_rate=4e-3),
    Stage("shortcuts", {"": SHORTCUTS}, steps=3500, batch_size=64, learning_rate=3e-3),
    Stage("overthinking", _overthinking(0.1), steps=1000, batch_size=64, learning_rate=1.5e-3),
    Stage(
        "fewer slips",
        _overthinking(0.09, recheck_weights=(0.2, 0.4, 0.4)),
        steps=700,
        batch_size=64,
        learning_rate=1e-3,
    ),
)
STORY_STYLE = TraceStyle(recheck_weights=(0.45, 0.4, 0.15), slip_rate=0.04)


def _train_stage(
    model: LlamaForCausalLM, tokenizer: PreTrainedTokenizerBase, stage: Stage, work_dir: Path, seed: int
) -> None:
    arguments = TrainingArguments(
        output_dir=str(work_dir / stage.name),
        max_steps=stage.steps,
        per_device_train_batch_size=stage.batch_size,
        learning_rate=stage.learning_rate,
        lr_scheduler_type="cosine",
        warmup_steps=100,
        weight_decay=0.01,
        adam_beta2=0.98,
        train_sampling_strategy="sequential",
        logging_steps=100,
        save_steps=min(SAVE_EVERY, stage.steps),
        save_total_limit=1,
        report_to="none",
        use_cpu=True,
        seed=seed,
    )
    last = get_last_checkpoint(arguments.output_dir) if Path(arguments.output_dir).exists() else None
    if last == str(Path(arguments.output_dir) / f"checkpoint-{stage.steps}"):  # finished; a Trainer would go one on
        model.load_state_dict(LlamaForCausalLM.from_pretrained(last).state_dict())
        return
    rows = trace_rows(tokenizer, stage, seed)
    trainer = Trainer(model, arguments, train_dataset=rows, data_collator=DataCollatorForSeq2Seq(tokenizer))
    trainer.train(resume_from_checkpoint=last)


def build_checkpoint(output_dir: str | Path, work_dir: str | Path, seed: int = 0) -> None:
    """Trains the base model and saves it with its tokenizer; goes on in `work_dir` where an earlier call stopped."""
    set_seed(seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    for index, stage in enumerate(STAGES):
        _train_stage(model, tokenizer, stage, Path(work_dir), seed + index)
    model.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)


def write_record() -> None:
    """Measures the base model, free and in each forced style, and stores the result beside it."""
    samples = measure(num_samples=NUM_SAMPLES)
    accuracy, low, high = mean_share(samples.groupby("id")["is_correct"].mean().to_numpy())
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    record = {
        "made_by": "recipes/gym/build_base.py build; recipes/gym/build_base.py record",
        "weights": base_digest(),
        "versions": {package: version(package) for package in ("torch", "transformers")},
        "num_problems": SIZES["test"],
        "num_samples": NUM_SAMPLES,
        "accuracy": accuracy,
        "accuracy_interval": [low, high],
        "mean_tokens": samples["num_tokens"].mean(),
        "p95_tokens": samples["num_tokens"].quantile(0.95),
        "satisfaction_rate": None,
        "truncated_rate": (samples["finish_reason"] == "length").mean(),
        "styles": [*force_styles(model, build_tokenizer())],
    }
    RECORD.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def styles_figure(points: pd.DataFrame) -> Figure:
    """Accuracy over tokens of a model whose traces are forced into styles: what each token left out costs.

    One line per level, and black markers for the mean of all levels in each style.

    `points` has columns `style`, `level` (terms to add), `tokens` and `accuracy`: every style at every level.
    """
    figure, (axis,) = style.new_figure(7.0, 4.5)
    for index, (level, own) in enumerate(points.sort_values("tokens").groupby("level")):
        label = f"{level} term{'s' if level > 1 else ''} to add"
        look = {**style.line_style(index), "marker": "os^Dv"[index % 5], "markersize": 4, "linewidth": 1}
        axis.plot(own["tokens"], own["accuracy"], label=label, **look)
    means = points.groupby("style", sort=False)[["tokens", "accuracy"]].mean()
    axis.plot(means["tokens"], means["accuracy"], "o", color="black", markersize=7, zorder=4, label="mean of all")
    for name, place in means.iterrows():
        axis.annotate(
            str(name), tuple(place), (6, -10), textcoords="offset points", fontsize=style.LABEL_SIZE, fontweight="bold"
        )
    axis.set_xscale("log")
    axis.set_xticks((5, 10, 20, 50, 100))
    axis.xaxis.set_major_formatter(ScalarFormatter())
    axis.xaxis.set_minor_locator(NullLocator())
    axis.set_ylim(0, 1.02)
    axis.set_xlabel("tokens of a completion")
    axis.set_ylabel("accuracy")
    style.legend_above(figure, axis, points["level"].nunique() + 1)
    return figure


def traced_stories(count: int, seed: int) -> list[dict[str, list[dict[str, str]]]]:
    """Training stories with traces that over-think, in TRL's conversational prompt-completion type.

    One story may come twice, with another trace.
    """
    rng = random.Random(seed)
    return [
        {
            "prompt": [{"role": "user", "content": story.question}],
            "completion": [{"role": "assistant", "content": story.trace(STORY_STYLE, rng)}],
        }
        for story in itertools.islice(stories(seed, "train"), count)
    ]


def show(count: int, seed: int) -> None:
    """Prints problems with traces such as the base model was taught last."""
    rng = random.Random(seed)
    for problem in itertools.islice(problems(seed, LEVELS, "train"), count):
        print(f"{problem.question}\n<think>{solution_trace(problem, STAGES[-1].styles[''], rng)}\n")


def main() -> None:
    """Runs one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("build", "record", "show", "stories"))
    parser.add_argument("--seed", type=int, help="of weights, problems or stories (default: 0; of stories 1000)")
    parser.add_argument("--count", type=int, help="how many to show or write (default: 2 problems, 3072 stories)")
    parser.add_argument("--output", type=Path, help="build: folder (default: the package's own); stories: the file")
    parser.add_argument("--work_dir", default="runs/gym-build", help="build: checkpoints, from which it goes on")
    parser.add_argument("--figure", help="record: file for accuracy over tokens of the styles, .png, .svg or .pdf")
    given = parser.parse_args()
    torch.set_num_threads(1)  # a model this small is slower on two
    match given.command:
        case "build":
            build_checkpoint(given.output or CHECKPOINT, given.work_dir, given.seed or 0)
        case "record":
            write_record()
            if given.figure:
                style.write_figure(styles_figure(pd.DataFrame(base_record()["styles"])), given.figure)
        case "show":
            show(given.count or 2, given.seed or 0)
        case "stories":
            rows = traced_stories(given.count or 3072, 1000 if given.seed is None else given.seed)
            given.output.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
