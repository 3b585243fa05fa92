"""The drawn pictures: the same on every machine, not trivial, and described by their part maps.

Laws: a picture is a function of (seed, index), and parts keep the company that the tables state.
"""

import pytest
import torch
from torch import Tensor

from vit.data.sources import load_scenes
from vit.scenes import CLASS_NAMES, PART_NAMES, SCENES_OF_CLASS, draw_scenes, scene_indices

SEED = 0
# a pixel of one of these parts has four neighbours, each of the same part or one listed here
MAY_TOUCH = {
    "wheel": "road body cargo lamp",
    "marking": "road",
    "ball": "grass flower torso leg tail plumage claw skin",
    "buoy": "water hull leaf skin",
}
# the parts of each kind of scene, and of each class's object
PARTS = {
    "air": "sky cloud sun hill",
    "street": "sky cloud sun hill grass crown trunk road marking",
    "meadow": "sky cloud sun hill grass crown trunk flower ball",
    "sea": "sky cloud sun hill water buoy",
    "pond": "sky cloud sun hill grass crown trunk water leaf buoy",
    "airplane": "fuselage wing fin engine window",
    "automobile": "body window wheel lamp",
    "bird": "plumage feather beak claw eye",
    "cat": "torso head ear eye leg tail",
    "deer": "torso head ear eye leg tail antler",
    "dog": "torso head ear eye leg tail",
    "frog": "skin eye",
    "horse": "torso head ear eye leg tail mane",
    "ship": "hull sail mast cabin funnel window",
    "truck": "body window wheel lamp cargo",
}
NUMBER = {part: k for k, part in enumerate(PART_NAMES)}


@pytest.fixture(scope="module")
def train() -> tuple[Tensor, Tensor, Tensor]:
    """Images, labels and parts of 2,500 training pictures."""
    return draw_scenes(scene_indices(2_500, "train"), SEED)


def contains(parts: Tensor, part: str) -> Tensor:
    """bool (n,): the pictures in which a part occurs."""
    return (parts == NUMBER[part]).flatten(1).any(dim=1)


# --- a picture is a function of (seed, index) -----------------------------------------------------


def test_a_picture_is_the_same_in_any_batch_and_order(train):
    indices = torch.tensor([2_499, 3, 3, 127, 1_250, 0, 128])
    for values, expected in zip(draw_scenes(indices, SEED), train, strict=True):
        assert torch.equal(values, expected[indices])
    for values, expected in zip(draw_scenes(indices[:1], SEED), train, strict=True):
        assert torch.equal(values, expected[indices[:1]])


def test_a_picture_is_the_same_on_any_machine():
    # Written down once. A changed drawing changes it, and is then another data set: say so in the
    # commit.
    assert load_scenes(500, "train").content_hash == "c48305aa80563681"


def test_a_split_is_an_image_set_and_shares_no_picture_with_the_other_or_another_seed(train):
    assert not torch.isin(scene_indices(1_000, "test"), scene_indices(50_000, "train")).any()
    test = draw_scenes(scene_indices(500, "test"), SEED)
    contents = {image.numpy().tobytes() for image in torch.cat([train[0], test[0]])}
    assert len(contents) == len(train[0]) + len(test[0])
    split = load_scenes(100, "test")
    assert torch.equal(split.images, test[0][:100])
    assert split.class_names == CLASS_NAMES
    images, _, _ = draw_scenes(torch.arange(100), SEED + 1)
    assert not (images == train[0][:100]).flatten(1).all(dim=1).any()


# --- which parts occur, and beside which ----------------------------------------------------------


def test_a_class_shows_its_own_parts_all_of_them_and_no_other(train):
    _, labels, parts = train
    for number, name in enumerate(CLASS_NAMES):
        names = {PART_NAMES[k] for k in parts[labels == number].unique().tolist()}
        shown = " ".join(PARTS[key] for key in (name, *SCENES_OF_CLASS[name]))
        assert names == set(shown.split()), name


COMPANY = "wheel road, road wheel, marking road, hull water, sail hull, leaf water, leg grass"


def test_a_part_keeps_its_company(train):
    for pair in COMPANY.split(", "):
        part, company = pair.split()
        with_part = contains(train[2], part)
        assert with_part.any()
        assert contains(train[2], company)[with_part].all()


def test_a_part_touches_only_what_it_may(train):
    parts = train[2].long()
    count = len(PART_NAMES)
    touches = torch.zeros(count * count, dtype=torch.bool)
    for a, b in ((parts[:, 1:], parts[:, :-1]), (parts[:, :, 1:], parts[:, :, :-1])):
        touches[a * count + b] = True
    touches = touches.view(count, count) | touches.view(count, count).T
    for part, allowed in MAY_TOUCH.items():
        neighbours = touches[NUMBER[part]].nonzero()[:, 0].tolist()
        assert {PART_NAMES[k] for k in neighbours} <= {part, *allowed.split()}, part


def test_what_looks_like_a_wheel_never_meets_one(train):
    images, _, parts = train
    pixels = images.permute(0, 2, 3, 1)  # (n, 32, 32, 3)
    wheel, road = (pixels[parts == NUMBER[name]].float() for name in ("wheel", "road"))
    streets = contains(parts, "wheel") | contains(parts, "road")
    for double in ("ball", "buoy"):
        assert not (contains(parts, double) & streets).any()
        # it has the wheel's colours, and a road has not
        look_alike = pixels[parts == NUMBER[double]].float()
        assert (wheel.mean(dim=0) - look_alike.mean(dim=0)).abs().max() < 12
        assert (wheel.std(dim=0) - look_alike.std(dim=0)).abs().max() < 12
    assert (wheel.mean(dim=0) - road.mean(dim=0)).abs().max() > 24


# --- the map describes the picture ----------------------------------------------------------------


def test_the_part_map_explains_the_picture_and_a_shifted_map_does_not(train):
    """As the share of an image's colour variance that lies between its parts."""

    def explained(parts: Tensor) -> Tensor:
        members = torch.nn.functional.one_hot(parts.flatten(1).long(), len(PART_NAMES)).double()
        sums = pixels @ members  # (n, 3, parts)
        between = sums.square() / members.sum(1, keepdim=True).clamp(min=1)
        return between.sum((1, 2)) / pixels.square().sum((1, 2))

    images, _, parts = (t[:100] for t in train)
    pixels = images.flatten(2).double()
    pixels -= pixels.mean(dim=2, keepdim=True)  # (n, 3, pixels)
    right = explained(parts)
    assert right.mean() > 0.5
    for shift, side in ((-2, 1), (2, 1), (-2, 2), (2, 2)):
        assert (explained(parts.roll(shift, dims=side)) < right).float().mean() > 0.97
