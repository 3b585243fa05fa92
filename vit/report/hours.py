"""`vit compare --hours`: accuracy over the hours of training, for runs that measured it meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vit.errors import one_line
from vit.figures import Panel, RunLine, compared_figure, save_figure
from vit.figures.measures import SERIES
from vit.metrics import METRICS
from vit.report.comparison import ComparisonError, FinishedRun, group_by_seed, mean_of
from vit.report.record import WRONG_VALUES, RunRecord

PANELS = {
    "val_knn_accuracy": ("nearest neighbours", METRICS["knn_accuracy"]),
    "val_accuracy": ("accuracy of the classifier", METRICS["accuracy"]),
}
"""Key of metrics.jsonl -> the panel that draws it, and the final metric."""
ADVICE = "run.val_every measures it, on images that data.val_size holds out"


def draw_hours(runs: Sequence[FinishedRun], path: Path) -> None:
    """Draw runs: a line for the training, a mark for the measurement at the end, a colour per row of the table.

    Runs that did not measure accuracy while training get a note.

    Raises:
        ComparisonError: there are no rows, or too many to tell apart, or a run's files lack what is drawn.
        RunError: a metrics.jsonl is damaged.
    """
    watched = measured_while_training(runs)
    groups = group_by_seed(watched)
    if len(groups) > len(SERIES):
        advice = f"give at most {len(SERIES)}"
        raise ComparisonError(f"{len(groups)} kinds of runs are too many for one picture; {advice}")

    # The lines of each panel, by its title
    panels: dict[str, list[RunLine]] = {title: [] for title, _ in PANELS.values()}
    tested = {}  # as a set, in order
    for series, group in enumerate(groups):
        lines: dict[str, list[RunLine]] = {}
        for run in group:
            try:
                title, line, images = course_of(run.record, series)
            except WRONG_VALUES as error:
                problem = f"{type(error).__name__}: {error}"
                raise ComparisonError(
                    f"{run.record.files.path} cannot be drawn: {problem}"
                ) from error
            tested[images] = True
            lines.setdefault(title, []).append(replace(line, label=run.record.name))
        for title, drawn in lines.items():
            panels[title] += with_one_label(drawn)

    # The figure
    devices = {}  # as a set, in order
    for run in watched:
        if "device" in run.record.summary:
            devices[str(run.record.summary["device"])] = True
    title = "Accuracy over the hours of training"
    if devices:
        title += f" on {', '.join(devices)}"
    about = "lines: during training, on held-out images"
    if any(line.start for drawn in panels.values() for line in drawn):
        about += " · upright lines: where runs began, after the hours behind their first weights"
    about += f" · marks and figures: at the end, on {', or '.join(tested)}"
    shown = [Panel(name, drawn, share=True) for name, drawn in panels.items() if drawn]
    save_figure(compared_figure(shown, title, about), path)


def measured_while_training(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Return the runs that measured accuracy while training; the others get a note.

    Raises:
        ComparisonError: there are none.
    """
    watched = []
    for run in runs:
        if any(key in line for line in run.record.metrics for key in PANELS):
            watched.append(run)
        else:
            lacks = "it has no accuracy during training"
            run.record.notes.append(f"{run.record.files.path} is not drawn: {lacks}; {ADVICE}")
    if not watched:
        raise ComparisonError(
            f"--hours: none of these runs has its accuracy during training; {ADVICE}"
        )
    return watched


def course_of(run: RunRecord, series: int) -> tuple[str, RunLine, str]:
    """Return a run's panel, its line over the hours, and the images that its end was measured on.

    Hours count from the start of the training behind its first weights. The end is what the run measured, or what
    `vit evaluate RUN --out RUN/NAME` has measured on the test images since.
    """
    key = next(key for key in PANELS if any(key in line for line in run.metrics))
    title, metric = PANELS[key]
    before = run.summary.get("init_seconds", 0.0)
    hours, values = [], []
    for entry in run.metrics:
        if key in entry:
            hours.append((before + entry["seconds"]) / 3600)
            values.append(entry[key])

    # The end
    score = metric.of_summary(run.summary)
    images = run.data
    method, _ = metric.in_results
    whole = {"content_hash": images.get("whole_content_hash"), "tested_on": "test images"}
    for results in run.results.values():
        on_all = method in results and whole.items() <= results["data"].items()
        if on_all and results["settings"]["labels"] == 1:
            score = float(results[method]["accuracy"])
            images = results["data"]
    end = None
    if score is not None:
        end = ((before + run.summary["seconds"]) / 3600, score)
    line = RunLine(series, hours, values, end, start=before / 3600)
    return title, line, images_of(images)


def with_one_label(lines: Sequence[RunLine]) -> list[RunLine]:
    """Return the lines of runs that differ only in the seed, with the mean of their ends and all names on the first."""
    label = ", ".join(line.label for line in lines)
    ends = [line.end[1] for line in lines if line.end]
    if ends:
        label = f"{mean_of(ends, METRICS['accuracy'])}  {label}"
    first, *others = lines
    return [replace(first, label=label), *(replace(line, label="") for line in others)]


def images_of(data: Mapping[str, Any]) -> str:
    """Return the images measured on: "10,000 test images of CIFAR-10"."""
    return f"{data['test_images']:,} {data['tested_on']} of {one_line(data['name'])}"
