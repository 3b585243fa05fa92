"""`vit.fit` is the run of `vit train`: the same weights, with own data and callbacks."""

import shutil
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from forks import ROOT, environment
from PIL import Image
from tiny import CLASSIFY, RECONSTRUCT, assert_same, noise, same

import vit
from vit import Callback, cli, embed, fit, load_model
from vit.config import Config, ModelConfig, changed, flat_settings
from vit.errors import SIGNALS, ConfigError, DataError, RunError
from vit.evaluation.classification import head_logits, temperature
from vit.runs import RunFiles, TrainCommand, read_metrics
from vit.train import set_up
from vit.training.distributed import Distributed
from vit.training.run_folder import RunFolder, load_state, saved_states
from vit.weights import checkpoint_hash

CONFIG = changed(RECONSTRUCT, {"run.save_every": 3, "run.threads": 1})
PAIRS = [(image, number % 3) for number, image in enumerate(noise(24))]
TEST = PAIRS[:6]


class Witness(Callback):
    """Writes down when it is called; ends the run where it is told to."""

    name = "witness"

    def __init__(self, ends_at: int = 0):
        self.ends_at, self.calls, self.count = ends_at, [], 0

    def on_start(self, run):
        self.calls.append(("start", run.step, run.folder.path.name))

    def on_step(self, run, done):
        self.count += 1
        if done.step == self.ends_at:
            raise KeyError("ended")

    def on_log(self, values):
        self.calls.append(("log", values["step"]))

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = (state or {"count": 0})["count"]

    def close(self):
        self.calls.append("close")


def timeless(path: Path) -> list[dict]:
    """Lines without what the clock says."""
    return [line | {"images_per_second": 0, "seconds": 0} for line in read_metrics(path)]


@pytest.fixture(scope="module")
def config(tmp_path_factory):
    return changed(CONFIG, {"data.cache": str(tmp_path_factory.mktemp("cache"))})


@pytest.fixture(scope="module")
def whole(tmp_path_factory, config):
    """A run with its callback, never interrupted."""
    handlers = [signal.getsignal(number) for number in SIGNALS]
    witness = Witness()
    run = fit(config, tmp_path_factory.mktemp("runs") / "whole", PAIRS, TEST, [witness])
    assert [signal.getsignal(number) for number in SIGNALS] == handlers
    return run, witness


def test_a_run_is_returned_and_saved(whole):
    run, witness = whole
    steps = [("log", step) for step in range(1, 7)]
    assert witness.calls == [("start", 0, "whole"), *steps, "close"]
    assert not run.result.training
    assert run.summary["data"]["name"] == "list"
    assert repr(run) == f"Run({run.folder.path}, 6 of 6 steps)"
    same(load_model(run.folder.path), run.result)


def test_the_model_just_trained_carries_what_the_loaded_one_does(whole, tmp_path):
    result = whole[0].result
    loaded = load_model(whole[0].folder.path)
    for name in ("class_names", "data", "data_content_hash", "source", "image_size", "channels"):
        assert getattr(result.origin, name) == getattr(loaded.origin, name), name
    photo = Image.radial_gradient("L").resize((50, 30)).convert("RGB")
    photo.save(tmp_path / "photo.png")
    assert torch.equal(embed(result, photo).pooled, embed(loaded, tmp_path / "photo.png").pooled)
    assert checkpoint_hash(result) == checkpoint_hash(loaded)


def test_an_ended_run_goes_on_as_if_it_had_never_stopped(whole, config, tmp_path):
    with pytest.raises(KeyError) as kept:  # with all frames, as a notebook keeps it
        fit(config, tmp_path / "run", PAIRS, TEST, [Witness(5)])
    witness = Witness()
    run = fit(config, tmp_path / "run", PAIRS, TEST, [witness], resume=True)
    del kept
    assert witness.calls[:2] == [("start", 3, "run"), ("log", 4)]
    assert witness.count == 6  # with those before it was ended
    same(run.result, whole[0].result)
    assert timeless(run.folder.metrics) == timeless(whole[0].folder.metrics)


def test_a_step_whose_snapshot_fails_is_in_no_state_and_made_again(config, tmp_path, monkeypatch):
    config = changed(config, {"run.snapshots": 3})
    write_json = vit.weights.write_json

    def over_quota(path, value):
        if path.parent.name == "step-00000006":
            raise OSError(122, "Disk quota exceeded", str(path))
        write_json(path, value)

    monkeypatch.setattr("vit.weights.write_json", over_quota)
    with pytest.raises(OSError, match="quota"):
        fit(config, tmp_path / "run", PAIRS, TEST)
    (state,) = saved_states(tmp_path / "run" / "checkpoints")
    assert state.name == "step-00000003.pt"
    monkeypatch.undo()
    run = fit(config, tmp_path / "run", PAIRS, TEST, resume=True)
    snapshots = run.folder.saved_snapshots().values()
    assert len(snapshots) == 3
    assert all((folder / "config.json").exists() for folder in snapshots)


def test_the_head_of_a_run_with_held_out_images_is_calibrated_once(tmp_path):
    settings = {"data.val_size": 6, "optim.ema": 0.5, "data.cache": str(tmp_path / "cache")}
    config = changed(CLASSIFY, settings)
    run = fit(config, tmp_path / "run", PAIRS, TEST)
    test = run.data.test
    trained = load_state(saved_states(run.folder.checkpoints)[-1])["model_ema"]
    model = load_model(run.folder.path)
    saved = {name: value.clone() for name, value in model.state_dict().items()}
    assert_same(saved, dict(run.result.state_dict()))
    scores = run.summary["scores"]["head"][0]
    logits = head_logits(model, test.images, model.origin.inputs, run.compute)[0]
    assert scores["cross_entropy"] == float(F.cross_entropy(logits, test.labels))

    # the head is the trained one divided by its temperature, all else as it was
    model.load_state_dict(trained)
    logits = head_logits(model, test.images, model.origin.inputs, run.compute)[0]
    divisor = temperature(logits, test.labels)
    assert abs(divisor - 1) > 0.01
    heads = {name: value / divisor for name, value in trained.items() if name.startswith("head.")}
    assert_same(saved, trained | heads)

    # a run that is killed before its end, and then resumed, does it once
    run.folder.summary.unlink()
    again = fit(config, tmp_path / "run", PAIRS, TEST, resume=True)
    assert_same(dict(again.result.state_dict()), saved)
    assert again.summary["scores"] == run.summary["scores"]


def test_without_held_out_images_a_head_stays_as_it_was_trained(tmp_path):
    config = changed(CLASSIFY, {"data.cache": str(tmp_path / "cache")})
    run = fit(config, tmp_path / "run", PAIRS, TEST)
    state = load_state(saved_states(run.folder.checkpoints)[-1])
    assert_same(state["model"], dict(run.result.state_dict()))


def test_a_run_that_cannot_go_on_is_refused_and_stays_as_it_is(whole, config, tmp_path, capsys):
    folder = tmp_path / "run"
    shutil.copytree(whole[0].folder.path, folder)
    with pytest.raises(RunError, match="already holds a run"):
        fit(config, folder, iter([]))  # before the data is looked at
    with pytest.raises(ConfigError, match="no run in"):
        fit(config, tmp_path / "typo", PAIRS, TEST, resume=True)
    assert cli.main(["train", "--out", str(folder), "--resume"]) == 2
    assert "vit.fit(..., train=...)" in capsys.readouterr().err
    # another version's, whose file is named
    path = folder / "config.yaml"
    text = path.read_text().replace(vit.__version__, "0.0.9", 1)
    path.write_text(text.replace("mask:", "mask: {cubes: 3}\nold:"))
    with pytest.raises(ConfigError, match=r"^--resume: .*config\.yaml: mask\.cubes: no such"):
        fit(config, folder, PAIRS, TEST, resume=True)
    assert not (tmp_path / "typo").exists()


def test_the_settings_name_the_model_that_a_run_was_handed(whole, config, tmp_path):
    base = whole[0].folder.path
    bare = changed(config, {"model": ModelConfig()})  # the architecture is the model's
    run = fit(bare, tmp_path / "run", PAIRS, TEST, init=load_model(base))
    assert run.config.model.init == str(base)
    assert run.summary["init_content_hash"] == whole[0].summary["content_hash"]
    assert run.config.model.embed_dim == config.model.embed_dim


def test_a_callback_with_a_state_needs_a_name_of_its_own(config, tmp_path):
    with pytest.raises(ConfigError, match="Witness has a state, and the name"):
        fit(config, tmp_path / "run", PAIRS, TEST, [Witness(), Witness()])
    assert not (tmp_path / "run").exists()


def test_a_state_that_could_not_be_read_again_is_not_saved(config, tmp_path):
    """One of NumPy's numbers made every state of the run unreadable."""

    class Best(Witness):
        def state_dict(self):
            return {"count": np.float64(self.count)}

    best = Best()
    with pytest.raises(
        ConfigError, match=r"^callbacks: Best\.state_dict returns more than tensors [^\n]*$"
    ):
        fit(config, tmp_path / "run", PAIRS, TEST, [best])
    assert fit(config, tmp_path / "run", PAIRS, TEST, resume=True).step == 6


def test_a_finished_run_that_gets_more_epochs_is_the_longer_run(config, tmp_path):
    """Its lines, snapshots and scores, too, wherever it is killed on the way."""
    held = changed(config, {"optim.cooldown": 0.5, "run.snapshots": 3, "run.dynamics_every": 1})
    longer = changed(held, {"train.epochs": 3})
    whole = fit(longer, tmp_path / "whole", PAIRS, TEST, [Witness()])
    folder = tmp_path / "run"
    fit(held, folder, PAIRS, TEST, [Witness()])
    (folder / "curves.png").touch()  # of the shorter run
    # ended at its first step, with the last states of the shorter run removed
    with pytest.raises(KeyError):
        fit(longer, folder, PAIRS, TEST, [Witness(4)], resume=True)
    assert not [*folder.glob("summary.json"), *folder.glob("*.png")]
    assert load_model(folder)
    run = fit(longer, folder, PAIRS, TEST, [witness := Witness()], resume=True)
    same(run.result, whole.result)
    assert (run.step, witness.count) == (9, 9)
    assert timeless(run.folder.metrics) == timeless(whole.folder.metrics)
    assert timeless(run.folder.dynamics) == timeless(whole.folder.dynamics)
    assert run.summary["scores"] == whole.summary["scores"]
    assert run.summary["content_hash"] == whole.summary["content_hash"]
    # the first run's that come before, and the longer run's
    assert list(run.folder.saved_snapshots()) == ["step 0", "step 2", "step 9"]


def test_every_process_needs_the_same_images(config, tmp_path):
    class Second(Distributed):
        def broadcast_from_main(self, make):
            return "of-the-first"

    command = TrainCommand(config, tmp_path / "run", resume=False)
    with pytest.raises(
        DataError, match=r"process 1 has other images than the first: .*, not of-the-first"
    ):
        set_up(command, RunFolder(command.out), Second(rank=1), PAIRS, TEST, [], None)


LARGE = """
import resource, sys
from itertools import islice
import torch
import vit.data
from vit.config import AugmentConfig, Config, DataConfig, ModelConfig, RunConfig, TrainConfig
from vit.data.sources import load_data
from vit.training.loop import train_steps
from vit.training.run import setup

class Noise(torch.utils.data.Dataset):
    def __init__(self, count):
        self.count = count

    def __len__(self):
        return self.count

    def __getitem__(self, number):
        image = torch.full((3, 128, 128), number % 256, dtype=torch.uint8)
        image[0, 0, 0] = number // 256  # no two images are equal
        return image, number % 2

vit.data.LARGE = 2**24
count, allowed = 6000, 200 * 2**20
config = Config(
    data=DataConfig(cache="cache", val_size=50), augment=AugmentConfig(crop="none"),
    model=ModelConfig(preset="micro", depth=1, image_size=128, patch_size=32),
    train=TrainConfig(epochs=1, batch_size=16, precision="fp32"), run=RunConfig(device="cpu", threads=1),
)
used = next(int(line.split()[1]) * 1024 for line in open("/proc/self/status") if line.startswith("VmData"))
resource.setrlimit(resource.RLIMIT_DATA, (used + allowed,) * 2)
try:
    torch.ones(count, 3, 128, 128, dtype=torch.uint8)  # the images
    sys.exit("the limit does nothing")
except (MemoryError, RuntimeError):
    pass
data = load_data(config.data, (128, 128), Noise(count), Noise(20))
losses = [done.loss for done in islice(train_steps(setup(config, data)), 20)]
seen = sum(len(data.train.images[some]) for some in torch.randperm(len(data.train)).split(64))
print(type(data.train.images).__name__, seen, len(losses))
"""


@pytest.mark.slow
@pytest.mark.skipif(
    sys.platform != "linux", reason="RLIMIT_DATA limits what a process allocates on Linux alone"
)
def test_a_data_set_larger_than_the_memory_that_there_is(tmp_path):
    """295 MB of images, where a process may allocate 210 beside torch itself, are trained on."""
    done = subprocess.run(
        [sys.executable, "-c", LARGE],
        cwd=tmp_path,
        env=environment() | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        timeout=500,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert done.stdout == "Rows 5958 20\n"
    # of a data set that nobody knows again, nothing is kept
    assert list((tmp_path / "cache").iterdir()) == []


def test_a_resumed_run_still_says_that_its_images_are_others(config, tmp_path):
    folder = tmp_path / "run"
    missing = {"source": "cifar10", "root": str(tmp_path), "download": False, "limit": 24}
    settings = changed(
        config, flat_settings({"data": {**missing, "name": "mine", "fallback": "scenes"}})
    )
    with pytest.raises(KeyError):
        fit(settings, folder, callbacks=[Witness(2)])
    # as `--resume` does, with the settings that the run has written
    written = Config.read(RunFiles(folder).config)
    assert (written.data.source, written.data.name) == ("scenes", "")
    run = fit(written, folder, resume=True)
    assert run.summary["data"]["name"] == "Scenes"
    assert run.summary["data"]["warning"].startswith("mine (cifar-10-python.tar.gz) is not in ")
