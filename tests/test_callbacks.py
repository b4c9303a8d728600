"""When lambda moves: once per generation batch, after the policy update, whatever the batching is."""

import pytest
import torch
from accelerate.data_loader import prepare_data_loader
from accelerate.optimizer import AcceleratedOptimizer
from conftest import parity_reward
from transformers import TrainerCallback

from leash_trl.trainer.callbacks import EpochShuffleCallback


TARGET = 6
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


def expected_dual_steps(micro_batches_of_updates, window, skipped):
    """Generation batches begin at every `window`-th micro-step; those of one update share one dual step."""
    steps, pending, micro = 0, False, 0
    for update, count in enumerate(micro_batches_of_updates):
        for _ in range(count):
            pending |= micro % window == 0
            micro += 1
        if update not in skipped:
            steps += pending
            pending = False
    return steps


@pytest.mark.parametrize(
    ("accumulation", "steps_per_generation", "iterations", "skipped"),
    [
        (1, 1, 1, ()),
        (2, 2, 1, ()),
        (1, 4, 1, ()),
        (2, 4, 1, ()),
        (1, 1, 3, ()),
        (2, 2, 2, ()),
        (2, 3, 2, ()),
        (4, 2, 1, ()),
        (4, 1, 1, ()),
        (4, 3, 1, ()),
        (3, 2, 1, ()),
        (1, 1, 1, (0, 2, 3)),
        (1, 4, 1, (0, 1)),  # the third update on the first batch is the first that is taken
        (1, 2, 1, (2, 3)),  # none on the second batch is: it is pooled with the third
        (2, 1, 1, (1,)),
    ],
)
def test_one_dual_step_per_generation_batch(make_trainer, accumulation, steps_per_generation, iterations, skipped):
    batches = []

    def reward(completion_ids, **kwargs):
        batches.append([len(ids) for ids in completion_ids])
        return parity_reward(completion_ids)

    trainer = make_trainer(
        reward,
        gradient_accumulation_steps=accumulation,
        steps_per_generation=steps_per_generation,
        num_iterations=iterations,
        max_steps=STEPS,
        lambda_lr=0.03,
        target_length=TARGET,
        max_completion_length=2 * TARGET,
    )
    Overflow(trainer, skipped)
    controller, events = trainer.length_control, []
    observe, dual_step = controller.observe, controller.step

    def spy_observe(rollouts):
        observe(rollouts)
        events.append(("batch", trainer.state.global_step, controller.lam))

    def spy_dual_step():
        before = controller.lam
        dual_step()
        if controller.lam != before:
            events.append(("dual", trainer.state.global_step, controller.lam))

    controller.observe, controller.step = spy_observe, spy_dual_step
    trainer.train()

    # replay: batches pool until the update that follows them ends
    lam, pool, moves = 0.1, [], []
    batch_index = 0
    for kind, global_step, logged_lam in events:
        if kind == "batch":
            assert logged_lam == lam  # the lambda in force when sampling began
            pool += batches[batch_index]
            batch_index += 1
        else:
            lam = min(1.0, max(0.0, lam + 0.03 * (sum(pool) / len(pool) / TARGET - 1.0)))
            assert logged_lam == pytest.approx(lam, abs=1e-12)
            lam, pool = logged_lam, []
            moves.append(global_step)
    assert batch_index == len(batches)
    assert pool == []  # nothing is pending where a checkpoint could be taken
    expected = expected_dual_steps([accumulation] * STEPS, steps_per_generation * iterations, skipped)
    assert len(moves) == len(set(moves)) == expected
    assert not {step - 1 for step in moves} & set(skipped)


@pytest.mark.parametrize("optimizer", ["adamw_torch", "adamw_torch_fused"])
def test_what_a_skipped_update_observed_is_in_its_checkpoint(make_trainer, tmp_path, optimizer):
    whole = make_trainer(
        max_steps=2, save_strategy="steps", save_steps=1, output_dir=str(tmp_path / "whole"), optim=optimizer
    )
    before = [p.clone() for p in whole.model.parameters()]
    Overflow(whole, (0, 1))
    whole.train()
    assert all(torch.equal(p, q) for p, q in zip(whole.model.parameters(), before, strict=True))
    assert whole.length_control.lam == 0.1
    first, second = (row["leash/violation"] for row in whole.state.log_history if "leash/violation" in row)
    resumed = make_trainer(max_steps=2, output_dir=str(tmp_path / "resumed"), optim=optimizer)
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


def test_lambda_moves_after_the_optimizer(make_trainer):
    trainer = make_trainer(max_steps=1)
    events = []
    trainer.create_optimizer()
    step, dual_step = trainer.optimizer.step, trainer.length_control.step

    def spy_step(*args, **kwargs):
        events.append("policy")
        return step(*args, **kwargs)

    def spy_dual_step():
        events.append("dual")
        dual_step()

    trainer.optimizer.step, trainer.length_control.step = spy_step, spy_dual_step
    trainer.train()
    assert events == ["policy", "dual"]


def test_training_twice_goes_on_with_lambda(make_trainer):
    trainer = make_trainer(max_steps=1)
    trainer.train()
    first = trainer.length_control.lam
    trainer.train()
    assert trainer.state.log_history[0]["leash/lambda"] == first


def test_tensorboard_shows_one_group(make_trainer, problems, monkeypatch, tmp_path):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", str(tmp_path / "tensorboard"))
    trainer = make_trainer(
        max_steps=2,
        report_to="tensorboard",
        eval_dataset=problems.select(range(8)),
        eval_strategy="steps",
        eval_steps=2,
        per_device_eval_batch_size=8,
    )
    trainer.train()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    tags = events.Tags()["scalars"]
    assert {"leash/lambda", "leash/violation", "eval_leash/lambda", "train/loss"} <= set(tags)
    assert not [tag for tag in tags if tag.startswith("train/leash")]
    logged = [row["leash/lambda"] for row in trainer.state.log_history if "leash/lambda" in row]
    assert [event.value for event in events.Scalars("leash/lambda")] == pytest.approx(logged, rel=1e-6)


@pytest.mark.parametrize("num_processes", [1, 2])
def test_shuffle_of_later_epochs_is_that_of_an_uninterrupted_run(make_trainer, problems, num_processes):
    trainer = make_trainer(dataset=problems.select(range(8)))
    uninterrupted = trainer._get_train_sampler()
    orders = [list(uninterrupted) for _ in range(3)]
    resumed = trainer.get_train_dataloader()
    sampler = resumed.batch_sampler.sampler
    if num_processes > 1:
        resumed = prepare_data_loader(resumed, num_processes=num_processes, process_index=0, put_on_device=False)
    for epoch in (2, 0, 1):
        trainer.state.epoch = epoch + 0.25
        EpochShuffleCallback().on_epoch_begin(trainer.args, trainer.state, trainer.control, train_dataloader=resumed)
        assert list(sampler) == orders[epoch]
    assert orders[0] != orders[1]


def test_a_tensorboard_callback_of_the_users_own_is_left_alone(make_trainer):
    from transformers.integrations import TensorBoardCallback

    class Mine(TensorBoardCallback):
        pass

    mine = Mine()
    trainer = make_trainer(callbacks=[mine])
    assert mine in trainer.callback_handler.callbacks
