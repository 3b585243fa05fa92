"""The law of choosing a device: what was requested, else the best there is."""

import os
import warnings

import pytest
import torch
from torch import nn

import vit.device
import vit.machine
from vit.config import RunConfig
from vit.device import Compute, usable_cores
from vit.errors import ConfigError
from vit.machine import bf16_pays, choose_compute, choose_device

CPU = torch.device("cpu")


@pytest.fixture
def machine(monkeypatch):
    """Pretend to have these devices, and what torch.compile needs."""

    def pretend(*devices: str) -> None:
        monkeypatch.setattr(vit.machine, "find_spec", lambda name: "there")
        monkeypatch.setattr(vit.machine.shutil, "which", lambda name: name)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: "cuda" in devices)
        monkeypatch.setattr(torch.backends.mps, "is_available", lambda: "mps" in devices)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (8, 0))

    return pretend


@pytest.mark.parametrize("cuda", [None, "12.8"])
def test_a_cpu_build_beside_an_nvidia_card_is_said_with_the_remedy(
    cuda, tmp_path, monkeypatch, machine
):
    machine()
    monkeypatch.setattr(vit.machine, "NVIDIA_DRIVER", tmp_path)
    monkeypatch.setattr(torch.version, "cuda", cuda)
    with warnings.catch_warnings(record=True, action="always") as found:
        choose_device("cpu")
        assert not found
        choose_device("auto")
    said = [str(warning.message) for warning in found if "--force-reinstall" in str(warning)]
    assert len(said) == (cuda is None)


@pytest.mark.parametrize(
    ("avx512", "amx", "name", "pays"),
    [
        (False, False, "AMD EPYC", False),
        (True, False, "AMD EPYC", True),
        (True, False, "Intel Xeon", False),
        (True, True, "Intel Xeon", True),
    ],
)
def test_bf16_pays_by_the_kind_of_processor_alone(monkeypatch, avx512, amx, name, pays):
    """Not by a stopwatch: the precision decides the result, and a busy core must not."""
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: avx512)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: amx)
    monkeypatch.setattr(vit.machine, "device_name", lambda device: name)
    assert bf16_pays(CPU) is pays
    assert bf16_pays(torch.device("mps")) is False


@pytest.mark.parametrize(
    ("capability", "bf16", "best"),
    [
        ((8, 0), True, "bf16"),
        ((7, 5), False, "fp16"),
        ((6, 1), False, "fp32"),
    ],
)
def test_gpus_without_bf16_compute_in_fp16_if_that_is_faster(
    machine, monkeypatch, capability, bf16, best
):
    """A100, T4, GTX 1080."""
    machine("cuda")
    monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda including_emulation: bf16)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "a GPU")
    compute = choose_compute(RunConfig(), steps=10**6)
    # triton has no kernels for the oldest
    assert (compute.precision, compute.compile) == (best, best != "fp32")
    if best == "fp32":
        with pytest.raises(ConfigError, match=r"^train\.precision: 'fp16' [^\n]*fp32$"):
            choose_compute(RunConfig(), "fp16")
    else:
        assert choose_compute(RunConfig(), "fp16").precision == "fp16"


@pytest.mark.parametrize(
    ("groups", "files", "cores"),
    [
        ("0::/", {"cpu.max": "max 100000"}, 8),
        ("0::/", {"cpu.max": "250000 100000"}, 3),
        ("0::/user/job", {"user/cpu.max": "50000 100000", "user/job/cpu.max": "max 100000"}, 1),
        ("0::/", {"cpu.max": "6400000 100000"}, 8),
        (
            "5:cpu,cpuacct:/docker/a:b\n1:name=systemd:/docker/a:b\n0::/",
            {"cpu/cpu.cfs_quota_us": "200000", "cpu/cpu.cfs_period_us": "100000"},
            2,
        ),
        (
            "5:cpuset:/a\n4:cpuacct,cpu:/a",
            {"cpuacct/a/cpu.cfs_quota_us": "-1", "cpuacct/a/cpu.cfs_period_us": "100000"},
            8,
        ),
        (None, {}, 8),
    ],
)
def test_cores_are_those_that_a_container_allows(tmp_path, monkeypatch, groups, files, cores):
    """Version 2 and version 1 of Linux' groups; seen from outside, and from inside as the root."""
    for name, content in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content + "\n")
    if groups is not None:
        (tmp_path / "groups").write_text(groups + "\n")
    monkeypatch.setattr(vit.device, "GROUPS", str(tmp_path / "groups"))
    monkeypatch.setattr(vit.device, "CONTROLS", str(tmp_path))
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    assert usable_cores() == cores

    # torch computes with no more, unless it is told to
    monkeypatch.setattr(torch, "get_num_threads", lambda: 4)
    chosen = [4]
    monkeypatch.setattr(torch, "set_num_threads", chosen.append)
    choose_compute(RunConfig(device="cpu"))
    assert chosen[-1] == min(cores, 4)
    choose_compute(RunConfig(device="cpu", threads=3))
    assert chosen[-1] == 3


@pytest.mark.parametrize(
    ("device", "precision", "steps", "choice", "compiled"),
    [
        ("cpu", "fp32", 10**6, "auto", False),
        ("cpu", "fp32", 0, "on", True),
        ("cpu", "bf16", 5_000, "auto", True),
        ("cuda", "fp32", 4_999, "auto", False),
        ("cuda", "fp32", 5_000, "auto", True),
        ("cuda", "fp32", 10**6, "off", False),
    ],
)
def test_compiled_when_asked_for_or_for_long_runs_where_it_pays(
    machine, device, precision, steps, choice, compiled
):
    machine("cuda")
    assert (
        choose_compute(RunConfig(device=device, compile=choice), precision, steps).compile
        == compiled
    )


@pytest.mark.parametrize(
    ("device", "parts", "amd", "mode"),
    [
        ("cuda", 1, None, "reduce-overhead"),
        # the replay of the second backward pass would overwrite the first one's gradients
        ("cuda", 2, None, None),
        ("cuda", 1, "6.4", None),
        ("cpu", 1, None, None),
    ],
)
def test_a_step_is_recorded_as_a_cuda_graph_only_where_that_keeps_it_right(
    device, parts, amd, mode, monkeypatch
):
    monkeypatch.setattr(torch.version, "hip", amd)
    monkeypatch.setattr(torch, "compile", lambda module, **options: options["mode"])
    # also among several processes, which exchange gradients after the backward pass
    monkeypatch.setattr(torch.distributed, "is_initialized", lambda: True)
    compute = Compute(torch.device(device), compile=True)
    assert compute.compiled(nn.Identity(), parts) == mode
