"""The files of a run are read by one reader each, and what is damaged is refused in one line."""

from __future__ import annotations

import json

import pytest
import torch
from safetensors.torch import save_file

from vit.data import Dataset, ImageSet
from vit.errors import RunError
from vit.runs import read_mapping, read_metrics, read_sample_images
from vit.training.callbacks import SAMPLES, sample_images


def test_what_is_not_there_is_empty(tmp_path):
    assert read_mapping(tmp_path / "none.json") == {}
    assert read_metrics(tmp_path / "none.jsonl") == []


@pytest.mark.parametrize("line", [b'{"step": 2', b'{"step": \xff}', b"null"])
def test_damaged_line_of_metrics_is_named(tmp_path, line):
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(b'{"step": 1}\n' + line + b"\n")
    with pytest.raises(RunError, match=r"metrics.jsonl is damaged"):
        read_metrics(path)


# ---- The images that a run keeps -------------------------------------------------------------------------------------

NAMES = ("cat", "<b>", "\udcff\u202e")


def dataset(count: int) -> Dataset:
    images, labels = (
        torch.randint(0, 256, (count, 3, 6, 4), dtype=torch.uint8),
        torch.arange(count) % 3,
    )
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
    assert (found.data["test_images"], found.data["skipped"], found.data["warning"]) == (
        count,
        2,
        "w",
    )


@pytest.mark.parametrize("about", [None, []], ids=["cut short", "no mapping"])
def test_another_file_is_refused_in_one_line(tmp_path, about):
    path = tmp_path / "showcase.safetensors"
    sample_images(dataset(3)).save(path)
    if about is None:
        path.write_bytes(path.read_bytes()[:-7])
    else:
        save_file({"images": torch.zeros(1, 3, 2, 2)}, path, {"showcase": json.dumps(about)})
    with pytest.raises(RunError) as refusal:
        read_sample_images(path)
    assert str(path) in str(refusal.value)
