"""The rule of the house: imports run downwards through the rooms, wherever in a file they stand."""

import ast
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from importlib import import_module
from pathlib import Path

import pytest

import vit

ROOT = Path(__file__).resolve().parents[1]

# From top to bottom; rooms on one floor do not import each other.
FLOORS = [
    ["__main__"],
    ["", "cli"],  # "" is the package itself, which names the first things a user asks for
    ["train"],
    ["report"],
    ["interpret.dynamics", "look"],
    ["training"],
    ["evaluate", "figures", "interpret"],
    ["checkpoints"],
    ["weights"],
    ["mae"],
    ["encoder"],
    ["data"],
    ["attention", "masking", "patches", "scenes"],
    ["report.record"],
    ["inputs"],
    ["device", "metrics", "runs", "settings"],
    ["pretrained"],
    ["load_options"],
    ["config"],
    ["atomic", "errors", "openmp", "progress"],
]
FLOOR_OF = {room: floor for floor, rooms in enumerate(FLOORS) for room in rooms}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((ROOT / "vit").rglob("*.py"))}


@cache
def nodes_of(module: str) -> list[ast.AST]:
    return list(ast.walk(ast.parse(MODULES[module].read_text(encoding="utf-8"))))


def imports_of(module: str) -> Iterator[str]:
    """Everything that a module imports, at its top or within a function: `vit.data.augment` for a name out of it too."""
    package = module if MODULES[module].name == "__init__.py" else module.rpartition(".")[0]
    for node in nodes_of(module):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            above = package.split(".")[: len(package.split(".")) - node.level + 1] if node.level else []
            source = ".".join([*above, *([node.module] if node.module else [])])
            for alias in node.names:
                name = f"{source}.{alias.name}"
                yield name if name in MODULES else source


def room(module: str) -> str:
    """The room a module stands in; "" for the package itself. Settings, which runs write too, stand lower than commands."""
    name = module.partition(".")[2]
    return name if name in FLOOR_OF else name.partition(".")[0]


def test_imports_are_found_wherever_they_stand():
    assert {"torch", "vit.masking", "vit.patches"} <= set(imports_of("vit.encoder"))
    assert "vit.data" in imports_of("vit.cli.data")  # within a function
    assert "vit.device" in imports_of("vit.evaluate.features")


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_downwards(module):
    assert room(module) in FLOOR_OF, "a room that is on no floor: give it its place"
    for imported in imports_of(module):
        if imported.partition(".")[0] == "vit" and room(imported) not in ("", room(module)):
            assert imported in MODULES, f"{module} imports {imported}, which does not exist"
            assert FLOOR_OF[room(imported)] > FLOOR_OF[room(module)], f"{module} imports {imported}"


@pytest.mark.parametrize("module", MODULES)
def test_the_package_imports_nothing_of_its_laboratory(module):
    """Studies and benchmark run from a clone; a wheel has neither."""
    roots = {imported.partition(".")[0] for imported in imports_of(module)}
    assert not roots & {"studies", "bench"}


@pytest.mark.parametrize("module", MODULES)
def test_matplotlib_lives_in_figures_alone(module):
    if room(module) == "figures":
        inside = [name for name in imports_of(module) if name.partition(".")[0] == "vit"]
        assert all(room(name) == "figures" or name in ("vit.atomic", "vit.errors") for name in inside), (
            "figures never see a model"
        )
    else:
        assert not any(name.partition(".")[0] == "matplotlib" for name in imports_of(module))


def test_no_room_but_the_objectives_knows_one_by_name():
    """A new objective is a file and its entry in the registry: nobody asks which one it is, or which model it has."""
    names, models = {"reconstruct", "classify"}, {"MaskedAutoencoder", "VisionTransformer"}
    for module, path in MODULES.items():
        if module.startswith("vit.training.objectives"):
            continue
        for node in nodes_of(module):
            where = f"{path.relative_to(ROOT)}:{getattr(node, 'lineno', '')}"
            if isinstance(node, ast.Compare | ast.match_case):
                asked = {value.value for value in ast.walk(node) if isinstance(value, ast.Constant)} & names
                assert not asked or isinstance(node, ast.match_case), f"{where} compares with {asked}"
            if isinstance(node, ast.MatchValue) and isinstance(node.value, ast.Constant):
                assert node.value.value not in names, f"{where} matches {node.value.value}"
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "isinstance":
                asked = {name.id for name in ast.walk(node.args[1]) if isinstance(name, ast.Name)} & models
                assert not asked, f"{where} asks whether it is a {asked}"


def test_everything_in_the_package_is_packed():
    patterns = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]
    packed = {
        path
        for package, some in patterns.items()
        for each in some
        for path in ROOT.glob(f"{package.replace('.', '/')}/{each}")
    }
    files = {path for path in ROOT.glob("vit/**/*") if path.is_file() and path.suffix not in (".py", ".pyc")}
    assert ROOT / "vit" / "py.typed" in files
    assert files - packed == set()


def test_the_package_names_what_a_user_asks_for_first():
    for name in vit.__all__:
        assert getattr(vit, name) is getattr(import_module(getattr(vit, name).__module__), name)
        assert name in dir(vit)
    with pytest.raises(ImportError, match="no_such_thing"):
        from vit import no_such_thing  # noqa: F401


def test_settings_and_commands_are_light_to_import():
    light = ["vit", "vit.config", "vit.pretrained", "vit.runs", *(name for name in MODULES if room(name) == "cli")]
    modules = ", ".join(light)
    program = f"import sys, {modules}; print({{'torch', 'torchvision', 'timm', 'matplotlib'}} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "set()"


def test_the_house_is_told_from_the_top_down():
    page = (ROOT / "docs" / "how-it-is-built.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| (`vit/.*?) \|", page, re.MULTILINE)
    told = [room for row in rows for room in re.findall(r"`vit/(\w+)(?:/|\.py)`", row)]
    assert {path.parent.name for path in (ROOT / "vit").glob("*/__init__.py")} <= {*told}
    floors = [FLOOR_OF[room] for room in told]
    assert floors == sorted(floors)
