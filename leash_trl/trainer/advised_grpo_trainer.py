"""`AdvisedGRPOTrainer`: names common mistakes before training, and says what to do when something runs out."""

import warnings

from leash_trl.trainer import checks
from leash_trl.trainer.advice import advise
from leash_trl.trainer.checked_rewards import rewards_checked
from leash_trl.trainer.publishing_grpo_trainer import PublishingGRPOTrainer


class AdvisedGRPOTrainer(PublishingGRPOTrainer):
    """`GRPOTrainer` with the checks of [`~leash_trl.trainer.checks`] and advice for what fails in `train`."""

    _is_evaluating = False

    def __init__(self, model, reward_funcs, args, train_dataset=None, *more_args, **kwargs):
        elsewhere = (kwargs.get("rollout_func"), kwargs.get("environment_factory"))
        model = checks.before(model, reward_funcs, args, train_dataset, *elsewhere)
        with advise(args):
            super().__init__(model, reward_funcs, args, train_dataset, *more_args, **kwargs)
        self._watch = checks.after(self)
        self._watch.knows_reward_scale = True  # LeashGRPOTrainer still looks at it by itself

    def train(self, *args, **kwargs):
        """Adds to an exception that means "out of memory" or "disk full" what can be done about it."""
        with advise(self.args):
            return super().train(*args, **kwargs)

    def _calculate_rewards(self, *args, **kwargs):
        """Holds what reward functions return to what is due."""
        with rewards_checked(self):
            return super()._calculate_rewards(*args, **kwargs)

    def _warn_about_endings(self, rollouts):
        for problem in self._watch.problems(rollouts, self.length_control):
            if self.accelerator.is_main_process:
                warnings.warn(problem, UserWarning, stacklevel=2)
