"""The shared part of `leash eval` and `leash filter`: options of model, engine and sampling, and the sampling loop."""

import importlib.util
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Literal

import pandas as pd
import torch
from datasets import Dataset, Image
from tqdm.auto import tqdm
from transformers import AutoTokenizer

from leash_trl.cli.errors import check_writable, going_on, user_errors
from leash_trl.cli.rewards import code_digest, function_name, reward_functions
from leash_trl.data import BOXED_SUFFIX
from leash_trl.data.golds import with_readable_golds
from leash_trl.data.problems import load_problems
from leash_trl.data.sources import Kind, parse_reference
from leash_trl.engines.checkpoint_path import checkpoint_path
from leash_trl.engines.context import has_chat_template
from leash_trl.engines.engine import Engine, SamplingSettings, check_lengths
from leash_trl.engines.transformers_engine import TransformersEngine
from leash_trl.evaluation import sampling
from leash_trl.evaluation.decoding import make_strategy
from leash_trl.evaluation.frame import OVERALL
from leash_trl.evaluation.own_rewards import OwnRewards
from leash_trl.length_control.targets import with_suffix
from leash_trl.rewards import heeding_opened_thinking
from leash_trl.trainer.checkpoints import only_run_in


DETAILS = (
    *("engine", "engine_kwargs", "dtype", "split", "prompt_suffix", "system_prompt", "request", "label"),
    *("reward_funcs", "reward_weights", "correctness_func"),
)


@dataclass(kw_only=True)
class SamplingArguments:
    """Options of model, engine, sampling and problems.

    Args:
        output_dir (`str`): Folder of the run.
        model_name_or_path (`str`): Folder, Hub id, or gym (the embedded base model).
        revision (`str`): Branch, tag or commit of a model on the Hub.
        label (`str`): Name of the run in tables (default: the model's name).
        engine (`str`): With auto, vLLM if it is installed and there is a GPU.
        dtype (`str`): Type of the weights; auto: the model's.
        engine_kwargs (`dict`): Options of vLLM, as JSON.
        num_samples (`int`): Completions of every problem, the k of avg@k.
        temperature (`float`): Temperature of sampling; 0 takes the likeliest token.
        top_p (`float`): Probability of the tokens to sample from; 1 is all.
        top_k (`int`): Number of tokens to sample from; 0 is all.
        max_new_tokens (`int`): Limit of a completion.
        seed (`int`): Seed of the run.
        batch_size (`int`): Completions that a kill may lose, and in memory at once (default: 1024 for vLLM, 64 for
            transformers).
        decoding (`str`): One of plain and budget_forcing (s1).
        decoding_kwargs (`dict`): Parameters of the decoding, as JSON.
        prompt_suffix (`str`): Appended to questions; the default is the release's.
        system_prompt (`str`): As in training: put as a system message before prompts that begin with none.
        chat_template (`str`): Jinja text, in the place of the tokenizer's chat template.
        chat_template_kwargs (`dict`): For the chat template, as JSON: '{"enable_thinking": false}'.
        request (`str`): Ends every prompt, messages too: ' Effort: low.' or L1's budget, say.
        split (`str`): Split of each data set (default: the only one, or that of the named source).
        reward_funcs (`list[str]`): Graders in the place of math_reward, called as in training:
            my_module.my_reward or my_file.py:my_reward.
        reward_weights (`list[float]`): Weights of reward_funcs (default: 1).
        correctness_func (`str`): The one of several reward_funcs that is above 0 for a right answer.
        limit (`int`): Only the first so many problems of each data set.
        lenient (`bool`): Whether to count answers without box or answer line too, such as a bare number.
        thinking_end (`str`): Text that ends the thinking, whose tokens have a row of their own.
    """

    output_dir: str
    model_name_or_path: str
    revision: str | None = None
    label: str | None = None
    engine: Literal["auto", "vllm", "transformers"] = "auto"
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = "auto"
    engine_kwargs: dict = field(default_factory=dict)
    num_samples: int = 32
    temperature: float = SamplingSettings.temperature
    top_p: float = SamplingSettings.top_p
    top_k: int = SamplingSettings.top_k
    max_new_tokens: int = SamplingSettings.max_new_tokens
    seed: int = 0
    batch_size: int | None = None
    decoding: str = "plain"
    decoding_kwargs: dict = field(default_factory=dict)
    prompt_suffix: str = BOXED_SUFFIX
    system_prompt: str | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict = field(default_factory=dict)
    request: str = ""
    split: str | None = None
    reward_funcs: list[str] | None = None
    reward_weights: list[float] | None = None
    correctness_func: str | None = None
    limit: int | None = None
    lenient: bool = False
    thinking_end: str = sampling.SamplingPlan.thinking_end

    def __post_init__(self) -> None:
        if self.engine == "auto":
            has_vllm = importlib.util.find_spec("vllm") and torch.cuda.is_available()
            self.engine = "vllm" if has_vllm else "transformers"
        self.batch_size = self.batch_size or (1024 if self.engine == "vllm" else 64)
        if self.engine_kwargs and self.engine != "vllm":
            raise ValueError("--engine_kwargs is for --engine vllm; leave it out")
        if self.reward_funcs in (["math_reward"], ["lenient_math_reward"]):  # the grader, which finds answers too
            self.lenient |= self.reward_funcs == ["lenient_math_reward"]
            self.reward_funcs = None

    def plan(self) -> sampling.SamplingPlan:
        """How completions are to be made; raises `ValueError` if a value is out of range."""
        template = {} if self.chat_template is None else {"chat_template": self.chat_template}
        values = {
            **vars(self),
            "chat_template_kwargs": {**template, **self.chat_template_kwargs},
            "decoding": make_strategy(self.decoding, **self.decoding_kwargs),
            "sampling": SamplingSettings(self.temperature, self.top_p, self.top_k, self.max_new_tokens),
        }
        return sampling.SamplingPlan(**{part.name: values[part.name] for part in fields(sampling.SamplingPlan)})


def load_checked(reference: str, arguments: SamplingArguments, kind: Kind) -> Dataset:
    """Problems of a benchmark, or of a training set without those whose golds the grader cannot read.

    Raises:
        `UserError`: If the data set cannot be loaded.
        `ValueError`: If a benchmark's gold cannot be read.
    """
    with user_errors(only_loads=True, **{"benchmarks" if kind == "benchmark" else "dataset": reference}):
        template = arguments.chat_template
        is_chat = template is not None or has_chat_template(arguments.model_name_or_path, arguments.revision)
        problems = load_problems(
            reference,
            split=arguments.split,
            suffix=arguments.prompt_suffix,
            limit=arguments.limit,
            kind=kind,
            has_chat_template=is_chat,
            system_prompt=arguments.system_prompt,
            needs_gold=not arguments.reward_funcs,
        )
    for name, feature in problems.features.items():
        if isinstance(getattr(feature, "feature", feature), Image):
            raise ValueError(f"{reference} has pictures in column {name!r}, which prompts would not show; drop it")
    if arguments.request:
        problems = problems.map(lambda row: {"prompt": with_suffix(row["prompt"], arguments.request)})
    if arguments.reward_funcs:
        return problems
    return with_readable_golds(problems, reference, drops=kind == "train")


def load_engine(arguments: SamplingArguments, plan: sampling.SamplingPlan, problems: dict[str, Dataset]) -> Engine:
    """The engine with its model, whose context has room for the longest prompt and its completion.

    Raises:
        `UserError`: If the model cannot be loaded.
        `ValueError`: If it has no such room, or the decoding is not for its tokenizer.
    """
    model = arguments.model_name_or_path
    options: dict[str, Any] = {"revision": arguments.revision, "dtype": arguments.dtype}
    with user_errors(only_loads=True, model_name_or_path=model):
        tokenizer = AutoTokenizer.from_pretrained(checkpoint_path(model), revision=arguments.revision)
        longest = sampling.longest_request(tokenizer, problems.values(), plan)
        if arguments.engine == "vllm":
            from leash_trl.engines.vllm_engine import VllmEngine

            # the model's own context may be many times longer, and its KV cache with it
            options |= {"max_model_len": len(longest.prompt_ids) + longest.max_new_tokens, "seed": plan.seed}
            engine: Engine = VllmEngine(model, **options | arguments.engine_kwargs)
        else:
            engine = TransformersEngine.from_pretrained(model, batch_size=plan.batch_size, **options)
    plan.decoding.script(tokenizer, plan.sampling.max_new_tokens)
    check_lengths([longest], engine.max_length)
    return engine


def sample_all(
    arguments: SamplingArguments, references: list[str], kind: Kind, baseline: dict[str, Any] | None = None
) -> dict[str, Dataset]:
    """The problems of data sets by their short names, all of them sampled into the run's folder, which must hold the
    same run or none. `baseline`: the `benchmarks` of a run to compare with.

    Raises:
        `UserError`: If the folder holds another run, model and prompts do not fit, the disk is full.
    """
    folder, model = Path(arguments.output_dir), arguments.model_name_or_path
    with user_errors():
        check_writable(arguments.output_dir)
        plan = arguments.plan()
        functions = reward_functions(arguments.reward_funcs or [])
        names = {parse_reference(reference).name: reference for reference in references}
        if len({*names, OVERALL}) <= len(references):
            raise ValueError(f"--benchmarks {' '.join(references)}: two have the same name, or one that of the mean")
        problems = {name: load_checked(reference, arguments, kind) for name, reference in names.items()}
        if baseline is not None:
            sampling.check_same_problems(problems, baseline)
    details = {name: value for name in DETAILS if (value := getattr(arguments, name)) is not None}
    details |= {"reward_code": code_digest(functions)} if functions else {}
    with only_run_in(folder), going_on(folder, f"the same command goes on from what is in {folder}"):
        with user_errors(model_name_or_path=model):
            run = sampling.describe_run(model, arguments.revision, plan, problems, names) | details
            done = sampling.prepare_folder(folder, run, problems, plan)
            todo = {name: rows for name, rows in problems.items() if done[name] < len(rows)}
            if not todo:
                return problems
            engine = load_engine(arguments, plan, problems)
            deciding = function_name(arguments.correctness_func)
            heeding = heeding_opened_thinking(functions, engine.tokenizer, **plan.chat_template_kwargs)
            rewards = OwnRewards(heeding, arguments.reward_weights, deciding) if functions else None
        for name, rows in todo.items():
            seen: list[tuple[int, bool | None]] = []
            with tqdm(total=len(rows), initial=done[name], desc=name, unit="problem") as bar:
                for unit in sampling.sample_problems(engine, name, rows, plan, folder, rewards):
                    seen += [(each["num_tokens"], each["is_correct"]) for row in unit for each in row["completions"]]
                    tokens, accuracy = pd.DataFrame(seen, dtype=float).mean()
                    bar.set_postfix(accuracy=f"{accuracy:.3f}", tokens=f"{tokens:.0f}")
                    bar.update(len(unit))
    return problems
