"""The contract: the gradients of TRL's own trainer, for the same completions, with less to compute.

The proof runs in float64, see gradient_run.
"""

import functools
from types import SimpleNamespace

import pytest
import torch
from conftest import logged, quiet
from gradient_run import FLOAT64_METHODS, IMPORTANCE, scripted
from peft import LoraConfig, PromptTuningConfig
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer, GPT2Config, GPT2LMHeadModel
from trl import GRPOConfig, GRPOTrainer

from leash_trl import LengthGroupedGRPOConfig, LengthGroupedGRPOTrainer
from leash_trl.microbatching.loss_weights import LOSS_TYPES


TOLERANCE = 1e-12  # relative, of the whole gradient


@pytest.fixture(scope="module")
def float64():
    """TRL and transformers in float64 for this file."""
    with pytest.MonkeyPatch.context() as monkeypatch:
        for owner, name, method in FLOAT64_METHODS:
            monkeypatch.setattr(owner, name, method)
        yield


@pytest.fixture(scope="module")
def train(float64, tmp_path_factory, tiny_model_path):
    """Trains on scripted completions and returns the trainer with its recorder."""

    def run(trainer_class, dead=0, peft_config=None, path=tiny_model_path, prepare=None, config=None, **overrides):
        fields = {
            "scale_rewards": "none",
            "max_completion_length": 48,
            "max_steps": 2,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 4,
            "epsilon_high": 0.28,
            "lr_scheduler_type": "constant",
            "weight_decay": 0.1,
            "max_grad_norm": 0.0,
            "vllm_importance_sampling_correction": False,
        }
        fields = quiet(tmp_path_factory.mktemp("run"), **(fields | overrides))
        del fields["target_length"]  # fields of LeashGRPOConfig, which these configurations lack
        del fields["lambda_lr"]
        if config is None:
            config = GRPOConfig if trainer_class is GRPOTrainer else LengthGroupedGRPOConfig
        torch.manual_seed(0)  # new adapters
        model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64)
        tokenizer = AutoTokenizer.from_pretrained(tiny_model_path, padding_side="left")
        trainer, recorder = scripted(
            trainer_class, config(**fields), model, tokenizer, num_dead_groups=dead, peft_config=peft_config
        )
        trainer.model.double()  # adapters too
        if prepare:
            prepare(trainer)
        trainer.train()
        return trainer, recorder

    return run


@pytest.fixture(scope="module")
def stock(train):
    """What TRL's trainer does with settings, which several tests compare with."""
    return functools.cache(functools.partial(train, GRPOTrainer))


def difference(ours, theirs):
    """Greatest relative distance between the gradients of the same update, of two updates."""
    assert len(ours.gradients) == len(theirs.gradients) == 2
    distances = []
    for gradient, stock_gradient in zip(ours.gradients, theirs.gradients, strict=True):
        assert stock_gradient.norm() > 1e-4
        distance = (gradient - stock_gradient).norm() / stock_gradient.norm()
        distances.append(distance.item())
    return max(distances)


@pytest.mark.parametrize("loss_type", sorted(LOSS_TYPES))
def test_gradients_are_those_of_the_stock_trainer(train, stock, loss_type):
    _, theirs = stock(dead=2, loss_type=loss_type)
    _, ours = train(LengthGroupedGRPOTrainer, dead=2, loss_type=loss_type)
    assert difference(ours, theirs) < TOLERANCE
    assert ours.positions < 0.6 * theirs.positions
    assert ours.rows <= 0.6 * theirs.rows


def test_masked_completions_are_not_computed(train):
    _, masked = train(LengthGroupedGRPOTrainer, mask_truncated_completions=True)
    _, unmasked = train(LengthGroupedGRPOTrainer, mask_truncated_completions=False)
    assert masked.rows < unmasked.rows


def test_a_batch_without_any_signal_keeps_its_forward_passes(train):
    trainer, ours = train(LengthGroupedGRPOTrainer, dead=4)
    assert ours.rows == 2 * 4  # one row for each micro-batch
    assert [gradient.norm().item() for gradient in ours.gradients] == [0.0, 0.0]
    assert logged(trainer, "microbatch/skipped_share") == [0.75, 0.75]


SETTINGS = {
    "no checkpointing, two windows": {"gradient_checkpointing": False, "steps_per_generation": 8},
    "two iterations, two-sided clipping": {"num_iterations": 2, "delta": 1.5},
    "half a window, multiple of eight": {"steps_per_generation": 2, "pad_to_multiple_of": 8},
    "windows across generations": {"steps_per_generation": 6},
    "kl": {"beta": 0.1, "loss_type": "dr_grpo"},
    "sequence level": {"importance_sampling_level": "sequence", "loss_type": "grpo", "num_iterations": 2},
    "truncated masked": {"mask_truncated_completions": True},
    "truncated masked, means over rows": {"mask_truncated_completions": True, "loss_type": "grpo"},
    "off-policy mask": {"off_policy_mask_threshold": 0.01, "num_iterations": 2},
    "importance correction, token_truncate": IMPORTANCE | {"vllm_importance_sampling_mode": "token_truncate"},
    "importance correction, sequence_mask": IMPORTANCE | {"vllm_importance_sampling_mode": "sequence_mask"},
    "entropy bonus": {"entropy_coef": 0.1},
    "entropy quantile": {"top_entropy_quantile": 0.5},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_are_those_of_the_stock_trainer_with(train, stock, name):
    settings = {"learning_rate": 1e-2, "dead": 1, **SETTINGS[name]}
    _, theirs = stock(**settings)
    trainer, ours = train(LengthGroupedGRPOTrainer, **settings)
    assert ("importance_sampling_ratio" in trainer._buffered_inputs[0]) == ("importance" in name)
    assert difference(ours, theirs) < 10 * TOLERANCE  # the second update starts from weights that differ by rounding
    assert ours.positions < 0.95 * theirs.positions


@pytest.mark.parametrize(
    "adapter",
    [
        LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False),
        PromptTuningConfig(num_virtual_tokens=3, prompt_tuning_init="SAMPLE_VOCAB", task_type="CAUSAL_LM"),
    ],
    ids=["lora", "prompt tuning"],
)
def test_gradients_are_those_of_the_stock_trainer_with_peft(train, adapter):
    _, theirs = train(GRPOTrainer, peft_config=adapter, gradient_checkpointing=False)
    _, ours = train(LengthGroupedGRPOTrainer, peft_config=adapter, gradient_checkpointing=False)
    assert difference(ours, theirs) < TOLERANCE
    assert ours.positions < 0.8 * theirs.positions


def test_learned_positions_keep_the_padding_of_prompts(train, tmp_path, tokenizer):
    torch.manual_seed(0)
    sizes = {"vocab_size": len(tokenizer), "n_embd": 32, "n_layer": 1, "n_head": 2}
    no_dropout = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(eos_token_id=tokenizer.eos_token_id, bos_token_id=None, **sizes, **no_dropout)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    _, theirs = train(GRPOTrainer, path=tmp_path / "gpt2")
    _, ours = train(LengthGroupedGRPOTrainer, path=tmp_path / "gpt2")
    assert difference(ours, theirs) < TOLERANCE
    assert ours.positions < 0.8 * theirs.positions


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(("loss_type", "epsilon_high"), [("grpo", 1e-4), ("cispo", 1.0)])
def test_logged_means_are_those_over_all_tokens_of_the_update(train, level, loss_type, epsilon_high):
    """A stock update of one micro-batch has no means over micro-batches to average."""
    settings = {
        "num_iterations": 2,
        "learning_rate": 1e-2,
        "epsilon": 1e-4,
        "epsilon_high": epsilon_high,
        "importance_sampling_level": level,
        "loss_type": loss_type,
        "beta": 0.1,
    }
    undivided, _ = train(GRPOTrainer, per_device_train_batch_size=16, gradient_accumulation_steps=1, **settings)
    ours, _ = train(LengthGroupedGRPOTrainer, **settings)
    if loss_type == "cispo":
        clip_ratios = ["cispo_clip_ratio"]
    else:
        clip_ratios = ["clip_ratio/region_mean", "clip_ratio/low_mean", "clip_ratio/high_mean"]
    for key in ["entropy", "kl", *clip_ratios]:
        assert logged(ours, key) == pytest.approx(logged(undivided, key), rel=1e-5, abs=1e-9), key
    assert logged(ours, clip_ratios[0])[1] > 0.05


def test_evaluation_is_that_of_the_stock_trainer(train):
    settings = {"per_device_eval_batch_size": 8, "per_device_train_batch_size": 3, "beta": 0.1}
    theirs, _ = train(GRPOTrainer, **settings)
    ours, _ = train(LengthGroupedGRPOTrainer, **settings)
    computed = []  # shapes, rows by columns

    def record_shape(module, args, kwargs):
        computed.append(kwargs["input_ids"].shape)

    ours.model.register_forward_pre_hook(record_shape, with_kwargs=True)
    expected = theirs.evaluate()
    metrics = ours.evaluate()
    for key in ("eval_loss", "eval_entropy", "eval_kl", "eval_clip_ratio/region_mean"):
        assert metrics[key] == pytest.approx(expected[key], rel=1e-6, abs=1e-9)
    assert len(computed) == 4 * 3  # 32 rows in batches of 8, each in parts of 3 on average
    assert sum(rows for rows, _ in computed) == 32


@pytest.mark.parametrize("multiple", [None, 16])
def test_padding_share_is_that_of_the_models_inputs(train, multiple):
    trainer, ours = train(LengthGroupedGRPOTrainer, skip_zero_signal=False, max_steps=1, pad_to_multiple_of=multiple)
    real = trainer.state.num_input_tokens_seen
    assert logged(trainer, "microbatch/padding_share") == [pytest.approx(1 - real / ours.positions)]
    assert logged(trainer, "microbatch/skipped_share") == [0.0]


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("pixel_values", torch.zeros(1)),
        ("completion_ids", [[7], [7, 7]]),  # without padding
    ],
)
def test_batches_of_other_fields_stay_as_trl_makes_them(train, name, values):
    trainer, _ = train(LengthGroupedGRPOTrainer, max_steps=1)
    batches = [{**batch, name: values} for batch in trainer._buffered_inputs]
    with pytest.warns(UserWarning, match=name):
        assert trainer._rearranged(batches) is batches


@pytest.mark.parametrize(
    "changes",
    [
        {"aux_loss_enabled": True},  # the router loss is a mean over a micro-batch
        {
            "accelerator": SimpleNamespace(
                num_processes=2, parallelism_config=SimpleNamespace(non_data_parallel_size=2)
            )
        },
        # processes pad prompts to different widths
        {"accelerator": SimpleNamespace(num_processes=2, parallelism_config=None), "_keeps_prompt_padding": True},
    ],
    ids=["router loss", "parallelism other than of data", "padding of prompts"],
)
def test_what_depends_on_the_micro_batch_or_the_process_keeps_trls_batches(train, changes):
    trainer, _ = train(LengthGroupedGRPOTrainer, max_steps=1)
    assert trainer._reasons_against_regrouping() == []
    vars(trainer).update(changes)
    assert len(trainer._reasons_against_regrouping()) == 1


@pytest.mark.parametrize(
    ("rope_type", "factors"),
    [
        ("dynamic", {}),
        ("longrope", {"long_factor": [2.0] * 8, "short_factor": [1.0] * 8}),
    ],
    ids=["dynamic", "longrope"],
)
def test_positions_that_follow_the_width_keep_trls_batches(
    train, tmp_path, tiny_model_path, caplog, rope_type, factors
):
    config = AutoConfig.from_pretrained(tiny_model_path)
    config.max_position_embeddings = 16
    config.rope_parameters = {
        "rope_type": rope_type,
        "rope_theta": 10000.0,
        "factor": 2.0,
        "original_max_position_embeddings": 16,
        **factors,
    }
    torch.manual_seed(0)
    AutoModelForCausalLM.from_config(config).save_pretrained(tmp_path)
    _, theirs = train(GRPOTrainer, path=tmp_path)
    _, ours = train(LengthGroupedGRPOTrainer, path=tmp_path)
    assert ours.positions == theirs.positions
    assert difference(ours, theirs) == 0.0
    assert f"rope_type='{rope_type}'" in caplog.text


def test_any_configuration_of_trl_serves(train):
    trainer, _ = train(LengthGroupedGRPOTrainer, config=GRPOConfig, max_steps=1)
    assert logged(trainer, "microbatch/padding_share")[0] < 0.3
