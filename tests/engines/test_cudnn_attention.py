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
    """Stands for a GPU of a compute capability with a version of cuDNN; whether cuDNN's attention may be chosen."""
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
    ("capability", "version", "stays"),
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
def test_it_is_off_where_it_is_faulty(gpu, caplog, capability, version, stays):
    enabled = gpu(capability, version)
    avoid_faulty_cudnn_attention()
    avoid_faulty_cudnn_attention()
    assert enabled == ([True] if stays else [True, False])
    said = [record.getMessage() for record in caplog.records]
    assert len(said) == (not stays)
    assert all(str(version) in line and "\n" not in line for line in said)


@pytest.mark.parametrize("made", ["trainer", "engine"])
def test_what_trains_or_samples_switches_it_off(gpu, monkeypatch, make_trainer, made):
    model = AutoModelForCausalLM.from_pretrained(str(CHECKPOINT))
    enabled = gpu()
    monkeypatch.setattr("leash_trl.engines.cudnn_attention.is_cudnn_attention_faulty", lambda: enabled[-1])
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    if made == "trainer":
        make_trainer(trainer_class=LengthGroupedGRPOTrainer)
    else:
        TransformersEngine(model, AutoTokenizer.from_pretrained(str(CHECKPOINT)), batch_size=1)
    assert enabled == [True, False]


def test_a_stock_trainer_is_told_the_call_that_switches_it_off(gpu, tiny_model_path, tmp_path):
    trainer = stock_trainer("GRPO", tiny_model_path, tmp_path)
    (callback,) = (each for each in trainer.callback_handler.callbacks if isinstance(each, LengthControlCallback))
    given = {"model": trainer.model, "processing_class": trainer.processing_class}
    enabled = gpu()
    with pytest.warns(UserWarning, match=r"enable_cudnn_sdp\(False\)"):
        callback.on_train_begin(trainer.args, trainer.state, trainer.control, **given)
    assert enabled == [True]
