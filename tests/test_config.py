"""A section of settings holds only values of its types, in their ranges, that fit each other."""

from pathlib import Path

import numpy as np
import pytest
import yaml
from tiny import encoder, names, noise, save, save_images

from vit.checkpoints import load_model
from vit.cli import main
from vit.config import (
    ClassifyConfig,
    Config,
    DataConfig,
    MaskConfig,
    ModelConfig,
    OptimConfig,
    RunConfig,
    TrainConfig,
    ViTConfig,
    changed,
    user_path,
)
from vit.errors import ConfigError
from vit.load_options import LoadOptions
from vit.train import fit

SECTIONS = {name: type(section) for name, section in Config()}


@pytest.mark.parametrize(
    ("section", "name", "value", "converted"),
    [
        (TrainConfig, "epochs", np.int64(3), 3),
        (OptimConfig, "blr", "4e-3", 4e-3),  # YAML 1.1 reads a number without a point as a text
        (OptimConfig, "betas", np.array([0.5, 0.25]), (0.5, 0.25)),
        (RunConfig, "compile", False, "off"),  # YAML reads a bare on or off as true or false
        (ModelConfig, "image_size", "8,12", (8, 12)),
        (ModelConfig, "freeze", "[W_Q, mlp]", ("W_Q", "mlp")),
    ],
)
def test_a_value_becomes_the_type_of_its_setting(section, name, value, converted):
    result = getattr(section(**{name: value}), name)
    assert result == converted
    assert type(result) is type(converted)


@pytest.mark.parametrize(
    ("section", "name", "value"),
    [
        (TrainConfig, "epochs", "1_000"),
        (DataConfig, "root", "ph\udcf6tos"),  # not UTF-8, as YAML must be
        (DataConfig, "root", ""),  # a shell's variable that is not set
        (ModelConfig, "image_size", "x" * 5000),
        (ModelConfig, "embed_dim", 3_000_000),
        (TrainConfig, "objective", "mae"),
        (Config, "train", 3),
        (LoadOptions, "num_heads", "many"),
    ],
)
def test_what_cannot_be_used_is_one_line_that_carries_its_key(section, name, value):
    with pytest.raises(ConfigError) as caught:
        section(**{name: value})
    key = f"{section.section}.{name}".removeprefix(".")
    message = str(caught.value)
    assert caught.value.key == key
    assert message.startswith(f"{key}: ")
    assert len(message) < 500
    for word in ("\n", "pydantic", "http", "Value error"):
        assert word not in message


def test_every_setting_has_a_sentence_and_no_number_that_is_none():
    """None stands only where it means something, no number is infinite, and true is no number."""
    bad = {float: [float("nan"), float("inf"), True], int: [-1, 1.5, True], str: [3]}
    for name, section in SECTIONS.items():
        assert section() == section(**dict(section())), name
        for key, field in section.model_fields.items():
            assert len(field.description.split()) >= 2
            values = [*bad.get(type(field.default), [])]
            if field.default is not None:
                values.append(None)
            for value in values:
                with pytest.raises(ConfigError, match=f"^{name}.{key}: "):
                    section(**{key: value})


def test_one_function_changes_settings_and_checks_them_anew():
    config = changed(Config(), {"train.epochs": "3", "mask": MaskConfig(ratio=0.5)})
    assert (config.train.epochs, config.mask.ratio) == (3, 0.5)
    assert Config().train.epochs == 100
    for changes in ({"train.epochs": 0}, {"optim.warmup_epochs": 101}, {"train.nope": 1}):
        with pytest.raises(ConfigError, match=f"^{next(iter(changes))}: "):
            changed(Config(), changes)
    with pytest.raises(ValueError, match="frozen"):
        config.train.epochs = 4


# Settings that must fit each other: one that does not, and what is still allowed
BAD = """
model.patch_size=[4,5]
model.embed_dim=100
model.embed_dim=6 model.num_heads=3
model.decoder_dim=30 model.decoder_heads=2
model.global_pool=token model.class_token=false
optim.warmup_epochs=2.5 train.epochs=2
run.val_every=1
reconstruct.contrast=0.1 run.grad_accum_steps=2 augment.views=2
augment.views=1 reconstruct.contrast=0.1
augment.views=2 train.objective=classify
data.labels=0.1
""".strip().splitlines()
GOOD = """
model.embed_dim=6 model.num_heads=3 model.pos_embed=learned
model.image_size=8 model.patch_size=[8,4]
optim.warmup_epochs=2 train.epochs=2
run.val_every=3 train.epochs=3 data.val_size=1
run.grad_accum_steps=1 reconstruct.contrast=0.01 augment.views=2
train.objective=classify data.labels=0.001 classify.drop_patches=0.99 classify.whole_epochs=99
""".strip().splitlines()


@pytest.mark.parametrize("line", [*BAD, *GOOD])
def test_settings_fit_each_other_or_one_is_refused_by_its_key(line):
    pairs = [pair.partition("=") for pair in line.split()]
    settings = {key: yaml.safe_load(value) for key, _, value in pairs}
    if line in GOOD:
        assert Config.from_settings(settings) != Config()
        return
    with pytest.raises(ConfigError, match=f"^{pairs[0][0]}: .* cannot be used; "):
        Config.from_settings(settings)


def test_settings_of_another_objective_change_nothing():
    """They may stand in a file that serves both: pretraining mixes no images, for example."""
    assert Config(classify=ClassifyConfig(mixup=0.8, whole_epochs=1000)) == Config()
    classify = {"train.objective": "classify"}
    assert changed(Config(), classify | {"reconstruct.contrast": 1}) == changed(Config(), classify)


def test_a_resumed_run_may_compute_and_find_its_data_elsewhere_and_changes_nothing_else():
    deciding = {key.partition(".")[0] for key in Config().deciding()}
    assert deciding == set(SECTIONS) - {"data", "run"}


def test_a_preset_gives_what_is_not_named_and_the_encoder_what_the_decoder_lacks():
    small = ModelConfig(preset="small", depth=3, decoder_depth=3)
    assert small.vit_config(num_classes=5) == ViTConfig(
        embed_dim=384, depth=3, num_heads=6, pos_embed="sincos", num_classes=5
    )
    decoder = small.decoder_config().complete(ViTConfig(qkv="identity"))
    assert (decoder.dim, decoder.depth, decoder.qkv) == (256, 3, "identity")


# --- Places ----------------------------------------------------------------------------------


@pytest.fixture(params=[None, ""])
def homeless(request, monkeypatch, tmp_path):
    """A container's user, whom no password file knows."""
    monkeypatch.setattr("pwd.getpwuid", {}.__getitem__)
    monkeypatch.setenv("HOME", "/home/me")
    assert user_path("~/a/./b") == Path("/home/me/a/b")
    if request.param is None:
        monkeypatch.delenv("HOME")
    else:
        monkeypatch.setenv("HOME", request.param)
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("home", ["~", "~/runs", "~nobody-of-this-name/runs"])
def test_a_home_that_nobody_knows_is_one_line_and_no_folder_of_its_name_is_made(
    homeless, home, tmp_path, capsys
):
    for door in (
        load_model,
        lambda out: fit(Config(), out),
        lambda out: save(out, encoder()),
    ):
        with pytest.raises(ConfigError, match=r"^~[^\n]* HOME[^\n]*$"):
            door(home)
    for words in (["data", home], ["train", "--out", home], ["train", "--config", home]):
        assert main(words) == 2
        assert "set HOME" in capsys.readouterr().err
    assert names(tmp_path) == set()


def test_the_default_cache_needs_a_home_and_an_own_one_needs_none(homeless, tmp_path, capsys):
    save_images(tmp_path / "images", noise(3))
    assert main(["data", "images"]) == 2
    assert "data.cache: its ~ is no known home folder; set HOME" in capsys.readouterr().err
    assert main(["data", "images", "--data.cache", "here"]) == 0
    assert names(tmp_path) == {"images", "here"}
    assert user_path("a~/~/b") == Path("a~/~/b")
