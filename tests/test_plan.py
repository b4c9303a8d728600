"""`leash plan`: sums by hand, what it refuses, what it proposes, and the command from end to end."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest
from transformers import LlamaConfig, MixtralConfig

from leash_trl.cli.plan import make_settings, parse
from leash_trl.planning import activations, memory
from leash_trl.planning.activations import PAPER_MODELS, MicroBatch, load_model_config, read_architecture
from leash_trl.planning.memory import GIB, Settings
from leash_trl.planning.report import verdict_lines


ROOT = Path(__file__).parent.parent
RECIPE = str(ROOT / "recipes" / "leash_1.5b_4k.yaml")
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
    max_prompt_length=1024,
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
    tied = read_architecture(LlamaConfig(**sizes, **heads, tie_word_embeddings=True))
    assert tied.num_parameters == 2 * 592 + 80 + 8
    assert tied.outer_parameters == 80 + 8


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
    settings = replace(PAPER, sharding=sharding)
    size = QWEN.num_parameters
    assert memory.weights(settings) == pytest.approx(weights * size)
    assert memory.gradients(settings) == pytest.approx(gradients * size)
    assert memory.optimizer_state(settings) == pytest.approx(optimizer * size)


def test_buffers_by_hand():
    size = QWEN.num_parameters
    layer, outer = QWEN.layer_parameters, QWEN.outer_parameters
    expected = {
        "none": 4 * size,
        "zero1": 2 * 5e8,
        "zero2": 2 * 5e8,
        "zero3": 2 * (2 * 5e8 + 1e9),
        "fsdp": 2 * (outer + 2 * layer + outer + layer),
    }
    for sharding, buffers in expected.items():
        assert memory.communication_buffers(replace(PAPER, sharding=sharding)) == buffers
    assert memory.communication_buffers(replace(PAPER, num_gpus=1)) == 0


def test_only_an_asked_for_reference_is_held():
    assert memory.items(PAPER)["reference model"] == (0, 0)
    assert memory.items(replace(PAPER, has_reference=True))["reference model"] == (4 * QWEN.num_parameters,) * 2


def test_cache_of_a_sequence_by_hand():
    # keys and values, 28 layers, 2 heads of 128, 2 bytes
    assert memory.cache_bytes(PAPER, 1000, 2) == 1000 * 2 * 28 * 256 * 2 == 28_672_000
    assert memory.vllm_sequence_bytes(PAPER) == 33792 * 28_672
    assert memory.vllm_sequence_bytes(replace(PAPER, vllm_tensor_parallel_size=2)) == 33792 * 14_336


def test_vllm_takes_its_share_of_the_complete_gpu_in_colocate_mode_only():
    assert memory.vllm_share(PAPER) == 0.4 * 96 * GIB
    assert memory.vllm_share(replace(PAPER, vllm_mode="server")) == 0
    assert memory.vllm_share(replace(PAPER, use_vllm=False)) == 0


def test_as_many_sequences_as_the_cache_holds():
    count, one = memory.vllm_sequences(PAPER), memory.vllm_sequence_bytes(PAPER)
    free = memory.vllm_share(PAPER) - memory.vllm_working_bytes(PAPER)
    assert count * one <= free < (count + 1) * one


def test_a_twentieth_of_a_gpu_is_left_free():
    assert PAPER.usable_bytes == 0.95 * 96 * GIB


def test_what_vllm_needs_by_hand():
    # weights, then 4,096 positions of twice the stream and three times the feed-forward layer, in bfloat16
    forward = 4096 * 2 * (2 * 1536 + 3 * 8960)
    assert memory.vllm_working_bytes(PAPER) == 2 * QWEN.num_parameters + forward
    # 1,024 sequences: a logit in bfloat16 and three float32 copies
    many = replace(PAPER, per_device_train_batch_size=64)
    assert memory.vllm_working_bytes(many) == 2 * QWEN.num_parameters + 1024 * 151936 * 14


@pytest.mark.parametrize(("peak", "masks"), [(activations.checkpointed_peak, 1), (activations.kept_peak, 28)])
def test_padding_adds_masks_and_repeated_keys(peak, masks):
    padded, whole = (MicroBatch(32768, 32768, is_padded) for is_padded in (True, False))
    # a byte for the mask, two in each layer that keeps its own; 10 more heads of 128 for keys and values
    added = 32768**2 * (1 + 2 * masks) + masks * 32768 * 2 * 2 * 10 * 128
    difference = peak(QWEN, padded, 4, 2, keeps_mask=True) - peak(QWEN, whole, 4, 2, keeps_mask=True)
    assert difference == pytest.approx(added)
    assert peak(QWEN, padded, 4, 2, keeps_mask=False) == peak(QWEN, whole, 4, 2, keeps_mask=False)


def test_a_refusal_says_with_what_share_vllm_starts():
    starved = replace(PAPER, vllm_gpu_memory_utilization=0.01)
    message = memory.refusal(starved)
    assert "one sequence of 33,792 tokens" in message
    share = float(re.search(r"raise vllm_gpu_memory_utilization to ([\d.]+)", message)[1])
    assert memory.vllm_sequences(replace(PAPER, vllm_gpu_memory_utilization=share)) > 0
    assert memory.vllm_sequences(replace(PAPER, vllm_gpu_memory_utilization=share - 0.01)) == 0


def test_generate_caches_the_complete_generation_batch():
    settings = replace(PAPER, use_vllm=False)
    assert memory.generate_cache(settings) == 16 * 33792 * 28672
    assert memory.generate_cache(PAPER) == 0


def test_micro_batches_by_hand():
    four = replace(PAPER, per_device_train_batch_size=4, max_prompt_length=1000, max_completion_length=31000)
    assert memory.largest_micro_batch(four) == MicroBatch(4 * 32000, 32000, is_padded=True)
    assert memory.largest_micro_batch(PAPER) == MicroBatch(33792, 33792, is_padded=False)
    # TRL pads a single row to the longest of its generation batch
    assert memory.largest_micro_batch(replace(PAPER, groups_lengths=False)).is_padded


def test_gradients_and_activations_are_gone_while_generating():
    entries = memory.items(PAPER)
    training, generating = memory.peak_bytes(PAPER)
    assert training - generating == pytest.approx(entries["gradients"][0] + entries["activations"][0])
    asleep = replace(PAPER, vllm_enable_sleep_mode=True)
    assert memory.peak_bytes(asleep)[0] == pytest.approx(training - entries["vLLM"][0])
    assert memory.peak_bytes(asleep)[1] == generating


@pytest.mark.parametrize(
    ("rows", "change"),
    [(1, {"gradient_checkpointing": False}), (1, {"groups_lengths": False}), (4, {"keeps_attention_mask": True})],
)
def test_checkpointing_grouping_and_flash_attention_each_save_memory(rows, change):
    saving = replace(PAPER, per_device_train_batch_size=rows, keeps_attention_mask=rows == 1)
    assert memory.peak_bytes(replace(saving, **change))[0] > memory.peak_bytes(saving)[0]


def test_what_fits_is_not_refused():
    assert memory.fits(PAPER)
    assert memory.refusal(PAPER) is None


def test_a_refusal_names_the_largest_item():
    tight = replace(PAPER, gpu_memory=24.0)
    largest = max(memory.items(tight), key=lambda name: memory.items(tight)[name][0])
    assert f"largest item is {largest} with" in memory.refusal(tight)


def test_proposed_changes_leave_the_policy_update_as_it_is():
    run = replace(PAPER, per_device_train_batch_size=8, gradient_accumulation_steps=1, gradient_checkpointing=False)
    changed = memory.changes(run)
    assert changed.keys() > {"--gradient_checkpointing true", "--sharding fsdp", "--vllm_mode server"}
    for settings in changed.values():
        assert settings.update_completions == run.update_completions
        assert settings.generated_completions == run.generated_completions
    assert not any("sharding" in options for options in memory.changes(replace(run, num_gpus=1)))


def test_the_papers_step_by_hand():
    assert (PAPER.generated_completions, PAPER.update_completions) == (512, 256)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_gpus": 0}, "--num_gpus is 0"),
        ({"gpu_memory": -1.0}, "--gpu_memory is -1.0"),
        ({"gpu_memory": float("nan")}, "--gpu_memory is nan"),
        ({"max_prompt_length": 0}, "--prompt_length is 0"),
        ({"max_completion_length": float("inf")}, "--max_completion_length is inf"),
    ],
)
def test_settings_out_of_range_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(PAPER, **change)


def test_models_that_the_formulas_do_not_hold_for_are_refused():
    with pytest.raises(ValueError, match="model_type is 'mixtral'"):
        read_architecture(MixtralConfig())


def plan(capsys, *argv: str) -> tuple[int, str, str]:
    from leash_trl.cli.main import main

    code = main(["plan", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def test_the_command_plans_the_papers_recipe(capsys):
    code, out, _ = plan(capsys, "--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "96")
    assert code == 0
    assert "1,777,088,000 parameters on 32 GPUs of 96 GiB" in out
    assert "512 completions, 2 policy updates of 256; at most 16,777,216 tokens" in out
    assert "sharding none; float32 weights, bfloat16 autocast" in out
    assert "vLLM holds 38 sequences of 33,792 tokens at once" in out
    assert out.rstrip().endswith("fits")


def test_a_limit_in_generation_kwargs_wins_as_in_training(capsys):
    argv = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "96"]
    out = plan(capsys, *argv, "--generation_kwargs", '{"max_tokens": 8000}', "--prompt_length", "1000")[1]
    assert "at most 4,096,000 tokens, 8,000 each" in out
    assert "largest micro-batch: 9,000 tokens" in out


def test_the_command_refuses_what_cannot_fit_and_its_options_are_to_paste(capsys):
    argv = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "40"]
    code, out, _ = plan(capsys, *argv)
    assert code == 1
    assert "does not fit: training takes" in out
    proposed = re.findall(r"^  (--\w+ \S+(?: --\w+ \S+)*): ([\d.]+) GiB(, fits)?$", out, re.MULTILINE)
    assert {bool(is_enough) for _, _, is_enough in proposed} == {True, False}
    for options, peak, is_enough in proposed:
        code, out, _ = plan(capsys, *argv, *options.split())
        assert code == (0 if is_enough else 1)
        assert peak in {f"{float(number):.1f}" for number in re.search(r"^sum.*$", out, re.MULTILINE)[0].split()[1:]}


def test_fields_of_the_recipe_may_be_overridden(capsys):
    argv = ["--config", RECIPE, "--num_gpus", "4", "--gpu_memory", "96", "--steps_per_generation", "2"]
    # 4 * 1 * 2 completions are one group: only a parser that knows the number of GPUs accepts it
    _, out, _ = plan(capsys, *argv)
    assert "generation batch: 8 completions" in out


def test_sharded_weights_are_computed_in_bfloat16_without_autocast(capsys):
    argv = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "96"]
    assert "float32 weights, computed in bfloat16" in plan(capsys, *argv, "--sharding", "fsdp")[1]
    assert "bfloat16 weights, no autocast" in plan(capsys, *argv, "--dtype", "bfloat16", "--bf16", "false")[1]


def test_a_deprecated_name_inside_trl_is_no_warning_of_the_plan(recwarn, capsys):
    _, out, _ = plan(capsys, "--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "96")
    assert not [warning for warning in recwarn if "gradient_checkpointing" in str(warning.message)]
    assert "warning" not in out


@pytest.mark.parametrize("spare", [0.049, 0.051])
def test_a_tight_fit_is_called_tight(spare):
    server = replace(PAPER, vllm_mode="server")
    tight = replace(server, gpu_memory=memory.peak_bytes(server)[0] / GIB / (1 - spare) / 0.95)
    left = f"{spare * tight.usable_bytes / GIB:.1f} GiB"
    called = f"fits, with only {left} to spare: the estimate was checked on CPUs only"
    assert verdict_lines(tight) == [called if spare < 0.05 else "fits"]


def is_grouped(tmp_path, argv: list[str], model: dict) -> bool:
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**PAPER_MODELS["Qwen/Qwen3-4B-Thinking-2507"], **model}))
    common = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "141", "--model_config", str(config)]
    return make_settings(*parse([*common, *argv])).groups_lengths


@pytest.mark.parametrize(
    ("argv", "model"),
    [
        (["--loss_type", "bnpo"], {}),
        (["--entropy_coef", "0.01"], {}),
        (["--use_adaptive_entropy", "true"], {}),
        (["--top_entropy_quantile", "0.2"], {}),
        (["--use_liger_kernel", "true"], {}),
        (["--length_grouped_microbatches", "false"], {}),
        ([], {"output_router_logits": False, "router_aux_loss_coef": 0.001}),
        (["--router_aux_loss_coef", "0.1"], {"output_router_logits": False}),
        ([], {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}),
        ([], {"rope_scaling": {"type": "longrope", "factor": 2.0, "short_factor": [1] * 64, "long_factor": [1] * 64}}),
    ],
)
def test_what_the_trainer_does_not_group_is_not_planned_as_grouped(argv, model, tmp_path):
    assert not is_grouped(tmp_path, argv, model)


@pytest.mark.parametrize(
    ("argv", "model"),
    [
        ([], {"rope_parameters": {"rope_type": "yarn", "factor": 2.0}}),
        ([], {"output_router_logits": False}),
        (["--router_aux_loss_coef", "0"], {"output_router_logits": False, "router_aux_loss_coef": 0.001}),
    ],
)
def test_what_the_trainer_groups_is_planned_as_grouped(argv, model, tmp_path):
    assert is_grouped(tmp_path, argv, model)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--num_gpus", "0"], "--num_gpus is 0"),
        (["--num_gpus", "32", "--use_peft", "true"], "use_peft is set"),
        (["--num_gpus", "32", "--optim", "adafactor"], "optim is 'adafactor'"),
        (["--num_gpus", "32", "--model_config", "nowhere.json"], "nowhere.json: no such file"),
        (["--num_gpus", "32", "--prompt_length", "0"], "--prompt_length is 0, but must be positive"),
        (["--num_gpus", "3", "--steps_per_generation", "1"], "set steps_per_generation to a multiple of"),
    ],
)
def test_mistakes_are_one_line_with_a_remedy(capsys, argv, message):
    code, _, err = plan(capsys, "--config", RECIPE, "--gpu_memory", "96", *argv)
    assert code == 2
    assert re.search(message, err)


def test_a_mistake_does_not_hide_what_was_warned_of(capsys):
    options = ["--config", RECIPE, "--gpu_memory", "96", "--num_gpus", "8", "--use_peft", "true"]
    code, _, err = plan(capsys, *options)
    assert code == 2
    assert "warning: 128 completions a generation batch, 64 an update" in err


@pytest.mark.parametrize(
    ("content", "message"),
    [("{", "not a valid JSON"), ("[]", "Unrecognized model"), ('{"model_type": "llama", "hidden_size": "x"}', "int")],
)
def test_a_model_config_that_is_none_is_refused(capsys, tmp_path, content, message):
    config = tmp_path / "config.json"
    config.write_text(content)
    argv = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "96", "--model_config", str(config)]
    code, _, err = plan(capsys, *argv)
    assert code == 2
    assert f"--model_config {config}: " in err
    assert message in err


def test_a_config_json_stands_for_any_model(capsys, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**PAPER_MODELS["Qwen/Qwen3-4B-Thinking-2507"]}))
    argv = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "96", "--model_config", str(config)]
    _, out, _ = plan(capsys, *argv, "--model_name_or_path", "someone/something")
    assert "someone/something: 4,022,468,096 parameters" in out
