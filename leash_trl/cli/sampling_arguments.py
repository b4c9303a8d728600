"""The common part of `leash eval` and `leash filter`: options for model, engine and sampling, and the main loop."""

import importlib.util
import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any, Literal, Self, cast

import pandas as pd
import torch
from datasets import Dataset, Image
from tqdm.auto import tqdm
from transformers import AutoTokenizer

from leash_trl.cli.arguments import check_chat_template
from leash_trl.cli.errors import add_resume_hint, create_writable_folder, errors_to_user_errors
from leash_trl.completions.costs import find_cost
from leash_trl.completions.prompts import with_suffix
from leash_trl.completions.thinking import ThinkingMarkers, warn_of_hidden_markers
from leash_trl.data.problems import fingerprint, load_problems
from leash_trl.data.readable_solutions import with_readable_solutions
from leash_trl.data.sources import Purpose, parse_reference
from leash_trl.digests import code_digests
from leash_trl.engines.engine import Engine, SamplingSettings, check_lengths
from leash_trl.engines.transformers_engine import TransformersEngine
from leash_trl.evaluation import sampling
from leash_trl.evaluation.decoding import make_strategy
from leash_trl.evaluation.metrics import OVERALL
from leash_trl.evaluation.reward_grader import RewardGrader
from leash_trl.evaluation.sampling import SamplingPlan
from leash_trl.model_paths import model_path
from leash_trl.reward_functions import (
    default_reward_name,
    find_correctness_func,
    find_reward_functions,
    suffix_or_default,
)
from leash_trl.run_folder import RECIPE_FILE, lock_folder
from leash_trl.saved_recipe import field_as_mapping, recipe_of_model


logger = logging.getLogger(__name__)

# values of reward_funcs for which the grader itself is used, since it returns the answers, too
GRADER_REWARD_FUNCS = (["math_reward"], ["lenient_math_reward"])
# Options that run.json records beside the settings of the plan. Two runs that differ in one of them, except for the
# label, are different runs.
RECORDED_ARGUMENTS = (
    "engine",
    "engine_kwargs",
    "dtype",
    "split",
    "system_prompt",
    "prompt_ending",
    "label",
    "reward_weights",
    "correctness_func",
)
# Fields of a recipe that determine the prompts and the end of the thinking, with their defaults. An evaluation of the
# trained model adopts them.
PROMPT_FIELDS: dict[str, Any] = {
    "prompt_suffix": None,
    "system_prompt": None,
    "chat_template": None,
    "chat_template_kwargs": {},
    "thinking_end": SamplingPlan.thinking_end,
}
OPTION_OF_PURPOSE: dict[Purpose, str] = {"benchmark": "benchmarks", "train": "dataset_name"}
DEFAULT_BATCH_SIZE = {"vllm": 1024, "transformers": 64}


@dataclass(kw_only=True)
class SamplingArguments:
    """Options for model, engine, sampling and problems.

    For a model that leash train saved, prompt_suffix, system_prompt, chat_template, chat_template_kwargs and
    thinking_end are by default those of its recipe.

    Args:
        output_dir (`str`): Folder of the run.
        model_name_or_path (`str`): Model, as a folder, a Hub id, or gym for the small model of this package.
        revision (`str`): Branch, tag or commit of a model on the Hub.
        label (`str`): Name of the run in tables (default: the last part of the model's name).
        engine (`str`): Engine that generates; auto is vLLM if it is installed and there is a GPU.
        dtype (`str`): Type of the weights; auto is the type in the model's configuration.
        engine_kwargs (`dict`): Further options of vLLM, as JSON.
        num_samples (`int`): Number of completions per problem, the k of avg@k.
        temperature (`float`): Sampling temperature; with 0, the most likely token is chosen.
        top_p (`float`): Probability mass of the tokens to sample from; 1 means all tokens.
        top_k (`int`): Number of most likely tokens to sample from; 0 means all.
        max_new_tokens (`int`): Maximum length of a completion in tokens.
        seed (`int`): Seed of the run.
        batch_size (`int`): Number of completions to generate and save at once; if the command is killed, those of one
            batch are lost (default: 1024 for vLLM, 64 for transformers).
        decoding (`str`): Decoding strategy, plain or budget_forcing (s1).
        decoding_kwargs (`dict`): Parameters of the decoding strategy, as JSON.
        prompt_suffix (`str`): Text to append to questions (default: that of training, or else a request for a box if
            the answers are graded as mathematics).
        system_prompt (`str`): System message for prompts that do not begin with one, as in training.
        chat_template (`str`): Jinja text that replaces the tokenizer's chat template.
        chat_template_kwargs (`dict`): Arguments of the chat template, as JSON, such as '{"enable_thinking": false}'.
        prompt_ending (`str`): Text to append to every prompt, also to prompts that are messages, such as
            ' Effort: low.' or the budget of L1.
        split (`str`): Split of each data set (default: the only split; if a named source has several, leash eval
            takes the one for evaluation, and leash filter takes train).
        reward_funcs (`list[str]`): Reward functions to grade with instead of math_reward, called as in training:
            my_module.my_reward or my_file.py:my_reward.
        reward_weights (`list[float]`): One weight for each of reward_funcs (default: 1 each).
        correctness_func (`str`): Function whose reward is above 0 for correct answers alone: the name of one of
            reward_funcs, or another function, which then has no weight; needed for several reward_funcs and for
            partial credit.
        limit (`int`): Number of problems to use, from the start of each data set (default: all).
        thinking_end (`str`): Text that ends the thinking, whose tokens are also counted separately (default: that of
            training, or else </think>).
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
    decoding: Literal["plain", "budget_forcing"] = "plain"
    decoding_kwargs: dict = field(default_factory=dict)
    prompt_suffix: str | None = None
    system_prompt: str | None = None
    chat_template: str | None = None
    chat_template_kwargs: dict[str, Any] | str | None = None
    prompt_ending: str = ""
    split: str | None = None
    reward_funcs: list[str] | None = None
    reward_weights: list[float] | None = None
    correctness_func: str | None = None
    limit: int | None = None
    thinking_end: str | None = None

    def __post_init__(self) -> None:
        check_chat_template(self.chat_template)
        if self.engine == "auto":
            has_vllm = importlib.util.find_spec("vllm") and torch.cuda.is_available()
            self.engine = "vllm" if has_vllm else "transformers"
        # a mapping of a recipe, or text of the command line such as '{"enable_thinking": false}'
        self.chat_template_kwargs = field_as_mapping("chat_template_kwargs", self.chat_template_kwargs)
        if self.engine_kwargs and self.engine != "vllm":
            raise ValueError("--engine_kwargs is only for --engine vllm; remove it")

    def sampling_plan(self) -> SamplingPlan:
        """Returns the settings of the sampling run; raises `ValueError` if a value is out of range."""
        # `apply_chat_template` also takes the template itself as an argument.
        template_kwargs: dict[str, Any] = {}
        if self.chat_template is not None:
            template_kwargs["chat_template"] = self.chat_template
        template_kwargs.update(cast(dict[str, Any], self.chat_template_kwargs or {}))
        return SamplingPlan(
            decoding=make_strategy(self.decoding, **self.decoding_kwargs),
            sampling=SamplingSettings(self.temperature, self.top_p, self.top_k, self.max_new_tokens),
            num_samples=self.num_samples,
            seed=self.seed,
            batch_size=self.batch_size or DEFAULT_BATCH_SIZE[self.engine],
            lenient=self.reward_funcs == ["lenient_math_reward"],
            thinking_end=self.thinking_end or SamplingPlan.thinking_end,
            chat_template_kwargs=template_kwargs,
        )

    def with_defaults_of_training(self, recipe: Mapping[str, Any]) -> Self:
        """Returns the arguments, in which each of the [`PROMPT_FIELDS`] that is not set gets its value in `recipe`,
        the recipe of the model's training, which is empty for a model that `leash train` did not save.

        One line is logged about the fields that were adopted, and one about those that differ from training.
        """
        # such as {"system_prompt": None, "thinking_end": "</think>", ...}; empty without a recipe
        trained = prompt_settings_of_training(recipe)
        adopted = {name: value for name, value in trained.items() if getattr(self, name) is None}
        arguments = replace(self, **adopted)
        if recipe.get("effort_template_kwargs"):
            # In training, each effort had its own arguments of the chat template. Arguments that the user chose select
            # one of the efforts, and are no difference from training.
            warn_of_no_effort(arguments.chat_template_kwargs, recipe)
            trained.pop("chat_template_kwargs")
        chosen = {name: getattr(self, name) for name in trained if name not in adopted}
        warn_of_adopted_prompts(adopted)
        warn_of_other_prompts(chosen, trained)
        return arguments


def prompt_settings_of_training(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the [`PROMPT_FIELDS`] of a training by its recipe; empty if the recipe is empty.

    `prompt_suffix` is left out if the recipe does not have it: `leash train` does not record a default that no prompt
    got, because the prompts were messages, and a Python program records none.
    """
    if not recipe:
        return {}
    trained: dict[str, Any] = {}
    for name, default in PROMPT_FIELDS.items():
        value = recipe.get(name)
        trained[name] = default if value is None else value
    # A suffix that is not recorded is chosen later by the reward functions, as without a recipe.
    if trained["prompt_suffix"] is None:
        del trained["prompt_suffix"]
    trained["chat_template_kwargs"] = field_as_mapping("chat_template_kwargs", trained["chat_template_kwargs"])
    return trained


def warn_of_adopted_prompts(adopted: Mapping[str, Any]) -> None:
    """Warns which settings of prompts are taken from training. Settings with their default are not mentioned."""
    # Only the first 99 characters of a value are shown, since it may be a chat template.
    unusual = [f"{name} {value!r:.99}" for name, value in adopted.items() if value != PROMPT_FIELDS[name]]
    if unusual:
        logger.warning("prompts are those of training, from %s: %s", RECIPE_FILE, ", ".join(unusual))


def warn_of_other_prompts(chosen: Mapping[str, Any], trained: Mapping[str, Any]) -> None:
    """Warns which settings of prompts that the user chose differ from those of training."""
    differing = []
    for name, value in chosen.items():
        if value != trained[name]:
            differing.append(f"{name} is {value!r:.99}, but was {trained[name]!r:.99} in training")
    if differing:
        logger.warning("prompts differ from those of training: %s; remove the option", "; ".join(differing))


def template_kwargs_of_efforts(recipe: Mapping[str, Any]) -> dict[str, Any]:
    """Returns all arguments of the chat template for each effort of a training, with those that the efforts share;
    empty if the training had no efforts, or stated them by text alone."""
    # such as {"low": {"reasoning_effort": "low"}, "off": {"enable_thinking": False}}
    kwargs_of_efforts = recipe.get("effort_template_kwargs")
    if not kwargs_of_efforts:
        return {}
    common_kwargs = field_as_mapping("chat_template_kwargs", recipe.get("chat_template_kwargs")) or {}
    # The arguments of an effort replace common ones of the same name. An effort may have none of its own.
    return {effort: {**common_kwargs, **kwargs_of_efforts.get(effort, {})} for effort in recipe["efforts"]}


def warn_of_no_effort(chat_template_kwargs: Any, recipe: Mapping[str, Any]) -> None:
    """Warns if these arguments of the chat template select none of the efforts of the training."""
    choices = template_kwargs_of_efforts(recipe)  # such as {"low": {"reasoning_effort": "low"}}
    if chat_template_kwargs not in choices.values():
        logger.warning(
            "chat_template_kwargs is %s, which selects no effort of training; set one of %s",
            json.dumps(chat_template_kwargs),
            ", ".join(f"{json.dumps(kwargs)} ({effort})" for effort, kwargs in choices.items()),
        )


def load_problems_to_sample(reference: str, arguments: SamplingArguments, purpose: Purpose, tokenizer: Any) -> Dataset:
    """Loads the problems of a data set, with prompts as the arguments say.

    Raises:
        `UserError`: If the data set cannot be loaded.
        `ValueError`: If the data set has images.
    """
    functions = find_reward_functions(arguments.reward_funcs or [])
    loaded = {OPTION_OF_PURPOSE[purpose]: reference}  # for messages
    with errors_to_user_errors(always_names_option=True, **loaded):
        problems = load_problems(
            reference,
            split=arguments.split,
            # a function of the columns, which are known only after loading
            suffix=partial(suffix_or_default, arguments.prompt_suffix, functions),
            limit=arguments.limit,
            purpose=purpose,
            has_chat_template=bool(arguments.chat_template or tokenizer.chat_template),
            system_prompt=arguments.system_prompt,
            # Only the grader needs golds. Reward functions of the user may do without.
            needs_gold=not arguments.reward_funcs or arguments.reward_funcs in GRADER_REWARD_FUNCS,
        )
    check_no_images(reference, problems)
    if not arguments.prompt_ending:
        return problems
    # Unlike the suffix, the ending is also appended to prompts that are messages.
    return problems.map(lambda row: {"prompt": with_suffix(row["prompt"], arguments.prompt_ending)})


def check_no_images(reference: str, problems: Dataset) -> None:
    """Raises `ValueError` if problems have images, which would not be passed to the model."""
    for column, feature in problems.features.items():
        # The type of a list has the type of its items in `feature`.
        content = getattr(feature, "feature", feature)
        if isinstance(content, Image):
            raise ValueError(f"{reference} has images in column {column!r}, which the model would not see; remove it")


def load_engine(
    arguments: SamplingArguments, plan: SamplingPlan, problems: dict[str, Dataset], tokenizer: Any
) -> Engine:
    """Loads the engine with its model, and checks that its context has room for the longest prompt and its completion.

    Raises:
        `UserError`: If the model cannot be loaded, or its context is too short.
    """
    model = arguments.model_name_or_path
    options: dict[str, Any] = {"revision": arguments.revision, "dtype": arguments.dtype}
    with errors_to_user_errors(always_names_option=True, model_name_or_path=model):
        longest = sampling.longest_request(tokenizer, problems.values(), plan)
        if arguments.engine == "vllm":
            from leash_trl.engines.vllm_engine import VllmEngine

            # By default, vLLM reserves a KV cache for the model's full context, which may be many times as long.
            options["max_model_len"] = len(longest.prompt_ids) + longest.max_new_tokens
            options["seed"] = plan.seed
            options.update(arguments.engine_kwargs)
            engine: Engine = VllmEngine(model, **options)
        else:
            engine = TransformersEngine.from_pretrained(model, batch_size=plan.batch_size, **options)
        check_lengths([longest], engine.max_length)
    return engine


def default_reward_names(problems: dict[str, Dataset], references: list[str]) -> list[str]:
    """Returns the name of the default reward function for these data sets, in a list.

    Raises:
        `ValueError`: If the data sets, which the user named by `references`, have different default reward functions.
    """
    names = {default_reward_name(rows.column_names) for rows in problems.values()}
    if len(names) > 1:
        raise ValueError(f"{', '.join(references)} have different rewards; set reward_funcs")
    return list(names)


def reward_grader_of(reward_names: list[str], arguments: SamplingArguments) -> RewardGrader | None:
    """Returns a grader that calls the reward functions with these names as in training. The result is `None` if
    math_reward or lenient_math_reward alone decides, for which the grader behind them is used, since it returns the
    answers, too. Raises `ValueError` if a function cannot be found."""
    # That grader can be used only if no other function decides which answers are correct.
    decides_alone = arguments.correctness_func in (None, *reward_names)
    if reward_names in GRADER_REWARD_FUNCS and decides_alone:
        return None
    functions = find_reward_functions(reward_names)
    deciding = find_correctness_func(arguments.correctness_func, functions)
    return RewardGrader(functions, arguments.reward_weights, deciding)


def references_by_name(references: list[str], purpose: Purpose) -> dict[str, str]:
    """Returns the data sets that the user named, by the short names that files and rows of tables have.

    Raises:
        `ValueError`: If a reference is wrong, or two data sets have the same name.
    """
    field = OPTION_OF_PURPOSE[purpose]
    names = {parse_reference(reference, field=field).name: reference for reference in references}
    if len(names) < len(references) or OVERALL in names:
        raise ValueError(f"--benchmarks {' '.join(references)}: names must differ, also from {OVERALL!r}")
    return names


@dataclass(frozen=True)
class PreparedRun:
    """The problems that a run samples, and how it grades the completions.

    Args:
        purpose (`str`): What the data sets are for: `train` or `benchmark`.
        references (`dict[str, str]`), problems (`dict[str, Dataset]`): Data sets as the user named them, and their
            problems, by the short names of the data sets.
        plan (`SamplingPlan`): Settings of the run.
        tokenizer (`PreTrainedTokenizerBase`): Tokenizer of the model.
        reward_grader (`RewardGrader`): Reward functions that grade; `None` for the grader behind math_reward.
        recorded_options (`dict`): Options that `run.json` records in addition to the plan.
    """

    purpose: Purpose
    references: dict[str, str]
    problems: dict[str, Dataset]
    plan: SamplingPlan
    tokenizer: Any
    reward_grader: RewardGrader | None
    recorded_options: dict[str, Any]

    def check_correctness_known(self) -> None:
        """Raises `TrainingError` in `leash filter` if the rewards so far do not show which completions are correct,
        since it keeps problems by the number of their correct completions. An evaluation without correctness still
        measures lengths and rewards, so it goes on."""
        if self.purpose == "train" and self.reward_grader is not None:
            self.reward_grader.correctness_rule.check_known("leash filter")


def prepare_run(arguments: SamplingArguments, references: list[str], purpose: Purpose) -> PreparedRun:
    """Creates the output folder, and loads the tokenizer, the problems and the reward functions of a run, with prompts
    as in the model's training.

    Training problems whose golds the grader cannot read are left out.

    Args:
        arguments (`SamplingArguments`): Options of the command.
        references (`list[str]`): Data sets as the user named them.
        purpose (`str`): What the data sets are for: `train` or `benchmark`.

    Raises:
        `UserError`: If the folder cannot be written to, or if model or data cannot be loaded.
        `ValueError`: If the arguments do not fit together, or a benchmark has a gold that the grader cannot read.
    """
    create_writable_folder(arguments.output_dir)
    named_references = references_by_name(references, purpose)
    tokenizer, recipe = load_tokenizer_and_recipe(arguments)
    arguments = arguments.with_defaults_of_training(recipe)
    plan = arguments.sampling_plan()
    plan.decoding.check(tokenizer, plan.sampling.max_new_tokens)
    warn_of_hidden_markers(tokenizer, ThinkingMarkers(plan.thinking_end))
    problems = {
        name: load_problems_to_sample(reference, arguments, purpose, tokenizer)
        for name, reference in named_references.items()
    }
    reward_names = arguments.reward_funcs or default_reward_names(problems, references)
    warn_of_other_rewards(reward_names, recipe)
    reward_grader = reward_grader_of(reward_names, arguments)  # `None` if the grader behind math_reward grades
    # Only the grader needs golds that it can read; the user's own functions may have golds of any form. A benchmark
    # with unreadable golds is refused, since without these problems it would be another benchmark.
    if reward_grader is None:
        for name, rows in problems.items():
            problems[name] = with_readable_solutions(rows, named_references[name], purpose == "train")
    recorded_options = recorded_options_of(
        arguments, plan, problems, reward_names=reward_names, reward_grader=reward_grader
    )
    return PreparedRun(
        purpose=purpose,
        references=named_references,
        problems=problems,
        plan=plan,
        tokenizer=tokenizer,
        reward_grader=reward_grader,
        recorded_options=recorded_options,
    )


def load_tokenizer_and_recipe(arguments: SamplingArguments) -> tuple[Any, dict[str, Any]]:
    """Returns the tokenizer of the model, and the recipe of its training; the recipe is empty if `leash train` did not
    save the model."""
    model = arguments.model_name_or_path
    with errors_to_user_errors(always_names_option=True, model_name_or_path=model):
        path = model_path(model)
        tokenizer = AutoTokenizer.from_pretrained(path, revision=arguments.revision)
        return tokenizer, recipe_of_model(path, arguments.revision)


def warn_of_other_rewards(reward_names: list[str], recipe: Mapping[str, Any]) -> None:
    """Warns if other reward functions grade than those in the recipe of the training."""
    trained_names = recipe.get("reward_funcs")  # `None` if the training had the default
    if trained_names and trained_names != reward_names:
        logger.warning(
            "reward_funcs is %s, but was %s in training; set reward_funcs if those are meant",
            ", ".join(reward_names),
            ", ".join(trained_names),
        )


def recorded_options_of(
    arguments: SamplingArguments,
    plan: SamplingPlan,
    problems: Mapping[str, Dataset],
    reward_names: list[str],
    reward_grader: RewardGrader | None,
) -> dict[str, Any]:
    """Returns the options that `run.json` records in addition to the plan, with the suffix that prompts got, and with
    digests of the user's code and of the data that the code reads. Options that are `None` are left out."""
    recorded = {name: getattr(arguments, name) for name in RECORDED_ARGUMENTS}
    # This is the suffix that was used, which may be a default. The names of the reward functions decide on the
    # default, so the columns of the data are not needed.
    recorded["prompt_suffix"] = suffix_or_default(
        arguments.prompt_suffix, find_reward_functions(reward_names), columns=()
    )
    if reward_grader is not None:
        recorded["reward_funcs"] = reward_names
        # The digests of the modules keep a run from being resumed with other code.
        recorded["reward_code"] = code_digests(reward_grader.all_functions)
        # Reward functions may read any column. The other fingerprint in `run.json` covers only id, prompt and
        # solution.
        recorded["reward_data"] = {
            name: fingerprint(rows, sorted(rows.column_names)) for name, rows in problems.items()
        }
    cost_function = find_cost(plan.length_of).function
    if cost_function is not None:
        recorded["cost_code"] = code_digests([cost_function])
    return {name: value for name, value in recorded.items() if value is not None}


def sample_all(arguments: SamplingArguments, prepared: PreparedRun) -> None:
    """Samples and grades the problems of a run into its folder, which must be empty or hold the same run.

    Raises:
        `UserError`: If the folder holds another run, if the model cannot be loaded or its context is too short for the
            prompts, or if the disk is full.
        `TrainingError`: If another command uses the folder, or if `leash filter` cannot know which completions are
            correct.
    """
    folder = Path(arguments.output_dir)
    with lock_folder(folder), add_resume_hint(folder, f"run the same command again to resume from {folder}"):
        num_done = start_or_resume(arguments, prepared)
        remaining = {name: rows for name, rows in prepared.problems.items() if num_done[name] < len(rows)}
        if remaining:
            engine = load_engine(arguments, prepared.plan, remaining, prepared.tokenizer)
            sample_remaining(engine, prepared, folder, num_done=num_done)
        # If the rewards showed partial credit late, earlier completions were still graded as correct or wrong.
        if prepared.reward_grader is not None and not prepared.reward_grader.correctness_rule.is_known:
            sampling.mark_correctness_unknown(folder, prepared.problems)


def start_or_resume(arguments: SamplingArguments, prepared: PreparedRun) -> dict[str, int]:
    """Writes `run.json` and returns how many problems of each data set the folder already holds, such as
    `{"aime24": 30, "aime25": 12}`."""
    folder = Path(arguments.output_dir)
    model = arguments.model_name_or_path
    with errors_to_user_errors(model_name_or_path=model):
        run = sampling.run_record(model, arguments.revision, prepared.plan, prepared.problems, prepared.references)
        run.update(prepared.recorded_options)
        num_done = sampling.prepare_folder(folder, run, prepared.problems, prepared.plan)
        if prepared.reward_grader is not None:
            # Stored rewards count, too, when the grader decides whether the rewards show which answers are correct.
            prepared.reward_grader.observe_graded(list(sampling.stored_completions(folder, prepared.problems)))
        prepared.check_correctness_known()
    return num_done


def sample_remaining(engine: Engine, prepared: PreparedRun, folder: Path, num_done: Mapping[str, int]) -> None:
    """Samples and grades the problems that the folder does not hold yet."""
    problems = prepared.problems
    num_problems = sum(len(rows) for rows in problems.values())
    # One bar for all data sets. `leash compare` finds it in a log by its unit.
    with tqdm(total=num_problems, initial=sum(num_done.values()), unit="problem") as bar:
        for number, (name, rows) in enumerate(problems.items(), start=1):
            if num_done[name] == len(rows):
                continue
            bar.set_description_str(f"{name} ({number} of {len(problems)})")
            # Records of this data set's completions so far, such as {"num_tokens": 46, "is_correct": True, ...}.
            completions: list[dict[str, Any]] = []
            # A unit is a batch of problems. Each step of the iteration samples, grades and writes one unit.
            for unit in sampling.sample_in_units(engine, name, rows, prepared.plan, folder, prepared.reward_grader):
                for row in unit:
                    completions.extend(row["completions"])
                bar.set_postfix(values_beside_bar(completions))
                bar.update(len(unit))
                # Partial credit, with which correctness is not known, may show only after some units.
                prepared.check_correctness_known()


def values_beside_bar(completions: list[dict[str, Any]]) -> dict[str, str]:
    """Returns the accuracy and the mean tokens of completions, as shown beside the progress bar."""
    # As a number, `is_correct` is 1, 0 or, for a completion that could not be graded, NaN, which `mean` ignores.
    means = pd.DataFrame(completions, columns=["num_tokens", "is_correct"], dtype=float).mean()
    return {"accuracy": f"{means['is_correct']:.3f}", "tokens": f"{means['num_tokens']:.0f}"}
