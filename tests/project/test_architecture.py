"""The law of the house: which room may reach which, straight, through others or lazily, and what importing loads."""

import ast
import functools
import graphlib
import subprocess
import sys
from pathlib import Path

import pytest
import yaml
from conftest import ROOT

import leash_trl


PACKAGE = Path(leash_trl.__file__).parent
ROOMS = sorted(path.parent.name for path in PACKAGE.glob("*/__init__.py"))
LAW = yaml.safe_load((ROOT / "tests" / "fixtures" / "rooms.yaml").read_text())
FORBIDDEN = {
    place: {name for entry in entries for name in LAW["groups"].get(entry, [entry])}
    for place, entries in LAW["may not reach"].items()
}
MODULES = {
    ".".join(path.relative_to(PACKAGE.parent).with_suffix("").parts).removesuffix(".__init__"): path
    for path in sorted(PACKAGE.rglob("*.py"))
}


@functools.cache
def imports(module: str) -> frozenset[str]:
    """What a module imports at any place but for types: own modules and the packages that hold
    them by name, other packages by their first part."""
    names, nodes = set(), [ast.parse(MODULES[module].read_text())]
    while nodes:
        node = nodes.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            full = {f"{node.module}.{alias.name}": alias.name for alias in node.names}
            public = leash_trl._MODULES  # what `from leash_trl import ...` loads
            names |= {name if name in MODULES else public.get(alias, node.module) for name, alias in full.items()}
        nodes.extend(ast.iter_child_nodes(node))
    own = names & MODULES.keys()
    parents = {".".join(name.split(".")[:end]) for name in own for end in range(2, name.count(".") + 1)}
    parents -= {package for package in parents if is_inside(module, package)}
    return frozenset({*own, *parents, *(name.split(".")[0] for name in names - own)} - {"leash_trl"})


@functools.cache
def paths_to_everything(start: str) -> dict[str, list[str]]:
    """For each module that can be reached, one chain of imports that reaches it."""
    paths = {start: [start]}
    for module in (waiting := [start]):
        for name in sorted(imports(module) - paths.keys()) if module in MODULES else ():
            paths[name] = [*paths[module], name]
            waiting.append(name)
    return paths


def is_inside(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@pytest.mark.parametrize("place", FORBIDDEN)
def test_no_room_reaches_what_the_law_forbids(place):
    inside = [module for module in MODULES if is_inside(module, f"leash_trl.{place}")]
    assert inside
    broken = {
        " -> ".join(path)
        for module in inside
        for name, path in paths_to_everything(module).items()
        if any(is_inside(name, forbidden) for forbidden in FORBIDDEN[place])
    }
    assert not broken


def test_rooms_and_modules_stand_in_an_order_and_the_command_line_is_last():
    reached = {room: set() for room in ROOMS}
    for module in MODULES:
        rooms = {name.split(".")[1] for name in paths_to_everything(module) if name.startswith("leash_trl.")}
        if (room := module.partition("leash_trl.")[2].split(".")[0]) in ROOMS:
            reached[room] |= rooms & {*ROOMS} - {room}
    # a CycleError names the circle
    assert [*graphlib.TopologicalSorter(reached).static_order()][-1] == "cli"
    graphlib.TopologicalSorter({name: imports(name) & MODULES.keys() - {name} for name in MODULES}).prepare()


@pytest.mark.parametrize(
    "code",
    [
        # what keeps `import leash_trl` under 0.3 s and `leash --help` under 0.5 s, without timing them
        "import leash_trl",
        "from leash_trl.cli.main import build_parser; build_parser().format_help()",
        "import leash_trl.length_control.dual, leash_trl.run_folder, leash_trl.run_folder",
        "import leash_trl.figures.report, leash_trl.figures.training",
    ],
)
def test_the_face_the_help_and_figures_load_nothing_heavy(code):
    command = [sys.executable, "-c", f"import sys\n{code}\nprint(' '.join(sys.modules))"]
    loaded = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    light = {"numpy", "matplotlib"} if "figures" in code else set()
    assert not {*loaded} & ({*LAW["groups"]["heavy"]} | {"torch", "numpy", "matplotlib"}) - light


def test_public_names_are_exactly_the_documented_ones():
    assert leash_trl.__all__ == [
        *("LeashGRPOConfig", "LeashGRPOTrainer", "LengthControl", "LengthControlCallback"),
        *("LengthControlledReward", "LengthGroupedGRPOConfig", "LengthGroupedGRPOTrainer", "Rollouts"),
        "shrinking_rollout",
    ]
    for name in leash_trl.__all__:
        assert getattr(leash_trl, name).__name__ == name
    with pytest.raises(AttributeError, match="LeashTrainer"):
        _ = leash_trl.LeashTrainer
