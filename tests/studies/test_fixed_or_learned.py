"""What the study says of its arms."""

from vit.studies import fixed_or_learned
from vit.studies.arms import AS_IT_IS, NO_POSITIONS, W_V_FROZEN
from vit.studies.fixed_or_learned import study


def test_the_study_measures_its_arms(laboratory, one_seed, monkeypatch):
    monkeypatch.setattr(fixed_or_learned, "ARMS", (AS_IT_IS, NO_POSITIONS, W_V_FROZEN))
    finding = study(laboratory, one_seed)
    (table,) = finding.tables
    losses = {row[0]: row[3].mean for row in table.rows}
    assert [*losses][:3] == ["all learn", "no positions at all", "W_V frozen"]
    assert losses["all learn"] < losses["all, before training"]
    # the control: where nothing says where a patch lies, at best the mean of the visible patches is found
    assert losses["no positions at all"] > 0.97 * losses["no model: mean of the visible patches, raw pixels"]
    for label in ("no positions at all", "W_V frozen"):
        assert finding.answer.count(f"{label} (") == 2
    assert finding.answer.count("of one seed") == 2
    assert set(finding.pictures) == set(finding.captions) == {"arms"}
