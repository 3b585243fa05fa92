"""Scores in words: each measure, its error, its baselines and its protocol."""

import pytest

from vit.metrics import Measure, score_lines

SCORES = {
    "knn": [
        {"protocol": "k 20", "images": 2500, "accuracy": 0.25, "baselines": {"raw_pixels": 0.125, "untrained": 0.2}},
        {"protocol": "whitened", "images": 2500, "accuracy": 0.5},
    ],
    "linear": [{"protocol": "layer 1, 2", "images": 2500, "accuracy": 0.5, "spread": 0.01, "seeds": [0, 1]}],
    "head": [{"protocol": "", "images": 4, "accuracy": 1.0, "expected_calibration_error": 0.02}],
    "reconstruction": [{"protocol": "grid mask", "images": 4, "loss": 0.5, "baselines": {}}],
}  # fmt: skip


def test_every_row_is_a_line_with_its_baselines_and_protocol():
    assert score_lines(SCORES) == [
        ("loss on masked patches", "0.5000", "grid mask"),
        ("classifier accuracy", "100% (4 of 4)", ""),
        ("expected calibration error", "2%", ""),
        ("k-NN accuracy", "25.00% ± 0.87%", "raw pixels 12.50%, an untrained network 20.00%; k 20"),
        ("k-NN accuracy", "50.00% ± 1.00%", "whitened"),
        ("linear probe of frozen features", "50.00% ± 1.00% over 2 seeds", "layer 1, 2"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("kind", "value", "images", "text"),
    [
        ("accuracy", 0.453, 10_000, "45.30% ± 0.50%"),
        ("accuracy", 0.453, 100, "45% ± 5%"),
        ("accuracy", 0.453, 0, "45.30%"),
        ("accuracy", 0.0, 4, "0% (0 of 4)"),
        ("accuracy", 0.998, 500, "100% (499 of 500)"),
        ("loss", 0.43123, 100, "0.4312"),
        ("error", 0.1, 100, "10%"),
    ],
)
def test_a_value_has_as_many_digits_as_its_images_can_tell(kind, value, images, text):
    assert Measure(kind, "", "").write_with_error(value, images) == text
