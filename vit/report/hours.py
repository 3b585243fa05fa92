"""`vit compare --hours`: accuracy over the hours of training, where runs measured it meanwhile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from vit.errors import RunError, one_line
from vit.figures import Panel, RunLine, compared_figure, save_figure
from vit.figures.measures import SERIES
from vit.metrics import METRICS, tested_images
from vit.report.comparison import FinishedRun, group_by_seed, mean_of
from vit.report.record import WRONG_VALUES, RunRecord, tested_images_of

PANELS = {
    "val_knn_accuracy": ("nearest neighbours", METRICS["knn_accuracy"]),
    "val_accuracy": ("accuracy of the classifier", METRICS["accuracy"]),
}
"""Key of metrics.jsonl -> the panel that draws it, and the final metric."""
ADVICE = "run.val_every measures it, on images that data.val_size holds out"


def draw_hours(runs: Sequence[FinishedRun], path: Path) -> None:
    """Draw a line for each training, a mark for its end, and a colour for each row of the table.

    Runs that did not measure accuracy while training get a note.

    Raises:
        RunError: no run can be drawn, there are too many to tell apart, or a run's files lack what
            is drawn.
    """
    # A colour for each group
    measured = measured_while_training(runs)
    groups = group_by_seed(measured)
    if len(groups) > len(SERIES):
        advice = f"give at most {len(SERIES)}"
        raise RunError(f"{len(groups)} kinds of runs are too many for one picture; {advice}")

    # The lines of each panel by its title, and the images of the ends as a set in order
    panels: dict[str, list[RunLine]] = {title: [] for title, _ in PANELS.values()}
    images: dict[str, None] = {}
    for series, group in enumerate(groups):
        lines: dict[str, list[RunLine]] = {}
        for run in group:
            try:
                title, line, measured_on = course_of(run.record, series)
            except WRONG_VALUES as error:
                problem = f"{type(error).__name__}: {error}"
                raise RunError(f"{run.record.files.path} cannot be drawn: {problem}") from error
            # Pretrainings and classifiers have a panel each
            images[measured_on] = None
            lines.setdefault(title, []).append(replace(line, label=run.record.name))
        count = tested_images(group[0].record.summary)
        for title, group_lines in lines.items():
            panels[title] += with_one_label(group_lines, count)

    # The title names the machines, the subtitle explains lines and marks
    devices: dict[str, None] = {}
    for run in measured:
        if "device" in run.record.summary:
            devices[str(run.record.summary["device"])] = None
    title = "Accuracy over the hours of training"
    if devices:
        title += f" on {', '.join(devices)}"
    subtitle = "lines: during training, on held-out images"
    if any(line.start for lines in panels.values() for line in lines):
        subtitle += " · upright lines: where runs began, after the hours behind their first weights"
    subtitle += f" · marks and scores: at the end, on {', or '.join(images)}"
    drawn_panels = [Panel(name, lines, share=True) for name, lines in panels.items() if lines]
    save_figure(compared_figure(drawn_panels, title, subtitle), path)


def measured_while_training(runs: Sequence[FinishedRun]) -> list[FinishedRun]:
    """Return the runs that measured accuracy while training; the others get a note.

    Raises:
        RunError: there are none.
    """
    measured = []
    for run in runs:
        if panel_key(run.record):
            measured.append(run)
        else:
            reason = f"it has no accuracy during training; {ADVICE}"
            run.record.notes.append(f"{run.record.files.path} is not drawn: {reason}")
    if not measured:
        raise RunError(f"--hours: none of these runs has its accuracy during training; {ADVICE}")
    return measured


def panel_key(run: RunRecord) -> str:
    """Return the key of PANELS that a run has measured while training; "" if none."""
    for key in PANELS:
        if any(key in line for line in run.metrics):
            return key
    return ""


def course_of(run: RunRecord, series: int) -> tuple[str, RunLine, str]:
    """Return a run's panel, its line over the hours, and the images behind its end.

    Hours count from the start of the training behind its first weights. The end is what the run
    measured, or what `vit evaluate RUN --out RUN/NAME` has measured on the test images since.
    """
    # The line
    key = panel_key(run)
    title, metric = PANELS[key]
    seconds_before = run.summary.get("init_seconds", 0.0)
    hours = []
    values = []
    for entry in run.metrics:
        if key in entry:
            hours.append((seconds_before + entry["seconds"]) / 3600)
            values.append(entry[key])

    # The end
    score = metric.of_summary(run.summary)
    data = run.data
    method, _ = metric.in_results
    for results in run.results.values():
        on_test = results["data"].get("tested_on") == "test images"
        same_images = results["data"].get("content_hash") == run.data.get("whole_content_hash")
        if method in results and on_test and same_images and results["settings"]["labels"] == 1:
            score = float(results[method]["accuracy"])
            data = results["data"]
    end = None
    if score is not None:
        end = ((seconds_before + run.summary["seconds"]) / 3600, score)
    line = RunLine(series, hours, values, end, start=seconds_before / 3600)
    return title, line, images_of(data)


def with_one_label(lines: Sequence[RunLine], images: int) -> list[RunLine]:
    """Return lines of runs that differ only in the seed, labelled once: mean of their ends, names.

    Args:
        images: the number behind each end.
    """
    # One label in the legend, with the ends' mean
    label = ", ".join(line.label for line in lines)
    ends = [line.end[1] for line in lines if line.end]
    if ends:
        label = f"{mean_of(ends, METRICS['accuracy'], images)}  {label}"
    first, *others = lines
    return [replace(first, label=label), *(replace(line, label="") for line in others)]


def images_of(data: Mapping[str, Any]) -> str:
    """Return the images measured on: "10,000 test images of CIFAR-10"."""
    return f"{tested_images_of(data)} of {one_line(data['name'])}"
