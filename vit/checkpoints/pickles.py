"""What a pickle asks for: its instructions are followed as a list, and none is done.

A pickle is a program for a small machine with a stack. torch's restricted reader calls little, but believes sizes: a few
bytes can make it fill the memory, hang, or overflow the stack. So it only gets to see what has been followed here.
"""

from __future__ import annotations

import pickletools
import re
from _compat_pickle import IMPORT_MAPPING, NAME_MAPPING
from dataclasses import dataclass, field
from typing import Any

import torch

MOST_WORK, MOST_TUPLES = 10_000_000, 100
"""Of a pickle: instructions, or values when all that is shared is counted each time; and tuples within tuples."""

# What a global could do that torch's reader refuses: the first pattern that fits.
DEEDS = (
    (r"(os|posix|nt)\.(system|popen|spawn\w*|exec\w*|posix_spawn\w*|startfile)|pty\.\w+|commands\.\w+", "runs a shell command"),
    (r"(subprocess|_posixsubprocess|multiprocessing|asyncio)\..*", "starts other programs"),
    (r"(__builtin__|builtins)\.(eval|exec|execfile|compile)|(code|codeop|runpy|timeit|pdb|bdb|cProfile|profile)\..*",
     "runs any Python code"),
    (r"(__builtin__|builtins)\.(__import__|getattr|setattr|globals|vars|map|filter|apply)|(importlib|operator|functools|types"
     r"|sys|inspect|pkgutil)\..*", "reaches any function of Python, and by that runs any code"),
    (r"(os|posix|nt|shutil|pathlib|tempfile|io|_io|glob|fileinput)\..*|(__builtin__|builtins)\.open",
     "reads, writes or deletes files"),
    (r"(pickle|_pickle|cPickle|dill|cloudpickle|joblib|marshal|shelve)\..*|torch\.(load|serialization\..*|jit\..*|hub\..*)",
     "loads another pickle or program without any limits"),
    (r"(socket|urllib\d?|http|httplib|requests|ftplib|smtplib|webbrowser|ssl|aiohttp|httpx)(\..*)?", "talks to the network"),
    (r"(ctypes|cffi|mmap)\..*", "runs machine code"),
    (r"torch\.nn\..*", "is a whole model, code and all, instead of its weights"),
    (r"torch\._?(utils|tensor)\..*", "builds a tensor of an unusual kind, or one with attributes: neither is read here"),
    (r"torch\.\w*(Tensor|Storage)|(__builtin__|builtins)\.(bytearray|bytes|range|list|tuple)",
     "takes as much memory as the file says"),
    (r"_codecs\.encode", "writes text in an unusual encoding, which may take for ever"),
    (r"numpy\..*", "is a value of numpy: harmless as such, but not read here (save plain numbers)"),
)  # fmt: skip
CALLED = re.compile(
    r"collections\.(OrderedDict|Counter)|argparse\.Namespace|builtins\.(set|complex)|_codecs\.encode|torch\.(Size|device)|"
    r"torch\.nn\.parameter\.Parameter|torch\.serialization\._get_layout|"
    r"torch\._utils\._rebuild_(tensor|tensor_v2|tensor_v3|parameter|sparse_tensor|qtensor|meta_tensor_no_storage)"
)
"""What a pickle may call; torch's reader allows some more. What is no dense tensor is built, to be refused by its name."""

NAMED = re.compile(r"torch\.(cuda\.)?\w+Storage|torch\.storage\.(Typed|Untyped)Storage")
"""What a pickle may name without calling it, besides dtypes."""


def deed(name: str) -> str:
    """What a global could do, as the end of a sentence."""
    known = next((what for pattern, what in DEEDS if re.fullmatch(pattern, name)), None)
    return (
        known
        or "is code of another package, called with what the file says (a whole model, say, instead of its weights)"
    )


@dataclass(eq=False, slots=True)
class _Item:
    """A value on the stack of a pickle, as much of it as matters.

    Attributes:
        weight: how many values it has, one that stands in two places counted twice.
        tuples: how many tuples deep it is. Hashing one runs as deep, without any limit of Python's.
        text: of a string; of a function or class, its full name.
        parts: of a tuple.
    """

    weight: int = 1
    tuples: int = 0
    text: str | None = None
    parts: tuple[_Item, ...] = ()


@dataclass
class Seen:
    """What a pickle asks for.

    Attributes:
        refused: functions and classes that it may not have, in order; the values are nothing.
        storages: the keys of the tensors' values.
        texts: all strings.
    """

    refused: dict[str, None] = field(default_factory=dict)
    storages: set[str | None] = field(default_factory=set)
    texts: set[str | None] = field(default_factory=set)


def _may_name(name: str) -> bool:
    """Whether a pickle may name this; what it calls is seen to apart."""
    kind = vars(torch).get(name.removeprefix("torch."))
    return bool(CALLED.fullmatch(name) or NAMED.fullmatch(name) or isinstance(kind, torch.dtype | torch.qscheme))


def follow(stream: Any, seen: Seen) -> None:
    """Follow the instructions of one pickle without doing any, and note in `seen` what it asks for.

    Raises:
        Exception: of nearly any type; it is no pickle, or would take more time, memory or stack than weights do.
    """
    stack: list[_Item] = []
    marks: list[int] = []
    memo: dict[int, _Item] = {}
    work = 0

    def name(module: str, called: str) -> _Item:
        # Old protocols have Python 2's names; the reader takes them for Python 3's, and so does who reads the message.
        module, called = NAME_MAPPING.get((module, called), (IMPORT_MAPPING.get(module, module), called))
        full = f"{module}.{called}"
        if not _may_name(full):
            seen.refused[full] = None
        return _Item(text=full)

    argument: Any
    for operation, argument, _ in pickletools.genops(stream):
        work += 1
        code = operation.name
        if code.endswith("GET"):
            stack.append(memo[argument])
            continue
        if code.endswith("PUT") or code == "MEMOIZE":
            memo[len(memo) if argument is None else argument] = stack[-1]
            continue
        if code == "MARK":
            marks.append(len(stack))
            continue
        if code == "GLOBAL":
            stack.append(name(*argument.split(" ", 1)))
            continue
        if code == "INST":
            name(*argument.split(" ", 1))
        if code.startswith("EXT"):
            seen.refused[f"copyreg.extension_{argument}"] = None
        # What an instruction takes from the stack: all above the last mark, or as many as are written down for it.
        before = operation.stack_before
        if pickletools.markobject in before:
            at = marks.pop()
            changed = before.index(pickletools.markobject)
        else:
            changed = 0
            at = len(stack) - len(before)
        if at < 0:
            raise ValueError("it takes what is not there")
        taken = stack[at:]
        del stack[at:]
        weight = 1 + sum(item.weight for item in taken)
        if code in ("APPEND", "BUILD", "SETITEM"):  # these change the value that lies under
            stack.append(taken.pop(0))
            changed = 1
        if changed:
            work += weight if code.startswith(("SET", "BUILD")) else 0
            stack[-1].weight += weight
        elif code == "STACK_GLOBAL":
            stack.append(name(str(taken[0].text), str(taken[1].text)))
        elif code in ("REDUCE", "NEWOBJ", "NEWOBJ_EX", "OBJ"):
            function, given = str(taken[0].text), taken[1].parts if len(taken) > 1 else ()
            odd_encoding = function == "_codecs.encode" and [part.text for part in given[1:]] != ["latin1"]
            if not CALLED.fullmatch(function) or odd_encoding:
                seen.refused[function] = None
            work += weight
            stack.append(_Item(weight))
        elif code == "BINPERSID":
            if len(taken[0].parts) > 2:
                seen.storages.add(taken[0].parts[2].text)
            stack.append(_Item(weight))
        elif code.startswith("TUPLE"):
            stack.append(_Item(weight, 1 + max((item.tuples for item in taken), default=0), parts=tuple(taken)))
            if stack[-1].tuples > MOST_TUPLES:
                raise ValueError(f"tuples nested more than {MOST_TUPLES} deep")
        else:
            text = argument if isinstance(argument, str) else None
            seen.texts.add(text)
            stack += [_Item(weight, text=text) for _ in operation.stack_after]
        if max(work, weight, stack[-1].weight if stack else 0) > MOST_WORK:
            raise ValueError(f"more than {MOST_WORK:,} values or instructions")
