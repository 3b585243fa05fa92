"""The command `vit`, and how every command reads its settings. Light: what is heavy is imported where it is used."""

from __future__ import annotations

import argparse
import os
import re
import shlex
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, NoReturn

import yaml
from jsonargparse import ArgumentParser, set_parsing_settings

from vit import __version__
from vit.config import PRESETS, Config, ConfigError, DataConfig, MaskConfig, ModelConfig, OptimConfig, TrainConfig
from vit.errors import exit_code_of, one_line

SECTIONS = {"data": DataConfig, "model": ModelConfig, "mask": MaskConfig, "optim": OptimConfig, "train": TrainConfig}
RUN_CONFIG = "config.yaml"
MEANT = {
    "weights": {"layer", "head", "query", "mask", "keep", "film", "overlay", "scale"},
    "rollout": {"layer", "query", "mask", "discard", "overlay", "scale"},
    "relevance": {"mask", "label", "overlay", "scale"},
    "distance": {"layer"},
}
"""Options of `vit attention` that mean something for each method."""
PEERS = ("vit-pytorch", "transformers", "transformers eager")  # that `vit bench` knows


def config_parser(program: str, description: str, more: dict[str, str]) -> ArgumentParser:
    """A parser for `--config FILE` (any number, the later wins), every field of every section, and `--print_config`.

    Args:
        program: name of the command.
        description: for `--help`.
        more: the command's own options, which it reads itself, and what they do.
    """
    set_parsing_settings(docstring_parse_attribute_docstrings=True)
    usage = f"{program} [--config FILE ...] [--SECTION.FIELD VALUE ...] {' '.join(f'[{option}]' for option in more)}"
    parser = ArgumentParser(prog=program, description=description, exit_on_error=False, usage=usage, allow_abbrev=False)
    parser.epilog = "; ".join(f"{option}: {text}" for option, text in more.items())
    parser.add_argument("--config", action="config", help="YAML file with settings; of several, the later wins")
    for name, section in SECTIONS.items():
        group = parser.add_argument_group((section.__doc__ or name).rstrip("."), name=name)
        group.add_class_arguments(section, name, as_group=False)  # as a group, it would take files past `check_file`
    return parser


def parse_config(parser: ArgumentParser, argv: Sequence[str]) -> Config:
    """The settings in `argv` and the files it names, checked.

    What stands on the command line wins over the files, before or after them.

    Raises:
        ConfigError: a key or value that cannot be used, in one line.
    """
    try:
        (files,), settings = _take(argv, "--config")
        for path in files:
            check_file(Path(path))
        parsed = parser.parse_args([*(f"--config={path}" for path in files), *settings])
        return Config(**{name: section(**parsed[name].as_dict()) for name, section in SECTIONS.items()})
    except argparse.ArgumentError as error:
        message = one_line(str(error.message)).replace("Parser key ", "").replace("typing.", "")
        raise ConfigError(f"{message.rstrip('.')}. All keys are listed by --help") from error


def check_file(path: Path) -> None:
    """What the parser would let pass, or say less well: a file that is no YAML, is not made of sections, or names a key twice.

    YAML lets a key stand twice and forgets the first: a setting that silently does nothing.

    Raises:
        ConfigError: one of these, or the file cannot be read.
    """

    seen: set[str] = set()
    visited: list[yaml.Node] = []

    def walk(node: yaml.Node, name: str) -> Iterator[str]:
        where = f"in {path}, line {node.start_mark.line + 1}"
        if not node.tag.startswith("tag:yaml.org,2002:") or "python" in node.tag:
            yield f"{name or 'config'}: the tag {node.tag} {where}, cannot be used; only plain values can"
        if name in ("", *SECTIONS) and not isinstance(node, yaml.MappingNode):
            yield f"{name or 'config'}: must hold `key: value` {where}" + ("" if name else ", in sections")
        if any(node is other for other in visited):
            yield f"{name}: the alias {where}, cannot be used; write out what it stands for"
        if isinstance(node, yaml.CollectionNode):
            visited.append(node)
        if isinstance(node, yaml.SequenceNode):
            for value in node.value:
                yield from walk(value, name)
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                inner = f"{name}.{key.value}".lstrip(".")
                if inner in seen:
                    yield f"{inner}: stands twice in {path}, the second time in line {key.start_mark.line + 1}; keep one"
                seen.add(inner)
                yield from walk(value, inner)

    try:
        tree = yaml.compose(path.read_text(encoding="utf-8"), Loader=yaml.SafeLoader)
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"config: cannot read {path}: {getattr(error, 'strerror', None) or error}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"config: {path} is not YAML: {one_line(str(error))}") from error
    if tree is None:
        raise ConfigError(f"config: {path} is empty")
    for problem in walk(tree, ""):
        raise ConfigError(problem)


class _Dumper(yaml.SafeDumper):
    """Quotes a text like 1e3 or 1.5e3, which is a number to the parser but not to YAML 1.1."""


_FLOAT = re.compile(r"[-+]?[0-9][0-9_]*(\.[0-9_]*)?[eE][-+]?[0-9]+$")
_Dumper.add_implicit_resolver("tag:yaml.org,2002:float", _FLOAT, list("-+0123456789"))


def to_yaml(config: Config) -> str:
    """A complete configuration file."""
    return yaml.dump(config.to_dict(), Dumper=_Dumper, sort_keys=False, default_flow_style=None, width=120)


@dataclass(frozen=True)
class TrainCommand:
    """What train.py was asked to do: train with `config` in the run folder `out`, from where it stopped if `resume`."""

    config: Config
    out: Path
    resume: bool


def parse_train_command(argv: Sequence[str], default_config: Path) -> TrainCommand:
    """Read train.py's command line.

    Without `--config`, `default_config` is taken. With `--resume`, the run's own config.yaml is, and the settings that the
    command line adds must agree with it.

    Raises:
        ConfigError: in one line.
    """
    what = f"Pretrain by filling in hidden patches. Without --config: {default_config.name}."
    own = {
        "--out DIR": "folder for the run, by default runs/ and the configuration's name",
        "--resume": "continue the run in its folder from its last saved state",
    }
    parser = config_parser("train.py", what, own)
    resume = "--resume" in argv
    argv = [argument for argument in argv if argument != "--resume"]
    (files, outs), _ = _take(argv, "--config", "--out")
    _, argv = _take(argv, "--out")
    last = Path(files[-1]).resolve() if files else default_config
    out = Path(outs[-1] if outs else f"runs/{last.parent.name if last.name == RUN_CONFIG else last.stem}")
    if outs and not outs[-1]:
        raise ConfigError("--out: '' cannot be used; name a folder for the run")
    if not resume:
        return TrainCommand(
            parse_config(parser, argv if files else ["--config", str(default_config), *argv]), out, False
        )
    saved = out / RUN_CONFIG
    if not os.path.exists(saved):  # unlike Path.exists, False for a name that no file can have
        raise ConfigError(f"--resume: there is no run in {out}; leave --resume out to begin one, or name it by --out")
    before = parse_config(parser, ["--config", str(saved)])
    for key, old, new in parse_config(parser, ["--config", str(saved), *argv]).conflicts(before.to_dict()):
        ways = "leave it out (--config too: the run has its own), or begin another with --out"
        raise ConfigError(f"{key}: the run in {out} has {old!r}, not {new!r}; {ways}")
    _, settings = _take(argv, "--config")  # where the data is, say, a file does not change: the command line may
    config = parse_config(parser, ["--config", str(saved), *settings])
    return TrainCommand(config, out, resume=True)


def _take(argv: Sequence[str], *options: str) -> tuple[list[list[str]], list[str]]:
    """The values of each of `options` in `argv`, and `argv` without them."""
    scan = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for option in options:
        scan.add_argument(option, action="append", default=[])
    try:
        found, rest = scan.parse_known_args(list(argv))
    except argparse.ArgumentError as error:
        raise ConfigError(f"{error.argument_name}: {error.message}") from error
    return [vars(found)[option.removeprefix("--")] for option in options], rest


class _Parser(argparse.ArgumentParser):
    """Says in one line what is wrong with a command line, instead of with its usage."""

    def error(self, message: str) -> NoReturn:
        raise ConfigError(f"{self.prog}: {message.removeprefix('argument ')}; --help says more")


def main(argv: Sequence[str] | None = None) -> int:
    """The console command `vit`."""
    argv = sys.argv[1:] if argv is None else list(argv)
    return exit_code_of("vit", lambda: _run(argv))


def _run(argv: Sequence[str]) -> int:
    parser = _Parser(prog="vit", description="What stands around train.py. Each command has a --help.")
    parser.add_argument("--version", action="version", version=f"vit {__version__}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    data = commands.add_parser("data", help="show the images that a configuration would train on", add_help=False)
    data.set_defaults(run=_data)
    bench = commands.add_parser(
        "bench", help="time the training step, beside peers and the machine's limit", add_help=False
    )
    bench.set_defaults(run=_bench)
    checkpoint = commands.add_parser(
        "checkpoint", help="inspect, convert, export or publish a pretrained model", add_help=False
    )
    checkpoint.set_defaults(run=_checkpoint)
    attention = commands.add_parser("attention", help="draw what a model's attention looks at", add_help=False)
    attention.set_defaults(run=_attention)
    explore = commands.add_parser("explore", help="write a page to look around in a model's attention", add_help=False)
    explore.set_defaults(run=_explore)
    evaluate = commands.add_parser("evaluate", help="measure what a pretrained model is worth", add_help=False)
    evaluate.set_defaults(run=_evaluate)
    arguments, rest = parser.parse_known_args(list(argv))

    from vit.training.stopping import Stopped, StopRequests

    try:
        with StopRequests():
            return arguments.run(rest)
    except Stopped as stopped:
        print(f"vit: stopped by {stopped}", file=sys.stderr)
        return stopped.exit_code


def _bench(argv: Sequence[str]) -> int:
    options = bench_parser().parse_args(list(argv))
    if "--peers" in argv:
        options.peers = options.peers or list(PEERS)
    for key in ("rounds", "image_size", "decoder_dim", "decoder_depth", "decoder_heads"):
        _positive(key, getattr(options, key))
    for key in ("patch", "batch"):
        for value in getattr(options, key):
            _positive(key, value)
    if options.threads < 0:
        raise ConfigError(f"--threads: {options.threads} cannot be used; 0 or a number of threads")
    if options.plot and (not options.scaling or Path(options.plot).suffix not in (".png", ".svg", ".pdf")):
        raise ConfigError(f"--plot: {options.plot!r} cannot be used; give --scaling, and a name in .png, .svg or .pdf")
    for path in (options.json, options.plot):
        if path and not Path(path).absolute().parent.is_dir():
            raise ConfigError(f"--json, --plot: the folder of {path!r} does not exist")
        if path and Path(path).is_dir():
            raise ConfigError(f"--json, --plot: {path!r} is a folder; name a file")

    from vit.bench.report import bench

    bench(options)
    return 0


def _positive(key: str, value: int) -> None:
    if value < 1:
        raise ConfigError(f"--{key.replace('_', '-')}: {value} cannot be used; a positive number is needed")


def bench_parser() -> argparse.ArgumentParser:
    """The options of `vit bench`."""
    parser = _Parser(
        prog="vit bench", allow_abbrev=False, formatter_class=argparse.ArgumentDefaultsHelpFormatter,
        description="Time the training step, in alternating rounds, beside the machine's own matrix products, with --peers"
        " beside other libraries on the same job, and with --ablation beside itself without each technique.",
    )  # fmt: skip
    parser.add_argument("--preset", choices=[*PRESETS], default="tiny", help="encoder")
    parser.add_argument("--patch", type=int, nargs="+", default=[4], help="patch sizes in pixels")
    parser.add_argument(
        "--precision", nargs="+", choices=["auto", "bf16", "fp32"], default=["auto"], help="of the products"
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[256], help="images a step")
    parser.add_argument("--image-size", type=int, default=32, help="pixels")
    parser.add_argument("--mask-ratio", type=float, default=0.75, help="share of the patches that is hidden")
    parser.add_argument("--decoder-dim", type=int, default=192, help="width of the decoder")
    parser.add_argument("--decoder-depth", type=int, default=4, help="blocks of the decoder")
    parser.add_argument("--decoder-heads", type=int, default=3, help="heads of the decoder")
    parser.add_argument("--device", choices=["auto", "cpu", "cuda", "mps"], default="auto", help="where")
    parser.add_argument("--compile", choices=["auto", "on", "off"], default="off", help="torch.compile, of ours")
    parser.add_argument("--threads", type=int, default=0, help="on the CPU; 0: torch's choice")
    parser.add_argument("--rounds", type=int, default=7, help="how often each contestant has its turn, a step each")
    parser.add_argument(
        "--peers", nargs="*", choices=PEERS, default=[], metavar="NAME",
        help=f"others on the same job, all or some of {', '.join(PEERS)}: pip install -e '.[bench]'",
    )  # fmt: skip
    parser.add_argument("--ablation", action="store_true", help="ours without each technique")
    parser.add_argument(
        "--scaling", action="store_true", help="how cost grows with tokens, depth, width, batch, images"
    )
    parser.add_argument("--plot", metavar="FILE", help="draw the scaling: .png, .svg or .pdf")
    parser.add_argument("--json", metavar="FILE", help="write all that was measured")
    return parser


def _checkpoint(argv: Sequence[str]) -> int:
    options = checkpoint_parser().parse_args(list(argv))
    if options.command == "push":
        from vit.checkpoints.hub import push_to_hub

        print(push_to_hub(Path(options.folder), options.repository, options.private))
        return 0

    import warnings

    from vit.checkpoints import commands

    asked = _asked(options)
    with warnings.catch_warnings(action="ignore"):  # what stays untrained, the commands say themselves
        if options.command == "inspect":
            return commands.inspect(options.checkpoint, asked, options.tensors, options.json)
        return commands.write(options.checkpoint, asked, options.command, options.to, Path(options.out))


def _asked(options: argparse.Namespace) -> dict[str, Any]:
    """The keyword arguments of `load_model` that stand in `_loading_parser`'s options."""
    from vit.checkpoints.request import Request

    return {field.name: getattr(options, field.name) for field in fields(Request)}


def _yes(text: str) -> bool:
    """ "true" or "false"."""
    if text not in ("true", "false"):
        raise argparse.ArgumentTypeError(f"{text!r} cannot be used; true or false")
    return text == "true"


def _sizes(text: str) -> tuple[int, int]:
    """ "32" or "32,48" as (height, width)."""
    try:
        numbers = [int(part) for part in text.split(",")]
    except ValueError:
        numbers = []
    if len(numbers) not in (1, 2) or min(numbers) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be used; one number, or HEIGHT,WIDTH")
    return numbers[0], numbers[-1]


def _loading_parser() -> _Parser:
    """What names a checkpoint and says how it is read."""
    loading = _Parser(add_help=False)
    loading.add_argument(
        "checkpoint", help="run folder, other folder, file, timm/NAME or hf/ORGANISATION/NAME"
    )  # fmt: skip
    group = loading.add_argument_group("how it is read; by default as it is")
    group.add_argument("--part", choices=["encoder"], help="leave a decoder out")
    group.add_argument("--image-size", type=_sizes, metavar="H[,W]", help="pixels: resize the position table")
    group.add_argument("--patch-size", type=_sizes, metavar="P[,Q]", help="pixels: resize the patch kernels")
    group.add_argument("--channels", type=int, metavar="N", help="of the images: adapt the patch kernels")
    group.add_argument("--num-classes", type=int, metavar="N", help="of the head; 0 leaves it out")
    group.add_argument("--class-token", type=_yes, metavar="true|false", help="whether it has one; false leaves it out")
    group.add_argument("--global-pool", choices=["token", "avg"], help="what the head reads")
    group.add_argument("--fc-norm", type=_yes, metavar="true|false", help="whether the last norm follows the pooling")
    group.add_argument("--num-heads", type=int, metavar="N", help="where nothing says so")
    group.add_argument("--decoder-heads", type=int, metavar="N", help="where nothing says so")
    group.add_argument(
        "--grid-size", type=_sizes, metavar="R,C", help="rows and columns of its position table, likewise"
    )
    group.add_argument(
        "--norm-pix-loss", type=_yes, metavar="true|false", help="whether a decoder predicts normalised patches"
    )
    group.add_argument("--norm-eps", type=float, metavar="EPS", help="of all norms, where nothing says so")
    group.add_argument(
        "--branch", metavar="KEY", help="of several copies of the network: student, teacher, model_ema, ..."
    )
    group.add_argument(
        "--allow",
        action="append",
        default=[],
        metavar="NAME",
        help="a tensor, or a pattern, that may be missing or unexpected or hold nan; may be repeated",
    )
    return loading


def checkpoint_parser() -> argparse.ArgumentParser:
    """The options of `vit checkpoint`."""
    parser = _Parser(
        prog="vit checkpoint", allow_abbrev=False,
        description="Pretrained models: ours, timm's, MAE's, DINO's, Hugging Face's, torchvision's.",
    )  # fmt: skip
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True, dest="command")
    loading = _loading_parser()
    inspect = commands.add_parser("inspect", parents=[loading], help="say what it is and what becomes of each tensor")
    inspect.add_argument("--tensors", action="store_true", help="list every tensor")
    inspect.add_argument("--json", action="store_true", help="print all of it as JSON")
    for name, formats, what in (
        ("convert", ["timm", "mae", "huggingface", "safetensors"], "write it in another format"),
        ("export", ["onnx", "torch-export"], "write it as a program that runs without this package"),
    ):
        command = commands.add_parser(name, parents=[loading], help=what)
        command.add_argument("--to", choices=formats, required=True, help="format")
        command.add_argument("--out", required=True, metavar="PATH", help="file or folder to write")
    push = commands.add_parser("push", help="publish a run folder on a model hub, with a model card")
    push.add_argument("folder", help="run folder, or a folder that `convert --to safetensors` wrote")
    push.add_argument("repository", metavar="ORGANISATION/NAME", help="made where it does not exist")
    push.add_argument("--private", action="store_true", help="not for everybody to see")
    return parser


def _attention(argv: Sequence[str]) -> int:
    parser = attention_parser()
    options = parser.parse_intermixed_args(list(argv))
    _shown_once(options, parser)
    given = {name for name in ("layer", "head", "query", "mask", "label", "discard", "keep", "film", "overlay", "scale")
             if getattr(options, name) != parser.get_default(name)}  # fmt: skip
    meant = MEANT[options.method] | ({"query"} if options.mask is not None and options.method == "relevance" else set())
    for name in sorted(given - meant):
        raise ConfigError(f"--{name}: has no meaning for --method {options.method}; leave it out")
    if options.film and (options.mask is not None or options.scale == "row"):
        raise ConfigError("--film: shows whole images on one scale; leave --mask and --scale row out")
    if options.layer == "auto":
        options.layer = None if options.method == "distance" else -1
    _require_folder(Path(options.out))

    from vit.interpret import commands

    look = commands.Look(
        **{field.name: getattr(options, field.name) for field in fields(commands.Look) if field.name != "out"},
        out=Path(options.out),
    )
    shown = (options.checkpoint, options.images, options.data, options.root, options.count)
    return commands.attention(*shown, _asked(options), look)


def _require_folder(folder: Path) -> None:
    """Refuse a folder that cannot be written to, before anything is computed."""
    try:
        there = next(path for path in (folder, *folder.absolute().parents) if os.path.lexists(path))
    except OSError as error:  # a name that is too long
        raise ConfigError(f"--out: {folder}: {error.strerror}") from error
    if not there.is_dir():
        raise ConfigError(f"--out: {there} is not a folder")
    if not os.access(there, os.W_OK | os.X_OK):
        raise ConfigError(f"--out: {there} cannot be written to; name another folder")


def _shown_once(options: argparse.Namespace, parser: argparse.ArgumentParser) -> None:
    """Refuse options that would do nothing."""
    if options.mask is None and options.seed != parser.get_default("seed"):
        raise ConfigError("--seed: is of the mask; add --mask, or leave it out")
    for name in ("root", "count"):
        if options.data is None and getattr(options, name) != parser.get_default(name):
            raise ConfigError(f"--{name}: is about a data set; add --data, or leave it out")


def _explore(argv: Sequence[str]) -> int:
    parser = explore_parser()
    options = parser.parse_intermixed_args(list(argv))
    _shown_once(options, parser)

    out = Path(options.out)
    if out.suffix not in (".html", ".htm") or os.path.isdir(out):
        raise ConfigError(f"--out: {options.out!r} cannot be used; name a page that ends in .html")
    if len(os.fsencode(out.name)) > 240:  # beside it, a temporary file needs a name too
        raise ConfigError(f"--out: {out.name[:40]}...: File name too long")
    _require_folder(out.parent)

    from vit.interpret.page import explore

    return explore(
        options.checkpoint, options.images, options.data, options.root, options.count, _asked(options),
        out, options.layers, options.mask, options.seed, options.snapshots, options.numbers,
    )  # fmt: skip


def _evaluate(argv: Sequence[str]) -> int:
    options = evaluate_parser().parse_args(list(argv))
    known = ("cifar10", "cifar100", "scenes")
    source, root = (options.data, options.root) if options.data in known else ("folder", options.data)
    if source == "folder" and not os.path.isdir(os.path.expanduser(root)):
        raise ConfigError(f"--data: {root!r} is neither {', '.join(known)} nor a folder of images")
    config = DataConfig(source=source, root=root, name=options.name, limit=options.limit)  # type: ignore[arg-type]
    if options.out == "":
        raise ConfigError("--out: '' cannot be used; name a folder")
    out = Path(options.out) if options.out else None
    if out is not None:
        _require_folder(out)

    from vit.evaluate import commands

    measure = commands.Measure(
        **{field.name: getattr(options, field.name) for field in fields(commands.Measure) if field.name != "methods"},
        methods=() if options.method == "all" else (options.method,),
    )
    outcome = commands.evaluate(options.checkpoint, config, _asked(options), measure)
    print("\n".join(commands.describe(outcome.results)))
    if out is not None:
        from vit.atomic import write_json

        write_json(out / "results.json", outcome.results | {"command": f"vit evaluate {shlex.join(argv)}"})
        print(f"In {out}: results.json" + (", confusion.png, reliability.png" if outcome.logits is not None else ""))
        if outcome.logits is not None:
            from vit.evaluate.classification import confusion, reliability
            from vit.figures import confusion_figure, reliability_figure, save_figure

            about = commands.caption(outcome)
            table, found = confusion(outcome.logits, outcome.labels), reliability(outcome.logits, outcome.labels)
            figure = confusion_figure(table, outcome.class_names, "What is taken for what", about)
            save_figure(figure, out / "confusion.png")
            figure = reliability_figure(
                found.confidence, found.accuracy, found.count, found.error, "Can its confidence be believed?", about
            )
            save_figure(figure, out / "reliability.png")
    return 0


def evaluate_parser() -> argparse.ArgumentParser:
    """The options of `vit evaluate`."""
    parser = _Parser(
        prog="vit evaluate", allow_abbrev=False, parents=[_loading_parser()],
        description="Measure what a pretrained model is worth, without training it any further. The test images are looked at"
        " once; what is chosen is chosen on training images.",
    )  # fmt: skip
    parser.add_argument(
        "--data", required=True, metavar="NAME", help="cifar10, cifar100, scenes, or a folder of images"
    )
    parser.add_argument("--root", default="data", metavar="DIR", help="where CIFAR's archive lies (default: data)")
    parser.add_argument("--name", default="", metavar="TEXT", help="what the data is called in outputs")
    parser.add_argument(
        "--limit", type=_natural, default=0, metavar="N", help="only so many images of each split; 0: all"
    )
    parser.add_argument(
        "--method", choices=["all", "knn", "linear", "reconstruction", "head"], default="all",
        help="nearest neighbours, a linear probe, filling in hidden patches, the model's own head (default: all that apply)",
    )  # fmt: skip
    parser.add_argument(
        "--every-layer", action="store_true", help="probe each layer, choose on held-out training images"
    )
    parser.add_argument(
        "--labels", type=_share, default=1.0, metavar="SHARE", help="of the training labels that may be used"
    )
    parser.add_argument(
        "--holdout", type=_count, default=5000, metavar="N", help="training images that choose (default: 5000)"
    )
    parser.add_argument("--bank", type=_natural, default=0, metavar="N", help="training images for neighbours; 0: all")
    parser.add_argument(
        "--seeds", type=_naturals, default=(0,), metavar="N,N",
        help="of the label subset and the held-out images; of several, the mean and the spread (default: 0)",
    )  # fmt: skip
    parser.add_argument("--device", choices=["auto", "cpu", "cuda", "mps"], default="auto", help="where")
    parser.add_argument("--threads", type=_natural, default=0, metavar="N", help="on the CPU; 0: torch's choice")
    parser.add_argument("--out", metavar="DIR", help="folder for results.json, confusion.png and reliability.png")
    return parser


def _shown_parser() -> _Parser:
    """What a model is shown."""
    shown = _Parser(add_help=False)
    shown.add_argument("images", nargs="*", metavar="IMAGE", help="image files; prepared as the model was trained")
    group = shown.add_argument_group("images of a data set instead")
    group.add_argument("--data", metavar="NAME", help="cifar10, cifar100, scenes, or a folder of images")
    group.add_argument("--root", default="data", metavar="DIR", help="where CIFAR's archive lies (default: data)")
    group.add_argument("--count", type=_count, default=8, metavar="N", help="how many test images (default: 8)")
    group = shown.add_argument_group("hiding patches, for masked models")
    group.add_argument("--mask", type=float, metavar="SHARE", help="hide this share of the patches, 0.75 say")
    group.add_argument("--seed", type=_natural, default=0, metavar="N", help="of the mask (default: 0)")
    return shown


def attention_parser() -> argparse.ArgumentParser:
    """The options of `vit attention`."""
    parser = _Parser(
        prog="vit attention", allow_abbrev=False, parents=[_loading_parser(), _shown_parser()],
        description="Draw what a model's attention looks at, and write the numbers beside each picture as .npz.",
    )  # fmt: skip
    parser.add_argument("--out", required=True, metavar="DIR", help="folder for the pictures")
    parser.add_argument(
        "--layer",
        type=_layer,
        default="auto",
        metavar="N|all",
        help="from 0; -1 is the last (default; for distance, all); all: one map a layer",
    )
    parser.add_argument("--head", type=_head, default="all", metavar="N|mean|all", help="from 0 (default: all)")
    parser.add_argument(
        "--query", type=_query, default="auto", metavar="cls|R,C|mean|auto",
        help="who looks: the class token, the patch in row R and column C, all patches on average, 'register N'; auto: the"
        " class token, or the middle patch where there is none",
    )  # fmt: skip
    parser.add_argument(
        "--method", choices=["weights", "rollout", "relevance", "distance"], default="weights",
        help="the weights (default), what came through all layers, what a class rests on, how far heads look",
    )  # fmt: skip
    parser.add_argument("--scale", choices=["shared", "row", "log"], default="shared", help="of the colours")
    parser.add_argument("--overlay", action="store_true", help="lay the maps over the images")
    parser.add_argument(
        "--keep", type=_share, metavar="SHARE", help="also the patches that hold it: 0.6, as DINO draws"
    )
    parser.add_argument("--label", metavar="CLASS", help="relevance for this class, a number or a name")
    parser.add_argument(
        "--discard", type=float, default=0.0, metavar="SHARE", help="rollout without the weakest weights"
    )
    parser.add_argument("--film", action="store_true", help="also the first image over a run's snapshots, as a GIF")
    parser.add_argument("--format", choices=["png", "svg", "pdf"], default="png", help="of the pictures")
    parser.add_argument("--dark", action="store_true", help="for a dark page or slide")
    return parser


def explore_parser() -> argparse.ArgumentParser:
    """The options of `vit explore`."""
    parser = _Parser(
        prog="vit explore", allow_abbrev=False, parents=[_loading_parser(), _shown_parser()],
        description="Write one self-contained page to look around in a model's attention: it opens from disk, without"
        " a server or a network.",
    )  # fmt: skip
    parser.add_argument("--out", required=True, metavar="PAGE.html", help="file to write")
    parser.add_argument(
        "--layers", type=_numbers, metavar="N,N", help="only these: 0,5,-1, say; -1 is the last (default: all)"
    )
    parser.add_argument("--snapshots", action="store_true", help="a slider over a run's snapshots")
    parser.add_argument("--numbers", action="store_true", help="write the weights beside the page, as .npz")
    return parser


def _layer(text: str) -> int | str | None:
    return text if text == "auto" else None if text == "all" else _whole(text)


def _head(text: str) -> int | str:
    return text if text in ("all", "mean") else _whole(text)


def _whole(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        shown = text[:40]
        raise argparse.ArgumentTypeError(f"{shown!r} cannot be used; a number, or a word that --help names") from None


def _query(text: str) -> str | tuple[int, int]:
    """ "3,4" as (row, column); words as they are."""
    if text in ("auto", "cls", "mean") or re.fullmatch(r"register \d{1,4}", text):
        return text
    match = re.fullmatch(r"(\d{1,6}),(\d{1,6})", text)
    if match is None:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} cannot be used; auto, cls, mean, 'register N', or ROW,COLUMN")
    return int(match[1]), int(match[2])


def _numbers(text: str) -> list[int]:
    return [_whole(part) for part in text.split(",")]


def _count(text: str) -> int:
    if not text.isdecimal() or len(text) > 18 or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} cannot be used; a number from 1 to below 10^18")
    return int(text)


def _natural(text: str) -> int:
    if not text.isdecimal() or len(text) > 18:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} cannot be used; a number from 0 to below 10^18")
    return int(text)


def _naturals(text: str) -> tuple[int, ...]:
    return tuple(_natural(part) for part in text.split(","))


def _share(text: str) -> float:
    try:
        share = float(text)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise argparse.ArgumentTypeError(f"{text!r} cannot be used; a share above 0 and at most 1")
    return share


def _data(argv: Sequence[str]) -> int:
    what = "Load the data of a configuration, say what it is, and draw a sheet of it."
    parser = config_parser("vit data", what, {"--out SHEET.png": "picture to write: .png, .svg or .pdf"})
    (outs,), argv = _take(argv, "--out")
    config = parse_config(parser, argv)
    if not outs or Path(outs[-1]).suffix not in (".png", ".svg", ".pdf"):
        raise ConfigError(f"--out: {outs[-1:]} cannot be used; name a picture that ends in .png, .svg or .pdf")
    out = Path(outs[-1])

    from vit.data import SCENES_SEED, load_data
    from vit.data.scenes import PART_NAMES, draw_scenes, scene_indices
    from vit.figures import save_figure, sheet_figure

    data = load_data(config.data, config.model.image_size_2d)
    columns = 5 if data.source == "scenes" else 10
    chosen = data.train.showcase(10 * columns)  # ten rows; with ten classes, a row a class
    some = data.train.subset(chosen)
    subtitle, parts = data.description, None
    if data.source == "scenes":
        parts = draw_scenes(scene_indices(len(data.train), "train")[chosen], SCENES_SEED)[2]
        subtitle += " · right: the part each pixel belongs to"
    lines = [data.description, *([data.warning] if data.warning else [])]
    lines += [f"left out, unreadable: {path}" for path in data.train.skipped + data.test.skipped]
    figure = sheet_figure(some.images, some.label_names, data.name, subtitle, columns, parts, PART_NAMES)
    save_figure(figure, out)
    print("\n".join([*map(one_line, lines), f"sheet: {out}"]))
    return 0


if __name__ == "__main__":
    sys.exit(main())
