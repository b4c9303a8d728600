"""`leash plan`: what it adds up, refuses and proposes, and the command from end to end."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT

from leash_trl.cli.main import main
from leash_trl.cli.plan import make_settings, parse_plan
from leash_trl.planning import plan
from leash_trl.planning.plan import GIB, PAPER_MODELS


RECIPE = str(ROOT / "recipes" / "leash_1.5b_4k.yaml")
ON_32 = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "96"]


@pytest.fixture(scope="module")
def paper():
    return make_settings(*parse_plan(ON_32))


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
    *held, moved = plan.held_bytes(replace(paper, sharding=sharding))
    assert held == pytest.approx([weights * size, gradients * size, optimizer * size])
    assert moved == buffers * limits[sharding]


def test_a_refusal_says_with_what_share_vllm_starts(paper):
    message = plan.refusal(replace(paper, vllm_gpu_memory_utilization=0.01))
    share = float(re.search(r"vllm_gpu_memory_utilization to ([\d.]+)", message)[1])
    assert plan.vllm_sequences(replace(paper, vllm_gpu_memory_utilization=share)) > 0
    assert plan.vllm_sequences(replace(paper, vllm_gpu_memory_utilization=share - 0.01)) == 0


def test_what_vllm_works_with_by_hand(paper):
    small = replace(paper, per_device_train_batch_size=1, steps_per_generation=1, vllm_tensor_parallel_size=1)
    _, working, _ = plan.vllm_bytes(small)
    # weights and 4,096 positions of stream, residual and feed-forward layer, all in bfloat16
    assert working == 2 * paper.architecture.num_parameters + 4096 * 2 * (2 * 1536 + 3 * 8960)


@pytest.mark.parametrize("spare", [0.049, 0.051])
def test_a_tight_fit_is_called_tight(paper, spare):
    server = replace(paper, vllm_mode="server")
    tight = replace(server, gpu_memory=plan.peak_bytes(server)[0] / GIB / (1 - spare) / 0.95)
    (line,) = plan.verdict_lines(tight)
    assert line == "fits" if spare > 0.05 else line.startswith("fits, with only ")


def run_plan(capsys, *argv: str) -> tuple[int, str, str]:
    code = main(["plan", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


LORA = ["--config", str(ROOT / "recipes" / "leash_1.5b_4k_lora.yaml"), "--num_gpus", "1", "--gpu_memory", "24"]


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (
            ON_32,
            [
                "float32 weights, computed in bfloat16",
                "512 completions, 2 policy updates of 256; at most 16,777,216 tokens",
                "38 sequences of 33,792",
            ],
        ),
        # r 16 on all matrices of 28 layers: 16 * (in + out) each
        (LORA, [f"{28 * 16 * (2 * 3072 + 2 * 1792 + 3 * 10496):,} of an adapter"]),
        # a limit in generation_kwargs wins, as in training
        (
            [*ON_32, "--generation_kwargs", '{"max_tokens": 8000}', "--prompt_length", "1000"],
            ["at most 4,096,000 tokens, 8,000 each", "largest micro-batch: 9,000 tokens"],
        ),
        # 32 * 1 * 2 completions are 4 groups
        ([*ON_32, "--steps_per_generation", "2"], ["generation batch: 64 completions"]),
        ([*ON_32, "--dtype", "bfloat16", "--bf16", "false"], ["bfloat16 weights"]),
    ],
)
def test_the_command_plans_a_recipe_with_the_fields_that_follow(capsys, argv, parts):
    code, out, _ = run_plan(capsys, *argv)
    assert code == 0
    assert all(part in out for part in parts)
    assert "warning" not in out  # such as TRL's own of a deprecated name
    assert out.splitlines()[-1].startswith("fits")


def item(out: str, name: str) -> list[float]:
    return [float(number) for number in re.search(rf"^{name} .*$", out, re.MULTILINE)[0].split()[len(name.split()) :]]


def test_an_adapters_weights_train_and_quantised_ones_take_four_bits_and_a_scale(capsys):
    adapter, matrices = 18_464_768, 28 * (2 * 1536**2 + 2 * 1536 * 256 + 3 * 1536 * 8960)
    plain, quantised = (run_plan(capsys, *LORA, *more)[1] for more in ((), ("--load_in_4bit", "true")))
    for out in (plain, quantised):
        assert item(out, "optimizer state")[0] == pytest.approx(2 * 4 * adapter / GIB, abs=0.005)
    weights = [item(out, "parameters")[0] for out in (plain, quantised)]
    assert weights[0] == pytest.approx(4 * (1_777_088_000 + adapter) / GIB, abs=0.005)
    assert weights[0] - weights[1] == pytest.approx((4 - 0.5 - 4 / 64) * matrices / GIB, abs=0.01)


def test_lora_is_named_where_all_weights_do_not_fit_and_needs_no_reference_model(capsys):
    code, out, _ = run_plan(capsys, *LORA, "--use_peft", "false", "--vllm_mode", "server")
    assert code == 1
    assert re.search(r"^  --use_peft true: [\d.]+ GiB, fits$", out, re.MULTILINE)
    out = run_plan(capsys, *LORA, "--beta", "0.1")[1]
    assert "--use_peft" not in out
    assert "reference model" not in out  # TRL switches the adapter off


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
    ("argv", "model", "is_grouped"),
    [
        (["--loss_type", "bnpo"], {}, False),
        (["--length_grouped_microbatches", "false"], {}, False),
        ([], {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, False),
        ([], {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, True),
    ],
)
def test_what_the_trainer_groups_is_planned_as_grouped(argv, model, is_grouped, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**PAPER_MODELS["Qwen/Qwen3-4B-Thinking-2507"], **model}))
    settings = make_settings(*parse_plan([*ON_32, "--model_config", str(config), *argv]))
    assert settings.groups_lengths == is_grouped
    assert settings.needs_mask != is_grouped  # of one row


@pytest.mark.parametrize(
    ("option", "value", "named"),
    [
        ("--optim", "adafactor", "adafactor"),
        ("--load_in_4bit", "true", "use_peft"),
        ("--model_config", "nowhere.json", "model_config"),
        ("--model_config", "mixtral.json", "'mixtral'"),  # for which the formulas do not hold
    ],
)
def test_mistakes_are_one_line(option, value, named, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mixtral.json").write_text('{"model_type": "mixtral"}')
    code, _, err = run_plan(capsys, *ON_32, option, value)
    assert (code, len(err.splitlines())) == (2, 1)
    assert named in err
