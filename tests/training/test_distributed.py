"""Several processes train as one: the same losses, one writer, one stop.

The slow tests start real processes with torchrun.
"""

import json
import signal
import socket
import subprocess
import sys
import time
import warnings
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from forks import ROOT, environment
from safetensors.torch import load_file
from tiny import names, noise, save_images
from torch.testing import assert_close

from vit.cli import parse
from vit.cli.train import run as vit_train
from vit.config import Config
from vit.device import usable_cores
from vit.errors import ConfigError, TrainingError
from vit.runs import read_metrics
from vit.train import fit
from vit.training import distributed
from vit.training.distributed import (
    COUNTS,
    JOINED_BY,
    SINGLE,
    gather_batch,
    init_distributed,
    own_place,
)
from vit.training.dynamics import read_dynamics
from vit.training.run import Run
from vit.training.run_folder import load_state, saved_states

FILES = "config.yaml metrics.jsonl checkpoints model.safetensors config.json trained_on.npy summary.json .lock"
STEPS = 60
# 21 images in batches of 10: in CLASSIFY the last batch of an epoch has one image, less than there
# are processes; with contrast it is left out.
RECONSTRUCT = """
data: {source: folder, root: images, cache: cache}
augment: {views: 2, crop_scale: [0.5, 1.0]}
model: {image_size: 16, patch_size: 4, embed_dim: 16, depth: 2, num_heads: 2, decoder_dim: 16,
        decoder_depth: 1, decoder_heads: 2, drop_path: 0.3, freeze: [W_Q]}
reconstruct: {contrast: 0.1}
optim: {blr: 0.01}
train: {epochs: 30, batch_size: 10, precision: fp32}
run: {save_every: 50, device: cpu}
"""
CLASSIFY = """
data: {source: folder, root: images, cache: cache}
augment: {rand_augment: 2}
model: {image_size: 16, patch_size: 4, embed_dim: 16, depth: 2, num_heads: 2, drop_path: 0.5}
optim: {name: muon, blr: 0.1, layer_decay: 0.7, ema: 0.5}
train: {objective: classify, epochs: 3, batch_size: 10, precision: fp32}
run: {device: cpu, dynamics_every: 4, grad_accum_steps: 2}
classify: {label_smoothing: 0.1, mixup: 0.8, cutmix: 1.0, drop_patches: 0.5, whole_epochs: 1}
"""
# train.py with the options of each line, without pictures and page, which take longer than all else.
# Each run has a group of its own. A thread of the group that outlives Python aborts it.
PLAIN = f"""
import os, runpy, sys
from pathlib import Path
from types import SimpleNamespace

def say_threads(*_):
    import torch

    print(torch.get_num_threads(), "threads measure")

sys.modules["vit.report.pictures"] = SimpleNamespace(draw_pictures=say_threads)
sys.modules["vit.report.page"] = SimpleNamespace(write_report=lambda path, out: out.touch())
cores = os.sched_getaffinity(0)
try:
    for line in Path(sys.argv[1]).read_text().splitlines():
        sys.argv[1:] = line.split()
        try:
            runpy.run_path({str(ROOT / "train.py")!r}, run_name="__main__")
        except SystemExit as end:
            if end.code:
                raise
    # the share of the cores is given back; what a script starts is none of the processes
    assert os.sched_getaffinity(0) == cores
    assert "WORLD_SIZE" not in os.environ
finally:
    threads = [path.read_text() for path in Path("/proc/self/task").glob("*/comm")]
    assert not any("gloo" in name for name in threads), threads
"""


def test_rows_are_gathered_in_a_compiled_step_and_the_compiler_says_nothing(monkeypatch):
    # the other process has rows of zeros
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda values: None)
    # rows 1 and 2 of five; the last is none of the batch
    place = torch.tensor([[1, 5], [2, 5], [-1, 5]])
    values = torch.arange(6.0).reshape(3, 2).requires_grad_()
    with warnings.catch_warnings(record=True) as said:
        whole = torch.compile(gather_batch, backend="eager")(values, place)
    (whole**2).sum().backward()
    assert whole.tolist() == [[0, 0], [0, 1], [2, 3], [0, 0], [0, 0]]
    assert values.grad.tolist() == [[0, 2], [4, 6], [0, 0]]
    assert not said


@pytest.fixture
def placed(monkeypatch):
    """`placed(NAME=value, ...)`: the environment of a process that a launcher has started."""
    monkeypatch.setattr(distributed, "_met", [])
    for name in (*JOINED_BY, *COUNTS):
        monkeypatch.delenv(name, raising=False)

    def placed(**variables: object) -> None:
        for name, value in variables.items():
            monkeypatch.setenv(name, str(value))

    return placed


@pytest.mark.parametrize("count", [*COUNTS, "SLURM_NTASKS"])
def test_a_process_of_several_that_cannot_find_the_others_is_refused(placed, count):
    placed(**{count: 1, "RANK": 0, "MASTER_ADDR": ""})
    assert own_place() == SINGLE
    placed(**{count: 2})
    if count == "SLURM_NTASKS":  # of a shell in an allocation, which is one process
        assert own_place() == SINGLE
        return
    for door in (lambda: vit_train(parse(["train"])[1]), lambda: fit(Config(), "nowhere")):
        with pytest.raises(ConfigError, match=f"^{count}: 2 processes [^\n]*torchrun[^\n]*$"):
            door()


@pytest.mark.parametrize("rank", [0, 1])
def test_who_meets_nobody_says_which_variables_to_unset(placed, monkeypatch, rank, capfd):
    placed(RANK=rank, WORLD_SIZE=2, MASTER_ADDR="localhost", MASTER_PORT=free_port())
    monkeypatch.setattr(distributed, "MEETING", timedelta(seconds=0.1))
    line = r"^RANK . of 2 [^\n]* unset RANK, WORLD_SIZE, MASTER_ADDR, MASTER_PORT [^\n]*$"
    with pytest.raises(TrainingError, match=line), init_distributed(Config()):
        pass
    assert capfd.readouterr() == ("", "")


# --- train.py, started by torchrun ----------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("processes")
    for split, name, count in (
        ("train", "left", 10), ("train", "right", 11), ("test", "left", 2), ("test", "right", 3)
    ):  # fmt: skip
        save_images(folder / "images" / split / name, noise(count, count))
    (folder / "plain.py").write_text(PLAIN)
    (folder / "reconstruct.yaml").write_text(RECONSTRUCT)
    (folder / "classify.yaml").write_text(CLASSIFY)
    return folder


def free_port() -> str:
    with socket.create_server(("localhost", 0)) as server:
        return str(server.getsockname()[1])


TORCHRUN = ("-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2")


def start(place: Path, *lines: str) -> subprocess.Popen[str]:
    """Start two processes, which train with the options of each line in turn."""
    (place / "lines").write_text("\n".join(lines))
    return subprocess.Popen(
        [sys.executable, *TORCHRUN, "plain.py", "lines"],
        cwd=place,
        env=environment() | {"PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def losses(place: Path, out: str) -> list[float]:
    lines = read_metrics(place / out / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, len(lines) + 1))
    return [line["loss"] for line in lines]


def train_alone(place: Path, out: str, config: str, resume: bool = False) -> Run:
    """The same run in this process."""
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(place)
        return fit(Config.read(f"{config}.yaml", {"run.threads": 1}), out, resume=resume)


@pytest.fixture(scope="module")
def alone(place: Path) -> list[float]:
    train_alone(place, "alone", "reconstruct")
    return losses(place, "alone")


@pytest.fixture(scope="module")
def printed(place: Path) -> str:
    """What is printed by both runs, each of which is then found at its end."""
    reconstruct = "--config reconstruct.yaml --out two"
    classify = "--config classify.yaml --out two-classify"
    lines = [reconstruct, f"{reconstruct} --resume", classify, f"{classify} --resume"]
    process = start(place, *lines)
    printed, errors = process.communicate(timeout=600)
    assert process.returncode == 0, errors
    return printed


@pytest.mark.slow
def test_two_processes_of_torchrun_have_the_losses_of_one_and_one_of_them_writes(
    place, alone, printed
):
    assert losses(place, "two") == pytest.approx(alone, rel=1e-4)
    assert len(alone) == STEPS
    assert names(place / "two") == {*FILES.split(), "data.json", "report.html"}
    # each of two times
    assert printed.count("2 processes, 1 x 10 images") == 2
    assert printed.count("loss on masked patches") == 2


@pytest.mark.slow
def test_two_processes_learn_classes_as_one(place, printed):
    train_alone(place, "one-classifies", "classify")
    assert f"{min(2, usable_cores())} threads measure" in printed
    # of each process, in training
    assert json.loads((place / "two-classify" / "summary.json").read_text())["threads"] == 1
    assert losses(place, "two-classify") == pytest.approx(losses(place, "one-classifies"), rel=1e-3)
    of_one = load_file(place / "one-classifies" / "model.safetensors")
    of_two = load_file(place / "two-classify" / "model.safetensors")
    for name, value in of_one.items():
        # no softmax feels the keys' part of this bias: its gradient is mere rounding
        if not name.endswith("qkv.bias"):
            assert_close(of_two[name], value, rtol=1e-3, atol=1e-4)
    steps, alone = read_dynamics(place / "one-classifies" / "dynamics.jsonl")
    same_steps, together = read_dynamics(place / "two-classify" / "dynamics.jsonl")
    assert steps.tolist() == same_steps.tolist() == [1, 2, 4, 8, 9]
    assert_close(together, alone, rtol=1e-3, atol=1e-4)


@pytest.mark.slow
def test_stopped_run_of_two_continues_as_one(place, alone):
    """SIGTERM reaches the launcher, as a cluster sends it, which hands it on."""
    process = start(place, "--config reconstruct.yaml --out stopped --run.save_every 1")
    until = time.monotonic() + 600
    states = place / "stopped" / "checkpoints"
    while not saved_states(states) and process.poll() is None:
        assert time.monotonic() < until
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    _, errors = process.communicate(timeout=600)
    if process.returncode == 0:
        pytest.fail(f"the run was over before the signal came: {errors}")
    advice = "stopped by SIGTERM; continue with: python train.py --out stopped --resume"
    assert errors.count(advice) == 1
    assert "train.py: error" not in errors
    assert 1 <= load_state(saved_states(states)[-1])["step"] < STEPS
    run = train_alone(place, "stopped", "reconstruct", resume=True)
    assert any("the run began on" in note for note in run.notes)
    assert losses(place, "stopped") == pytest.approx(alone, rel=1e-4)


@pytest.mark.slow
def test_what_stops_one_stops_all_in_one_line(place):
    """The exit code is torchrun's, which also says how each process ended."""
    process = start(place, "--config reconstruct.yaml --out bad --data.root nowhere")
    printed, errors = process.communicate(timeout=600)
    assert process.returncode != 0, errors
    ours = [line for line in errors.splitlines() if line.startswith("train.py: ")]
    assert len(ours) == 1
    assert "nowhere" in ours[0]
    assert not (place / "bad").exists()
    assert not printed
