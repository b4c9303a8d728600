"""Training on scripted completions, in float64 throughout on CPUs: gradients of TRL's trainer or of ours.

What TRL and transformers compute in float32 whatever the model's type is replaced by the same in float64:
log-probabilities, norms and rotary positions. Rewards are not to be divided by their standard deviation
(`scale_rewards="none"`), which TRL computes in float32 too. For one and for several processes.
"""

import zlib
from types import SimpleNamespace

import torch
from conftest import quiet
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding
from trl import GRPOConfig, GRPOTrainer

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.gym.dataset import gym_problems
from leash_trl.microbatching.batch_fields import FIELDS


def float64_logps(
    self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **images
):
    """What TRL's method of this name returns, in float64 throughout."""
    batch_size = batch_size or len(input_ids)
    logps, entropies = [], []
    for start in range(0, len(input_ids), batch_size):
        ids, mask = input_ids[start : start + batch_size], attention_mask[start : start + batch_size]
        logits = model(input_ids=ids, attention_mask=mask).logits[:, -logits_to_keep - 1 : -1] / self.temperature
        every = logits.log_softmax(dim=-1)
        logps.append(every.gather(-1, ids[:, -logits_to_keep:, None]).squeeze(-1))
        entropies.append(-(every.exp() * every).sum(dim=-1))
    return torch.cat(logps), torch.cat(entropies) if compute_entropy else None, None


def float64_norm(self, hidden_states):
    """What `LlamaRMSNorm.forward` returns."""
    scale = torch.rsqrt(hidden_states.pow(2).mean(-1, keepdim=True) + self.variance_epsilon)
    return self.weight * hidden_states * scale


def float64_rotary(self, x, position_ids):
    """What `LlamaRotaryEmbedding.forward` returns."""
    angles = position_ids[:, :, None].double() * self.inv_freq.double()
    angles = torch.cat([angles, angles], dim=-1)
    return angles.cos(), angles.sin()


def scripted_rollout(tokenizer, ids_of):
    """A rollout function: `ids_of` gives a completion by trainer, place among all processes, and a number that follows
    from place and prompt."""

    def rollout(prompts, trainer):
        questions, ids = [prompt[0]["content"] for prompt in prompts], []
        for place, question in enumerate(questions, start=trainer.accelerator.process_index * len(prompts)):
            ids.append(ids_of(trainer, place, zlib.crc32(f"{place} {question}".encode())))
        # a random model gives each of its tokens about this much
        logprobs = [[-5.1 - 0.01 * (k % 3) for k in range(len(row))] for row in ids]
        # never as wide in a second process
        prompt_ids = [tokenizer.encode(question)[3 * trainer.accelerator.process_index :] for question in questions]
        return {"prompt_ids": prompt_ids, "completion_ids": ids, "logprobs": logprobs}

    return rollout


def make_rollout(tokenizer, num_dead_groups: int):
    """Completions of 1 to 45 tokens, shorter in a second process; those of the first groups repeat one token."""
    digits = [tokenizer.encode(digit)[0] for digit in "123456789"]

    def ids_of(trainer, place: int, code: int) -> list[int]:
        step = 0 if place // trainer.num_generations < num_dead_groups else 1
        longest = 44 if trainer.accelerator.process_index == 0 else 20
        length = 1 + int(longest * (code % 1000 / 1000) ** 3)
        ids = [digits[(step * (code + k)) % len(digits)] for k in range(length)]
        return [*ids, tokenizer.eos_token_id] if code % 5 else ids

    return scripted_rollout(tokenizer, ids_of)


def reward(completion_ids, **kwargs) -> list[float]:
    """-1 for completions of one token repeated, and by parity for the others."""
    return [1.0 if len({*ids[:-1]}) > 1 and sum(ids) % 2 else -1.0 for ids in completion_ids]


class GradientRecorder(TrainerCallback):
    """Keeps the gradients of each policy update and counts what the model computes."""

    def __init__(self):
        self.gradients, self.positions_by_pass, self.positions, self.rows = [], [], 0, 0

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        trained = [p.grad for p in model.parameters() if p.requires_grad]
        self.gradients.append(torch.cat([gradient.flatten().to("cpu", copy=True) for gradient in trained]))

    def count(self, module, positional, named):
        if module.training:
            self.positions += named["input_ids"].numel()
            self.rows += len(named["input_ids"])
            if torch.is_grad_enabled():
                self.positions_by_pass.append(named["input_ids"].numel())


FLOAT64_METHODS = [
    (GRPOTrainer, "_get_per_token_logps_and_entropies", float64_logps),
    (LlamaRMSNorm, "forward", float64_norm),
    (LlamaRotaryEmbedding, "forward", float64_rotary),
]


def stock_arguments(args: GRPOConfig) -> GRPOConfig:
    """The same settings for TRL's trainer."""
    names = {name for name, field in GRPOConfig.__dataclass_fields__.items() if field.init}
    return GRPOConfig(**{name: getattr(args, name) for name in names - {"generation_batch_size"}})


IMPORTANCE = {"vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": "token_truncate"}
CASES = {
    "dapo": {"loss_type": "dapo"},
    "grpo": {"loss_type": "grpo"},
    "bnpo": {"loss_type": "bnpo"},
    "importance ratios": {"loss_type": "vespo", **IMPORTANCE},
}


def leaves_batches_with_images_on_one_process(trainer: LeashGRPOTrainer) -> bool:
    """Whether both processes keep TRL's batches when TRL has dropped the images of one."""
    batches = [{name: batch[name] for name in FIELDS & batch.keys()} for batch in trainer._buffered_inputs]
    if trainer.accelerator.process_index == 1:
        batches[0]["pixel_values"] = torch.zeros(1)
    return trainer._rearranged(batches) is batches


def scripted(
    trainer_class, args, model, tokenizer, num_dead_groups: int, **more
) -> tuple[GRPOTrainer, GradientRecorder]:
    """A trainer on scripted completions, and what keeps its gradients."""
    recorder, problems = GradientRecorder(), gym_problems("train", 64)
    data = {"train_dataset": problems, "eval_dataset": problems.select(range(8)), "processing_class": tokenizer}
    trainer = trainer_class(model, reward, args, callbacks=[recorder], **data, **more)
    trainer.rollout_func = make_rollout(tokenizer, num_dead_groups)
    if args.vllm_importance_sampling_correction:  # the rollouts bring log-probabilities as vLLM would
        trainer.use_vllm, trainer._last_loaded_step = True, -1
        trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
    trainer.model.register_forward_pre_hook(recorder.count, with_kwargs=True)
    return trainer, recorder


def run(model_path: str, output_dir: str, is_stock: bool, settings: dict) -> dict:
    """Two updates of 4 micro-batches of 4 rows per process, with other settings; returns what this process saw."""
    fields = {"lambda_init": 0.0, "lambda_lr": 0.0, "scale_rewards": "none", "max_completion_length": 48}
    fields |= {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 4, "num_iterations": 2}
    fields |= {"max_steps": 2, "max_grad_norm": 0.0, "learning_rate": 1e-6}
    args = LeashGRPOConfig(**quiet(output_dir, **{**fields, **settings}))
    kind = (GRPOTrainer, stock_arguments(args)) if is_stock else (LeashGRPOTrainer, args)
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    trainer, recorder = scripted(*kind, model, AutoTokenizer.from_pretrained(model_path, padding_side="left"), 1)
    trainer.train()
    return {
        "gradients": recorder.gradients,
        "positions": recorder.positions_by_pass,
        "leaves_images": not is_stock and leaves_batches_with_images_on_one_process(trainer),
        "shares": {name: value for name, value in trainer.state.log_history[0].items() if "microbatch/" in name},
    }


def run_all(model_path: str, output_dir: str) -> dict[str, list[dict]]:
    """By case, TRL's trainer and ours; everything is in float64 from here on."""
    for owner, name, method in FLOAT64_METHODS:
        setattr(owner, name, method)
    return {
        case: [run(model_path, output_dir, is_stock, settings) for is_stock in (True, False)]
        for case, settings in CASES.items()
    }
