"""`leash plan`: sums by hand, what it refuses, what it proposes, and the command from end to end."""

import json
import re
from dataclasses import replace

import pytest
from conftest import ROOT
from transformers import LlamaConfig, MixtralConfig

from leash_trl.cli.plan import make_settings, parse
from leash_trl.planning import plan
from leash_trl.planning.plan import GIB, PAPER_MODELS, Settings, load_model_config, read_architecture


RECIPE = str(ROOT / "recipes" / "leash_1.5b_4k.yaml")
ON_32 = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "96"]
QWEN = read_architecture(load_model_config("deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B", None))
PAPER = Settings(
    architecture=QWEN,
    num_gpus=32,
    gpu_memory=96.0,
    sharding="none",
    weight_bytes=4,
    bf16=True,
    gradient_checkpointing=True,
    has_reference=False,
    keeps_attention_mask=True,
    groups_lengths=True,
    per_device_train_batch_size=1,
    gradient_accumulation_steps=8,
    steps_per_generation=16,
    prompt_length=1024,
    max_completion_length=32768,
    use_vllm=True,
    vllm_mode="colocate",
    vllm_gpu_memory_utilization=0.4,
    vllm_enable_sleep_mode=False,
    vllm_tensor_parallel_size=1,
    vllm_max_model_length=33792,
)


def test_parameters_by_hand():
    sizes = {"hidden_size": 8, "intermediate_size": 16, "num_hidden_layers": 2, "vocab_size": 10}
    heads = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 2}
    small = read_architecture(LlamaConfig(**sizes, **heads, tie_word_embeddings=False))
    # a layer: 8*8 queries, 8*4 keys, 8*4 values, 8*8 output, 3*8*16 feed-forward, 2*8 norms
    assert small.linear_parameters == 64 + 32 + 32 + 64 + 384
    assert small.layer_parameters == small.linear_parameters + 16
    # embedding and head 10*8 each, last norm 8
    assert small.num_parameters == 2 * 592 + 160 + 8


@pytest.mark.parametrize(
    ("sharding", "weights", "gradients", "optimizer"),
    [
        ("none", 4, 4, 8),
        ("zero1", 2, 2, 16 / 32),
        ("zero2", 2, 2 / 32, 16 / 32),
        ("zero3", 2 / 32, 2 / 32, 16 / 32),
        ("fsdp", 4 / 32, 4 / 32, 8 / 32),
    ],
)
def test_bytes_per_parameter_by_hand(sharding, weights, gradients, optimizer):
    expected = [size * QWEN.num_parameters for size in (weights, gradients, optimizer)]
    assert plan.held_bytes(replace(PAPER, sharding=sharding)) == pytest.approx(expected)


def test_an_adapter_alone_has_gradients_and_optimizer_state():
    adapter = replace(QWEN, adapter_parameters=1000)
    sizes = {"none": (4, 4, 8), "zero2": (2, 4 / 32, 16 / 32), "fsdp": (4 / 32, 4 / 32, 8 / 32)}
    for sharding, (base, gradients, optimizer) in sizes.items():
        weights = base * QWEN.num_parameters + (4 / 32 if sharding == "fsdp" else 4) * 1000
        run = replace(PAPER, architecture=adapter, sharding=sharding)
        assert plan.held_bytes(run) == pytest.approx([weights, gradients * 1000, optimizer * 1000])
    assert plan.communication_buffers(replace(PAPER, architecture=adapter)) == 4000


def test_buffers_by_hand():
    size = QWEN.num_parameters
    layer = QWEN.layer_parameters
    outer = size - 28 * layer
    expected = {
        "none": 4 * size,
        "zero1": 2 * 5e8,
        "zero2": 2 * 5e8,
        "zero3": 2 * (2 * 5e8 + 1e9),
        "fsdp": 2 * (outer + 2 * layer + outer + layer),
    }
    for sharding, buffers in expected.items():
        assert plan.communication_buffers(replace(PAPER, sharding=sharding)) == buffers
    assert plan.communication_buffers(replace(PAPER, num_gpus=1)) == 0


def test_only_an_asked_for_reference_is_held():
    assert plan.items(PAPER)["reference model"] == (0, 0)
    assert plan.items(replace(PAPER, has_reference=True))["reference model"] == (4 * QWEN.num_parameters,) * 2


def test_caches_by_hand():
    # keys and values, 28 layers, 2 heads of 128, 2 bytes
    assert plan.cache_bytes(PAPER, 1000, 2) == 1000 * 2 * 28 * 256 * 2
    assert plan.vllm_sequence_bytes(PAPER) == 33792 * 28_672
    assert plan.vllm_sequence_bytes(replace(PAPER, vllm_tensor_parallel_size=2)) == 33792 * 14_336
    # transformers' generate caches the complete generation batch
    assert plan.items(replace(PAPER, use_vllm=False))["generation cache"] == (0, 16 * 33792 * 28672)
    assert plan.items(PAPER)["generation cache"] == (0, 0)


def test_what_vllm_takes_and_needs_by_hand():
    assert plan.vllm_share(PAPER) == 0.4 * 96 * GIB
    assert plan.vllm_share(replace(PAPER, vllm_mode="server")) == 0
    assert plan.vllm_share(replace(PAPER, use_vllm=False)) == 0
    # weights, then 4,096 positions of twice the stream and three times the feed-forward layer, in bfloat16
    forward = 4096 * 2 * (2 * 1536 + 3 * 8960)
    assert plan.vllm_working_bytes(PAPER) == 2 * QWEN.num_parameters + forward
    # 1,024 sequences: a logit in bfloat16 and three float32 copies
    many = replace(PAPER, per_device_train_batch_size=64)
    assert plan.vllm_working_bytes(many) == 2 * QWEN.num_parameters + 1024 * 151936 * 14
    count, one = plan.vllm_sequences(PAPER), plan.vllm_sequence_bytes(PAPER)
    free = plan.vllm_share(PAPER) - plan.vllm_working_bytes(PAPER)
    assert count * one <= free < (count + 1) * one


@pytest.mark.parametrize(("checkpointing", "masks"), [(True, 1), (False, 28)])
def test_padding_adds_masks_and_repeated_keys(checkpointing, masks):
    whole = replace(PAPER, gradient_checkpointing=checkpointing, prompt_length=1, max_completion_length=32767)
    padded = replace(whole, groups_lengths=False)  # TRL pads a single row to the longest of its generation batch
    # a byte for the mask, two in each layer that keeps its own; 10 more heads of 128 for keys and values
    added = 32768**2 * (1 + 2 * masks) + masks * 32768 * 2 * 2 * 10 * 128
    assert plan.activation_peak(padded) - plan.activation_peak(whole) == added
    assert plan.activation_peak(replace(padded, keeps_attention_mask=False)) == plan.activation_peak(whole)
    assert replace(whole, per_device_train_batch_size=4).needs_mask
    assert replace(whole, per_device_train_batch_size=4).tokens == 4 * 32768


def test_a_refusal_says_with_what_share_vllm_starts():
    message = plan.refusal(replace(PAPER, vllm_gpu_memory_utilization=0.01))
    share = float(re.search(r"vllm_gpu_memory_utilization to ([\d.]+)", message)[1])
    assert plan.vllm_sequences(replace(PAPER, vllm_gpu_memory_utilization=share)) > 0
    assert plan.vllm_sequences(replace(PAPER, vllm_gpu_memory_utilization=share - 0.01)) == 0


def test_gradients_and_activations_are_gone_while_generating():
    entries = plan.items(PAPER)
    training, generating = plan.peak_bytes(PAPER)
    assert training - generating == pytest.approx(entries["gradients"][0] + entries["activations"][0])
    asleep = replace(PAPER, vllm_enable_sleep_mode=True)
    assert plan.peak_bytes(asleep) == (pytest.approx(training - entries["vLLM"][0]), generating)


def test_a_refusal_names_the_largest_item():
    assert plan.refusal(PAPER) is None
    tight = replace(PAPER, gpu_memory=24.0)
    largest = max(plan.items(tight), key=lambda name: plan.items(tight)[name][0])
    assert largest in plan.refusal(tight)


def test_proposed_changes_leave_the_policy_update_as_it_is():
    run = replace(PAPER, per_device_train_batch_size=8, gradient_accumulation_steps=1, gradient_checkpointing=False)
    changed = plan.changes(run)
    assert changed.keys() > {"--gradient_checkpointing true", "--sharding fsdp", "--vllm_mode server"}
    for settings in changed.values():
        rows = settings.per_device_train_batch_size
        assert (rows * settings.gradient_accumulation_steps, rows * settings.steps_per_generation) == (8, 8 * 16)
    assert not any("sharding" in options for options in plan.changes(replace(run, num_gpus=1)))


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("gpu_memory", -1.0),
        ("gpu_memory", float("nan")),
        ("prompt_length", 0),
        ("max_completion_length", float("inf")),
    ],
)
def test_settings_out_of_range_are_refused(field, value):
    with pytest.raises(ValueError, match=f"{field} is {value}"):
        replace(PAPER, **{field: value})


def test_models_that_the_formulas_do_not_hold_for_are_refused():
    with pytest.raises(ValueError, match="'mixtral'"):
        read_architecture(MixtralConfig())


@pytest.mark.parametrize("spare", [0.049, 0.051])
def test_a_tight_fit_is_called_tight(spare):
    server = replace(PAPER, vllm_mode="server")
    tight = replace(server, gpu_memory=plan.peak_bytes(server)[0] / GIB / (1 - spare) / 0.95)
    (line,) = plan.verdict_lines(tight)
    assert line.startswith("fits")
    assert (line != "fits") == (spare < 0.05)


def run_plan(capsys, *argv: str) -> tuple[int, str, str]:
    from leash_trl.cli.main import main

    code = main(["plan", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_plans_the_papers_recipe(capsys):
    code, out, _ = run_plan(capsys, *ON_32)
    assert code == 0
    assert "1,777,088,000 parameters on 32 GPUs of 96 GiB" in out
    assert "512 completions, 2 policy updates of 256; at most 16,777,216 tokens" in out
    assert "sharding none; float32 weights, bfloat16 autocast" in out
    assert "vLLM holds 38 sequences of 33,792 tokens at once" in out
    assert "warning" not in out  # such as TRL's own of a deprecated name
    assert out.rstrip().endswith("fits")


def test_the_command_plans_the_lora_recipe_for_the_card_that_it_names(capsys):
    recipe = str(ROOT / "recipes" / "leash_1.5b_4k_lora.yaml")
    code, out, _ = run_plan(capsys, "--config", recipe, "--num_gpus", "1", "--gpu_memory", "24", "--beta", "0.1")
    assert code == 0
    # r 16 on all matrices of 28 layers: 16 * (in + out) each
    assert f"{28 * 16 * (2 * 3072 + 2 * 1792 + 3 * 10496):,} of an adapter" in out
    assert "reference model" not in out  # TRL switches the adapter off


def test_a_limit_in_generation_kwargs_wins_as_in_training(capsys):
    out = run_plan(capsys, *ON_32, "--generation_kwargs", '{"max_tokens": 8000}', "--prompt_length", "1000")[1]
    assert "at most 4,096,000 tokens, 8,000 each" in out
    assert "largest micro-batch: 9,000 tokens" in out


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


def test_fields_of_the_recipe_may_be_overridden(capsys):
    argv = ["--config", RECIPE, "--num_gpus", "4", "--gpu_memory", "96", "--steps_per_generation", "2"]
    # 4 * 1 * 2 completions are one group: only a parser that knows the number of GPUs accepts it
    assert "generation batch: 8 completions" in run_plan(capsys, *argv)[1]


def test_sharded_weights_are_computed_in_bfloat16_without_autocast(capsys):
    assert "float32 weights, computed in bfloat16" in run_plan(capsys, *ON_32, "--sharding", "fsdp")[1]
    assert "bfloat16 weights, no autocast" in run_plan(capsys, *ON_32, "--dtype", "bfloat16", "--bf16", "false")[1]


@pytest.mark.parametrize(
    ("argv", "model", "is_grouped"),
    [
        (["--loss_type", "bnpo"], {}, False),
        (["--use_adaptive_entropy", "true"], {}, False),
        (["--length_grouped_microbatches", "false"], {}, False),
        ([], {"output_router_logits": False, "router_aux_loss_coef": 0.001}, False),
        (["--router_aux_loss_coef", "0.1"], {"output_router_logits": False}, False),
        ([], {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, False),
        ([], {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}, True),
        ([], {"output_router_logits": False}, True),
        (["--router_aux_loss_coef", "0"], {"output_router_logits": False, "router_aux_loss_coef": 0.001}, True),
    ],
)
def test_what_the_trainer_groups_is_planned_as_grouped(argv, model, is_grouped, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**PAPER_MODELS["Qwen/Qwen3-4B-Thinking-2507"], **model}))
    assert make_settings(*parse([*ON_32, "--model_config", str(config), *argv])).groups_lengths == is_grouped


@pytest.mark.parametrize(
    ("argv", "parts"),
    [
        (["--num_gpus", "0"], ["--num_gpus is 0"]),
        (["--num_gpus", "32", "--optim", "adafactor"], ["optim is 'adafactor'"]),
        (["--num_gpus", "32", "--load_in_4bit", "true"], ["load_in_4bit"]),
        (["--num_gpus", "32", "--model_config", "nowhere.json"], ["nowhere.json", "model_config"]),
        (["--num_gpus", "32", "--prompt_length", "0"], ["prompt_length is 0"]),
    ],
)
def test_mistakes_are_one_line(capsys, argv, parts):
    code, _, err = run_plan(capsys, "--config", RECIPE, "--gpu_memory", "96", *argv)
    assert code == 2
    assert all(part in err for part in parts)
    assert len(err.splitlines()) == 1


def test_a_config_json_stands_for_any_model(capsys, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps(PAPER_MODELS["Qwen/Qwen3-4B-Thinking-2507"]))
    out = run_plan(capsys, *ON_32, "--model_config", str(config), "--model_name_or_path", "someone/something")[1]
    assert "someone/something: 4,022,468,096 parameters" in out
