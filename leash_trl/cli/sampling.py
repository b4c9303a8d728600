"""The shared part of `leash eval` and `leash filter`: options of model, engine and sampling, and the sampling loop."""

import importlib.util
import os
import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from leash_trl.cli.errors import UserError, check_writable, going_on, only_command_in, user_errors
from leash_trl.engines.checkpoint_path import TRAINER_STATE_FILE, checkpoint_path
from leash_trl.engines.context import has_chat_template
from leash_trl.engines.engine import Engine, SamplingSettings
from leash_trl.evaluation.decoding import make_strategy, strategy_parameters
from leash_trl.trainer.checkpoints import LOCK_FILE


if TYPE_CHECKING:
    from datasets import Dataset

    from leash_trl.data.sources import Kind
    from leash_trl.evaluation.sampling import SamplingPlan


def option(text: str, default: Any = None) -> Any:
    """A field of a command's dataclass with its default and its help."""
    return field(default=default, metadata={"help": text})


@dataclass(kw_only=True)
class SamplingArguments:
    """Options of model, engine, sampling and problems."""

    output_dir: str = field(metadata={"help": "folder of the run"})
    model_name_or_path: str = field(
        metadata={"help": "checkpoint folder, Hub id, or gym (the embedded base model)"},
    )
    revision: str | None = option("branch, tag or commit of a model on the Hub")
    label: str | None = option("name of the run in tables (default: the model's name)")
    engine: Literal["auto", "vllm", "transformers"] = option(
        "what generates; auto is vLLM where it is installed and there is a GPU, else transformers", "auto"
    )
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = option(
        "type of the weights; auto is the model's", "auto"
    )
    engine_kwargs: dict = field(
        default_factory=dict, metadata={"help": "vLLM: its options, as JSON: '{\"tensor_parallel_size\": 2}'"}
    )
    num_samples: int = option("completions of every problem, the k of avg@k", 32)
    temperature: float = option("0 takes the likeliest token", SamplingSettings.temperature)
    top_p: float = option("1 samples from all tokens", SamplingSettings.top_p)
    top_k: int = option("0 samples from all tokens", SamplingSettings.top_k)
    max_new_tokens: int = option("limit of a completion", SamplingSettings.max_new_tokens)
    seed: int = option("seed of the run", 0)
    batch_size: int | None = option(
        "completions of one unit of work, which a kill may lose (default: 1024 for vLLM, 64 for transformers)"
    )
    engine_batch_size: int | None = option(
        "transformers: completions in memory at once (default: all of a unit); lower it when memory runs out"
    )
    decoding: str = option("plain, budget_forcing (s1) or deer (DEER)", "plain")
    decoding_kwargs: dict = field(
        default_factory=dict, metadata={"help": f"parameters of the strategy, as JSON; {strategy_parameters()}"}
    )
    prompt_suffix: str | None = option("appended to questions (default: the release's instruction)")
    effort: str | None = option("effort that ends each prompt, one of the efforts the model was trained on")
    effort_suffix: str | None = option("how a prompt says so (default: ' Effort: {effort}.')")
    chat_template_kwargs: dict = field(
        default_factory=dict, metadata={"help": "as JSON: '{\"enable_thinking\": false}'"}
    )
    limit: int | None = option("only the first so many problems of each data set")
    lenient: bool = option("count answers without box or answer line too, such as a bare number", False)


def resolve_engine(name: str) -> str:
    """The engine that `auto` means."""
    if name != "auto":
        return name
    import torch

    return "vllm" if importlib.util.find_spec("vllm") and torch.cuda.is_available() else "transformers"


def make_plan(arguments: SamplingArguments) -> "SamplingPlan":
    """How the arguments want completions to be made.

    Raises:
        `ValueError`: If a value is out of range.
    """
    from leash_trl.evaluation.sampling import SamplingPlan

    usual_batch = 1024 if resolve_engine(arguments.engine) == "vllm" else 64
    return SamplingPlan(
        decoding=make_strategy(arguments.decoding, **arguments.decoding_kwargs),
        sampling=SamplingSettings(arguments.temperature, arguments.top_p, arguments.top_k, arguments.max_new_tokens),
        num_samples=arguments.num_samples,
        seed=arguments.seed,
        batch_size=usual_batch if arguments.batch_size is None else arguments.batch_size,
        lenient=arguments.lenient,
        chat_template_kwargs=arguments.chat_template_kwargs,
    )


def checked_plan(arguments: SamplingArguments) -> "SamplingPlan":
    """The plan, after all that can be checked without data and model.

    Raises:
        `ValueError`: If folder, engine or a value of the plan is wrong, or there are several processes.
    """
    check_writable(arguments.output_dir)
    if any(Path(arguments.output_dir, name).is_file() for name in ("config.json", TRAINER_STATE_FILE)):
        raise ValueError(
            f"--output_dir {arguments.output_dir} holds a model or a training run; choose a folder of its own"
        )
    if arguments.engine_kwargs and resolve_engine(arguments.engine) != "vllm":
        raise ValueError("--engine_kwargs is for --engine vllm; leave it out")
    if arguments.effort is None and arguments.effort_suffix is not None:
        raise ValueError(
            f"--effort_suffix is {arguments.effort_suffix!r}, which needs --effort, the effort to ask for"
        )
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("this command runs as one process; start it without accelerate or torchrun")
    return make_plan(arguments)


def load_checked(reference: str, arguments: SamplingArguments, kind: "Kind", drops_unreadable: bool) -> "Dataset":
    """Problems of a training set or a benchmark, whose golds the grader has all read.

    Raises:
        `UserError`: If the data set cannot be loaded.
        `ValueError`: If a gold cannot be read and its row is not to be dropped.
    """
    from leash_trl.data import BOXED_SUFFIX
    from leash_trl.data.efforts import EFFORT_SUFFIX, effort_suffix
    from leash_trl.data.golds import with_readable_golds
    from leash_trl.data.problems import load_problems
    from leash_trl.length_control.targets import with_suffix

    with user_errors(only_loads=True, **{"benchmarks" if kind == "benchmark" else "dataset": reference}):
        problems = load_problems(
            reference,
            suffix=BOXED_SUFFIX if arguments.prompt_suffix is None else arguments.prompt_suffix,
            limit=arguments.limit,
            kind=kind,
            has_chat_template=has_chat_template(arguments.model_name_or_path, arguments.revision),
        )
    if arguments.effort is not None:
        effort = effort_suffix(arguments.effort, arguments.effort_suffix or EFFORT_SUFFIX)
        problems = problems.map(lambda row: {"prompt": with_suffix(row["prompt"], effort)})
    return with_readable_golds(problems, reference, drops_unreadable)


def load_engine(arguments: SamplingArguments, plan: "SamplingPlan", problems: Mapping[str, "Dataset"]) -> Engine:
    """The engine with its model; vLLM's context is as long as the longest prompt and its completion.

    Raises:
        `ValueError`: If the model cannot be loaded or vLLM is not installed.
    """
    model, options = arguments.model_name_or_path, {"revision": arguments.revision, "dtype": arguments.dtype}
    if resolve_engine(arguments.engine) != "vllm":
        from leash_trl.engines.transformers_engine import TransformersEngine

        batch_size = plan.batch_size if arguments.engine_batch_size is None else arguments.engine_batch_size
        return TransformersEngine.from_pretrained(model, batch_size=batch_size, **options)
    from transformers import AutoTokenizer

    from leash_trl.engines.chat_template import prompt_ids
    from leash_trl.engines.vllm_engine import VllmEngine

    # the model's own context may be many times longer, and its KV cache with it
    tokenizer = AutoTokenizer.from_pretrained(checkpoint_path(model), revision=arguments.revision)
    parts = (prompt_ids(tokenizer, rows["prompt"][:], **plan.chat_template_kwargs) for rows in problems.values())
    longest = max(len(ids) for part in parts for ids in part) + plan.sampling.max_new_tokens
    return VllmEngine(model, **{**options, "max_model_len": longest, "seed": plan.seed, **arguments.engine_kwargs})


def sample_all(
    arguments: SamplingArguments, plan: "SamplingPlan", problems: dict[str, "Dataset"], references: dict[str, str]
) -> None:
    """Samples the remaining problems into the run's folder, which must hold the same run or none.

    Problems and what the user called them go by the short names of their data sets.

    Raises:
        `UserError`: If the folder holds another run, model and prompts do not fit, the disk is full.
    """
    folder = Path(arguments.output_dir)
    with only_command_in(folder), going_on(folder, f"the same command goes on from what is in {folder}"):
        is_new = {path.name for path in folder.iterdir()} <= {LOCK_FILE}
        try:
            _sample(arguments, plan, problems, references, folder)
        except UserError:  # before the first sample
            if is_new:
                shutil.rmtree(folder)
            raise


def _sample(
    arguments: SamplingArguments,
    plan: "SamplingPlan",
    problems: dict[str, "Dataset"],
    references: dict[str, str],
    folder: Path,
) -> None:
    from leash_trl.evaluation.resuming import describe_run, prepare_folder
    from leash_trl.evaluation.sampling import check_prompts

    model = arguments.model_name_or_path
    details = {name: getattr(arguments, name) for name in ("engine_kwargs", "dtype", "prompt_suffix")}
    optional = {name: getattr(arguments, name) for name in ("label", "effort", "effort_suffix")}
    details |= {name: value for name, value in optional.items() if value is not None}
    with user_errors(model_name_or_path=model):
        engine_name = resolve_engine(arguments.engine)
        run = describe_run(model, plan, problems, references, arguments.revision, engine=engine_name, **details)
        done = prepare_folder(folder, run, problems, plan)
        todo = {name: rows for name, rows in problems.items() if done[name] < len(rows)}
        if not todo:
            return
        with user_errors(only_loads=True, model_name_or_path=model):
            engine = load_engine(arguments, plan, problems)
        plan.decoding.script(engine.tokenizer, plan.sampling.max_new_tokens)
        for rows in todo.values():
            check_prompts(engine, rows, plan)
    for name, rows in todo.items():
        _sample_with_bar(engine, name, rows, plan, folder, done[name])


def _sample_with_bar(
    engine: Engine, name: str, rows: "Dataset", plan: "SamplingPlan", folder: Path, num_done: int
) -> None:
    from tqdm.auto import tqdm

    from leash_trl.evaluation.sampling import sample_problems

    totals: Counter[str] = Counter()
    with tqdm(total=len(rows), initial=num_done, desc=name, unit="problem") as bar:
        for unit in sample_problems(engine, name, rows, plan, folder):
            for completion in (completion for problem in unit for completion in problem["completions"]):
                totals["sampled"] += 1
                totals["tokens"] += completion["num_tokens"]
                totals["graded"] += completion["is_correct"] is not None
                totals["right"] += completion["is_correct"] is True
            accuracy, tokens = totals["right"] / max(1, totals["graded"]), totals["tokens"] / totals["sampled"]
            bar.set_postfix(accuracy=f"{accuracy:.3f}", tokens=f"{tokens:.0f}")
            bar.update(len(unit))
