"""A section of settings holds only values of its types, in their ranges, that fit each other."""

from __future__ import annotations

import dataclasses
import re
from pathlib import Path
from typing import Literal, get_args

import numpy as np
import pytest
import yaml

from vit.config import (
    ClassifyConfig,
    Config,
    DataConfig,
    DecoderConfig,
    MaskConfig,
    ModelConfig,
    Positive,
    ReconstructConfig,
    RunConfig,
    TrainConfig,
    ViTConfig,
    allowed_by,
    convert,
    hints_of,
)
from vit.errors import ConfigError
from vit.settings import SECTIONS, build_config

# --- One value ---------------------------------------------------------------------------------

Switch = Literal["auto", "on", "off"]


@pytest.mark.parametrize(
    ("value", "hint", "converted"),
    [
        (3, int, 3),
        (3, float, 3.0),
        ("1e-3", float, 1e-3),  # YAML 1.1 reads a number without a point as a text
        (True, bool, True),
        ("a", str, "a"),
        (Path("a/b"), str, "a/b"),
        (None, int | None, None),
        (3, int | None, 3),
        (False, Switch, "off"),  # YAML reads a bare on, off, yes or no as true or false
        (True, Switch, "on"),
        ([1, 2], tuple[float, float], (1.0, 2.0)),
        ((3, 4), int | tuple[int, int], (3, 4)),
        (3, int | tuple[int, int], 3),
        (("a",), list[str], ["a"]),
        ([1, 2, 3], tuple[Positive, ...], (1, 2, 3)),
        (np.int64(3), Positive, 3),
        (np.float32(0.5), float, 0.5),
        (np.array([0.5, 0.25]), tuple[float, float], (0.5, 0.25)),
    ],
)
def test_a_value_becomes_the_type_of_its_setting(value, hint, converted):
    result = convert(value, hint)
    assert result == converted
    assert type(result) is type(converted)


@pytest.mark.parametrize(
    ("value", "hint"),
    [
        (True, int),
        (3.0, int),
        ("3", int),
        (None, int),
        (True, float),
        ("fast", float),
        (float("nan"), float),
        ("-inf", float),
        (10**400, float),
        (3, str),
        (None, str),
        (1, bool),
        ("fast", bool),
        ("fast", Switch),
        (0, Switch),
        ([1], tuple[int, int]),
        ([1, 2, 3], int | tuple[int, int]),
        ("ab", list[str]),
        (0, Positive),
        ({}, str | None),
    ],
)
def test_a_value_of_another_type_or_range_is_refused_in_words(value, hint):
    with pytest.raises(ValueError, match=re.escape(allowed_by(hint))):
        convert(value, hint)


def test_each_value_of_several_is_checked():
    for values, hint in ((["a", 1], list[str]), ([1, 0], tuple[Positive, ...])):
        with pytest.raises(ValueError, match=allowed_by(get_args(hint)[0])):
            convert(values, hint)


def test_every_setting_has_a_type_that_holds_its_default():
    for name, section in SECTIONS.items():
        assert list(hints_of(section)) == [item.name for item in dataclasses.fields(section)]
        assert section() == section(**vars(section())), name


def test_a_section_made_in_python_checks_itself_too():
    """None stands only where it means something, and no number is infinite."""
    bad = {float: [float("nan"), float("inf")], int: [-1, 1.5], str: [3], bool: ["true"]}
    for name, section in SECTIONS.items():
        for item in dataclasses.fields(section):
            values = [*bad.get(type(item.default), [])]
            if item.default is not None:
                values.append(None)
            for value in values:
                with pytest.raises(ConfigError, match=f"^{name}.{item.name}: "):
                    section(**{item.name: value})


# --- Limits, and settings that must fit each other ---------------------------------------------

BAD = """
train.epochs=0
train.seed=18446744073709551616
data.root=''
data.cache=''
augment.flip=1.1
augment.crop_scale=[0.0,1.0]
model.image_size=[32,-32]
model.image_size=99999999999999999999
model.image_size=[32,100000]
model.embed_dim=3000000
model.patch_size=5
model.patch_size=[4,5]
model.embed_dim=100
model.decoder_dim=30
model.drop_path=1
mask.ratio=0
mask.ratio=1
optim.betas=[0.9,1.0]
optim.layer_decay=1.1
run.val_every=1
data.labels=0.1
train.objective=mae
augment.views=1 reconstruct.contrast=0.1
train.batch_size=1 reconstruct.contrast=0.1 augment.views=2
model.embed_dim=6 model.num_heads=3
model.decoder_dim=30 model.decoder_heads=2
model.patch_size=[32,48] model.image_size=[32,48]
optim.warmup_epochs=2.5 train.epochs=2
run.grad_accum_steps=3 train.batch_size=2
model.global_pool=token model.class_token=false
reconstruct.contrast=0.1 run.grad_accum_steps=2 augment.views=2
augment.views=2 train.objective=classify
classify.whole_epochs=1 train.objective=classify
classify.whole_epochs=3 train.objective=classify train.epochs=3 classify.drop_patches=0.5
run.val_every=4 train.epochs=3 data.val_size=5
""".strip().splitlines()
# At the limits themselves
GOOD = """
model.embed_dim=6 model.num_heads=3 model.pos_embed=learned
model.image_size=8 model.patch_size=[8,4]
train.epochs=2 optim.warmup_epochs=2
train.batch_size=2 run.grad_accum_steps=2
mask.ratio=0.999
run.grad_accum_steps=1 reconstruct.contrast=0.01 augment.views=2
run.grad_accum_steps=2 augment.views=2
train.objective=classify data.labels=0.001 classify.drop_patches=0.99
train.epochs=3 run.val_every=3 data.val_size=1
optim.blr=1
""".strip().splitlines()


def settings_of(line: str) -> dict[str, object]:
    """The settings of a line above, as a YAML file holds them."""
    pairs = [pair.partition("=") for pair in line.split()]
    return {key: yaml.safe_load(value) for key, _, value in pairs}


@pytest.mark.parametrize("line", BAD)
def test_a_value_beyond_a_limit_is_refused_by_its_key(line):
    key = line.partition("=")[0]
    if line.startswith("augment.views=1"):  # the contrastive loss needs two
        key = "augment.views"
    with pytest.raises(ConfigError, match=f"^{key}: .* cannot be used; "):
        build_config([], settings_of(line))


@pytest.mark.parametrize("line", GOOD)
def test_limits_themselves_are_allowed(line):
    assert build_config([], settings_of(line))[0] != Config()


def test_settings_of_another_objective_change_nothing():
    """They may stand in a file that serves both: pretraining mixes no images, for example."""
    classify = ClassifyConfig(mixup=0.8, cutmix=1.0, drop_patches=0.5, whole_epochs=1000)
    assert Config(classify=classify) == Config()
    mask = MaskConfig(kind="block", ratio=0.5)
    learns_labels = TrainConfig(objective="classify")
    contrast = ReconstructConfig(contrast=0.1)
    both = Config(mask=mask, reconstruct=contrast, train=learns_labels)
    assert both == Config(train=learns_labels)


def test_a_resumed_run_may_compute_and_find_its_data_elsewhere_and_change_nothing_else():
    deciding = {key.partition(".")[0] for key in Config().deciding()}
    assert deciding == set(SECTIONS) - {"data", "run"}
    before = Config(DataConfig(limit=7), run=RunConfig(device="cpu"))
    moved = Config(run=RunConfig(device="cpu", threads=1, grad_accum_steps=1, save_every=7))
    assert list(moved.conflicts(before.to_dict())) == []
    other = Config(mask=MaskConfig(ratio=0.5))
    assert list(other.conflicts(Config().to_dict())) == [("mask.ratio", 0.75, 0.5)]


# --- The architecture --------------------------------------------------------------------------


def test_every_setting_of_the_architecture_arrives_in_it_and_the_data_gives_the_rest():
    settings = dict(
        image_size=(8, 12), patch_size=(4, 2), embed_dim=16, depth=3, num_heads=2, mlp_ratio=3.0,
        class_token=False, registers=2, pos_embed="learned", qkv="identity", qkv_bias=False,
        layer_scale=0.1, drop_path=0.2,
    )  # fmt: skip
    model = ModelConfig(**settings)
    assert model.vit_config() == ViTConfig(**settings)
    derived = dict(channels=1, num_classes=5)
    assert model.vit_config(**derived) == ViTConfig(**settings, **derived)

    # All that both have is in `settings` with a value other than its default, but one
    names = {item.name for item in dataclasses.fields(ViTConfig)}
    names &= {item.name for item in dataclasses.fields(ModelConfig)}
    defaults = {
        name for name in names if getattr(model.vit_config(), name) == getattr(ModelConfig, name)
    }
    assert defaults == {"global_pool"}


def test_a_square_is_one_number_and_a_preset_gives_what_is_not_named():
    square = ModelConfig(image_size=8, patch_size=2).vit_config()
    assert square == ViTConfig((8, 8), (2, 2), pos_embed="sincos")
    small = ModelConfig(preset="small", decoder_depth=3).decoder_config()
    encoder = ViTConfig(mlp_ratio=3.0, qkv="identity", qkv_bias=False)
    expected = DecoderConfig(256, 3, 8, 3.0, "identity", False, False, "gelu", 1e-6)
    assert small.complete(encoder) == expected
