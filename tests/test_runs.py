"""The files of a run are read by one reader each, and what is damaged is refused in one line."""

import pytest
import torch
from safetensors.torch import load_file

from vit.data import Dataset, ImageSet
from vit.errors import RunError
from vit.runs import read_mapping, read_metrics, read_sample_facts
from vit.training.callbacks import SAMPLES, save_samples


def test_what_is_not_there_is_empty_and_a_line_that_was_cut_short_is_left_out(tmp_path):
    path = tmp_path / "metrics.jsonl"
    assert read_mapping(path.with_suffix(".json")) == {}
    assert read_metrics(path) == []
    path.write_bytes(b'{"step": 1}\n{"step": 2')
    assert read_metrics(path) == [{"step": 1}]
    path.write_bytes(b'{"step": \xff}\n')
    with pytest.raises(RunError, match=r"metrics.jsonl is damaged"):
        read_metrics(path)


@pytest.mark.parametrize("count", [1, SAMPLES - 1, 50])
def test_sample_images_come_back_as_they_were(tmp_path, count):
    images = torch.randint(0, 256, (count, 3, 6, 4), dtype=torch.uint8)
    names = ("cat", "<b>", "\udcff\u202e")
    split = ImageSet(images, torch.arange(count) % 3, names, "hash", ("bad.png",))
    data = Dataset("a \u202e name", "folder", split, split, warning="w")
    path = tmp_path / "showcase.safetensors"
    for file in (path, tmp_path / "again"):
        save_samples(data, file)
    assert path.read_bytes() == (tmp_path / "again").read_bytes()
    found = read_sample_facts(path)
    chosen = data.test.showcase(SAMPLES)
    assert torch.equal(load_file(path)["images"], images[chosen])
    assert found["labels"] == [data.test.label_names[place] for place in chosen.tolist()]
    assert (found["class_names"], found["data"]) == (list(names), data.facts)

    # Cut short, it is refused
    path.write_bytes(path.read_bytes()[:-7])
    with pytest.raises(RunError, match=r"safetensors cannot be read"):
        read_sample_facts(path)
