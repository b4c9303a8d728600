"""Runs whose completions are fixed by prompt and place in the batch, the same for one and for two processes."""

from conftest import gym_tokenizer, log_rows, quiet
from gradient_run import scripted_rollout

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.gym.dataset import gym_problems
from leash_trl.run_folder import LENGTH_CONTROL_STATE_KEY


REFILLED = {
    "per_device_train_batch_size": 8,
    "num_generations": 2,
    "dynamic_sampling_rounds": 2,
    "save_steps": 3,
}
SCENARIOS = {
    "plain": {},  # two processes of six completions share the second group of four
    "budgets": {"length_control_kwargs": {"multiplier_per": "level"}},
    "thinking": {"length_of": "thinking", "min_accuracy": 0.2},
    "normalized apart": {
        "length_control": "none",
        "lambda_lr": None,
        "multi_objective_aggregation": "normalize_then_sum",
    },
    "dynamic sampling": REFILLED,
    "resumed dynamic sampling": {**REFILLED, "resume_from_checkpoint": "dynamic sampling/checkpoint-3"},
    "window of dynamic sampling": {**REFILLED, "per_device_train_batch_size": 4, "steps_per_generation": 2},
}


def odd_length_reward(completion_ids, **kwargs):
    """+1 for an odd number of tokens, -1 for an even one."""
    return [1.0 if len(ids) % 2 else -1.0 for ids in completion_ids]


def run(scenario, model_path, folder, **changes):
    """Trains four steps and returns what this process saw."""
    fields = {"max_completion_length": 40, "per_device_train_batch_size": 6, "max_steps": 4}
    fields |= {"save_strategy": "steps", **SCENARIOS[scenario], **changes}
    resume = fields.pop("resume_from_checkpoint", None)
    args = LeashGRPOConfig(**quiet(folder / scenario, **fields))
    # an epoch of eight prompts a batch has two batches
    trainer = LeashGRPOTrainer(model_path, odd_length_reward, args, train_dataset=gym_problems("train", 16))
    tokenizer = gym_tokenizer()
    answer = [*tokenizer.encode("</think>7"), tokenizer.eos_token_id]
    token = answer[1]
    trainer.rollout_func = scripted_rollout(tokenizer, lambda _, place, code: [token] * (1 + code % 30) + answer)
    trained_batches = []
    training_batch = trainer._training_batch

    def spy(trained, generated):
        trained_batches.append(trained)
        return training_batch(trained, generated)

    trainer._training_batch = spy
    trainer.train(resume_from_checkpoint=None if resume is None else str(folder / resume))
    first_row, *_ = log_rows(trainer)
    keys = ["step", "loss", "grad_norm"] + [key for key in first_row if key.startswith("leash/")]
    last = trained_batches[-1]
    trained_lengths = []
    for part in trainer._buffered_inputs:
        trained_lengths += part["completion_mask"].sum(dim=1).tolist()
    return {
        "rank": (trainer.accelerator.process_index, trainer.accelerator.num_processes),
        "log": [{key: row[key] for key in keys if key in row} for row in log_rows(trainer)],
        "state": trainer.state.stateful_callbacks[LENGTH_CONTROL_STATE_KEY],
        "lengths": last.rollouts.completion_lengths.tolist(),
        "advantages": last.score.advantages.tolist(),
        "trained": trained_lengths,
        "loss_tokens": int(trainer._buffered_inputs[0]["num_items_in_batch"]),
        "table of advantages": list(trainer._logs["advantages"]),
        "table of lengths": list(trainer._logs["extra"]["length"]),
    }
