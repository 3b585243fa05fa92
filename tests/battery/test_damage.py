"""What is damaged or made up is refused in one line, soon, and never half used."""

from __future__ import annotations

import contextlib
import io
import pickle
import random
import shutil
import tempfile
import time
from pathlib import Path

import pytest
import timm
import torch
import yaml
from safetensors.torch import save_file
from tiny import RECONSTRUCT, Payload, noise, save_images

from vit.atomic import write_json
from vit.checkpoints import load_model
from vit.cli import main, parse
from vit.cli.parsers import command_of
from vit.config import Config, changed, flat_settings
from vit.errors import CheckpointError, ConfigError

pytestmark = pytest.mark.slow
SECONDS = 5  # until a refusal is there
WORDS = [
    "",
    "é\u202e",
    "9" * 30,
    "x" * 3000,
    *("0", "-1", "7", "1e-3", "1e400", "nan", "null", "true", "[]", "[1,2,3]", "{a:1}", "'"),
]
TIMM_ARGS = {"img_size": 32, "patch_size": 8, "embed_dim": 32, "depth": 2, "num_heads": 2}


def damaged(content: bytes, draw: random.Random) -> bytes:
    """The same bytes but for one bit, or cut short, or with a part that is another's."""
    if not content:
        return b"\xff"
    at = draw.randrange(len(content))
    kind = draw.choice(["flip", "flip", "cut", "overwritten"])
    if kind == "flip":
        return content[:at] + bytes([content[at] ^ 1 << draw.randrange(8)]) + content[at + 1 :]
    if kind == "cut":
        return content[:at]
    other = draw.randbytes(min(64, len(content) - at))
    return content[:at] + other + content[at + len(other) :]


def command(*argv: object, most: float = SECONDS) -> tuple[int, str]:
    """Run a command that should end well, or within `most` seconds with one line that says why not.

    Returns:
        Its exit code, and what is wrong.
    """
    began, errors = time.perf_counter(), io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        code = main([str(word) for word in argv])
    said, seconds = errors.getvalue(), time.perf_counter() - began
    if code and sum(": error: " in line for line in said.splitlines()) != 1:
        return code, f"{argv}: {code}, {said!r}"
    return code, f"{argv}: refused after {seconds:.0f} s" if code and seconds > most else ""


def meaning(model: torch.nn.Module) -> list[object]:
    """All that somebody can see of a loaded model, but for words that nobody reads."""
    origin, weights = model.origin, [value.tolist() for value in model.state_dict().values()]
    return [
        vars(model.encoder.config),
        vars(origin.normalize),
        origin.class_names,
        origin.interpolation,
        weights,
    ]


# ---- A run -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The folder of a small run that has ended, trained on images of noise."""
    place = tmp_path_factory.mktemp("place")
    for split, count, number in (("test", 2, 0), ("test", 2, 1), ("train", 4, 0), ("train", 4, 1)):
        save_images(
            place / "images" / split / f"class {number}",
            noise(count, count + number).permute(0, 2, 3, 1).numpy(),
        )
    data = {"source": "folder", "root": str(place / "images"), "cache": str(place / "cache")}
    config = changed(
        RECONSTRUCT, {**flat_settings({"data": data}), "run.snapshots": 2, "run.threads": 1}
    )
    (place / "config.yaml").write_text(yaml.safe_dump(config.to_dict()))
    with contextlib.redirect_stdout(io.StringIO()):
        assert (
            main(["train", "--config", str(place / "config.yaml"), "--out", str(place / "run")])
            == 0
        )
    return place / "run"


@pytest.mark.tries(12)
def test_damage_of_any_file_of_a_run_is_one_line_and_of_its_weights_found(battery, finished):
    names = sorted(
        path.relative_to(finished)
        for path in finished.rglob("*")
        if path.is_file() and path.stat().st_size
    )

    def attempt(draw: random.Random) -> str:
        with tempfile.TemporaryDirectory() as place:
            folder, name = Path(place) / "run", draw.choice(names)
            shutil.copytree(finished, folder)
            before = (folder / name).read_bytes()
            after = damaged(before, draw)
            (folder / name).write_bytes(after)
            if after == before:
                return ""
            for argv in (["report", folder, "--out", folder / "page.html"], ["compare", folder]):
                _, problem = command(*argv)
                if problem:
                    return f"{name}: {problem}"
            if name.name in ("model.safetensors", "config.json"):
                try:
                    found = load_model((folder / name).parent)
                except CheckpointError as error:
                    return f"{name}: {error}" if "\n" in str(error) else ""
                if meaning(found) != meaning(load_model((finished / name).parent)):
                    return f"{name}: load_model takes it for another"
        return ""

    battery.run(attempt)


# ---- Checkpoints -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def checkpoints(tmp_path_factory) -> list[Path]:
    """Files as others write them: state dicts by pickle and safetensors, a folder with settings."""
    place = tmp_path_factory.mktemp("checkpoints")
    state = timm.create_model("vit_tiny_patch16_224", **TIMM_ARGS).state_dict()
    torch.save(state, place / "bare.pth")
    torch.save({"model": state, "args": {"input_size": 32}, "epoch": 3}, place / "wrapped.pth")
    torch.save({"model": state}, place / "old.pth", _use_new_zipfile_serialization=False)
    save_file(state, place / "bare.safetensors")
    (place / "folder").mkdir()
    save_file(state, place / "folder" / "model.safetensors")
    write_json(
        place / "folder" / "config.json",
        {"architecture": "vit_tiny_patch16_224", "model_args": TIMM_ARGS},
    )
    return [
        place / name
        for name in ("bare.pth", "wrapped.pth", "old.pth", "bare.safetensors", "folder")
    ]


def mutated(state: dict[str, torch.Tensor], draw: random.Random) -> dict[str, object]:
    """A state dict in which one tensor is gone, or is another."""
    name = draw.choice(list(state))
    value = state.pop(name)
    others = {
        "drop": {},
        "name": {name + ".x": value},
        "shape": {name: value[..., : draw.randint(0, value.shape[-1])]},
        "kind": {
            name: draw.choice(
                [None, 3, "text", [1], {"a": 1}, value.bool(), value.to(torch.complex64)]
            )
        },
        "nan": {name: value * float("nan")},
    }
    return state | others[draw.choice(list(others))]


@pytest.mark.tries(100)
@pytest.mark.filterwarnings("ignore")
def test_mutated_checkpoints_load_or_are_one_line_and_nothing_in_them_runs(battery, checkpoints):
    def attempt(draw: random.Random) -> str:
        with tempfile.TemporaryDirectory() as place:
            original, marker = draw.choice(checkpoints), Path(place) / "marker"
            path = Path(place) / original.name
            (shutil.copytree if original.is_dir() else shutil.copy)(original, path)
            kind = (
                draw.choice(["bytes", "tensors", "payload"]) if path.suffix == ".pth" else "bytes"
            )
            if kind == "bytes":
                file = (
                    path / draw.choice(["config.json", "model.safetensors"])
                    if path.is_dir()
                    else path
                )
                content = file.read_bytes()
                for _ in range(draw.choice([1, 1, 10])):
                    content = damaged(content, draw)
                file.write_bytes(content)
            elif kind == "payload":
                path.write_bytes(
                    pickle.dumps({"model": Payload(marker), "state_dict": {"a": Payload(marker)}})
                )
            else:
                state = torch.load(path, weights_only=True)
                torch.save(mutated(state.get("model", state), draw), path)
            began = time.perf_counter()
            try:
                load_model(path)
            except CheckpointError as error:
                if "\n" in str(error) or len(str(error)) > 1000 + len(str(path)):
                    return f"{original.name}, {kind}: {str(error)[:300]!r}"
            if marker.exists():
                return f"{original.name}: its payload ran"
            seconds = time.perf_counter() - began
            return f"{original.name}, {kind}: {seconds:.0f} s" if seconds > SECONDS else ""

    battery.run(attempt)


# ---- Settings --------------------------------------------------------------------------------------------------------


@pytest.mark.tries(100)
def test_made_up_settings_are_taken_or_refused_in_one_line(battery, tmp_path):
    keys = [f"{name}.{key}" for name, section in Config().to_dict().items() for key in section]

    def attempt(draw: random.Random) -> str:
        key = draw.choice([*keys, "model.nothing", "nothing.at_all", draw.choice(keys)[:-1]])
        word, argv = draw.choice(WORDS), ["--config", str(tmp_path / "made-up.yaml")]
        section, _, name = key.partition(".")
        twice = f"{section}:\n  {name}: {word}\n  {name}: {word}\n"
        content = draw.choice([f"{section}: {{{name}: {word}}}\n", twice, word]).encode()
        (tmp_path / "made-up.yaml").write_bytes(
            damaged(content, draw) if draw.random() < 0.3 else content
        )
        if draw.random() < 0.5:
            argv = [f"--{key}={word}"]
        began = time.perf_counter()
        try:
            command_of(parse(["train", *argv])[1])
        except ConfigError as error:
            if "\n" in str(error):
                return f"{argv}: {error}"
        seconds = time.perf_counter() - began
        return f"{argv}: {seconds:.0f} s" if seconds > SECONDS else ""

    battery.run(attempt)
