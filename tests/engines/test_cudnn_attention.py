"""cuDNN's attention is switched off on the GPUs and versions for which a fault is published, and only there."""

import pytest
import torch
from stock_run import stock_trainer
from transformers import AutoModelForCausalLM, AutoTokenizer

from leash_trl import LengthControlCallback, LengthGroupedGRPOTrainer
from leash_trl.engines.cudnn_attention import avoid_faulty_cudnn_attention
from leash_trl.engines.transformers_engine import TransformersEngine
from leash_trl.gym import CHECKPOINT


@pytest.fixture
def gpu(monkeypatch):
    """Stands for a GPU of a compute capability with a version of cuDNN. Returns the calls that turn cuDNN's attention
    on or off, after the True that it begins with."""
    enabled = [True]

    def stand_in(capability=(9, 0), version=92000):
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: capability)
        monkeypatch.setattr(torch.backends.cudnn, "version", lambda: version)
        monkeypatch.setattr(torch.backends.cuda, "cudnn_sdp_enabled", lambda: enabled[-1])
        monkeypatch.setattr(torch.backends.cuda, "enable_cudnn_sdp", enabled.append)
        return enabled

    return stand_in


@pytest.mark.parametrize(
    ("capability", "version", "stays_on"),
    [
        ((9, 0), 91500, True),  # torch prefers another attention
        ((9, 0), 91501, False),
        ((9, 0), 92501, False),
        ((9, 0), 92600, True),
        ((8, 0), 92000, True),
        ((10, 0), 91800, True),
        ((10, 3), 92600, False),
    ],
)
def test_it_is_off_where_it_is_faulty(gpu, caplog, capability, version, stays_on):
    enabled = gpu(capability, version)
    avoid_faulty_cudnn_attention()
    avoid_faulty_cudnn_attention()
    if stays_on:
        assert enabled == [True]
        assert caplog.records == []
    else:
        assert enabled == [True, False]
        (record,) = caplog.records
        assert str(version) in record.getMessage()
        assert "\n" not in record.getMessage()


@pytest.fixture
def faulty_gpu(gpu, monkeypatch):
    """A faulty GPU on which nothing is computed."""
    enabled = gpu()
    monkeypatch.setattr("leash_trl.engines.cudnn_attention.is_cudnn_attention_faulty", lambda: enabled[-1])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    return enabled


def test_a_trainer_switches_it_off(make_trainer, faulty_gpu):
    make_trainer(trainer_class=LengthGroupedGRPOTrainer)
    assert faulty_gpu == [True, False]


def test_the_engine_that_samples_switches_it_off(faulty_gpu):
    model = AutoModelForCausalLM.from_pretrained(str(CHECKPOINT))
    TransformersEngine(model, AutoTokenizer.from_pretrained(str(CHECKPOINT)), batch_size=1)
    assert faulty_gpu == [True, False]


def test_length_control_of_a_stock_trainer_switches_it_off(faulty_gpu, tiny_model_path, tmp_path):
    trainer = stock_trainer("GRPO", tiny_model_path, tmp_path)
    callbacks = trainer.callback_handler.callbacks
    (callback,) = (callback for callback in callbacks if isinstance(callback, LengthControlCallback))
    assert faulty_gpu == [True]
    callback.on_train_begin(
        trainer.args,
        trainer.state,
        trainer.control,
        model=trainer.model,
        processing_class=trainer.processing_class,
    )
    assert faulty_gpu == [True, False]
