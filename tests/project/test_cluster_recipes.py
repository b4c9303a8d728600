"""The launch recipes of clusters and of one machine: accelerate reads them, scripts and pages start what they plan,
and the batch is the paper's."""

import os
import re
import shlex
import subprocess
from pathlib import Path
from typing import NamedTuple

import pytest
import yaml
from accelerate.commands import launch
from conftest import ROOT
from trl import TrlParser
from trl.scripts.vllm_serve import ScriptArguments

from leash_trl.cli.arguments import parse_known
from leash_trl.cli.commands.plan import PlanArguments, parse_plan
from leash_trl.cli.commands.plan import main as plan
from leash_trl.cli.training_arguments import fields_of_command_line
from leash_trl.planning.plan import PAPER_MODELS


SCRIPTS = {path.stem: path for path in sorted((ROOT / "recipes" / "slurm").glob("*.sbatch"))}
SHARDINGS = {"ddp": "none", "deepspeed_zero2": "zero2", "deepspeed_zero3": "zero3", "fsdp2": "fsdp"}


@pytest.fixture(autouse=True)
def at_the_root(monkeypatch):
    monkeypatch.chdir(ROOT)


def launched(words):
    """What the launcher makes of `accelerate launch`, and `leash train` of its words; both refuse unknown options."""
    _, *words = words
    arguments = launch.launch_command_parser().parse_args(words)
    assert (arguments.training_script, arguments.module) == ("leash_trl", True)
    command, *words = arguments.training_script_args
    assert command == "train"
    return arguments, fields_of_command_line(words)


SHARDED = {
    "ddp": {"multi_gpu": True},
    "deepspeed_zero2": {"zero_stage": 2},
    # without the last, it saves checkpoints that from_pretrained cannot read
    "deepspeed_zero3": {"zero_stage": 3, "zero3_save_16bit_model": True},
    # the recipes checkpoint already, and transformers refuses both
    "fsdp2": {"fsdp_version": 2, "fsdp_activation_checkpointing": False, "fsdp_state_dict_type": "FULL_STATE_DICT"},
}


@pytest.mark.parametrize("name", SHARDED)
def test_accelerate_reads_what_the_config_is_named_after(name, monkeypatch):
    read = []
    for launcher in ("multi_gpu_launcher", "deepspeed_launcher"):
        monkeypatch.setattr(launch, launcher, read.append)
    words = ["--config_file", f"recipes/accelerate/{name}.yaml", "-m", "leash_trl"]
    launch.launch_command(launch.launch_command_parser().parse_args(words))
    expected = {**SHARDED[name], "num_processes": 8, "mixed_precision": "bf16"}
    if name.startswith("deepspeed"):
        # on several nodes accelerate starts the processes, not DeepSpeed by ssh
        expected["deepspeed_multinode_launcher"] = "standard"
    assert {key: getattr(read[0], key) for key in expected} == expected


def slurm_option(name, option):
    (value,) = re.findall(rf"^#SBATCH --{option}=(\S+)", SCRIPTS[name].read_text(), re.MULTILINE)
    return value


@pytest.fixture
def run_script(tmp_path):
    """Runs a script with stand-ins for what a cluster has; returns exit code, errors and what was started."""
    records = tmp_path / "records"
    records.mkdir()

    def run(name, cwd=ROOT, **environment):
        of_slurm = {
            "PATH": f"{ROOT / 'tests' / 'support' / 'cluster'}{os.pathsep}{os.environ['PATH']}",
            "SLURM_NNODES": slurm_option(name, "nodes"),
            "SLURM_CPUS_PER_TASK": slurm_option(name, "cpus-per-task"),
            "SLURM_JOB_NODELIST": "nodes",
            "OUTPUT_DIR": str(tmp_path / "run"),
            "RECORDS": str(records),
        }
        finished = subprocess.run(
            ["bash", str(SCRIPTS[name])],
            cwd=cwd,
            env={**os.environ, **of_slurm, **environment},
            capture_output=True,
            text=True,
            timeout=60,
        )
        started = {path.name: path.read_text().splitlines() for path in sorted(records.glob("*-?"))}
        return finished.returncode, finished.stderr, started

    return run


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_as_it_stands_fits_and_starts_one_launcher_a_node_with_all_its_cpus(name, run_script, tmp_path):
    code, errors, started = run_script(name)
    assert code == 0, errors
    assert plan(started["leash-0"][1:]) == 0
    launchers = [words for program, words in started.items() if program.startswith("accelerate")]
    assert len(launchers) == 4
    for rank, words in enumerate(launchers):
        launch, _ = launched(words)
        assert launch.machine_rank == rank
        assert (launch.num_machines, launch.num_processes, launch.main_process_ip) == (4, 32, "node0")
    cpus_by_program = [line.split() for line in (tmp_path / "records" / "cpus.log").read_text().splitlines()]
    # `leash plan` runs outside srun
    cpus = {cpus for program, cpus in cpus_by_program if program != "leash"}
    assert cpus == {slurm_option(name, "cpus-per-task")}


@pytest.mark.parametrize("name", SCRIPTS)
@pytest.mark.parametrize("sharding", SHARDINGS)
def test_script_launches_what_it_plans_and_makes_the_papers_batch(name, sharding, run_script):
    config = f"recipes/accelerate/{sharding}.yaml"
    _, _, started = run_script(name, RECIPE="recipes/leash_c_1.5b_4k.yaml", ACCELERATE=config)
    arguments, _, planned, _ = parse_plan(started["leash-0"][1:])
    launch, fields = launched(started["accelerate-0"])
    assert (launch.config_file, launch.num_processes) == (config, arguments.num_gpus)
    assert arguments.sharding == SHARDINGS[sharding]
    assert planned.generation_batch_size == 64 * 8  # 64 prompts x 8 completions, by the plan's number of GPUs
    assert planned.target_length == fields["target_length"] == 4096  # of that recipe
    assert planned.vllm_mode == fields["vllm_mode"] == ("server" if name == "leash_server" else "colocate")


def check_served(words, fields):
    """Checks that `trl vllm-serve` serves what a trainer with these fields asks for; returns how it does."""
    (served,) = TrlParser(ScriptArguments).parse_args_and_config(words)
    assert served.model == fields["model_name_or_path"]
    assert served.max_model_len == fields["vllm_max_model_length"]
    assert served.port == fields["vllm_server_port"]
    return served


def test_server_script_serves_the_recipes_model_where_the_trainer_looks(run_script):
    _, _, started = run_script("leash_server")
    command, *argv = started["trl-0"]
    assert command == "vllm-serve"
    _, train = launched(started["accelerate-0"])
    served = check_served(argv, train)
    assert train["vllm_server_host"] == "node4"
    # engines beside each other would share each prompt's completions and the seed
    assert (served.tensor_parallel_size, served.data_parallel_size) == (8, 1)
    # the other processes wait in NCCL while one waits for all completions
    assert train["ddp_timeout"] > train["vllm_server_timeout"] == 1800


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_resumes_where_there_is_a_complete_checkpoint_and_only_there(name, run_script, tmp_path):
    checkpoint = tmp_path / "run" / "checkpoint-50"
    checkpoint.mkdir(parents=True)
    _, _, started = run_script(name)
    assert "--resume_from_checkpoint" not in started["accelerate-0"]  # killed while saving
    (checkpoint / "trainer_state.json").write_text("{}")
    _, _, started = run_script(name)
    argv = started["accelerate-0"]
    assert argv[argv.index("--resume_from_checkpoint") + 1] == "true"


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_starts_no_training_that_does_not_fit_and_nothing_outside_a_clone(name, run_script, tmp_path):
    code, _, started = run_script(name, cwd=tmp_path)
    assert (code, started) == (1, {})
    code, _, started = run_script(name, EXIT_LEASH="1")
    assert (code, [*started]) == (1, ["leash-0"])


@pytest.mark.parametrize("name", SCRIPTS)
def test_script_ends_with_its_trainer(name, run_script):
    code, _, started = run_script(name, EXIT_ACCELERATE="3")
    assert code == 3
    assert "accelerate-0" in started


def test_server_script_ends_with_its_server(run_script):
    code, errors, _ = run_script("leash_server", EXIT_TRL="4", STAYS="accelerate")
    assert code == 1
    assert "ended with 4" in errors


class Command(NamedTuple):
    """One command of a page: the GPUs that it may use, the words after its name, and the output that is shown."""

    gpus: list[str]
    words: list[str]
    output: list[str]


def commands_of(page, name):
    """The commands of a page with this name, by their place on it."""
    # a command and, where it follows, the output that the page shows
    blocks = re.findall(
        r"```bash\n(.*?)```(?:\n\n```text\n(.*?)```)?", (ROOT / "recipes" / page).read_text(), re.DOTALL
    )
    commands = {}
    for place, (block, output) in enumerate(blocks):
        before, found, after = block.replace("\\\n", " ").partition(name)
        if found:
            gpus = re.findall(r"\d", before.partition("CUDA_VISIBLE_DEVICES=")[2])
            commands[place] = Command(gpus, shlex.split(after, comments=True), output.splitlines())
    return commands


PAGE = "one_machine_8_gpus.md"
PLANS = commands_of(PAGE, "leash plan")
LAUNCHES = commands_of(PAGE, "accelerate launch")
SERVERS = commands_of(PAGE, "trl vllm-serve")
PRINTED_PLANS = [*PLANS.values(), *commands_of("one_gpu.md", "leash plan").values()]


def processes(launch):
    """Processes that `accelerate launch` would start: the configuration file's, unless the command says how many."""
    return launch.num_processes or yaml.safe_load(Path(launch.config_file).read_text())["num_processes"]


@pytest.mark.parametrize("command", PRINTED_PLANS)
def test_the_plan_prints_what_the_page_shows(command, capsys, monkeypatch):
    # a model of a page, whose configuration would have to be downloaded
    sizes = {"hidden_size": 1024, "intermediate_size": 3072, "num_hidden_layers": 28, "num_attention_heads": 16}
    monkeypatch.setitem(PAPER_MODELS, "Qwen/Qwen3-0.6B", PAPER_MODELS["Qwen/Qwen3-4B-Thinking-2507"] | sizes)
    assert plan(command.words) == 0
    printed = capsys.readouterr().out.splitlines()
    following = iter(printed)
    # the page leaves lines out, but keeps their order, the batches and the verdict
    assert [line for line in command.output if line not in following] == []
    assert any(line.startswith("generation batch: ") for line in command.output)
    assert command.output[-1] == printed[-1]


@pytest.mark.parametrize("place", LAUNCHES)
def test_each_launch_is_the_one_that_was_planned_and_makes_the_recipes_batches(place):
    planned = PLANS[max(plan for plan in PLANS if plan < place)].words
    arguments, _, training_args, _ = parse_plan(planned)
    launch, fields = launched(["launch", *LAUNCHES[place].words])
    assert processes(launch) == arguments.num_gpus
    assert SHARDINGS[Path(launch.config_file).stem] == arguments.sharding
    _, training_words = parse_known(PlanArguments, planned, "leash plan")
    only_of_training = ("vllm_server", "vllm_group", "ddp_timeout")
    shared_fields = {name: value for name, value in fields.items() if not name.startswith(only_of_training)}
    assert shared_fields == fields_of_command_line(training_words, prog="leash plan")  # the recipe's included

    recipe = yaml.safe_load(Path(planned[planned.index("--config") + 1]).read_text())
    updates = recipe["steps_per_generation"] / recipe["gradient_accumulation_steps"]
    assert training_args.generation_batch_size == updates * 256
    assert training_args.steps_per_generation == updates * training_args.gradient_accumulation_steps


@pytest.mark.parametrize("place", SERVERS)
def test_the_server_serves_what_the_trainer_after_it_asks_for(place):
    server = SERVERS[place]
    trainer = LAUNCHES[place + 1]
    launch, fields = launched(["launch", *trainer.words])
    served = check_served(server.words, fields)
    assert served.host == fields["vllm_server_host"]
    assert sorted(server.gpus + trainer.gpus) == list("01234567")
    assert len(server.gpus) == served.tensor_parallel_size * served.data_parallel_size
    assert len(trainer.gpus) == processes(launch)
    # two listen on one machine, and a third port takes the weights
    assert len({served.port, launch.main_process_port, fields["vllm_group_port"]}) == 3
    assert PAPER_MODELS[served.model]["num_attention_heads"] % served.tensor_parallel_size == 0
