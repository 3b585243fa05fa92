"""Each metric has one name, one format, and a place in the files that hold it."""

from __future__ import annotations

from vit.metrics import METRICS, baselines, results_lines

PRETRAINING = {
    "test_loss": 0.5,
    "test_loss_of_baselines": {"mean_of_visible_patches": 0.75, "nearest_visible_patch": 0.875},
    "test_mask": {"kind": "block", "ratio": 0.75, "fixed": True},
    "neighbours": {"k": 20, "bank": 10, "encoder_accuracy": 0.25, "raw_pixel_accuracy": 0.125},
    "seconds": 1234.5,
}
CLASSIFIER = {
    "test_accuracy": 0.9,
    "test_accuracy_with_flip": 0.91,
    "test_loss": 0.3,
    "test_calibration_error": 0.02,
}
RESULTS = {
    "knn": {"accuracy": 0.25, "raw_pixel_accuracy": 0.125, "k": 20, "bank": 1000},
    "linear": {"accuracy": 0.5, "spread": 0.01, "seeds": [0, 1], "layer": [1, 2], "labels": 100, "strength": 0.1,
               "held_out": [50, 49], "converged": False},
    "head": {"accuracy": 0.9, "accuracy_with_flip": 0.91, "expected_calibration_error": 0.02, "cross_entropy": 0.3,
             "classes_named": False},
    "reconstruction": [{"mask": kind, "ratio": 0.5, "loss": 0.5, "mean_of_visible_patches": 0.75,
                        "nearest_visible_patch": 0.875} for kind in ("random", "block")],
}  # fmt: skip


def test_every_metric_has_a_place_and_its_value_is_found_there():
    for metric in METRICS.values():
        found = [
            value
            for value in map(metric.of_summary, (PRETRAINING, CLASSIFIER))
            if value is not None
        ]
        assert len(found) == (1 if metric.in_summary else 0), metric.key
        method, key = metric.in_results
        if method:
            rows = RESULTS[method] if isinstance(RESULTS[method], list) else [RESULTS[method]]
            assert all(key in row for row in rows), metric.key
            assert found in ([], [rows[0][key]]), metric.key
        assert metric.write(0.5).endswith("%") == metric.write(0.5, brief=True).endswith("%")


def test_names_tell_metrics_apart():
    for names in (
        [metric.label for metric in METRICS.values()],
        [metric.short for metric in METRICS.values()],
    ):
        assert len(set(names)) == len(names)
    assert [metric.key for metric in baselines("masked_loss")] == [
        "mean_visible",
        "nearest_visible",
    ]


def test_lines_of_results_say_how():
    lines = {(line.metric.key, line.value): line.remark for line in results_lines(RESULTS)}
    assert len(results_lines(RESULTS)) == 8
    assert lines["knn_accuracy", "25.00%"] == "k 20, 1,000 training images; by raw pixels 12.50%"
    how = lines["linear_probe", "50.00% ± 1.00% over 2 seeds"]
    assert how.startswith("100 labels, layer 1, 2; L2 1e-01, chosen on 50, 49 held-out")
    assert how.endswith("has not converged")
    assert "no names" in lines["accuracy", "90.00%"]
    by_number = {"head": {**RESULTS["head"], "classes_by_number": True}}
    (remark, *_) = [line.remark for line in results_lines(by_number)]
    assert "the data's names are their numbers" in remark
    assert lines["calibration_error", "2.00%"] == ""
