"""Where a run computes: the best there is, or what was asked for, or one line."""

from __future__ import annotations

import pytest
import torch

import vit.device
from vit.config import ConfigError, RunConfig
from vit.device import Compute, bf16_pays, cache_on_device, choose_compute, device_name, to_device
from vit.errors import one_line

CPU = torch.device("cpu")


@pytest.fixture
def machine(monkeypatch):
    """Pretend to be a machine with these devices."""

    def pretend(*devices: str) -> None:
        monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in devices)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in devices)

    return pretend


@pytest.mark.parametrize(
    ("devices", "best"), [((), "cpu"), (("mps",), "mps"), (("cuda",), "cuda"), (("cuda", "mps"), "cuda")]
)
def test_auto_is_the_best_there_is(machine, devices, best):
    machine(*devices)
    assert choose_compute(RunConfig(), precision="fp32") == Compute(torch.device(best), "fp32")


@pytest.mark.parametrize("device", ["cpu", "cuda", "mps"])
def test_what_is_asked_for_wins_over_the_best(machine, device):
    machine("cuda", "mps")
    assert choose_compute(RunConfig(device=device), precision="fp32").device.type == device


@pytest.mark.parametrize(("device", "there"), [("cuda", "mps"), ("mps", "cuda")])
def test_device_that_is_not_there_is_refused_in_one_line(machine, device, there):
    for devices, found in (((), "cpu"), ((there,), f"{there}, cpu")):
        machine(*devices)
        with pytest.raises(ConfigError, match=rf"^run\.device: '{device}'") as caught:
            choose_compute(RunConfig(device=device))
        message = str(caught.value)
        assert message == one_line(message)
        assert found in message


def test_bf16_never_pays_where_the_processor_does_not_have_it(monkeypatch):
    for name in ("_is_avx512_bf16_supported", "_is_amx_tile_supported"):
        monkeypatch.setattr(torch.cpu, name, lambda: False)
    assert bf16_pays(CPU) is False
    assert bf16_pays(torch.device("mps")) is False


@pytest.mark.parametrize("pays", [True, False])
def test_automatic_precision(machine, monkeypatch, pays):
    machine()
    monkeypatch.setattr(vit.device, "bf16_pays", lambda device: pays)
    assert choose_compute(RunConfig()).precision == ("bf16" if pays else "fp32")
    for precision in ("bf16", "fp32"):
        assert choose_compute(RunConfig(), precision=precision).precision == precision  # as asked for, or as it began


def test_bf16_on_a_device_without_it_is_refused(machine):
    machine("mps")
    with pytest.raises(ConfigError, match=r"^train\.precision: 'bf16'") as caught:
        choose_compute(RunConfig(), "bf16")
    assert str(caught.value) == one_line(str(caught.value))
    assert "fp32" in str(caught.value)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", torch.float32), ("bf16", torch.bfloat16)])
def test_autocast_computes_products_in_the_precision(precision, dtype):
    compute, layer = Compute(CPU, precision), torch.nn.Linear(4, 4)
    with compute.autocast():
        assert layer(torch.ones(2, 4)).dtype == dtype
    assert layer(torch.ones(2, 4)).dtype == layer.weight.dtype == torch.float32


@pytest.mark.parametrize("threads", [1, 2])
def test_threads_are_as_asked_for(threads):
    before = torch.get_num_threads()
    try:
        compute = choose_compute(RunConfig(device="cpu", threads=threads), precision="fp32")
        assert torch.get_num_threads() == threads
        assert f"{threads} threads" in str(compute)
        choose_compute(RunConfig(device="cpu", threads=0), precision="fp32")
        assert torch.get_num_threads() == threads
    finally:
        torch.set_num_threads(before)


def test_device_has_a_name_on_one_line():
    name = device_name(CPU)
    assert name
    assert name == one_line(name)
    assert name in str(Compute(CPU, "bf16"))
    assert "bf16" in str(Compute(CPU, "bf16"))


@pytest.mark.parametrize(
    ("device", "steps", "choice", "compiled"),
    [
        ("cpu", 10**6, "auto", False),
        ("cpu", 0, "on", True),
        ("cuda", 4_999, "auto", False),
        ("cuda", 5_000, "auto", True),
        ("cuda", 10**6, "off", False),
    ],
)
def test_compiled_when_asked_for_or_for_long_runs_on_a_gpu(machine, device, steps, choice, compiled):
    machine("cuda")
    assert choose_compute(RunConfig(device=device, compile=choice), "fp32", steps).compile == compiled


def test_on_a_cpu_images_are_where_they_are():
    images = torch.arange(3)
    assert cache_on_device(images, CPU) is images
    assert to_device(images, CPU) is images
