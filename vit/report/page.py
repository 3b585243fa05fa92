"""`vit report`: one page about a run that opens from disk, without a server, a network or a script."""

from __future__ import annotations

from importlib.resources import files
from pathlib import Path

from vit import __version__
from vit.atomic import write_text
from vit.errors import UserError, one_line
from vit.figures.document import Markup, as_text, element, sealed_page
from vit.report.course import attention, course, dynamics, filling, pictures_left
from vit.report.development import Development, development_of
from vit.report.headline import introduction, key_figures
from vit.report.outcome import evaluation, outcome
from vit.report.particulars import data, machine, remarks, repeating, settings
from vit.report.pieces import paragraph
from vit.runs import RunRecord, read_run
from vit.training.objectives import objective_class

SIGNATURE = '<meta name="generator" content="vit report">'
"""What tells such a page from other files; stands in report.html."""


class ReportError(UserError):
    """A page that cannot be written; the message is one line."""


def write_report(path: Path, out: Path) -> int:
    """Write the page about the run in the folder `path`, finished or not; a page of before is replaced.

    Returns:
        Its size in bytes.

    Raises:
        ReportError: `out` is another file, or the run's files are not as they are written here.
        UserError: see `vit.runs.read_run`.
    """
    record = read_run(path)
    if out.exists() and not is_report(out):
        raise ReportError(f"{out} is no report of vit and is left as it is; name another file with --out")
    try:
        page = report_page(record)
    except (LookupError, TypeError, ValueError, AttributeError) as error:  # another version's, or changed by hand
        found = f"{type(error).__name__}: {one_line(str(error))}"
        raise ReportError(f"{path}: its files are not as this version writes them ({found})") from error
    write_text(out, page)
    return len(page.encode())


def is_report(path: Path) -> bool:
    """Whether a file is a page that was written here."""
    if not path.is_file():
        return False
    with path.open("rb") as file:
        return SIGNATURE.encode() in file.read(2000)


def report_page(record: RunRecord) -> str:
    """The page: equal folders give equal text."""
    shown = Development([], [])
    if record.samples is not None:
        shown = development_of(record.files, record.samples.images, record.settings)
    measured, unread = evaluation(record)
    notes = [*record.notes, *shown.notes, *unread]
    parts = [
        outcome(record), course(record), filling(record, shown), attention(record, shown),
        pictures_left(record) if record.samples is None else None, dynamics(record), measured, data(record),
        settings(record), machine(record), repeating(record), remarks(notes),
    ]  # fmt: skip
    sections = [part for part in parts if part is not None]
    folder = files("vit.report")
    template, style = (folder.joinpath(f"report.{kind}").read_text(encoding="utf-8") for kind in ("html", "css"))
    filled = {
        "title": as_text(f"{record.name}: report of a run"),
        "header": _header(record),
        "links": Markup("").join(element("a", part.title, href=f"#{part.place}") for part in sections),
        "main": "\n".join(part.content for part in sections),
        "version": as_text(__version__),
    }
    return sealed_page(template, filled, style, pictures=True)


def _header(record: RunRecord) -> Markup:
    kind = objective_class(record.settings["train.objective"]).kind
    figures = [
        element("div", element("dt", name), element("dd", element("strong", number), element("span", meaning)))
        for number, name, meaning in key_figures(record)
    ]
    unfinished = "This run is not finished: what is here is what it has come to so far."
    return element(
        "header", element("p", f"Report of a {kind}", class_="overline"), element("h1", record.name, dir="auto"),
        paragraph(introduction(record), "told"), None if record.summary else paragraph(unfinished, "notice"),
        paragraph(record.data.get("warning"), "warning"), element("dl", *figures, class_="key") if figures else None,
    )  # fmt: skip
