"""A folder belongs to one run and one process; a damaged state is never used, a good one never lost."""

import io
import os
import pickle
import random
import signal
import time
from contextlib import nullcontext
from pathlib import Path

import pytest
import torch
from tiny import Payload, assert_same, full_disk, names

from vit.atomic import make_folder, replacing, write_text
from vit.errors import RunError
from vit.training.run_folder import (
    RunFolder,
    _tail,
    load_latest_state,
    load_state,
    save_state,
    saved_states,
    state_path,
)


def refusal(work, *arguments: object) -> str:
    with pytest.raises(RunError) as caught:
        work(*arguments)
    return str(caught.value)


# --- the folder -----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["config.yaml", "model.safetensors"])
def test_folder_that_holds_anything_of_a_run_is_refused_and_left_as_it_is(tmp_path, name):
    """A link, too, in a file's place leads nowhere."""
    precious = tmp_path / "precious"
    precious.write_text("mine\n")
    folder = RunFolder(tmp_path / "run")
    folder.path.mkdir()
    (folder.path / name).symlink_to(precious)
    for work in (folder.refuse_if_taken, lambda: folder.begin("train: {}\n")):
        assert f"{folder.path} already holds a run, or a part of one ({name})" in refusal(work)
    assert precious.read_text() == "mine\n"
    assert names(folder.path) == {name, ".lock"}


def test_second_process_is_refused_until_the_first_has_ended(tmp_path):
    reads, writes = os.pipe()
    child = os.fork()
    if not child:
        folder = RunFolder(tmp_path)
        try:
            folder.begin("the first\n")
            os.write(writes, b"begun")
            signal.pause()
        finally:
            os._exit(1)
    try:
        assert os.read(reads, 5) == b"begun"
        for config in ("the second\n", None):
            assert "another process" in refusal(RunFolder(tmp_path).begin, config)
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    RunFolder(tmp_path).begin(None)
    assert (tmp_path / "config.yaml").read_text() == "the first\n"


@pytest.mark.parametrize("instead", ["nothing", "another run", "a file"])
@pytest.mark.parametrize("moment", ["before", "written"])
def test_a_folder_that_is_renamed_while_a_file_is_written_gets_no_more(tmp_path, instead, moment):
    mine = tmp_path / "mine"
    other = tmp_path / "other"
    with RunFolder(other) as folder:
        folder.begin("the other's\n")
    write_text(other / "model", "the other's\n")

    def rename() -> None:
        mine.rename(tmp_path / "away")
        if instead == "another run":
            other.rename(mine)
        elif instead == "a file":
            mine.touch()

    def write() -> None:
        if moment == "before":
            rename()
        with replacing(mine / "model") as temporary:
            temporary.write_text("mine\n")
            if moment == "written":
                rename()

    with RunFolder(mine) as folder:
        folder.begin("mine\n")
        assert "removed, renamed or replaced" in refusal(write)
        assert "removed, renamed or replaced" in refusal(make_folder, mine / "checkpoints")
    assert mine.exists() == (instead != "nothing")
    if instead == "another run":
        found = {path.name: path.read_text() for path in mine.iterdir()}
        assert found == {".lock": "", "config.yaml": "the other's\n", "model": "the other's\n"}


# --- states ---------------------------------------------------------------------------------------


def small_state(step: int = 3) -> dict:
    return {"step": step, "weight": torch.full((4,), float(step))}


def steps(folder: Path) -> list[int]:
    return [load_state(path)["step"] for path in saved_states(folder)]


def test_state_comes_back_to_the_bit_and_is_an_ordinary_torch_file(tmp_path):
    odd = torch.tensor([0.0, -0.0, float("inf"), float("-inf"), float("nan"), 1e-45, 3.4e38])
    whole = [torch.tensor([2**63 - 1]), torch.tensor([True, False]), torch.ones(0)]
    plain = {"step": 2**40, "seconds": 1 / 3, "text": "Äpfel\n", "none": None, "flag": False}
    state = plain | {"tensors": [odd, odd.bfloat16(), odd.double(), *whole]}
    path = save_state(tmp_path / "checkpoints", 7, state)
    assert_same(load_state(path), state)
    assert_same(torch.load(path, weights_only=True), state)
    assert save_state(tmp_path / "other", 1, state).read_bytes() == path.read_bytes()


def test_every_damage_is_noticed(tmp_path):
    path = save_state(tmp_path, 3, small_state())
    whole = path.read_bytes()
    draws = random.Random(0)
    damages = [whole[:length] for length in (0, 1, *draws.sample(range(2, len(whole)), 200))]
    for bit in draws.sample(range(8 * len(whole)), 200):
        damaged = bytearray(whole)
        damaged[bit // 8] ^= 1 << bit % 8
        damages.append(bytes(damaged))
    for content in (*damages, whole + b"x"):
        path.write_bytes(content)
        assert str(path) in refusal(load_state, path)


def test_last_two_are_kept_and_the_newest_that_is_whole_is_taken(tmp_path):
    assert load_latest_state(tmp_path / "missing") is None
    (tmp_path / "step-00000001.pt.bak").write_text("mine")
    # the order is that of the steps, not of the names
    for step in (99_999_998, 99_999_999, 100_000_000):
        save_state(tmp_path, step, small_state(step))
        save_state(tmp_path, step, small_state(step))
    assert steps(tmp_path) == [99_999_999, 100_000_000]
    assert load_latest_state(tmp_path)["step"] == 100_000_000
    assert load_latest_state(tmp_path, last=99_999_998) is None

    newest = state_path(tmp_path, 100_000_000)
    newest.write_bytes(newest.read_bytes()[:-1])
    state = load_latest_state(tmp_path)
    assert state["step"] == 99_999_999
    assert str(newest) in state["notes"][0]
    state_path(tmp_path, 99_999_999).write_bytes(b"")
    assert "no usable checkpoint" in refusal(load_latest_state, tmp_path)
    assert (tmp_path / "step-00000001.pt.bak").read_text() == "mine"


@pytest.mark.parametrize("failure", ["deletion", "full disk"])
def test_saving_that_fails_costs_no_state(tmp_path, monkeypatch, failure):
    for step in (1, 2):
        save_state(tmp_path, step, small_state(step))
    unlink = Path.unlink

    def failing(path: Path, missing_ok: bool = False) -> None:
        if path.name.startswith("step-"):
            raise PermissionError(1, "Operation not permitted", str(path))
        unlink(path, missing_ok=missing_ok)

    if failure == "deletion":
        monkeypatch.setattr(Path, "unlink", failing)
    with (
        full_disk(100_000) if failure == "full disk" else nullcontext(),
        pytest.raises(OSError, match=r"not permitted|too large"),
    ):
        save_state(tmp_path, 3, {"step": 3, "model": torch.ones(1_000_000)})
    assert steps(tmp_path) == ([1, 2, 3] if failure == "deletion" else [1, 2])
    monkeypatch.undo()
    for step in (4, 5):
        save_state(tmp_path, step, small_state(step))
    assert names(tmp_path) == {"step-00000004.pt", "step-00000005.pt"}


def save_for_ever(folder: Path, reached: int, begun: int) -> None:
    """Save the state of one step after the other; say so when the first is there."""
    torch.set_num_threads(1)  # the threads of OpenMP do not survive a fork
    for step in range(reached + 1, 10**6):
        save_state(folder, step, {"step": step, "weight": torch.full((500_000,), step)})
        if step == reached + 1:
            os.write(begun, b"x")


@pytest.mark.slow
def test_kill_at_any_moment_leaves_a_whole_state(tmp_path):
    draws = random.Random(0)
    reached = 0
    for _ in range(20):
        begun, begin = os.pipe()
        child = os.fork()
        if not child:
            try:
                save_for_ever(tmp_path, reached, begin)
            finally:
                os._exit(1)
        os.close(begin)
        assert os.read(begun, 1) == b"x"
        os.close(begun)
        time.sleep(draws.uniform(0, 0.05))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        state = load_latest_state(tmp_path)
        assert state["step"] > reached
        assert (state["weight"] == state["step"]).all()
        assert not state["notes"]
        # a kill between saving and removing leaves one more
        assert len(saved_states(tmp_path)) <= 3
        reached = state["step"]


@pytest.mark.parametrize("form", ["zip", "plain pickle"])
def test_malicious_state_is_refused_and_not_executed(tmp_path, form):
    executed = tmp_path / "executed"
    buffer = io.BytesIO()
    if form == "plain pickle":
        pickle.dump(Payload(executed), buffer, protocol=2)
    else:
        torch.save(small_state() | {"model": Payload(executed)}, buffer)
    # made to pass the checksum; without the length of a zip file's empty comment
    content = buffer.getvalue()
    signed = content[:-2] if form == "zip" else content
    path = state_path(tmp_path, 3)
    path.write_bytes(signed + _tail(signed))
    with pytest.raises(Exception, match=r"Weights only|[Uu]npickl|persistent"):
        load_state(path)
    assert not executed.exists()
    if form == "plain pickle":  # the payload is a live one
        pickle.loads(content)
        assert executed.exists()
