"""Every study, run: what its tables say, and that it says the same of a model that it trained and of its checkpoint."""

from __future__ import annotations

import json
import math
import re
from dataclasses import replace
from importlib import import_module
from pathlib import Path

import pytest
import torch
from tiny import names, without_layout

from studies import OF_TRAININGS, STUDIES, StudyConfig, running
from studies.experiment import Experiment
from studies.running import run_study
from vit.atomic import write_text
from vit.checkpoints import save_model
from vit.config import DecoderConfig, ViTConfig, changed
from vit.encoder import VisionTransformer
from vit.inputs import Normalization, Preparation, to_float
from vit.mae import MaskedAutoencoder, build_autoencoder
from vit.weights import weights_hash

SMALLER = {
    "kinds": {"SCENES": 150, "LEAST": 1},
    "one_hot": {"SIZES": (1, 8)},
    "fixed_or_learned": {"COMPARED": ("all learn", "no positions at all", "W_V frozen")},
    "who_trains_them": {"FROZEN": ("W_Q frozen", "W_V frozen")},
    "static_and_contextual": {
        "PATCHES": 2,
        "PLACES": 100,
        "IMAGES": 3,
        "CASES": 12,
        "DRAWS": 1,
    },  # there are 64 places
}
SMALL = dict(image_size=(16, 16), patch_size=(4, 4), embed_dim=16, depth=1, num_heads=2)


@pytest.fixture
def smaller(monkeypatch):
    """Studies of less, whose figures, each tested by itself, are not laid out."""
    for module, sizes in SMALLER.items():
        for constant, size in sizes.items():
            monkeypatch.setattr(import_module(f"studies.{module}"), constant, size)
    with without_layout():
        yield


def looking_at(experiment: Experiment, checkpoint: Path | str) -> Experiment:
    """The same images and settings, and nothing may be trained."""
    made = replace(experiment, study=StudyConfig([0, 1], 48, str(checkpoint)))
    made.used |= {
        data: images
        for data, images in experiment.used.items()
        if made.config.model.image_size == (32, 32)
    }
    made.tell = lambda _: pytest.fail("trained")
    return made


def saved(folder: Path, model: VisionTransformer | MaskedAutoencoder) -> Path:
    save_model(
        folder,
        model,
        Normalization([0.1, 0.2, 0.3], [0.5, 0.6, 0.7]),
        data="Mine",
        interpolation="bilinear",
    )
    return folder


def rows(folder: Path) -> dict[tuple[str, ...], list]:
    """Tables by their titles' first words and the names of their rows."""
    tables = json.loads((folder / "results.json").read_text())["tables"]
    return {
        (table["title"], *(str(cell) for cell in row if not isinstance(cell, list))): row
        for table in tables
        for row in table["rows"]
    }


def assert_measured(table: dict) -> None:
    """Each measure is finite; what a row loses is the difference of its loss to that of the row without any."""
    columns, lines = table["columns"], table["rows"]
    for row in lines:
        assert len(row) == len(columns)
        assert all(math.isfinite(*cell) for cell in row if isinstance(cell, list))
    for more in [at for at, column in enumerate(columns) if "more than" in column]:
        loss = columns.index("loss over masked patches")
        usual = next(row[loss][0] for row in lines if not row[more])
        for row in lines:
            assert not row[more] or row[more] == pytest.approx([row[loss][0] - usual])


QUICK = ("static-and-contextual", "one-hot")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=() if name in QUICK else pytest.mark.slow)
        for name in STUDIES
        if name != "world"  # it looks at no images
    ],
)
def test_a_study_measures_what_its_tables_say_and_says_the_same_of_a_checkpoint(
    one_seed, trained, smaller, tmp_path, monkeypatch, name
):
    # to paint takes longest
    monkeypatch.setattr(running, "save_figure", lambda figure, path: write_text(path, ""))
    run_study(name, replace(one_seed), tmp_path / "trained", f"python -m studies {name}")
    folder = tmp_path / "trained" / name
    found = json.loads((folder / "results.json").read_text())
    assert rows(folder)
    for table in found["tables"]:
        assert_measured(table)
    pictures = re.findall(r"\]\((\w+\.png)\)", (folder / "tables.md").read_text())
    assert names(folder) == {"tables.md", "results.json", *pictures}
    # what was measured on what
    data, *_ = found["data"]
    assert (data["name"], data["train_images"]) == ("Scenes", 256)
    assert min(found["training_seconds"], found["measuring_seconds"]) > 0
    assert found["settings"]["model.depth"] == 2
    if name in OF_TRAININGS:
        return

    experiment = looking_at(one_seed, trained.folder)
    run_study(name, experiment, tmp_path / "checkpoint", "")
    before, now = (rows(tmp_path / kind / name) for kind in ("trained", "checkpoint"))
    assert {key: before[key] for key in now} == now
    for key in before.keys() - now.keys():
        assert any(what in " ".join(key) for what in experiment.left_out)
    left_out = {
        "tyres-and-roads": ["red ball"],
        "static-and-contextual": ["other objectives"],
    }
    assert experiment.left_out == left_out.get(name, [])
    assert names(tmp_path / "trained" / name) == names(tmp_path / "checkpoint" / name)


def test_it_is_shown_images_as_it_was_trained_and_is_compared_with_an_untrained_one(
    experiment, tmp_path
):
    torch.manual_seed(3)
    encoder, decoder = ViTConfig(**SMALL), DecoderConfig(dim=8, depth=1, num_heads=2)
    kept = build_autoencoder(encoder, decoder, norm_pix_loss=False)
    small = looking_at(experiment, saved(tmp_path, kept))
    assert small.config.model.vit_config() == changed(encoder, {"channels": 3})
    assert small.config.model.decoder_config() == DecoderConfig(dim=8, depth=1, num_heads=2)
    (one,) = small.models()
    expected = to_float(one.sample(4), (16, 16), Preparation("bilinear"))
    torch.testing.assert_close(one.normalize.invert(one.inputs(4)), expected)
    assert one.inputs(4)[:, 0].mean() == pytest.approx(
        float((expected[:, 0].mean() - 0.1) / 0.5), abs=1e-5
    )
    for part in ("model", "initial"):
        model = getattr(one, part)
        assert (model.encoder.config, model.decoder.config) == (
            kept.encoder.config,
            kept.decoder.config,
        )
        assert model.norm_pix_loss is False
        assert not model.training
    assert weights_hash(one.model) == weights_hash(kept) != weights_hash(one.initial)
    assert weights_hash(small.models()[0].initial) == weights_hash(one.initial)


# --- what is refused
