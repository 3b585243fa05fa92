"""Choose what a run uses of this machine: device, threads, number format, compiler."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import warnings
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import torch

from vit.config import RunConfig
from vit.device import Compute, device_name, usable_cores
from vit.errors import ConfigError
from vit.runs import __version__

# Compiling takes about a minute. It saves a GPU some milliseconds per step, and a CPU a tenth of a
# step in bf16, by fusing what lies between the products; in fp32 the products themselves take
# nearly all of it (docs/speed.md).
COMPILE_FROM_STEPS = 5_000
NVIDIA_DRIVER = Path("/proc/driver/nvidia/version")
WRONG_BUILD = (
    "this machine has an NVIDIA GPU, but the installed torch is a CPU build and does not use it; to"
    " replace it: pip install --force-reinstall torch torchvision"
)


def choose_compute(config: RunConfig, precision: str = "auto", steps: int = 0) -> Compute:
    """Return the requested device and precision, or the best available; set the number of threads.

    Args:
        config: device, threads and compile are read.
        precision: "auto", "bf16", "fp16" or "fp32".
        steps: of the whole run; `compile: auto` compiles long ones, where it can.
    """
    device = choose_device(config.device)
    precision = choose_precision(device, precision)

    # millions would end the process without a word; torch does not see what a container allows
    limit = 4 * (os.cpu_count() or 1)
    if config.threads > limit:
        raise ConfigError("run.threads", f"{config.threads} cannot be used; at most {limit} here")
    threads = config.threads or min(torch.get_num_threads(), usable_cores())
    if threads != torch.get_num_threads():
        torch.set_num_threads(threads)

    # compile what was requested, or a long run on a device where fusing pays off
    fuses = _has_fp16(device) or (device.type == "cpu" and precision == "bf16")
    requested = config.compile == "on"
    automatic = config.compile == "auto" and fuses and steps >= COMPILE_FROM_STEPS
    if not requested and not automatic:
        return Compute(device, precision)

    # but only where it works: torch would fail at the first step
    missing = missing_for_compile(device)
    if missing and requested:
        raise ConfigError(
            "run.compile", f"'on' needs {missing}; install it, or set run.compile off"
        )
    if missing:
        return Compute(device, precision, note=f"not compiled, which needs {missing}")
    return Compute(device, precision, compile=True)


def choose_device(name: str) -> torch.device:
    """Return the device called `name`, or for "auto" the first of cuda, mps and cpu.

    Warn about an NVIDIA GPU that a CPU build of torch cannot use.
    """
    found = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    available = [kind for kind, is_there in found.items() if is_there]

    # pip keeps a CPU build of torch, and a run would take twenty times as long without a word
    is_cpu_build = torch.version.cuda is None and not found["cuda"]
    if name != "cpu" and is_cpu_build and NVIDIA_DRIVER.exists():
        warnings.warn(WRONG_BUILD, stacklevel=1)
    if name == "auto":
        return torch.device(available[0])
    if name not in available:
        raise ConfigError(
            "run.device", f"{name!r} cannot be used; torch finds {', '.join(available)} here"
        )
    return torch.device(name)


def choose_precision(device: torch.device, precision: str, began: str = "") -> str:
    """Return "bf16", "fp16" or "fp32".

    Args:
        device: which computes it.
        precision: the requested one, or "auto".
        began: that with which a resumed run began, if "auto" chose it: it stays, if this device
            computes it.
    """
    if precision == "auto":
        if began:
            return began if _computes(device, began) else "fp32"
        if bf16_pays(device):
            return "bf16"
        return "fp16" if _has_fp16(device) else "fp32"
    if not _computes(device, precision):
        raise ConfigError(
            "train.precision",
            f"{precision!r} cannot be used; {device_name(device)} does not compute it: use fp32",
        )
    return precision


def bf16_pays(device: torch.device) -> bool:
    """Return whether the hardware computes bfloat16 products, and faster than float32 ones.

    A GPU that has them is faster with them. So is a CPU with AMX. With AVX512-BF16 alone, AMD's are
    twice as fast, and some Intel servers half as fast.
    """
    if device.type != "cpu":
        return _has_bf16(device)
    is_fast_amd = torch.cpu._is_avx512_bf16_supported() and "AMD" in device_name(device)
    return torch.cpu._is_amx_tile_supported() or is_fast_amd


def _computes(device: torch.device, precision: str) -> bool:
    # a CPU without bfloat16 or float16 products computes them too, slowly
    if precision == "fp32" or device.type == "cpu":
        return True
    return _has_bf16(device) if precision == "bf16" else _has_fp16(device)


def _has_bf16(device: torch.device) -> bool:
    """Return whether a GPU itself computes bfloat16 products."""
    return device.type == "cuda" and torch.cuda.is_bf16_supported(including_emulation=False)


def _has_fp16(device: torch.device) -> bool:
    """Return whether a GPU computes float16 products faster than float32 ones (V100 and later).

    Triton, which torch.compile needs, has no kernels for older ones.
    """
    return device.type == "cuda" and torch.cuda.get_device_capability(device) >= (7, 0)


def missing_for_compile(device: torch.device) -> str:
    """Return what torch.compile needs and this machine lacks; "" if nothing."""
    cuda = device.type == "cuda"
    if cuda and find_spec("triton") is None:
        return "triton"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python's headers (python3-dev)"

    # triton launches its kernels through C; kernels for a CPU are written in C++
    usual = "gcc" if cuda else "g++"
    names = [os.environ.get("CC" if cuda else "CXX", usual), "clang", "clang++", "cl"]
    if not any(shutil.which(name) for name in names):
        return f"a compiler ({usual})"
    return ""


def versions() -> dict[str, str]:
    """Return the versions of this package, torch, torchvision and Python."""
    return {
        "vit-patch-trainer": __version__,
        "torch": str(torch.__version__),
        # from its metadata, because importing it takes seconds
        "torchvision": metadata.version("torchvision"),
        "python": sys.version.split()[0],
    }
