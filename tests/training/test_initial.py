"""The model that a run begins with: what comes from a checkpoint, what is new, what is frozen."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from tiny import CLASSES, TINY, assert_same, dataset, randomize, save, seeded
from torch import Tensor, nn

from vit.checkpoints import load_model
from vit.config import Config, OptimConfig, TrainConfig, changed
from vit.data import Dataset
from vit.encoder import VisionTransformer
from vit.errors import ConfigError, DataError
from vit.inputs import Normalization
from vit.mae import MaskedAutoencoder, Model, build_autoencoder
from vit.masking import make_mask
from vit.training.distributed import SINGLE
from vit.training.initial import follow, freeze, initial_model, restore_frozen_rows
from vit.training.loop import set_learning_rate
from vit.training.optimizer import make_optimizer

THEIRS = Normalization([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])


def config(objective: str = "classify", init: Path | str = "", **model: object) -> Config:
    return Config(
        model=changed(TINY, {"init": str(init), **model}), train=TrainConfig(objective=objective)
    )


def initial(settings: Config, data: Dataset | None = None) -> tuple[Model, Normalization, list]:
    """As `vit train` begins."""
    loaded = None
    if settings.model.init:
        part = "encoder" if settings.train.objective == "classify" else None
        loaded = load_model(settings.model.init, part=part)
        settings, _ = follow(settings, (), loaded)
    return initial_model(settings, data or dataset(), loaded)


def autoencoder(folder: Path, **settings: object) -> MaskedAutoencoder:
    """One that a run has left in `folder`."""
    model = changed(TINY, settings)
    made = build_autoencoder(model.vit_config(), model.decoder_config(), True)
    save(folder, randomize(made.requires_grad_()), THEIRS, CLASSES, "Noise")
    return made


def classifier(folder: Path, names: tuple[str, ...] = CLASSES, **saved: str) -> VisionTransformer:
    made = randomize(VisionTransformer(TINY.vit_config(num_classes=len(names))).requires_grad_())
    save(folder, made, THEIRS, names, "Noise", **saved)
    return made


@pytest.fixture(scope="module")
def mae(tmp_path_factory) -> tuple[Path, MaskedAutoencoder]:
    """A pretrained model in its folder."""
    folder = tmp_path_factory.mktemp("mae")
    return folder, autoencoder(folder)


def body(model: nn.Module) -> dict[str, Tensor]:
    """All but its head."""
    return {key: value for key, value in model.state_dict().items() if not key.startswith("head.")}


# --- new, or from a checkpoint --------------------------------------------------------------------


def test_new_model_fits_the_data_and_measures_it():
    data = dataset()
    for objective, kind in (("classify", VisionTransformer), ("reconstruct", MaskedAutoencoder)):
        model, normalize, *_ = initial(config(objective), data)
        assert normalize.mean == Normalization.measured_on(data.train.images).mean
        assert isinstance(model, kind)
    assert initial(config())[0].head.weight.shape == (3, 16)
    with pytest.raises(DataError, match=r"^train\.objective: Noise has no two classes[^\n]*$"):
        initial(config(), dataset(class_names=()))


def test_a_classifier_takes_the_encoder_of_a_pretraining_which_goes_on_with_its_decoder(mae):
    folder, before = mae
    model, normalize, *_ = initial(config(init=folder))
    assert_same(body(model), body(before.encoder))
    assert model.head.weight.shape == (3, 16)
    assert model.head.weight.abs().max() < 0.2  # new, so that it says nearly nothing
    assert normalize.std == THEIRS.std
    learning = {name for name, value in model.named_parameters() if value.requires_grad}
    assert learning == set(dict(model.named_parameters())) - {"pos_embed"}
    goes_on = initial(config("reconstruct", folder, decoder_dim=32))[0]
    assert_same(body(goes_on), body(before))
    # training loads nothing: in Python the model is handed over
    with pytest.raises(ConfigError, match=r"^model\.init: in Python, [^\n]*init=load_model\('"):
        initial_model(config(init=folder), dataset())


@pytest.mark.parametrize(
    ("names", "pool", "kept"),
    [
        ("ape cat bee", "avg", True),
        ("ape bee", "avg", False),
        ("ape bee cat", "token", False),
    ],
)
def test_head_is_kept_where_its_classes_and_what_it_reads_are_the_same(tmp_path, names, pool, kept):
    theirs = tuple(names.split())
    before = classifier(tmp_path, theirs)
    model = initial(config(init=tmp_path, global_pool=pool))[0]
    assert_same(body(model), body(before))
    # a row per class, in the order of the data's
    rows = [theirs.index(name) for name in CLASSES if name in theirs]
    for name, value in before.head.named_parameters():
        assert torch.equal(model.head.get_parameter(name), value[rows]) == kept


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
def test_the_architecture_is_the_checkpoints_and_what_the_command_line_names_must_agree(
    tmp_path, objective
):
    """Settings of a file yield; they then hold all of it, so that a run goes on without its checkpoint."""
    before = autoencoder(tmp_path, **OWN)
    settings = config(objective, tmp_path, depth=4, decoder_dim=32, drop_path=0.2)
    loaded = load_model(tmp_path)
    followed, _ = follow(settings, {"model.init", "model.drop_path"}, loaded)
    for name, value in OWN.items():
        assert getattr(followed.model, name) == value
    assert followed.model.vit_config() == changed(before.encoder.config, {"drop_path": 0.2})
    if objective == "reconstruct":
        decoder = followed.model.decoder_config()
        assert decoder.complete(before.encoder.config) == before.decoder.config
    assert follow(followed, (), loaded) == (followed, [])
    for name, key in (("depth", "depth"), ("preset", "embed_dim")):
        with pytest.raises(ConfigError, match=rf"^model\.{key}: .* has .*; leave it out$"):
            follow(settings, {f"model.{name}"}, loaded)
    # to repeat it is no mistake
    follow(changed(settings, {"model.depth": 3}), {"model.depth"}, loaded)


def test_a_checkpoint_for_images_of_other_channels_is_refused_before_the_data_is_loaded(tmp_path):
    grey = VisionTransformer(changed(TINY.vit_config(), {"channels": 1}))
    save(tmp_path, grey, Normalization([0.5], [0.2]))
    with pytest.raises(ConfigError, match=r"^model\.init: .* of 1 channel, [^\n]* have 3;"):
        initial(config(init=tmp_path))


def test_held_out_images_that_the_checkpoint_may_have_been_taught_are_said(mae, tmp_path):
    data = dataset()
    # another part of the training images is held out now
    some = data.test.subset(torch.tensor([0, 1, 2]))
    held_out = replace(data, test=some, is_chosen=True)
    classifier(tmp_path / "same", data_content_hash=held_out.content_hash)
    classifier(tmp_path / "other", data_content_hash=data.content_hash)

    def is_said(init: Path, images: Dataset, labels: float = 1.0) -> bool:
        settings = changed(config(init=init), {"data.labels": labels})
        return "trained on classes" in "; ".join(initial(settings, images)[2])

    assert is_said(tmp_path / "other", held_out)
    assert not is_said(tmp_path / "same", held_out)
    assert not is_said(tmp_path / "other", data)
    few = replace(data, train=data.train.subset(torch.tensor([0, 1, 2, 3])))
    assert is_said(tmp_path / "other", few, 0.5)
    assert not is_said(mae[0], few, 0.5)


# --- what is frozen -------------------------------------------------------------------------------

ALL = "0|1|2"
# parameters whose name fits the pattern; of a fused qkv layer only the thirds that are listed
PARTS = {
    "patch_embed": (r"encoder\.patch_embed\.", ALL),
    "pos_embed": (r"(encoder|decoder)\.pos_embed", ALL),
    "W_Q": (r".*attn\.qkv\.", "0"),
    "W_K": (r".*attn\.qkv\.", "1"),
    "W_V": (r".*attn\.qkv\.", "2"),
    "W_O": (r".*attn\.proj\.", ALL),
    "mlp": (r".*\.mlp\.", ALL),
    "encoder.blocks.0": (r"encoder\.blocks\.0\.", ALL),
    "decoder.W_Q": (r"decoder\..*attn\.qkv\.", "0"),
    "encoder.blocks.1.attn.W_V": (r"encoder\.blocks\.1\.attn\.qkv\.", "2"),
}


def small_model() -> MaskedAutoencoder:
    model = changed(TINY, {"image_size": 8, "registers": 1, "pos_embed": "learned"})
    return randomize(build_autoencoder(model.vit_config(), model.decoder_config()))


def pieces(model: MaskedAutoencoder) -> dict[tuple[str, str], Tensor]:
    """Every parameter that can learn, a qkv layer in its three thirds."""
    copies = {}
    for name, parameter in model.named_parameters():
        if name == "decoder.pos_embed":
            continue
        thirds = parameter.chunk(3) if ".qkv." in name else [parameter]
        for index, third in enumerate(thirds):
            copies[name, str(index)] = third.detach().clone()
    return copies


@pytest.mark.parametrize("optimizer", ["adamw", "muon"])
@pytest.mark.parametrize("names", [*PARTS, "W_Q W_K W_V W_O", "encoder.blocks.0 W_K"])
def test_frozen_part_keeps_every_bit_and_the_rest_moves(names, optimizer):
    """After real steps with weight decay."""
    model = small_model()
    before = pieces(model)
    rows = freeze(model, names.split())
    updates = make_optimizer(
        model, OptimConfig(name=optimizer, weight_decay=0.5), torch.float32, SINGLE
    )
    restore_frozen_rows(updates, rows)
    set_learning_rate(updates, 0.02)
    for step in range(3):
        draws = seeded(step)
        images = torch.randn(4, 3, 8, 8, generator=draws)
        model.loss(images, make_mask("random", 4, (2, 2), 0.5, draws))[0].backward()
        updates.step()
        updates.zero_grad()

    now = pieces(model)
    unmoved = {key for key in before if torch.equal(before[key], now[key])}
    frozen = set()
    for pattern, third in (PARTS[name] for name in names.split()):
        frozen |= {key for key in before if re.match(pattern, key[0]) and key[1] in third}
    assert frozen
    assert frozen <= unmoved
    # a key's bias adds the same to all scores of a query: its gradient is mere rounding
    rounding = {key for key in before if key[0].endswith("qkv.bias") and key[1] == "1"}
    assert unmoved - frozen <= rounding


def test_unknown_name_is_refused_in_one_line_that_names_the_parts():
    with pytest.raises(ConfigError, match=r"^model.freeze: 'W_E' [^\n]* it has ") as error:
        freeze(small_model(), ["W_E"])
    for part in str(error.value).partition("it has ")[2].split(", "):
        freeze(small_model(), [part])
