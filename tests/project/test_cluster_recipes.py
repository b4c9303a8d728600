"""The launch recipes: accelerate reads them, their scripts start what they say, and the batch is the paper's."""

import os
import subprocess
from pathlib import Path

import pytest
from accelerate.commands import launch
from accelerate.utils import DeepSpeedPlugin, FullyShardedDataParallelPlugin
from accelerate.utils.launch import prepare_deepspeed_cmd_env, prepare_multi_gpu_env
from conftest import ROOT
from trained_arguments import parse
from trl import TrlParser
from trl.scripts.vllm_serve import ScriptArguments

from leash_trl.cli.plan import main as plan
from leash_trl.cli.plan import parse_plan
from leash_trl.cli.training_arguments import given_fields


SCRIPTS = {path.stem: path for path in sorted((ROOT / "recipes" / "slurm").glob("*.sbatch"))}
SHARDINGS = {"ddp": "none", "deepspeed_zero2": "zero2", "deepspeed_zero3": "zero3", "fsdp2": "fsdp"}


def launch_arguments(*argv: str):
    return launch.launch_command_parser().parse_args(argv)


def handed_to_launcher(monkeypatch, name: str, *options: str):
    """The arguments with which `accelerate launch` would call its launcher."""
    called = []
    for launcher in ("multi_gpu_launcher", "deepspeed_launcher"):
        monkeypatch.setattr(launch, launcher, called.append)
    config = str(ROOT / "recipes" / "accelerate" / f"{name}.yaml")
    launch.launch_command(launch_arguments("--config_file", config, *options, "-m", "leash_trl"))
    (arguments,) = called
    return arguments


@pytest.mark.parametrize("name", SHARDINGS)
def test_accelerate_shards_as_the_config_is_named(name, monkeypatch):
    arguments = handed_to_launcher(monkeypatch, name)
    assert (arguments.num_processes, arguments.use_cpu) == (8, False)
    is_deepspeed = name.startswith("deepspeed")
    environment = prepare_deepspeed_cmd_env(arguments)[1] if is_deepspeed else prepare_multi_gpu_env(arguments)
    for variable, value in environment.items():
        monkeypatch.setenv(variable, value)
    assert environment["ACCELERATE_MIXED_PRECISION"] == "bf16"
    assert ("ACCELERATE_USE_DEEPSPEED" in environment) == is_deepspeed
    assert ("ACCELERATE_USE_FSDP" in environment) == (name == "fsdp2")
    if name == "fsdp2":
        plugin = FullyShardedDataParallelPlugin()
        assert (plugin.fsdp_version, plugin.reshard_after_forward) == (2, True)
        assert plugin.state_dict_type.name == "FULL_STATE_DICT"
        # the recipes checkpoint already, and transformers refuses both
        assert not plugin.activation_checkpointing
    if is_deepspeed:
        plugin, stage = DeepSpeedPlugin(), int(name[-1])
        zero = plugin.deepspeed_config["zero_optimization"]
        assert zero["stage"] == stage
        assert (zero["offload_optimizer"]["device"], zero["offload_param"]["device"]) == ("none", "none")
        # without the second, ZeRO-3 saves checkpoints that from_pretrained cannot read
        assert plugin.zero3_init_flag == plugin.zero3_save_16bit_model == (stage == 3)
        # on several nodes too accelerate starts the processes: DeepSpeed's own launcher would be named first
        several = ("--num_machines=4", "--num_processes=32", "--main_process_ip=node0", "--main_process_port=29500")
        assert prepare_deepspeed_cmd_env(handed_to_launcher(monkeypatch, name, *several))[0] is None


def asked_for(name: str, option: str) -> str:
    lines = SCRIPTS[name].read_text().splitlines()
    return next(line.split("=")[1] for line in lines if line.startswith(f"#SBATCH --{option}="))


@pytest.fixture
def run_script(tmp_path):
    """Runs a script with stand-ins for what a cluster has; returns exit code, errors and what was started."""
    records = tmp_path / "records"
    records.mkdir()

    def run(name: str, cwd: Path = ROOT, **environment: str):
        of_slurm = {
            "PATH": f"{ROOT / 'tests' / 'support' / 'cluster'}{os.pathsep}{os.environ['PATH']}",
            "SLURM_NNODES": asked_for(name, "nodes"),
            "SLURM_CPUS_PER_TASK": asked_for(name, "cpus-per-task"),
            "SLURM_JOB_NODELIST": "nodes",
            "OUTPUT_DIR": str(tmp_path / "run"),
            "RECORDS": str(records),
        }
        environment = {**os.environ, **of_slurm, **environment}
        command = ["bash", str(SCRIPTS[name])]
        finished = subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, timeout=60)
        started = {path.name: path.read_text().splitlines() for path in sorted(records.glob("*-?"))}
        return finished.returncode, finished.stderr, started

    return run


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_as_it_stands_fits_and_starts_one_launcher_a_node_with_all_its_cpus(name, run_script, tmp_path):
    code, errors, started = run_script(name)
    assert code == 0, errors
    assert plan(started["leash-0"][1:]) == 0
    launches = [launch_arguments(*argv[1:]) for key, argv in started.items() if key.startswith("accelerate")]
    assert [one.machine_rank for one in launches] == [0, 1, 2, 3]
    for one in launches:
        assert (one.num_machines, one.num_processes) == (4, 32)
        assert (one.main_process_ip, one.training_script, one.module) == ("node0", "leash_trl", True)
    got = [line.split() for line in (tmp_path / "records" / "cpus.log").read_text().splitlines()]
    # `leash plan` runs outside srun
    assert {cpus for program, cpus in got if program != "leash"} == {asked_for(name, "cpus-per-task")}


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_script_launches_what_it_plans_and_makes_the_papers_batch(name, sharding, run_script, monkeypatch, tmp_path):
    recipe, config = str(ROOT / "recipes" / "leash_c_1.5b_4k.yaml"), f"recipes/accelerate/{sharding}.yaml"
    started = run_script(name, RECIPE=recipe, ACCELERATE=config)[2]
    launched = launch_arguments(*started["accelerate-0"][1:])
    assert launched.config_file == config
    command, *argv = launched.training_script_args
    assert command == "train"
    monkeypatch.chdir(tmp_path)
    arguments, planned, _ = parse_plan(started["leash-0"][1:])
    _, trained, _, _ = parse([*argv, "--use_cpu", "true", "--bf16", "false"])
    assert (arguments.num_gpus, arguments.sharding) == (launched.num_processes, SHARDINGS[sharding])
    for one in (planned, trained):
        assert (one.target_length, one.lambda_lr) == (4096, 0)  # of that recipe
        assert one.vllm_mode == ("server" if name == "leash_server" else "colocate")
    assert planned.generation_batch_size == 64 * 8  # 64 prompts x 8 completions, by the plan's number of GPUs


def test_server_script_serves_the_recipes_model_where_the_trainer_looks(run_script):
    started = run_script("leash_server")[2]
    command, *argv = started["trl-0"]
    assert command == "vllm-serve"
    (served,) = TrlParser(ScriptArguments).parse_args_and_config(argv)
    train = given_fields(launch_arguments(*started["accelerate-0"][1:]).training_script_args[1:])
    assert (served.model, served.max_model_len) == (train["model_name_or_path"], train["vllm_max_model_length"])
    assert (train["vllm_server_host"], train["vllm_server_port"]) == ("node4", served.port)
    # engines beside each other would share each prompt's completions and the seed
    assert (served.tensor_parallel_size, served.data_parallel_size) == (8, 1)
    # the other processes wait in NCCL while one waits for all completions
    assert train["ddp_timeout"] > train["vllm_server_timeout"] == 1800


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_resumes_where_there_is_a_complete_checkpoint_and_only_there(name, run_script, tmp_path):
    checkpoint = tmp_path / "run" / "checkpoint-50"
    checkpoint.mkdir(parents=True)
    assert "--resume_from_checkpoint" not in run_script(name)[2]["accelerate-0"]  # killed while saving
    (checkpoint / "trainer_state.json").write_text("{}")
    argv = run_script(name)[2]["accelerate-0"]
    assert argv[argv.index("--resume_from_checkpoint") + 1] == "true"


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_stops_where_it_does_not_fit_or_is_not_in_a_clone_and_with_its_trainer(name, run_script, tmp_path):
    code, _, started = run_script(name, cwd=tmp_path)
    assert (code, started) == (1, {})
    code, _, started = run_script(name, EXIT_LEASH="1")
    assert (code, [*started]) == (1, ["leash-0"])
    code, _, started = run_script(name, EXIT_ACCELERATE="3")
    assert (code, "accelerate-0" in started) == (3, True)


def test_server_script_stops_with_its_server(run_script):
    code, errors, _ = run_script("leash_server", EXIT_TRL="4", STAYS="accelerate")
    assert (code, "ended with 4" in errors) == (1, True)
