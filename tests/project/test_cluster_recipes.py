"""The launch recipes: accelerate reads them, their scripts start what they say, and the batch is the paper's."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml


ROOT = Path(__file__).parent.parent.parent
CONFIGS = sorted((ROOT / "recipes" / "accelerate").glob("*.yaml"))
SCRIPTS = {path.stem: path for path in sorted((ROOT / "recipes" / "slurm").glob("*.sbatch"))}
ADAPTER_RECIPES = {*(ROOT / "recipes").glob("leash_*lora.yaml")}  # for one GPU
PAPER_RECIPES = sorted({*(ROOT / "recipes").glob("leash_*.yaml")} - ADAPTER_RECIPES)
SHARDINGS = {"ddp": "none", "deepspeed_zero2": "zero2", "deepspeed_zero3": "zero3", "fsdp2": "fsdp"}
GPUS_PER_NODE = 8

# what a command is called with, written where the test finds it; a server stays until it is told to end
RECORD = """#!{python} -IS
import json, os, sys, time
rank = os.environ.get("SLURM_PROCID", "0")
path = os.path.join({folder!r}, os.path.basename(sys.argv[0]) + "-" + rank + ".json")
json.dump(sys.argv[1:], open(path, "w"))
with open(os.path.join({folder!r}, "cpus"), "a") as file:
    print(os.path.basename(sys.argv[0]), os.environ.get("STEP_CPUS", "1"), file=file)
name = os.path.basename(sys.argv[0]).upper()
if name + "_STAYS" in os.environ or (name == "TRL" and "EXIT_TRL" not in os.environ):
    time.sleep(60)
sys.exit(int(os.environ.get("EXIT_" + name, "0")))
"""
# runs its command once per node, as srun does with one task a node; since SLURM 22.05 a step takes the job's CPUs per
# task from its own variable alone
SRUN = """#!/usr/bin/env bash
nodes=$SLURM_NNODES
while [[ $1 == --* ]]; do
    case $1 in --nodes=*) nodes=${1#*=} ;; esac
    shift
done
trap 'kill "$child"; exit 143' TERM
code=0
export STEP_CPUS=${SRUN_CPUS_PER_TASK:-1}
for ((i = 0; i < nodes; i++)); do
    SLURM_PROCID=$i "$@" &
    child=$!
    wait "$child" || code=$?
done
exit $code
"""
SCONTROL = """#!/usr/bin/env bash
for ((i = 0; i < SLURM_NNODES; i++)); do echo "node$i"; done
"""


def launch_arguments(*argv: str):
    from accelerate.commands.launch import launch_command_parser

    return launch_command_parser().parse_args([*argv])


def test_there_is_a_config_for_each_sharding():
    assert {path.stem for path in CONFIGS} == SHARDINGS.keys()


@pytest.mark.parametrize("path", CONFIGS, ids=lambda path: path.stem)
def test_accelerate_loads_the_config(path):
    from accelerate.commands.config.config_args import load_config_from_file

    config = load_config_from_file(str(path))
    kind = {"ddp": "MULTI_GPU", "fsdp2": "FSDP"}.get(path.stem, "DEEPSPEED")
    assert str(config.distributed_type.value) == kind
    assert (config.num_processes, config.mixed_precision, config.use_cpu) == (GPUS_PER_NODE, "bf16", False)


def handed_to_launcher(monkeypatch, path: Path, *options: str):
    """The arguments with which `accelerate launch` would call its launcher."""
    from accelerate.commands import launch

    called = []
    for name in ("multi_gpu_launcher", "deepspeed_launcher"):
        monkeypatch.setattr(launch, name, called.append)
    launch.launch_command(launch_arguments("--config_file", str(path), *options, "-m", "leash_trl"))
    (arguments,) = called
    return arguments


def environment_of(path: Path, monkeypatch) -> None:
    """Sets what `accelerate launch` would give its processes."""
    from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env

    arguments = handed_to_launcher(monkeypatch, path)
    if arguments.use_deepspeed:
        _, environment = prepare_deepspeed_cmd_env(arguments)
    else:
        environment = prepare_multi_gpu_env(arguments)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)


def test_fsdp2_builds_accelerates_plugin(monkeypatch):
    from accelerate.utils import FullyShardedDataParallelPlugin

    environment_of(ROOT / "recipes" / "accelerate" / "fsdp2.yaml", monkeypatch)
    plugin = FullyShardedDataParallelPlugin()
    assert plugin.fsdp_version == 2
    assert plugin.reshard_after_forward is True
    assert plugin.state_dict_type.name == "FULL_STATE_DICT"
    # the recipes checkpoint already, and transformers refuses both
    assert not plugin.activation_checkpointing


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_builds_accelerates_plugin(stage, monkeypatch):
    from accelerate.utils import DeepSpeedPlugin

    environment_of(ROOT / "recipes" / "accelerate" / f"deepspeed_zero{stage}.yaml", monkeypatch)
    assert os.environ["ACCELERATE_USE_DEEPSPEED"] == "true"
    plugin = DeepSpeedPlugin()
    zero = plugin.deepspeed_config["zero_optimization"]
    assert zero["stage"] == stage
    assert (zero["offload_optimizer"]["device"], zero["offload_param"]["device"]) == ("none", "none")
    assert plugin.zero3_init_flag == (stage == 3)
    # without it, ZeRO-3 saves checkpoints that from_pretrained cannot read
    assert plugin.zero3_save_16bit_model == (stage == 3)
    assert os.environ["ACCELERATE_MIXED_PRECISION"] == "bf16"


@pytest.mark.parametrize("stage", [2, 3])
def test_deepspeed_leaves_starting_to_accelerate_on_several_nodes(stage, monkeypatch):
    from accelerate.utils.launch import prepare_deepspeed_cmd_env

    path = ROOT / "recipes" / "accelerate" / f"deepspeed_zero{stage}.yaml"
    several = ["--num_machines", "4", "--num_processes", "32", "--machine_rank", "1"]
    several += ["--main_process_ip", "node0", "--main_process_port", "29500"]
    arguments = handed_to_launcher(monkeypatch, path, *several)
    command, _ = prepare_deepspeed_cmd_env(arguments)
    assert command is None  # DeepSpeed's own launcher would be named here
    assert (arguments.nproc_per_node, arguments.nnodes, arguments.node_rank) == ("8", "4", 1)


def asked_for(name: str, option: str) -> str:
    lines = SCRIPTS[name].read_text().splitlines()
    return next(line.split("=")[1] for line in lines if line.startswith(f"#SBATCH --{option}="))


@pytest.fixture
def run_script(tmp_path):
    """Runs a script with stand-ins for what a cluster has; returns exit code, errors and what was started."""
    return script_runner(tmp_path)


@pytest.fixture(scope="module")
def as_it_stands(tmp_path_factory):
    """What each script comes to with nothing set; the last part is who got how many CPUs."""
    runs = {}
    for name in SCRIPTS:
        folder = tmp_path_factory.mktemp(name)
        runs[name] = (*script_runner(folder)(name), (folder / "records" / "cpus").read_text().splitlines())
    return runs


def script_runner(folder: Path):
    commands, records = folder / "bin", folder / "records"
    commands.mkdir()
    records.mkdir()
    texts = {
        name: RECORD.format(python=sys.executable, folder=str(records)) for name in ("leash", "accelerate", "trl")
    }
    for name, text in {**texts, "srun": SRUN, "scontrol": SCONTROL}.items():
        (commands / name).write_text(text)
        (commands / name).chmod(0o755)

    def run(name: str, **environment: str):
        finished = subprocess.run(
            ["bash", str(SCRIPTS[name])],
            cwd=environment.pop("cwd", ROOT),
            env={
                **os.environ,
                "PATH": f"{commands}{os.pathsep}{os.environ['PATH']}",
                "SLURM_NNODES": asked_for(name, "nodes"),
                "SLURM_CPUS_PER_TASK": asked_for(name, "cpus-per-task"),
                "SLURM_JOB_NODELIST": "nodes",
                "OUTPUT_DIR": str(folder / "run"),
                **environment,
            },
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        started = {path.stem: json.loads(path.read_text()) for path in sorted(records.glob("*.json"))}
        return finished.returncode, finished.stderr, started

    return run


def ranks(started: dict[str, list[str]]) -> list[list[str]]:
    return [argv for name, argv in started.items() if name.startswith("accelerate")]


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_starts_one_launcher_a_node_with_options_that_accelerate_knows(name, as_it_stands):
    code, errors, started, _ = as_it_stands[name]
    assert code == 0, errors
    launches = [launch_arguments(*argv[1:]) for argv in ranks(started)]
    assert [launch.machine_rank for launch in launches] == [0, 1, 2, 3]
    for launch in launches:
        assert (launch.num_machines, launch.num_processes) == (4, 32)
        assert (launch.main_process_ip, launch.training_script, launch.module) == ("node0", "leash_trl", True)


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("recipe", PAPER_RECIPES, ids=lambda path: path.stem)
def test_script_and_recipe_make_the_papers_batch(name, recipe, run_script, monkeypatch, tmp_path):
    from trained_arguments import parse

    _, _, started = run_script(name, RECIPE=str(recipe))
    argv = launch_arguments(*ranks(started)[0][1:]).training_script_args
    assert argv[0] == "train"
    monkeypatch.chdir(tmp_path)
    _, training_args, _, _ = parse([*argv[1:], "--use_cpu", "true", "--bf16", "false"])
    world_size = launch_arguments(*ranks(started)[0][1:]).num_processes
    rows = world_size * training_args.per_device_train_batch_size
    # 64 prompts x 8 completions a generation batch, two policy updates of 256 on it
    assert rows * training_args.steps_per_generation == 64 * 8 == 512
    assert rows * training_args.gradient_accumulation_steps == 256
    assert training_args.num_generations == 8
    assert training_args.vllm_mode == ("server" if name == "leash_server" else "colocate")


def test_server_script_serves_the_recipes_model_where_the_trainer_looks(as_it_stands):
    from trl import TrlParser
    from trl.scripts.vllm_serve import ScriptArguments

    _, errors, started, _ = as_it_stands["leash_server"]
    recipe = yaml.safe_load((ROOT / "recipes" / "leash_4b_12k.yaml").read_text())
    argv = started["trl-0"]
    assert argv[0] == "vllm-serve"
    (served,) = TrlParser(ScriptArguments).parse_args_and_config(argv[1:])
    assert served.model == recipe["model_name_or_path"], errors
    assert served.max_model_len == recipe["vllm_max_model_length"]
    # engines beside each other would share each prompt's completions and the seed
    assert (served.tensor_parallel_size, served.data_parallel_size) == (GPUS_PER_NODE, 1)
    train = ranks(started)[0]
    assert train[train.index("--vllm_server_host") + 1] == "node4"
    assert int(train[train.index("--vllm_server_port") + 1]) == served.port
    # the other processes wait in NCCL while one waits for all completions
    assert int(train[train.index("--ddp_timeout") + 1]) > 1800


@pytest.mark.parametrize("name", SCRIPTS)
def test_each_launcher_has_all_cpus_of_its_node(name, as_it_stands):
    *_, lines = as_it_stands[name]
    cpus = asked_for(name, "cpus-per-task")
    started = [line for line in lines if not line.startswith("leash")]
    expected = 4 * [f"accelerate {cpus}"] + (["trl " + cpus] if name == "leash_server" else [])
    assert sorted(started) == expected


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_resumes_where_there_is_a_checkpoint_and_only_there(name, as_it_stands, run_script, tmp_path):
    _, _, started, _ = as_it_stands[name]
    assert "--resume_from_checkpoint" not in ranks(started)[0]
    checkpoint = tmp_path / "run" / "checkpoint-50"
    checkpoint.mkdir(parents=True)
    _, _, started = run_script(name)
    assert "--resume_from_checkpoint" not in ranks(started)[0]  # killed while saving
    (checkpoint / "trainer_state.json").write_text("{}")
    _, _, started = run_script(name)
    argv = ranks(started)[0]
    assert argv[argv.index("--resume_from_checkpoint") + 1] == "true"


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_stops_before_training_if_the_plan_does_not_fit(name, run_script):
    code, _, started = run_script(name, EXIT_LEASH="1")
    assert code == 1
    assert not ranks(started)


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_stops_with_its_trainer(name, run_script):
    code, _, started = run_script(name, EXIT_ACCELERATE="3")
    assert ranks(started)
    assert code == 3


def test_server_script_stops_with_its_server(run_script):
    code, errors, _ = run_script("leash_server", EXIT_TRL="4", ACCELERATE_STAYS="1")
    assert code == 1
    assert "the vLLM server ended with 4; stopping" in errors


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_says_where_it_must_be_submitted(name, run_script, tmp_path):
    code, errors, started = run_script(name, cwd=str(tmp_path))
    assert code == 1
    assert "submit from the root of a clone" in errors
    assert not started


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("config", CONFIGS, ids=lambda path: path.stem)
def test_script_plans_the_sharding_that_it_launches(name, config, run_script):
    _, _, started = run_script(name, ACCELERATE=str(config))
    argv = started["leash-0"]
    assert argv[argv.index("--sharding") + 1] == SHARDINGS[config.stem]
    assert argv[argv.index("--num_gpus") + 1] == "32"
    from leash_trl.cli.plan import main

    # 141 GiB hold every one of them; what a smaller GPU holds is the plan's to say
    assert main([*argv[1:], "--gpu_memory", "141"]) == 0


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_as_it_stands_fits_at_the_greatest_length(name, as_it_stands):
    from leash_trl.cli.plan import main

    _, _, started, _ = as_it_stands[name]
    assert "--mean_length" not in started["leash-0"]
    assert main(started["leash-0"][1:]) == 0
