"""The plan's formulas are the bytes that torch really holds, for the model types they claim."""

import weakref
from dataclasses import fields

import pytest
import torch
from peft import LoraConfig, get_peft_model
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from transformers import AutoConfig, AutoModelForCausalLM, LlamaConfig, Qwen2Config, Qwen3Config
from trl.kernels import chunked_logprob
from trl.trainer import utils as trl_utils

from leash_trl.microbatching.partition import arrange, positions
from leash_trl.planning import plan
from leash_trl.planning.plan import PAPER_MODELS, Settings, read_architecture


LAYERS = 3
CONFIGS = {"qwen2": Qwen2Config, "llama": LlamaConfig, "qwen3": Qwen3Config}
# dtype of the weights, whether autocast multiplies in bfloat16
WHOLE, HALF = torch.float32, torch.bfloat16
PRECISIONS = {"float32": (WHOLE, False), "autocast": (WHOLE, True), "bfloat16": (HALF, False)}


def config_of(model_type: str, **sizes):
    heads = {"num_attention_heads": 8, "num_key_value_heads": 2, "head_dim": 16 if model_type == "qwen3" else 8}
    fields = {"hidden_size": 64, "intermediate_size": 176, "vocab_size": 300, "num_hidden_layers": LAYERS, **heads}
    return CONFIGS[model_type](**{"tie_word_embeddings": False, **fields, **sizes})


def model_of(config, dtype=torch.float32):
    torch.manual_seed(0)
    return AutoModelForCausalLM.from_config(config, attn_implementation="sdpa").to(dtype).train()


def lora_of(r: int) -> LoraConfig:
    return LoraConfig(r=r, target_modules="all-linear", task_type="CAUSAL_LM")


def settings_of(config, precision="float32", rows=4, length=528, peft_config=None, **changes) -> Settings:
    """A run whose micro-batches have so many rows of so many positions."""
    dtype, is_autocast = PRECISIONS[precision]
    nothing = dict.fromkeys((field.name for field in fields(Settings)), 0)
    model = {"weight_bytes": dtype.itemsize, "compute_bytes": 2 if is_autocast else dtype.itemsize}
    run = {"num_gpus": 1, "sharding": "none", "gradient_checkpointing": True, "use_peft": peft_config is not None}
    rows = {"groups_lengths": True, "per_device_train_batch_size": rows, "max_length": length}
    changes = {"attn_implementation": "flash_attention_2", **changes}
    architecture = read_architecture(config, peft_config or LoraConfig())
    return Settings(**nothing | {"architecture": architecture} | model | run | rows | changes)


def saved_bytes(model, is_autocast: bool, attention_mask: torch.Tensor) -> int:
    """Bytes of all storages but the weights' that autograd saves in the backbone's forward pass."""
    weights = {parameter.untyped_storage().data_ptr() for parameter in model.parameters()}
    saved = {}

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
    trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
    for parameter in trained:
        parameter.grad = torch.zeros_like(parameter)
    ids = torch.randint(0, 300, (rows, length))
    with LiveBytes([*model.parameters(), *(parameter.grad for parameter in trained)]) as live:
        with torch.autocast("cpu", torch.bfloat16, enabled=is_autocast):
            outputs = model(input_ids=ids, attention_mask=torch.ones_like(ids), labels=ids, fused_lm_head=True)
        outputs.log_probs.sum().backward()
    return live.peak


@pytest.mark.parametrize("model_type", CONFIGS)
@pytest.mark.parametrize("is_tied", [False, True])
def test_parameters_and_adapters_are_counted_exactly(model_type, is_tied):
    config = config_of(model_type, tie_word_embeddings=is_tied, attention_bias=True)
    counted, model = read_architecture(config, lora_of(4)), model_of(config)
    assert counted.num_parameters == sum(parameter.numel() for parameter in model.parameters())
    assert counted.adapter_parameters == get_peft_model(model, lora_of(4)).get_nb_trainable_parameters()[0]


def test_the_papers_models_have_their_published_sizes_and_the_tile_is_that_of_trl():
    configs = [AutoConfig.for_model(**sizes) for sizes in PAPER_MODELS.values()]
    assert [read_architecture(one, LoraConfig()).num_parameters for one in configs] == [1_777_088_000, 4_022_468_096]
    assert plan.HEAD_TOKENS == chunked_logprob.TOKEN_CHUNK_SIZE
    assert plan.HEAD_COLUMNS == trl_utils._CHUNKED_LOGPROB_CHUNK_SIZE


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("model_type", CONFIGS)
@pytest.mark.parametrize("is_padded", [False, True])
def test_what_a_layer_saves_agrees_within_one_percent(model_type, precision, is_padded):
    dtype, is_autocast = PRECISIONS[precision]
    attention = "sdpa" if is_padded else "flash_attention_2"
    settings = settings_of(config_of(model_type), precision, rows=2, length=96, attn_implementation=attention)
    mask = torch.ones(2, 96, dtype=torch.long)
    if is_padded:
        mask[1, -10:] = 0
    saved = [
        saved_bytes(model_of(config_of(model_type, num_hidden_layers=layers), dtype), is_autocast, mask)
        for layers in (1, LAYERS)
    ]
    planned = (LAYERS - 1) * (plan.layer_bytes(settings) + plan.cast_bytes(settings, 1))
    assert planned == pytest.approx(saved[1] - saved[0], rel=0.01)


@pytest.mark.parametrize("precision", PRECISIONS)
@pytest.mark.parametrize("checkpointing", [False, True])
@pytest.mark.parametrize(("model_type", "vocab_size", "rows"), [("qwen2", 512, 4), ("llama", 8192, 1)])
@pytest.mark.parametrize("is_lora", [False, True])
def test_the_peak_agrees_within_ten_percent(
    model_type, checkpointing, precision, vocab_size, rows, is_lora, monkeypatch
):
    # without Triton the kernel's steps on a tile make copies of it: narrow tiles keep them out of the comparison
    monkeypatch.setattr(trl_utils, "_CHUNKED_LOGPROB_CHUNK_SIZE", 64)
    monkeypatch.setattr(plan, "HEAD_COLUMNS", 64)
    dtype, is_autocast = PRECISIONS[precision]
    sizes = {"hidden_size": 256, "intermediate_size": 1024, "head_dim": 32, "num_hidden_layers": 4}
    config = config_of(model_type, vocab_size=vocab_size, **sizes)
    model = model_of(config, dtype)
    if checkpointing:
        model.gradient_checkpointing_enable({"use_reentrant": False})
    trl_utils.add_fused_lm_head(model, outputs=("log_probs", "entropy"))
    lora = lora_of(8) if is_lora else None
    if is_lora:
        model.enable_input_require_grads()
        model = get_peft_model(model, lora, autocast_adapter_dtype=False)
    settings = settings_of(config, precision, rows, 128, lora, gradient_checkpointing=checkpointing)
    assert plan.activation_peak(settings) == pytest.approx(measured_peak(model, is_autocast, rows, 128), rel=0.1)


@pytest.mark.parametrize("precision", ["float32", "bfloat16"])
@pytest.mark.parametrize("is_lora", [False, True])
def test_parameters_gradients_and_optimizer_state_are_counted_exactly(precision, is_lora):
    config = config_of("llama")
    lora = lora_of(4) if is_lora else None
    model = model_of(config, PRECISIONS[precision][0])
    model = get_peft_model(model, lora) if is_lora else model  # in float32
    optimizer = torch.optim.AdamW(model.parameters(), foreach=True)
    model(input_ids=torch.ones(1, 4, dtype=torch.long)).logits.sum().backward()
    optimizer.step()
    parameters = list(model.parameters())
    moments = [state[name] for state in optimizer.state.values() for name in ("exp_avg", "exp_avg_sq")]
    assert plan.held_bytes(settings_of(config, precision, peft_config=lora))[:3] == (
        sum(parameter.nbytes for parameter in parameters),
        sum(parameter.grad.nbytes for parameter in parameters if parameter.grad is not None),
        sum(moment.nbytes for moment in moments),
    )


@pytest.mark.parametrize("num_gpus", [1, 3])
@pytest.mark.parametrize("spread", [0.3, 1.8])
@pytest.mark.parametrize(("rows", "num_steps"), [(8, 1), (4, 2), (1, 8), (2, 3), (2, 32), (16, 4), (8, 16)])
def test_no_micro_batch_is_larger_than_planned(spread, num_gpus, rows, num_steps):
    generator = torch.Generator().manual_seed(0)
    size = rows * num_steps * num_gpus
    completions = torch.randn(size, generator=generator).mul(spread).add(4).exp().clamp(1, 5000).long().tolist()
    prompts = torch.randint(1, 40, (size,), generator=generator).tolist()
    planned = settings_of(config_of("llama"), rows=rows, length=max(prompts) + max(completions)).tokens
    for share in (1.0, 0.5, 0.1):
        is_needed = (torch.rand(size, generator=generator) < share).tolist()
        parts = [part for process in arrange(prompts, completions, is_needed, num_steps, num_gpus) for part in process]
        assert max(positions([prompts[i] for i in part], [completions[i] for i in part]) for part in parts) <= planned
