"""What is damaged or made up is refused in one line, soon, and never half used."""

import contextlib
import io
import pickle
import random
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file
from tiny import RECONSTRUCT, Payload, noise, save_images

from vit.atomic import write_json
from vit.checkpoints import load_model
from vit.cli import main, parse
from vit.cli.parsers import command_of
from vit.config import Config, changed
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


@contextlib.contextmanager
def refused_soon(kind: type[Exception]) -> Iterator[None]:
    """What is done here ends well, or soon with one line."""
    began, said = time.perf_counter(), ""
    try:
        yield
    except kind as error:
        said = str(error)
    assert "\n" not in said
    assert len(said) <= 1300
    assert time.perf_counter() - began < SECONDS


def command(*argv: object) -> int:
    """Run a command that should end well, or soon with one line that says why not; return its exit code."""
    began, errors = time.perf_counter(), io.StringIO()
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(errors):
        code = main([str(word) for word in argv])
    if code:
        said = errors.getvalue()
        assert sum(": error: " in line for line in said.splitlines()) == 1, (argv, said)
        assert time.perf_counter() - began < SECONDS, argv
    return code


def meaning(model: torch.nn.Module) -> list[object]:
    """All that somebody can see of a loaded model, but for words that nobody reads."""
    origin, weights = model.origin, [value.tolist() for value in model.state_dict().values()]
    about = [origin.class_names, origin.interpolation, vars(origin.normalize)]
    return [vars(model.encoder.config), *about, weights]


# ---- A run -----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def finished(tmp_path_factory) -> Path:
    """The folder of a small run that has ended, trained on images of noise."""
    place = tmp_path_factory.mktemp("place")
    for split, count in (("test", 2), ("train", 4)):
        for number in (0, 1):
            images = noise(count, count + number)
            save_images(place / "images" / split / f"class {number}", images)
    settings = {
        "data.source": "folder",
        "data.root": str(place / "images"),
        "data.cache": str(place / "cache"),
        "run.snapshots": 2,
        "run.threads": 1,
    }
    (place / "config.yaml").write_text(changed(RECONSTRUCT, settings).to_yaml())
    assert command("train", "--config", place / "config.yaml", "--out", place / "run") == 0
    return place / "run"


@pytest.mark.tries(12)
def test_damage_of_any_file_of_a_run_is_one_line_and_of_its_weights_found(draw, finished, tmp_path):
    files = [path for path in finished.rglob("*") if path.is_file() and path.stat().st_size]
    name = draw.choice(sorted(files)).relative_to(finished)
    folder = shutil.copytree(finished, tmp_path / "run")
    before = (folder / name).read_bytes()
    after = damaged(before, draw)
    (folder / name).write_bytes(after)
    command("report", folder, "--out", folder / "page.html")
    command("compare", folder)
    if name.name in ("model.safetensors", "config.json") and after != before:
        with refused_soon(CheckpointError):
            found = load_model((folder / name).parent)
            assert meaning(found) == meaning(load_model((finished / name).parent)), name


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
    config = {"architecture": "vit_tiny_patch16_224", "model_args": TIMM_ARGS}
    write_json(place / "folder" / "config.json", config)
    return sorted(place.iterdir())


def mutated(state: dict[str, torch.Tensor], draw: random.Random) -> dict[str, object]:
    """A state dict in which one tensor is gone, or is another."""
    name = draw.choice(list(state))
    value = state.pop(name)
    another = [None, 3, "text", [1], {"a": 1}, value.bool(), value.to(torch.complex64)]
    others = [
        {},
        {name + ".x": value},
        {name: value[..., : draw.randint(0, value.shape[-1])]},
        {name: draw.choice(another)},
        {name: value * float("nan")},
    ]
    return state | draw.choice(others)


@pytest.mark.tries(100)
@pytest.mark.filterwarnings("ignore")
def test_mutated_checkpoints_load_or_are_one_line_and_nothing_in_them_runs(
    draw, checkpoints, tmp_path
):
    original, marker = draw.choice(checkpoints), tmp_path / "marker"
    path = tmp_path / original.name
    (shutil.copytree if original.is_dir() else shutil.copy)(original, path)
    kind = "bytes"
    if path.suffix == ".pth":
        kind = draw.choice(["bytes", "tensors", "payload"])
    if kind == "bytes":
        file = path / draw.choice(["config.json", "model.safetensors"]) if path.is_dir() else path
        content = file.read_bytes()
        for _ in range(draw.choice([1, 1, 10])):
            content = damaged(content, draw)
        file.write_bytes(content)
    elif kind == "payload":
        payload = {"model": Payload(marker), "state_dict": {"a": Payload(marker)}}
        path.write_bytes(pickle.dumps(payload))
    else:
        state = torch.load(path, weights_only=True)
        torch.save(mutated(state.get("model", state), draw), path)
    with refused_soon(CheckpointError):
        load_model(path)
    assert not marker.exists()


# ---- Settings --------------------------------------------------------------------------------------------------------


@pytest.mark.tries(100)
def test_made_up_settings_are_taken_or_refused_in_one_line(draw, tmp_path):
    keys = [f"{name}.{key}" for name, section in Config().to_dict().items() for key in section]
    key = draw.choice([*keys, "model.nothing", "nothing.at_all", draw.choice(keys)[:-1]])
    word, file = draw.choice(WORDS), tmp_path / "made-up.yaml"
    section, _, name = key.partition(".")
    twice = f"{section}:\n  {name}: {word}\n  {name}: {word}\n"
    content = draw.choice([f"{section}: {{{name}: {word}}}\n", twice, word]).encode()
    if draw.random() < 0.3:
        content = damaged(content, draw)
    file.write_bytes(content)
    argv = draw.choice([[f"--{key}={word}"], ["--config", str(file)]])
    with refused_soon(ConfigError):
        command_of(parse(["train", *argv])[1])
