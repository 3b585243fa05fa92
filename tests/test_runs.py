"""A run folder is read by one reader, and each figure has one name, one format, and a place in the files that hold it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from vit.data import Dataset, ImageSet
from vit.runs import (
    METRICS,
    RunError,
    RunFiles,
    aligned,
    baselines,
    check_manifest,
    flat_settings,
    read_folder,
    read_mapping,
    read_metrics,
    read_run,
    read_sample_images,
    results_lines,
    summary_lines,
    write_manifest,
)
from vit.training.summary import SAMPLES, sample_images

PRETRAINING = {
    "test_loss": 0.5,
    "test_loss_of_baselines": {"mean_of_visible_patches": 0.75, "nearest_visible_patch": 0.875},
    "test_mask": {"kind": "block", "ratio": 0.75, "fixed": True},
    "neighbours": {"k": 20, "bank": 10, "encoder_accuracy": 0.25, "raw_pixel_accuracy": 0.125},
    "seconds": 1234.5,
}
CLASSIFIER = {"test_accuracy": 0.9, "test_accuracy_with_flip": 0.91, "test_loss": 0.3, "test_calibration_error": 0.02}
RESULTS = {
    "knn": {"accuracy": 0.25, "raw_pixel_accuracy": 0.125, "k": 20, "bank": 1000},
    "linear": {"accuracy": 0.5, "spread": 0.01, "seeds": [0, 1], "layer": [1, 2], "labels": 100, "strength": 0.1,
               "held_out": 50, "converged": False},
    "head": {"accuracy": 0.9, "accuracy_with_flip": 0.91, "expected_calibration_error": 0.02, "cross_entropy": 0.3,
             "classes_named": False},
    "reconstruction": [{"mask": kind, "ratio": 0.5, "loss": 0.5, "mean_of_visible_patches": 0.75,
                        "nearest_visible_patch": 0.875} for kind in ("random", "block")],
}  # fmt: skip


def test_every_figure_has_a_place_and_its_value_is_found_there():
    for figure in METRICS.values():
        found = [value for value in map(figure.of_summary, (PRETRAINING, CLASSIFIER)) if value is not None]
        assert len(found) == (1 if figure.in_summary else 0), figure.key
        method, key = figure.in_results
        if method:
            rows = RESULTS[method] if isinstance(RESULTS[method], list) else [RESULTS[method]]
            assert all(key in row for row in rows), figure.key
            assert found in ([], [rows[0][key]]), figure.key
        assert figure.write(0.5).endswith("%") == figure.write(0.5, brief=True).endswith("%")


def test_names_tell_figures_apart():
    for names in ([figure.label for figure in METRICS.values()], [figure.short for figure in METRICS.values()]):
        assert len(set(names)) == len(names)
    assert [figure.key for figure in baselines("masked_loss")] == ["mean_visible", "nearest_visible"]


def test_lines_of_a_summary_are_aligned_and_baselines_indented():
    lines = aligned(summary_lines(PRETRAINING))
    assert [line.split("  ")[0] for line in lines if not line.startswith(" ")] == [
        "loss on hidden patches", "nearest-neighbour accuracy",
    ]  # fmt: skip
    assert sum(line.startswith("  ") for line in lines) == 3
    assert lines[0].endswith("0.5000  (block mask, 75% hidden)")
    assert {line.index(value) for line, value in zip(lines, ("0.5", "0.75", "0.875", "25", "12.5"), strict=True)} == {
        44
    }


def test_lines_of_results_say_how():
    lines = {(line.metric.key, line.value): line.how for line in results_lines(RESULTS)}
    assert len(results_lines(RESULTS)) == 8
    assert lines["knn_accuracy", "25.00%"] == "k 20, 1,000 training images; by raw pixels 12.50%"
    how = lines["linear_probe", "50.00% ± 1.00% over 2 seeds"]
    assert how.startswith("100 labels, layer 1, 2; L2 1e-01, chosen on 50 held-out")
    assert how.endswith("has not converged")
    assert "no names" in lines["accuracy", "90.00%"]
    assert lines["calibration_error", "2.00%"] == ""


@pytest.fixture
def folder(tmp_path) -> Path:
    (tmp_path / "config.yaml").write_text("# a comment\naugment: {flip: 0.25}\n")
    (tmp_path / "summary.json").write_text(json.dumps(PRETRAINING | {"content_hash": "own"}))
    for name, mark in (("b/deep", "own"), ("a", "own"), ("other", "another")):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "results.json").write_text(json.dumps({"content_hash": mark}))
    return tmp_path


def test_a_record_has_all_of_a_folder(folder):
    (folder / "cut").mkdir()
    (folder / "cut" / "results.json").write_text("{")
    (folder / "metrics.jsonl").write_text('{"step": 1, "epoch": 0.5}\n{"step"')
    record = read_run(folder)
    assert record.name == folder.name
    assert (record.settings["augment.flip"], record.settings["train.seed"]) == (0.25, 0)
    assert (list(record.results), record.metrics, record.epochs) == (["a", "b/deep"], [{"step": 1, "epoch": 0.5}], 0.5)
    assert record.samples is None
    assert len(record.notes) == 2
    assert any("other/results.json measured other weights" in note for note in record.notes)
    assert flat_settings(record.sections) == {"augment.flip": 0.25}


def test_an_old_summary_without_a_hash_takes_all_results(folder):
    (folder / "summary.json").write_text("{}")
    assert list(read_run(folder).results) == ["a", "b/deep", "other"]


def test_results_of_an_unfinished_run_have_a_note(folder):
    (folder / "summary.json").unlink()
    record = read_run(folder)
    assert list(record.results) == ["a", "b/deep", "other"]
    assert sum("was measured while this run was under way" in note for note in record.notes) == 3


def test_hashes_of_content_are_found_by_their_old_names(folder):
    (folder / "summary.json").write_text(
        json.dumps({"fingerprint": "own", "data": {"stamp": "1-2", "whole_stamp": "3-4"}})
    )
    record = read_run(folder)
    assert list(record.results) == ["a", "b/deep"]
    assert record.summary == {"content_hash": "own", "data": {"content_hash": "1-2", "whole_content_hash": "3-4"}}


@pytest.mark.parametrize(
    ("file", "content"),
    [("config.yaml", "train: 3"), ("config.yaml", "- 1"), ("config.yaml", ""), ("config.yaml", "\0"),
     ("summary.json", "[1]"), ("summary.json", '{"test_loss": NaN}'), ("summary.json", "")],
)  # fmt: skip
def test_damaged_files_are_one_line(folder, file, content):
    (folder / file).write_text(content)
    for read in (read_run, read_folder):
        with pytest.raises(RunError) as refusal:
            read(folder)
        assert str(folder / file) in str(refusal.value)
        assert len(str(refusal.value).splitlines()) == 1


def test_what_is_not_there_is_empty_or_no_run(tmp_path):
    assert read_mapping(tmp_path / "none.json") == {}
    assert read_metrics(tmp_path / "none.jsonl") == []
    assert read_folder(tmp_path).sections == {}
    with pytest.raises(RunError, match="is not a run"):
        read_run(tmp_path)


def test_one_changed_bit_of_a_finished_run_is_found(tmp_path):
    files = RunFiles(tmp_path)
    files.config.write_text("train: {epochs: 1}\n")
    files.metrics.write_text('{"step": 1}\n')
    files.summary.write_text("{}")
    (files.snapshots / "step-1").mkdir(parents=True)
    (files.snapshots / "step-1" / "model.safetensors").write_bytes(b"weights")
    files.report.write_text("a page, which is drawn again")
    write_manifest(files)
    kept = {"config.yaml", "metrics.jsonl", "summary.json", "snapshots/step-1/model.safetensors"}
    assert {path.relative_to(tmp_path).as_posix() for path in files.kept} == kept
    assert check_manifest(tmp_path) == []
    for name in sorted(kept):
        before = (tmp_path / name).read_bytes()
        for byte in range(len(before)):
            (tmp_path / name).write_bytes(before[:byte] + bytes([before[byte] ^ 1 << byte % 8]) + before[byte + 1 :])
            assert check_manifest(tmp_path) == [f"{name} has changed"]
        if "/" not in name:
            with pytest.raises(RunError, match=f"{name} has changed since the run ended"):
                read_run(tmp_path)
        (tmp_path / name).unlink()
        assert check_manifest(tmp_path) == [f"{name} is missing"]
        (tmp_path / name).write_bytes(before)
    read_run(tmp_path)
    whole = files.manifest.read_text()
    for byte in range(len(whole)):  # also one of the manifest itself, but for spaces
        files.manifest.write_bytes(
            whole.encode()[:byte] + bytes([whole.encode()[byte] ^ 1]) + whole.encode()[byte + 1 :]
        )
        try:
            assert check_manifest(tmp_path) != [] or whole[byte].isspace(), byte
        except RunError:
            continue
    for damaged in ("{}", '{"sha256": ["config.yaml"]}', '{"sha256": {"../x": ""}}', '{"sha256"'):
        files.manifest.write_text(damaged)
        with pytest.raises(RunError, match=r"manifest.json is damaged"):
            read_run(tmp_path)


@pytest.mark.parametrize("line", [b'{"step": 2', b'{"step": \xff}', b"null"])
def test_damaged_line_of_metrics_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b"\n")
    with pytest.raises(RunError, match=r"metrics.jsonl is damaged"):
        read_metrics(path)


# ---- The images that a run keeps -------------------------------------------------------------------------------------

NAMES = ("cat", "<b>", "\udcff\u202e")


def dataset(count: int) -> Dataset:
    images, labels = torch.randint(0, 256, (count, 3, 6, 4), dtype=torch.uint8), torch.arange(count) % 3
    split = ImageSet(images, labels, NAMES, "hash", ("bad.png",))
    return Dataset("a \u202e name", "folder", split, split, warning="w")


@pytest.mark.parametrize("count", [1, SAMPLES - 1, 50])
def test_sample_images_come_back_as_they_were(tmp_path, count):
    data = dataset(count)
    sample_images(data).save(tmp_path / "one")
    sample_images(data).save(tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    found, chosen = read_sample_images(tmp_path / "one"), data.test.showcase(SAMPLES)
    assert torch.equal(found.images, data.test.images[chosen])
    assert found.labels == [data.test.label_names[place] for place in chosen.tolist()]
    assert found.class_names == list(NAMES)
    assert found.data == data.facts
    assert (found.data["test_images"], found.data["skipped"], found.data["warning"]) == (count, 2, "w")


@pytest.mark.parametrize(
    ("images", "about"),
    [(None, ""), (torch.zeros(1, 3, 2, 2), {"labels": [""], "class_names": [], "data": {}}),
     (torch.zeros(1, 3, 2, 2).byte(), {"labels": [], "class_names": [], "data": {}}), (torch.zeros(1, 3, 2, 2).byte(), [])],
    ids=["cut short", "floats", "another count", "no mapping"],
)  # fmt: skip
def test_another_file_is_refused_in_one_line(tmp_path, images, about):
    path = tmp_path / "showcase.safetensors"
    sample_images(dataset(3)).save(path)
    if images is None:
        path.write_bytes(path.read_bytes()[:-7])
    else:
        save_file({"images": images}, path, {"showcase": json.dumps(about)})
    with pytest.raises(RunError) as refusal:
        read_sample_images(path)
    assert str(path) in str(refusal.value)
