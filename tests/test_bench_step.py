"""`leash bench step`: what is scripted, what is counted, and one whole run."""

import json
import random
import re
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from leash_trl.benchmark.gradients import gradient_difference, save_gradients
from leash_trl.benchmark.scripted_rollouts import REWARD, ScriptedRollouts, coin_rewards
from leash_trl.benchmark.settings import StepSettings
from leash_trl.benchmark.step_meter import StepMeter
from leash_trl.benchmark.tables import make_report, markdown, with_utilisation
from leash_trl.benchmark.training_step import measure, summarise
from leash_trl.cli.bench import build_parser, main
from leash_trl.cli.errors import UserError


SETTINGS = {
    "lengths": "uniform",
    "max_length": 20,
    "steps": 1,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 2,
    "num_generations": 4,
}


NO_MORE = {"gradient_difference": None, "num_groups": 2, "num_dead_groups": 0}


def groups(rewards: list[float], size: int) -> list[list[float]]:
    return [rewards[i : i + size] for i in range(0, len(rewards), size)]


@pytest.mark.parametrize("num_dead", [0, 3, 8])
def test_exactly_the_dead_groups_have_equal_rewards(num_dead):
    rewards = coin_rewards(8, num_dead, 2, random.Random(0))
    assert sum(len(set(group)) == 1 for group in groups(rewards, 2)) == num_dead
    assert set(rewards) == {-1.0, 1.0}


def test_scripted_completions_have_the_drawn_lengths_and_repeat(tokenizer):
    prompts = [[{"role": "user", "content": "1 + 2"}]] * 8
    one, two = (ScriptedRollouts(StepSettings(**SETTINGS), tokenizer) for _ in range(2))
    batches = [rollouts(prompts, None) for rollouts in (one, two, one)]
    assert batches[0] == batches[1]
    assert batches[0]["completion_ids"] != batches[2]["completion_ids"]
    assert [len(ids) for ids in batches[2]["completion_ids"]] == one.lengths[1]
    for ids in batches[0]["completion_ids"]:
        assert ids.index(tokenizer.eos_token_id) == len(ids) - 1
        assert tokenizer.pad_token_id not in ids
    assert len(batches[0][REWARD]) == 8


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_generations": 3}, "num_generations is 3"),
        ({"num_generations": 1}, "at least 2"),
        ({"dead_share": 1.0}, "leave one of 2 groups"),
        ({"dead_share": 0.8}, "leave one of 2 groups"),
        ({"dead_share": -0.1}, "dead_share is -0.1"),
        ({"dtype": "int8"}, "dtype is 'int8'"),
        ({"steps": 0}, "steps is 0"),
        ({"model_name_or_path": "gpt"}, "model_name_or_path is 'gpt'"),
        ({"gradient_accumulation_steps": 0}, "gradient_accumulation_steps is 0"),
        ({"loss_type": "foo"}, "loss_type is 'foo', but must be one of bnpo, "),
        ({"seed": -1}, "seed is -1, but must be from 0"),
        ({"seed": 2**32}, "seed is 4294967296, but must be from 0"),
        ({"max_length": 1}, "max_length is 1, but must be at least 2"),
    ],
)
def test_settings_that_cannot_be_measured_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        StepSettings(**{**SETTINGS, **change})


def test_summary_by_hand():
    def step(seconds, flops):
        return {
            "forward_backward_seconds": seconds,
            "scoring_seconds": 0.5,
            "positions": 100,
            "attended": 80,
            "flops": flops,
        }

    summary = summarise([step(1, 10), step(2, 30), step(4, 80)], [[3, 5], [4, 6], [8, 10]])
    assert summary == {
        "forward_backward_seconds": 2.0,
        "scoring_seconds": 0.5,
        "completion_tokens_per_second": 5.0,  # 8 / 1, 10 / 2, 18 / 4
        "padding_share": pytest.approx(0.2),
        "model_flops_per_second": 15.0,  # 10 / 1, 30 / 2, 80 / 4
        "mean_length": 6.0,
        "longest": 10,
    }


def gradients(path: Path, *values: float) -> Path:
    layer = torch.nn.Linear(len(values), 1, bias=False)
    layer.weight.grad = torch.tensor([values])
    save_gradients(layer, path)
    return path


def test_gradient_difference_by_hand(tmp_path):
    stock = gradients(tmp_path / "stock.pt", 3.0, -4.0)
    ours = gradients(tmp_path / "ours.pt", 3.0, -3.0)
    # the difference is (0, 1), against a norm of 5 and a largest of 4
    assert gradient_difference(ours, stock) == {"relative_l2": pytest.approx(0.2), "relative_max": pytest.approx(0.25)}
    assert gradient_difference(stock, stock) == {"relative_l2": 0.0, "relative_max": 0.0}
    with pytest.raises(ValueError, match="all gradients of the stock trainer are 0"):
        gradient_difference(ours, gradients(tmp_path / "zero.pt", 0.0, 0.0))
    for values in ((float("nan"), 1.0), (float("inf"), 1.0)):
        with pytest.raises(ValueError, match="weight are not finite"):
            gradient_difference(gradients(tmp_path / "broken.pt", *values), stock)


def test_an_arm_that_failed_leaves_the_other_s_column():
    done = {
        **summarise(
            [{"forward_backward_seconds": 2.0, "scoring_seconds": 1.0, "positions": 4, "attended": 3, "flops": 8}],
            [[1, 3]],
        ),
        "peak_memory_gib": 1.0,
        "peak_memory_kind": "rise of ru_maxrss",
        "matrix_flops_per_second": 16.0,
        "device": "a CPU",
    }
    results = with_utilisation({"stock": {"failed": "out of memory"}, "ours": done})
    page = markdown(make_report("leash bench", StepSettings(**SETTINGS), results, **NO_MORE))
    assert "| ours | 2 | 1 | 2 | 25.0% | 1 | 25.0% |" in page  # 8 / 2 of 16 FLOP/s
    assert "stock failed: out of memory" in page
    assert "groups dead" not in page


def test_there_is_no_table_if_no_arm_finished():
    failed = {arm: {"failed": "out of memory"} for arm in ("stock", "ours")}
    page = markdown(make_report("leash bench", StepSettings(**SETTINGS), failed, **NO_MORE))
    assert "|" not in page
    assert "ours failed: out of memory" in page


def test_dead_groups_are_counted_as_rounded():
    settings = StepSettings(**{**SETTINGS, "gradient_accumulation_steps": 32, "dead_share": 0.12})
    more = {"num_groups": settings.num_groups, "num_dead_groups": settings.num_dead_groups}
    page = markdown(make_report("leash bench", settings, {}, gradient_difference=None, **more))
    assert "4 of 32 groups dead" in page


@pytest.mark.parametrize("argv", [["step", "--see", "1"], ["rollout", "--engine", "generate"]])
def test_options_are_not_abbreviated(argv):
    with pytest.raises(UserError, match=f"unknown option {argv[1]}"):
        build_parser().parse_args(argv)


@pytest.mark.parametrize("benchmark", ["step", "rollout"])
def test_help_names_every_default(benchmark, capsys):
    with pytest.raises(SystemExit):
        build_parser().parse_args([benchmark, "--help"])
    options = capsys.readouterr().out.split("show this help message and exit")[1]
    assert options.count("(default:") == len(re.findall(r"^  --", options, re.MULTILINE)) > 5


def test_an_output_that_is_a_file_is_one_line(tmp_path):
    path = tmp_path / "file"
    path.write_text("", encoding="utf-8")
    with pytest.raises(UserError, match=f"output_dir is '{path}/bench', where nothing can be written"):
        main(["step", "--output", str(path / "bench")])


@pytest.mark.parametrize(("benchmark", "other"), [("step", "rollout"), ("rollout", "step")])
def test_old_results_of_the_same_benchmark_are_removed_first(tmp_path, benchmark, other, monkeypatch):
    old = {
        "step": ["step.json", "step.md", "stock.log", "ours without skipping.log", "ours.log"],
        "rollout": ["rollout.json", "rollout.md", "generate.log", "shrinking.log", "continuous.log"],
    }
    for name in (*old["step"], *old["rollout"], "mine.txt"):
        (tmp_path / name).write_text("old", encoding="utf-8")

    def stop(*args):
        raise KeyboardInterrupt

    monkeypatch.setattr("leash_trl.cli.bench.run_jobs", stop)
    with pytest.raises(KeyboardInterrupt):
        main([benchmark, "--output", str(tmp_path)])
    assert {path.name for path in tmp_path.iterdir()} == {*old[other], "mine.txt"}


def test_the_process_that_starts_the_arms_stays_small():
    # Linux hands its greatest size on to them, and their memory is measured from there
    code = "from leash_trl.cli.bench import build_parser; build_parser(); import leash_trl.benchmark.tables, sys"
    code += "; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert "leash_trl.benchmark.settings" in loaded
    assert not {"torch", "transformers", "trl", "numpy"} & set(loaded)


def test_mistakes_are_told_before_anything_runs(tmp_path):
    with pytest.raises(UserError, match="num_generations is 7"):
        main(["step", "--num_generations", "7", "--output", str(tmp_path / "bench")])
    assert not (tmp_path / "bench").exists()


def check_arms(results: dict) -> None:
    """What must hold of any two arms on the same completions, one step after one that is not measured."""
    stock, ours = results["stock"], results["ours"]
    for arm in (stock, ours):
        assert len(arm["steps"]) == 2
        assert arm["forward_backward_seconds"] > arm["scoring_seconds"] > 0
        assert arm["peak_memory_gib"] >= 0
        assert arm["matrix_flops_per_second"] > arm["model_flops_per_second"] > 0
    assert 0 <= ours["padding_share"] < stock["padding_share"] < 1
    assert ours["mean_length"] == stock["mean_length"]


def test_both_trainers_are_measured_on_the_same_gradients(tmp_path, tiny_model_path):
    change = {"model_name_or_path": f"{tiny_model_path}/config.json", "dtype": "float64"}
    change |= {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 4}
    settings = StepSettings(**{**SETTINGS, **change})
    check_arms({arm: measure(settings, arm, tmp_path / f"{arm}.pt") for arm in ("stock", "ours")})
    # TRL computes log-probabilities in float32 whatever the model's type
    assert max(gradient_difference(tmp_path / "ours.pt", tmp_path / "stock.pt").values()) < 1e-6


@pytest.mark.slow  # three processes that import TRL
def test_a_whole_run_compares_three_arms(tmp_path, tiny_model_path, capsys):
    options = {
        "model": f"{tiny_model_path}/config.json",
        "dtype": "float64",
        "max_length": 32,
        "per_device_train_batch_size": 2,
        "gradient_accumulation_steps": 4,
        "num_generations": 4,
        "dead_share": 0.5,
        "steps": 1,
        "output": tmp_path,
    }
    assert main(["step", *(str(part) for name, value in options.items() for part in (f"--{name}", value))]) == 0
    report = json.loads((tmp_path / "step.json").read_text(encoding="utf-8"))
    assert [*report["results"]] == ["stock", "ours without skipping", "ours"]
    check_arms(report["results"])
    assert max(report["gradient_difference"].values()) < 1e-6
    page = (tmp_path / "step.md").read_text(encoding="utf-8")
    assert report["command"] in page
    assert page in capsys.readouterr().out


class Reader(torch.nn.Module):
    """Takes what a language model takes."""

    def forward(self, attention_mask):
        return attention_mask


class TickingTrainer:
    """Takes 5 s for rollouts, 3 s for scoring and 11 s for forward and backward, on a clock of its own."""

    def __init__(self):
        self.model = Reader()
        self.callbacks = []
        self.seconds = 0.0

    def add_callback(self, callback):
        self.callbacks.append(callback)

    def rollout_func(self):
        self.seconds += 5

    def _prepare_inputs(self):
        self.rollout_func()
        self.seconds += 3
        with torch.no_grad():
            self.model(attention_mask=torch.tensor([[1, 1, 0, 0]]))

    def training_step(self):
        self._prepare_inputs()
        self.seconds += 11
        self.model(attention_mask=torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0]]))


def test_the_meter_tells_the_parts_of_a_step_apart(tmp_path, monkeypatch):
    meter = StepMeter(torch.device("cpu"), lambda lengths: sum(10**length for length in lengths), tmp_path / "grad.pt")
    trainer = TickingTrainer()
    monkeypatch.setattr(time, "perf_counter", lambda: trainer.seconds)
    meter.attach(trainer)
    assert trainer.callbacks == [meter]
    for _ in range(2):  # each step starts from nothing
        trainer.training_step()
        trainer.training_step()
        meter.on_step_end(None, None, None)
    for step in meter.steps:
        assert (step["forward_backward_seconds"], step["scoring_seconds"]) == (2 * 11, 2 * 3)
        assert (step["positions"], step["attended"]) == (2 * (4 + 8), 2 * (2 + 4))
        # only what has a gradient: rows of 3 and 1, twice
        assert step["flops"] == 2 * (1000 + 10)
