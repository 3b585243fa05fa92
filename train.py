"""Pretrain a vision transformer by masked patch reconstruction.

    python train.py                                            # configs/quickstart.yaml
    python train.py --config configs/cifar10_tiny_p4.yaml
    python train.py --config configs/folder.yaml --data.root my_images --out runs/mine
    python train.py --config configs/cifar10_tiny_p4.yaml --resume

The run folder, runs/<config> or --out, gets config.yaml, metrics.jsonl, checkpoints/, model.safetensors and config.json,
reconstructions.png, attention.png, curves.png, summary.json.
"""

from __future__ import annotations

import io
import os
import sys
import textwrap
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit.cli.settings import TrainCommand, parse_train_command, to_yaml
from vit.errors import exit_code_of, one_line

if TYPE_CHECKING:
    from vit.data import Dataset
    from vit.training.processes import Processes
    from vit.training.run import TrainingRun
    from vit.training.run_folder import RunFolder
    from vit.training.stopping import StopRequests

QUICKSTART = Path(__file__).resolve().parent / "configs" / "quickstart.yaml"
PICTURES = 10  # test images in reconstructions.png
MAPS = 6  # test images in attention.png


def main() -> int:
    if isinstance(sys.stdout, io.TextIOWrapper):  # lines also into a file or a pipe: a run is watched while it runs
        sys.stdout.reconfigure(line_buffering=True)
    command = parse_train_command(sys.argv[1:], QUICKSTART)

    from vit.training.allocator import keep_freed_memory
    from vit.training.processes import joined, launch
    from vit.training.run_folder import RunFolder
    from vit.training.stopping import Stopped, StopRequests

    settings = command.config.train
    folder = RunFolder(command.out)
    if "TORCHELASTIC_RUN_ID" not in os.environ:
        if not command.resume:
            folder.refuse_if_taken()
        if settings.processes > 1:
            return launch(settings.processes, settings.threads)
    keep_freed_memory()
    try:
        with StopRequests() as stop:
            with joined(settings) as processes:
                run = prepare(command, folder, processes)
                train(run, folder, stop)
            if run.processes.first:
                finish(run, folder)
    except Stopped as stopped:
        ways = f"continue with: python train.py --out {folder.path} --resume" if folder.begun else "nothing had begun"
        if os.environ.get("RANK", "0") == "0":
            print(f"stopped by {stopped}; {ways}", file=sys.stderr)
        return stopped.exit_code
    return 0


def prepare(command: TrainCommand, folder: RunFolder, processes: Processes) -> TrainingRun:
    """Data, model and folder, ready for the next step. The folder is the first process's."""
    from vit.data import load_data
    from vit.training.metrics import tensorboard_writer
    from vit.training.run import begin_run

    config = command.config
    if config.train.tensorboard:
        tensorboard_writer()  # better missed now than after the data is loaded
    with processes.one_first():
        data = load_data(config.data, config.model.image_size_2d)
    config = config.with_source(data.source)
    if command.resume and processes.first:
        folder.begin(config_yaml=None)
    run = begin_run(config, data, folder.checkpoints if command.resume else None, processes)
    if not processes.first:
        return run
    if not command.resume:  # only now that nothing can be wrong with it any more
        folder.begin(f"# trained on {one_line(data.description)}\n{to_yaml(config)}")

    warn(data)
    parameters = sum(parameter.numel() for parameter in run.model.parameters())
    rows, columns = config.model.grid_size
    print(f"data     {one_line(data.description)}")
    print(f"model    {parameters / 1e6:.2f}M parameters, {rows} x {columns} patches, {config.mask.ratio:.0%} hidden")
    print(f"compute  {run.compute}; {run.how}")
    print(f"run      {folder.path}, {run.total_steps:,} steps" + (f", from step {run.step:,}" if run.step else ""))
    for note in [*run.notes, *(f"unreadable, left out: {path}" for path in data.train.skipped + data.test.skipped)]:
        print(f"note     {one_line(note)}")
    return run


def train(run: TrainingRun, folder: RunFolder, stop: StopRequests) -> None:
    """All remaining steps; a signal ends them after the one under way, with its state saved."""
    from vit.training.metrics import MetricsLog
    from vit.training.progress import Progress
    from vit.training.run_folder import snapshot_steps

    settings, processes = run.config.train, run.processes
    stop.hold(True)
    if not processes.first:
        for _ in run.steps():
            if stop.agree(processes):
                break
        stop.hold(False)
        return
    kept = snapshot_steps(run.total_steps, settings.snapshots)
    if run.step == 0 and 0 in kept:
        take_snapshot(run, folder)
    log = MetricsLog(folder.metrics, run.step, folder.tensorboard if settings.tensorboard else None)
    progress = Progress(run.total_steps, settings.epochs, run.step)
    images, since, began = 0, run.seconds, run.step
    try:
        for step in run.steps():
            last = step.step == run.total_steps
            progress.update(step)
            images += step.images
            if step.step % settings.log_every == 0 or step.step == 1 or last:
                log.write({**step.metrics, "images_per_second": images / (run.seconds - since)})
                images, since = 0, run.seconds
            if step.step == began + 1 and run.compute.compile:
                print(f"compiled and made the first step in {run.first_step_seconds:.0f} s", flush=True)
            if step.step in kept:
                step.check()
                take_snapshot(run, folder)
            stopping = stop.agree(processes)
            if step.step % settings.save_every == 0 or last or stopping:
                step.check()
                log.sync()
                run.save(folder.checkpoints)
            if stopping:
                break
    finally:
        progress.close()
        log.close()
    stop.hold(False)


def take_snapshot(run: TrainingRun, folder: RunFolder) -> None:
    """The weights as they are now, for `vit attention --film` and `vit explore`."""
    import torch

    from vit.checkpoints import save_model

    data, place = run.data, folder.snapshots / f"step-{run.step:08d}"
    save_model(place, run.model, run.normalize, data.train.class_names, data.name, dtype=torch.float16)


def finish(run: TrainingRun, folder: RunFolder) -> None:
    """The model, the summary and the pictures, and a word on each."""
    from vit.atomic import write_json
    from vit.checkpoints import save_model
    from vit.evaluate.summary import summarize
    from vit.training.metrics import read_metrics

    save_model(folder.path, run.model, run.normalize, run.data.train.class_names, run.data.name)
    print("measuring what was learned ...", flush=True)
    metrics = read_metrics(folder.metrics)
    summary = summarize(run, metrics)
    draw(run, folder, metrics, summary)
    write_json(folder.summary, summary)  # last: a folder with a summary holds a finished run

    warn(run.data)
    baselines, neighbours = summary["test_loss_of_baselines"], summary["neighbours"]
    print(
        f"\n{one_line(run.data.name)}: {run.step:,} steps in {run.seconds:,.0f} s, {summary['images_per_second']:,.0f} images/s"
    )
    print(f"test loss on hidden patches  {summary['test_loss']:.4f}")
    print(f"  guessing the visible mean  {baselines['mean_of_visible_patches']:.4f}")
    print(f"  copying the nearest patch  {baselines['nearest_visible_patch']:.4f}")
    if neighbours:
        print(f"nearest-neighbour accuracy   {neighbours['encoder_accuracy']:.1%} by the encoder's features")
        print(f"                             {neighbours['raw_pixel_accuracy']:.1%} by raw pixels")
    print(f"\nIn {folder.path}:")
    print(f"  {folder.reconstructions.name}  test images, what the model sees of them, and how it fills in the rest")
    print(f"  {folder.attention.name}        where the last layer's attention looks, head by head")
    print(f"  {folder.curves.name}           loss, learning rate and gradient norm over the epochs")
    print(f"  {folder.summary.name}         these figures and what they came from")
    print("  model.safetensors    the weights, with config.json: vit.checkpoints.load_model reads them", flush=True)


def draw(run: TrainingRun, folder: RunFolder, metrics: list[dict[str, Any]], summary: dict[str, Any]) -> None:
    """reconstructions.png, attention.png and curves.png."""
    import torch

    from vit.data.augment import to_float
    from vit.encoder import eval_mode
    from vit.evaluate.reconstruction import fixed_mask, reconstruct
    from vit.figures import attention_figure, curves_figure, reconstruction_figure, save_figure
    from vit.interpret import AttentionMaps

    config, test, encoder = run.config, run.data.test, run.model.encoder
    about = f"{run.data.name}, test images · {config.train.epochs} epochs on {len(run.data.train):,} images"
    grid = config.model.grid_size

    some = test.subset(test.showcase(PICTURES))
    mask = fixed_mask(config.mask.kind, 0, len(some), grid, config.mask.ratio)
    result = reconstruct(run.model, some.images, run.normalize, mask, run.compute)
    how = f"{config.mask.kind} mask, {int(mask.mask[0].sum())} of {mask.mask.shape[1]} patches hidden"
    if result.from_normalized:
        how += (
            " · the model predicts normalised patches: their brightness and contrast are estimated from the visible"
            " patches around, not taken from the original"
        )
    title = "Filled in from what is visible"
    figure = reconstruction_figure(
        result.original, result.filled, result.hidden, some.label_names, title, f"{about} · {how}"
    )
    save_figure(figure, folder.reconstructions)

    some = test.subset(test.showcase(MAPS))
    images = to_float(some.images, config.model.image_size_2d)
    with eval_mode(encoder), torch.no_grad(), AttentionMaps(encoder, layers=[-1]) as attention:
        encoder(run.normalize(images).to(run.compute.device))
    centre = (grid[0] // 2, grid[1] // 2)
    by_class = config.model.class_token
    asks = "the class token" if by_class else f"the patch in row {centre[0]}, column {centre[1]} (outlined)"
    maps, prefix_mass = (part.float().cpu() for part in attention.to_grid(query="cls" if by_class else centre))
    heads = maps.shape[1]
    # The mean stands first: it is what the heads amount to.
    maps, prefix_mass = (torch.cat([part.mean(dim=1, keepdim=True), part], dim=1) for part in (maps, prefix_mass))
    figure = attention_figure(
        images, maps, ["mean of heads", *(f"head {head}" for head in range(heads))], some.label_names,
        f"Where {asks} looks", f"{about} · layer {len(encoder.blocks) - 1} of 0 to {len(encoder.blocks) - 1}, whole images",
        masses=prefix_mass, query=None if by_class else centre,
    )  # fmt: skip
    save_figure(figure, folder.attention)

    lines = {
        "test loss at the end": summary["test_loss"],
        "guessing the mean of the visible": summary["test_loss_of_baselines"]["mean_of_visible_patches"],
        "copying the nearest visible": summary["test_loss_of_baselines"]["nearest_visible_patch"],
    }
    save_figure(curves_figure(metrics, lines, "How the run went", f"{about} · seed {config.train.seed}"), folder.curves)


def warn(data: Dataset) -> None:
    """Say, so that nobody overlooks it, that the data is not what was asked for."""
    if data.warning:
        bar = "!" * 100
        print(f"\n{bar}\n{textwrap.fill('WARNING: ' + data.warning, 100)}\n{bar}\n", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(exit_code_of("train.py", main))
