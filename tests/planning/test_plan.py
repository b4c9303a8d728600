"""`leash plan`: what it adds up, refuses and proposes, and the command from end to end."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from conftest import ROOT

from leash_trl.cli.commands.plan import parse_plan, plan_settings
from leash_trl.cli.main import main
from leash_trl.planning import plan
from leash_trl.planning.plan import GIB, PAPER_MODELS


RECIPE = str(ROOT / "recipes" / "leash_1.5b_4k.yaml")
ON_32 = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "96"]
LORA_RECIPE = str(ROOT / "recipes" / "leash_1.5b_4k_lora.yaml")
LORA = ["--config", LORA_RECIPE, "--num_gpus", "1", "--gpu_memory", "24"]


def settings_of(*argv):
    """What `leash plan` plans for these words of the command line."""
    arguments, _, training_args, model_args = parse_plan(argv)
    return plan_settings(arguments, training_args, model_args)


@pytest.fixture(scope="module")
def paper():
    return settings_of(*ON_32)


@pytest.fixture
def configs(tmp_path, monkeypatch):
    """The working folder, with the configuration of a model whose positions are stretched."""
    monkeypatch.chdir(tmp_path)
    stretched = {**PAPER_MODELS["Qwen/Qwen3-4B-Thinking-2507"]}
    stretched["rope_parameters"] = {"rope_type": "dynamic", "factor": 2.0}
    Path("dynamic.json").write_text(json.dumps(stretched))


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
    num_parameters = paper.architecture.num_parameters
    biases = 1536 + 2 * 256
    norms = 2 * 1536
    layer = LAYER_MATRICES + biases + norms
    outside_layers = 2 * 151_936 * 1536 + 1536  # embedding, head, norm
    # in elements
    buffer_sizes = {
        "none": num_parameters,  # DDP's copy of the gradients
        "zero1": 5e8,  # DeepSpeed's limits
        "zero2": 5e8,
        "zero3": 1e9,
        "fsdp": 2 * outside_layers + 3 * layer,  # parameters and gradients gathered at a time
    }
    state = plan.state_sizes(replace(paper, sharding=sharding))
    assert state.weights == pytest.approx(weights * num_parameters)
    assert state.gradients == pytest.approx(gradients * num_parameters)
    assert state.optimizer == pytest.approx(optimizer * num_parameters)
    assert state.buffers == buffers * buffer_sizes[sharding]


# r 16 on all matrices of 28 layers: 16 * (in + out) each
ADAPTER_PARAMETERS = 28 * 16 * (2 * (1536 + 1536) + 2 * (1536 + 256) + 3 * (1536 + 8960))
LAYER_MATRICES = 2 * 1536**2 + 2 * 1536 * 256 + 3 * 1536 * 8960


def test_an_adapter_trains_in_float32_over_frozen_weights_in_bfloat16():
    settings = settings_of(*LORA, "--dtype", "bfloat16", "--load_in_4bit", "false")
    assert plan.state_sizes(settings) == plan.StateBytes(
        weights=2 * settings.architecture.num_parameters + 4 * ADAPTER_PARAMETERS,
        gradients=4 * ADAPTER_PARAMETERS,
        optimizer=8 * ADAPTER_PARAMETERS,
        buffers=0,
    )


def test_quantized_matrices_take_four_bits_and_a_scale():
    half = settings_of(*LORA, "--dtype", "bfloat16", "--load_in_4bit", "false")
    quantized = settings_of(*LORA, "--dtype", "bfloat16", "--load_in_4bit", "true")
    saved = (2 - 0.5 - 4 / 64) * 28 * LAYER_MATRICES  # a float32 scale for 64 weights
    state = plan.state_sizes(half)
    assert plan.state_sizes(quantized) == state._replace(weights=state.weights - saved)
    # a layer's matrices at a time are made whole
    assert plan.weight_copy_bytes(quantized, 28) == pytest.approx(2 * LAYER_MATRICES, rel=1e-3)


def test_gradients_are_freed_before_generation_and_a_reference_model_is_not(paper):
    state = plan.state_sizes(paper)
    table = plan.memory_table(replace(paper, beta=0.1))
    assert table.loc["gradients"].tolist() == [state.gradients, 0]
    assert table.loc["reference model"].tolist() == [state.weights, state.weights]


def test_vllm_holds_its_share_in_training_too_unless_it_sleeps(paper):
    share = 0.4 * 96 * GIB
    asleep = replace(paper, vllm_enable_sleep_mode=True)
    assert plan.memory_table(paper).loc["vLLM"].tolist() == pytest.approx([share, share])
    assert plan.memory_table(asleep).loc["vLLM"].tolist() == pytest.approx([0, share])


def test_without_vllm_keys_and_values_of_the_generation_batch_are_cached(paper):
    # 28 layers in bfloat16, at each of the 33,792 positions of 16 rows
    cache = 16 * 33_792 * 2 * 28 * 256 * 2
    assert plan.memory_table(replace(paper, vllm_mode=None)).loc["generation cache"].tolist() == [0, cache]


def test_an_adapter_needs_no_reference_model():
    lora = settings_of(*LORA, "--beta", "0.1")
    assert not plan.memory_table(lora).loc["reference model"].any()  # TRL switches the adapter off


def test_half_the_rows_are_proposed_with_the_same_update(paper):
    smaller = {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 16, "steps_per_generation": 32}
    assert smaller in plan.memory_saving_options(replace(paper, per_device_train_batch_size=4))


def test_what_vllm_works_with_by_hand(paper):
    num_parameters = paper.architecture.num_parameters
    small = replace(paper, per_device_train_batch_size=1, steps_per_generation=1, vllm_tensor_parallel_size=1)
    # weights and 4,096 positions of stream, residual and feed-forward layer, all in bfloat16
    assert plan.vllm_sizes(small).weights_and_forward == 2 * num_parameters + 4096 * 2 * (2 * 1536 + 3 * 8960)
    # half of the weights, and logits of 2 x 2,048 sequences in bfloat16 and three times in float32
    large = replace(small, steps_per_generation=2048, vllm_tensor_parallel_size=2)
    assert plan.vllm_sizes(large).weights_and_forward == num_parameters + 4096 * 151_936 * (2 + 3 * 4)


def test_a_refusal_says_with_what_share_vllm_starts(paper):
    message = plan.misfit_reason(replace(paper, vllm_gpu_memory_utilization=0.01))
    share = float(re.search(r"vllm_gpu_memory_utilization to ([\d.]+)", message)[1])
    assert plan.num_vllm_sequences(replace(paper, vllm_gpu_memory_utilization=share)) > 0
    assert plan.num_vllm_sequences(replace(paper, vllm_gpu_memory_utilization=share - 0.01)) == 0


def test_a_tight_fit_is_called_tight(paper):
    server = replace(paper, vllm_mode="server")
    needed = plan.peak_bytes(server) / 0.95 / GIB  # of which a twentieth is reserved
    (tight,) = plan.verdict_lines(replace(server, gpu_memory=needed / 0.96))
    (roomy,) = plan.verdict_lines(replace(server, gpu_memory=needed / 0.94))
    assert tight.startswith("fits, with only ")
    assert roomy == "fits"


@pytest.mark.parametrize(
    ("argv", "expected"),
    [
        (
            [],
            {
                "weight_dtype_bytes": 4,
                "compute_dtype_bytes": 2,
                "max_length": 33_792,
                "groups_lengths": True,
                "needs_mask": False,
            },
        ),
        (["--bf16", "false"], {"weight_dtype_bytes": 4, "compute_dtype_bytes": 4}),
        (["--dtype", "bfloat16", "--bf16", "false"], {"weight_dtype_bytes": 2, "compute_dtype_bytes": 2}),
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


def run_plan(capsys, *argv):
    """Exit code, stdout and stderr."""
    code = main(["plan", *argv])
    out, err = capsys.readouterr()
    return code, out, err


def test_the_command_prints_batches_and_verdict(capsys):
    code, out, err = run_plan(capsys, *ON_32, "--num_iterations", "2")
    assert code == 0
    assert out.splitlines()[-1] == "fits"
    assert "warning" not in out + err  # such as TRL's own of a deprecated name
    assert "512 completions, 4 policy updates of 256; at most 16,777,216 tokens" in out
    assert "38 sequences of 33,792" in out


def test_the_command_refuses_what_cannot_fit_and_its_options_are_to_paste(capsys):
    argv = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "40"]
    code, out, _ = run_plan(capsys, *argv)
    assert code == 1
    # one or more options with their values, the peak, and whether it fits
    proposed = re.findall(r"^  (--\w+ \S+(?: --\w+ \S+)*): ([\d.]+) GiB(, fits)?$", out, re.MULTILINE)
    assert {fits for _, _, fits in proposed} == {", fits", ""}
    for options, peak, fits in proposed:
        code, out, _ = run_plan(capsys, *argv, *options.split())
        assert code == (0 if fits else 1)
        _, *sums = re.search(r"^sum.*$", out, re.MULTILINE)[0].split()
        assert peak in [f"{float(number):.1f}" for number in sums]
