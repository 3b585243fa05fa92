"""Tables, one-hot vectors and patches."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from matplotlib.text import Text

from vit.studies import StudyConfig, one_hot
from vit.studies.kinds import clusters
from vit.studies.one_hot import convolution_difference, one_hot_difference, study, table_errors


def test_both_ways_are_the_same(trained):
    assert one_hot_difference(trained) == 0
    assert convolution_difference(trained) < 1e-5


def test_a_smaller_table_is_worse(trained, monkeypatch):
    monkeypatch.setattr(one_hot, "SIZES", (1, 8, 64))
    rows, errors, _ = table_errors(trained, 48).T.tolist()
    assert rows == [1, 8, 64]
    assert errors == sorted(errors, reverse=True)
    assert errors[0] > 2 * errors[-1] > 0


def test_the_study_gives_the_model_s_own_loss_for_w_e(experiment, trained, monkeypatch):
    monkeypatch.setattr(one_hot, "SIZES", (1, 8))
    rows = study(experiment).tables[1].rows
    assert [row[0] for row in rows[:-1]] == [1, 8]
    assert rows[-1][2].values[0] == pytest.approx(trained.scores["loss"], abs=0.05)  # 48 of its 256 test images
    assert rows[0][2].mean > rows[-1][2].mean
    assert rows[0][3].values == pytest.approx([rows[0][2].values[i] - rows[-1][2].values[i] for i in (0, 1)])


def test_counts_are_those_of_what_there_was(trained, monkeypatch):
    monkeypatch.setattr(one_hot, "SIZES", (1, 8, 64, 256))

    def of_twenty(points: torch.Tensor, count: int, rounds: int) -> torch.Tensor:
        return clusters(points, min(count, 20), rounds=rounds)  # as where no more patches differ

    monkeypatch.setattr(one_hot, "clusters", of_twenty)
    few = replace(trained, data=replace(trained.data, test=trained.data.test.subset(torch.arange(7))))
    results = study(SimpleNamespace(models=lambda: [few], study=StudyConfig([0], 1000)))
    assert [row[0] for row in results.tables[1].rows[:-1]] == [1, 8, 20]
    (picture,) = results.pictures.values()
    assert any(", 7 test images" in text.get_text() for text in picture.findobj(Text))
