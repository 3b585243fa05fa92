"""Law: the figure of what pretraining is worth has the numbers of its tables."""

import re

from matplotlib.text import Text

from studies.pretraining import TABLES, run, tables_of, worth_figure


def test_the_figure_has_the_accuracies_of_its_tables_and_no_others(tmp_path):
    _, shipped, same_time = tables_of(TABLES.read_text(encoding="utf-8"))
    texts = [text.get_text() for text in worth_figure(shipped, same_time).findobj(Text)]
    drawn = {text for text in texts if re.fullmatch(r"\d\d\.\d%", text)}
    sides = {row[side].strip("*") for row in shipped for side in list(row)[-2:]}
    assert sides < drawn
    # of several rows of a side, the best
    best = {"54.7%", "70.5%", "81.5%", "46.8%", "68.0%", "82.9%", "58.5%", "73.8%"}
    assert drawn - sides == best
    assert best < {row["test images"].strip("*") for row in same_time}
    assert run([str(tmp_path / "figure.png")]) == 0
    assert (tmp_path / "figure.png").stat().st_size > 10_000
