"""The rule of the house: each room comes out alone, and imports run one way."""

import ast
import re
import sys
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from graphlib import TopologicalSorter
from pathlib import Path

import pytest
import timm
import tiny
import torch
from forks import ROOT

import vit
from vit.config import changed
from vit.training.loop import train_steps

# The core, which stands alone; "" is the package itself.
CORE = {
    *("", "atomic", "attention", "commandline", "config", "data", "device", "encoder", "errors"),
    "evaluation",
    *(
        "inputs",
        "isolation",
        "machine",
        "mae",
        "masking",
        "patches",
        "progress",
        "runs",
    ),
    *("scenes", "train", "training", "transform", "weights"),
}

# The other rooms, and what each may import besides the core.
EXTRAS: dict[str, set[str]] = {
    "interpret": set(),
    "figures": set(),
    "metrics": set(),
    "pretrained": set(),
    "load_options": set(),
    "checkpoints": {"load_options", "pretrained"},
    "look": {"checkpoints", "interpret"},
    "report": {"figures", "interpret", "look", "metrics"},
    "cli": {
        *("checkpoints", "figures", "interpret", "load_options", "look", "metrics"),
        *("pretrained", "report"),
    },
    "__main__": {"cli"},
}


def module_name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_name(path): path for path in sorted((ROOT / "vit").rglob("*.py"))}


@cache
def parsed(module: str) -> ast.Module:
    return ast.parse(MODULES[module].read_text(encoding="utf-8"))


@cache
def imports_of(module: str, lazy: bool = True, typing: bool = True) -> set[str]:
    """What a module imports: `vit.data.augment` for a name out of it too.

    Args:
        lazy: also what functions import.
        typing: also what only type checkers import.
    """
    found: set[str] = set()
    waiting: list[ast.AST] = [parsed(module)]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.FunctionDef) and not lazy:
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test) and not typing:
            continue
        if isinstance(node, ast.Import):
            found.update(alias.name for alias in node.names)
        if isinstance(node, ast.ImportFrom):
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in MODULES else str(node.module))
        waiting += ast.iter_child_nodes(node)
    return found


def closure(start: str, lazy: bool) -> set[str]:
    """All modules of the package that importing `start` brings in, the packages that hold them included."""
    seen: set[str] = set()
    waiting = {start}
    while waiting:
        module = waiting.pop()
        if module in seen or module not in MODULES:
            continue
        seen.add(module)
        waiting |= imports_of(module, lazy, typing=False)
        parts = module.split(".")
        waiting |= {".".join(parts[:count]) for count in range(1, len(parts))}
    return seen


def room(module: str) -> str:
    """The room a module stands in; "" for the package itself."""
    return module.partition(".")[2].partition(".")[0]


@pytest.mark.parametrize(
    ("module", "lazy", "modules", "lines"),
    [
        ("vit.encoder", True, 7, None),
        ("vit.cli.attention", False, 60, None),
        ("vit.interpret.capture", True, 13, None),
        ("vit.checkpoints.loading", False, 30, None),
        ("vit.training.loop", False, 13, 2_900),
        ("vit.train", False, 42, None),
    ],
)
def test_a_room_comes_out_alone(module, lazy, modules, lines):
    """Whoever wants one room reads no more than this."""
    inside = closure(module, lazy)
    length = sum(len(MODULES[name].read_text(encoding="utf-8").splitlines()) for name in inside)
    assert len(inside) <= modules, sorted(inside)
    assert lines is None or length <= lines


def test_training_is_told_what_to_measure():
    for module in MODULES:
        if module.startswith("vit.training"):
            assert "vit.evaluation" not in closure(module, lazy=True), module


def test_looking_at_files_imports_nothing_of_data_sets():
    """Nor of training and evaluation."""
    work = {"vit.look.datasets", "vit.training", "vit.evaluation", "vit.train"}
    assert work <= MODULES.keys()
    assert not closure("vit.look.subject", lazy=False) & work
    assert not closure("vit.look.panels", lazy=False) & work


@contextmanager
def walked() -> Iterator[list[str]]:
    """Give the files of the package whose functions run within the block, one for each move."""
    files: list[str] = []
    package = f"{ROOT / 'vit'}/"

    def watch(frame, event, argument):
        path = frame.f_code.co_filename
        if event != "call" or not path.startswith(package):
            return
        # a comprehension is no function that a reader would look up
        if frame.f_code.co_name[0] != "<" and path not in files[-1:]:
            files.append(path)

    threading.setprofile(watch)
    sys.setprofile(watch)
    try:
        yield files
    finally:
        sys.setprofile(None)
        threading.setprofile(None)


def test_a_training_step_walks_through_few_files():
    """With two views of each image, contrast and Muon."""
    settings = {
        "augment.views": 2,
        "augment.color_jitter": 0.4,
        "optim.name": "muon",
        "reconstruct.contrast": 0.1,
        "train.epochs": 2,
    }
    config = changed(tiny.RECONSTRUCT, settings)
    steps = train_steps(tiny.begin(config))
    next(steps)
    with walked() as files:
        next(steps)
    assert len(files) <= 71
    assert len(set(files)) <= 20


@pytest.mark.parametrize(("bare", "moves"), [(False, 100), (True, 150)])
def test_loading_walks_from_file_to_file_once_not_once_a_tensor(bare, moves, tmp_path):
    checkpoint = "vit-tiny-p4-cifar10"
    if bare:
        checkpoint = tmp_path / "timm.pth"
        torch.save(timm.create_model("vit_tiny_patch16_224").state_dict(), checkpoint)
    with warnings.catch_warnings(action="ignore"):
        vit.load_model(checkpoint)
        with walked() as files:
            vit.load_model(checkpoint)
    assert 10 < len(files) <= moves


def test_no_files_import_each_other():
    """Not even within functions, or for types alone; a cycle is named."""
    graph = {
        name: {other for other in imports_of(name) if other in MODULES and other != name}
        for name in MODULES
    }
    assert len([*TopologicalSorter(graph).static_order()]) == len(MODULES)


@pytest.mark.parametrize("module", MODULES)
def test_imports_run_from_the_extras_to_the_core(module):
    assert room(module) in CORE | EXTRAS.keys(), "a new room: write here what it may import"
    if module == "vit":
        return  # it names the first things a user asks for, wherever they stand
    allowed = CORE | EXTRAS.get(room(module), set()) | {room(module)}
    if room(module) == "figures":
        allowed = {"figures", "atomic", "errors"}  # they never see a model
    for imported in imports_of(module):
        package = imported.partition(".")[0]
        # studies and benchmark run from a clone; a wheel has neither
        assert package not in ("studies", "bench")
        assert package != "matplotlib" or room(module) == "figures"
        if package == "vit":
            assert imported in MODULES, f"{module} imports {imported}, which does not exist"
            assert room(imported) in allowed, f"{module} imports {imported}"


def test_studies_and_benchmark_are_no_commands():
    for file in (*(ROOT / "studies").rglob("*.py"), *(ROOT / "bench").rglob("*.py")):
        assert "vit.cli" not in file.read_text(encoding="utf-8"), file


def test_the_page_on_the_house_names_every_room():
    page = (ROOT / "docs" / "how-it-is-built.md").read_text(encoding="utf-8")
    told = {*re.findall(r"`vit/(\w+)(?:/|\.py)`", page)}
    assert {path.parent.name for path in (ROOT / "vit").glob("*/__init__.py")} <= told


def test_the_reading_path_is_short():
    """Whoever wants to understand a run reads these files, from patches to its end."""
    page = (ROOT / "docs" / "how-it-is-built.md").read_text(encoding="utf-8")
    table = page.partition("## Read the code")[2].partition("## The rest")[0]
    files = re.findall(r"^\| `(vit/\S+\.py)`", table, flags=re.MULTILINE)
    assert len(files) <= 13
    lines = sum(len((ROOT / file).read_text(encoding="utf-8").splitlines()) for file in files)
    assert 1_000 < lines <= 3_200
