"""Where a run computes, and in which number format."""

from __future__ import annotations

import os
import shutil
import sys
import sysconfig
import timeit
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import cache, partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from vit.config import RunConfig
from vit.errors import ConfigError, one_line
from vit.version import __version__


@dataclass(frozen=True)
class Compute:
    """A device and the number format of its matrix products; weights, sums and optimizer stay float32."""

    device: torch.device
    precision: str = "fp32"  # or "bf16"
    compile: bool = False  # whether training steps are compiled
    note: str = ""  # a line that the user should see

    @property
    def products(self) -> torch.dtype:
        """The type of matrix products."""
        return torch.bfloat16 if self.precision == "bf16" else torch.float32

    def autocast(self) -> AbstractContextManager:
        """Compute matrix products in `precision` within the block."""
        return (
            torch.autocast(self.device.type, self.products)
            if self.precision == "bf16"
            else nullcontext()
        )

    def compiled(self, module: nn.Module) -> nn.Module:
        """Return `module` for training steps, compiled if that is on; it shares the module's parameters.

        On a GPU the kernels are also recorded as CUDA graphs (reduce-overhead), because launching a small model otherwise
        takes longer than computing it; not with several processes, which average gradients during the backward pass.
        """
        if not self.compile:
            return module
        alone = not torch.distributed.is_initialized()
        mode = "reduce-overhead" if self.device.type == "cuda" and alone else None
        return torch.compile(module, dynamic=False, mode=mode)  # type: ignore[return-value]

    def only_compiled_for(self, usual: bool) -> AbstractContextManager:
        """Within the block, run a batch of unusual size (an epoch's last) uncompiled instead of compiling again for it."""
        return (
            nullcontext() if usual or not self.compile else torch.compiler.set_stance("force_eager")
        )

    def __str__(self) -> str:
        count = torch.get_num_threads()
        threads = f", {count} thread{'s' * (count > 1)}" if self.device.type == "cpu" else ""
        return f"{device_name(self.device)}, {self.precision}{threads}{', compiled' if self.compile else ''}"


# Compiling takes about a minute. It saves a GPU some milliseconds per step, and a CPU a tenth of a step in bf16, by fusing what
# lies between the products; in fp32 the products themselves take nearly all of it (docs/speed.md).
COMPILE_FROM_STEPS = 5_000


def choose_compute(
    config: RunConfig, precision: str = "auto", steps: int = 0, began: str = ""
) -> Compute:
    """Return the requested device and precision, or the best available; set the number of threads.

    Args:
        config: device, threads and compile are read.
        precision: "auto", "bf16" or "fp32".
        steps: of the whole run; `compile: auto` compiles long ones, where it can.
        began: what `auto` chose when the run began: kept, if this device computes it.

    Raises:
        ConfigError: this machine does not have what was requested.
    """
    # device and threads
    present = {
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
        "cpu": True,
    }
    there = [name for name, is_there in present.items() if is_there]
    if config.device != "auto" and config.device not in there:
        raise ConfigError(
            f"run.device: {config.device!r} cannot be used; torch finds {', '.join(there)} here"
        )
    device = torch.device(there[0] if config.device == "auto" else config.device)
    most = 4 * (os.cpu_count() or 1)
    if config.threads > most:  # millions would crash torch
        raise ConfigError(f"run.threads: {config.threads} cannot be used; at most {most} here")
    if config.threads:
        torch.set_num_threads(config.threads)

    # precision, and whether compiling pays off
    automatic = precision == "auto"
    if automatic:
        precision = began or ("bf16" if bf16_pays(device) else "fp32")
    if precision == "bf16" and device.type != "cpu" and not _has_bf16(device):
        if not automatic:
            raise ConfigError(
                f"train.precision: 'bf16' cannot be used; {device_name(device)} does not compute it: use fp32"
            )
        precision = "fp32"
    fuses = device.type == "cuda" or (device.type == "cpu" and precision == "bf16")
    pays = fuses and steps >= COMPILE_FROM_STEPS
    compiled = config.compile == "on" or (config.compile == "auto" and pays)
    lacking = missing_for_compile(device) if compiled else ""
    if config.compile == "on" and lacking:
        raise ConfigError(f"run.compile: 'on' needs {lacking}; install it, or set run.compile off")
    return Compute(
        device,
        precision,
        compiled and not lacking,
        lacking and f"not compiled, which needs {lacking}",
    )


def missing_for_compile(device: torch.device) -> str:
    """Return what torch.compile needs and this machine lacks; "" if nothing. It would fail at the first step only."""
    cuda = device.type == "cuda"
    if cuda and find_spec("triton") is None:
        return "triton"
    if not Path(sysconfig.get_path("include"), "Python.h").exists():
        return "Python's headers (python3-dev)"
    usual = "gcc" if cuda else {"darwin": "clang++", "win32": "cl"}.get(sys.platform, "g++")
    names = (os.environ.get("CC" if cuda else "CXX", usual), *(["clang"] if cuda else []))
    return fault_of_compiler(device) if any(map(shutil.which, names)) else f"a compiler ({usual})"


@cache
def fault_of_compiler(device: torch.device) -> str:
    """Compile a sum, which takes seconds, and return what went wrong; "" if nothing."""
    try:
        torch.compile(lambda x: x + 1)(torch.ones(8, device=device))
    except Exception as error:  # torch's, the compiler's or the system's, e.g. a temporary folder without execution
        return f"a compiler that works ({one_line(str(error).partition(chr(10))[0])})"
    return ""


def to_device(values: Tensor, device: torch.device) -> Tensor:
    """Move `values` to `device` without waiting for its current work."""
    if device.type == "cuda" and not values.is_cuda:  # only a copy from pinned memory does not wait
        return values.pin_memory().to(device, non_blocking=True)
    return values.to(device)


def bf16_pays(device: torch.device) -> bool:
    """Return whether the hardware computes bfloat16 products, and faster than float32 ones.

    A GPU that has them is faster with them. A CPU need not be: AVX512-BF16 without AMX runs at half the speed of float32
    on some Intel servers, and at twice the speed on AMD's. So a CPU times both for some 20 ms, on a training step's product.
    """
    if device.type != "cpu" or not _has_bf16(device):
        return _has_bf16(device)
    seconds = {}
    for dtype in (torch.float32, torch.bfloat16):
        x, weight = torch.ones(4096, 192, dtype=dtype), torch.ones(768, 192, dtype=dtype)
        seconds[dtype] = min(
            timeit.repeat(partial(nn.functional.linear, x, weight), number=1, repeat=6)
        )
    return (
        seconds[torch.bfloat16] < 0.8 * seconds[torch.float32]
    )  # the casts around the products cost time too


def _has_bf16(device: torch.device) -> bool:
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device.type == "cpu":
        return torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported()
    return False


def device_name(device: torch.device) -> str:
    """Return a readable name: that of the GPU or the CPU."""
    if device.type == "cuda":
        return torch.cuda.get_device_name(device)
    if device.type != "cpu":
        return device.type
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:  # not Linux
        lines = []
    names = [line.partition(":")[2].strip() for line in lines if line.startswith("model name")]
    return f"{names[0]} ({len(names)} cores)" if names else "CPU"


def versions() -> dict[str, str]:
    """Return the versions of this package, torch, torchvision and Python."""
    return {
        "vit-patch-trainer": __version__,
        "torch": str(torch.__version__),
        "torchvision": metadata.version("torchvision"),  # importing it would take seconds
        "python": sys.version.split()[0],
    }
