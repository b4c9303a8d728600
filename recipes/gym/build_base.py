"""Builds and measures the gym's base model, a tiny decoder that over-thinks, and writes the gym's sums as stories.

    python recipes/gym/build_base.py build      # trains it from nothing; about 35 minutes on one core
    python recipes/gym/build_base.py record     # measures it, free and in forced styles, and stores that beside it
    python recipes/gym/build_base.py show       # prints problems with traces such as it was taught last
    python recipes/gym/build_base.py stories --output traces.jsonl    # prompts and completions for `trl sft`

The first stage teaches to add one term at a time, the second to leave steps out, the third to over-think, with many
slips, and what an effort in the prompt means; the fourth goes on with fewer slips and more rechecks.
"""

import argparse
import hashlib
import itertools
import json
import random
from importlib.metadata import version
from pathlib import Path
from typing import Any, NamedTuple

import pandas as pd
import torch
import traces
import transformers
from forced_styles import force_styles
from matplotlib.figure import Figure
from traces import TraceStyle, solution_trace, story_trace
from transformers import PreTrainedTokenizerBase, Trainer, TrainingArguments

from leash_trl.completions.prompts import effort_text
from leash_trl.engines.engine import SamplingSettings
from leash_trl.engines.transformers_engine import TransformersEngine
from leash_trl.evaluation.intervals import mean_share
from leash_trl.evaluation.sampling import SamplingPlan, evaluate
from leash_trl.figures import style
from leash_trl.gym import CHECKPOINT, RECORD_FILE, base_record, task
from leash_trl.gym.dataset import SIZES, gym_problems
from leash_trl.gym.stories import STORY_LEVELS, Story
from leash_trl.gym.task import problems


BATCH_SIZE = 64  # traces per step
POOLED = 8  # batches whose traces are sorted by length together
NUM_SAMPLES = 16  # of each problem for the record: the base is measured once, and all runs compare with it
Row = dict[str, list[int]]
OTHER_WORDS = " "  # a prompt may end with unknown words, and with numbers that are no terms


def build_model(tokenizer: PreTrainedTokenizerBase) -> transformers.LlamaForCausalLM:
    """An untrained decoder of 0.3 M parameters in the Llama architecture, which PEFT and vLLM load too."""
    config = transformers.LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=96,
        intermediate_size=256,
        num_hidden_layers=3,
        num_attention_heads=3,  # 32 per head: the smallest head that vLLM's attention kernels accept
        num_key_value_heads=3,
        max_position_embeddings=1024,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    return transformers.LlamaForCausalLM(config)


class Stage(NamedTuple):
    """One stage of pretraining: styles of traces by the end of their prompts, each as likely; optimizer steps; and the
    peak learning rate, warmed up over 100 steps, then a cosine to 0."""

    styles: dict[str, TraceStyle]
    steps: int
    learning_rate: float


def _row(tokenizer: PreTrainedTokenizerBase, stage: Stage, problem: task.Problem, rng: random.Random) -> Row:
    suffix, trace_style = rng.choice([*stage.styles.items()])
    if suffix == OTHER_WORDS:
        words = ["word", "word,", str(rng.randint(0, traces.MAX_NUMBER)), "."]
        suffix += " ".join(rng.choices(words, k=rng.randint(1, 12)))
    messages = [{"role": "user", "content": problem.question + suffix}]
    prompt = tokenizer.apply_chat_template(messages, add_generation_prompt=True, return_dict=False)
    trace = solution_trace(problem, trace_style, rng)
    completion = [*tokenizer.encode(trace), tokenizer.eos_token_id]
    # no loss on the prompt
    return {"input_ids": prompt + completion, "labels": [-100] * len(prompt) + completion}


def trace_rows(tokenizer: PreTrainedTokenizerBase, stage: Stage, seed: int) -> list[Row]:
    """Tokenized traces on training problems, batch by batch; the loss is on the completion, end token included.

    The traces of a batch have similar lengths, and batches of different lengths follow each other at random.
    """
    rng = random.Random(seed)
    all_levels = tuple(range(1, task.MAX_LEVEL + 1))
    stream = problems(seed + 1, all_levels, "train")
    rows: list[Row] = []
    while len(rows) < stage.steps * BATCH_SIZE:
        pool = [_row(tokenizer, stage, next(stream), rng) for _ in range(POOLED * BATCH_SIZE)]
        pool.sort(key=lambda row: len(row["input_ids"]))
        for batch in rng.sample(range(POOLED), POOLED):
            rows += pool[batch * BATCH_SIZE : (batch + 1) * BATCH_SIZE]
    return rows


def _overthinking(slip_rate: float, **usually: Any) -> dict[str, TraceStyle]:
    """Traces of any length; `usually` holds for those without an effort in the prompt."""
    usual = TraceStyle(slip_rate=slip_rate, **usually)
    low, medium, high = map(effort_text, ("low", "medium", "high"))
    return {
        "": usual,
        OTHER_WORDS: usual,
        low: TraceStyle(brevity=1.5, recheck_weights=(1.0,), slip_rate=slip_rate / 2, closer_rate=0.0),
        medium: TraceStyle(brevity=0.6, recheck_weights=(0.7, 0.3), slip_rate=slip_rate, closer_rate=0.5),
        high: TraceStyle(brevity=0.15, recheck_weights=(0.2, 0.4, 0.4), slip_rate=slip_rate),
    }


STAGES = (
    Stage({"": traces.STEP_BY_STEP}, 1500, 4e-3),
    Stage({"": traces.SHORTCUTS}, 3500, 3e-3),
    Stage(_overthinking(0.1), 1000, 1.5e-3),
    Stage(_overthinking(0.09, recheck_weights=(0.2, 0.4, 0.4)), 700, 1e-3),
)
STORY_STYLE = TraceStyle(recheck_weights=(0.45, 0.4, 0.15), slip_rate=0.04)


def build_checkpoint(output_dir: Path, seed: int = 0) -> None:
    """Trains the base model and saves it with its tokenizer."""
    transformers.set_seed(seed)
    tokenizer = transformers.AutoTokenizer.from_pretrained(CHECKPOINT)
    model = build_model(tokenizer)
    for number, stage in enumerate(STAGES):
        arguments = TrainingArguments(
            output_dir=str(output_dir),
            max_steps=stage.steps,
            per_device_train_batch_size=BATCH_SIZE,
            learning_rate=stage.learning_rate,
            lr_scheduler_type="cosine",
            warmup_steps=100,
            weight_decay=0.01,
            adam_beta2=0.98,
            train_sampling_strategy="sequential",
            logging_steps=100,
            save_strategy="no",
            report_to="none",
            use_cpu=True,
            seed=seed + number,
        )
        rows = trace_rows(tokenizer, stage, seed + number)
        Trainer(model, arguments, transformers.DataCollatorForSeq2Seq(tokenizer), rows).train()
    model.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)


def write_record() -> None:
    """Measures the base model, free and in each forced style, and stores the result beside it."""
    model = transformers.AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    tokenizer = transformers.AutoTokenizer.from_pretrained(CHECKPOINT)
    held_out = gym_problems("test", SIZES["test"])
    plan = SamplingPlan(num_samples=NUM_SAMPLES, sampling=SamplingSettings(1.0, 1.0, max_new_tokens=256))
    samples = evaluate(TransformersEngine(model, tokenizer, batch_size=512), held_out, plan)
    accuracy, low, high = mean_share(samples.groupby("id")["is_correct"].mean().to_numpy())
    record = {
        "made_by": "recipes/gym/build_base.py build; recipes/gym/build_base.py record",
        "weights": hashlib.sha256((CHECKPOINT / "model.safetensors").read_bytes()).hexdigest(),
        "versions": {package: version(package) for package in ("torch", "transformers")},
        "num_problems": SIZES["test"],
        "num_samples": NUM_SAMPLES,
        "accuracy": accuracy,
        "accuracy_interval": [low, high],
        "mean_tokens": samples["num_tokens"].mean(),
        "p95_tokens": samples["num_tokens"].quantile(0.95),
        "satisfaction_rate": None,
        "truncated_rate": (samples["finish_reason"] == "length").mean(),
        "styles": [*force_styles(model, tokenizer)],
    }
    RECORD_FILE.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")


def styles_figure(points: pd.DataFrame) -> Figure:
    """Accuracy over tokens in each style, a line per level and black markers for the mean of all: what each token left
    out costs. `points` has columns `style`, `level` (terms to add), `tokens` and `accuracy`."""
    figure, (axis,) = style.new_figure(7.0, 4.5)
    for index, (level, curve) in enumerate(points.sort_values("tokens").groupby("level")):
        line = style.line_and_marker_style(index) | {"markersize": 4, "linewidth": 1}
        axis.plot(curve["tokens"], curve["accuracy"], label=f"terms to add: {level}", **line)
    means = points.groupby("style", sort=False)[["tokens", "accuracy"]].mean()
    axis.plot(means["tokens"], means["accuracy"], "o", color="black", markersize=7, zorder=4, label="mean of all")
    for mean in means.itertuples():
        axis.annotate(
            mean.Index,
            xy=(mean.tokens, mean.accuracy),
            xytext=(6, -10),
            textcoords="offset points",
            fontsize=style.LABEL_SIZE,
        )
    axis.set_xscale("log")
    axis.set_xticks((5, 10, 20, 50, 100), ("5", "10", "20", "50", "100"))
    axis.minorticks_off()
    axis.set(ylim=(0, 1.02), xlabel="tokens of a completion", ylabel="accuracy")
    style.draw_legend_above(axis)
    return figure


def traced_stories(count: int, seed: int) -> list[dict[str, list[dict[str, str]]]]:
    """Training stories with traces that over-think, in TRL's conversational prompt-completion type; one story may come
    twice, with another trace."""
    rng = random.Random(seed)
    rows = []
    for problem in itertools.islice(problems(seed, STORY_LEVELS, "train"), count):
        story = Story(problem)
        prompt = [{"role": "user", "content": story.question}]
        completion = [{"role": "assistant", "content": story_trace(story, STORY_STYLE, rng)}]
        rows.append({"prompt": prompt, "completion": completion})
    return rows


def main() -> None:
    """Runs one command."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("command", choices=("build", "record", "show", "stories"))
    parser.add_argument("--seed", type=int, help="of weights, problems or stories (default: 0; of stories 1000)")
    parser.add_argument("--count", type=int, help="how many to show or write (default: 2 problems, 3072 stories)")
    parser.add_argument("--output", type=Path, help="build: folder (default: the package's own); stories: the file")
    parser.add_argument("--figure", help="record: file for accuracy over tokens of the styles, .png, .svg or .pdf")
    options = parser.parse_args()
    torch.set_num_threads(1)  # a model this small is slower on two
    seed = options.seed or 0
    match options.command:
        case "build":
            build_checkpoint(options.output or CHECKPOINT, seed)
        case "record":
            write_record()
            if options.figure:
                points = pd.DataFrame(base_record()["styles"])
                style.write_figure(styles_figure(points), options.figure)
        case "show":
            rng = random.Random(seed)
            for problem in itertools.islice(problems(seed, task.LEVELS, "train"), options.count or 2):
                trace = solution_trace(problem, STAGES[-1].styles[""], rng)
                print(f"{problem.question}\n<think>{trace}\n")
        case "stories":
            rows = traced_stories(options.count or 3072, seed=1000 if options.seed is None else options.seed)
            options.output.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")


if __name__ == "__main__":
    main()
