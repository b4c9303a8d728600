"""Fixtures: a tiny random model, the gym's tokenizer and problems. Nothing is downloaded."""

import atexit
import functools
import gc
import importlib.metadata
import os
import shutil
import signal
import sys
import tempfile


# Before any import of torch or the Hub client.
os.environ.update(
    HF_DATASETS_CACHE=tempfile.mkdtemp(prefix="leash-tests-"),
    HF_HUB_OFFLINE=os.environ.get("HF_HUB_OFFLINE", "1"),
    HF_HUB_DISABLE_TELEMETRY="1",
    TOKENIZERS_PARALLELISM="false",
    OMP_NUM_THREADS="1",
    CUDA_VISIBLE_DEVICES=os.environ.get("LEASH_TEST_GPUS", ""),  # set by make gpu-check
)

from copy import deepcopy
from pathlib import Path

import pytest
from hypothesis import settings


settings.register_profile("thirty", max_examples=30, deadline=None)
settings.register_profile("two-hundred", max_examples=200, deadline=None)  # in make test-slow
settings.load_profile("thirty")


# accelerate and TRL look for installed packages again at every step and for every model card
importlib.metadata.metadata = functools.cache(importlib.metadata.metadata)
importlib.metadata.version = functools.cache(importlib.metadata.version)


# A shell that starts us in the background makes us, and whatever we start, ignore Ctrl-C, which some tests send.
signal.signal(signal.SIGINT, signal.default_int_handler)
atexit.register(shutil.rmtree, os.environ["HF_DATASETS_CACHE"], ignore_errors=True)

ROOT = Path(__file__).parent.parent
sys.path[:0] = [str(ROOT / "tests" / "support"), str(ROOT / "recipes" / "gym")]  # doubles; plants and build_base
SHARED = ROOT.parent / "shared"


@pytest.fixture(scope="session")
def shared_data():
    """The folder of public data beside the project; tests that need it skip where it is absent."""
    if not (SHARED / "data").is_dir():
        pytest.skip("../shared/data is not here")
    return SHARED / "data"


def gym_tokenizer():
    from transformers import AutoTokenizer

    from leash_trl.gym import CHECKPOINT

    return AutoTokenizer.from_pretrained(CHECKPOINT)


@pytest.fixture(scope="session")
def session_tokenizer():
    return gym_tokenizer()


@pytest.fixture
def tokenizer(session_tokenizer):
    """A copy for this test alone: a chat template or a token that it sets reaches no other test."""
    return deepcopy(session_tokenizer)


@pytest.fixture(scope="session")
def tiny_model_path(tmp_path_factory, session_tokenizer):
    """A one-layer random model; with `EOS_BIAS` its completions end after some twenty tokens."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.set_num_threads(1)
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=len(session_tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        bos_token_id=None,
        eos_token_id=session_tokenizer.eos_token_id,
        pad_token_id=session_tokenizer.pad_token_id,
    )
    path = tmp_path_factory.mktemp("tiny-model")
    LlamaForCausalLM(config).save_pretrained(path)
    session_tokenizer.save_pretrained(path)
    keep_imports_out_of_collections()
    return str(path)


def keep_imports_out_of_collections():
    """Every `train` ends with a garbage collection, which takes longest over the modules that will stay anyway."""
    import peft  # noqa: F401

    import leash_trl.trainer.leash_grpo_trainer  # noqa: F401

    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def problems():
    from leash_trl.gym.dataset import gym_problems

    return gym_problems("train", 64)


def eos_bias(tokenizer):
    """Generation arguments that make a random model stop early now and then."""
    return {"sequence_bias": [[[tokenizer.eos_token_id], 2.0]]}


def log_rows(trainer, key="loss"):
    """The logged rows that hold a key: by default those of policy updates."""
    return [row for row in trainer.state.log_history if key in row]


def logged(trainer, key):
    """All that was logged under a key."""
    return [row[key] for row in log_rows(trainer, key)]


def generation_batches(trainer):
    """Fills while the trainer trains: each generation batch as TRL gets it, its groups in order."""
    batches = []
    original = trainer._generate_and_score_completions

    def spy(inputs):
        batch = original(inputs)
        batches.append(batch)
        return batch

    trainer._generate_and_score_completions = spy
    return batches


def parity_reward(completion_ids, **kwargs):
    """+1 or -1 by the parity of the token ids: right and wrong answers in every group, whatever the model says."""
    return [1.0 if sum(ids) % 2 == 0 else -1.0 for ids in completion_ids]


def quiet(output_dir, **settings):
    """Settings of a small, quiet run on the CPU."""
    defaults = {
        "output_dir": str(output_dir),
        "target_length": 12,
        "max_completion_length": 24,
        "lambda_lr": 0.1,
        "learning_rate": 1e-3,
        "per_device_train_batch_size": 8,
        "num_generations": 4,
        "max_steps": 3,
        "logging_steps": 1,
        "save_strategy": "no",
        "report_to": "none",
        "disable_tqdm": True,
        "use_cpu": True,
        "bf16": False,
    }
    return {**defaults, **settings}


@pytest.fixture
def make_args(tmp_path, tokenizer):
    """Factory of small, quiet CPU configurations."""
    from leash_trl import LeashGRPOConfig

    def make(**overrides):
        overrides.setdefault("generation_kwargs", eos_bias(tokenizer))
        overrides.setdefault("output_dir", tmp_path / "run")
        return LeashGRPOConfig(**quiet(**overrides))

    return make


@pytest.fixture
def make_trainer(make_args, tiny_model_path, problems):
    """Factory of trainers on the tiny model; `overrides` are arguments of the trainer or of its configuration."""
    from leash_trl import LeashGRPOTrainer

    def make(reward_funcs=parity_reward, trainer_class=LeashGRPOTrainer, args=None, dataset=None, **overrides):
        names = {"tools", "peft_config", "eval_dataset", "callbacks", "rollout_func"}
        if callable(overrides.get("correctness_func")):
            names.add("correctness_func")
        arguments = {name: overrides.pop(name) for name in names & overrides.keys()}
        args = args or make_args(**overrides)
        dataset = problems if dataset is None else dataset
        return trainer_class(tiny_model_path, reward_funcs, args, train_dataset=dataset, **arguments)

    return make


@pytest.fixture
def hub(tmp_path_factory):
    """A Hub on this machine, empty at first, to which this process talks."""
    from loopback_hub import LoopbackHub

    with LoopbackHub().online(tmp_path_factory.mktemp("hf-home")) as hub:
        yield hub
