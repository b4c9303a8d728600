"""When lambda moves: once per generation batch, after the policy update, whatever the batching is."""

import pytest
import torch
from accelerate.optimizer import AcceleratedOptimizer
from conftest import log_rows, logged, parity_reward
from stock_run import LAMBDA_INIT, LAMBDA_LR, TARGET, any_trainer, lambda_after, lambda_in, stock_trainer
from transformers import TrainerCallback

from leash_trl import LengthControlledReward
from leash_trl.length_control.laconic import Laconic
from leash_trl.length_control.leash import Leash


STEPS = 6


class Overflow(TrainerCallback):
    """Lets gradients overflow at some updates, as mixed precision with float16 does now and then."""

    def __init__(self, trainer, updates):
        self.updates = updates
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
        trainer.add_callback(self)

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        if state.global_step in self.updates:
            next(p for p in model.parameters() if p.grad is not None).grad.fill_(torch.inf)


# gradient accumulation, steps per generation, iterations, updates that are skipped
BATCHINGS = [
    (2, 3, 2, ()),
    (1, 2, 1, (2, 3)),  # no update on the second batch is taken: it is pooled with the third
    (1, 1, 1, ()),
    (1, 4, 1, ()),
    (4, 3, 1, ()),
    (1, 4, 1, (0, 1)),  # the third update on the first batch is the first that is taken
    (2, 1, 1, (1,)),
]
RUNS = [("LeashGRPO", *batching) for batching in BATCHINGS]
RUNS += [("GRPO", *batching) for batching in BATCHINGS]
RUNS.append(("GMPO", *BATCHINGS[0]))
RUNS.append(("SDPO", *BATCHINGS[0]))
RUNS.append(("OnlineDPO", 2, 1, 1, (1,)))  # which scores each micro-batch, and pads completions behind the end token


@pytest.mark.parametrize(("kind", "accumulation", "steps_per_generation", "iterations", "skipped"), RUNS)
def test_one_dual_step_per_generation_batch(
    kind, accumulation, steps_per_generation, iterations, skipped, make_trainer, tiny_model_path, tokenizer, tmp_path
):
    """Evaluations after every second update are none."""
    batches = []  # update at which it is generated, and lengths, of each generation batch
    dual_steps = []  # update, and lambda after it
    end = tokenizer.eos_token_id

    def length_of(ids):
        return ids.index(end) + 1 if end in ids else len(ids)

    def reward(completion_ids, **kwargs):
        if trainer.model.training:
            batches.append((trainer.state.global_step, [length_of(ids) for ids in completion_ids]))
        return parity_reward(completion_ids)

    fields = {
        "gradient_accumulation_steps": accumulation,
        "steps_per_generation": steps_per_generation,
        "num_iterations": iterations,
        "max_steps": STEPS,
        "eval_steps": 2,
        "eval_strategy": "no" if kind == "OnlineDPO" else "steps",  # it scores nothing there
    }
    trainer, method = any_trainer(kind, make_trainer, tiny_model_path, tmp_path, reward, **fields)
    Overflow(trainer, skipped)
    dual_step = method.step

    def spy():
        dual_step()
        dual_steps.append((trainer.state.global_step - 1, method.lam))

    method.step = spy
    trainer.train()
    assert [update for update, _ in dual_steps] == [update for update in range(STEPS) if update not in skipped]

    lam = LAMBDA_INIT
    waiting = list(batches)  # for the first update after them that is taken
    for update, lambda_of_method in dual_steps:
        lengths = []
        while waiting and waiting[0][0] <= update:
            _, lengths_of_batch = waiting.pop(0)
            lengths += lengths_of_batch
        if lengths:
            lam = lambda_after(lam, lengths)
        assert lambda_of_method == pytest.approx(lam, abs=1e-12)
    assert waiting == []
    assert len({lam for _, lam in dual_steps}) > 1

    logged_lambdas = {row["step"] - 1: row["leash/lambda"] for row in log_rows(trainer, "leash/lambda")}
    assert logged_lambdas.keys() == {update for update, _ in batches}
    for start, logged_lambda in logged_lambdas.items():
        before = [LAMBDA_INIT, *(lam for update, lam in dual_steps if update < start)]
        assert logged_lambda == pytest.approx(before[-1], rel=1e-6)  # with which the batch was sampled


@pytest.mark.parametrize("optimizer", ["adamw_torch", "adamw_torch_fused"])
def test_what_a_skipped_update_observed_is_in_its_checkpoint(make_trainer, tmp_path, optimizer):
    fields = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "optim": optimizer}
    whole = make_trainer(output_dir=str(tmp_path / "whole"), **fields)
    Overflow(whole, (0, 1))
    whole.train()
    assert whole.length_control.lam == 0.1
    first, second = logged(whole, "leash/violation")
    resumed = make_trainer(output_dir=str(tmp_path / "resumed"), **fields)
    Overflow(resumed, ())
    resumed.train(resume_from_checkpoint=str(tmp_path / "whole" / "checkpoint-1"))
    assert resumed.length_control.lam == pytest.approx(0.1 + 0.1 * (first + second) / 2, abs=1e-12)


@pytest.mark.parametrize("was_skipped", [True, False])
def test_an_engine_with_a_loss_scale_of_its_own_says_whether_it_skipped(make_trainer, monkeypatch, was_skipped):
    """As DeepSpeed does, which leaves accelerate without a scaler."""
    monkeypatch.setattr(AcceleratedOptimizer, "step_was_skipped", was_skipped)
    trainer = make_trainer(max_steps=1)
    trainer.train()
    assert (trainer.length_control.lam == 0.1) == was_skipped


def test_a_batch_that_an_interrupted_call_did_not_train_on_moves_no_lambda(make_trainer, monkeypatch):
    def interrupt(*args, **kwargs):
        raise KeyboardInterrupt

    trainer = make_trainer(max_steps=1)
    with monkeypatch.context() as patched:
        patched.setattr(trainer, "compute_loss", interrupt)
        with pytest.raises(KeyboardInterrupt):
            trainer.train()
    trainer.train()
    (violation,) = logged(trainer, "leash/violation")
    assert trainer.length_control.lam == pytest.approx(0.1 + 0.1 * violation, abs=1e-12)


@pytest.mark.parametrize("kind", ["LeashGRPO", "GRPO"])
def test_lambda_moves_by_scored_batches_only(kind, make_trainer, tiny_model_path, tmp_path):
    """Only the first and the fourth batch have rewards."""

    def reward(completion_ids, trainer_state, **kwargs):
        if trainer_state.global_step in (0, 3):
            return parity_reward(completion_ids)
        return [None] * len(completion_ids)

    trainer, method = any_trainer(kind, make_trainer, tiny_model_path, tmp_path, reward, max_steps=5)
    dual_step = method.step
    updates = []

    def spy():
        updates.append(trainer.state.global_step)
        dual_step()

    method.step = spy
    trainer.train()
    assert updates == [1, 4]


@pytest.mark.parametrize("kind", ["LeashGRPO", "GRPO"])
@pytest.mark.parametrize(
    ("method_class", "moves"),
    [
        (Leash, True),
        (Laconic, False),  # which trains from correctness alone
    ],
)
def test_lambda_moves_by_what_another_function_scores(
    method_class, moves, kind, make_trainer, tiny_model_path, tmp_path
):
    """Where the function that decides what is correct cannot score a task, but another one can."""
    batches = []  # lengths

    def decides(completion_ids, **kwargs):
        batches.append([len(ids) for ids in completion_ids])
        return [None] * len(completion_ids)

    functions = [decides, parity_reward]
    if kind == "GRPO":
        method = method_class(LAMBDA_INIT, LAMBDA_LR)
        reward = LengthControlledReward(functions, method, TARGET, correctness_func=decides)
        trainer = stock_trainer(kind, tiny_model_path, tmp_path, reward=reward, max_steps=3)
    else:
        trainer = make_trainer(
            functions,
            length_control=method_class.name,
            target_length=TARGET,
            max_completion_length=2 * TARGET,
            lambda_init=LAMBDA_INIT,
            lambda_lr=LAMBDA_LR,
            correctness_func="decides",
        )
    trainer.train()
    assert len(batches) == trainer.state.global_step == 3
    lam = LAMBDA_INIT
    if moves:
        for lengths in batches:
            lam = lambda_after(lam, lengths)
        assert lam != LAMBDA_INIT
    assert lambda_in(trainer.state.stateful_callbacks["LengthControl"]) == pytest.approx(lam, abs=1e-12)
