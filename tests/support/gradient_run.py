"""Training on scripted completions, in float64 throughout on CPUs: gradients of TRL's trainer or of ours.

What TRL and transformers compute in float32 whatever the model's type is replaced by the same in float64:
log-probabilities, norms and rotary positions. Rewards are not to be divided by their standard deviation
(`scale_rewards="none"`), which TRL computes in float32 too. For one and for several processes.
"""

import zlib
from dataclasses import fields
from types import SimpleNamespace

import torch
from conftest import quiet
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from transformers.models.llama.modeling_llama import LlamaRMSNorm, LlamaRotaryEmbedding
from trl import GRPOConfig, GRPOTrainer

from leash_trl import LeashGRPOConfig, LeashGRPOTrainer
from leash_trl.gym.dataset import gym_problems
from leash_trl.microbatching.batch_fields import SUPPORTED_FIELDS


def float64_logps(
    self, model, input_ids, attention_mask, logits_to_keep, batch_size=None, compute_entropy=False, **images
):
    """What `GRPOTrainer._get_per_token_logps_and_entropies` returns, in float64 throughout: log-probabilities and
    entropies of shape `(N, logits_to_keep)`, and no router loss."""
    batch_size = batch_size or len(input_ids)
    logps = []
    entropies = []
    for start in range(0, len(input_ids), batch_size):
        ids = input_ids[start : start + batch_size]
        mask = attention_mask[start : start + batch_size]
        logits = model(input_ids=ids, attention_mask=mask).logits
        logits = logits[:, -logits_to_keep - 1 : -1] / self.temperature  # each one predicts the next token
        all_logps = logits.log_softmax(dim=-1)  # of the whole vocabulary
        completion_ids = ids[:, -logits_to_keep:, None]
        logps.append(all_logps.gather(-1, completion_ids).squeeze(-1))
        entropies.append(-(all_logps.exp() * all_logps).sum(dim=-1))
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
    """A rollout function: `ids_of` gives a completion by trainer, index among the prompts of all processes, and a
    number that follows from index and prompt."""

    def rollout(prompts, trainer):
        process_index = trainer.accelerator.process_index
        first_index = process_index * len(prompts)
        rows = {"prompt_ids": [], "completion_ids": [], "logprobs": []}
        for index, prompt in enumerate(prompts, start=first_index):
            question = prompt[0]["content"]
            code = zlib.crc32(f"{index} {question}".encode())
            completion_ids = ids_of(trainer, index, code)
            # never as wide in a second process
            rows["prompt_ids"].append(tokenizer.encode(question)[3 * process_index :])
            rows["completion_ids"].append(completion_ids)
            # a random model gives each of its tokens about this much
            rows["logprobs"].append([-5.1 - 0.01 * (position % 3) for position in range(len(completion_ids))])
        return rows

    return rollout


def make_rollout(tokenizer, num_dead_groups):
    """Completions of 1 to 45 tokens, shorter in a second process; those of the first groups repeat one token."""
    digits = [tokenizer.encode(digit)[0] for digit in "123456789"]

    def ids_of(trainer, index, code):
        is_dead = index // trainer.num_generations < num_dead_groups
        longest = 44 if trainer.accelerator.process_index == 0 else 20
        length = 1 + int(longest * (code % 1000 / 1000) ** 3)  # few are long
        if is_dead:
            ids = [digits[0]] * length
        else:
            ids = [digits[(code + position) % len(digits)] for position in range(length)]
        is_truncated = code % 5 == 0
        return ids if is_truncated else [*ids, tokenizer.eos_token_id]

    return scripted_rollout(tokenizer, ids_of)


def reward(completion_ids, **kwargs):
    """-1 for completions of one token repeated, and by parity for the others."""
    rewards = []
    for ids in completion_ids:
        repeats_one_token = len(set(ids[:-1])) <= 1
        is_odd = sum(ids) % 2 == 1
        rewards.append(1.0 if is_odd and not repeats_one_token else -1.0)
    return rewards


class GradientRecorder(TrainerCallback):
    """Keeps the gradients of each policy update and counts what the model computes."""

    def __init__(self):
        self.gradients = []  # one vector of all parameters for each update
        self.positions = 0
        self.rows = 0
        self.positions_by_pass = []  # of passes with gradients

    def on_pre_optimizer_step(self, args, state, control, model=None, **kwargs):
        gradients = [parameter.grad for parameter in model.parameters() if parameter.requires_grad]
        copies = [gradient.flatten().to("cpu", copy=True) for gradient in gradients]
        self.gradients.append(torch.cat(copies))

    def count(self, module, args, kwargs):
        """A hook before each forward pass of the model."""
        if not module.training:
            return
        rows, width = kwargs["input_ids"].shape
        self.positions += rows * width
        self.rows += rows
        if torch.is_grad_enabled():
            self.positions_by_pass.append(rows * width)


FLOAT64_METHODS = [
    (GRPOTrainer, "_get_per_token_logps_and_entropies", float64_logps),
    (LlamaRMSNorm, "forward", float64_norm),
    (LlamaRotaryEmbedding, "forward", float64_rotary),
]


def stock_arguments(args):
    """The same settings for TRL's trainer."""
    settings = {field.name: getattr(args, field.name) for field in fields(GRPOConfig) if field.init}
    del settings["generation_batch_size"]  # follows from others, and must not be given beside them
    return GRPOConfig(**settings)


IMPORTANCE = {"vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": "token_truncate"}
CASES = {
    "dapo": {"loss_type": "dapo"},
    "grpo": {"loss_type": "grpo"},
    "bnpo": {"loss_type": "bnpo"},
    "importance ratios": IMPORTANCE | {"loss_type": "vespo"},
}


def leaves_batches_with_images_on_one_process(trainer):
    """Whether both processes keep TRL's batches when TRL has dropped the images of one."""
    batches = []
    for batch in trainer._buffered_inputs:
        batches.append({name: batch[name] for name in SUPPORTED_FIELDS & batch.keys()})
    if trainer.accelerator.process_index == 1:
        batches[0]["pixel_values"] = torch.zeros(1)
    return trainer._rearranged(batches) is batches


def scripted(trainer_class, args, model, tokenizer, num_dead_groups, peft_config=None):
    """A trainer on scripted completions, and what keeps its gradients."""
    recorder = GradientRecorder()
    problems = gym_problems("train", 64)
    trainer = trainer_class(
        model,
        reward,
        args,
        train_dataset=problems,
        eval_dataset=problems.select(range(8)),
        processing_class=tokenizer,
        callbacks=[recorder],
        peft_config=peft_config,
    )
    trainer.rollout_func = make_rollout(tokenizer, num_dead_groups)
    if args.vllm_importance_sampling_correction:  # the rollouts bring log-probabilities as vLLM would
        trainer.use_vllm = True
        trainer._last_loaded_step = -1
        trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
    trainer.model.register_forward_pre_hook(recorder.count, with_kwargs=True)
    return trainer, recorder


def run(trainer_class, model_path, output_dir, settings):
    """Two updates of 4 micro-batches of 4 rows per process, with other settings; returns what this process saw."""
    defaults = {
        "lambda_init": 0.0,
        "lambda_lr": 0.0,
        "scale_rewards": "none",
        "max_completion_length": 48,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "num_iterations": 2,
        "max_steps": 2,
        "max_grad_norm": 0.0,
        "learning_rate": 1e-6,
    }
    args = LeashGRPOConfig(**quiet(output_dir, **(defaults | settings)))
    model = AutoModelForCausalLM.from_pretrained(model_path, dtype=torch.float64)
    tokenizer = AutoTokenizer.from_pretrained(model_path, padding_side="left")
    is_stock = trainer_class is GRPOTrainer
    if is_stock:
        args = stock_arguments(args)
    trainer, recorder = scripted(trainer_class, args, model, tokenizer, num_dead_groups=1)
    trainer.train()
    first_log = trainer.state.log_history[0]
    return {
        "gradients": recorder.gradients,
        "positions": recorder.positions_by_pass,
        "leaves_images": not is_stock and leaves_batches_with_images_on_one_process(trainer),
        "shares": {name: value for name, value in first_log.items() if "microbatch/" in name},
    }


def run_all(model_path, output_dir):
    """By case, TRL's trainer and ours; everything is in float64 from here on."""
    for owner, name, method in FLOAT64_METHODS:
        setattr(owner, name, method)
    runs = {}
    for case, settings in CASES.items():
        runs[case] = [run(trainer, model_path, output_dir, settings) for trainer in (GRPOTrainer, LeashGRPOTrainer)]
    return runs
