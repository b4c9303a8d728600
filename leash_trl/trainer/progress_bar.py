"""The progress bar of `leash train`."""

from tqdm.auto import tqdm
from transformers import ProgressCallback

from leash_trl.completions.costs import TOKEN_COSTS, unit_of
from leash_trl.run_folder import LENGTH_CONTROL_STATE_KEY


SHOWN_BESIDE_THE_BAR = {
    "length": "leash/mean_length",
    "target": "leash/target_length",
    "accuracy": "leash/accuracy",
    "lambda": "leash/lambda",
    "satisfied": "leash/satisfaction_rate",
    "penalty_share": "leash/penalty_share",
}


class LeashProgressCallback(ProgressCallback):
    """The progress bar of transformers, which also shows mean length, target, accuracy, lambda, satisfaction rate and,
    with an accuracy floor, the share of the penalty. The time left is estimated from the updates since the start or
    the checkpoint.

    `leash train` uses it. In a script, add it after `trainer.remove_callback(ProgressCallback)`.
    """

    def on_train_begin(self, args, state, control, **kwargs):
        """Shows a bar that begins at the update of the checkpoint."""
        self.current_step = state.global_step
        if state.is_world_process_zero:
            # With `initial`, the time left is estimated from the updates of this process alone, not from those of the
            # checkpoint. `leash compare` finds the bar in the log of a run by its unit.
            self.training_bar = tqdm(
                total=state.max_steps, initial=state.global_step, unit="update", dynamic_ncols=True
            )

    def on_log(self, args, state, control, logs=None, **kwargs):
        """Shows the newest values beside the bar."""
        if self.training_bar is None:  # of another process than the main one
            return
        # The entry of length control says what lengths are; it is missing before the first update.
        length_of = state.stateful_callbacks.get(LENGTH_CONTROL_STATE_KEY, {}).get("length_of", "completion")
        shown = {}
        for label, key in SHOWN_BESIDE_THE_BAR.items():
            if key not in logs:
                continue
            if label == "length" and length_of not in TOKEN_COSTS:  # then the unit, such as tool_calls
                label = unit_of(length_of).replace(" ", "_")
            shown[label] = f"{logs[key]:.4g}"
        if shown:
            self.training_bar.set_postfix(shown)
