"""Measures the gym's models on held-out problems; the base model's result is stored beside it, with its styles."""

import json
from dataclasses import asdict
from importlib.metadata import version

from transformers import AutoModelForCausalLM, AutoTokenizer

from leash_trl.evaluation.evaluate import GradedSamples, Summary, evaluate, summarize
from leash_trl.gym import CHECKPOINT, RECORD, base_digest
from leash_trl.gym.dataset import SIZES, gym_problems
from leash_trl.gym.styles import force_styles
from leash_trl.length_control.targets import with_suffix


MAX_NEW_TOKENS = 256
NUM_PROBLEMS = SIZES["test"]
NUM_SAMPLES = 4
BASE_SAMPLES = 16  # the base is measured once, and all runs compare with it
BATCH_SIZE = 512  # the number of calls limits the speed of a model this small


def measure(
    path: str = str(CHECKPOINT), seed: int = 0, prompt_suffix: str = "", num_samples: int = NUM_SAMPLES
) -> GradedSamples:
    """Completions of a gym model for each of the held-out problems, sampled at temperature 1 and graded.

    Args:
        path (`str`, *optional*):
            Checkpoint folder; defaults to that of the base model.
        seed (`int`, *optional*, defaults to `0`):
            Seed of the sampling.
        prompt_suffix (`str`, *optional*):
            Appended to every problem, for methods that tell the model its target.
        num_samples (`int`, *optional*, defaults to `4`):
            Completions of each problem.
    """
    problems = gym_problems("test", NUM_PROBLEMS)
    if prompt_suffix:
        problems = problems.map(lambda row: {"prompt": with_suffix(row["prompt"], prompt_suffix)})
    return evaluate(
        AutoModelForCausalLM.from_pretrained(path),
        AutoTokenizer.from_pretrained(path),
        problems,
        num_samples=num_samples,
        max_new_tokens=MAX_NEW_TOKENS,
        seed=seed,
        batch_size=BATCH_SIZE,
        description="held-out problems",
    )


def write_record() -> Summary:
    """Measures the base model, free and in each forced style, and stores the result beside it."""
    samples = measure(num_samples=BASE_SAMPLES)
    summary = summarize(samples)
    model = AutoModelForCausalLM.from_pretrained(CHECKPOINT)
    tokenizer = AutoTokenizer.from_pretrained(CHECKPOINT)
    record = {
        "made_by": "leash gym build; leash gym record",
        "weights": base_digest(),
        "versions": {package: version(package) for package in ("torch", "transformers")},
        "num_problems": NUM_PROBLEMS,
        "num_samples": BASE_SAMPLES,
        **asdict(summary),
        "styles": [asdict(forced) for forced in force_styles(model, tokenizer)],
    }
    RECORD.write_text(json.dumps(record, indent=2) + "\n", encoding="utf-8")
    return summary
