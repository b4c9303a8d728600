"""The plan's formulas are the bytes that torch really holds, for the model types they claim."""

import weakref

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config
from trl.trainer import utils as trl_utils

from leash_trl.microbatching import partition as microbatch
from leash_trl.planning import activations, memory
from leash_trl.planning.activations import PAPER_MODELS, MicroBatch, read_architecture
from leash_trl.planning.memory import Settings


LAYERS = 3
CONFIGS = {"qwen2": Qwen2Config, "llama": LlamaConfig, "qwen3": Qwen3Config}
# dtype of the weights, whether autocast multiplies in bfloat16
PRECISIONS = {
    "float32": (torch.float32, False),
    "autocast": (torch.float32, True),
    "bfloat16": (torch.bfloat16, False),
}


def config_of(model_type: str, **sizes):
    fields = {
        "hidden_size": 64,
        "intermediate_size": 176,
        "vocab_size": 300,
        "num_hidden_layers": LAYERS,
        "num_attention_heads": 8,
        "num_key_value_heads": 2,
        "head_dim": 16 if model_type == "qwen3" else 8,
        "tie_word_embeddings": False,
    }
    return CONFIGS[model_type](**{**fields, **sizes})


def model_of(config, dtype=torch.float32, checkpointing=False):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(dtype).train()
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    return model


def element_bytes(precision: str) -> tuple[int, int]:
    dtype, is_autocast = PRECISIONS[precision]
    return dtype.itemsize, 2 if is_autocast else dtype.itemsize


def storages(tensors) -> set[int]:
    return {tensor.untyped_storage().data_ptr() for tensor in tensors}


def saved_bytes(model, is_autocast: bool, attention_mask: torch.Tensor) -> int:
    """Bytes of all storages but the weights' that autograd saves in the backbone's forward pass."""
    weights, saved = storages(model.parameters()), {}

    def pack(tensor):
        storage = tensor.untyped_storage()
        if storage.data_ptr() not in weights:
            saved[storage.data_ptr()] = (storage.nbytes(), tensor)  # kept alive, or an address comes twice
        return tensor

    ids = torch.randint(0, 300, attention_mask.shape)
    with (
        torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor),
        torch.autocast("cpu", torch.bfloat16, enabled=is_autocast),
    ):
        model.model(input_ids=ids, attention_mask=attention_mask, use_cache=False)
    return sum(size for size, _ in saved.values())


class LiveBytes(TorchDispatchMode):
    """Counts the bytes of storages made inside, and the most that lived at once."""

    def __init__(self, known):
        super().__init__()
        self.now = self.peak = 0
        self.sizes = {tensor.untyped_storage()._cdata: 0 for tensor in known}

    def __torch_dispatch__(self, function, types, arguments=(), options=None):
        result = function(*arguments, **(options or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self.count(tensor.untyped_storage())
        return result

    def count(self, storage) -> None:
        if storage._cdata not in self.sizes:
            self.sizes[storage._cdata] = storage.nbytes()
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self.free, storage._cdata)

    def free(self, key: int) -> None:
        self.now -= self.sizes.pop(key, 0)


def measured_peak(model, is_autocast: bool, rows: int, length: int) -> int:
    """Most bytes that one micro-batch holds beside weights and gradients, with TRL's fused head."""
    trl_utils.add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    ids = torch.randint(0, 300, (rows, length))
    with LiveBytes([*model.parameters(), *(parameter.grad for parameter in model.parameters())]) as live:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
            outputs = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids, fused_lm_head=True)
        outputs.log_probs.sum().backward()
    return live.peak


@pytest.mark.parametrize("model_type", CONFIGS)
@pytest.mark.parametrize("is_tied", [False, True])
def test_parameters_are_counted_exactly(model_type, is_tied):
    config = config_of(model_type, tie_word_embeddings=is_tied, attention_bias=True)
    counted = read_architecture(config).num_parameters
    assert counted == sum(parameter.numel() for parameter in model_of(config).parameters())


@pytest.mark.parametrize(("name", "size"), [*zip(PAPER_MODELS, [1_777_088_000, 4_022_468_096], strict=True)])
def test_the_papers_models_have_their_published_sizes(name, size):
    assert read_architecture(AutoConfig.for_model(**PAPER_MODELS[name])).num_parameters == size


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("model_type", CONFIGS)
@pytest.mark.parametrize("is_padded", [False, True])
def test_saved_activations_agree_within_one_percent(model_type, precision, is_padded):
    dtype, is_autocast = PRECISIONS[precision]
    weight_bytes, compute_bytes = element_bytes(precision)
    config = config_of(model_type)
    architecture = read_architecture(config)
    mask = torch.ones(2, 96, dtype=torch.long)
    if is_padded:
        mask[1, -10:] = 0
    batch = MicroBatch(2 * 96, 96, is_padded)
    planned = LAYERS * activations.layer_bytes(architecture, batch, weight_bytes, compute_bytes, keeps_mask=True)
    planned += activations.cast_bytes(architecture, LAYERS, weight_bytes, compute_bytes)
    planned += 2 * 96 * activations.outer_bytes_per_token(architecture, weight_bytes)
    measured = saved_bytes(model_of(config, dtype), is_autocast, mask)
    assert planned == pytest.approx(measured, rel=0.01)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("model_type", ["qwen2", "llama"])
def test_checkpoints_are_the_residual_stream(model_type, precision):
    dtype, is_autocast = PRECISIONS[precision]
    weight_bytes, _ = element_bytes(precision)
    mask = torch.ones(2, 96, dtype=torch.long)
    measured = []
    for num_layers in (1, 3):
        model = model_of(config_of(model_type, num_hidden_layers=num_layers), dtype, checkpointing=True)
        measured.append(saved_bytes(model, is_autocast, mask))
    assert (measured[1] - measured[0]) / 2 == 2 * 96 * weight_bytes * 64


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("model_type", "vocab_size", "rows"), [("qwen2", 512, 4), ("llama", 8192, 1)])
def test_peak_agrees_within_ten_percent(model_type, checkpointing, precision, vocab_size, rows, monkeypatch):
    # without Triton the kernel's steps on a tile make copies of it: narrow tiles keep them out of the comparison
    monkeypatch.setattr(trl_utils, "_CHUNKED_LOGPROB_CHUNK_SIZE", 64)
    monkeypatch.setattr(activations, "HEAD_COLUMNS", 64)
    dtype, is_autocast = PRECISIONS[precision]
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "head_dim": 32, "num_hidden_layers": 4}
    config = config_of(model_type, vocab_size=vocab_size, **sizes)
    architecture = read_architecture(config)
    peak = activations.checkpointed_peak if checkpointing else activations.kept_peak
    batch = MicroBatch(rows * 128, 128, is_padded=False)
    planned = peak(architecture, batch, *element_bytes(precision), keeps_mask=True)
    measured = measured_peak(model_of(config, dtype, checkpointing), is_autocast, rows, 128)
    assert planned == pytest.approx(measured, rel=0.1)


def settings_of(architecture, **changes) -> Settings:
    fields = {
        "num_gpus": 1,
        "gpu_memory": 80.0,
        "sharding": "none",
        "weight_bytes": 4,
        "bf16": False,
        "gradient_checkpointing": True,
        "has_reference": False,
        "keeps_attention_mask": True,
        "groups_lengths": True,
        "per_device_train_batch_size": 4,
        "gradient_accumulation_steps": 4,
        "steps_per_generation": 4,
        "max_prompt_length": 16,
        "max_completion_length": 512,
        "use_vllm": False,
        "vllm_mode": "colocate",
        "vllm_gpu_memory_utilization": 0.3,
        "vllm_enable_sleep_mode": False,
        "vllm_tensor_parallel_size": 1,
        "vllm_max_model_length": 528,
    }
    return Settings(architecture=architecture, **{**fields, **changes})


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("model_type", ["qwen2", "llama"])
def test_parameters_gradients_and_optimizer_state_are_counted_exactly(model_type, dtype):
    config = config_of(model_type)
    model = model_of(config, dtype)
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    model(input_ids=torch.ones(1, 4, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    settings = settings_of(read_architecture(config), weight_bytes=dtype.itemsize)
    parameters = list(model.parameters())
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert memory.weights(settings) == sum(parameter.nbytes for parameter in parameters)
    assert memory.gradients(settings) == sum(parameter.grad.nbytes for parameter in parameters)
    assert memory.optimizer_state(settings) == sum(moment.nbytes for moment in moments)


def test_trl_loads_weights_in_float32_and_autocast_leaves_them_so(tmp_path):
    from trl import ModelConfig
    from trl.trainer.utils import create_model_from_path

    model_of(config_of("llama"), torch.bfloat16).save_pretrained(tmp_path)
    assert ModelConfig().dtype == "float32"
    model = create_model_from_path(str(tmp_path), device_map=None)
    assert {parameter.dtype for parameter in model.parameters()} == {torch.float32}
    with torch.autocast("cpu", torch.bfloat16):
        model(input_ids=torch.ones(1, 4, dtype=torch.long)).logits.float().sum().backward()
    assert {parameter.grad.dtype for parameter in model.parameters()} == {torch.float32}


def test_the_tile_is_that_of_trl():
    from trl.kernels import chunked_logprob

    assert activations.HEAD_TOKENS == chunked_logprob.TOKEN_CHUNK_SIZE
    assert activations.HEAD_COLUMNS == trl_utils._CHUNKED_LOGPROB_CHUNK_SIZE


def largest_arranged(prompts, completions, is_needed, num_steps: int, num_gpus: int) -> int:
    plan = microbatch.arrange(prompts, completions, is_needed, num_steps, num_gpus)
    parts = [part for process in plan for part in process]
    return max(microbatch.positions([prompts[i] for i in part], [completions[i] for i in part]) for part in parts)


def planned_tokens(prompts, completions, rows: int, num_gpus: int) -> int:
    settings = settings_of(
        read_architecture(config_of("llama")),
        num_gpus=num_gpus,
        per_device_train_batch_size=rows,
        max_prompt_length=max(prompts),
        max_completion_length=max(completions),
    )
    return memory.largest_micro_batch(settings).tokens


WINDOWS = [(8, 1), (4, 2), (1, 8), (2, 3), (2, 32), (16, 4), (8, 16)]


@pytest.mark.parametrize("num_gpus", [1, 3])
@pytest.mark.parametrize("spread", [0.3, 1.8])
def test_no_micro_batch_is_larger_than_planned(spread, num_gpus):
    generator = torch.Generator().manual_seed(0)
    for rows, num_steps in WINDOWS:
        size = rows * num_steps * num_gpus
        completions = torch.randn(size, generator=generator).mul(spread).add(4).exp().clamp(1, 5000).long().tolist()
        prompts = torch.randint(1, 40, (size,), generator=generator).tolist()
        planned = planned_tokens(prompts, completions, rows, num_gpus)
        for share in (1.0, 0.5, 0.1):
            is_needed = (torch.rand(size, generator=generator) < share).tolist()
            assert largest_arranged(prompts, completions, is_needed, num_steps, num_gpus) <= planned


def test_one_long_row_pads_all_of_a_window_of_one_micro_batch():
    completions = [32768] + 7 * [100]
    assert largest_arranged([256] * 8, completions, [True] * 8, num_steps=1, num_gpus=1) == 8 * (256 + 32768)
    assert planned_tokens([256] * 8, completions, rows=8, num_gpus=1) == 8 * (256 + 32768)
