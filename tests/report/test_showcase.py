"""The images that a run keeps are those of its data, and come back as they were."""

import pytest
import torch
from safetensors.torch import save_file

from vit.data import Dataset, ImageSet
from vit.errors import one_line
from vit.report.showcase import SHOWN, save_showcase, showcase_of
from vit.runs import RunError, read_sample_images

NAMES = ("cat", "<b>", "\udcff\u202e")


def dataset(count: int) -> Dataset:
    images = torch.randint(0, 256, (count, 3, 6, 4), dtype=torch.uint8)
    labels = torch.arange(count) % 3
    return Dataset(
        "a \u202e name", "folder", *(ImageSet(images, labels, NAMES, "hash", ("bad.png",)),) * 2, warning="w"
    )


@pytest.mark.parametrize("count", [1, SHOWN - 1, 50])
def test_showcase_comes_back_as_it_was(tmp_path, count):
    data = dataset(count)
    save_showcase(showcase_of(data), tmp_path / "one")
    save_showcase(showcase_of(data), tmp_path / "two")
    assert (tmp_path / "one").read_bytes() == (tmp_path / "two").read_bytes()
    found, chosen = read_sample_images(tmp_path / "one"), data.test.showcase(SHOWN)
    assert torch.equal(found.images, data.test.images[chosen])
    assert found.labels == [data.test.label_names[place] for place in chosen.tolist()]
    assert found.class_names == list(NAMES)
    assert found.data == data.facts
    assert (found.data["test_images"], found.data["skipped"], found.data["warning"]) == (count, 2, "w")


def spoilt(path, how: str) -> None:
    if how == "cut short":
        path.write_bytes(path.read_bytes()[:-7])
    elif how == "empty":
        path.write_bytes(b"")
    elif how == "a folder":
        path.unlink()
        path.mkdir()
    elif how == "a model":
        save_file({"weight": torch.zeros(2)}, path)
    elif how == "floats":
        save_file(
            {"images": torch.zeros(1, 3, 2, 2)}, path, {"showcase": '{"labels": [""], "class_names": [], "data": {}}'}
        )
    else:
        save_file({"images": torch.zeros(1, 3, 2, 2).byte()}, path, {"showcase": how})


@pytest.mark.parametrize(
    "how",
    [
        "cut short",
        "empty",
        "a folder",
        "a model",
        "floats",
        "{",
        "[]",
        "{}",
        '{"labels": [], "class_names": [], "data": {}}',
    ],
)
def test_another_file_is_refused_in_one_line(tmp_path, how):
    path = tmp_path / "showcase.safetensors"
    save_showcase(showcase_of(dataset(3)), path)
    spoilt(path, how)
    with pytest.raises(RunError) as refusal:
        read_sample_images(path)
    assert str(refusal.value) == one_line(str(refusal.value))
    assert str(path) in str(refusal.value)
