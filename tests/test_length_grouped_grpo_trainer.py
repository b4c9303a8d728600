"""The contract: the gradients of TRL's own trainer, for the same completions, with less to compute.

The proof runs in float64, see float64_training.
"""

import runpy
from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch
from float64_training import FLOAT64_METHODS, GradientRecorder, make_rollout, reward, stock_arguments
from peft import LoraConfig, PromptTuningConfig
from transformers import (
    AutoConfig,
    AutoModelForCausalLM,
    AutoTokenizer,
    GPT2Config,
    GPT2LMHeadModel,
    LlamaForCausalLM,
)
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


@pytest.fixture
def train(float64, tmp_path, tiny_model_path, problems, tokenizer):
    """Trains on scripted completions and returns the trainer with its recorder."""

    def run(trainer_class, dead=0, peft_config=None, path=tiny_model_path, prepare=None, args=None, **overrides):
        fields = {
            "output_dir": str(tmp_path / "run"),
            "scale_rewards": "none",
            "max_completion_length": 48,
            "num_generations": 4,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 4,
            "learning_rate": 1e-3,
            "lr_scheduler_type": "constant",
            "epsilon_high": 0.28,
            "weight_decay": 0.1,
            "max_steps": 2,
            "max_grad_norm": 0.0,
            "logging_steps": 1,
            "save_strategy": "no",
            "report_to": "none",
            "disable_tqdm": True,
            "use_cpu": True,
            "bf16": False,
        }
        args = args or LengthGroupedGRPOConfig(**{**fields, **overrides})
        recorder = GradientRecorder()
        torch.manual_seed(0)  # new adapters
        trainer = trainer_class(
            AutoModelForCausalLM.from_pretrained(path, dtype=torch.float64),
            reward,
            stock_arguments(args) if trainer_class is GRPOTrainer else args,
            processing_class=AutoTokenizer.from_pretrained(tiny_model_path, padding_side="left"),
            train_dataset=problems,
            eval_dataset=problems.select(range(8)),
            callbacks=[recorder],
            peft_config=peft_config,
        )
        trainer.model.double()  # adapters too
        if trainer.ref_model is not None:
            trainer.ref_model.double()  # which older TRL loads in float32
        trainer.rollout_func = make_rollout(tokenizer, dead)
        if prepare:
            prepare(trainer)
        trainer.model.register_forward_pre_hook(recorder.count, with_kwargs=True)
        trainer.train()
        return trainer, recorder

    return run


def logged(trainer, key: str) -> list[float]:
    return [row[key] for row in trainer.state.log_history if key in row]


def difference(ours: GradientRecorder, stock: GradientRecorder) -> float:
    """Greatest relative distance between the gradients of the same update."""
    assert len(ours.gradients) == len(stock.gradients) == 2
    assert min(theirs.norm() for theirs in stock.gradients) > 1e-4
    pairs = zip(ours.gradients, stock.gradients, strict=True)
    return max(((mine - theirs).norm() / theirs.norm()).item() for mine, theirs in pairs)


@pytest.mark.parametrize("loss_type", sorted(LOSS_TYPES))
def test_gradients_are_those_of_the_stock_trainer(train, loss_type):
    _, stock = train(GRPOTrainer, dead=2, loss_type=loss_type)
    _, ours = train(LengthGroupedGRPOTrainer, dead=2, loss_type=loss_type)
    assert difference(ours, stock) < TOLERANCE
    assert ours.positions < 0.6 * stock.positions
    assert ours.rows <= 0.6 * stock.rows


def test_masked_completions_are_not_computed(train):
    masked, all_rows = (
        train(LengthGroupedGRPOTrainer, mask_truncated_completions=mask)[1].rows for mask in (True, False)
    )
    assert masked < all_rows


def test_a_batch_without_any_signal_keeps_its_forward_passes(train):
    trainer, ours = train(LengthGroupedGRPOTrainer, dead=4)
    assert ours.rows == 2 * 4  # one row for each micro-batch
    assert [gradient.norm().item() for gradient in ours.gradients] == [0.0, 0.0]
    assert logged(trainer, "microbatch/skipped_share") == [0.75, 0.75]


SETTINGS = {
    "activation checkpointing": {"gradient_checkpointing": True},
    "no checkpointing": {"gradient_checkpointing": False},
    "two iterations": {"num_iterations": 2},
    "two windows": {"steps_per_generation": 8},
    "half a window": {"steps_per_generation": 2, "gradient_accumulation_steps": 4},
    "windows across generations": {"steps_per_generation": 6, "max_steps": 2},
    "kl": {"beta": 0.1, "loss_type": "dr_grpo"},
    "sequence level": {"importance_sampling_level": "sequence", "loss_type": "grpo", "num_iterations": 2},
    "truncated masked": {"mask_truncated_completions": True},
    "truncated masked, means over rows": {"mask_truncated_completions": True, "loss_type": "grpo"},
    "off-policy mask": {"off_policy_mask_threshold": 0.01, "num_iterations": 2},
    "two-sided clipping": {"delta": 1.5, "num_iterations": 2},
    "multiple of eight": {"pad_to_multiple_of": 8},
    "entropy bonus": {"entropy_coef": 0.1},
    "entropy quantile": {"top_entropy_quantile": 0.5},
}


@pytest.mark.parametrize("name", SETTINGS)
def test_gradients_are_those_of_the_stock_trainer_with(train, name):
    settings = {"learning_rate": 1e-2, **SETTINGS[name]}
    _, stock = train(GRPOTrainer, dead=1, **settings)
    _, ours = train(LengthGroupedGRPOTrainer, dead=1, **settings)
    assert difference(ours, stock) < 10 * TOLERANCE  # the second update starts from weights that differ by rounding
    assert ours.positions < 0.95 * stock.positions


@pytest.mark.parametrize("mode", ["token_truncate", "sequence_mask"])
def test_gradients_are_those_of_the_stock_trainer_with_importance_correction(train, mode):
    def correct_importance(trainer):
        trainer.use_vllm = True
        trainer.vllm_generation = SimpleNamespace(sync_weights=lambda: None)
        trainer._last_loaded_step = -1

    settings = {"vllm_importance_sampling_correction": True, "vllm_importance_sampling_mode": mode}
    _, stock = train(GRPOTrainer, prepare=correct_importance, **settings)
    _, ours = train(LengthGroupedGRPOTrainer, prepare=correct_importance, **settings)
    plain = train(LengthGroupedGRPOTrainer)[1]
    assert difference(ours, stock) < TOLERANCE
    assert difference(plain, stock) > 1e-3  # the correction is on


@pytest.mark.parametrize("adapter", ["lora", "prompt tuning"])
def test_gradients_are_those_of_the_stock_trainer_with_peft(train, adapter):
    config = {
        "lora": LoraConfig(r=2, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM", init_lora_weights=False),
        "prompt tuning": PromptTuningConfig(
            num_virtual_tokens=3, prompt_tuning_init="SAMPLE_VOCAB", task_type="CAUSAL_LM"
        ),
    }[adapter]
    _, stock = train(GRPOTrainer, peft_config=config, gradient_checkpointing=False)
    _, ours = train(LengthGroupedGRPOTrainer, peft_config=config, gradient_checkpointing=False)
    assert difference(ours, stock) < TOLERANCE
    assert ours.positions < 0.8 * stock.positions


def test_learned_positions_keep_the_padding_of_prompts(train, tmp_path, tokenizer):
    torch.manual_seed(0)
    sizes = {"n_embd": 32, "n_layer": 1, "n_head": 2, "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(vocab_size=len(tokenizer), eos_token_id=tokenizer.eos_token_id, bos_token_id=None, **sizes)
    GPT2LMHeadModel(config).save_pretrained(tmp_path / "gpt2")
    _, stock = train(GRPOTrainer, path=tmp_path / "gpt2")
    _, ours = train(LengthGroupedGRPOTrainer, path=tmp_path / "gpt2")
    assert difference(ours, stock) < TOLERANCE
    assert ours.positions < 0.8 * stock.positions

    trainer, _ = train(LengthGroupedGRPOTrainer, path=tmp_path / "gpt2", max_steps=1)
    assert trainer._keeps_prompt_padding

    def trim_anyway(trainer):
        trainer._keeps_prompt_padding = False

    _, wrong = train(LengthGroupedGRPOTrainer, path=tmp_path / "gpt2", prepare=trim_anyway)
    assert difference(wrong, stock) > 1e-6


CLIP_RATIOS = ["clip_ratio/region_mean", "clip_ratio/low_mean", "clip_ratio/high_mean"]


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize(("loss_type", "epsilon_high"), [("grpo", 1e-4), ("cispo", 1.0)])
def test_logged_means_are_those_over_all_tokens_of_the_update(train, level, loss_type, epsilon_high):
    """A stock update of one micro-batch has no means over micro-batches to average."""
    settings = {"num_iterations": 2, "learning_rate": 1e-2, "epsilon_high": epsilon_high, "epsilon": 1e-4}
    settings |= {"importance_sampling_level": level, "loss_type": loss_type, "beta": 0.1}
    one, _ = train(GRPOTrainer, per_device_train_batch_size=16, gradient_accumulation_steps=1, **settings)
    ours, _ = train(LengthGroupedGRPOTrainer, **settings)
    keys = ["cispo_clip_ratio"] if loss_type == "cispo" else CLIP_RATIOS
    for key in ["entropy", "kl", *keys]:
        assert logged(ours, key) == pytest.approx(logged(one, key), rel=1e-5, abs=1e-9), key
    assert logged(ours, keys[0])[1] > 0.05


def test_means_cover_the_rows_with_signal_when_others_are_skipped(train):
    shares = [
        logged(train(LengthGroupedGRPOTrainer, dead=2, skip_zero_signal=skip)[0], "entropy") for skip in (True, False)
    ]
    assert shares[0] != pytest.approx(shares[1], rel=1e-6)


def test_evaluation_is_that_of_the_stock_trainer(train):
    settings = {"per_device_eval_batch_size": 8, "per_device_train_batch_size": 3, "beta": 0.1}
    stock, _ = train(GRPOTrainer, **settings)
    ours, _ = train(LengthGroupedGRPOTrainer, **settings)
    computed = []
    ours.model.register_forward_pre_hook(lambda *call: computed.append(call[2]["input_ids"].shape), with_kwargs=True)
    theirs, mine = stock.evaluate(), ours.evaluate()
    for key in ("eval_loss", "eval_entropy", "eval_kl", "eval_clip_ratio/region_mean"):
        assert mine[key] == pytest.approx(theirs[key], rel=1e-6, abs=1e-9)
    assert len(computed) == 4 * 3  # 32 rows in batches of 8, each in parts of 3 on average
    assert sum(rows for rows, _ in computed) == 32


@pytest.mark.parametrize("multiple", [None, 16])
def test_padding_share_is_that_of_the_models_inputs(train, multiple):
    trainer, ours = train(LengthGroupedGRPOTrainer, skip_zero_signal=False, max_steps=1, pad_to_multiple_of=multiple)
    real = trainer.state.num_input_tokens_seen
    assert logged(trainer, "microbatch/padding_share") == [pytest.approx(1 - real / ours.positions)]
    assert logged(trainer, "microbatch/skipped_share") == [0.0]


def test_switched_off_it_is_the_stock_trainer_to_the_last_bit(train):
    _, stock = train(GRPOTrainer, dead=1)
    _, ours = train(LengthGroupedGRPOTrainer, dead=1, length_grouped_microbatches=False, skip_zero_signal=False)
    assert difference(ours, stock) == 0.0
    assert ours.positions == stock.positions


def test_what_knows_no_layout_or_is_split_already_stays_where_trl_put_it(train, monkeypatch):
    trainer, _ = train(LengthGroupedGRPOTrainer)
    images = [{**batch, "pixel_values": torch.zeros(1)} for batch in trainer._buffered_inputs]
    with pytest.warns(UserWarning, match="pixel_values.* stay as TRL makes them"):
        assert trainer._rearranged(images) is images
    unpadded = [{**batch, "completion_ids": list(batch["completion_ids"])} for batch in trainer._buffered_inputs]
    with pytest.warns(UserWarning, match="completion_ids.* stay as TRL makes them"):
        assert trainer._rearranged(unpadded) is unpadded

    trainer.aux_loss_enabled = True
    reasons = ["the router loss is computed for each micro-batch"]
    assert trainer._reasons_against_regrouping() == trainer._reasons_against_skipping() == reasons
    trainer.aux_loss_enabled = False

    parallelism = SimpleNamespace(non_data_parallel_size=2)
    monkeypatch.setattr(type(trainer.accelerator), "parallelism_config", parallelism, raising=False)
    assert trainer._reasons_against_regrouping() == [
        "with tensor, context or sequence parallelism, processes hold the same completions"
    ]
    parallelism.non_data_parallel_size = 1

    trainer._keeps_prompt_padding = True
    assert trainer._reasons_against_regrouping() == []
    monkeypatch.setattr(type(trainer.accelerator), "num_processes", 2)
    (reason,) = trainer._reasons_against_regrouping()
    assert "differs between processes" in reason


@pytest.mark.parametrize("kind", ["dynamic", "longrope"])
def test_positions_that_follow_the_width_keep_trls_batches(train, tmp_path, tiny_model_path, caplog, kind):
    config = AutoConfig.from_pretrained(tiny_model_path)
    factors = {"long_factor": [2.0] * 8, "short_factor": [1.0] * 8} if kind == "longrope" else {}
    config.rope_parameters = {"rope_type": kind, "rope_theta": 10000.0, "factor": 2.0, **factors}
    config.rope_parameters["original_max_position_embeddings"] = config.max_position_embeddings = 16
    torch.manual_seed(0)
    LlamaForCausalLM(config).save_pretrained(tmp_path / kind)
    _, stock = train(GRPOTrainer, dead=2, path=tmp_path / kind)
    _, ours = train(LengthGroupedGRPOTrainer, dead=2, path=tmp_path / kind)
    assert ours.positions == stock.positions
    assert difference(ours, stock) == 0.0
    assert f"micro-batches stay TRL's: rope_type='{kind}' follows the width" in caplog.text


def test_what_keeps_trls_split_is_logged(train, caplog):
    train(LengthGroupedGRPOTrainer, loss_type="bnpo", beta=0.1)
    assert "not regrouped by length: loss_type='bnpo'" in caplog.text
    assert "zero are computed too: beta gives every completion a KL term" in caplog.text


@dataclass
class PaddingFreeConfig(GRPOConfig):
    """A configuration as TRL may have it one day."""

    padding_free: bool = False


@pytest.mark.parametrize("padding_free", [False, True])
def test_one_word_is_changed_and_trl_keeps_its_own_padding_free(train, tmp_path, caplog, padding_free):
    """Any `GRPOConfig` serves, also a later one that leaves padding out by itself."""
    small = LengthGroupedGRPOConfig(output_dir=str(tmp_path), use_cpu=True, bf16=False, report_to="none")
    fields = {**vars(stock_arguments(small)), "max_steps": 1, "num_generations": 4, "per_device_train_batch_size": 4}
    names = {name for name, field in GRPOConfig.__dataclass_fields__.items() if field.init} - {"generation_batch_size"}
    fields |= {"gradient_accumulation_steps": 4, "steps_per_generation": 4, "max_completion_length": 48}
    args = PaddingFreeConfig(**{name: fields[name] for name in names}, padding_free=padding_free)
    trainer, ours = train(LengthGroupedGRPOTrainer, args=args)
    _, stock = train(GRPOTrainer, args=args)
    assert (ours.positions < stock.positions) == (not padding_free)
    assert ("padding_free=True leaves padding out already" in caplog.text) == padding_free
    if not padding_free:
        assert logged(trainer, "microbatch/padding_share")[0] < 0.3


@pytest.mark.parametrize("version", ["1.9.2", "1.17.0.dev0", "2.0.0"])
def test_a_trl_that_is_not_tested_is_warned_about(monkeypatch, version):
    monkeypatch.setattr("trl.__version__", version)
    with pytest.warns(UserWarning, match=rf"trl is {version}, but leash-trl is tested with 1\.10 to 1\.16"):
        runpy.run_module("leash_trl.microbatching.length_grouped_grpo_trainer")
