"""No step waits for a GPU or mixes devices: shown on "meta", where a tensor has no values to wait for.

What the compiler makes, nccl, memory and a GPU's own kernels need a card.
"""

from contextlib import nullcontext
from importlib import import_module
from unittest.mock import Mock

import pytest
import torch
from tiny import CLASSIFY, RECONSTRUCT, begin
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

import vit.device
import vit.training.loop
import vit.training.run
from vit.config import Config, changed
from vit.data.draws import Draws
from vit.device import Compute, all_to_device, to_device
from vit.training.distributed import Distributed, gather_batch
from vit.training.dynamics import DynamicsRecorder
from vit.training.loop import train_steps

META = torch.device("meta")
# so many epochs that none of the first steps is one whose results are written; torch's AdamW is fused on real GPUs alone
LONG = changed(RECONSTRUCT, {"train.epochs": 200, "optim.name": "muon"})
CLASSES = changed(CLASSIFY, {"train.epochs": 200, "optim.name": "muon", "optim.layer_decay": 1.0})
CONTRAST = {"augment.views": 2, "augment.color_jitter": 0.4, "reconstruct.contrast": 0.1}
PARTS = {"mask.kind": "block", "model.drop_path": 0.1, "run.grad_accum_steps": 2}
WHOLE = {"classify.drop_patches": 0.0, "classify.whole_epochs": 0.0, "augment.crop": "pad"}
CONFIGS = {
    "contrast": changed(LONG, {"augment.grayscale": 0.2, **CONTRAST}),
    "parts, frozen": changed(LONG, {"augment.shuffle": "across", "model.freeze": ["W_Q"], **PARTS}),
    "classify, average": changed(CLASSES, {"optim.ema": 0.9, **WHOLE}),
    "classify, drop patches": CLASSES,
}


@pytest.fixture(autouse=True)
def _steps_on_meta(monkeypatch):
    """They are not checked one by one, as on a GPU; "meta" has no autocast, and torch's AdamW refuses it."""
    monkeypatch.setattr(
        import_module("torch.optim.adam"), "_device_dtype_check_for_fused", lambda *_: None
    )
    monkeypatch.setattr(Compute, "checks_each_step", False)
    monkeypatch.setattr(vit.training.run, "choose_compute", lambda *_: Compute(META))
    monkeypatch.setattr(torch, "autocast", lambda *_, **__: nullcontext())


class OneDevice(TorchDispatchMode):
    """Refuses operators on tensors of two devices, as a GPU does: numbers and copies may come from the host."""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        inputs = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor) and x.ndim]
        if len({x.device for x in inputs}) > 1 and "copy" not in func.name():
            raise RuntimeError(f"{func} mixes devices")
        return func(*args, **kwargs or {})


def go(config: Config, tmp_path) -> None:
    run = begin(changed(config, {"run.dynamics_every": 1}))
    recorder = DynamicsRecorder(tmp_path / "dynamics.jsonl", run)
    steps = train_steps(run, [recorder])
    with OneDevice():
        for _ in range(3):
            done = next(steps)
    # whoever reads a value waits
    with pytest.raises(NotImplementedError, match="no data"):
        done.check()


@pytest.mark.parametrize("config", CONFIGS.values(), ids=CONFIGS)
def test_no_step_waits_for_a_value_or_mixes_devices(config, tmp_path):
    go(config, tmp_path)


def test_a_step_that_waits_or_mixes_devices_is_found(monkeypatch, tmp_path):
    finite = Tensor.isfinite
    for owner, name, wrong in (
        (Tensor, "isfinite", lambda values: finite(values) if bool(values.sum()) else values),
        (Draws, "to", lambda draws, device: draws),
    ):
        with monkeypatch.context() as patch, pytest.raises(RuntimeError):  # noqa: PT012
            patch.setattr(owner, name, wrong)
            go(CONFIGS["contrast"], tmp_path)


def test_processes_exchange_rows_and_gradients_without_a_wait(monkeypatch):
    monkeypatch.setattr(torch.distributed, "all_reduce", lambda values: None)
    rows = torch.ones(3, 2, device=META, requires_grad=True)
    whole = gather_batch(rows, torch.tensor([[1, 4], [2, 4], [-1, 4]]))
    whole.sum().backward()
    Distributed(0, 2).sum_gradients([rows])
    assert whole.shape == (4, 2)


def test_what_goes_to_a_gpu_is_pinned_and_copied_in_the_background(monkeypatch):
    cuda = torch.device("cuda")
    values = Mock(is_cuda=False)
    to_device(values, cuda)
    values.pin_memory().to.assert_called_once_with(cuda, non_blocking=True)
    # several in one copy
    copies = []
    pinned = []
    monkeypatch.setattr(Tensor, "pin_memory", lambda values: pinned.append(len(values)) or values)
    monkeypatch.setattr(
        Tensor, "to", lambda values, *where, **how: copies.append((where, how)) or values
    )
    tensors = [torch.arange(5), torch.rand(2, 3), torch.tensor([True])]
    for one, other in zip(all_to_device(tensors, cuda), tensors, strict=True):
        assert torch.equal(one, other)
    assert copies == [((cuda,), {"non_blocking": True})]
    # 40 + 24 + 1 bytes, each from a multiple of 16
    assert pinned == [48 + 32 + 16]
