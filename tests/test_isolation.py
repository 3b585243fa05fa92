"""A library call leaves the process as it was, whichever state that was."""

import logging
import os
import random
import signal
import sys
import threading
import warnings
from contextlib import ExitStack

import matplotlib
import numpy as np
import pytest
import torch
import torch.nn.functional as F
from tiny import RECONSTRUCT, noise, same, without_layout
from torch import nn
from tqdm import tqdm

import vit
from vit.checkpoints import load_model, save_model
from vit.config import changed
from vit.errors import SIGNALS
from vit.evaluation import evaluate
from vit.inputs import to_float
from vit.interpret import attention_statistics, head_ablation, relevance
from vit.look.predict import embed, predict
from vit.report.page import write_report
from vit.report.record import read_run
from vit.training.run import Run

SETTINGS = {
    "train.objective": "classify",
    "train.epochs": 1,
    "run.save_every": 100,
    "run.threads": 2,
    "run.snapshots": 2,
}
PAIRS = [(image, number % 3) for number, image in enumerate(noise(24))]


def modes() -> dict[str, object]:
    """Torch's modes, by name."""
    return {
        "gradients": torch.is_grad_enabled(),
        "inference": torch.is_inference_mode_enabled(),
        "autocast": torch.is_autocast_enabled("cpu"),
        "dtype": torch.get_default_dtype(),
        "device": str(torch.get_default_device()),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "fast path": torch.backends.mha.get_fastpath_enabled(),
        "threads": torch.get_num_threads(),
    }


def state() -> dict[str, object]:
    """What a library could leave changed, by name."""
    patched = {}
    for owner in (F, torch, nn.Module, nn.MultiheadAttention):
        for name, value in vars(owner).items():
            if callable(value):
                patched[f"{owner.__name__}.{name}"] = id(value)
    return modes() | {
        "torch's generator": torch.random.get_rng_state().tolist(),
        "Python's generator": hash(random.getstate()),
        "NumPy's generator": str(np.random.get_state()),
        "running threads": sorted(thread.name for thread in threading.enumerate()),
        "patched": patched,
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "filters": [str(item) for item in warnings.filters],
        "signals": [signal.getsignal(number) for number in SIGNALS],
        "rcParams": str(dict(matplotlib.rcParams)),
        "root logger": (logging.root.level, len(logging.root.handlers)),
        "streams": (id(sys.stdout), id(sys.stderr), id(sys.excepthook)),
    }


def fitted(folder, **options) -> Run:
    config = changed(RECONSTRUCT, SETTINGS | {"data.cache": str(folder.parent / "cache")})
    return vit.fit(config, folder, PAIRS, PAIRS[:6], **options)


@pytest.fixture(scope="module")
def run(tmp_path_factory) -> Run:
    return fitted(tmp_path_factory.mktemp("first") / "run")


def test_a_call_leaves_the_process_as_it_was(run, tmp_path):
    model = load_model(run.folder.path)
    images = to_float(noise(2), (16, 16))
    methods = ["knn", "linear", "head"]
    calls = {
        "fit": lambda: fitted(tmp_path / "run"),
        "load_model": lambda: load_model(run.folder.path),
        "save_model": lambda: save_model(tmp_path / "saved", model, run.origin),
        "predict": lambda: predict(model, noise(2)),
        "embed": lambda: embed(model, noise(2)),
        "evaluate": lambda: evaluate(model, run.data, methods, run.compute),
        "relevance": lambda: relevance(model, images, 1, lambda x: model.forward_head(model(x))),
        "head_ablation": lambda: head_ablation(model, lambda: model(images).square().mean()),
        "attention_statistics": lambda: attention_statistics(model, [images]),
        "write_report": lambda: write_report(read_run(run.folder.path), tmp_path / "page.html"),
    }
    torch.set_num_threads(1)
    tqdm.monitor = None
    torch.manual_seed(7)
    before = state()
    for name, call in calls.items():
        with without_layout():
            call()
        after = state()
        for key, value in before.items():
            assert after[key] == value, (name, key)


def test_a_training_is_the_same_in_every_mode_of_torch(run, tmp_path):
    with ExitStack() as around:
        around.enter_context(torch.inference_mode())
        around.enter_context(torch.autocast("cpu", torch.bfloat16))
        around.enter_context(torch.device("meta"))
        around.callback(torch.use_deterministic_algorithms, False)
        around.callback(torch.set_default_dtype, torch.get_default_dtype())
        torch.use_deterministic_algorithms(True)
        torch.set_default_dtype(torch.float64)
        before = modes()
        # a checkpoint loaded there has tensors of the mode
        again = fitted(tmp_path / "run")
        fitted(tmp_path / "next", init=load_model(run.folder.path))
        assert modes() == before
    same(again.result, run.result)
    # and it can be trained further by hand
    loss = again.result.train()(to_float(noise(2), (16, 16))).square().mean()
    loss.backward()
