"""`leash plan`: sums by hand, what it refuses, what it proposes, and the command from end to end."""

import json
import re
from dataclasses import replace
from pathlib import Path

import pytest

from leash_trl.planning import activations, memory, rollout_memory, states
from leash_trl.planning.architecture import PAPER_MODELS, Architecture, read_architecture
from leash_trl.planning.measured_rates import read_rates
from leash_trl.planning.micro_batches import MicroBatch, grouped_micro_batch, least_cap_bound, stock_micro_batch
from leash_trl.planning.settings import GIB, Settings
from leash_trl.planning.throughput import step_size, step_time


ROOT = Path(__file__).parent.parent
QWEN = read_architecture(PAPER_MODELS["deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B"])
SMALL = Architecture(
    hidden_size=8,
    intermediate_size=16,
    num_layers=2,
    num_heads=4,
    num_kv_heads=2,
    head_dim=2,
    vocab_size=10,
    is_tied=False,
    num_biases=0,
    has_query_key_norm=False,
)
PAPER = Settings(
    architecture=QWEN,
    num_gpus=32,
    gpu_memory=96.0,
    headroom=0.05,
    sharding="none",
    weight_bytes=4,
    bf16=True,
    gradient_checkpointing=True,
    has_reference=False,
    keeps_attention_mask=True,
    groups_lengths=True,
    reasons_against_grouping=(),
    per_device_train_batch_size=1,
    gradient_accumulation_steps=8,
    steps_per_generation=16,
    num_iterations=1,
    max_prompt_length=1024,
    max_completion_length=32768,
    mean_completion_length=8600,
    use_vllm=True,
    vllm_mode="colocate",
    vllm_gpu_memory_utilization=0.4,
    vllm_enable_sleep_mode=False,
    vllm_tensor_parallel_size=1,
    vllm_max_model_length=33792,
)


def test_parameters_by_hand():
    # a layer: 8*8 queries, 8*4 keys, 8*4 values, 8*8 output, 3*8*16 feed-forward, 2*8 norms
    assert SMALL.layer_parameters == 64 + 32 + 32 + 64 + 384 + 16
    # embedding and head 10*8 each, last norm 8
    assert SMALL.num_parameters == 2 * 592 + 160 + 8
    assert replace(SMALL, is_tied=True).num_parameters == 2 * 592 + 80 + 8


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
    assert states.weights(settings) == pytest.approx(weights * size)
    assert states.gradients(settings) == pytest.approx(gradients * size)
    assert states.optimizer_state(settings) == pytest.approx(optimizer * size)


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
        assert states.communication_buffers(replace(PAPER, sharding=sharding)) == buffers
    assert states.communication_buffers(replace(PAPER, num_gpus=1)) == 0


def test_only_an_asked_for_reference_is_held():
    assert states.reference_weights(PAPER) == 0
    assert states.reference_weights(replace(PAPER, has_reference=True)) == 4 * QWEN.num_parameters


def test_cache_of_a_token_by_hand():
    # keys and values, 28 layers, 2 heads of 128, 2 bytes
    assert rollout_memory.cache_bytes_per_token(PAPER) == 2 * 28 * 256 * 2
    assert rollout_memory.sequence_cache_bytes(PAPER, 1000) == 28_672_000
    assert rollout_memory.sequence_cache_bytes(replace(PAPER, vllm_tensor_parallel_size=2), 1000) == 14_336_000


def test_vllm_takes_its_share_of_the_whole_gpu_in_colocate_mode_only():
    assert rollout_memory.vllm_share(PAPER) == 0.4 * 96 * GIB
    assert rollout_memory.vllm_share(replace(PAPER, vllm_mode="server")) == 0
    assert rollout_memory.vllm_share(replace(PAPER, use_vllm=False)) == 0


def test_as_many_sequences_as_the_cache_holds():
    count = rollout_memory.concurrent_sequences(PAPER, 33792)
    one = rollout_memory.sequence_cache_bytes(PAPER, 33792)
    assert count * one <= rollout_memory.cache_bytes(PAPER) < (count + 1) * one


def test_headroom_is_left_free():
    assert replace(PAPER, headroom=0.25).usable_bytes == 72 * GIB


def test_what_vllm_needs_by_hand():
    # weights, then 4,096 positions of twice the stream and three times the feed-forward layer, in bfloat16
    forward = 4096 * 2 * (2 * 1536 + 3 * 8960)
    assert rollout_memory.vllm_working_bytes(PAPER) == 2 * QWEN.num_parameters + forward
    # 1,024 sequences: a logit in bfloat16 and three float32 copies
    many = replace(PAPER, per_device_train_batch_size=64)
    assert rollout_memory.vllm_working_bytes(many) == 2 * QWEN.num_parameters + 1024 * 151936 * 14


@pytest.mark.parametrize(("peak", "masks"), [(activations.checkpointed_peak, 1), (activations.kept_peak, 28)])
def test_padding_adds_masks_and_repeated_keys(peak, masks):
    padded, whole = (MicroBatch(32768.0, 32768, is_padded) for is_padded in (True, False))
    # a byte for the mask, two in each layer that keeps its own; 10 more heads of 128 for keys and values
    added = 32768**2 * (1 + 2 * masks) + masks * 32768 * 2 * 2 * 10 * 128
    difference = peak(QWEN, padded, 4, 2, keeps_mask=True) - peak(QWEN, whole, 4, 2, keeps_mask=True)
    assert difference == pytest.approx(added)
    assert peak(QWEN, padded, 4, 2, keeps_mask=False) == peak(QWEN, whole, 4, 2, keeps_mask=False)


def test_vllm_starts_with_its_smallest_share_and_not_below():
    share = rollout_memory.smallest_vllm_share(PAPER)
    assert memory.vllm_starts(replace(PAPER, vllm_gpu_memory_utilization=share))
    assert not memory.vllm_starts(replace(PAPER, vllm_gpu_memory_utilization=share - 0.01))


def test_generate_caches_the_whole_generation_batch():
    settings = replace(PAPER, use_vllm=False)
    assert rollout_memory.generate_cache(settings) == 16 * 33792 * 28672
    assert rollout_memory.generate_cache(PAPER) == 0


def test_micro_batches_by_hand():
    four = replace(PAPER, per_device_train_batch_size=4, max_prompt_length=1000, max_completion_length=31000)
    assert stock_micro_batch(four) == MicroBatch(4 * 32000, 32000, is_padded=True)
    # 32 rows of 3,000 on average and 31/32 of 32,000 have 127,000 positions. After k rows a run of 64,000 surely holds
    # 64000 // 32000 rows, or 64000 * (k + 1) // 127000 if that is more: 2, 2, 2, 3, 5, 7, 11. Eight of 63,999 hold
    # 1, 1, 1, 2, 3, 4, 6, 9
    short = replace(four, mean_completion_length=2000)
    assert least_cap_bound(32, 8, 127_000, 32_000) == 64_000
    assert grouped_micro_batch(short).tokens == 1.25 * 64_000
    assert grouped_micro_batch(replace(four, mean_completion_length=31000)).tokens == 4 * 32000
    assert grouped_micro_batch(PAPER) == MicroBatch(33792, 33792, is_padded=False)


@pytest.mark.parametrize(
    ("num_rows", "num_parts", "tokens", "longest", "cap"),
    [
        (4, 2, 10, 4, 8),  # 2 and 2 rows, not one more
        (8, 2, 1000, 900, 2000),  # 2 rows, then 2000 * 3 // 1000 = 6
        (26, 16, 100, 10, 20),  # 16 runs of 19 would do, but one is kept for runs with too many rows
    ],
)
def test_least_cap_bound_by_hand(num_rows, num_parts, tokens, longest, cap):
    assert least_cap_bound(num_rows, num_parts, tokens, longest) == cap


@pytest.mark.parametrize(("num_gpus", "cap"), [(1, 32_000), (2, 64_000), (32, 94_000)])
def test_neighbours_on_other_gpus_lengthen_rows(num_gpus, cap):
    # 2 micro-batches of 8 rows of 2,000: 16,000 positions, with 2 GPUs 16,000 and with 32 GPUs 31,000 more. The first
    # run holds 2 rows: 32000 // 16000, 64000 // 32000, 94000 // 32000; the second 6 = 3 * cap // sum
    lengths = {"max_prompt_length": 1000, "max_completion_length": 31000, "mean_completion_length": 1000}
    two = replace(PAPER, per_device_train_batch_size=4, gradient_accumulation_steps=2, num_gpus=num_gpus, **lengths)
    assert grouped_micro_batch(two).tokens == 1.25 * cap


def test_only_micro_batches_of_one_generation_and_one_update_share_rows():
    four = replace(PAPER, per_device_train_batch_size=4, mean_completion_length=2000)
    tokens = [
        grouped_micro_batch(replace(four, gradient_accumulation_steps=steps)).tokens for steps in (1, 2, 6, 8, 24)
    ]
    # gcd with 16 steps a generation: 1, 2, 2, 8, 8
    assert tokens[0] == 4 * 33792 > tokens[1] == tokens[2] > tokens[3] == tokens[4]
    assert replace(four, gradient_accumulation_steps=24).window_completions == 32 * 4 * 8


def test_gradients_and_activations_are_gone_while_generating():
    entries = {item.name: item for item in memory.items(PAPER)}
    training, generating = memory.peak_bytes(PAPER)
    assert training - generating == pytest.approx(entries["gradients"].size + entries["activations"].size)
    asleep = replace(PAPER, vllm_enable_sleep_mode=True)
    assert memory.peak_bytes(asleep)[0] == pytest.approx(training - entries["vLLM"].size)
    assert memory.peak_bytes(asleep)[1] == generating


def test_checkpointing_flash_attention_and_grouping_each_save_memory():
    rows = replace(PAPER, per_device_train_batch_size=4)
    for change in ({"gradient_checkpointing": False}, {"groups_lengths": False}):
        assert memory.peak_bytes(replace(rows, **change))[0] > memory.peak_bytes(rows)[0]
    assert memory.peak_bytes(replace(rows, keeps_attention_mask=False))[0] < memory.peak_bytes(rows)[0]


def test_what_fits_is_not_refused():
    assert memory.fits(PAPER)
    assert memory.refusal(PAPER) is None


def test_a_refusal_names_the_largest_item():
    tight = replace(PAPER, gpu_memory=24.0)
    largest = max((item for item in memory.items(tight) if item.is_trained), key=lambda item: item.size)
    assert f"largest item is {largest.name} with" in memory.refusal(tight)


def test_a_share_too_small_for_one_sequence_is_refused():
    starved = replace(PAPER, vllm_gpu_memory_utilization=0.01)
    assert "one sequence of 33,792 tokens" in memory.refusal(starved)
    assert {"vllm_gpu_memory_utilization"} in [set(change) for change in memory.remedies(starved)]


@pytest.mark.parametrize("gpu_memory", [24.0, 40.0, 64.0])
def test_every_remedy_fits_and_no_part_of_it_is_enough(gpu_memory):
    tight = replace(PAPER, gpu_memory=gpu_memory, gradient_checkpointing=False)
    found = memory.remedies(tight)
    assert found
    for change in found:
        assert memory.fits(replace(tight, **change))
        for name in change:
            rest = {key: value for key, value in change.items() if key != name}
            assert not memory.fits(replace(tight, **rest))


def test_remedies_leave_the_policy_update_as_it_is():
    tight = replace(PAPER, gpu_memory=40.0, per_device_train_batch_size=8, gradient_accumulation_steps=1)
    for change in memory.remedies(replace(tight, groups_lengths=False)):
        assert step_size(replace(tight, **change)) == step_size(tight)
    halved = [change for change in memory.remedies(tight) if "per_device_train_batch_size" in change]
    assert all(change["gradient_accumulation_steps"] == 2 for change in halved)


def test_grouping_is_not_proposed_where_the_trainer_refuses_it():
    rows = replace(PAPER, gpu_memory=141.0, per_device_train_batch_size=4, mean_completion_length=2000)
    tight = replace(rows, groups_lengths=False)
    assert {"groups_lengths": True} in memory.remedies(tight)
    refused = replace(tight, reasons_against_grouping=("the loss forbids it",))
    assert memory.remedies(refused)
    assert not any("groups_lengths" in change for change in memory.remedies(refused))


def test_nothing_is_proposed_where_nothing_helps():
    assert memory.remedies(replace(PAPER, gpu_memory=1.0)) == []


def test_the_papers_step_by_hand():
    size = step_size(PAPER)
    assert (size.completions, size.completions_per_update, size.updates) == (512, 256, 2)
    assert (size.mean_tokens, size.max_tokens) == (512 * 8600, 512 * 32768)
    assert step_size(replace(PAPER, num_iterations=3)).updates == 6


def test_time_by_hand():
    # 4,403,200 tokens; 32 GPUs at 1,000 tokens/s generate, 32 at 4,000 train
    time = step_time(PAPER, rollout_rate=1000, train_rate=4000, rollout_gpus=32)
    assert (time.rollout, time.train) == (137.6, 34.4)
    assert time.rollout_share == pytest.approx(0.8)
    assert step_time(PAPER, 1000, 4000, rollout_gpus=8).rollout == 4 * 137.6
    assert step_time(replace(PAPER, num_iterations=2), 1000, 4000, 32).train == 2 * 34.4


@pytest.mark.parametrize("name", ["rollout_rate", "train_rate", "rollout_gpus"])
def test_a_rate_of_zero_is_refused(name):
    rates = {"rollout_rate": 1.0, "train_rate": 1.0, "rollout_gpus": 1, name: 0}
    with pytest.raises(ValueError, match=f"{name} is 0, but must be positive"):
        step_time(PAPER, **rates)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"num_gpus": 0}, "--num_gpus is 0"),
        ({"gpu_memory": -1.0}, "--gpu_memory is -1.0"),
        ({"gpu_memory": float("nan")}, "--gpu_memory is nan"),
        ({"headroom": 1.0}, "--headroom is 1.0"),
        ({"sharding": "zero4"}, "--sharding is 'zero4'"),
        ({"max_prompt_length": 0}, "--prompt_length is 0"),
        ({"mean_completion_length": 40000}, "--mean_length is 40000"),
        ({"reasons_against_grouping": ("the loss forbids it",)}, "groups_lengths is True, but the loss forbids it"),
    ],
)
def test_settings_out_of_range_are_refused(change, message):
    with pytest.raises(ValueError, match=message):
        replace(PAPER, **change)


@pytest.mark.parametrize(
    ("config", "message"),
    [({"model_type": "mixtral"}, "model_type is 'mixtral'"), ({"model_type": "llama"}, "no positive hidden_size")],
)
def test_models_that_the_formulas_do_not_hold_for_are_refused(config, message):
    with pytest.raises(ValueError, match=message):
        read_architecture(config)


def plan(capsys, *argv: str) -> tuple[int, str, str]:
    from leash_trl.cli.main import main

    code = main(["plan", *argv])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


RECIPE = str(ROOT / "recipes" / "leash_1.5b_4k.yaml")


def test_the_command_plans_the_papers_recipe(capsys):
    code, out, _ = plan(capsys, "--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "96")
    assert code == 0
    assert "1,777,088,000 parameters on 32 GPUs of 96 GiB" in out
    assert "512 completions, 2 policy updates of 256" in out
    assert "no time: no --rollout_rate and no --train_rate was given" in out
    assert "sharding none; float32 weights, bfloat16 autocast" in out
    assert "an engine holds 38 sequences at once" in out
    assert "no --mean_length: the worst case" in out
    assert out.rstrip().endswith("fits")


def test_the_command_refuses_what_cannot_fit(capsys):
    code, out, _ = plan(capsys, "--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "40")
    assert code == 1
    assert "does not fit: training takes" in out
    assert "these changes fit:" in out


def test_fields_of_the_recipe_may_be_overridden(capsys):
    argv = ["--config", RECIPE, "--num_gpus", "4", "--gpu_memory", "96", "--steps_per_generation", "2"]
    # 4 * 1 * 2 completions are one group: only a parser that knows the number of GPUs accepts it
    _, out, _ = plan(capsys, *argv)
    assert "generation batch: 8 completions" in out


def test_sharded_weights_are_computed_in_bfloat16_without_autocast(capsys):
    argv = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "96"]
    assert "float32 weights, computed in bfloat16" in plan(capsys, *argv, "--sharding", "fsdp")[1]
    assert "bfloat16 weights, no autocast" in plan(capsys, *argv, "--dtype", "bfloat16", "--bf16", "false")[1]


def test_a_given_mean_length_is_not_called_the_worst_case(capsys):
    argv = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "96", "--mean_length", "8600"]
    assert "no --mean_length" not in plan(capsys, *argv)[1]


def test_checkpointing_s_columns_are_named(capsys):
    out = plan(capsys, "--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "96")[1]
    row = next(line for line in out.splitlines() if line.startswith("filled by tokens"))
    with_, without = (float(number) for number in row.split()[-2:])
    assert re.search(r"with gradient checkpointing, GiB +without, GiB$", out, re.MULTILINE)
    assert with_ < without


def test_a_deprecated_name_inside_trl_is_no_warning_of_the_plan(recwarn, capsys):
    plan(capsys, "--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "96")
    assert not [warning for warning in recwarn if "gradient_checkpointing" in str(warning.message)]


@pytest.mark.parametrize("spare", [0.049, 0.051])
def test_a_tight_fit_is_called_tight(spare):
    from leash_trl.cli.plan import verdict_lines

    server = replace(PAPER, vllm_mode="server", headroom=0.0)
    peak = memory.peak_bytes(server)[0] / GIB
    tight = replace(server, gpu_memory=peak / (1 - spare))
    left = f"{spare * tight.gpu_memory:.1f} GiB"
    called = f"fits, with only {left} to spare: the estimate was checked on CPUs only"
    assert verdict_lines(tight) == [called if spare < 0.05 else "fits"]


def test_remedies_are_options_to_paste(capsys):
    argv = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "40"]
    _, out, _ = plan(capsys, *argv)
    line = out.split("these changes fit:")[1].splitlines()[1]
    assert re.fullmatch(r"  (--\w+ \S+ ?)+: [\d.]+ GiB", line)
    change = line.partition(":")[0].split()
    assert plan(capsys, *argv, *change)[0] == 0


def test_one_gpu_is_not_told_to_shard():
    alone = replace(PAPER, num_gpus=1, gpu_memory=66.0, gradient_checkpointing=False)
    assert memory.remedies(alone)
    assert not any("sharding" in change for change in memory.remedies(alone, limit=100))
    tight = replace(alone, num_gpus=32)
    assert any("sharding" in change for change in memory.remedies(tight, limit=100))


@pytest.mark.parametrize(("gpu_memory", "num_gpus"), [(24.0, 2), (18.0, 4), (16.0, 8)])
def test_more_gpus_are_proposed_where_they_make_it_fit(gpu_memory, num_gpus):
    alone = replace(PAPER, num_gpus=1, gpu_memory=gpu_memory)
    assert memory.remedies(alone) == []
    change = memory.more_gpus(alone)
    assert (change["num_gpus"], change["sharding"]) == (num_gpus, "fsdp")
    assert memory.fits(replace(alone, **change))
    assert step_size(replace(alone, **change)) == step_size(alone)


def test_more_gpus_are_not_proposed_where_they_do_not_help():
    assert memory.more_gpus(replace(PAPER, num_gpus=1, gpu_memory=2.0)) is None


def test_an_upper_bound_by_the_mean_says_so(capsys):
    argv = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "141", "--per_device_train_batch_size", "8"]
    condition = "at most, if each 2,048 completions that are split together have a mean length of at most 2,000"
    assert condition in plan(capsys, *argv, "--mean_length", "2000")[1]
    assert "split together" not in plan(capsys, *argv)[1]


@pytest.mark.parametrize(
    ("argv", "model", "reason"),
    [
        (["--loss_type", "bnpo"], {}, "loss_type='bnpo' is a mean over"),
        (["--entropy_coef", "0.01"], {}, "the entropy bonus"),
        (["--use_adaptive_entropy", "true"], {}, "the entropy bonus"),
        (["--top_entropy_quantile", "0.2"], {}, "top_entropy_quantile"),
        (["--use_liger_kernel", "true"], {}, "use_liger_kernel"),
        ([], {"output_router_logits": False, "router_aux_loss_coef": 0.001}, "the router loss"),
        (["--router_aux_loss_coef", "0.1"], {"output_router_logits": False}, "the router loss"),
        ([], {"rope_parameters": {"rope_type": "dynamic", "factor": 2.0}}, "rope_type='dynamic'"),
        ([], {"rope_scaling": {"type": "longrope"}}, "rope_type='longrope'"),
    ],
)
def test_what_the_trainer_does_not_group_is_not_planned_as_grouped(argv, model, reason, capsys, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**PAPER_MODELS["Qwen/Qwen3-4B-Thinking-2507"], **model}))
    common = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "141", "--model_config", str(config)]
    out = plan(capsys, *common, *argv)[1]
    assert f"not filled by tokens: {reason}" in out
    assert "filled by tokens, at most" not in out


@pytest.mark.parametrize(
    ("argv", "model"),
    [
        ([], {"rope_parameters": {"rope_type": "yarn"}}),
        ([], {"output_router_logits": False}),
        (["--router_aux_loss_coef", "0"], {"output_router_logits": False, "router_aux_loss_coef": 0.001}),
    ],
)
def test_what_the_trainer_groups_is_planned_as_grouped(argv, model, capsys, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**PAPER_MODELS["Qwen/Qwen3-4B-Thinking-2507"], **model}))
    common = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "141", "--model_config", str(config)]
    assert "filled by tokens, at most" in plan(capsys, *common, *argv)[1]


def report_file(path: Path, arm: str, rate: float, **changes) -> str:
    result = {"device": "NVIDIA H20", "device_type": "cuda", "num_parameters": QWEN.num_parameters}
    result |= {"completion_tokens_per_second": rate, **changes}
    settings = {"model": "r1-distill-1.5b", "dtype": "bfloat16"}
    path.write_text(json.dumps({"settings": settings, "results": {"stock": {}, arm: result}}))
    return str(path)


def test_rates_may_come_from_leash_bench(capsys, tmp_path):
    step = report_file(tmp_path / "step.json", "ours", 4000.0)
    rollout = report_file(tmp_path / "rollout.json", "vllm", 1000.0)
    argv = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "96", "--mean_length", "8600"]
    _, out, _ = plan(capsys, *argv, "--bench", step, rollout)
    assert "time: 138 s generating (80%) and 34 s training" in out
    measured = f"from {step} (ours, r1-distill-1.5b in bfloat16, NVIDIA H20)"
    assert f"train_rate: 4,000.0 completion tokens per second and GPU, {measured}" in out
    _, out, _ = plan(capsys, *argv, "--bench", step, rollout, "--rollout_rate", "2000")
    assert "time: 69 s generating" in out
    assert "rollout_rate: 2,000.0 completion tokens per second and GPU, from --rollout_rate" in out


def test_a_missing_rate_is_told_from_the_one_that_was_given(capsys):
    argv = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "96", "--train_rate", "4000"]
    assert "no time: train_rate is 4,000.0, but no --rollout_rate was given" in plan(capsys, *argv)[1]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"device": "Some CPU, 1 thread", "device_type": "cpu"}, "measured on Some CPU, 1 thread, but the plan is"),
        ({"num_parameters": 5}, "r1-distill-1.5b with 5 parameters, but the recipe's has 1,777,088,000; run"),
    ],
)
def test_rates_of_another_machine_or_model_are_refused(capsys, tmp_path, changes, message):
    step = report_file(tmp_path / "step.json", "ours", 4000.0, **changes)
    code, _, err = plan(capsys, "--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "96", "--bench", step)
    assert code == 2
    assert message in err


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not a result of this version's leash bench"),
        ("[]", "not a result of this version's leash bench"),
        ('{"results": {"ours": {"device": "a GPU"}}}', "not a result of this version's leash bench"),
        ('{"results": {"ours": {"failed": "no memory"}}}', "measured neither"),
    ],
)
def test_files_without_rates_are_refused(tmp_path, text, message):
    path = tmp_path / "bench.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=message):
        read_rates(str(path), QWEN.num_parameters)


@pytest.mark.parametrize(
    ("argv", "message"),
    [
        (["--num_gpus", "0"], "--num_gpus is 0"),
        (["--num_gpus", "32", "--use_peft", "true"], "use_peft is set"),
        (["--num_gpus", "32", "--optim", "adafactor"], "optim is 'adafactor'"),
        (["--num_gpus", "32", "--model_config", "nowhere.json"], "nowhere.json: no such file"),
        (["--num_gpus", "32", "--mean_length", "0"], "--mean_length is 0, but must be positive"),
        (["--num_gpus", "32", "--prompt_length", "0"], "--prompt_length is 0, but must be positive"),
        (["--num_gpus", "32", "--train_rate", "0"], "--train_rate is 0, but must be positive"),
        (["--num_gpus", "32", "--rollout_rate", "-1"], "--rollout_rate is -1, but must be positive"),
        (["--num_gpus", "32", "--rollout_gpus", "0"], "--rollout_gpus is 0, but must be positive"),
        (["--num_gpus", "3", "--steps_per_generation", "1"], "set steps_per_generation to a multiple of"),
        (["--num_gpus", "32", "--vllm_mode", "server", "--rollout_rate", "1", "--train_rate", "1"], "--rollout_gpus"),
    ],
)
def test_mistakes_are_one_line_with_a_remedy(capsys, argv, message):
    code, _, err = plan(capsys, "--config", RECIPE, "--gpu_memory", "96", *argv)
    assert code == 2
    assert re.search(message, err)


@pytest.mark.parametrize(("content", "message"), [("{", "is not JSON"), ("[]", "holds a list")])
def test_a_model_config_that_is_none_is_refused(capsys, tmp_path, content, message):
    config = tmp_path / "config.json"
    config.write_text(content)
    argv = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "96", "--model_config", str(config)]
    code, _, err = plan(capsys, *argv)
    assert code == 2
    assert f"{config} {message}" in err


def test_a_config_json_stands_for_any_model(capsys, tmp_path):
    config = tmp_path / "config.json"
    config.write_text(json.dumps({**PAPER_MODELS["Qwen/Qwen3-4B-Thinking-2507"]}))
    argv = ["--config", RECIPE, "--num_gpus", "32", "--gpu_memory", "96", "--model_config", str(config)]
    _, out, _ = plan(capsys, *argv, "--model_name_or_path", "someone/something")
    assert "someone/something: 4,022,468,096 parameters" in out
