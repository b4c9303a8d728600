"""Advice on a run while it trains: for each problem that the log has shown for a while, a line with field, value and
remedy.

Rules read only logged rows, which checkpoints keep, so a resumed run gets the same advice as an uninterrupted one.
"""

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import pandas as pd
from transformers import TrainerState

from leash_trl.completions.costs import unit_of
from leash_trl.length_control.advantages import ROUNDING_ERROR
from leash_trl.length_control.leash_predictive import LeashPredictive
from leash_trl.length_control.method import LengthControl
from leash_trl.run_folder import ADVICE_STATE_KEY


MEAN_UPDATES = 20  # updates over which values are averaged: what ends sooner is noise, or passes by itself
LONG_MEAN_UPDATES = 50  # the same for accuracy, which often falls while answers become shorter, and for penalty_share
# Mean length of the last 20 updates as a share of that of the last 40. At a share above this one, the length takes 130
# updates or more to halve.
STUCK_LENGTH_RATIO = 0.95
LARGE_VIOLATION = 0.1  # share of the target; the choice of prompts alone changes a batch's mean length by as much
CORRELATION_NOISE = 0.1  # two standard deviations of a mean over twenty batches
ACCURACY_NOISE = 0.05  # the same for accuracy, with 32 completions a batch
LARGE_TRUNCATED_SHARE = 0.25  # share of completions that are cut before their answer has ended
LARGE_ZERO_SIGNAL_SHARE = 0.5  # share of groups without signal, whose tokens teach nothing
CLIPPED_SHAPED_REWARD = -0.9  # mean shaped reward, near the lower bound of -1 to which LEASH clips rewards
SOME_CORRECT_ACCURACY = 0.2  # from this accuracy on, so low a mean shows that correct answers are clipped too
SOLVED_ACCURACY = 0.9  # from this accuracy on, groups without signal are mostly those with correct answers only


class Course(NamedTuple):
    """What a run, or one of its budgets, has logged so far.

    Args:
        log (`DataFrame`): Logged values, with a column for each key and the number of the update as index.
        method ([`~leash_trl.LengthControl`]): The method, for its hyper-parameters.
        unit (`str`): Unit of lengths, such as `tokens`.
        key_suffix (`str`): End of the keys of a budget, such as `/low`; empty for the whole run.
    """

    log: pd.DataFrame
    method: LengthControl
    unit: str
    key_suffix: str = ""

    def recent_mean(self, key: str, updates: int = MEAN_UPDATES) -> float:
        """Returns the mean of a logged value over the last `updates` updates; NaN if the run has had fewer updates, or
        if they logged no such value."""
        newest = self.log.index[-1]  # the number of the newest update
        if newest < updates:
            return math.nan
        return self._mean_over(key, first=newest - updates + 1, last=newest)

    def first_mean(self, key: str, updates: int) -> float:
        """Returns the mean over the first `MEAN_UPDATES` updates; NaN as long as these overlap with the last `updates`
        updates."""
        newest = self.log.index[-1]  # the number of the newest update
        if newest < MEAN_UPDATES + updates:
            return math.nan
        return self._mean_over(key, first=1, last=MEAN_UPDATES)

    def _mean_over(self, key: str, first: int, last: int) -> float:
        # The key of a budget ends with its name, such as "leash/mean_length/low". The index holds the numbers of
        # updates, so `loc` takes the updates from `first` to `last`, both included.
        values = self.log.get(key + self.key_suffix, pd.Series(dtype=float))
        return values.loc[first:last].mean()


def lambda_bound_or_nan(method: LengthControl, name: str) -> float:
    """Returns `lambda_min` or `lambda_max`, as `name` says; NaN if the method has no such bound, or if its lambda is
    constant, as it is in the updates of `release_share`."""
    # The `lambda_lr` of LEASH-Predictive is 0, but its forecast moves lambda.
    has_no_steps = getattr(method, "lambda_lr", math.nan) == 0 and not isinstance(method, LeashPredictive)
    is_constant = has_no_steps or getattr(method, "is_released", False)
    return math.nan if is_constant else getattr(method, name, math.nan)


def floor_remedy(method: LengthControl) -> str:
    """Returns the remedy for falling accuracy: to set an accuracy floor, or to raise the one that is set."""
    if not hasattr(method, "min_accuracy"):
        return "set length_control leash with min_accuracy"
    return "set min_accuracy" if method.min_accuracy is None else f"raise min_accuracy={method.min_accuracy:g}"


def correct_answers_clipped(course: Course) -> str | None:
    """Returns advice if the length penalty is so large that correct answers have the reward of wrong ones."""
    shaped = course.recent_mean("leash/shaped_reward")
    # A mean is NaN before there were enough updates; then no comparison holds, and there is no advice.
    if not (shaped <= CLIPPED_SHAPED_REWARD and course.recent_mean("leash/accuracy") >= SOME_CORRECT_ACCURACY):
        return None
    return (
        f"shaped_reward is {shaped:.2f} over {MEAN_UPDATES} updates: the length penalty clips even correct answers to "
        "-1, so groups teach nothing and lambda changes nothing; raise target_length"
    )


def lambda_at_max(course: Course) -> str | None:
    """Returns advice if lambda stays at its upper bound, but answers stay too long."""
    # A larger lambda would not help if the penalty already clips all rewards.
    if correct_answers_clipped(course) is not None:
        return None
    bound = lambda_bound_or_nan(course.method, "lambda_max")
    # The violation is the mean of length / target - 1, so 0.3 is a length 30 % above the target.
    excess = course.recent_mean("leash/violation")
    # A mean is NaN before there were enough updates; then no comparison holds, and there is no advice.
    if not (course.recent_mean("leash/lambda") >= bound - ROUNDING_ERROR and excess > LARGE_VIOLATION):
        return None
    # If the share is below 1, the accuracy floor limits the penalty, not `lambda_max`.
    is_held_by_floor = course.recent_mean("leash/penalty_share") < 1.0
    length = course.recent_mean("leash/mean_length")
    is_stuck = length > STUCK_LENGTH_RATIO * course.recent_mean("leash/mean_length", 2 * MEAN_UPDATES)
    if is_held_by_floor or not is_stuck:
        return None
    return (
        f"lambda has been at lambda_max={bound:g} for {MEAN_UPDATES} updates, but answers have {length:.4g} "
        f"{course.unit}, {excess:.0%} above target_length; raise lambda_max or target_length"
    )


def lambda_at_min(course: Course) -> str | None:
    """Returns advice if lambda stays at its lower bound, and answers stay shorter than they may be."""
    bound = lambda_bound_or_nan(course.method, "lambda_min")
    # The violation is the mean of length / target - 1, so -0.3 is a length 30 % below the target.
    excess = course.recent_mean("leash/violation")
    # A mean is NaN before there were enough updates; then no comparison holds, and there is no advice.
    if not (course.recent_mean("leash/lambda") <= bound + ROUNDING_ERROR and excess < -LARGE_VIOLATION):
        return None
    length = course.recent_mean("leash/mean_length")
    remedy = "set length_control leash_predictive with lambda_min -1, or lower target_length"
    if bound < 0:  # lambda may reward length already
        remedy = "lower target_length"
    return (
        f"lambda has been at lambda_min={bound:g} for {MEAN_UPDATES} updates, but answers have {length:.4g} "
        f"{course.unit}, {-excess:.0%} below target_length; {remedy}"
    )


def short_answers_wrong(course: Course) -> str | None:
    """Returns advice if at first longer answers were more often wrong, but now shorter ones are."""
    first = course.first_mean("leash/length_accuracy_correlation", MEAN_UPDATES)
    last = course.recent_mean("leash/length_accuracy_correlation")
    # A mean is NaN before there were enough updates; then no comparison holds, and there is no advice.
    if not (first < -CORRELATION_NOISE and last > CORRELATION_NOISE):
        return None
    # If the floor is out of reach, length has no penalty, so no remedy below would change anything.
    if floor_out_of_reach(course) is not None:
        return None
    return (
        f"length_accuracy_correlation is {last:.2f} over {MEAN_UPDATES} updates, after {first:.2f} in the first ones: "
        f"shorter answers are more often wrong now; raise target_length, or {floor_remedy(course.method)}"
    )


def truncated(course: Course) -> str | None:
    """Returns advice if the generation limit cuts many completions, unless the method itself lowers the limit."""
    share = course.recent_mean("leash/truncated_share")
    # Methods such as ThinkPrune lower the generation limit themselves, whatever the target is.
    cuts_on_purpose = course.method.generation_cap(1.0) is not None
    # The share is NaN before there were enough updates.
    if cuts_on_purpose or math.isnan(share) or share < LARGE_TRUNCATED_SHARE:
        return None
    return (
        f"truncated_share is {share:.2f} over {MEAN_UPDATES} updates: this share of completions was cut short; "
        "raise max_completion_length, or correct eos_token_id in generation_config.json"
    )


def without_signal(course: Course) -> str | None:
    """Returns advice if many groups have equal rewards, unless that is because all answers are correct."""
    # Clipping makes rewards equal too, and its remedy is in `correct_answers_clipped`.
    if correct_answers_clipped(course) is not None:
        return None
    share = course.recent_mean("leash/zero_signal_share")
    if math.isnan(share):  # only LeashGRPOTrainer logs zero_signal_share; TRL's trainers log this one
        share = course.recent_mean("frac_reward_zero_std")
    is_solved = course.recent_mean("leash/accuracy") >= SOLVED_ACCURACY
    # The share is NaN before there were enough updates.
    if is_solved or math.isnan(share) or share < LARGE_ZERO_SIGNAL_SHARE:
        return None
    return (
        f"zero_signal_share is {share:.2f} over {MEAN_UPDATES} updates: in this share of groups, all answers have the "
        "same reward and teach nothing; set dynamic_sampling_rounds, or choose problems with leash filter"
    )


def accuracy_fell(course: Course) -> str | None:
    """Returns advice if accuracy is lower than at the beginning of the run."""
    first = course.first_mean("leash/accuracy", LONG_MEAN_UPDATES)
    last = course.recent_mean("leash/accuracy", LONG_MEAN_UPDATES)
    # A mean is NaN before there were enough updates; then no comparison holds, and there is no advice.
    if not last < first - ACCURACY_NOISE:
        return None
    remedy = f"raise target_length, {floor_remedy(course.method)}, or lower learning_rate"
    # If the floor is out of reach, length has no penalty, so neither target nor floor would change anything.
    if floor_out_of_reach(course) is not None:
        remedy = "lower learning_rate"
    return (
        f"accuracy is {last:.3f} over {LONG_MEAN_UPDATES} updates, after {first:.3f} in the first {MEAN_UPDATES}; "
        f"{remedy}"
    )


def floor_out_of_reach(course: Course) -> str | None:
    """Returns advice if accuracy is so far below `min_accuracy` that there is no length penalty at all."""
    # `penalty_share` is the share of the penalty that the floor allows. Its mean is NaN before there were enough
    # updates, and NaN is not <= 0.
    if not course.recent_mean("leash/penalty_share", LONG_MEAN_UPDATES) <= ROUNDING_ERROR:
        return None
    floor = getattr(course.method, "min_accuracy", math.nan)
    accuracy = course.recent_mean("leash/accuracy")
    return (
        f"penalty_share has been 0 for {LONG_MEAN_UPDATES} updates, so length has no penalty: accuracy is "
        f"{accuracy:.3f}, and min_accuracy={floor:g} is out of reach; lower min_accuracy"
    )


ADVICE_RULES = (
    correct_answers_clipped,
    lambda_at_max,
    lambda_at_min,
    short_answers_wrong,
    truncated,
    without_signal,
    accuracy_fell,
    floor_out_of_reach,
)


def advice_by_name(log_history: Sequence[Mapping[str, Any]], method: LengthControl, unit: str) -> dict[str, str]:
    """Returns the advice that the newest rows of a log call for, as text by the name of the rule, such as
    `lambda_at_max`. For a budget, its name follows, as in `lambda_at_max/low`."""
    rows = [row for row in log_history if "leash/mean_length" in row]
    if not rows:
        return {}
    # Rules read only the first updates and the newest ones, so a table of these is enough.
    rows = rows[:MEAN_UPDATES] + rows[MEAN_UPDATES:][-LONG_MEAN_UPDATES:]
    log = pd.DataFrame(rows).set_index("step")
    advice = {}
    # There is one mean length of the whole run, and one of each budget, such as "leash/mean_length/low".
    length_keys = [key for key in log if key.startswith("leash/mean_length")]
    for key in length_keys:
        key_suffix = key.removeprefix("leash/mean_length")  # "" for the whole run, else such as "/low"
        for name, text in advice_on(Course(log, method, unit, key_suffix)).items():
            advice[name + key_suffix] = f"budget {key_suffix[1:]}: {text}" if key_suffix else text
    return advice


def advice_on(course: Course) -> dict[str, str]:
    """Returns the advice for a run, or for one of its budgets, as text by the name of the rule."""
    texts = {rule.__name__: rule(course) for rule in ADVICE_RULES}
    return {name: text for name, text in texts.items() if text is not None}


def all_advice_so_far(state: TrainerState) -> list[dict[str, Any]]:
    """Returns the advice that a run was given, in order, each with `name`, `step` and `text`."""
    return list(state.stateful_callbacks.get(ADVICE_STATE_KEY, []))


def warn_of_new_advice(state: TrainerState, method: LengthControl, length_of: str) -> None:
    """Warns of each new piece of advice once, and keeps it in the trainer state for checkpoints and reports."""
    all_advice = all_advice_so_far(state)
    names = [advice["name"] for advice in all_advice]
    for name, text in advice_by_name(state.log_history, method, unit_of(length_of)).items():
        if name not in names:
            all_advice.append({"name": name, "step": state.global_step, "text": text})
            _warn(state, f"update {state.global_step}: {text}")
    # transformers saves these entries in the checkpoint, and restores them.
    if all_advice:
        state.stateful_callbacks[ADVICE_STATE_KEY] = all_advice


def repeat_all_advice(state: TrainerState) -> None:
    """Repeats all advice at the end of a run."""
    for advice in all_advice_so_far(state):
        _warn(state, f"advice of this run, update {advice['step']}: {advice['text']}")


def _warn(state: TrainerState, message: str) -> None:
    if state.is_world_process_zero:
        warnings.warn(message, stacklevel=3)


def advice_metrics(state: TrainerState) -> dict[str, float]:
    """Returns the number of the update at which each piece of advice was given, by log key."""
    return {f"leash/advice/{advice['name']}": float(advice["step"]) for advice in all_advice_so_far(state)}
