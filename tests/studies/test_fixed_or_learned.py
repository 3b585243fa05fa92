"""What the study says of its arms."""

import pytest

from vit.evaluate.reconstruction import score_reconstruction
from vit.studies import fixed_or_learned
from vit.studies.arms import AS_IT_IS, NO_POSITIONS, W_V_FROZEN
from vit.studies.finding import seeds
from vit.studies.fixed_or_learned import answer, loss_of_mean, study


@pytest.mark.slow
def test_the_study_measures_its_arms(laboratory, one_seed, monkeypatch):
    monkeypatch.setattr(fixed_or_learned, "ARMS", (AS_IT_IS, NO_POSITIONS, W_V_FROZEN))
    finding = study(laboratory, one_seed)
    (table,) = finding.tables
    losses = {row[0]: row[2].mean for row in table.rows}
    assert [*losses][:3] == ["all learn", "no positions at all", "W_V frozen"]
    assert losses["all learn"] < losses["all, before training"]
    # the control: where nothing says where a patch lies, at best the mean of the visible patches is found
    assert losses["no positions at all"] > 0.97 * losses["no model: mean of the visible patches, raw pixels"]
    worst = max(("no positions at all", "W_V frozen"), key=losses.__getitem__)
    assert finding.answer.startswith(f"Most is lost with {worst} (+")
    assert finding.answer.count("of one seed") == 2
    assert set(finding.pictures) == set(finding.captions) == {"arms"}


def test_the_mean_of_the_visible_is_scored_as_beside_a_model(learned):
    mask = learned.config.mask
    images, compute = learned.data.test.images, learned.compute
    scores = score_reconstruction(learned.model, images, learned.prepare, mask.kind, mask.ratio, compute)
    assert loss_of_mean(learned) == pytest.approx(scores["mean_of_visible_patches"])


def test_the_answer_follows_the_figures():
    loss, probe, untrained = seeds([0.65, 0.66]), seeds([0.48, 0.49], share=True), seeds([0.47, 0.48], share=True)
    losses = {"A": seeds([0.05, 0.06]), "B": seeds([0.02, -0.01]), "C": seeds([-0.02, -0.03])}
    probes = {"A": seeds([1.0, -1.0]), "B": seeds([-6.0, -6.2]), "C": seeds([-3.0, -3.1])}
    said = answer(loss, losses, probe, untrained, probes)
    assert said.startswith(
        "Most is lost with A (+0.055 ± 0.007 on a loss of 0.655 ± 0.007), nothing clear with B. With C, "
    )
    assert (
        " With C, the loss is even 0.025 ± 0.007 lower. For a linear probe of the features, right in 48.5% ± 0.7"
        in said
    )
    assert said.endswith(
        "(47.5% ± 0.7 before any training), most is lost with B (-6.1 ± 0.1 points), nothing clear with A."
    )
    del losses["A"], losses["C"], probes["B"], probes["C"]
    said = answer(loss, losses, probe, untrained, probes)
    assert said.startswith("Nothing clear is lost with any of them. For a linear probe")
    assert said.endswith("before any training), nothing clear is lost with any of them.")
