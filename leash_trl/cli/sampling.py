"""The shared part of `leash eval` and `leash filter`: options of model, engine and sampling, and the sampling loop."""

import argparse
import importlib.util
import json
import os
import shutil
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

from leash_trl.cli.errors import UserError, check_writable, only_command_in, user_errors
from leash_trl.engines.checkpoint_path import TRAINER_STATE_FILE, checkpoint_path
from leash_trl.engines.context import has_chat_template
from leash_trl.trainer.checkpoints import LOCK_FILE


if TYPE_CHECKING:
    from datasets import Dataset

    from leash_trl.data.sources import Kind
    from leash_trl.engines.engine import Engine
    from leash_trl.evaluation.sampling_run import SamplingPlan


def add_sampling_arguments(parser: argparse.ArgumentParser, num_samples: int) -> None:
    """Adds the options of model, engine and sampling; `num_samples` is the default of k."""
    from leash_trl.evaluation.decoding.strategies import strategy_parameters

    parser.epilog = "Parameters of the decoding strategies: " + "; ".join(strategy_parameters().splitlines())
    model = parser.add_argument_group("model and engine")
    model.add_argument(
        "--model_name_or_path", required=True, help="checkpoint folder, Hub id, or gym (the embedded base model)"
    )
    model.add_argument("--revision", help="branch, tag or commit of a model on the Hub")
    model.add_argument("--label", help="name of the run in tables (default: the model's name)")
    model.add_argument(
        "--engine",
        choices=("auto", "vllm", "transformers"),
        default="auto",
        help="what generates (default: vLLM where it is installed and there is a GPU, else transformers)",
    )
    model.add_argument("--dtype", default="auto", help="type of the weights, such as bfloat16 (default: the model's)")
    model.add_argument(
        "--engine_kwargs",
        type=json_object,
        default={},
        help="vLLM: its options, as JSON: '{\"tensor_parallel_size\": 2}'",
    )
    sampling = parser.add_argument_group("sampling (defaults: the paper's)")
    sampling.add_argument(
        "--num_samples",
        type=int,
        default=num_samples,
        help=f"completions of every problem, the k of avg@k (default: {num_samples})",
    )
    sampling.add_argument("--temperature", type=float, default=0.6, help="0 takes the likeliest token (default: 0.6)")
    sampling.add_argument("--top_p", type=float, default=0.95, help="1 samples from all tokens (default: 0.95)")
    sampling.add_argument("--top_k", type=int, default=0, help="0 samples from all tokens (default: 0)")
    sampling.add_argument("--max_new_tokens", type=int, default=32768, help="limit of a completion (default: 32768)")
    sampling.add_argument("--seed", type=int, default=0, help="seed of the run (default: 0)")
    sampling.add_argument(
        "--batch_size",
        type=int,
        help="completions of one unit of work, which a kill may lose (default: 1024 for vLLM, 64 for transformers)",
    )
    sampling.add_argument(
        "--engine_batch_size",
        type=int,
        help="transformers: completions in memory at once (default: all of a unit); lower it when memory runs out",
    )
    sampling.add_argument(
        "--decoding", default="plain", help="plain, budget_forcing (s1) or deer (DEER) (default: plain)"
    )
    sampling.add_argument(
        "--decoding_kwargs", type=json_object, default={}, help="as JSON: '{\"max_thinking_tokens\": 4096}'"
    )
    _add_problem_arguments(parser)


def _add_problem_arguments(parser: argparse.ArgumentParser) -> None:
    problems = parser.add_argument_group("problems")
    problems.add_argument("--prompt_suffix", help="appended to questions (default: the release's instruction)")
    problems.add_argument("--effort", help="effort that ends each prompt, one of the efforts the model was trained on")
    problems.add_argument("--effort_suffix", help="how a prompt says so (default: ' Effort: {effort}.')")
    problems.add_argument(
        "--chat_template_kwargs", type=json_object, default={}, help="as JSON: '{\"enable_thinking\": false}'"
    )
    problems.add_argument("--limit", type=int, help="only the first so many problems of each data set")
    problems.add_argument(
        "--lenient", action="store_true", help="count answers without box or answer line too, such as a bare number"
    )


def json_object(text: str) -> dict[str, Any]:
    """Names and values that a command line gives as JSON."""
    value = json.loads(text)
    if not isinstance(value, dict):
        raise ValueError(f"{text!r} is no object of names and values")
    return value


def checked_plan(arguments: argparse.Namespace) -> "SamplingPlan":
    """How the arguments want completions to be made, after all that can be checked without data and model.

    Raises:
        `ValueError`: If folder, engine or a value of the plan is wrong.
    """
    folder = Path(arguments.output_dir)
    if any((folder / name).is_file() for name in ("config.json", TRAINER_STATE_FILE)):
        raise ValueError(f"--output_dir {folder} holds a model or a training run; choose a folder of its own")
    check_writable(folder)
    _check_engine(arguments)
    return make_plan(arguments)


def resolve_engine(name: str) -> str:
    """The engine that `auto` means."""
    if name != "auto":
        return name
    import torch

    return "vllm" if importlib.util.find_spec("vllm") and torch.cuda.is_available() else "transformers"


def make_plan(arguments: argparse.Namespace) -> "SamplingPlan":
    """How the arguments want completions to be made.

    Raises:
        `ValueError`: If a value is out of range.
    """
    from leash_trl.engines.engine import SamplingSettings
    from leash_trl.evaluation.decoding.strategies import make_strategy
    from leash_trl.evaluation.sampling_run import SamplingPlan

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


def load_checked(reference: str, arguments: argparse.Namespace, kind: "Kind", drops_unreadable: bool) -> "Dataset":
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

    suffix = BOXED_SUFFIX if arguments.prompt_suffix is None else arguments.prompt_suffix
    with user_errors(only_loads=True, **{"benchmarks" if kind == "benchmark" else "dataset": reference}):
        problems = load_problems(
            reference,
            suffix=suffix,
            limit=arguments.limit,
            kind=kind,
            has_chat_template=has_chat_template(arguments.model_name_or_path, arguments.revision),
        )
    if arguments.effort is None and arguments.effort_suffix is not None:
        raise UserError(f"--effort_suffix is {arguments.effort_suffix!r}, which needs --effort, the effort to ask for")
    if arguments.effort is not None:
        effort = effort_suffix(arguments.effort, arguments.effort_suffix or EFFORT_SUFFIX)
        problems = problems.map(lambda row: {"prompt": with_suffix(row["prompt"], effort)})
    return with_readable_golds(problems, reference, drops_unreadable)


def _check_engine(arguments: argparse.Namespace) -> None:
    """Raises `ValueError` if an option would be ignored, or there are several processes."""
    import torch

    is_vllm = resolve_engine(arguments.engine) == "vllm"
    if not is_vllm and arguments.engine_kwargs:
        raise ValueError("--engine_kwargs is for --engine vllm; leave it out")
    if is_vllm and arguments.engine_batch_size is not None:
        raise ValueError("--engine_batch_size is for --engine transformers; vLLM fills the memory itself")
    if arguments.dtype != "auto" and not isinstance(getattr(torch, arguments.dtype, None), torch.dtype):
        raise ValueError(f"dtype is {arguments.dtype!r}, but must be auto or a type of torch's, such as bfloat16")
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise ValueError("this command runs as one process; start it without accelerate or torchrun")


def load_engine(arguments: argparse.Namespace, plan: "SamplingPlan", problems: dict[str, "Dataset"]) -> "Engine":
    """The engine with its model; vLLM's context is as long as the longest prompt and its completion.

    Raises:
        `ValueError`: If the model cannot be loaded or vLLM is not installed.
    """
    options = {"revision": arguments.revision, "dtype": arguments.dtype}
    if resolve_engine(arguments.engine) == "vllm":
        from leash_trl.engines.vllm_engine import VllmEngine

        # the model's own context may be many times longer, and its KV cache with it
        longest = _longest_prompt(arguments, plan, problems) + plan.sampling.max_new_tokens
        options |= {"max_model_len": longest, "seed": arguments.seed}
        return VllmEngine(arguments.model_name_or_path, **{**options, **arguments.engine_kwargs})
    from leash_trl.engines.transformers_engine import TransformersEngine

    batch_size = plan.batch_size if arguments.engine_batch_size is None else arguments.engine_batch_size
    return TransformersEngine.from_pretrained(arguments.model_name_or_path, batch_size=batch_size, **options)


def _longest_prompt(arguments: argparse.Namespace, plan: "SamplingPlan", problems: dict[str, "Dataset"]) -> int:
    from transformers import AutoTokenizer

    from leash_trl.engines.chat_template import prompt_ids

    path = checkpoint_path(arguments.model_name_or_path)
    tokenizer = AutoTokenizer.from_pretrained(path, revision=arguments.revision)
    parts = (prompt_ids(tokenizer, rows["prompt"][:], **plan.chat_template_kwargs) for rows in problems.values())
    return max(len(ids) for part in parts for ids in part)


def sample_all(
    arguments: argparse.Namespace,
    plan: "SamplingPlan",
    problems: dict[str, "Dataset"],
    references: dict[str, str],
    folder: Path,
) -> None:
    """Samples the remaining problems into a run's folder, which must hold the same run or none.

    Problems and what the user called them go by the short names of their data sets.

    Raises:
        `UserError`: If the folder holds another run, or model and prompts do not fit.
    """
    with only_command_in(folder):
        is_new = {path.name for path in folder.iterdir()} <= {LOCK_FILE}
        try:
            _sample(arguments, plan, problems, references, folder)
        except UserError:  # before the first sample
            if is_new:
                shutil.rmtree(folder)
            raise
        except KeyboardInterrupt:
            raise UserError(f"stopped; the same command goes on from what is in {folder}") from None


def _sample(
    arguments: argparse.Namespace,
    plan: "SamplingPlan",
    problems: dict[str, "Dataset"],
    references: dict[str, str],
    folder: Path,
) -> None:
    from leash_trl.evaluation.resuming import prepare_folder
    from leash_trl.evaluation.run_description import describe_run
    from leash_trl.evaluation.sampling_run import check_prompts

    model = arguments.model_name_or_path
    details = {name: getattr(arguments, name) for name in ("engine_kwargs", "dtype", "prompt_suffix")}
    for name in ("label", "effort", "effort_suffix"):
        if (value := getattr(arguments, name)) is not None:
            details[name] = value
    with user_errors(model_name_or_path=model):
        engine_name = resolve_engine(arguments.engine)
        run = describe_run(model, plan, problems, references, arguments.revision, engine=engine_name, **details)
        if not (todo := prepare_folder(folder, run, problems, plan)):
            return
        with user_errors(only_loads=True, model_name_or_path=model):
            engine = load_engine(arguments, plan, problems)
        plan.decoding.check(engine.tokenizer, plan.sampling.max_new_tokens)
        for rows in todo.values():
            check_prompts(engine, rows, plan)
    for name, rows in todo.items():
        _sample_with_bar(engine, name, rows, plan, folder)


def _sample_with_bar(engine: "Engine", name: str, rows: "Dataset", plan: "SamplingPlan", folder: Path) -> None:
    from tqdm.auto import tqdm

    from leash_trl.evaluation.resuming import num_done
    from leash_trl.evaluation.sampling_run import sample_problems

    totals: Counter[str] = Counter()
    with tqdm(total=len(rows), initial=num_done(folder, name, rows, plan), desc=name, unit="problem") as bar:
        for unit in sample_problems(engine, name, rows, plan, folder):
            for completion in (completion for problem in unit for completion in problem.completions):
                totals["sampled"] += 1
                totals["tokens"] += completion.num_tokens
                totals["graded"] += completion.is_correct is not None
                totals["right"] += completion.is_correct is True
                totals["failed"] += completion.is_correct is False and completion.grader_failure is not None
            accuracy, tokens = totals["right"] / max(1, totals["graded"]), totals["tokens"] / totals["sampled"]
            bar.set_postfix(accuracy=f"{accuracy:.3f}", tokens=f"{tokens:.0f}")
            bar.update(len(unit))
    if totals["failed"]:
        print(
            f"{name}: {totals['failed']} comparisons ran over their limits and count as wrong (grader_failure in the "
            "samples)"
        )
