"""When lambda moves: once per generation batch, after the policy update, whatever the batching is."""

import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from accelerate.optimizer import AcceleratedOptimizer
from conftest import log_rows, logged, parity_reward
from transformers import TrainerCallback

from leash_trl.trainer.resume import EpochShuffleCallback


TARGET, LAMBDA_LR, STEPS = 6, 0.03, 6
SHORT = {"target_length": TARGET, "max_completion_length": 2 * TARGET, "lambda_lr": LAMBDA_LR}


class Overflow(TrainerCallback):
    """Lets gradients overflow at some updates, as mixed precision with float16 does now and then."""

    def __init__(self, trainer, updates):
        self.updates = updates
        trainer.accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
        trainer.add_callback(self)

    def on_pre_optimizer_step(self, args, state, control, model, **kwargs):
        if state.global_step in self.updates:
            next(p for p in model.parameters() if p.grad is not None).grad.fill_(torch.inf)


@pytest.mark.parametrize(
    ("accumulation", "steps_per_generation", "iterations", "skipped"),
    [
        (1, 1, 1, ()),
        (1, 4, 1, ()),
        (2, 2, 2, ()),
        (2, 3, 2, ()),
        (4, 1, 1, ()),
        (4, 3, 1, ()),
        (1, 1, 1, (0, 2, 3)),
        (1, 4, 1, (0, 1)),  # the third update on the first batch is the first that is taken
        (1, 2, 1, (2, 3)),  # none on the second batch is: it is pooled with the third
        (2, 1, 1, (1,)),
    ],
)
def test_one_dual_step_per_generation_batch(make_trainer, accumulation, steps_per_generation, iterations, skipped):
    begun, moved = [], []  # update and lengths of each generation batch; update and lambda after each dual step

    def reward(completion_ids, **kwargs):
        begun.append((trainer.state.global_step, [len(ids) for ids in completion_ids]))
        return parity_reward(completion_ids)

    fields = {"gradient_accumulation_steps": accumulation, "steps_per_generation": steps_per_generation}
    trainer = make_trainer(reward, num_iterations=iterations, max_steps=STEPS, **fields, **SHORT)
    Overflow(trainer, skipped)
    method, dual_step = trainer.length_control, trainer.length_control.step

    def spy():
        dual_step()
        moved.append((trainer.state.global_step - 1, method.lam))

    method.step = spy
    trainer.train()
    window = steps_per_generation * iterations  # in micro-steps
    assert [update for update, _ in begun] == [step // accumulation for step in range(0, STEPS * accumulation, window)]
    assert [update for update, _ in moved] == [update for update in range(STEPS) if update not in skipped]
    lam, waiting = 0.1, list(begun)
    for update, after in moved:
        pool = [length for start, lengths in waiting if start <= update for length in lengths]
        waiting = [(start, lengths) for start, lengths in waiting if start > update]
        if pool:  # a batch is waiting for its first update that is taken
            lam = min(1.0, max(0.0, lam + LAMBDA_LR * (sum(pool) / len(pool) / TARGET - 1)))
        assert after == pytest.approx(lam, abs=1e-12)
    assert waiting == []
    used = [(row["step"] - 1, row["leash/lambda"]) for row in log_rows(trainer, "leash/lambda")]
    in_force = {update: lam for update, _ in begun for before, lam in moved if before < update}
    assert dict(used).keys() == {update for update, _ in begun}
    for update, lam in used:  # the one with which the batch was sampled
        assert lam == pytest.approx(in_force.get(update, 0.1), abs=1e-12)


@pytest.mark.parametrize("optimizer", ["adamw_torch", "adamw_torch_fused"])
def test_what_a_skipped_update_observed_is_in_its_checkpoint(make_trainer, tmp_path, optimizer):
    fields = {"max_steps": 2, "save_strategy": "steps", "save_steps": 1, "optim": optimizer}
    whole = make_trainer(output_dir=str(tmp_path / "whole"), **fields)
    before = [p.clone() for p in whole.model.parameters()]
    Overflow(whole, (0, 1))
    whole.train()
    assert all(torch.equal(p, q) for p, q in zip(whole.model.parameters(), before, strict=True))
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


def test_training_twice_goes_on_with_lambda(make_trainer):
    trainer = make_trainer(max_steps=1)
    trainer.train()
    first = trainer.length_control.lam
    trainer.train()
    assert trainer.state.log_history[0]["leash/lambda"] == first != 0.1
    assert trainer.state.stateful_callbacks["LengthControl"]["version"] == 2


def test_two_processes_shuffle_later_epochs_as_an_uninterrupted_run_does(make_trainer, problems):
    trainer = make_trainer(dataset=problems.select(range(8)))
    uninterrupted = trainer._get_train_sampler()
    orders = [list(uninterrupted) for _ in range(3)]
    alone = trainer.get_train_dataloader()
    resumed = prepare_data_loader(alone, num_processes=2, process_index=0, put_on_device=False)
    for epoch in (2, 0, 1):
        trainer.state.epoch = epoch + 0.25
        EpochShuffleCallback().on_epoch_begin(trainer.args, trainer.state, trainer.control, train_dataloader=resumed)
        assert list(alone.batch_sampler.sampler) == orders[epoch]
    assert orders[0] != orders[1]
