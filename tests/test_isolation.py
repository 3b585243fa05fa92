"""A library call leaves the process as it was, whichever state that was."""

from __future__ import annotations

import logging
import os
import random
import signal
import sys
import threading
import warnings
from collections.abc import Callable

import matplotlib
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny import RECONSTRUCT, assert_same, noise, without_layout
from torch import Tensor, nn
from tqdm import tqdm

import vit
from vit.checkpoints import load_model, save_model
from vit.config import changed
from vit.evaluation import evaluate
from vit.inputs import to_float
from vit.interpret import (
    attention_statistics,
    head_ablation,
    relevance,
)
from vit.look.predict import embed, predict
from vit.report.page import write_report
from vit.report.record import read_run
from vit.training.process import SIGNALS
from vit.training.run import Run

CONFIG = changed(
    RECONSTRUCT,
    {
        "train.objective": "classify",
        "train.epochs": 1,
        "run.save_every": 100,
        "run.threads": 2,
        "run.snapshots": 2,
    },
)
PAIRS = [(image, number % 3) for number, image in enumerate(noise(24))]


def patched() -> dict[str, int]:
    """The functions that attention, layers and libraries call, by their identity."""
    owners = (F, torch, Tensor, nn.Module, nn.Linear, nn.MultiheadAttention, nn.functional)
    found = {}
    for owner in owners:
        for name, value in vars(owner).items():
            if callable(value):
                found[f"{owner.__name__}.{name}"] = id(value)
    return found


def state() -> dict[str, object]:
    """What a library could leave changed, by name."""
    numpy_state = np.random.get_state()
    return {
        "torch's generator": torch.random.get_rng_state().tolist(),
        "Python's generator": hash(random.getstate()),
        "NumPy's generator": [str(numpy_state[0]), numpy_state[1].tolist(), *numpy_state[2:]],
        "threads": torch.get_num_threads(),
        "running threads": sorted(thread.name for thread in threading.enumerate()),
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": [torch.is_autocast_enabled(kind) for kind in ("cpu", "cuda")],
        "dtype": str(torch.get_default_dtype()),
        "device": str(torch.get_default_device()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "patched": patched(),
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "filters": [str(item) for item in warnings.filters],
        "signals": [signal.getsignal(number) for number in SIGNALS],
        "rcParams": str(dict(matplotlib.rcParams)),
        "root logger": (logging.root.level, len(logging.root.handlers)),
        "streams": (id(sys.stdout), id(sys.stderr), id(sys.excepthook)),
    }


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    folder = tmp_path_factory.mktemp("run")
    config = changed(CONFIG, {"data.cache": str(folder / "cache")})
    return vit.fit(config, folder / "run", PAIRS, PAIRS[:6])


NAMES = (
    *("fit", "load_model", "save_model", "predict", "embed", "evaluate"),
    *("relevance", "head_ablation", "attention_statistics", "write_report"),
)


@pytest.mark.parametrize("name", NAMES)
def test_a_call_leaves_the_process_as_it_was(name, run, tmp_path):
    model = load_model(run.folder.path)
    images = to_float(noise(2), (16, 16))
    config = changed(CONFIG, {"data.cache": str(tmp_path / "cache")})
    methods = ["knn", "linear", "head"]
    calls = {
        "fit": lambda: vit.fit(config, tmp_path / "run", PAIRS, PAIRS[:6]),
        "load_model": lambda: load_model(run.folder.path),
        "save_model": lambda: save_model(tmp_path / "saved", model, run.normalize, ("a", "b", "c")),
        "predict": lambda: predict(model, noise(2)),
        "embed": lambda: embed(model, noise(2)),
        "evaluate": lambda: evaluate(model, run.data, methods, run.normalize, run.compute),
        "relevance": lambda: relevance(model, images, 1, lambda x: model.forward_head(model(x))),
        "head_ablation": lambda: head_ablation(model, lambda: model(images).square().mean()),
        "attention_statistics": lambda: attention_statistics(model, [images]),
        "write_report": lambda: write_report(read_run(run.folder.path), tmp_path / "page.html"),
    }
    torch.set_num_threads(1)
    tqdm.monitor = None
    torch.manual_seed(7)
    before = state()
    with without_layout():
        calls[name]()
    after = state()
    for key, value in before.items():
        assert after[key] == value, key


class Ambient:
    """A mode of the whole process, for a block."""

    def __init__(self, switch: Callable[[object], object], on: object, off: object):
        self.switch, self.on, self.off = switch, on, off

    def __enter__(self) -> None:
        self.switch(self.on)

    def __exit__(self, *_: object) -> None:
        self.switch(self.off)


MODES = {
    "no_grad": torch.no_grad,
    "inference_mode": torch.inference_mode,
    "autocast": lambda: torch.autocast("cpu", torch.bfloat16),
    "dtype": lambda: Ambient(torch.set_default_dtype, torch.float64, torch.float32),
    "device": lambda: torch.device("meta"),
    "deterministic": lambda: Ambient(torch.use_deterministic_algorithms, True, False),
}


@pytest.mark.parametrize("mode", MODES)
def test_a_training_is_the_same_in_every_mode_of_torch(mode, run, tmp_path):
    config = changed(CONFIG, {"data.cache": str(tmp_path / "cache")})
    with MODES[mode]():
        before = state()
        # a checkpoint loaded there has tensors of the mode
        again = vit.fit(config, tmp_path / "run", PAIRS, PAIRS[:6])
        after = state()
        vit.fit(config, tmp_path / "next", PAIRS, PAIRS[:6], init=load_model(run.folder.path))
    for key in ("gradients", "inference", "autocast", "dtype", "device", "deterministic"):
        assert after[key] == before[key]
    assert_same(dict(again.result.state_dict()), dict(run.result.state_dict()))
    # and it can be trained further by hand
    loss = again.result.train()(to_float(noise(2), (16, 16))).square().mean()
    loss.backward()
