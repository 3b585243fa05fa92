"""train.py as it is used: run to the end, interrupted at every place, continued, refused.

What an outside signal shows is a plain command. The other runs are forks.
"""

import hashlib
import json
import random
import re
import shlex
import shutil
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import pytest
import torch
from forks import ROOT, Forks, calls
from PIL import Image
from tiny import names, noise, save_images

from vit.checkpoints import load_model
from vit.runs import read_metrics
from vit.training.run_folder import load_state, saved_states

TRAIN = ROOT / "train.py"
FILES = "config.yaml metrics.jsonl checkpoints model.safetensors config.json trained_on.npy summary.json"
FOR_THE_PAGE = "snapshots data.json report.html attention.png curves.png"
PROMISED = {*FILES.split(), *FOR_THE_PAGE.split()}
OF_CLASSES = PROMISED | {"confusion.png", "reliability.png", "mistakes.png"}
OF_QUICKSTART = PROMISED | {"reconstructions.png", "dynamics.jsonl", "dynamics.png"}
STEPS, SAVE_EVERY = 12, 5  # 4 epochs of 20 images in batches of 8, 8 and 4

CONFIG = """
data: {source: folder, root: images, cache: cache}
augment: {crop_scale: [0.5, 1.0]}
model: {image_size: 16, patch_size: 4, embed_dim: 16, depth: 2, num_heads: 2, decoder_dim: 16,
        decoder_depth: 1, decoder_heads: 2, drop_path: 0.2, freeze: [W_Q]}
optim: {blr: 0.02}
train: {epochs: 4, batch_size: 8, precision: fp32}
run: {grad_accum_steps: 2, save_every: 5, device: cpu, threads: 1, snapshots: 3}
"""

PREPARED = """
# the first, which an optimizer imports, takes longest
import torch._dynamo, vit.train, vit.report.page
from vit.cli import parse
from vit.config import Config
parse(["train"])  # makes the parser, which each run would make anew
Config.read("quickstart")
"""


class Done(NamedTuple):
    """A command that has ended."""

    code: int
    out: str
    err: str


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Iterator[Callable[..., Done]]:
    """`run(cwd, line, before, pictures, page)`: train.py in a fork that has imported all.

    The program `before` runs first. Without `pictures`, which take longest, there are none, and
    without `page` it is an empty file.
    """
    with Forks(tmp_path_factory.mktemp("server"), PREPARED) as forks:

        def run(
            cwd: Path, line: str, before: str = "", pictures: bool = False, page: bool = False
        ) -> Done:
            lines = ["from vit.report import page, pictures", before]
            lines += [] if pictures else ["pictures.draw_pictures = lambda *_: None"]
            lines += [] if page else ["page.write_report = lambda path, out: out.touch()"]
            done = forks(
                cwd,
                "\n".join(
                    [
                        *lines,
                        calls(TRAIN, shlex.split(line)),
                        "sys.exit(99)  # where train.py does not",
                    ]
                ),
            )
            return Done(done.returncode, done.stdout, done.stderr)

        yield run


@pytest.fixture(scope="module")
def place(tmp_path_factory) -> Path:
    """A working directory with images and a configuration."""
    place = tmp_path_factory.mktemp("place")
    for number, name in enumerate(("cat", "dog")):
        for split, count in (("train", 10), ("test", 3)):
            images = noise(count, count + number, (20, 24))
            save_images(place / "images" / split / name, images)
    (place / "mine.yaml").write_text(CONFIG)
    return place


@pytest.fixture(scope="module")
def whole(place, run) -> Path:
    """The folder of a run that nothing interrupted, without its pictures."""
    done = run(place, "--config mine.yaml")
    assert done.code == 0, done.err
    return place / "runs" / "mine"


def content(folder: Path) -> dict[str, str]:
    """The SHA-256 of every file below a folder."""
    files = (path for path in folder.rglob("*") if path.is_file() and path.name != ".lock")
    return {
        str(path.relative_to(folder)): hashlib.sha256(path.read_bytes()).hexdigest()
        for path in files
    }


def timeless(folder: Path) -> list[dict]:
    """The lines of its metrics, and its summary, without what the clock says."""
    summary = json.loads((folder / "summary.json").read_text())
    lines = [*read_metrics(folder / "metrics.jsonl"), summary]
    return [line | {"seconds": 0, "images_per_second": 0} for line in lines]


def assert_same_run(folder: Path, other: Path) -> None:
    """The same settings, losses, weights, scores and, if they were drawn, pictures, to the bit."""
    drawn = [path.name for path in other.glob("*.png")]
    for name in ("model.safetensors", "config.json", "config.yaml", *drawn):
        assert (folder / name).read_bytes() == (other / name).read_bytes(), name
    assert timeless(folder) == timeless(other)
    assert names(folder) == names(other)
    assert content(folder / "snapshots") == content(other / "snapshots")


CLASSIFY = (
    "--config=mine.yaml --train.objective=classify --model.init=runs/mine --classify.mixup=0.8 "
    "--classify.cutmix=1 --optim.ema=0.9 --optim.layer_decay=0.7 --data.val_size=4 "
    "--run.val_every=2 --model.global_pool=token"
)


# --- a whole run ----------------------------------------------------------------------------------


def test_run_ends_well_and_leaves_what_it_promises(place, whole, run):
    done = run(place, f"{CLASSIFY} --out classified", pictures=True)
    folder = place / "classified"
    assert done.code == 0, done.err
    assert names(folder) - {".lock"} == OF_CLASSES
    unnamed = {"checkpoints", "config.yaml", "metrics.jsonl", "snapshots", "data.json"}
    for name in OF_CLASSES - unnamed:
        assert name.removesuffix(".json") in done.out  # it says where to look
    for text in (done.out, done.err):
        assert text.replace("\n", "").isprintable()  # no terminal, no control characters
        assert "Warning" not in text
    for path in folder.glob("*.png"):
        with Image.open(path) as picture:
            picture.load()
            assert min(picture.size) > 200
            # more colours than an empty page has
            assert picture.convert("RGB").getcolors(maxcolors=20) is None


# --- again ----------------------------------------------------------------------------------------


def test_what_would_change_a_trained_run_is_refused(whole, place, run):
    shutil.copytree(whole, place / "bare", ignore=shutil.ignore_patterns("checkpoints"))
    for line, said in {
        "--out bare --resume": "bare holds a trained run (summary.json) and no checkpoint",
        "--out runs/mine --resume --model.patch_size=8": "model.patch_size",
        "--config runs/mine/config.yaml": "already holds",
    }.items():
        before = [content(folder) for folder in (place / "bare", whole)]
        done = run(place, line)
        assert (done.code, done.out) == (2, "")
        assert re.fullmatch(rf"train\.py: error: [^\n]*{re.escape(said)}[^\n]*\n", done.err)
        assert [content(folder) for folder in (place / "bare", whole)] == before


def test_resume_finds_its_images_elsewhere_and_may_compute_otherwise(whole, place, run):
    shutil.copytree(place / "images", place / "moved")
    assert (
        run(place, "--config mine.yaml --out moving", before=at_step(8, "SIGKILL")).code
        == -signal.SIGKILL
    )
    done = run(place, "--out moving --resume --data.root moved --run.save_every 3")
    assert done.code == 0, done.err
    assert "from step 5" in done.out
    # the metadata of the file name the data, which is elsewhere
    weights = [load_model(folder).state_dict().values() for folder in (place / "moving", whole)]
    assert all(map(torch.equal, *weights))


# --- interrupted ----------------------------------------------------------------------------------


def at_call(target: str, number: str, condition: str = "True", after: bool = False) -> str:
    """Python that makes the process send itself a signal when a function is called.

    It does so when `target` is called and `condition` holds.
    `target` is module:name or module:class.method; the condition sees the arguments as `args`.
    """
    module, _, name = target.partition(":")
    call = "value = original(*args, **options)\n    "
    return f"""
import importlib, os, signal
owner = importlib.import_module({module!r})
*path, name = {name!r}.split(".")
for part in path:
    owner = getattr(owner, part)
original = getattr(owner, name)
def patched(*args, **options):
    {call if after else ""}if {condition}:
        os.kill(os.getpid(), signal.{number})
    {"" if after else call}return value
setattr(owner, name, patched)
"""


def at_step(step: int, number: str) -> str:
    return at_call(
        "vit.training.callbacks:MetricsFile.on_log",
        number,
        f"args[1]['step'] == {step}",
        after=True,
    )


@pytest.mark.parametrize(
    ("number", "code", "step"),
    [("SIGTERM", 143, 1), ("SIGINT", 130, STEPS)],
)
def test_signal_ends_a_run_within_its_step_and_it_continues_exactly(
    whole, place, run, number, code, step
):
    out = f"{number} {step}"
    stopped = run(place, f"--config mine.yaml --out '{out}'", before=at_step(step, number))
    assert stopped.code == code, stopped.err
    assert (
        stopped.err.splitlines()[-1]
        == f"stopped by {number}; continue with: python train.py --out '{out}' --resume"
    )
    assert f"{number}: stopping after this step ...\n" in stopped.err
    assert "Traceback" not in stopped.err
    folder = place / out
    assert load_state(saved_states(folder / "checkpoints")[-1])["step"] == step
    assert [line["step"] for line in read_metrics(folder / "metrics.jsonl")] == list(
        range(1, step + 1)
    )
    assert not (folder / "summary.json").exists()

    resumed = run(place, f"--out '{out}' --resume")
    assert resumed.code == 0, resumed.err
    assert_same_run(folder, whole)


@pytest.mark.parametrize("step", [3, SAVE_EVERY + 3], ids=["before the first state", "after it"])
def test_killed_run_goes_back_to_its_last_state_and_continues_exactly(whole, place, run, step):
    out = f"killed-{step}"
    assert (
        run(place, f"--config mine.yaml --out {out}", before=at_step(step, "SIGKILL")).code
        == -signal.SIGKILL
    )
    folder = place / out
    assert len(saved_states(folder / "checkpoints")) == step // SAVE_EVERY
    with (folder / "metrics.jsonl").open("a") as metrics:
        metrics.write('{"step": 9, "los')  # as when the kill comes while a line is written
    resumed = run(place, f"--out '{out}' --resume")
    assert resumed.code == 0, resumed.err
    assert ("from step 5" in resumed.out) == (step > SAVE_EVERY)
    assert_same_run(folder, whole)


INTERRUPTIONS = {
    "saving": at_call("vit.training.run:save_state", "SIGTERM"),
    "saved": at_call("vit.training.run:save_state", "SIGTERM", after=True),
    "loading a state": at_call("vit.training.run_folder:load_state", "SIGTERM"),
    "building the model": at_call("vit.training.run:make_optimizer", "SIGTERM"),
    "writing the model": at_call(
        "vit.training.run:save_model", "SIGTERM", "args[0].parent.name != 'snapshots'"
    ),
    "measuring": at_call("vit.evaluation:score_reconstruction", "SIGTERM"),
    "drawing": at_call(
        "vit.figures.style:save_figure", "SIGTERM", "args[1].name == 'attention.png'"
    ),
}


def test_run_goes_on_to_its_end_when_nobody_reads_what_it_says(whole, place, run):
    """As in `vit train 2>&1 | head`: after the bar of step 2, each line on stdout and stderr fails."""
    before = """
import os, vit.progress, vit.training.callbacks as callbacks
callbacks.SECONDS_BETWEEN_LINES = vit.progress.SECONDS_BETWEEN_LINES = 0
original = callbacks.MetricsFile.on_log
def on_log(self, values):
    if values["step"] == 2:
        reads, writes = os.pipe()
        os.close(reads)
        os.dup2(writes, 1)
        os.dup2(writes, 2)
    original(self, values)
callbacks.MetricsFile.on_log = on_log
"""
    done = run(place, "--config mine.yaml --out unread", before=before)
    assert done.code == 0
    assert "step 2/12" in done.err
    assert "step 12/12" not in done.err
    assert_same_run(place / "unread", whole)


def test_run_that_has_lost_its_folder_ends_in_one_line_and_writes_nothing_there(whole, place, run):
    """Another run's folder stands in its place when the model is to be written."""
    out = place / "lost"
    before = f"""
import shutil, vit.train
original = vit.train.measure
def measure(*args, **options):
    shutil.move({str(out)!r}, {str(place / "away")!r})
    shutil.copytree({str(whole)!r}, {str(out)!r})
    return original(*args, **options)
vit.train.measure = measure
"""
    done = run(place, "--config mine.yaml --out lost", before=before)
    assert done.code == 2, done.err
    assert re.fullmatch(
        r"train\.py: error: [^\n]*was removed, renamed[^\n]*", done.err.splitlines()[-1]
    )
    assert content(out) == content(whole)


@pytest.mark.slow
def test_run_interrupted_everywhere_is_the_run_that_was_not(place, run):
    """One run: cut at each of these places in turn, killed and continued until it is through."""
    assert run(place, "--config mine.yaml --out drawn", pictures=True).code == 0
    line = "--config mine.yaml --out patient"
    for where, before in INTERRUPTIONS.items():
        for number, code in (("SIGTERM", 143), ("SIGKILL", -signal.SIGKILL)):
            resume = "--resume" if (place / "patient" / "config.yaml").exists() else ""
            signalled = before.replace("SIGTERM", number)
            done = run(place, f"{line} {resume}", before=signalled, pictures=True)
            assert done.code == code, (where, number, done.err)
            assert "Traceback" not in done.err
            assert not (place / "patient" / "summary.json").exists()
    done = run(place, f"{line} --resume", pictures=True)
    assert done.code == 0, done.err
    assert_same_run(place / "patient", place / "drawn")


@pytest.mark.slow
def test_run_killed_at_any_moment_is_the_run_that_was_not(whole, place, run):
    draws = random.Random(0)
    folder = place / "hunted"
    line = "--config mine.yaml --out hunted"
    codes = []
    for _ in range(30):
        resume = "--resume" if (folder / "config.yaml").exists() else ""
        # An alarm that nobody handles ends the process as a SIGKILL does: wherever it is, with
        # nothing after it. It counts the process's own time, so a busy machine changes nothing.
        before = f"import signal; signal.setitimer(signal.ITIMER_PROF, {draws.uniform(0.02, 0.4)})"
        codes.append(run(place, f"{line} {resume}", before=before).code)
    assert set(codes) <= {0, -signal.SIGPROF}
    assert codes.count(-signal.SIGPROF) > 3
    done = run(place, f"{line} --resume")
    assert done.code == 0, done.err
    for path in folder.rglob(".*-*"):
        path.unlink()  # what was being written when the end came
    assert_same_run(folder, whole)


def test_signal_before_a_run_has_begun_leaves_nothing(place, run):
    before = at_call("vit.train:load_data", "SIGTERM")
    stopped = run(place, "--config mine.yaml --out unborn", before=before)
    assert stopped.code == 143
    assert "SIGTERM" in stopped.err
    assert "--resume" not in stopped.err
    assert not (place / "unborn").exists()


def test_run_whose_loss_explodes_ends_in_one_line_and_saves_nothing_of_it(place, run):
    settings = "--optim.blr 1e37 --optim.clip_grad 0 --optim.warmup_epochs 0 --run.save_every 1"
    done = run(place, f"--config mine.yaml --out exploded {settings}")
    assert done.code == 1
    step = int(re.search(r"^train\.py: error: step (\d+): ", done.err, re.MULTILINE)[1])
    assert "Traceback" not in done.err
    assert not (place / "exploded" / "model.safetensors").exists()
    states = saved_states(place / "exploded" / "checkpoints")
    assert [load_state(path)["step"] for path in states][-1:] == [step - 1]
    lines = read_metrics(place / "exploded" / "metrics.jsonl")
    assert [line["step"] for line in lines] == list(range(1, step))


# --- other data and settings ----------------------------------------------------------------------


@pytest.mark.slow
def test_first_command_of_the_readme_runs_without_cifar_and_says_so(tmp_path, run):
    data = "--train.epochs=1 --data.limit=64 --data.download=false"
    model = "--model.embed_dim=16 --model.depth=1 --model.num_heads=2"
    decoder = "--model.decoder_dim=16 --model.decoder_heads=2"
    done = run(tmp_path, f"{data} {model} {decoder}", pictures=True, page=True)
    assert done.code == 0, done.err
    folder = tmp_path / "runs" / "quickstart"
    assert names(folder) - {".lock"} == OF_QUICKSTART
    summary = json.loads((folder / "summary.json").read_text())
    assert done.err.count("Scenes images instead") == 1
    assert summary["data"]["warning"] in done.err
