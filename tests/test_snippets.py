"""Every piece of Python in README, the pages of docs and the models' cards runs, in the order in which they stand there."""

import ast
import json
import re
import textwrap
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from small import mae_state
from tiny import without_pictures
from transformers import ViTMAEConfig, ViTMAEForPreTraining

from vit.checkpoints import load_model, save_model
from vit.config import ObjectiveInfo
from vit.training.dynamics import QUANTITIES

ROOT = Path(__file__).resolve().parents[1]
PAGES = [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("vit/**/*.md")]
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
    found = {page.relative_to(ROOT).as_posix(): len(snippets(page)) for page in WITH_PYTHON}
    assert found.items() >= {("README.md", 1), ("docs/looking-inside.md", 4)}
    assert {"docs/faq.md", "docs/from-python.md", "docs/checkpoints.md"} <= found.keys()
    assert len(found) > 8


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A folder with what a reader has: a photograph, a run, and a file from elsewhere."""
    place = tmp_path_factory.mktemp("reader")
    Image.radial_gradient("L").resize((320, 240)).convert("RGB").save(place / "photo.jpg")
    model = load_model("vit-tiny-p4-cifar10")
    torch.save({"model": mae_state(model)}, place / "mae_pretrain_vit_base.pth")
    dinov2 = timm.create_model("vit_small_patch14_dinov2", depth=2)
    torch.save(
        dinov2.state_dict() | {"mask_token": torch.zeros(1, 384)},
        place / "dinov2_vits14_pretrain.pth",
    )
    save_model(place / "runs" / "quickstart", model, model.origin.normalize)
    (place / "path" / "to" / "the").mkdir(parents=True)
    (place / "path" / "to" / "the" / "clone").symlink_to(ROOT)
    record = {"step": 1} | {quantity: {"encoder.W_Q": [0.5] * 12} for quantity in QUANTITIES}
    (place / "runs" / "quickstart" / "dynamics.jsonl").write_text(json.dumps(record) + "\n")
    sizes = dict(hidden_size=24, num_hidden_layers=2, num_attention_heads=2, intermediate_size=48)
    sizes |= {f"decoder_{key}": value for key, value in sizes.items()}
    theirs = ViTMAEForPreTraining(ViTMAEConfig(image_size=32, patch_size=4, **sizes))
    theirs.save_pretrained(place / "hub" / "facebook" / "vit-mae-base")
    (place / "look").mkdir()
    maps = np.random.default_rng(0).random((1, 3, 8, 8))
    np.savez(place / "look" / "attention.npz", maps=maps, panels=["head 0", "head 1", "mean"])
    name = "vit_tiny_patch16_224.augreg_in21k"
    timm.models.save_for_hf(timm.create_model(name), place / "hub" / "timm" / name)
    np.savez(place / "features.npz", pooled=np.eye(3), files=["a.jpg", "b.jpg", "c.jpg"])
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
