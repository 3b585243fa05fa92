"""What must not change while the house is rebuilt: hashes of runs, of images and of loaded checkpoints.

    python tests/yardstick.py > before.txt     # four minutes on one core
    python tests/yardstick.py > after.txt && diff before.txt after.txt

Not a test: the hashes depend on the machine and on torch's version. Everything goes through the commands and
`vit.load_model`, so that the code behind them may change. One line per fact: its kind, its name, its hash.
"""

import contextlib
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import timm
import torch
import torchvision
import transformers
from forks import ROOT, environment
from PIL import Image
from safetensors.torch import load_file
from small import random_model, transformers_model, under
from torch import nn

from vit import load_model

transformers.utils.logging.disable_progress_bar()
TRAIN = ["train.py"]
TWO = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "train.py"]
# what a clock or the machine decides, in metrics.jsonl and summary.json
VOLATILE = {"images_per_second", "seconds", "device", "versions", "threads"}
QUICK = ["--data", "scenes", "--data.limit", "512", "--train.batch_size", "64"]
CONTRAST = shlex.split(
    "--config cifar10_tiny_p4 --data scenes --data.limit 256 --data.val_size 32 --train.epochs 3 "
    "--optim.warmup_epochs 0.5 --model.depth 2 --train.batch_size 48 --run.val_every 1 "
    "--run.save_every 4 --run.dynamics_every 3"
)
CLASSIFY = shlex.split(
    "--config finetune_cifar10_tiny_p4 --data scenes --data.limit 256 --train.epochs 2 --model.depth 2 "
    "--optim.warmup_epochs 0.5 --classify.whole_epochs 0 --train.batch_size 32 --model.init"
)


def digest(*parts: bytes | str) -> str:
    """The beginning of a SHA-256."""
    hasher = hashlib.sha256()
    for part in parts:
        hasher.update(part.encode() if isinstance(part, str) else part)
    return hasher.hexdigest()[:16]


def digest_of_tensors(tensors: dict[str, torch.Tensor]) -> str:
    """One hash of names, shapes, types and bits."""
    parts = []
    for name in sorted(tensors):
        value = tensors[name].detach().contiguous()
        parts.append(f"{name} {tuple(value.shape)} {value.dtype}")
        parts.append(
            value.view(torch.uint8).numpy().tobytes() if value.dim() else bytes(value.numpy())
        )
    return digest(*parts)


def digest_of_lines(text: str) -> str:
    """One hash of what a run wrote as JSON, without what the machine decides."""

    def kept(pairs: list[tuple[str, object]]) -> dict[str, object]:
        return {key: value for key, value in pairs if key not in VOLATILE}

    return digest(json.dumps(json.loads(text, object_pairs_hook=kept)))


# ---- Runs ----------------------------------------------------------------------------------------


def train(out: Path, words: list[str], start: list[str] = TRAIN) -> subprocess.Popen:
    command = [sys.executable, *start, *words, "--run.threads", "1", "--out", str(out)]
    with out.with_suffix(".log").open("a") as log:
        return subprocess.Popen(command, cwd=ROOT, env=environment(), stdout=log, stderr=log)


def run(out: Path, words: list[str], start: list[str] = TRAIN) -> None:
    if train(out, words, start).wait() != 0:
        raise SystemExit(f"{out.name}: {out.with_suffix('.log').read_text()}")


def cut_and_resumed(out: Path, words: list[str]) -> None:
    """The run, stopped by a signal after its first saved state, and continued."""
    process = train(out, words)
    while process.poll() is None and not list((out / "checkpoints").glob("step-*.pt")):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.wait()
    run(out, ["--resume"])


def runs(folder: Path) -> None:
    made = {
        "quickstart": lambda out: run(out, QUICK),
        "contrast and Muon": lambda out: run(out, CONTRAST),
        "classify": lambda out: run(out, [*CLASSIFY, ""]),
        "two processes": lambda out: run(out, CONTRAST, TWO),
        "cut and resumed": lambda out: cut_and_resumed(out, CONTRAST),
        "from a checkpoint": lambda out: run(out, [*CLASSIFY, str(folder / "contrast")]),
    }
    for name, make in made.items():
        out = folder / name.split()[0]
        make(out)
        lines = ",".join((out / "metrics.jsonl").read_text().splitlines())
        summary = (out / "summary.json").read_text().replace(str(folder), "")
        facts = {
            "weights": digest_of_tensors(load_file(out / "model.safetensors")),
            "metrics": digest_of_lines(f"[{lines}]"),
            "summary": digest_of_lines(summary),
        }
        for fact, value in facts.items():
            print(f"run         {name:24} {fact:8} {value}", flush=True)


# ---- Layouts of image folders --------------------------------------------------------------------

# Their pictures: where, how many, the first seed, and height and width of what are then JPEG
LAYOUTS = {
    "train and test": [
        ("train/ape", 6, 0), ("test/ape", 6, 50), ("train/bee", 6, 100), ("test/bee", 6, 150),
    ],
    "train and val": [
        ("train/ape", 5, 0), ("val/ape", 5, 70),
        ("train/bee/deeper", 5, 200), ("val/bee/deeper", 5, 270),
    ],
    "classes only": [("Zebra", 12, 0), ("ape", 12, 100), ("bee", 12, 200)],
    "no classes": [("", 30, 0)],
    "train without classes": [("train", 30, 0)],
    "copies": [("ape", 15, 0), ("bee", 15, 10)],  # five of them are apes, too
    "large and odd": [("ape", 10, 0, (97, 61)), ("bee", 10, 50, (61, 131))],
    "modes": [],
    "unreadable and hidden": [("ape", 12, 0), ("bee", 12, 100), (".hidden", 3, 500)],
}  # fmt: skip
OPTIONS = {
    "large and odd": ["--model.image_size", "[16, 24]", "--model.patch_size", "8"],
    "unreadable and hidden": ["--data.on_bad_image", "skip", "--model.image_size", "16"],
}


def picture(seed: int, size: tuple[int, int] = (40, 48), mode: str = "RGB") -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize(size[::-1], Image.Resampling.BICUBIC).convert(mode)


def write_layout(name: str, root: Path) -> None:
    for place, count, seed, *size in LAYOUTS[name]:
        (root / place).mkdir(parents=True)
        for number in range(count):
            file = root / place / f"{number:03d}.{'jpg' if size else 'png'}"
            picture(seed + number, *size).save(file)
    if name == "unreadable and hidden":
        (root / "ape" / "003.png").write_bytes(b"no picture")
        (root / "bee" / "._005.png").write_bytes(b"a Mac's")
        (root / "bee" / "notes.txt").write_text("not a picture")
        os.symlink(root / "ape", root / "bee" / "apes")
    if name == "modes":
        write_modes(root)


def write_modes(root: Path) -> None:
    """Images of every mode, and one to be turned by a quarter."""
    for number, mode in enumerate(("L", "RGBA", "P", "CMYK", "1", "I;16")):
        kind = root / ("ape" if number % 2 else "bee")
        kind.mkdir(parents=True, exist_ok=True)
        for copy in range(6):
            image = picture(10 * number + copy, mode="L" if mode == "I;16" else mode)
            if mode == "I;16":
                image = Image.fromarray(np.asarray(image, dtype=np.uint16) * 257)
            image.save(kind / f"{number}-{copy}.{'jpg' if mode == 'CMYK' else 'png'}")
    turned = picture(99)
    exif = turned.getexif()
    exif[0x0112] = 6
    turned.save(root / "ape" / "turned.jpg", exif=exif)


def images(folder: Path) -> None:
    for name in LAYOUTS:
        root = folder / "layouts" / name.replace(" ", "-")
        write_layout(name, root)
        for state in ("cold", "warm"):
            command = [sys.executable, "-m", "vit", "data", "--json", "--data", str(root)]
            command += OPTIONS.get(name, ["--model.image_size", "16"])
            command += ["--data.cache", str(folder / "cache")]
            done = subprocess.run(
                command, cwd=ROOT, env=environment(), capture_output=True, text=True
            )
            if done.returncode:
                raise SystemExit(f"{name}: {done.stderr}")
            facts = json.loads(done.stdout)
            known = [facts[key] for key in ("train_images", "test_images", "train_classes")]
            hashes = f"{digest(json.dumps(known))} {facts['content_hash']}"
            print(f"images      {name:24} {state:8} {hashes}")


# ---- Checkpoints ---------------------------------------------------------------------------------

TIMM = dict(img_size=32, depth=2, num_classes=5)
DECODER = dict(
    decoder_hidden_size=24, decoder_num_hidden_layers=1, decoder_num_attention_heads=3,
    decoder_intermediate_size=48,
)  # fmt: skip


def filled(model: nn.Module) -> nn.Module:
    """The model with seeded values in every tensor."""
    torch.manual_seed(0)
    return random_model(model)


def timm_model(name: str = "vit_tiny_patch16_224", **settings: object) -> nn.Module:
    return filled(timm.create_model(name, pretrained=False, **TIMM | settings))


def sources(folder: Path) -> Iterator[tuple[str, object]]:
    """Names, and models in memory, or what torch.save writes, or folders and names that can be loaded."""
    state = timm_model().state_dict()
    yield "timm bare", state
    yield "timm twelve blocks", timm_model(depth=12).state_dict()
    yield "timm deit3", timm_model("deit3_small_patch16_224").state_dict()
    registers = timm_model("vit_small_patch14_reg4_dinov2", img_size=28)
    yield "timm registers", registers.state_dict()
    yield "timm distilled", timm_model("deit_tiny_distilled_patch16_224").state_dict()
    yield "timm in memory", timm_model(qk_norm=True)
    yield "timm gap in memory", timm_model("vit_medium_patch16_gap_240")
    for name in ("vit_tiny_patch16_224", "vit_medium_patch16_gap_240"):
        place = folder / name
        timm.models.save_for_hf(
            timm_model(name), place, model_args=dict(TIMM), safe_serialization=True
        )
        yield f"timm folder {name}", place
    for kind, settings in {
        "ViTModel": {}, "DeiTModel": {}, "ViTMAEForPreTraining": DECODER,
        "Dinov2Model": {}, "Dinov2WithRegistersModel": dict(num_register_tokens=2), "IJepaModel": {},
    }.items():  # fmt: skip
        theirs = filled(transformers_model(getattr(transformers, kind), **settings))
        theirs.save_pretrained(folder / kind)
        yield f"transformers {kind}", folder / kind
    vision = torchvision.models.VisionTransformer(16, 4, 2, 4, 32, 64, num_classes=5)
    yield "torchvision", filled(vision).state_dict()
    yield "wrapped", {"epoch": 3, "state_dict": under("module.", state)}
    teacher = timm_model(num_classes=0).state_dict()
    copies = {"student": state, "teacher": teacher}
    yield "DINO", {name: under("module.backbone.", copy) for name, copy in copies.items()}
    yield "shipped", "vit-tiny-p4-cifar10"
    yield "shipped classifier", "vit-tiny-p4-cifar10-finetuned"


def checkpoints(folder: Path) -> None:
    folder = folder / "checkpoints"
    folder.mkdir()
    for name, source in sources(folder):
        if isinstance(source, dict):
            file = folder / f"{name.replace(' ', '-')}.pt"
            torch.save(source, file)
            source = file
        options = {"DINO": {"branch": "teacher"}, "torchvision": {"num_heads": 2}}.get(name, {})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = load_model(source if isinstance(source, nn.Module) else str(source), **options)
        said = "\n".join(sorted(str(item.message) for item in caught)).replace(str(folder), "")
        report = str(model.origin.report).replace(str(folder), "")
        facts = [model.origin.format, model.origin.normalize.mean, model.origin.normalize.std, said]
        tensors = digest_of_tensors(model.state_dict())
        print(f"checkpoint  {name:36} {tensors} {digest(report)} {digest(repr(facts))}", flush=True)


if __name__ == "__main__":
    torch.set_num_threads(1)
    kinds = {"images": images, "checkpoints": checkpoints, "runs": runs}
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        for chosen in sys.argv[1:] or kinds:
            kinds[chosen](Path(temporary))
