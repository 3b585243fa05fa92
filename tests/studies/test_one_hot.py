"""Tables, one-hot vectors and patches."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from matplotlib.text import Text

from vit.interpret.similarity import clusters
from vit.studies import one_hot
from vit.studies.finding import seeds
from vit.studies.one_hot import answer, convolution_difference, one_hot_difference, study, table_errors
from vit.studies.plan import Plan


def test_both_ways_are_the_same(learned):
    assert one_hot_difference(learned) == 0
    assert convolution_difference(learned) < 1e-5


def test_a_smaller_table_is_worse(learned, monkeypatch):
    monkeypatch.setattr(one_hot, "SIZES", (1, 8, 64))
    found = table_errors(learned, 48)
    assert [rows for rows, *_ in found] == [1, 8, 64]
    errors = [error for _, error, _ in found]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 2 * errors[-1] > 0


def test_the_study_gives_the_model_s_own_loss_for_w_e(laboratory, plan, learned, monkeypatch):
    monkeypatch.setattr(one_hot, "SIZES", (1, 8))
    finding = study(laboratory, plan)
    rows = finding.tables[1].rows
    assert [row[0] for row in rows[:-1]] == [1, 8]
    assert rows[-1][2].values[0] == pytest.approx(learned.scores.loss, abs=0.05)  # 48 of its 256 test images
    assert rows[0][2].mean > rows[-1][2].mean
    assert finding.answer.startswith(
        "A table is a linear map of one-hot vectors (largest difference 0), but a patch embedding"
    )


def test_counts_are_those_of_what_there_was(learned, monkeypatch):
    monkeypatch.setattr(one_hot, "SIZES", (1, 8, 64, 256))

    def of_twenty(points: torch.Tensor, count: int, rounds: int) -> tuple[torch.Tensor, torch.Tensor]:
        return clusters(points, min(count, 20), rounds=rounds)  # as where no more patches differ

    monkeypatch.setattr(one_hot, "clusters", of_twenty)
    few = replace(learned, data=replace(learned.data, test=learned.data.test.subset(torch.arange(7))))
    finding = study(SimpleNamespace(learn=lambda *_: few), Plan(learned.config, (0,), 1000))
    assert [row[0] for row in finding.tables[1].rows[:-1]] == [1, 8, 20]
    assert ": 20 typical patches miss its vectors by" in finding.answer
    (picture,) = finding.pictures.values()
    assert any(", 7 test images" in text.get_text() for text in picture.findobj(Text))


def test_the_answer_follows_the_figures():
    kept = seeds([0.65, 0.65])

    def said(exact: float, missed: float, loss: list[float]) -> str:
        return answer(exact, 48, 64, seeds([missed, missed], share=True), seeds(loss), kept)

    exact = said(0.0, 0.378, [0.75, 0.76])
    assert "(largest difference 0), but a patch embedding, one of 48 pixel values, is no table: 64 typical" in exact
    assert "miss its vectors by 37.8% ± 0.0 of their length." in exact
    assert exact.endswith("patches, 0.650 ± 0.000, would be 0.105 ± 0.007 higher.")
    rounded = said(2e-7, 0.02, [0.6, 0.71])
    assert (
        "(largest difference 2e-07), and a patch embedding, one of 48 pixel values, is nearly a table here" in rounded
    )
    assert rounded.endswith("would be not clearly lower or higher (+0.005 ± 0.078).")
