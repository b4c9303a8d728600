"""Finds the reward functions that a recipe or a command line names: ours, TRL's, and the user's own."""

from collections.abc import Collection, Sequence
from typing import Any

from trl.rewards import accuracy_reward, reasoning_accuracy_reward, think_format_reward
from trl.trainer.utils import get_callable_name

from leash_trl.data import BOXED_SUFFIX
from leash_trl.importing import import_by_path
from leash_trl.paths import path_or_hub_id
from leash_trl.rewards import lenient_math_reward, math_reward, reasoning_gym_reward


LEASH_MATH_REWARDS = (math_reward, lenient_math_reward)
ALL_REWARDS = (
    *LEASH_MATH_REWARDS,
    reasoning_gym_reward,
    accuracy_reward,
    reasoning_accuracy_reward,
    think_format_reward,
)
REWARD_FUNCS = {reward.__name__: reward for reward in ALL_REWARDS}
# reward functions that read the answer from a box; TRL's two, the last ones, use math-verify
MATH_REWARDS = (*LEASH_MATH_REWARDS, accuracy_reward, reasoning_accuracy_reward)


def default_reward_name(columns: Collection[str]) -> str:
    """Returns the name of the reward function for data with these columns, if the user names none."""
    return "reasoning_gym_reward" if "reasoning_gym" in columns else "math_reward"


def named_reward_funcs(script_args: Any) -> list[Any]:
    """Returns the reward functions and models that the arguments of `leash train` name."""
    named: list[Any] = []
    model = script_args.reward_model_name_or_path
    if model:
        named.append(path_or_hub_id(model, "reward_model_name_or_path"))
    named.extend(find_reward_functions(script_args.reward_funcs or []))
    return named


def suffix_or_default(prompt_suffix: str | None, reward_funcs: Sequence[Any], columns: Collection[str]) -> str:
    """Returns the text to append to prompts: `prompt_suffix`, if the user gives it, else a request for a box where the
    answers are graded as mathematics, and else nothing, so that prompts are what the user wrote.

    Args:
        prompt_suffix (`str`): The user's text; `None` if there is none.
        reward_funcs (`Sequence`): Reward functions and models that the user names. If there are none, the data
            decides what grades the answers.
        columns (`Collection[str]`): Columns of the data.

    Example:
        >>> defaults = [suffix_or_default(None, [], ["question"]), suffix_or_default(None, [math_reward], ["prompt"])]
        >>> defaults == [BOXED_SUFFIX, BOXED_SUFFIX]
        True
        >>> suffix_or_default(" Be brief.", [], ["question"])
        ' Be brief.'
        >>> suffix_or_default(None, [], ["question", "reasoning_gym"])
        ''
    """
    if prompt_suffix is not None:
        return prompt_suffix
    # Without reward functions of the user, the default for the data grades the answers.
    graders = reward_funcs or find_reward_functions([default_reward_name(columns)])
    grades_mathematics = any(grader in MATH_REWARDS for grader in graders)
    return BOXED_SUFFIX if grades_mathematics else ""


def find_reward_functions(names: Sequence[str]) -> list[Any]:
    """Returns the reward functions with these names, import paths or `file.py:name`; raises `ValueError` if one of
    them is not found."""
    functions = []
    for name in names:
        function = REWARD_FUNCS.get(name)
        if function is None:
            # an import path of the user; the error message lists the names in `REWARD_FUNCS`
            function = import_by_path("reward_funcs", name, *REWARD_FUNCS)
        functions.append(function)
    return functions


def find_correctness_func(text: str | None, functions: Sequence[Any]) -> Any:
    """Returns the function that `correctness_func` names: one of these reward functions or another one. The result is
    the name itself for a reward model, and `None` for `None`.

    Args:
        text (`str`): Name of one of the functions, another name or import path as in `reward_funcs`, or `None`.
        functions (`Sequence`): Reward functions of the run, and Hub ids or folders of reward models.

    Raises:
        `ValueError`: If there is no such function.
    """
    # TRL names a reward model by the last part of its Hub id: `name` for `owner/name`.
    models = [model.split("/")[-1] for model in functions if isinstance(model, str)]
    if text is None or text in models:
        return text
    # such as {"math_reward": math_reward}, by the names that TRL logs
    by_name = {get_callable_name(function): function for function in functions if callable(function)}
    if text in by_name:
        return by_name[text]
    if text in REWARD_FUNCS:
        return REWARD_FUNCS[text]
    return import_by_path("correctness_func", text, *by_name, *models, *REWARD_FUNCS)
