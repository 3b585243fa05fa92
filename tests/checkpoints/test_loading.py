"""Loading: nothing is silent, what is asked for is done, and what cannot be used is said in one line."""

import json
import subprocess
import sys
import textwrap
import warnings

import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file, save_file
from small import (
    SIZES,
    autoencoder,
    change,
    close,
    refused,
    timm_model,
    timm_state,
    transformers_model,
    under,
)
from timm.layers import resample_abs_pos_embed, resample_patch_embed
from timm.models import adapt_input_conv
from tiny import NORMALIZE, Payload
from torch import nn

from vit.checkpoints import load_model, save_model
from vit.cli import main
from vit.config import ViTConfig
from vit.encoder import VisionTransformer
from vit.errors import DataError
from vit.load_options import LoadOptions
from vit.mae import MaskedAutoencoder


def timm_folder(folder, model_args=None, **config):
    """As timm writes it, with a config.json that says other things."""
    sizes = dict(img_size=32, depth=1, num_classes=3)
    model = timm.create_model("vit_tiny_patch16_224", pretrained=False, **sizes)
    timm.models.save_for_hf(model, folder, model_args=sizes, safe_serialization=True)
    change(folder, "model_args", **model_args or {})
    change(folder, **config)


# --- nothing is silent ------------------------------------------------------------------------------------------------


def test_every_key_is_used_or_listed(tmp_path):
    """The sum over the report's parts is the file, for a file with a bit of everything."""
    state = {f"backbone.{k}": v for k, v in timm_state(num_classes=0).items()} | {
        "head.mlp.0.weight": torch.ones(2, 2)
    }
    file = {
        "teacher": state,
        "student": dict(state),
        "optimizer": {"state": [torch.ones(3)]},
        "queue": torch.ones(4),
    }
    torch.save(file, tmp_path / "file.pth")
    model = load_model(tmp_path / "file.pth", num_heads=4, allow=["queue"])
    report = model.origin.report
    listed = [
        *report.used,
        *(name for names, _ in report.converted.values() for name in names),
        *report.dropped,
    ]
    assert len(listed) == len(set(listed)) == 2 * len(state) + 2
    assert report.dropped["queue"] == "allowed"
    assert "unexpected: queue" in refused(tmp_path / "file.pth", num_heads=4)


@pytest.mark.parametrize("name", ["cls_token", "blocks.1.attn.proj.bias", "head.bias"])
def test_missing_tensors_raise_unless_allowed(name):
    state = timm_state()
    del state[name]
    if name != "cls_token":  # whose absence makes another architecture
        assert f"missing: {name}; the rest of the model would stay untrained" in refused(
            state, num_heads=4
        )
        with pytest.warns(UserWarning, match=rf"untrained, \d+ parameters: {name}"):
            model = load_model(state, num_heads=4, allow=[name])
        assert list(model.origin.report.missing) == [name]
        assert torch.isfinite(model.get_parameter(name)).all()
    else:
        assert "a position table of 17 rows" in refused(state, num_heads=4)


def test_unexpected_tensors_raise_unless_allowed():
    state = timm_state() | {"blocks.0.attn.gate": torch.ones(4), "extra.weight": torch.ones(1)}
    message = refused(state, num_heads=4)
    assert "unexpected: blocks.0.attn.gate, extra.weight" in message
    assert "extra.weight" in refused(state, num_heads=4, allow=["blocks.*"])
    model = load_model(state, num_heads=4, allow=["blocks.*.gate", "extra.weight"])
    assert set(model.origin.report.dropped) == {"blocks.0.attn.gate", "extra.weight"}


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        # their shapes
        (
            "blocks.1.attn.qkv.weight",
            torch.zeros(96, 16),
            "qkv.weight has the shape 96 x 16, where 96 x 32 is expected",
        ),
        ("blocks.0.mlp.fc1.weight", torch.zeros(100, 32), "has 100 rows, where 128 are expected"),
        ("patch_embed.proj.weight", torch.zeros(32, 48), "4 dimensions are expected"),
        (
            "pos_embed",
            torch.zeros(1, 20, 32),
            "a position table of 20 rows does not fit a square grid",
        ),
        ("pos_embed", torch.zeros(17, 32), "3 dimensions are expected"),
        # their values
        ("norm.bias", torch.ones(32, dtype=torch.long), "norm.bias holds int64"),
        ("norm.bias", torch.ones(32).to_sparse(), "is not an ordinary tensor"),
        ("norm.bias", torch.ones(32, device="meta"), "on the device meta"),
        (
            "norm.bias",
            torch.full((32,), 1e300, dtype=torch.float64),
            "holds 32 values that are nan or infinite",
        ),
    ],
)
def test_a_tensor_that_cannot_be_used_is_named(name, value, said):
    assert said in refused(timm_state() | {name: value}, num_heads=4)


def test_weights_that_are_not_finite_are_refused_unless_allowed():
    state = timm_state()
    state["blocks.1.mlp.fc1.weight"][3, 4] = float("inf")
    assert "blocks.1.mlp.fc1.weight holds 1 values that are nan or infinite" in refused(
        state, num_heads=4
    )
    load_model(state, num_heads=4, allow=["blocks.1.mlp.fc1.weight"])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float64])
def test_any_precision_becomes_float32(dtype):
    state = timm_state()
    model = load_model({name: value.to(dtype) for name, value in state.items()}, num_heads=4)
    assert all(
        torch.equal(value, state[name].to(dtype).float())
        for name, value in model.state_dict().items()
    )


@pytest.mark.parametrize(
    "name", ["odd", "blocks.1.ls1.gamma"]
)  # the latter a tensor that the model has no place for
def test_an_unknown_tensor_is_allowed_with_or_without_its_wrapping(name):
    state = under("module.", timm_state() | {name: torch.ones(32)})
    assert f"unexpected: module.{name}" in refused(state, num_heads=4)
    for allow in (name, f"module.{name}"):
        report = load_model(state, num_heads=4, allow=allow).origin.report
        assert report.dropped == {f"module.{name}": "allowed"}
        assert f"module.{name}" not in report.used


# --- what settings say -------------------------------------------------------------------------------------------------


def test_settings_cannot_make_timm_read_another_file(tmp_path):
    """timm.create_model takes the path of a checkpoint, which it unpickles."""
    (tmp_path / "model").mkdir()
    torch.save({"state_dict": Payload(tmp_path / "ran")}, tmp_path / "model" / "evil.pth")
    evil = str(tmp_path / "model" / "evil.pth")
    timm_folder(tmp_path / "model", {"checkpoint_path": evil})
    message = refused(tmp_path / "model")
    assert (
        "model_args of config.json has checkpoint_path, which is not a setting of the architecture"
        in message
    )
    assert not (tmp_path / "ran").exists()


def test_timms_names_of_classes_and_its_older_layout(tmp_path):
    names = ["cat", "dog", "crane"]
    timm_folder(tmp_path)
    config = json.loads((tmp_path / "config.json").read_text())
    settings = config.pop("pretrained_cfg")
    for written in (
        config | {"pretrained_cfg": settings, "label_names": names},
        config | {"pretrained_cfg": settings | {"label_names": names}},
        config
        | {"pretrained_cfg": settings, "label_names": {"2": "crane", "0": "cat", "1": "dog"}},
        config | settings | {"label_names": names, "mean": [0.1, 0.2, 0.3]},
    ):
        (tmp_path / "config.json").write_text(json.dumps(written))
        origin = load_model(tmp_path).origin
        assert origin.class_names == tuple(names)
    assert origin.normalize.mean == [0.1, 0.2, 0.3]
    change(tmp_path, label_names=["LABEL_0", "LABEL_1", "LABEL_2"])  # made up by transformers
    assert load_model(tmp_path).origin.class_names == ()


def test_a_head_that_only_the_settings_name_is_missing(tmp_path):
    timm_folder(tmp_path)
    state = load_file(tmp_path / "model.safetensors")
    save_file(
        {k: v for k, v in state.items() if not k.startswith("head.")},
        tmp_path / "model.safetensors",
    )
    assert "missing: head.weight, head.bias" in refused(tmp_path)
    assert "untrained; num_classes 0 leaves the head out. name them" in refused(tmp_path)
    assert load_model(tmp_path, num_classes=0).config.num_classes == 0


PREPROCESSOR, MISSING, KEPT = (
    "preprocessor_config.json",
    object(),
    "the share of an image that is kept",
)
WRITERS = {
    "timm": timm_folder,
    "ours": lambda folder: save_model(folder, autoencoder(layer_scale=0.1), NORMALIZE),
    "transformers": lambda folder: transformers_model().save_pretrained(folder),
}
REFUSED = [  # who wrote the folder, which file or part of config.json, what it says, what is asked for, the message
    ("timm", "model_args", "mlp_ratio", 2.0, {}, "its settings say mlp_ratio 2.0, its tensors 4.0"),
    (
        "timm",
        "model_args",
        "qkv_bias",
        False,
        {},
        "its settings say qkv_bias False, its tensors True",
    ),
    (
        "ours",
        "encoder",
        "num_heads",
        4,
        dict(num_heads=2),
        "you gave num_heads 2, its settings say 4",
    ),
    (
        "ours",
        "encoder",
        "norm_eps",
        1e-6,
        dict(norm_eps=1e-5),
        "you gave norm_eps 1e-05, its settings say 1e-06",
    ),
    (
        "ours",
        "",
        "norm_pix_loss",
        True,
        dict(norm_pix_loss=False),
        "you gave norm_pix_loss False, its settings say True",
    ),
    ("ours", "encoder", "mlp_ratio", None, {}, "mlp_ratio is None"),
    ("ours", "encoder", "drop_path", 1.0, dict(num_heads=4), "drop_path is 1.0"),
    ("ours", "encoder", "layer_scale", None, {}, "its settings say no layer scale"),
    ("ours", "decoder", "depth", 2, {}, "its settings say depth 2, its tensors 1"),
    ("ours", "decoder", "dim", 12, {}, "its settings say dim 12, its tensors 24"),
    ("ours", "decoder", "dim", 25, {}, "its settings say dim 25, its tensors 24"),
    ("ours", "decoder", "width", 3, {}, "width is not a setting of DecoderConfig"),
    ("ours", "", "encoder", [1, 2], {}, "config.json is damaged"),
    ("ours", "", "format", MISSING, {}, "not of the format vit-patch-trainer/1"),
    ("ours", "", "format", MISSING, dict(part="encoder"), "not of the format vit-patch-trainer/1"),
    (
        "ours",
        "",
        "format",
        "vit-patch-trainer/2",
        dict(part="encoder"),
        "not of the format vit-patch-trainer/1",
    ),
    *(
        ("ours", "", key, MISSING, {}, repr(key))
        for key in ("sha256", "encoder", "decoder", "norm_pix_loss", "mean", "std", "class_names")
    ),
    *(
        (
            "ours",
            "",
            "crop_share",
            share,
            {},
            f"config.json is damaged: ValueError: {KEPT} is {share!r}",
        )
        for share in (0, 1.5, True, "most", float("nan"))
    ),
    (
        "transformers",
        "",
        "hidden_size",
        10**9,
        {},
        "its settings say embed_dim 1000000000, its tensors 32",
    ),
    ("transformers", "", "num_attention_heads", 7, {}, "7 heads do not divide"),
    ("transformers", "", "num_attention_heads", "many", {}, "num_heads is 'many'"),
    ("transformers", "", "image_size", [16, 16, 16], {}, "image_size is [16, 16, 16]"),
    ("transformers", "", "id2label", ["cat"], {}, "its settings cannot be used"),
    ("transformers", "", "hidden_act", ["gelu"], {}, "the activation ['gelu']"),
    (
        "transformers",
        "",
        "patch_size",
        8,
        {},
        "its settings say patch_size 8 x 8, its tensors 4 x 4",
    ),
    ("transformers", "", "num_channels", 1, {}, "its settings say channels 1, its tensors 3"),
    ("transformers", PREPROCESSOR, "image_mean", "grey", {}, "its settings cannot be used"),
    (
        "transformers",
        PREPROCESSOR,
        "image_std",
        [1, 1, 0],
        {},
        "its settings cannot be used: std is (1.0, 1.0, 0.0)",
    ),
]


@pytest.mark.parametrize(("writer", "section", "key", "value", "asked", "said"), REFUSED)
def test_settings_that_cannot_be_used_are_refused(
    writer, section, key, value, asked, said, tmp_path
):
    WRITERS[writer](tmp_path)
    if section == PREPROCESSOR:
        (tmp_path / section).write_text(json.dumps({key: value}))
    elif value is MISSING:
        change(tmp_path, without=key)
    else:
        change(tmp_path, section, **{key: value})
    message = refused(tmp_path, **asked)
    assert said in message
    assert str(tmp_path) in message


def test_what_a_preprocessor_says(tmp_path):
    transformers_model().save_pretrained(tmp_path)
    halves = {"image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    for settings, mean, interpolation, said in (
        ({"do_normalize": False}, 0.0, "bilinear", None),
        ({"resample": 3}, 0.5, "bicubic", None),
        ({"image_mean": 0.25, "image_std": 0.5}, 0.25, "bilinear", None),
        ({"resample": 0}, 0.5, "bilinear", "by 'nearest'"),
        ({"do_rescale": False}, 0.5, "bilinear", "from 0-255 to 0-1"),
        (
            {"size": {"height": 16, "width": 16}},
            0.5,
            "bilinear",
            "squashes pictures of another shape",
        ),
        (
            {"size": {"height": 8, "width": 8}},
            0.5,
            "bilinear",
            "8 pixels high, its settings say 16; image_size=8 does",
        ),
        (
            {
                "size": {"shortest_edge": 9},
                "crop_size": {"height": 8, "width": 8},
                "do_center_crop": True,
            },
            0.5,
            "bilinear",
            "8 pixels high, its settings say 16",
        ),
        ({"size": {"shortest_edge": 16}}, 0.5, "bilinear", None),
    ):
        (tmp_path / "preprocessor_config.json").write_text(json.dumps(halves | settings))
        origin = load_model(tmp_path).origin
        assert (origin.normalize.mean, origin.interpolation) == ([mean] * 3, interpolation)
        notes = [note for note in origin.report.notes if said and said in note]
        assert bool(notes) == bool(said)
        assert said or not [note for note in origin.report.notes if "preprocessor" in note]


# --- a model in memory, other versions ---------------------------------------------------------------------------------


@torch.no_grad()
def test_a_model_in_memory_says_itself_what_it_is(images):
    theirs = timm_model(num_heads=2, global_pool="avg", class_token=False, init_values=0.1)
    with warnings.catch_warnings(action="error"):  # nothing is a guess
        ours = load_model(theirs)
    close(ours.forward_head(ours(images)), theirs(images))
    whole = transformers_model(num_attention_heads=2, layer_norm_eps=1e-5)
    nn.init.normal_(whole.embeddings.position_embeddings)
    with warnings.catch_warnings(action="error"):
        ours = load_model(
            whole, mean=(0.5,) * 3, std=(0.5,) * 3
        )  # which no model of transformers' knows
    close(ours(images), whole(images).last_hidden_state)
    for head in (
        nn.Linear(32, 7),
        nn.Identity(),
        nn.Sequential(nn.Dropout(), nn.Linear(32, 7)).eval(),
    ):
        theirs.head = head  # the usual ways to replace it
        ours = load_model(theirs)
        close(ours.forward_head(ours(images)), theirs(images))
    assert load_model(theirs.state_dict(), num_heads=2).config.num_classes == 7
    linear = nn.Linear(32, 7)
    for parts in (
        (nn.ReLU(), linear),
        (linear, nn.Softmax(-1)),
        (nn.LayerNorm(32), linear),
        (linear, nn.ReLU(), nn.Linear(7, 3)),
        (nn.BatchNorm1d(32), nn.Dropout(), linear),
    ):
        theirs.head = nn.Sequential(
            *parts
        )  # none is a linear layer alone: it is left out, and that is said
        ours = load_model(theirs)
        close(ours(images), theirs.forward_features(images))
        assert ours.config.num_classes == 0
        assert {
            name for name in theirs.state_dict() if name.startswith("head.")
        } <= ours.origin.report.dropped.keys()
        assert any(type(parts[0]).__name__ in note for note in ours.origin.report.notes)
    load_model(timm_model(act_layer="gelu"))  # timm's own class of the exact one
    assert "GELU" in refused(timm_model(act_layer="gelu_tanh"))
    assert "'relu' is not computed" in refused(transformers_model(hidden_act="relu"))


def test_settings_that_changed_behind_our_back_are_found(tmp_path):
    save_model(tmp_path, VisionTransformer(ViTConfig(**SIZES)), NORMALIZE)
    path = tmp_path / "config.json"
    config = json.loads(path.read_text())
    path.write_text(json.dumps(dict(reversed(config.items()))))  # the order says nothing
    load_model(tmp_path)
    for key, value in (("mean", [0.1, 0.2, 0.4]), ("interpolation", "bilinear"), ("note", "mine")):
        path.write_text(json.dumps(config | {key: value}))
        assert "config_sha256" in refused(tmp_path)
    change(tmp_path)  # without the hash, they are taken
    assert load_model(tmp_path).origin.details["note"] == "mine"


# --- what is guessed is said -------------------------------------------------------------------------------------------


def test_heads_are_guessed_by_the_width_and_that_is_said():
    model = load_model(timm_state(embed_dim=128, num_heads=2))
    assert model.config.num_heads == 2
    assert any(
        "2 heads of the encoder are a guess (64 channels per head)" in note
        for note in model.origin.report.notes
    )
    assert (
        "there is no config.json that says how many heads its width of 32 has; give num_heads"
        in refused(timm_state())
    )
    assert "5 heads do not divide its width of 32" in refused(timm_state(), num_heads=5)
    # with qk-norm, the size of a head is known
    assert load_model(timm_state(qk_norm=True)).config.num_heads == 4
    assert "2 heads of 8 channels (from its q_norm) do not make its width of 32" in refused(
        timm_state(qk_norm=True), num_heads=2
    )


def test_what_blocks_compute_is_said_to_be_assumed_even_if_their_heads_are_known():
    for source, asked, count in (
        (timm_state(embed_dim=128), {}, 1),
        (timm_state(), dict(num_heads=4), 1),
        (timm_state(qk_norm=True), {}, 1),
        (timm_model(), {}, 0),  # which says so itself
    ):
        notes = load_model(source, **asked).origin.report.notes
        assert sum("an exact GELU, no rotary positions" in note for note in notes) == count


def test_an_added_class_token_does_not_move_the_pooling():
    state = timm_state(class_token=False, global_pool="avg", fc_norm=False)
    for asked, pool in (({}, "avg"), ({"global_pool": "token"}, "token")):
        with pytest.warns(UserWarning, match="cls_token"):
            ours = load_model(state, num_heads=4, class_token=True, **asked)
        assert ours.config.global_pool == pool


def test_a_head_that_loses_its_token_says_so():
    ours = load_model(timm_state(), num_heads=4, class_token=False)
    assert any("head was trained on the class token" in note for note in ours.origin.report.notes)
    assert "global_pool can only be 'avg'" in refused(
        timm_state(), num_heads=4, class_token=False, global_pool="token"
    )
    bare = load_model(timm_state(num_classes=0), num_heads=4, class_token=False)
    assert not any("head" in note for note in bare.origin.report.notes if "heads" not in note)


def test_a_guess_is_a_warning_that_names_the_option():
    with pytest.warns(UserWarning, match="the state dict: ") as caught:
        load_model(timm_state(embed_dim=128))
    heads, pixels, head = sorted(str(warning.message) for warning in caught)
    assert "num_heads" in heads
    assert "global_pool" in head
    assert "mean, std and crop_share set them" in pixels
    with pytest.warns(
        UserWarning, match=r"5 x 5 patches; grid_size"
    ):  # 24 patches and a class token: 25 rows
        load_model(timm_state(img_size=(16, 24), num_classes=0), num_heads=4)
    with warnings.catch_warnings(action="error"):
        said = dict(num_heads=4, grid_size=(4, 6), mean=(0.5,) * 3, std=(0.5,) * 3)
        load_model(timm_state(img_size=(16, 24), num_classes=0), **said)


def test_a_guess_of_the_pooling_is_said():
    guess = "nothing says what its head reads"
    notes = load_model(timm_state(), num_heads=4).origin.report.notes
    assert any(guess in note for note in notes)
    notes = load_model(timm_state(global_pool="avg"), num_heads=4).origin.report.notes
    assert any(
        "its fc_norm suggests that its head reads the mean of the patches; global_pool" in note
        for note in notes
    )
    for model, asked in (
        (timm_model(), dict(global_pool="avg")),  # given
        (timm_model(num_classes=0), {}),  # no head
        (timm_model(global_pool="avg"), {}),  # its fc_norm says so
        (timm_model(class_token=False, global_pool="avg"), {}),  # no choice
    ):
        notes = load_model(model.state_dict(), num_heads=4, **asked).origin.report.notes
        assert not any(guess in note for note in notes)


def test_the_eps_of_transformers_models_in_memory_is_a_guess_and_can_be_given(images):
    theirs = transformers_model(layer_norm_eps=1e-3)
    notes = load_model(theirs.state_dict(), num_heads=4).origin.report.notes
    assert any("nothing says the eps of its norms; assuming 1e-12" in note for note in notes)
    ours = load_model(theirs.state_dict(), num_heads=4, norm_eps=1e-3)
    close(ours(images), theirs(images).last_hidden_state)
    assert not any("eps" in note for note in ours.origin.report.notes)


# --- which network in a file, and what stands beside it ----------------------------------------------------------------


def test_states_of_the_training_are_known_beside_the_network_and_nothing_else_is():
    state = timm_state(num_classes=0)
    for name in (
        "n_averaged",
        "initted",
        "step",
        "ema.step",
        "opt.state.0.exp_avg",
        "cuda_rng_state_all.0",
        "scaler.x",
        "head.0.weight",
        "predictor.0.weight",
    ):
        report = load_model(
            under("model.", state) | {name: torch.ones(2)}, num_heads=4
        ).origin.report
        assert list(report.dropped) == [name]
        assert report.dropped[name] != "allowed"
    for name in ("head.weight", "fc.weight", "queue", "model2.bias", "act.step"):
        assert f"unexpected: {name}" in refused(
            under("backbone.", state) | {name: torch.ones(2)}, num_heads=4
        )


def test_names_that_differ_in_their_wrappers_alone_are_refused():
    double = timm_state() | {"_orig_mod.norm.bias": torch.ones(32)}
    assert "differ in what torch.compile or FSDP add" in refused(double, num_heads=4)


def test_first_which_copy_then_its_format():
    """A student may hold what its teacher does not (a mask token), an average may be of the encoder alone."""
    student, teacher = timm_state(num_classes=0), timm_state(num_classes=0)
    file = under("student.", student | {"mask_token": torch.zeros(1, 32)}) | under(
        "teacher.", teacher
    )
    assert torch.equal(load_model(file, num_heads=4).norm.weight, teacher["norm.weight"])
    assert torch.equal(
        load_model(file, num_heads=4, branch="student").norm.weight, student["norm.weight"]
    )

    whole = autoencoder()
    file = under("model.", whole.state_dict()) | under("model_ema.", teacher)
    ours = load_model(file, num_heads=4)
    assert isinstance(ours, VisionTransformer)
    assert torch.equal(ours.norm.weight, teacher["norm.weight"])
    assert any("branch model takes it" in why for why in ours.origin.report.dropped.values())
    whole_again = load_model(file, num_heads=4, decoder_heads=3, norm_pix_loss=True, branch="model")
    assert isinstance(whole_again, MaskedAutoencoder)
    assert torch.equal(whole_again.decoder.pred.weight, whole.decoder.pred.weight)


def test_moco_v3():
    backbone = timm_state(num_classes=0)
    heads = {
        "head.0.weight": torch.ones(8, 32),
        "head.1.weight": torch.ones(8),
        "head.1.running_mean": torch.ones(8),
    }
    file = under("module.base_encoder.", backbone | heads)
    file |= under("module.momentum_encoder.", timm_state(num_classes=0) | heads)
    file |= {"module.predictor.0.weight": torch.ones(8, 8)}
    ours = load_model({"state_dict": file, "epoch": 300}, num_heads=4)
    assert torch.equal(ours.norm.weight, backbone["norm.weight"])


def test_what_is_no_checkpoint():
    for source, said in (
        (None, "got a NoneType"),
        (nn.Linear(2, 2), "neither timm's nor transformers'"),
        ("", "got an empty name"),
        ({}, "holds no tensors"),
        ({"weight": torch.ones(3)}, "in no known format"),
    ):
        assert said in refused(source)


# --- what is asked for -------------------------------------------------------------------------------------------------


def test_options_are_given_together_or_one_by_one():
    state = timm_state()
    together = load_model(state, LoadOptions(num_heads=4, image_size=32))
    assert together.config == load_model(state, num_heads=4, image_size=32).config
    assert load_model(
        state, LoadOptions(num_heads=4, image_size=32), image_size=24
    ).config.image_size == (24, 24)


def test_patches_and_positions_are_resized_by_timms_functions():
    state = timm_state(reg_tokens=2)
    model = load_model(state, image_size=(24, 40), patch_size=(8, 4), num_heads=4)
    assert torch.equal(
        model.patch_embed.proj.weight,
        resample_patch_embed(state["patch_embed.proj.weight"], [8, 4]),
    )
    expected = resample_abs_pos_embed(state["pos_embed"], [3, 10], [4, 4], num_prefix_tokens=3)
    assert torch.equal(model.pos_embed, expected)
    said = model.origin.report.converted
    assert said["patch_embed.proj.weight"][1] == "resized from 4 x 4 pixels"
    assert said["pos_embed"][1] == "resized from a grid of 4 x 4 to 3 x 10, bicubic"
    assert model(torch.randn(2, 3, 24, 40)).shape == (2, 33, 32)


@pytest.mark.parametrize("channels", [1, 4])
def test_channels_are_adapted_by_timms_function(channels):
    state = timm_state()
    model = load_model(state, channels=channels, num_heads=4)
    assert torch.equal(
        model.patch_embed.proj.weight, adapt_input_conv(channels, state["patch_embed.proj.weight"])
    )
    assert (
        model.origin.report.converted["patch_embed.proj.weight"][1]
        == f"3 input channels converted to {channels}"
    )
    assert len(model.origin.normalize.mean) == len(model.origin.normalize.std) == channels
    images = torch.rand(2, channels, 16, 16)
    assert torch.isfinite(model(model.origin.normalize(images))).all()


def test_a_resized_autoencoder_keeps_its_decoder(tmp_path):
    save_model(tmp_path, autoencoder(), NORMALIZE)
    model = load_model(tmp_path, image_size=32)
    assert isinstance(model, MaskedAutoencoder)
    assert model.decoder.pos_embed.shape == (1, 65, 24)
    assert "part encoder" in refused(tmp_path, patch_size=8)
    assert "part encoder" in refused(tmp_path, channels=1)
    assert "part='encoder' (--part encoder)" in refused(tmp_path, class_token=False)
    assert load_model(tmp_path, patch_size=8, part="encoder").patch_embed.grid_size == (2, 2)


def test_a_new_head_is_begun_and_said():
    state = timm_state()
    with pytest.warns(UserWarning, match="untrained, 330 parameters: head.weight, head.bias"):
        model = load_model(state, num_classes=10, num_heads=4)
    assert model.head.weight.shape == (10, 32)
    assert (
        model.origin.report.dropped["head.weight"] == "10 classes were requested, this head has 5"
    )
    assert torch.equal(
        load_model(state, num_classes=5, num_heads=4).head.weight, state["head.weight"]
    )
    assert isinstance(load_model(state, num_classes=0, num_heads=4).head, nn.Identity)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (dict(part="decoder"), "part: 'decoder' cannot be used"),
        (dict(image_size=18), "patches of 4 x 4 do not divide images of 18 x 18"),
        (dict(patch_size=5), "patches of 5 x 5 do not divide images of 16 x 16; give both sizes"),
        (dict(grid_size=(2, 7)), "pos_embed has 17 rows, which is not a grid of 2 x 7"),
        (
            dict(branch="student"),
            "no copy of the network is called 'student'; it has: the top level",
        ),
        (dict(fc_norm=1), "fc_norm: 1 cannot be used; it needs true or false"),
        (dict(norm_eps=0), "norm_eps: 0 cannot be used"),
        (
            dict(decoder_heads=3),
            "decoder_heads and norm_pix_loss are for a decoder, and none is loaded",
        ),
        (dict(norm_pix_loss=False), "decoder_heads and norm_pix_loss are for a decoder"),
    ],
    ids=str,
)
def test_what_cannot_be_asked_is_refused(asked, said):
    assert said in refused(timm_state(), **dict(num_heads=4) | asked)


@pytest.mark.parametrize(
    ("state", "allow", "code"),
    [
        ({"model.norm.bias": torch.ones(32, dtype=torch.long)}, [], 2),
        ({"model.norm.bias": torch.full((32,), float("nan"))}, [], 2),
        ({"model.norm.bias": torch.full((32,), float("nan"))}, ["--allow", "norm.bias"], 0),
        ({"opt.state": torch.full((32,), float("nan"))}, [], 0),
    ],
    ids=["whole numbers", "nan", "nan, allowed", "nan beside"],
)
def test_inspect_and_load_agree(state, allow, code, tmp_path):
    torch.save(under("model.", timm_state()) | state, tmp_path / "x.pth")
    argv = [str(tmp_path / "x.pth"), "--num-heads", "4", *allow]
    inspected = main(["checkpoint", "inspect", *argv])
    loaded = main(["checkpoint", "convert", *argv, "--to", "timm", "--out", str(tmp_path / "t")])
    assert inspected == loaded == code


# --- what travels, and at what cost -------------------------------------------------------------------------------------


def test_files_that_cannot_be_shown_to_a_model_are_refused(tmp_path):
    pixels = torch.randint(0, 256, (40, 64, 3), dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(tmp_path / "a.png")
    save_model(tmp_path / "m", VisionTransformer(ViTConfig(**SIZES)), NORMALIZE)
    grey = load_model(tmp_path / "m", channels=1).origin.read_images([tmp_path / "a.png"])
    assert grey.shape == (1, 1, 16, 16)
    with pytest.raises(DataError, match="takes 5 channels"):
        load_model(tmp_path / "m", channels=5).origin.read_images([tmp_path / "a.png"])
    (tmp_path / "c.png").write_text("no image")
    with pytest.raises(DataError, match=r"c\.png: its content is not an image"):
        load_model(tmp_path / "m").origin.read_images([tmp_path / "a.png", str(tmp_path / "c.png")])


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/status is Linux's")
def test_memory_peaks_below_the_file(tmp_path):
    """Above the model itself, for a Hugging Face folder, whose q, k and v are stacked; reading alone takes no more."""
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from vit.checkpoints import load_model
        from vit.checkpoints.reading import read_checkpoint
        def memory(kind):
            return int(next(l for l in open("/proc/self/status") if l.startswith(kind)).split()[1]) * 1024
        place = Path(sys.argv[1])
        load_model(place / "small")  # everything imported, every code path warm
        for name in ("zip", "safetensors"):
            read_checkpoint(place / f"small.{name}")
        before = memory("VmHWM")
        for name in ("zip", "safetensors"):
            total = sum(float(t.sum()) for t in read_checkpoint(place / f"large.{name}").tensors.values())
        print((memory("VmHWM") - before) / (place / "large.zip").stat().st_size)
        before = memory("VmRSS")
        model = load_model(place / "large")
        own = sum(p.numel() * p.element_size() for p in model.parameters())
        print((memory("VmHWM") - before - own) / (place / "large" / "model.safetensors").stat().st_size)
    """)
    for name, width, count in (("small", 32, 1), ("large", 1024, 25 << 20)):
        transformers_model(hidden_size=width, intermediate_size=4 * width).save_pretrained(
            tmp_path / name
        )
        tensors = {"a": torch.ones(count), "b": torch.ones(7)}
        torch.save(tensors, tmp_path / f"{name}.zip")
        save_file(tensors, tmp_path / f"{name}.safetensors")
    done = subprocess.run(
        [sys.executable, "-c", program, tmp_path], capture_output=True, text=True, check=True
    )
    reading, loading = map(float, done.stdout.split())
    assert reading < 1.1
    assert loading < 1.3
