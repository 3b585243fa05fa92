"""The model that a run begins with: what comes from a checkpoint, what is new, what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from tiny import CLASSES, TINY, dataset, randomize
from torch import Tensor, nn

from vit.checkpoints import load_model, save_model
from vit.config import Config, ModelConfig, TrainConfig, changed, spelled
from vit.data import Dataset
from vit.encoder import VisionTransformer
from vit.errors import CheckpointError, ConfigError, DataError
from vit.inputs import Normalization
from vit.mae import MaskedAutoencoder, Model, build_autoencoder
from vit.training.initial import follow, initial_model
from vit.weights import write_weights

THEIRS = Normalization([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])


def config(objective: str = "classify", init: Path | str = "", **model: object) -> Config:
    return Config(
        model=changed(TINY, {"init": str(init), **model}), train=TrainConfig(objective=objective)
    )


def load(settings: Config, **options: object) -> Model:
    """What `vit train` loads."""
    part = "encoder" if settings.train.objective == "classify" else None
    return load_model(settings.model.init, part=part, **options)


def initial(settings: Config, data: Dataset | None = None, **options: object) -> tuple:
    loaded = load(settings, **options) if settings.model.init else None
    if loaded is not None:
        settings, _ = follow(settings, (), loaded)
    return initial_model(settings, data or dataset(), loaded)


def begin(
    settings: Config, data: Dataset | None = None, **options: object
) -> tuple[Model, Normalization]:
    return initial(settings, data, **options)[:2]


def autoencoder(folder: Path, **settings: object) -> MaskedAutoencoder:
    """One that a run has left in `folder`."""
    model = changed(TINY, settings)
    made = build_autoencoder(model.vit_config(), model.decoder_config(), True)
    save_model(folder, randomize(made.requires_grad_()), THEIRS, CLASSES, "Noise")
    return made


def classifier(folder: Path, names: tuple[str, ...] = CLASSES) -> VisionTransformer:
    made = VisionTransformer(TINY.vit_config(num_classes=len(names)))
    save_model(folder, randomize(made.requires_grad_()), THEIRS, names, "Noise")
    return made


@pytest.fixture(scope="module")
def mae(tmp_path_factory) -> tuple[Path, MaskedAutoencoder]:
    """A pretrained model in its folder."""
    folder = tmp_path_factory.mktemp("mae")
    return folder, autoencoder(folder)


def same_state(one: dict[str, Tensor], other: dict[str, Tensor], but: str = "-") -> bool:
    keys = [key for key in one if not key.startswith(but)]
    assert keys == [key for key in other if not key.startswith(but)]
    return all(torch.equal(one[key], other[key]) for key in keys)


# --- from nothing ---------------------------------------------------------------------------------


def of(normalize: Normalization) -> tuple[list[float], list[float]]:
    return normalize.mean, normalize.std


def test_new_model_fits_the_data_and_measures_it():
    data = dataset()
    for objective in ("classify", "reconstruct"):
        model, normalize = begin(config(objective), data)
        assert of(normalize) == of(Normalization.of(data.train.images))
        assert isinstance(model, MaskedAutoencoder) == isinstance(model.encoder.head, nn.Identity)
    assert begin(config())[0].head.weight.shape == (3, 16)


def test_images_without_labels_cannot_be_classified(mae):
    for init in ("", mae[0]):
        with pytest.raises(
            DataError, match=r"^train\.objective: Noise has no two classes[^\n]*$"
        ) as caught:
            begin(config(init=init), dataset(class_names=()))
        assert caught.value.exit_code == 2
    begin(config("reconstruct", mae[0]), dataset(class_names=()))


# --- from a run -----------------------------------------------------------------------------------


def test_classifier_takes_encoder_and_normalisation_of_a_pretraining(mae):
    folder, before = mae
    model, normalize = begin(config(init=folder))
    assert same_state(model.state_dict(), before.encoder.state_dict(), but="head.")
    assert model.head.weight.shape == (3, 16)
    assert model.head.weight.abs().max() < 0.2  # new, so that it says nearly nothing
    assert of(normalize) == of(THEIRS)
    assert all(
        value.requires_grad for name, value in model.named_parameters() if name != "pos_embed"
    )


def test_pretraining_goes_on_with_encoder_and_decoder(mae):
    folder, before = mae
    model, normalize = begin(config("reconstruct", folder, decoder_dim=32))
    assert same_state(model.state_dict(), before.state_dict())
    assert of(normalize) == of(THEIRS)


@pytest.mark.parametrize(
    ("names", "pool"),
    [("ape bee cat", "avg"), ("ape cat bee", "avg"), ("ape bee", "avg"), ("ape bee cat", "token")],
)
def test_head_is_kept_where_its_classes_and_what_it_reads_are_the_same(tmp_path, names, pool):
    before = classifier(tmp_path, tuple(names.split()))
    model, _ = begin(config(init=tmp_path, global_pool=pool))
    assert same_state(model.state_dict(), before.state_dict(), but="head.")
    assert model.head.weight.shape == (3, 16)
    # a row per class, in the order of the data's
    if names != "ape bee":
        rows = [names.split().index(name) for name in CLASSES]
        assert torch.equal(model.head.weight, before.head.weight[rows]) == (pool == "avg")
        assert torch.equal(model.head.bias, before.head.bias[rows]) == (pool == "avg")


def test_the_head_of_a_bare_file_is_kept_where_the_data_names_its_numbers(tmp_path):
    numbers = tuple(sorted(map(str, range(12))))
    for names, is_kept in ((numbers, True), (tuple(f"class {n}" for n in numbers), False)):
        made = VisionTransformer(TINY.vit_config(num_classes=12))
        save_model(tmp_path, randomize(made.requires_grad_()), THEIRS, (), "Noise")
        model, _ = begin(config(init=tmp_path), dataset(train=24, test=12, class_names=names))
        rows = [int(name.split()[-1]) for name in names]
        assert torch.equal(model.head.weight, made.head.weight[rows]) == is_kept


# --- from others ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "theirs", [dict(reg_tokens=2, init_values=0.1), dict(depth=3, qkv_bias=False)], ids=str
)
def test_a_timm_model_goes_on_as_it_is(tmp_path, theirs):
    sizes = dict(img_size=16, patch_size=4, embed_dim=64, depth=2, num_heads=1, num_classes=5)
    timms, path = randomize(TimmVisionTransformer(**sizes | theirs).eval()), tmp_path / "timm.pth"
    torch.save(timms.state_dict(), path)
    model, normalize = begin(config(init=path))
    images = torch.randn(2, 3, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(
            model.eval()(images), timms.forward_features(images), rtol=1e-4, atol=1e-4
        )
    assert of(normalize) == of(load_model(path).origin.normalize)


def test_checkpoint_that_lacks_a_part_of_its_decoder_is_refused(tmp_path):
    autoencoder(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    settings = json.loads((tmp_path / "config.json").read_text())
    del state["decoder.mask_token"]
    write_weights(tmp_path, state, settings)
    with pytest.raises(CheckpointError, match=r"decoder\.mask_token"):
        begin(config("reconstruct", tmp_path))


# --- the architecture of the checkpoint -----------------------------------------------------------


OWN = dict(
    image_size=(24, 24),
    patch_size=(6, 6),
    embed_dim=32,
    depth=3,
    registers=2,
    pos_embed="learned",
    layer_scale=0.1,
    norm_eps=1e-5,
)


@pytest.mark.parametrize("objective", ["classify", "reconstruct"])
def test_the_architecture_is_the_checkpoints_and_said_once(tmp_path, objective):
    """Settings of a file yield; they then hold all of it, so that a run goes on without its checkpoint."""
    before = autoencoder(tmp_path, **OWN)
    settings = config(objective, tmp_path, depth=4, decoder_dim=32, drop_path=0.2)
    loaded = load(settings)
    followed, (note,) = follow(settings, {"model.init", "model.drop_path"}, loaded)
    for name, value in OWN.items():
        assert getattr(followed.model, name) == value
        assert f"{name} {spelled(value)}" in note
    assert followed.model.vit_config() == changed(before.encoder.config, {"drop_path": 0.2})
    if objective == "reconstruct":
        assert (
            followed.model.decoder_config().complete(before.encoder.config) == before.decoder.config
        )
    else:
        assert followed.model.decoder_dim == 32
    assert follow(followed, (), loaded) == (followed, [])


@pytest.mark.parametrize("name", ["depth", "norm_eps", "preset", "decoder_dim", "image_size"])
def test_what_the_command_line_names_must_be_the_checkpoints(tmp_path, name):
    autoencoder(tmp_path, **OWN)
    value = {"depth": 4, "norm_eps": 1e-6, "preset": "tiny", "decoder_dim": 32, "image_size": 48}[
        name
    ]
    settings = Config(model=ModelConfig(init=str(tmp_path), **{name: value}))
    loaded = load(settings)
    key = {"preset": "embed_dim"}.get(name, name)
    with pytest.raises(
        ConfigError, match=rf"^model\.{key}: .* cannot be used; .* has .*; leave it out$"
    ):
        follow(settings, {f"model.{name}"}, loaded)
    follow(settings, (), loaded)
    own = {"preset": None, "decoder_dim": 16}.get(name, OWN.get(name))
    if own is not None:  # to repeat it is no mistake
        follow(changed(settings, {f"model.{name}": own}), {f"model.{name}"}, loaded)


# --- in Python: the model is handed over ----------------------------------------------------------


def test_training_loads_nothing(mae):
    with pytest.raises(
        ConfigError, match=r"^model\.init: in Python, [^\n]*fit\(\.\.\., init=load_model\('[^\n]*$"
    ):
        initial_model(config(init=mae[0]), dataset())
    handed = initial_model(config(init=mae[0]), dataset(), load_model(mae[0]))
    assert same_state(handed[0].state_dict(), mae[1].encoder.state_dict(), but="head.")


# --- what is said of it ---------------------------------------------------------------------------


def notes(settings: Config, data: Dataset | None = None) -> str:
    lines = initial(settings, data)[2]
    assert all(line.startswith("model.init: ") for line in lines)
    return "; ".join(lines)


def test_held_out_images_that_the_checkpoint_may_have_been_taught_are_said(mae, tmp_path):
    data = dataset()
    # another part of the training images is held out now
    held_out = replace(data, test=data.test.subset(torch.tensor([0, 1, 2])), held_out=True)
    warning = "taught classes"
    model = classifier(tmp_path / "unsaid")
    for name, images in (("same", held_out), ("other", data)):
        save_model(
            tmp_path / name, model, THEIRS, CLASSES, "Noise", data_content_hash=images.content_hash
        )
    for name, warned in (("unsaid", True), ("same", False), ("other", True)):
        assert (warning in notes(config(init=tmp_path / name), held_out)) == warned, name
    assert warning not in notes(config(init=mae[0]), held_out)
    assert warning not in notes(config(init=tmp_path / "unsaid"), data)
    few = changed(config(init=tmp_path / "other"), {"data.labels": 0.5})
    assert warning in notes(few, replace(data, train=data.train.subset(torch.tensor([0, 1, 2, 3]))))
    assert warning not in notes(changed(few, {"model.init": str(mae[0])}), data)
