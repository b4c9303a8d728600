"""What a method may ask of the trainer: targets, prompt suffix, cap, loss mask, advantages."""

import math
import sys
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

import pytest
import torch

import leash_trl.length_control
from leash_trl.length_control.leash import Leash
from leash_trl.length_control.method import LengthControl
from leash_trl.length_control.methods import METHODS
from leash_trl.length_control.targets import question_number
from leash_trl.trainer.checks import check_own_targets


@dataclass
class Probe(LengthControl):
    """A method of an outsider that uses every seam and keeps what it is shown."""

    name: ClassVar[str] = "probe"

    cap: int = 24
    suffix: str = ""

    def __post_init__(self):
        self.seen, self.calls, self.steps = [], [], 0

    def shape(self, rollouts):
        return rollouts.correctness

    def observe(self, rollouts):
        self.calls.append("observe")
        self.seen.append(rollouts)

    def step(self):
        self.calls.append("step")
        self.steps += 1

    def statistics(self):
        return {"steps": self.steps}

    def generation_cap(self, target_length):
        return self.cap - 4 * self.steps

    def is_trained_on(self, rollouts):
        self.calls.append("is_trained_on")
        return ~rollouts.is_truncated

    def advantages(self, shaped_rewards, rollouts, scale_rewards, epsilon):
        self.calls.append("advantages")
        return torch.arange(len(shaped_rewards), dtype=torch.float64)

    def target_for(self, question, target_length):
        return 10 + question % 5

    def prompt_suffix(self, target_length):
        return self.suffix and f"{self.suffix}{target_length:.0f}"

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


@pytest.fixture
def make_probe(make_trainer, monkeypatch):
    monkeypatch.setitem(METHODS, "probe", Probe)

    def make(kwargs=None, **overrides):
        return make_trainer(length_control="probe", lambda_lr=None, length_control_kwargs=kwargs, **overrides)

    return make


@pytest.fixture(scope="module")
def trained() -> list:
    return []


@pytest.fixture
def probed(make_probe, trained):
    """A probe after three policy updates, trained once for the tests that only look at it."""
    if not trained:
        fields = {"max_steps": 3, "per_device_train_batch_size": 16, "skip_zero_signal": False}
        trained.append(make_probe({"suffix": " + "}, **fields))
        trained[0].train()
    return trained[0]


def test_a_method_needs_no_more_than_its_shape(make_trainer, monkeypatch):
    @dataclass
    class Minimal(LengthControl):
        name: ClassVar[str] = "minimal"

        def shape(self, rollouts):
            return self.base_rewards(rollouts) - rollouts.lengths / 1000

    monkeypatch.setitem(METHODS, "minimal", Minimal)
    trainer = make_trainer(length_control="minimal", lambda_lr=None, target_length=None)
    trainer.train()
    row = trainer.state.log_history[0]
    assert row["leash/mean_penalty"] == pytest.approx(row["leash/mean_length"] / 1000)
    assert "leash/violation" not in row or row["leash/violation"] is None


def test_the_cap_ends_generation_and_moves_with_the_state(probed):
    limits = [rollouts.max_completion_length for rollouts in probed.length_control.seen]
    assert limits == [24, 20, 16]
    for rollouts, limit in zip(probed.length_control.seen, limits, strict=True):
        assert rollouts.lengths.max() == limit
        assert (rollouts.is_truncated <= (rollouts.lengths == limit)).all()
    assert any(rollouts.is_truncated.any() for rollouts in probed.length_control.seen)


def test_the_cap_is_for_training_only_and_leaves_the_loss_alone(make_probe, problems):
    trainer = make_probe({"cap": 6}, eval_dataset=problems.select(range(8)), eval_strategy="steps", max_steps=1)
    metrics = trainer.evaluate()
    assert {**metrics, **trainer.state.log_history[-1]}["eval_leash/max_length"] > 6
    trained = make_probe({"cap": 6}, max_steps=1)
    trained.train()
    assert trained.length_control.seen[0].lengths.max() == 6
    assert trained.max_completion_length == 24  # TRL's dr_grpo loss divides by it


def test_with_several_rewards_one_must_say_what_is_correct(make_trainer):
    def wrong(completion_ids, **kwargs):
        return [0.0] * len(completion_ids)

    def well_formed(completion_ids, **kwargs):
        return [1.0] * len(completion_ids)

    fields = {"length_control": "alp", "lambda_lr": None, "max_steps": 1}
    with pytest.raises(ValueError, match="correctness_func is None"):
        make_trainer([wrong, well_formed], **fields)
    with pytest.raises(ValueError, match="must be one of wrong, well_formed"):
        make_trainer([wrong, well_formed], correctness_func="right", **fields)
    trainer = make_trainer([wrong, well_formed], correctness_func="wrong", **fields)
    trainer.train()
    assert trainer.state.log_history[0]["leash/accuracy"] == 0


def test_what_the_deciding_function_could_not_grade_is_neither_right_nor_wrong(make_trainer):
    def graded(completion_ids, **kwargs):
        return [1.0, None, -1.0, 1.0] * (len(completion_ids) // 4)

    def well_formed(completion_ids, **kwargs):
        return [0.5] * len(completion_ids)

    trainer = make_trainer(
        [graded, well_formed], correctness_func="graded", length_control="alp", lambda_lr=None, max_steps=1
    )
    trainer.train()
    assert trainer.state.log_history[0]["leash/accuracy"] == pytest.approx(2 / 3)
    assert [math.isnan(reward) for reward in trainer._logs["extra"]["shaped_reward"]] == [
        False,
        True,
        False,
        False,
    ] * 2
    assert [a == 0 for a in trainer._logs["advantages"]] == [False, True, False, False] * 2


def test_masked_completions_leave_the_loss_and_its_normaliser(probed):
    rollouts, batch = probed.length_control.seen[-1], probed._buffered_inputs[0]
    assert rollouts.is_truncated.any()
    assert batch["completion_mask"].sum() == rollouts.lengths[~rollouts.is_truncated].sum()
    assert batch["num_items_in_batch"] == batch["completion_mask"].sum()


def test_a_method_is_asked_in_the_documented_order(probed):
    assert probed.length_control.calls == ["advantages", "is_trained_on", "observe", "step"] * 3


def test_the_methods_advantages_are_trained_on(probed):
    assert sorted(probed._buffered_inputs[0]["advantages"].tolist()) == list(range(16))


def test_a_prompt_draws_its_target_and_reads_it(probed):
    for rollouts in probed.length_control.seen:
        assert rollouts.target_lengths.tolist() == [10 + q % 5 for q in rollouts.questions.tolist()]
        assert len(set(rollouts.by_group(rollouts.questions)[0].tolist())) == 1
    suffixed = list(probed._logs["prompt"])
    targets = probed.length_control.seen[-1].target_lengths.tolist()
    assert [prompt[0]["content"].split(" + ")[-1] for prompt in suffixed] == [f"{t:.0f}" for t in targets]
    plain = {question_number(prompt) for prompt in probed.train_dataset["prompt"]}
    assert {int(q) for rollouts in probed.length_control.seen for q in rollouts.questions} <= plain


def test_targets_of_a_column_win_and_follow_the_schedule(make_trainer, problems):
    column = [8 if i % 2 else None for i in range(len(problems))]
    own = {question_number(p): t for p, t in zip(problems["prompt"], column, strict=True)}
    trainer = make_trainer(
        dataset=problems.add_column("target_length", column),
        target_schedule="linear",
        target_milestones={0: 24, 2: 12},
        max_steps=3,
    )
    seen = []
    observe = trainer.length_control.observe
    trainer.length_control.observe = lambda rollouts: (seen.append(rollouts), observe(rollouts))
    trainer.train()
    for scale, rollouts in zip((2.0, 1.5, 1.0), seen, strict=True):
        expected = [scale * (own[q] or 12) for q in rollouts.questions.tolist()]
        assert rollouts.target_lengths.tolist() == expected
    logged = [row["leash/target_length"] for row in trainer.state.log_history if "loss" in row]
    assert logged == pytest.approx([r.target_lengths.mean().item() for r in seen])


def test_only_methods_that_use_targets_hold_those_of_rows_to_the_limit(make_args, make_trainer, problems):
    dataset, refusing = problems.add_column("target_length", [9999] * len(problems)), set()
    for name in METHODS:
        kwargs = {"budget_range": [4, 8]} if name.startswith("l1") else {}
        kwargs |= {"cache_length": 4} if name == "dapo_overlong" else {}
        kwargs |= {"lower_bound": 4} if name == "lead" else {}
        kwargs |= {"total_bonus": 0.1} if name == "nemo_rl" else {}
        kwargs |= {"robust": True, "min_excess": 4} if name == "dot" else {}
        args = make_args(length_control=name, length_control_kwargs=kwargs, lambda_lr=None, advantage_epsilon=0.1)
        try:
            check_own_targets(dataset, args.make_length_control(), args)
        except ValueError:
            refusing.add(name)
    assert refusing == {name for name, method in METHODS.items() if method.target_use != "none"}
    assert {"leash", "laser_d", "dler", "l1_max"} <= refusing
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        trainer = make_trainer(length_control="none", lambda_lr=None, target_length=None, dataset=dataset, max_steps=1)
    trainer.train()
    assert trainer.state.log_history[0]["leash/target_length"] == 9999


def test_targets_of_rows_are_held_to_the_method_at_every_milestone(make_args, problems):
    args = make_args(
        length_control="laser_d",
        lambda_lr=None,
        length_control_kwargs={"upper_bound": 20},
        target_schedule="linear",
        target_milestones={0: 18, 9: 12},
    )
    fits = problems.add_column("target_length", [13] * len(problems))  # 13 * 18 / 12 = 19.5
    check_own_targets(fits, args.make_length_control(), args)
    dataset = problems.add_column("target_length", [13, 14] * (len(problems) // 2))
    with pytest.raises(ValueError, match=r"row 1 .*target_length"):
        check_own_targets(dataset, args.make_length_control(), args)


def test_a_bad_target_in_the_data_is_an_error(make_trainer, problems):
    with pytest.raises(ValueError, match=r"row 0 .*target_length=-1"):
        make_trainer(dataset=problems.add_column("target_length", [-1] * len(problems)))


def test_evaluation_moves_nothing(make_probe, problems):
    trainer = make_probe(eval_dataset=problems.select(range(8)), eval_strategy="steps")
    trainer.evaluate()
    assert not trainer.length_control.seen
    assert trainer.generated_tokens == 0
    assert not trainer.length_control.calls
    assert not [key for key, values in trainer._metrics["train"].items() if values]


def test_every_method_knows_its_name_and_its_paper():
    assert {name: method.name for name, method in METHODS.items()} == {name: name for name in METHODS}
    for name, method in METHODS.items():
        says_where_from = "huggingface.co/papers" in (sys.modules[method.__module__].__doc__ or "")
        assert bool(method.paper()) == says_where_from, name
    assert METHODS["laser_d"].paper()["id"] == "2505.15612"


def test_the_model_card_names_the_method_that_was_used(make_trainer, tmp_path):
    for fields, name, paper in (
        ({"length_control": "kimi", "lambda_lr": None}, "kimi", "2501.12599"),
        ({"length_control": "none", "lambda_lr": None}, "none", None),
        ({}, "leash", "2512.21540"),
    ):
        trainer = make_trainer(output_dir=str(tmp_path / name), **fields)
        trainer.create_model_card()
        card = (tmp_path / name / "README.md").read_text()
        assert f"The method is `{name}`" in card
        assert ("2512.21540" in card) == (name == "leash")
        assert paper is None or paper in card


README = Path(leash_trl.length_control.__path__[0], "README.md").read_text(encoding="utf-8")
NO_METHODS = """
class NotADataclass(PricePerToken):
    pass

@dataclass
class Shapeless(LengthControl):
    name = "shapeless"
"""


@pytest.fixture
def my_lib(tmp_path, monkeypatch):
    example = README.partition("```python\n")[2].partition("```")[0]
    (tmp_path / "my_lib.py").write_text(example + NO_METHODS)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delitem(sys.modules, "my_lib", raising=False)
    monkeypatch.setattr(sys, "path", [*sys.path])


def test_the_method_of_the_readme_is_one_file_anywhere(my_lib, make_trainer):
    trainer = make_trainer(
        length_control="my_lib.PricePerToken", lambda_lr=None, length_control_kwargs={"price": 0.5}, max_steps=2
    )
    trainer.train()
    first, second = (row for row in trainer.state.log_history if "loss" in row)
    assert first["leash/mean_penalty"] == pytest.approx(0.5 * first["leash/mean_length"])
    assert second["leash/price"] == pytest.approx(0.5 * (1.1 if first["leash/violation"] > 0 else 1 / 1.1))


@pytest.mark.parametrize(
    ("path", "message"),
    [
        ("my_lib.NotADataclass", "must be a dataclass derived"),
        ("my_lib.Shapeless", "needs a `name` and a `shape`"),
        ("my_lib.dataclass", "must be a dataclass derived"),
        ("my_lib.Missing", "cannot load 'my_lib.Missing'"),
        ("no_such_lib.Mine", "cannot load 'no_such_lib.Mine'"),
    ],
)
def test_what_is_no_method_is_an_error(my_lib, make_args, path, message):
    with pytest.raises(ValueError, match=message):
        make_args(length_control=path, lambda_lr=None)


def test_the_state_of_any_method_is_in_its_checkpoints(make_probe, tmp_path):
    trainer = make_probe(max_steps=2, save_strategy="steps", save_steps=1)
    trainer.train()
    resumed = make_probe(max_steps=2, output_dir=str(tmp_path / "resumed"))
    resumed.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
    assert resumed.length_control.steps == 2
    assert resumed.generated_tokens == trainer.generated_tokens


def test_a_checkpoint_of_another_method_is_an_error(make_trainer, make_probe, tmp_path):
    make_probe(max_steps=1, save_strategy="steps", save_steps=1).train()
    leash = make_trainer(max_steps=2, output_dir=str(tmp_path / "leash"))
    assert isinstance(leash.length_control, Leash)
    with pytest.raises(ValueError, match="saved by length control 'probe', this is 'leash'"):
        leash.train(resume_from_checkpoint=str(tmp_path / "run" / "checkpoint-1"))
