"""How cost grows: the slopes that arithmetic has, and one axis measured and drawn."""

from __future__ import annotations

import pytest

import bench.scaling
from bench.compare import Spread
from bench.contestants import flops_per_image
from bench.job import Job
from bench.scaling import AXES, images_timed, scaling, slope, variants


def test_slope_of_a_power_law_is_its_exponent():
    x = [1, 2, 8, 64]
    assert slope(x, [5 * value**1.7 for value in x]) == pytest.approx(1.7)


# Between a linear term (layers) and a quadratic one (attention in tokens, matrices in width).
@pytest.mark.parametrize(
    ("axis", "low", "high"),
    [
        ("tokens", 1, 1.5),
        ("depth", 0.3, 1),
        ("width", 1, 2),
        ("batch", 1, 1),
        ("images", 1, 1),
        ("visible share", 0.2, 1),
    ],
)
def test_arithmetic_grows_as_it_must(axis, low, high):
    depth = 1 if axis == "width" else 6  # matrices of 768 x 768 take long
    points = variants(Job(preset="micro", decoder_dim=96, decoder_depth=1, depth=depth), axis)
    assert len({repr(job) for _, job in points}) == len(AXES[axis][1])
    ends = points[:: len(points) - 1]
    expected = slope(
        [x for x, _ in ends], [flops_per_image(job) * images_timed(job) for _, job in ends]
    )
    assert low - 1e-9 <= expected <= high + 1e-9


@pytest.mark.parametrize(
    ("size", "patches"), [(16, [8, 4, 2, 1]), (32, [8, 4, 2, 1]), (224, [56, 28, 14, 7])]
)
def test_patches_grow_with_the_image_because_attention_over_all_its_pixels_takes_gigabytes(
    size, patches
):
    points = variants(Job(image_size=size), "tokens")
    assert [job.config().model.patch_size for _, job in points] == patches
    assert max(x for x, _ in points) <= 1024


def test_slope_through_points_that_mean_nothing_is_not_quoted(monkeypatch, capsys):
    monkeypatch.setattr(bench.scaling, "AXES", {"batch": ("batch", (2, 4))})
    monkeypatch.setattr(bench.scaling, "seconds_of", lambda job, rounds: Spread.of([1.0, 2.0, 3.0]))
    assert scaling(Job(preset="micro"), 3, None)["batch"]["slope"] is None
    assert "too noisy to quote / 1.00" in capsys.readouterr().out
