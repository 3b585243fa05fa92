"""States on disk: the same to the bit, never a damaged one used, never fewer than one good."""

from __future__ import annotations

import hashlib
import io
import pickle
import random
import struct
import subprocess
import sys
import zipfile
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from tiny import Payload, assert_same, full_disk, names

from vit.errors import RunError
from vit.training.run_folder import (
    load_latest_state,
    load_state,
    save_state,
    saved_states,
    state_path,
)

FLIPS = TRUNCATIONS = 200


def small_state(step: int = 3) -> dict:
    return {
        "step": step,
        "model": {"weight": torch.full((4,), float(step))},
        "config": {"a": [1, None, "x"]},
    }


def trained_state() -> dict:
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(5, 7), torch.nn.LayerNorm(7), torch.nn.Linear(7, 3))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, betas=(0.9, 0.95), fused=True)
    for _ in range(3):
        model(torch.randn(6, 5)).square().sum().backward()
        optimizer.step()
    odd = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, 3.4e38])
    whole = [torch.tensor([2**63 - 1]), torch.tensor([True, False]), torch.ones(0)]
    plain = {"step": 2**40, "seconds": 1 / 3, "text": "Äpfel\n", "none": None, "flag": False}
    tensors = [odd, odd.bfloat16(), odd.double(), *whole]
    return plain | {
        "model": dict(model.state_dict()),
        "optimizer": optimizer.state_dict(),
        "odd": tensors,
    }


def steps(folder: Path) -> list[int]:
    return [load_state(path)["step"] for path in saved_states(folder)]


def with_tail(content: bytes) -> bytes:
    """`content`, a zip file or not, made to pass the checksum."""
    comment = b"sha256:" + hashlib.sha256(content).hexdigest().encode()
    return content + struct.pack("<H", len(comment)) + comment


# --- save and load --------------------------------------------------------------------------------


def test_state_comes_back_to_the_bit_and_is_an_ordinary_torch_and_zip_file(tmp_path):
    state, folder = trained_state(), tmp_path / "checkpoints"
    path = save_state(folder, 7, state)
    assert path == state_path(folder, 7)
    assert_same(load_state(path), state)
    assert_same(torch.load(path, weights_only=True), state)
    assert names(folder) == {path.name}
    with zipfile.ZipFile(path) as archive:
        assert archive.testzip() is None
        assert any(name.endswith("data.pkl") for name in archive.namelist())
    assert save_state(tmp_path / "other", 1, trained_state()).read_bytes() == path.read_bytes()


# --- damage ---------------------------------------------------------------------------------------


def notices(path: Path, content: bytes) -> bool:
    path.write_bytes(content)
    try:
        load_state(path)
    except RunError as error:
        return str(path) in str(error)
    return False


def test_every_damage_is_noticed(tmp_path):
    path = save_state(tmp_path, 3, small_state())
    whole = path.read_bytes()
    assert not notices(path, whole)
    draws = random.Random(0)
    noticed = 0
    for bit in draws.sample(range(8 * len(whole)), FLIPS):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        noticed += notices(path, bytes(damaged))
    for length in {0, 1, len(whole) - 1, *draws.sample(range(2, len(whole) - 1), TRUNCATIONS - 3)}:
        noticed += notices(path, whole[:length])
    assert noticed == FLIPS + TRUNCATIONS
    assert notices(path, whole + b"x")


def test_latest_state_is_the_newest_that_is_whole(tmp_path):
    for folder in (tmp_path, tmp_path / "missing"):
        assert saved_states(folder) == []
        assert load_latest_state(folder) is None
    # the order is that of the steps, not of the names
    for step in (99_999_999, 100_000_000, 100_000_001):
        save_state(tmp_path, step, small_state(step))
    assert steps(tmp_path) == [100_000_000, 100_000_001]
    assert load_latest_state(tmp_path)[0]["step"] == 100_000_001
    assert load_latest_state(tmp_path)[1] == []
    assert load_latest_state(tmp_path, last=100_000_000)[0]["step"] == 100_000_000
    assert load_latest_state(tmp_path, last=99_999_999) is None

    newest, oldest = state_path(tmp_path, 100_000_001), state_path(tmp_path, 100_000_000)
    newest.write_bytes(newest.read_bytes()[:-1])
    state_path(tmp_path, 100_000_002).mkdir()  # cannot be read
    state, notes = load_latest_state(tmp_path)
    assert state["step"] == 100_000_000
    assert ["directory" in note for note in notes] == [True, False]
    assert str(newest) in notes[1]

    oldest.write_bytes(b"")
    with pytest.raises(RunError, match="no usable state") as caught:
        load_latest_state(tmp_path)
    assert str(newest) in str(caught.value)
    assert str(oldest) in str(caught.value)


# --- what is kept ---------------------------------------------------------------------------------


def test_last_two_are_kept_and_other_files_are_no_states_and_stay(tmp_path):
    others = {
        "step-00000001.pt.bak",
        "step-1.pt",
        "mine-step-00000001.pt",
        ".step-00000009-abc.pt",
        "notes.txt",
    }
    for name in others:
        (tmp_path / name).write_text("mine")
    for step in range(1, 6):
        save_state(tmp_path, step, {"step": "old"})
        save_state(tmp_path, step, small_state(step))  # takes the other's place
        assert steps(tmp_path) == [step - 1, step][-step:]
    assert names(tmp_path) == others | {state_path(tmp_path, step).name for step in (4, 5)}


# --- saving that fails ----------------------------------------------------------------------------


@pytest.mark.parametrize("failure", ["deletion", "full disk"])
def test_saving_that_fails_costs_no_state(tmp_path, monkeypatch, failure):
    for step in (1, 2):
        save_state(tmp_path, step, small_state(step))
    before, unlink = {path: path.read_bytes() for path in saved_states(tmp_path)}, Path.unlink

    def failing(path: Path, missing_ok: bool = False) -> None:
        if path.name.startswith("step-"):
            raise PermissionError(1, "Operation not permitted", str(path))
        unlink(path, missing_ok=missing_ok)

    if failure == "deletion":
        monkeypatch.setattr(Path, "unlink", failing)
    large = small_state(3) | {"model": torch.ones(1_000_000)}
    with (
        full_disk(100_000) if failure == "full disk" else nullcontext(),
        pytest.raises(OSError, match=r"not permitted|too large"),
    ):
        save_state(tmp_path, 3, large)
    assert {path: path.read_bytes() for path in before} == before
    assert names(tmp_path) == {
        state_path(tmp_path, step).name for step in range(1, 4 if failure == "deletion" else 3)
    }
    monkeypatch.undo()
    for step in (4, 5):
        save_state(tmp_path, step, small_state(step))
    assert steps(tmp_path) == [4, 5]


KILLED = """
import os, random, signal, sys, time
from pathlib import Path
import torch
from vit.training.run_folder import load_latest_state, save_state, saved_states

torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork
draws = random.Random(0)
folder = Path(sys.argv[1])
reached = 0
for kill in range(int(sys.argv[2])):
    begun, begin = os.pipe()
    child = os.fork()
    if not child:
        for step in range(reached + 1, 10**6):
            save_state(folder, step, {"step": step, "weight": torch.full((500_000,), step)})
            if step == reached + 1:
                os.write(begin, b"x")
    os.read(begun, 1)
    time.sleep(draws.uniform(0, 0.05))
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    os.close(begun), os.close(begin)
    state, damaged = load_latest_state(folder)
    assert state["step"] > reached and (state["weight"] == state["step"]).all() and not damaged, (state, damaged)
    assert len(saved_states(folder)) <= 3  # a kill between saving and removing leaves one more
    reached = state["step"]
print("survived", sys.argv[2])
"""


@pytest.mark.slow
def test_kill_at_any_moment_leaves_a_whole_state(tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, tmp_path, "20"], capture_output=True, text=True, check=False
    )
    assert done.stdout == "survived 20\n", done.stderr


# --- what is no state -----------------------------------------------------------------------------


@pytest.mark.parametrize("form", ["zip", "legacy", "plain pickle"])
def test_malicious_state_is_refused_and_not_executed(tmp_path, form):
    executed = tmp_path / "executed"
    buffer = io.BytesIO()
    state = small_state() | {"model": Payload(executed)}
    if form == "plain pickle":
        pickle.dump(state, buffer, protocol=2)
    else:
        torch.save(state, buffer, _use_new_zipfile_serialization=form == "zip")
    content = buffer.getvalue()
    path = state_path(tmp_path, 3)
    # without the length of a zip file's empty comment
    path.write_bytes(with_tail(content[:-2] if form == "zip" else content))
    with pytest.raises(Exception, match=r"Weights only|[Uu]npickl|persistent"):
        load_state(path)
    assert not executed.exists()
    if form == "plain pickle":  # the payload is a live one
        pickle.loads(content)
        assert executed.exists()
