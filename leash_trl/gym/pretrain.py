"""Builds the gym's base model from nothing: a tiny decoder trained on over-thinking traces.

The first stage teaches to add one term at a time, the second to leave steps out, the third to over-think, with many
slips, and what an effort in the prompt means; the fourth goes on with fewer slips and more rechecks. `leash gym build`
runs all.
"""

import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch.utils.data import Dataset
from transformers import (
    DataCollatorForSeq2Seq,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerBase,
    Trainer,
    TrainingArguments,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

from leash_trl.data.efforts import effort_suffix
from leash_trl.gym.task import (
    ALL_LEVELS,
    MAX_NUMBER,
    SHORTCUTS,
    STEP_BY_STEP,
    Problem,
    TraceStyle,
    problems,
    solution_trace,
)
from leash_trl.gym.tokenizer import build_tokenizer


MAX_POSITIONS = 1024
SAVE_EVERY = 500  # steps
POOLED = 8  # batches whose traces are sorted by length together
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


class TraceDataset(Dataset):
    """Tokenized traces on training problems, batch by batch; the loss is on the completion, end token included.

    Each trace has one of the stage's styles at random; its prompt ends with that style's text. The traces of a batch
    have similar lengths, and batches of different lengths follow each other at random.
    """

    def __init__(self, tokenizer: PreTrainedTokenizerBase, stage: Stage, seed: int):
        rng = random.Random(seed)
        stream = problems(seed + 1, ALL_LEVELS, "train")
        self.rows: list[dict[str, list[int]]] = []
        while len(self.rows) < stage.steps * stage.batch_size:
            pool = [_row(tokenizer, next(stream), stage.styles, rng) for _ in range(POOLED * stage.batch_size)]
            pool.sort(key=lambda row: len(row["input_ids"]))
            for batch in rng.sample(range(POOLED), POOLED):
                self.rows += pool[batch * stage.batch_size : (batch + 1) * stage.batch_size]

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, list[int]]:
        return self.rows[index]


def _overthinking(slip_rate: float, **usually: Any) -> dict[str, TraceStyle]:
    """Traces of any length; `usually` holds for those without an effort in the prompt."""
    usual = TraceStyle(slip_rate=slip_rate, **usually)
    return {
        "": usual,
        OTHER_WORDS: usual,
        effort_suffix("low"): TraceStyle(
            brevity=1.5, recheck_weights=(1.0,), slip_rate=slip_rate / 2, closer_rate=0.0
        ),
        effort_suffix("medium"): TraceStyle(
            brevity=0.6, recheck_weights=(0.7, 0.3), slip_rate=slip_rate, closer_rate=0.5
        ),
        effort_suffix("high"): TraceStyle(brevity=0.15, recheck_weights=(0.2, 0.4, 0.4), slip_rate=slip_rate),
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
    data = TraceDataset(tokenizer, stage, seed)
    collator = DataCollatorForSeq2Seq(tokenizer, pad_to_multiple_of=None)
    trainer = Trainer(model, arguments, train_dataset=data, data_collator=collator)
    trainer.train(resume_from_checkpoint=last)


def build_checkpoint(output_dir: str, work_dir: str, seed: int = 0) -> None:
    """Trains the base model and saves it with its tokenizer; continues where an earlier call stopped.

    Args:
        output_dir (`str`):
            Folder for the finished checkpoint.
        work_dir (`str`):
            Folder for intermediate checkpoints.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the initial weights, the traces and their order.
    """
    set_seed(seed)
    tokenizer = build_tokenizer()
    model = build_model(tokenizer)
    for index, stage in enumerate(STAGES):
        _train_stage(model, tokenizer, stage, Path(work_dir), seed + index)
    model.save_pretrained(output_dir)
    tokenizer.save_pretrained(output_dir)
