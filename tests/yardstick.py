"""What must not change while the house is rebuilt: hashes of runs, of images and of loaded checkpoints.

    python tests/yardstick.py > before.txt     # four minutes on one core
    python tests/yardstick.py > after.txt && diff before.txt after.txt

Not a test: the hashes depend on the machine and on torch's version. Everything goes through the commands and
`vit.load_model`, so that the code behind them may change. One line per fact: its kind, its name, its hash.
"""

from __future__ import annotations

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
from pathlib import Path

import numpy as np
import timm
import torch
import torchvision
import transformers
from PIL import Image
from safetensors import safe_open
from torch import nn

transformers.utils.logging.disable_progress_bar()
ROOT = Path(__file__).resolve().parent.parent
ONE_THREAD = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)}
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


def digest(content: bytes | str) -> str:
    """The beginning of a SHA-256."""
    if isinstance(content, str):
        content = content.encode()
    return hashlib.sha256(content).hexdigest()[:16]


def digest_of_tensors(tensors: dict[str, torch.Tensor]) -> str:
    """One hash of names, shapes, types and bits."""
    hasher = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().contiguous()
        hasher.update(f"{name} {tuple(value.shape)} {value.dtype}".encode())
        hasher.update(
            value.view(torch.uint8).numpy().tobytes() if value.dim() else bytes(value.numpy())
        )
    return hasher.hexdigest()[:16]


def without_volatile(value: object) -> object:
    if isinstance(value, dict):
        return {key: without_volatile(item) for key, item in value.items() if key not in VOLATILE}
    if isinstance(value, list):
        return [without_volatile(item) for item in value]
    return value


# ---- Runs ----------------------------------------------------------------------------------------


def train(out: Path, words: list[str], start: list[str] = TRAIN) -> subprocess.Popen:
    command = [sys.executable, *start, *words, "--run.threads", "1", "--out", str(out)]
    with out.with_suffix(".log").open("a") as log:
        return subprocess.Popen(command, cwd=ROOT, env=ONE_THREAD, stdout=log, stderr=log)


def finish(process: subprocess.Popen, out: Path) -> None:
    if process.wait() != 0:
        raise SystemExit(
            f"{out.name}: exit code {process.returncode}\n{out.with_suffix('.log').read_text()}"
        )


def run(out: Path, words: list[str], start: list[str] = TRAIN) -> Path:
    finish(train(out, words, start), out)
    return out


def cut_and_resumed(out: Path, words: list[str]) -> Path:
    """The run, stopped by a signal after its first saved state, and continued."""
    process = train(out, words)
    while process.poll() is None and not list((out / "checkpoints").glob("step-*.pt")):
        time.sleep(0.01)
    process.send_signal(signal.SIGTERM)
    process.wait()
    finish(train(out, ["--resume"]), out)
    return out


def describe_run(out: Path) -> dict[str, str]:
    with safe_open(out / "model.safetensors", "pt") as file:
        weights = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    summary = json.loads((out / "summary.json").read_text())
    return {
        "weights": digest_of_tensors(weights),
        "metrics": digest(json.dumps(without_volatile(lines))),
        "summary": digest(json.dumps(without_volatile(summary)).replace(str(out.parent), "")),
    }


def runs(folder: Path) -> None:
    made = {"quickstart": run(folder / "quickstart", QUICK)}
    made["contrast and Muon"] = run(folder / "contrast", CONTRAST)
    made["classify"] = run(folder / "classify", [*CLASSIFY, ""])
    made["two processes"] = run(folder / "two", CONTRAST, TWO)
    made["cut and resumed"] = cut_and_resumed(folder / "cut", CONTRAST)
    made["from a checkpoint"] = run(folder / "init", [*CLASSIFY, str(folder / "contrast")])
    for name, out in made.items():
        for fact, value in describe_run(out).items():
            print(f"run         {name:24} {fact:8} {value}", flush=True)


# ---- Layouts of image folders --------------------------------------------------------------------


def picture(seed: int, height: int = 40, width: int = 48, mode: str = "RGB") -> Image.Image:
    noise = np.random.default_rng(seed).integers(0, 256, (5, 6, 3), dtype=np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC).convert(mode)


def write_pictures(folder: Path, count: int, seed: int, ending: str = "png", **shape: int) -> None:
    folder.mkdir(parents=True)
    for number in range(count):
        picture(seed + number, **shape).save(folder / f"{number:03d}.{ending}")


def layouts(folder: Path) -> dict[str, tuple[Path, list[str]]]:
    """Nine folders, by what is special about them, with options."""
    made: dict[str, tuple[Path, list[str]]] = {}

    def add(name: str, *options: str) -> Path:
        made[name] = (folder / name.replace(" ", "-"), list(options))
        return made[name][0]

    for split in ("train", "test"):
        for seed, kind in enumerate(("ape", "bee")):
            write_pictures(
                folder / "train-and-test" / split / kind, 6, 100 * seed + (split == "test") * 50
            )
    add("train and test")
    root = add("train and val")
    for split in ("train", "val"):
        write_pictures(root / split / "ape", 5, 0 if split == "train" else 70)
        write_pictures(root / split / "bee" / "deeper", 5, 200 if split == "train" else 270)
    root = add("classes only")
    for seed, kind in enumerate(("Zebra", "ape", "bee")):
        write_pictures(root / kind, 12, 100 * seed)
    write_pictures(add("no classes"), 30, 0)
    write_pictures(add("train without classes") / "train", 30, 0)
    root = add("copies")
    write_pictures(root / "ape", 15, 0)
    write_pictures(root / "bee", 15, 10)  # five of them are apes, too
    root = add("large and odd", "--model.image_size", "[16, 24]", "--model.patch_size", "8")
    write_pictures(root / "ape", 10, 0, "jpg", height=97, width=61)
    write_pictures(root / "bee", 10, 50, "jpg", height=61, width=131)
    root = add("modes")
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
    exif[0x0112] = 6  # to be turned by a quarter
    turned.save(root / "ape" / "turned.jpg", exif=exif)
    root = add("unreadable and hidden", "--data.on_bad_image", "skip")
    write_pictures(root / "ape", 12, 0)
    write_pictures(root / "bee", 12, 100)
    (root / "ape" / "003.png").write_bytes(b"no picture")
    (root / "bee" / "._005.png").write_bytes(b"a Mac's")
    (root / "bee" / "notes.txt").write_text("not a picture")
    write_pictures(root / ".hidden", 3, 500)
    os.symlink(root / "ape", root / "bee" / "apes")
    return made


def images(folder: Path) -> None:
    for name, (root, options) in layouts(folder / "layouts").items():
        for state in ("cold", "warm"):
            command = [sys.executable, "-m", "vit", "data", "--json", "--data", str(root), *options]
            command += ["--data.cache", str(folder / "cache"), "--model.image_size", "16"]
            if "--model.image_size" in options:
                del command[-2:]
            done = subprocess.run(command, cwd=ROOT, env=ONE_THREAD, capture_output=True, text=True)
            if done.returncode:
                raise SystemExit(f"{name}: {done.stderr}")
            facts = json.loads(done.stdout)
            known = {key: facts.get(key) for key in ("content_hash", "train_images", "test_images")}
            known["classes"] = facts.get("classes", facts.get("class_names"))
            print(
                f"images      {name:24} {state:8} {digest(json.dumps(known))} {known['content_hash']}"
            )


# ---- Checkpoints ---------------------------------------------------------------------------------


def filled(model: nn.Module) -> nn.Module:
    """The model with seeded values in every tensor."""
    generator = torch.Generator().manual_seed(0)
    for value in [*model.parameters(), *model.buffers()]:
        if value.is_floating_point():
            value.data = torch.randn(value.shape, generator=generator) * 0.1
    return model.eval()


def timm_model(name: str = "vit_tiny_patch16_224", **settings: object) -> nn.Module:
    sizes = dict(img_size=32, depth=2, num_classes=5)
    return filled(timm.create_model(name, pretrained=False, **sizes | settings))


def transformers_model(kind: str, **settings: object) -> nn.Module:
    sizes = dict(
        image_size=16, patch_size=4, hidden_size=32, num_hidden_layers=2, num_attention_heads=4
    )
    config = getattr(
        transformers, f"{kind.removesuffix('Model').removesuffix('ForPreTraining')}Config"
    )
    if not kind.startswith("Dinov2"):
        sizes["intermediate_size"] = 64
    return filled(getattr(transformers, kind)(config(**sizes | settings)))


def checkpoints(folder: Path) -> None:
    folder = folder / "checkpoints"
    folder.mkdir()
    sources: dict[str, object] = {}

    def saved(name: str, content: object) -> None:
        sources[name] = folder / f"{name.replace(' ', '-')}.pt"
        torch.save(content, sources[name])

    # timm: bare states, folders, models in memory
    saved("timm bare", timm_model().state_dict())
    saved("timm twelve blocks", timm_model(depth=12).state_dict())
    saved("timm deit3", timm_model("deit3_small_patch16_224").state_dict())
    saved("timm registers", timm_model("vit_small_patch14_reg4_dinov2", img_size=28).state_dict())
    saved("timm distilled", timm_model("deit_tiny_distilled_patch16_224").state_dict())
    sources["timm in memory"] = timm_model(qk_norm=True)
    sources["timm gap in memory"] = timm_model("vit_medium_patch16_gap_240")
    for name in ("vit_tiny_patch16_224", "vit_medium_patch16_gap_240"):
        sources[f"timm folder {name}"] = folder / name
        sizes = dict(img_size=32, depth=2, num_classes=5)
        timm.models.save_for_hf(
            timm_model(name), folder / name, model_args=sizes, safe_serialization=True
        )

    # transformers
    decoder = dict(
        decoder_hidden_size=24, decoder_num_hidden_layers=1, decoder_num_attention_heads=3,
        decoder_intermediate_size=48,
    )  # fmt: skip
    for kind, settings in {
        "ViTModel": {}, "DeiTModel": {}, "ViTMAEForPreTraining": decoder,
        "Dinov2Model": {}, "Dinov2WithRegistersModel": dict(num_register_tokens=2), "IJepaModel": {},
    }.items():  # fmt: skip
        sources[f"transformers {kind}"] = folder / kind
        transformers_model(kind, **settings).save_pretrained(folder / kind)

    # torchvision, wrappers, several copies, ours
    vision = torchvision.models.VisionTransformer(16, 4, 2, 4, 32, 64, num_classes=5)
    saved("torchvision", filled(vision).state_dict())
    state = timm_model().state_dict()
    saved(
        "wrapped",
        {"epoch": 3, "state_dict": {f"module.{key}": value for key, value in state.items()}},
    )
    copies = {}
    for name, other in (("student", state), ("teacher", timm_model(num_classes=0).state_dict())):
        copies[name] = {f"module.backbone.{key}": value for key, value in other.items()}
    saved("DINO", copies)
    sources["shipped"] = "vit-tiny-p4-cifar10"
    sources["shipped classifier"] = "vit-tiny-p4-cifar10-finetuned"

    from vit import load_model

    for name, source in sources.items():
        options = {"DINO": {"branch": "teacher"}, "torchvision": {"num_heads": 2}}.get(name, {})
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            model = load_model(source if isinstance(source, nn.Module) else str(source), **options)
        said = "\n".join(sorted(str(item.message) for item in caught)).replace(str(folder), "")
        report = str(model.origin.report).replace(str(folder), "")
        facts = [model.origin.format, model.origin.normalize.mean, model.origin.normalize.std, said]
        tensors = digest_of_tensors(model.state_dict())
        print(f"checkpoint  {name:36} {tensors} {digest(report)} {digest(repr(facts))}", flush=True)
        if os.environ.get("VERBOSE"):
            print(report, said, sep="\n", file=sys.stderr)


if __name__ == "__main__":
    torch.set_num_threads(1)
    kinds = {"images": images, "checkpoints": checkpoints, "runs": runs}
    with tempfile.TemporaryDirectory() as temporary, contextlib.chdir(temporary):
        for chosen in sys.argv[1:] or kinds:
            kinds[chosen](Path(temporary))
