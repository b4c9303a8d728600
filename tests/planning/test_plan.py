"""`leash plan`: what it adds up, refuses and proposes, and the command from end to end."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT

from leash_trl.cli.commands.plan import make_settings, parse_plan
from leash_trl.cli.main import main
from leash_trl.planning import plan
from leash_trl.planning.plan import GIB, PAPER_MODELS


RECIPE = str(ROOT / "recipes" / "leash_1.5b_4k.yaml")
ON_32 = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "96"]
LORA = ["--config", str(ROOT / "recipes" / "leash_1.5b_4k_lora.yaml"), "--num_gpus", "1", "--gpu_memory", "24"]


def settings_of(*argv: str) -> plan.Settings:
    return make_settings(*parse_plan([*argv]))


@pytest.fixture(scope="module")
def paper():
    return settings_of(*ON_32)


@pytest.fixture
def configs(tmp_path, monkeypatch):
    """The working folder, with configurations of a model whose positions are stretched, and of another type."""
    monkeypatch.chdir(tmp_path)
    stretched = {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}
    Path("dynamic.json").write_text(json.dumps(PAPER_MODELS["Qwen/Qwen3-4B-Thinking-2507"] | stretched))
    Path("mixtral.json").write_text('{"model_type": "mixtral"}')


@pytest.mark.parametrize(
    ("sharding", "weights", "gradients", "optimizer", "buffers"),
    [
        ("none", 4, 4, 8, 4),
        ("zero1", 2, 2, 16 / 32, 2),
        ("zero2", 2, 2 / 32, 16 / 32, 2),
        ("zero3", 2 / 32, 2 / 32, 16 / 32, 2 * 2),
        ("fsdp", 4 / 32, 4 / 32, 8 / 32, 2),
    ],
)
def test_bytes_per_parameter_are_those_of_zeros_figure_1(paper, sharding, weights, gradients, optimizer, buffers):
    size = paper.architecture.num_parameters
    layer = 2 * 1536**2 + 2 * 1536 * 256 + 3 * 1536 * 8960 + (1536 + 2 * 256) + 2 * 1536  # matrices, biases, norms
    outer = 2 * 151_936 * 1536 + 1536  # embedding, head, norm
    # of DeepSpeed's buffers, in elements; FSDP gathers what is outside the layers, and three of these
    limits = {"none": size, "zero1": 5e8, "zero2": 5e8, "zero3": 1e9, "fsdp": 2 * outer + 3 * layer}
    *held, moved = plan.state_bytes(replace(paper, sharding=sharding))
    assert held == pytest.approx([weights * size, gradients * size, optimizer * size])
    assert moved == buffers * limits[sharding]


def test_an_adapter_trains_in_float32_and_what_is_under_it_may_take_four_bits_and_a_scale():
    half, quantized = (
        settings_of(*LORA, "--dtype", "bfloat16", "--load_in_4bit", value) for value in ("false", "true")
    )
    # r 16 on all matrices of 28 layers: 16 * (in + out) each
    adapter, layer = 28 * 16 * (2 * 3072 + 2 * 1792 + 3 * 10496), 2 * 1536**2 + 2 * 1536 * 256 + 3 * 1536 * 8960
    weights = 2 * half.architecture.num_parameters + 4 * adapter
    assert plan.state_bytes(half) == (weights, 4 * adapter, 8 * adapter, 0)
    assert plan.state_bytes(quantized) == (weights - (2 - 0.5 - 4 / 64) * 28 * layer, *plan.state_bytes(half)[1:])
    # a layer's matrices at a time are made whole
    assert plan.cast_bytes(quantized, 28) == pytest.approx(2 * layer, rel=1e-3)


def test_each_moment_has_its_items(paper):
    weights, gradients, *_ = plan.state_bytes(paper)
    items = plan.memory_items(replace(paper, beta=0.1))
    assert items["reference model"] == (weights, weights)
    assert items["gradients"] == (gradients, 0)
    assert items["vLLM"] == pytest.approx([0.4 * 96 * GIB] * 2)
    assert plan.memory_items(replace(paper, vllm_enable_sleep_mode=True))["vLLM"] == (0, items["vLLM"][1])
    # keys and values of 28 layers in bfloat16, at each of the 33,792 positions of 16 rows
    cache = 16 * 33_792 * 2 * 28 * 256 * 2
    assert plan.memory_items(replace(paper, vllm_mode=None))["generation cache"] == (0, cache)
    lora = settings_of(*LORA, "--beta", "0.1")
    assert plan.memory_items(lora)["reference model"] == (0, 0)  # TRL switches the adapter off
    assert {"use_peft": True} not in plan.memory_options(lora)


def test_half_the_rows_are_proposed_with_the_same_update(paper):
    smaller = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 16, "steps_per_generation": 32}
    assert smaller in plan.memory_options(replace(paper, per_device_train_batch_size=4))


def test_what_vllm_works_with_by_hand(paper):
    size = paper.architecture.num_parameters
    small = replace(paper, per_device_train_batch_size=1, steps_per_generation=1, vllm_tensor_parallel_size=1)
    # weights and 4,096 positions of stream, residual and feed-forward layer, all in bfloat16
    assert plan.vllm_bytes(small)[1] == 2 * size + 4096 * 2 * (2 * 1536 + 3 * 8960)
    # half of the weights, and logits of 2 x 2,048 sequences in bfloat16 and three times in float32
    large = replace(small, steps_per_generation=2048, vllm_tensor_parallel_size=2)
    assert plan.vllm_bytes(large)[1] == size + 4096 * 151_936 * (2 + 3 * 4)


def test_a_refusal_says_with_what_share_vllm_starts(paper):
    message = plan.refusal(replace(paper, vllm_gpu_memory_utilization=0.01))
    share = float(re.search(r"vllm_gpu_memory_utilization to ([\d.]+)", message)[1])
    assert plan.vllm_sequences(replace(paper, vllm_gpu_memory_utilization=share)) > 0
    assert plan.vllm_sequences(replace(paper, vllm_gpu_memory_utilization=share - 0.01)) == 0


@pytest.mark.parametrize("spare", [0.049, 0.051])
def test_a_tight_fit_is_called_tight(paper, spare):
    server = replace(paper, vllm_mode="server")
    tight = replace(server, gpu_memory=plan.peak_bytes(server)[0] / GIB / (1 - spare) / 0.95)
    (line,) = plan.verdict_lines(tight)
    assert line == "fits" if spare > 0.05 else line.startswith("fits, with only ")


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (
            [],
            {"weight_bytes": 4, "compute_bytes": 2, "max_length": 33_792, "groups_lengths": True, "needs_mask": False},
        ),
        (["--bf16", "false"], {"weight_bytes": 4, "compute_bytes": 4}),
        (["--dtype", "bfloat16", "--bf16", "false"], {"weight_bytes": 2, "compute_bytes": 2}),
        # a limit in generation_kwargs wins, as in training
        (["--generation_kwargs", '{"max_tokens": 8000}'], {"max_completion_length": 8000, "max_length": 33_792}),
        (["--max_completion_length", "8000", "--prompt_length", "1000"], {"max_length": 9000}),
        (["--use_vllm", "false"], {"vllm_mode": None}),
        # what the trainer does not group keeps a mask, even of one row
        (["--loss_type", "bnpo"], {"groups_lengths": False, "needs_mask": True}),
        (["--length_grouped_microbatches", "false"], {"groups_lengths": False}),
        (["--model_config", "dynamic.json"], {"groups_lengths": False}),
    ],
)
def test_settings_are_those_of_a_recipe_and_the_fields_that_follow(argv, expected, configs):
    settings = settings_of(*ON_32, *argv)
    assert {name: getattr(settings, name) for name in expected} == expected


def run_plan(capsys, *argv: str) -> tuple[int, str, str]:
    return main(["plan", *argv]), *capsys.readouterr()


def test_the_command_prints_batches_and_verdict(capsys):
    code, out, err = run_plan(capsys, *ON_32, "--num_iterations", "2")
    assert (code, out.splitlines()[-1]) == (0, "fits")
    assert "warning" not in out + err  # such as TRL's own of a deprecated name
    assert "512 completions, 4 policy updates of 256; at most 16,777,216 tokens" in out
    assert "38 sequences of 33,792" in out


def test_the_command_refuses_what_cannot_fit_and_its_options_are_to_paste(capsys):
    argv = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "40"]
    code, out, _ = run_plan(capsys, *argv)
    assert code == 1
    proposed = re.findall(r"^  (--\w+ \S+(?: --\w+ \S+)*): ([\d.]+) GiB(, fits)?$", out, re.MULTILINE)
    assert {bool(is_enough) for _, _, is_enough in proposed} == {True, False}
    for options, peak, is_enough in proposed:
        code, out, _ = run_plan(capsys, *argv, *options.split())
        assert code == (0 if is_enough else 1)
        assert peak in {f"{float(number):.1f}" for number in re.search(r"^sum.*$", out, re.MULTILINE)[0].split()[1:]}


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--optim", "adafactor", "adafactor"),
        ("--load_in_4bit", "true", "use_peft"),
        ("--model_config", "nowhere.json", "model_config"),
        ("--model_config", "mixtral.json", "'mixtral'"),  # for which the formulas do not hold
    ],
)
def test_mistakes_are_one_line(option, value, named, capsys, configs):
    code, _, err = run_plan(capsys, *ON_32, option, value)
    assert (code, len(err.splitlines())) == (2, 1)
    assert named in err
