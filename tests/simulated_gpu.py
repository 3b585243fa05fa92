"""A simulated GPU: its tensors say "cuda:0", hold real numbers, and refuse what a GPU refuses.

Within `simulated_gpu()` torch finds one GPU. What is put there is a `GpuTensor`, which computes on the CPU. An operator
that meets tensors of both devices raises `DeviceMismatchError`; what makes the host wait for the GPU is recorded with its line;
kernels are counted.

It cannot see what the compiler makes (Triton) or its CUDA graphs, nccl and several GPUs, streams and their races, memory, and
how a GPU's own kernels round: these need a card.
"""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode, return_and_correct_aliasing
from torch.utils._pytree import tree_leaves, tree_map

import vit

GPU = torch.device("cuda", 0)
PACKAGE = vit.__path__[0]

# What autocast computes in half precision and in float32 on a GPU; all else keeps its types.
HALF = {F.linear, F.conv2d, torch.conv2d, torch.matmul, torch.mm, torch.bmm, torch.baddbmm}
HALF |= {Tensor.matmul, Tensor.__matmul__, Tensor.__rmatmul__, F.scaled_dot_product_attention}
FLOAT = {F.layer_norm, F.mse_loss, F.cross_entropy, F.normalize, F.softmax, torch.softmax}
FLOAT |= {Tensor.softmax, Tensor.sum, Tensor.norm, Tensor.pow, Tensor.exp, torch.norm}

# Operators that launch nothing; neither do views.
NO_KERNEL = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "alias"}
NO_KERNEL |= {"_unsafe_view", "lift_fresh", "is_pinned", "set_", "resize_", "detach_"}
# Operators of several kernels, a guess; of a list of tensors, one kernel takes at most this many.
KERNELS = {"sort": 4, "native_layer_norm_backward": 2, "native_batch_norm_backward": 2}
PER_LAUNCH = {"_foreach": 110, "_fused_adam": 36}

SIZE_DEPENDS = {"nonzero", "masked_select", "_unique2", "unique_consecutive", "bincount"}
INDEXING = {"index", "index_put", "index_put_", "_index_put_impl_", "_unsafe_index"}


class DeviceMismatchError(RuntimeError):
    """Tensors of both devices met where a GPU would refuse them."""


@dataclass
class Record:
    """What happened on the GPU since `clear`.

    Attributes:
        waits: what made the host wait, with its line, and how often.
        copies: to the GPU in the background, and waiting ones in both directions.
        kernels: launched, by operator.
        float64: whether the GPU has this type.
    """

    waits: Counter[str] = field(default_factory=Counter)
    copies: Counter[str] = field(default_factory=Counter)
    kernels: Counter[str] = field(default_factory=Counter)
    float64: bool = True

    def clear(self) -> None:
        for counter in (self.waits, self.copies, self.kernels):
            counter.clear()

    def wait(self, reason: str) -> None:
        self.waits[f"{reason} @ {line_in_package()}"] += 1


RECORD = Record()


def line_in_package() -> str:
    """The innermost line of the package on the stack."""
    frame = sys._getframe(1)
    while frame is not None:
        path = frame.f_code.co_filename
        if path.startswith(PACKAGE):
            return f"{path.removeprefix(PACKAGE + '/')}:{frame.f_lineno}"
        frame = frame.f_back
    return "elsewhere"


class GpuTensor(Tensor):
    """A tensor on the simulated GPU; to C++ it is on "meta", which autograd follows without a driver."""

    @staticmethod
    def __new__(cls, values: Tensor) -> GpuTensor:
        assert type(values) is not GpuTensor
        return Tensor._make_wrapper_subclass(
            cls,
            values.size(),
            strides=values.stride(),
            storage_offset=values.storage_offset(),
            dtype=values.dtype,
            device="meta",
        )

    def __init__(self, values: Tensor):
        self.values_on_cpu = values

    device = property(lambda self: GPU)
    is_cuda = property(lambda self: True)
    is_cpu = is_meta = property(lambda self: False)
    __torch_function__ = torch._C._disabled_torch_function_impl

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})

    def __repr__(self) -> str:
        return f"GpuTensor({tuple(self.shape)}, {self.dtype})"


def on_cpu(x: Any) -> Any:
    return x.values_on_cpu if isinstance(x, GpuTensor) else x


def on_gpu(x: Any) -> Any:
    return GpuTensor(x) if isinstance(x, Tensor) and not isinstance(x, GpuTensor) else x


def is_gpu(device: Any) -> bool:
    return device is not None and torch.device(device).type == "cuda"


def compute(func: Any, args: tuple, kwargs: dict) -> Any:
    """Carry out an operator on either device."""
    name = func.overloadpacket.__name__
    tensors = [x for x in tree_leaves((args, kwargs)) if isinstance(x, Tensor)]
    ours = [x for x in tensors if isinstance(x, GpuTensor)]
    if (ours or name == "scalar_tensor") and kwargs.get("device") == torch.device("meta"):
        # where C++ believes that the GPU's tensors are; it makes tensors of numbers beside them
        kwargs = {**kwargs, "device": GPU}
    device = kwargs.get("device")
    if not ours and not is_gpu(device):
        return func(*args, **kwargs)
    if name in ("_to_copy", "copy_"):
        return copy(func, name, args, kwargs)
    if name == "_local_scalar_dense":
        RECORD.wait("value read")
        return func(on_cpu(args[0]))
    if ours:
        refuse_or_record(func, name, args, [x for x in tensors if not isinstance(x, GpuTensor)])

    kwargs_on_cpu = tree_map(on_cpu, kwargs)
    if device is not None:
        kwargs_on_cpu["device"] = torch.device("cpu")
    args_on_cpu = tree_map(on_cpu, args)
    result = func(*args_on_cpu, **kwargs_on_cpu)
    if device is not None and not is_gpu(device):
        return result
    count(func, name, args)
    refuse_float64(func, result)
    result = tree_map(on_gpu, result)
    return return_and_correct_aliasing(func, args, kwargs, result) if ours else result


def copy(func: Any, name: str, args: tuple, kwargs: dict) -> Any:
    """Copy within the GPU, or between it and the host, which waits unless the host's memory is pinned."""
    source = args[1] if name == "copy_" else args[0]
    host = source
    if name == "copy_":
        to_gpu = isinstance(args[0], GpuTensor)
        if not to_gpu:
            host = args[0]
        non_blocking = kwargs.get("non_blocking", args[2] if len(args) > 2 else False)
    else:
        device = kwargs.get("device")
        to_gpu = device is None or is_gpu(device)
        non_blocking = kwargs.get("non_blocking", False)

    if to_gpu and isinstance(source, GpuTensor):
        count(func, name, args)
    elif getattr(host, "pinned", False) and non_blocking:
        RECORD.copies["in the background"] += 1
    else:
        RECORD.copies["waiting"] += 1
        way = "to the GPU" if to_gpu else "from the GPU"
        RECORD.wait(f"copy {way} {tuple(source.shape)}")

    if name == "copy_":
        args_on_cpu = (on_cpu(args[0]), on_cpu(source))
        kwargs = {}
    else:
        args_on_cpu = (on_cpu(source), *args[1:])
        kwargs = {**kwargs, "device": torch.device("cpu"), "non_blocking": False}
    result = func(*args_on_cpu, **kwargs)
    if name == "copy_":
        return args[0]
    if to_gpu:
        refuse_float64(func, result)
        return GpuTensor(result)
    return result


def refuse_float64(func: Any, result: Any) -> None:
    if not RECORD.float64 and any(
        x.dtype == torch.float64 for x in tree_leaves(result) if isinstance(x, Tensor)
    ):
        raise TypeError(f"{func}: this GPU has no float64 @ {line_in_package()}")


def refuse_or_record(func: Any, name: str, args: tuple, others: list[Tensor]) -> None:
    """Raise where devices mix; record an output or an index that the host must know."""
    if name in SIZE_DEPENDS:
        RECORD.wait(f"{name}: the output's size depends on values")
    if name in INDEXING:
        if not isinstance(args[0], GpuTensor):
            raise DeviceMismatchError(
                f"{func}: CPU values, indices on the GPU @ {line_in_package()}"
            )
        for _ in others:
            RECORD.wait(f"{name}: an index or value on the CPU")
        masks = [x for x in args[1] if isinstance(x, GpuTensor) and x.dtype == torch.bool]
        for _ in masks:
            RECORD.wait(f"{name}: a mask on the GPU")
        return
    # only elementwise kernels take a number from the CPU as an argument
    takes_numbers = torch.Tag.pointwise in func.tags or name.startswith(("_foreach", "_fused"))
    if others and not (takes_numbers and all(x.ndim == 0 for x in others)):
        shapes = [tuple(x.shape) for x in others]
        raise DeviceMismatchError(f"{func}: {shapes} are on the CPU @ {line_in_package()}")


def record_number(x: Tensor, index: Any, value: Any) -> None:
    """Record a number that is written to a single element: a copy, where a kernel fills many."""
    if not isinstance(value, int | float):
        return
    if any(isinstance(part, Tensor) for part in tree_leaves(index)):
        return
    if on_cpu(x)[index].ndim == 0:
        RECORD.wait("a number written to one element")


def count(func: Any, name: str, args: tuple) -> None:
    if func.is_view or name in NO_KERNEL:
        return
    launches = KERNELS.get(name, 1)
    for prefix, most in PER_LAUNCH.items():
        if name.startswith(prefix):
            launches = -(-len(args[0]) // most)
    RECORD.kernels[name] += launches


class Operators(TorchDispatchMode):
    """Sees operators without a tensor on the GPU too, such as torch.zeros(..., device="cuda")."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        return compute(func, args, kwargs or {})


class Attention(torch.autograd.Function):
    """The fused kernel."""

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        ctx.inputs = [on_cpu(x).detach().requires_grad_() for x in (q, k, v)]

        def compute() -> Tensor:
            with torch.enable_grad():
                ctx.result = F.scaled_dot_product_attention(*ctx.inputs)
            return ctx.result.detach()

        return computed(compute, 1)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        return computed(lambda: torch.autograd.grad(ctx.result, ctx.inputs, on_cpu(gradient)), 3)


def computed(compute: Callable[[], Any], kernels: int) -> Any:
    """Compute on the CPU what is several kernels of attention."""
    RECORD.kernels["attention"] += kernels
    with torch.utils._python_dispatch._disable_current_modes():
        result = compute()
    return tree_map(on_gpu, result)


class Functions(TorchFunctionMode):
    """Does in Python what C++ would do before an operator: autocast, and what asks the driver."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        ours = any(isinstance(x, GpuTensor) for x in (*args, *kwargs.values()))
        if func in (torch.tensor, torch.as_tensor) and is_gpu(kwargs.get("device")):
            RECORD.wait(f"{func.__name__}({args[0]!r:.40}, device=cuda)")
            return GpuTensor(func(*args, **{**kwargs, "device": "cpu"}))
        if func is Tensor.pin_memory or kwargs.pop("pin_memory", False):
            result = args[0].clone() if func is Tensor.pin_memory else func(*args, **kwargs)
            result.pinned = True
            return result
        if func in (Tensor.to, Tensor.cuda):
            return moved(func, *args, **kwargs)
        if ours and func is Tensor.numpy:
            raise DeviceMismatchError(f"a GPU's tensor has no NumPy array @ {line_in_package()}")
        if ours and func is Tensor.__setitem__:
            record_number(*args)
        if ours and func is Tensor.tolist:
            RECORD.wait("tolist")
            return args[0].values_on_cpu.tolist()
        if ours and torch.is_autocast_enabled("cuda"):
            args, kwargs = autocast(func, args, kwargs)
        if ours and func is F.scaled_dot_product_attention:
            if not all(isinstance(x, GpuTensor) for x in args):
                raise DeviceMismatchError(f"attention @ {line_in_package()}")
            return Attention.apply(*args)
        return func(*args, **kwargs)


def moved(func: Any, x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
    """`Tensor.to`, which in C++ asks the driver for the current GPU."""
    if func is Tensor.cuda:
        device, dtype, non_blocking = GPU, None, kwargs.get("non_blocking", False)
    elif args and isinstance(args[0], GpuTensor):
        device, dtype, non_blocking = GPU, args[0].dtype, False
    else:
        options = {name: value for name, value in kwargs.items() if name != "copy"}
        device, dtype, non_blocking, _ = torch._C._nn._parse_to(*args, **options)
    if not is_gpu(device):
        return x.to(*args, **kwargs)
    if isinstance(x, GpuTensor):
        return x if dtype is None else x.to(dtype)
    return torch.ops.aten._to_copy(x, dtype=dtype, device=GPU, non_blocking=non_blocking)


def autocast(func: Any, args: Any, kwargs: Any) -> tuple[Any, Any]:
    dtype = None
    if func in HALF:
        dtype = torch.get_autocast_dtype("cuda")
    elif func in FLOAT:
        dtype = torch.float32

    def cast(x: Any) -> Any:
        is_other = isinstance(x, Tensor) and x.is_floating_point() and x.dtype != dtype
        return x.to(dtype) if is_other and dtype is not None else x

    return tree_map(cast, (tuple(args), kwargs))


@contextmanager
def simulated_gpu(bf16: bool = True, float64: bool = True) -> Iterator[Record]:
    """Within the block torch has a GPU; yields the record, cleared.

    Args:
        bf16: whether it computes bfloat16.
        float64: whether it computes float64, which Apple's do not.
    """
    answers: dict[str, Any] = {
        "_lazy_init": None,
        "is_available": True,
        "device_count": 1,
        "current_device": 0,
        "mem_get_info": (80 << 30, 80 << 30),
        "is_bf16_supported": bf16,
        "get_device_name": "Simulated GPU",
        "get_device_capability": (8, 0) if bf16 else (7, 5),
        "synchronize": None,
        "max_memory_allocated": 0,
    }
    foreach = torch.utils._foreach_utils
    grouping = torch._C._group_tensors_by_device_and_dtype
    save = torch.save
    in_place = torch.__future__.get_overwrite_module_params_on_conversion()
    with pytest.MonkeyPatch.context() as patch:
        for name, answer in answers.items():
            patch.setattr(torch.cuda, name, always(answer))
        patch.setattr(torch.accelerator, "synchronize", always(None))
        patch.setattr(torch.backends.cudnn, "enabled", False)
        health_check = "_accelerator_graph_capture_health_check"
        patch.setattr(torch.optim.Optimizer, health_check, always(None))
        patch.setattr(torch._C, "_group_tensors_by_device_and_dtype", grouped(grouping))
        kinds = [*foreach._foreach_supported_types, GpuTensor]
        patch.setattr(foreach, "_foreach_supported_types", kinds)
        patch.setattr(torch, "save", lambda x, *args, **kwargs: save(host(x), *args, **kwargs))
        # a module on its way to the GPU gets new parameters, because the old ones cannot change their class
        torch.__future__.set_overwrite_module_params_on_conversion(True)
        RECORD.clear()
        RECORD.float64 = float64
        try:
            with Operators(), Functions():
                yield RECORD
        finally:
            torch.__future__.set_overwrite_module_params_on_conversion(in_place)


def always(answer: Any) -> Callable[..., Any]:
    return lambda *args, **kwargs: answer


def grouped(grouping: Callable[..., dict]) -> Callable[..., dict]:
    """`grouping` with the device that Python knows."""

    def group(*args: Any) -> dict:
        groups = {}
        for (device, dtype), tensors in grouping(*args).items():
            groups[GPU if device.type == "meta" else device, dtype] = tensors
        return groups

    return group


def host(x: Any) -> Any:
    """What pickle can write."""
    if isinstance(x, GpuTensor):
        return x.values_on_cpu.detach().clone()
    if isinstance(x, dict):
        return {key: host(value) for key, value in x.items()}
    if isinstance(x, list | tuple):
        return type(x)(host(value) for value in x)
    return x
