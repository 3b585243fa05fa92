"""What the study says of its arms."""

import pytest

from vit.studies import fixed_or_learned
from vit.studies.fixed_or_learned import study


@pytest.mark.slow
def test_the_study_measures_its_arms(one_seed, monkeypatch):
    monkeypatch.setattr(fixed_or_learned, "COMPARED", ("all learn", "no positions at all", "W_V frozen"))
    results = study(one_seed)
    (table,) = results.tables
    losses = {row[0]: row[2].mean for row in table.rows}
    assert [*losses][:3] == ["all learn", "no positions at all", "W_V frozen"]
    assert losses["all learn"] < losses["all, before training"]
    # the control: where nothing says where a patch lies, at best the mean of the visible patches is found
    assert losses["no positions at all"] > 0.97 * losses["no model: mean of the visible patches, raw pixels"]
    by_name = {row[0]: row for row in table.rows}
    lost = by_name["W_V frozen"][5]
    assert lost.values == pytest.approx((losses["W_V frozen"] - losses["all learn"],))
    assert by_name["all learn"][5:] == ("", "")
    assert set(results.pictures) == {"arms"}
