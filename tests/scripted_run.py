"""A run whose completions are fixed by prompt and place in the batch, the same for one and for two processes.

Used by test_distributed, by itself and in two processes by two_process_run.
"""

import zlib
from pathlib import Path

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.gym.dataset import gym_problems
from leash_trl.gym.tokenizer import build_tokenizer


def odd_length_reward(completion_ids, **kwargs) -> list[float]:
    """+1 for an odd number of tokens, -1 for an even one."""
    return [1.0 if len(ids) % 2 else -1.0 for ids in completion_ids]


def make_rollout(tokenizer):
    """Completions whose lengths follow from place in the batch and prompt."""
    token = tokenizer.encode("7")[0]

    def rollout(prompts, trainer):
        first = trainer.accelerator.process_index * len(prompts)
        questions = [f"{first + i} {prompt[0]['content']}" for i, prompt in enumerate(prompts)]
        lengths = [1 + zlib.crc32(question.encode()) % 30 for question in questions]
        return {
            "prompt_ids": [tokenizer.encode(prompt[0]["content"]) for prompt in prompts],
            "completion_ids": [[token] * length + [tokenizer.eos_token_id] for length in lengths],
            "logprobs": [[-1.0] * (length + 1) for length in lengths],
        }

    return rollout


def run(
    model_path: str,
    output_dir: str,
    batch_size: int,
    steps_per_generation: int = 1,
    save_steps: int = 2,
    resume: str | None = None,
    num_generations: int = 4,
    multiplier_per: str | None = None,
    **dynamic_sampling,
) -> dict:
    """Trains four steps of twelve completions in all and returns what this process saw."""
    args = LeashGRPOConfig(
        output_dir=output_dir,
        target_length=12,
        max_completion_length=40,
        lambda_lr=0.1,
        length_control_kwargs={"multiplier_per": multiplier_per},
        per_device_train_batch_size=batch_size,
        steps_per_generation=steps_per_generation,
        num_generations=num_generations,  # with 4, two processes of six share the second group
        **dynamic_sampling,
        max_steps=4,
        logging_steps=1,
        save_steps=save_steps,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        bf16=False,
    )
    trainer = LeashGRPOTrainer(model_path, odd_length_reward, args, train_dataset=gym_problems("train", 64))
    trainer.rollout_func = make_rollout(build_tokenizer())
    first_step = int(resume.rpartition("-")[2]) if resume else 0
    seen, drawn_in = [], []
    generate_and_score, draw = trainer._generate_and_score_completions, trainer.prompt_stream.draw

    def spy(inputs):
        output = generate_and_score(inputs)
        metrics = trainer._metrics["train"]
        seen.append({key: values[-1] for key, values in metrics.items() if key.startswith("leash/")})
        return output

    def spy_draw(count, without, batch, passes_over):
        drawn_in.append(batch)
        return draw(count, without, batch, passes_over)

    trainer._generate_and_score_completions, trainer.prompt_stream.draw = spy, spy_draw
    trainer.train(resume_from_checkpoint=resume)
    return {
        "losses": [row["loss"] for row in trainer.state.log_history if "loss" in row and row["step"] > first_step],
        "world_size": trainer.accelerator.num_processes,
        "rank": trainer.accelerator.process_index,
        "batches": seen,
        "state": trainer.length_control.state_dict(),
        "generated_tokens": trainer.generated_tokens,
        "advantages": trainer._batch.advantages.tolist(),
        "drawn_in": drawn_in,
        "micro_steps_per_epoch": len(trainer.callback_handler.train_dataloader),
        "prompts_drawn": trainer.prompt_stream.position.from_end,
        "signal_record": trainer.signal_record.state_dict(),
        "extra": [row.get("leash/extra_groups") for row in trainer.state.log_history if "loss" in row],
        "wasted": [row.get("leash/wasted_share") for row in trainer.state.log_history if "loss" in row],
        "dead": [row.get("leash/zero_signal_share") for row in trainer.state.log_history if "loss" in row],
        "final_lengths": trainer._batch.scored.rollouts.lengths.tolist(),
        "own_lengths": [
            length for part in trainer._buffered_inputs for length in part["completion_mask"].sum(dim=1).tolist()
        ],
        "loss_tokens": int(trainer._buffered_inputs[0]["num_items_in_batch"]),
        "trained_on": sorted(trainer._buffered_inputs[0]["advantages"].tolist()),
        "table_advantages": list(trainer._logs["advantages"]),
        "table_lengths": list(trainer._logs["extra"]["length"]),
    }


SCENARIOS = {
    "plain": {"batch_size": 6},
    "budgets": {"batch_size": 6, "multiplier_per": "level"},
    # inside a window of two updates
    "window": {"batch_size": 6, "steps_per_generation": 2, "save_steps": 1},
    "resumed window": {"batch_size": 6, "steps_per_generation": 2, "resume": "window/checkpoint-1"},
    "dynamic sampling": {"batch_size": 8, "num_generations": 2, "dynamic_sampling_rounds": 2},
    "oversampling": {
        **{"batch_size": 8, "num_generations": 2, "save_steps": 2},
        **{"dynamic_sampling_rounds": 1, "dynamic_sampling_oversample": 0.5},
    },
    "resumed oversampling": {
        **{"batch_size": 8, "num_generations": 2, "resume": "oversampling/checkpoint-2"},
        **{"dynamic_sampling_rounds": 1, "dynamic_sampling_oversample": 0.5},
    },
    "oversampled window": {
        **{"batch_size": 4, "num_generations": 2, "steps_per_generation": 2},
        **{"dynamic_sampling_rounds": 1, "dynamic_sampling_oversample": 0.5},
    },
    "split groups": {"batch_size": 6, "dynamic_sampling_rounds": 1},
}


def run_scenario(name: str, model_path: str, folder: Path) -> dict:
    """Runs one scenario in a folder of its own; an error in a configuration is what it returns."""
    fields = dict(SCENARIOS[name])
    if "resume" in fields:
        fields["resume"] = str(folder / fields["resume"])
    try:
        return run(model_path, str(folder / name), **fields)
    except ValueError as error:
        return {"error": str(error)}
