"""Which copy, which format, what belongs to the network and what does not; what is asked, said and guessed."""

import json
import os
import time

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from torch import nn

from vit.checkpoints import CheckpointError, convert_model, load_model, save_model
from vit.checkpoints.formats.timm import ARGUMENTS
from vit.cli import main
from vit.config import DecoderConfig, ViTConfig
from vit.data.augment import Normalization
from vit.encoder import VisionTransformer
from vit.mae import MaskedAutoencoder, build_autoencoder

SIZES = dict(image_size=(16, 16), patch_size=(4, 4), embed_dim=32, depth=2, num_heads=4)
NORMALIZE = Normalization([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def timm_model(**settings):
    sizes = dict(img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=4, num_classes=5)
    model = TimmVisionTransformer(**sizes | settings).eval()
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, 1.0 if "norm" in name and name.endswith("weight") else 0.0, 0.2)
    return model


def under(prefix, state):
    return {prefix + name: value for name, value in state.items()}


def refused(source, **asked) -> str:
    with pytest.raises(CheckpointError) as error:
        load_model(source, **asked)
    assert "\n" not in str(error.value)
    return str(error.value)


def timm_folder(folder, model_args=None, config=None, name="vit_tiny_patch16_224", **settings):
    """As timm writes it, with a config.json that says other things."""
    sizes = dict(img_size=32, depth=1, num_classes=3) | settings
    model = timm.create_model(name, pretrained=False, **sizes)
    timm.models.save_for_hf(model, folder, model_args=sizes, safe_serialization=True)
    said = json.loads((folder / "config.json").read_text())
    said["model_args"] |= model_args or {}
    said |= config or {}
    (folder / "config.json").write_text(json.dumps(said))
    return model


# --- settings from outside ---------------------------------------------------------------------------------------------


class Evil:
    def __init__(self, trace):
        self.trace = trace

    def __reduce__(self):
        return os.mkdir, (self.trace,)


def test_settings_cannot_make_timm_read_another_file(tmp_path):
    """timm.create_model takes the path of a checkpoint, which it unpickles."""
    (tmp_path / "model").mkdir()
    torch.save({"state_dict": Evil(str(tmp_path / "ran"))}, tmp_path / "model" / "evil.pth")
    evil = str(tmp_path / "model" / "evil.pth")
    timm_folder(tmp_path / "model", {"checkpoint_path": evil})
    message = refused(tmp_path / "model")
    assert "model_args of config.json has checkpoint_path, which is no setting of the architecture" in message
    assert not (tmp_path / "ran").exists()


@pytest.mark.parametrize("key", ["checkpoint_path", "pretrained_cfg_overlay", "cache_dir", "scriptable", "out\nside"])
def test_only_settings_of_the_architecture_reach_timm(key, tmp_path):
    timm_folder(tmp_path, {key: "x"})
    assert "which is no setting of the architecture" in refused(tmp_path)


def test_the_settings_that_may_stand_there_are_timms():
    """Arguments of the network itself, and none of the function that also reads files."""
    import inspect

    assert set(inspect.signature(TimmVisionTransformer).parameters) >= ARGUMENTS
    assert ARGUMENTS.isdisjoint(inspect.signature(timm.create_model).parameters)


@pytest.mark.parametrize("where", ["top", "within", "dict", "level"])
def test_timms_names_of_classes_and_its_older_layout(where, tmp_path):
    names = ["cat", "dog", "crane"]
    timm_folder(tmp_path, config={"label_names": names} if where == "top" else None)
    config = json.loads((tmp_path / "config.json").read_text())
    if where == "within":
        config["pretrained_cfg"]["label_names"] = names
    if where == "dict":
        config["label_names"] = {"2": "crane", "0": "cat", "1": "dog"}
    if where == "level":
        config |= config.pop("pretrained_cfg") | {"label_names": names, "mean": [0.1, 0.2, 0.3]}
    (tmp_path / "config.json").write_text(json.dumps(config))
    origin = load_model(tmp_path).origin
    assert origin.class_names == tuple(names)
    if where == "level":
        assert origin.normalize.mean == [0.1, 0.2, 0.3]


def test_class_names_make_the_round_trip_through_timm(tmp_path):
    save_model(tmp_path / "own", VisionTransformer(ViTConfig(**SIZES, num_classes=2)), NORMALIZE, ("cat", "dog"))
    convert_model(load_model(tmp_path / "own"), "timm", tmp_path / "timm")
    assert load_model(tmp_path / "timm").origin.class_names == ("cat", "dog")


@pytest.mark.parametrize(
    ("model_args", "said"),
    [
        ({"qkv_bias": False}, "qkv_bias False, its tensors True"),
        ({"qk_norm": True}, "qk_norm True, its tensors False"),
        ({"global_pool": "avg"}, "fc_norm True, its tensors False"),
        ({"num_classes": 4}, "num_classes 4, its tensors 3"),
        ({"mlp_ratio": 2.0}, "mlp_ratio 2.0, its tensors 4.0"),
        ({"patch_size": 8}, "patch_size 8 x 8, its tensors 16 x 16"),
        ({"in_chans": 1}, "channels 1, its tensors 3"),
        ({"init_values": 0.1}, None),
        ({"embed_dim": 384}, "embed_dim 384, its tensors 192"),
    ],
    ids=str,
)
def test_settings_of_timm_that_contradict_the_tensors(model_args, said, tmp_path):
    timm_folder(tmp_path, model_args, {"num_classes": model_args.get("num_classes", 3)})
    if said is None:  # timm's layer scales of one config are within the tensors of another, or not
        load_model(tmp_path)
    else:
        assert f"its settings say {said}" in refused(tmp_path)


@pytest.mark.parametrize("scaled", [True, False])
def test_a_layer_scale_is_in_both_or_in_neither(scaled, tmp_path):
    save_model(tmp_path, VisionTransformer(ViTConfig(**SIZES, layer_scale=0.1 if scaled else None)), NORMALIZE)
    config = json.loads((tmp_path / "config.json").read_text())
    config["encoder"]["layer_scale"] = None if scaled else 0.1
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert "its settings say " + ("no layer scale" if scaled else "a layer scale") in refused(tmp_path)


def test_a_head_that_the_settings_speak_of_is_missing_where_the_file_has_none(tmp_path):
    timm_folder(tmp_path)
    from safetensors.torch import load_file, save_file

    state = load_file(tmp_path / "model.safetensors")
    save_file({k: v for k, v in state.items() if not k.startswith("head.")}, tmp_path / "model.safetensors")
    assert "missing: head.weight, head.bias" in refused(tmp_path)
    assert load_model(tmp_path, num_classes=0).config.num_classes == 0


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (dict(num_heads=2), "you gave num_heads 2, its settings say 4"),
        (dict(grid_size=(2, 8)), "you gave grid_size 2 x 8, its settings say 4 x 4"),
        (dict(norm_eps=1e-5), "you gave norm_eps 1e-05, its settings say 1e-06"),
        (dict(decoder_heads=4), "you gave decoder_heads 4, its settings say 3"),
        (dict(norm_pix_loss=False), "you gave norm_pix_loss False, its settings say True"),
    ],
)
def test_what_is_given_must_not_contradict_what_is_said(asked, said, tmp_path):
    save_model(
        tmp_path, build_autoencoder(ViTConfig(**SIZES), DecoderConfig(dim=24, depth=1, num_heads=3), True), NORMALIZE
    )
    assert said in refused(tmp_path, **asked)


def test_heads_that_the_norms_of_queries_contradict():
    assert "2 heads of 8 channels, as its q_norm has, do not make its width of 32" in refused(
        timm_model(qk_norm=True).state_dict(), num_heads=2
    )


@pytest.mark.parametrize("value", [None, 0, -1.0, "4"])
def test_an_mlp_ratio_that_is_none(value, tmp_path):
    save_model(tmp_path, VisionTransformer(ViTConfig(**SIZES)), NORMALIZE)
    config = json.loads((tmp_path / "config.json").read_text())
    config["encoder"]["mlp_ratio"] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert f"mlp_ratio is {value!r}" in refused(tmp_path)


@pytest.mark.parametrize("value", [-0.1, 1.0, 2, None])
def test_a_drop_path_that_is_none(value, tmp_path):
    save_model(tmp_path, VisionTransformer(ViTConfig(**SIZES)), NORMALIZE)
    config = json.loads((tmp_path / "config.json").read_text())
    config["encoder"]["drop_path"] = value
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert f"drop_path is {value!r}" in refused(tmp_path)


# --- what is allowed, by any of its names ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "allow", ["blocks.1.norm1.bias", "encoder.blocks.1.norm1.bias", "*.norm1.bias", "encoder.blocks.1.*"]
)
def test_a_missing_tensor_is_allowed_by_the_name_in_the_message(allow, tmp_path):
    save_model(
        tmp_path, build_autoencoder(ViTConfig(**SIZES), DecoderConfig(dim=24, depth=1, num_heads=3), True), NORMALIZE
    )
    state = load_model(tmp_path).state_dict()
    del state["encoder.blocks.1.norm1.bias"]
    asked = dict(num_heads=4, decoder_heads=3, norm_pix_loss=True)
    assert "missing: encoder.blocks.1.norm1.bias" in refused(state, **asked)
    with pytest.warns(UserWarning, match=r"encoder\.blocks\.1\.norm1\.bias"):
        load_model(state, **asked, allow=[allow])


@pytest.mark.parametrize("allow", ["module.odd", "odd", ["o*"]])
def test_an_unknown_tensor_is_allowed_with_or_without_its_wrapping(allow):
    state = under("module.", timm_model().state_dict() | {"odd": torch.ones(1)})
    assert "unexpected: module.odd" in refused(state, num_heads=4)
    assert load_model(state, num_heads=4, allow=allow).origin.report.dropped == {"module.odd": "allowed"}


@pytest.mark.parametrize("allow", ["module.blocks.0.ls1.gamma", "blocks.0.ls1.gamma", "blocks.?.ls1.gamma"])
def test_a_tensor_that_the_model_has_no_place_for_is_dropped_when_allowed(allow):
    state = under("module.", timm_model().state_dict())
    state["module.blocks.1.ls1.gamma"] = torch.ones(32)  # in the second block alone
    allow = allow.replace("0", "1")
    assert "unexpected: module.blocks.1.ls1.gamma" in refused(state, num_heads=4)
    report = load_model(state, num_heads=4, allow=allow).origin.report
    assert report.dropped == {"module.blocks.1.ls1.gamma": "allowed"}
    assert "module.blocks.1.ls1.gamma" not in report.used


@pytest.mark.parametrize("allow", ["module.norm.bias", "norm.bias", "encoder.norm.bias"])
def test_values_that_are_not_finite_are_allowed_by_any_name(allow):
    state = under("module.", timm_model().state_dict())
    state["module.norm.bias"][0] = float("nan")
    assert "module.norm.bias holds 1 values" in refused(state, num_heads=4)
    load_model(state, num_heads=4, allow=allow)


def test_a_text_as_allow_is_one_pattern_and_not_its_letters():
    state = timm_model().state_dict() | {"odd": torch.ones(1)}
    assert "unexpected: odd" in refused(state, num_heads=4, allow="head.*")
    assert "allow: [1] cannot be used" in refused(state, num_heads=4, allow=[1])
    assert "allow: None cannot be used" in refused(state, num_heads=4, allow=None)


def test_half_a_head_goes_with_the_head():
    state = timm_model().state_dict()
    del state["head.weight"]
    assert load_model(state, num_heads=4, num_classes=0).origin.report.dropped.keys() == {"head.bias"}
    assert "unexpected: head.bias" in refused(state, num_heads=4)


# --- pooling ------------------------------------------------------------------------------------------------------------


def test_an_added_class_token_does_not_move_the_pooling():
    theirs = timm_model(class_token=False, global_pool="avg", fc_norm=False)
    with pytest.warns(UserWarning, match="cls_token"):
        ours = load_model(theirs.state_dict(), num_heads=4, class_token=True)
    assert ours.config.global_pool == "avg"
    with pytest.warns(UserWarning, match="cls_token"):
        ours = load_model(theirs.state_dict(), num_heads=4, class_token=True, global_pool="token")
    assert ours.config.global_pool == "token"


def test_a_head_that_loses_its_token_says_so():
    ours = load_model(timm_model().state_dict(), num_heads=4, class_token=False)
    assert any("head was trained on the class token" in note for note in ours.origin.report.notes)
    assert "global_pool can only be 'avg'" in refused(
        timm_model().state_dict(), num_heads=4, class_token=False, global_pool="token"
    )
    bare = load_model(timm_model(num_classes=0).state_dict(), num_heads=4, class_token=False)
    assert not any("head" in note for note in bare.origin.report.notes if "heads" not in note)


def test_a_guess_of_the_pooling_is_said():
    guess = "nothing says what its head reads"
    notes = load_model(timm_model().state_dict(), num_heads=4).origin.report.notes
    assert any(guess in note for note in notes)
    for model, asked in (
        (timm_model(), dict(global_pool="avg")),  # given
        (timm_model(num_classes=0), {}),  # no head
        (timm_model(global_pool="avg"), {}),  # its fc_norm says so
        (timm_model(class_token=False, global_pool="avg"), {}),  # no choice
    ):
        notes = load_model(model.state_dict(), num_heads=4, **asked).origin.report.notes
        assert not any(guess in note for note in notes)


def test_the_eps_of_transformers_models_in_memory_is_a_guess_and_can_be_given():
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, image_size=16,
                       patch_size=4, layer_norm_eps=1e-3)  # fmt: skip
    theirs = ViTModel(config).eval()
    notes = load_model(theirs.state_dict(), num_heads=4).origin.report.notes
    assert any("nothing says the eps of its norms; taken as 1e-12" in note for note in notes)
    ours = load_model(theirs.state_dict(), num_heads=4, norm_eps=1e-3)
    images = torch.randn(2, 3, 16, 16)
    torch.testing.assert_close(ours(images), theirs(images).last_hidden_state, rtol=0, atol=1e-5)
    assert not any("eps" in note for note in ours.origin.report.notes)


# --- what stands beside the network ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "name",
    [
        "n_averaged", "model_ema.n_averaged", "opt.state.0.exp_avg", "optimizer.state.0.exp_avg", "rng_state", "rng.cpu",
        "cuda_rng_state.0", "cuda_rng_state_all.0", "torch_rng_states", "random_states.0", "optimizers.0.state.1", "scaler.x",
        "head.0.weight", "head.mlp.0.weight", "dino_head.last_layer.weight_v", "predictor.0.weight",
    ],
)  # fmt: skip
def test_states_of_the_training_are_known_beside_the_network(name):
    state = under("model.", timm_model(num_classes=0).state_dict())
    report = load_model(state | {name: torch.ones(2)}, num_heads=4).origin.report
    assert list(report.dropped) == [name]
    assert report.dropped[name] != "allowed"


@pytest.mark.parametrize("name", ["head.weight", "fc.weight", "queue", "model2.bias"])
def test_what_is_not_known_beside_the_network_is_unexpected(name):
    state = under("backbone.", timm_model(num_classes=0).state_dict())
    assert f"unexpected: {name}" in refused(state | {name: torch.ones(2)}, num_heads=4)


@pytest.mark.parametrize("wrapper", ["_orig_mod", "_fsdp_wrapped_module", "_checkpoint_wrapped_module"])
def test_wrappers_within_names(wrapper):
    """torch puts them in front of any module that it compiles, shards or recomputes."""
    theirs = timm_model()
    state = {
        name.replace("blocks.1.", f"blocks.1.{wrapper}.").replace("attn.", f"attn.{wrapper}."): value
        for name, value in theirs.state_dict().items()
    }
    assert any(f".{wrapper}." in name for name in state)
    ours = load_model(under(f"module.{wrapper}.", state), num_heads=4)
    images = torch.randn(1, 3, 16, 16)
    torch.testing.assert_close(ours.forward_head(ours(images)), theirs(images), rtol=0, atol=1e-5)
    double = theirs.state_dict() | {f"{wrapper}.norm.bias": torch.ones(32)}
    assert "differ in what torch.compile or FSDP add" in refused(double, num_heads=4)


def test_first_which_copy_then_its_format():
    """A student may hold what its teacher does not (a mask token), an average may be of the encoder alone."""
    student, teacher = timm_model(num_classes=0).state_dict(), timm_model(num_classes=0).state_dict()
    file = under("student.", student | {"mask_token": torch.zeros(1, 32)}) | under("teacher.", teacher)
    assert torch.equal(load_model(file, num_heads=4).norm.weight, teacher["norm.weight"])
    assert torch.equal(load_model(file, num_heads=4, branch="student").norm.weight, student["norm.weight"])

    whole = build_autoencoder(ViTConfig(**SIZES), DecoderConfig(dim=24, depth=1, num_heads=3), True)
    file = under("model.", whole.state_dict()) | under("model_ema.", teacher)
    ours = load_model(file, num_heads=4)
    assert isinstance(ours, VisionTransformer)
    assert torch.equal(ours.norm.weight, teacher["norm.weight"])
    assert any("branch model takes it" in why for why in ours.origin.report.dropped.values())
    whole_again = load_model(file, num_heads=4, decoder_heads=3, norm_pix_loss=True, branch="model")
    assert isinstance(whole_again, MaskedAutoencoder)
    assert torch.equal(whole_again.decoder.pred.weight, whole.decoder.pred.weight)


def test_moco_v3():
    backbone = timm_model(num_classes=0).state_dict()
    heads = {"head.0.weight": torch.ones(8, 32), "head.1.weight": torch.ones(8), "head.1.running_mean": torch.ones(8)}
    file = under("module.base_encoder.", backbone | heads)
    file |= under("module.momentum_encoder.", timm_model(num_classes=0).state_dict() | heads)
    file |= {"module.predictor.0.weight": torch.ones(8, 8)}
    ours = load_model({"state_dict": file, "epoch": 300}, num_heads=4)
    assert torch.equal(ours.norm.weight, backbone["norm.weight"])


def test_ijepa():
    theirs = timm_model(class_token=False, global_pool="avg", fc_norm=False, num_classes=0).state_dict()
    file = {
        "encoder": under("module.", timm_model(class_token=False, global_pool="avg", fc_norm=False).state_dict()),
        "predictor": {"module.predictor_embed.weight": torch.ones(3, 3)},
        "target_encoder": under("module.", theirs),
        "opt": {"state": {0: {"exp_avg": torch.ones(3)}}},
        "scaler": {"scale": torch.ones(1)},
        "epoch": 3,
    }
    ours = load_model(file, num_heads=4)
    assert torch.equal(ours.norm.weight, theirs["norm.weight"])


# --- hostile and mistaken input -----------------------------------------------------------------------------------------


def test_thousands_of_networks_are_refused_at_once():
    weight = torch.zeros(1, 1, 1, 1)
    start = time.monotonic()
    message = refused({f"a{i}.patch_embed.proj.weight": weight for i in range(8000)})
    assert "holds 8,000 networks" in message
    assert time.monotonic() - start < 20  # it once took minutes


def test_thousands_of_blocks_are_refused_before_they_are_built():
    state = timm_model().state_dict() | {f"blocks.{i}.norm1.bias": torch.zeros(32) for i in range(5000)}
    assert "5,000 blocks; at most 1,000" in refused(state, num_heads=4)


@pytest.mark.parametrize(
    ("source", "said"),
    [
        (None, "got a NoneType"),
        (nn.Linear(2, 2), "of a model, model.state_dict()), got a Linear"),
        (3, "got a int"),
        ("", "got an empty name"),
        ("timm/" + "x" * 5000, "timm has no model"),
        ("x" * 5000, "no checkpoint at"),
        ("timm/a\nb", "timm has no model"),
    ],
    ids=["none", "module", "number", "empty", "long timm", "long", "two lines"],
)
def test_what_is_no_checkpoint(source, said):
    assert said in refused(source)


@pytest.mark.parametrize(
    ("value", "said"),
    [
        (torch.ones(32).to_sparse(), "is no ordinary tensor"),
        (torch.ones(32, device="meta"), "on the device meta"),
        (torch.zeros(32, dtype=torch.uint8).view(torch.float4_e2m1fn_x2), "holds float4_e2m1fn_x2, not weights"),
        (torch.full((32,), 1e300, dtype=torch.float64), "holds 32 values that are nan or infinite"),
        (torch.ones(32, dtype=torch.complex64), "holds complex64, not weights"),
    ],
    ids=["sparse", "meta", "float4", "too large for float32", "complex"],
)
def test_tensors_in_memory_that_are_no_weights(value, said):
    assert said in refused(timm_model().state_dict() | {"norm.bias": value}, num_heads=4)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (dict(channels=10**9), "channels: 1000000000 cannot be used"),
        (dict(num_classes=10**12), "num_classes: 1000000000000 cannot be used"),
        (dict(image_size=10**6), "image_size: 1000000 cannot be used"),
        (dict(image_size=1 << 16), "the model cannot be made"),
        (dict(fc_norm=1), "fc_norm: 1 cannot be used; True or False"),
        (dict(class_token="yes"), "class_token: 'yes' cannot be used"),
        (dict(norm_pix_loss="no"), "norm_pix_loss: 'no' cannot be used"),
        (dict(branch=""), "branch: '' cannot be used"),
        (dict(norm_eps=0), "norm_eps: 0 cannot be used"),
    ],
    ids=str,
)
def test_what_cannot_be_asked(asked, said, monkeypatch):
    if asked == dict(image_size=1 << 16):  # as a machine with less memory says it

        def full(*_, **__):
            raise RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 34359738368 bytes")

        monkeypatch.setattr("vit.checkpoints.architecture.resize_positions", full)
    assert said in refused(timm_model().state_dict(), **dict(num_heads=4) | asked)


def test_messages_of_other_libraries_become_one_line():
    assert str(CheckpointError("one\n  two\x1b[2J")) == "one two\\x1b[2J"


# --- inspecting is loading without the model ----------------------------------------------------------------------------


def bad_files(folder):
    state = timm_model().state_dict()
    nan = torch.full((32,), float("nan"))
    return {
        "whole numbers": (state | {"norm.bias": torch.ones(32, dtype=torch.long)}, []),
        "nan": (state | {"norm.bias": nan}, []),
        "nan, allowed": (state | {"norm.bias": nan}, ["--allow", "norm.bias"]),
        "nan beside": (under("model.", state) | {"opt.state": nan}, []),
        "float64": (state | {"norm.bias": torch.full((32,), 1e300, dtype=torch.float64)}, []),
        "good": (state, []),
    }


@pytest.mark.parametrize("case", ["whole numbers", "nan", "nan, allowed", "nan beside", "float64", "good"])
def test_inspect_and_load_agree(case, tmp_path, capsys):
    state, options = bad_files(tmp_path)[case]
    torch.save(state, tmp_path / "x.pth")
    argv = ["--num-heads", "4", *options]
    inspected = main(["checkpoint", "inspect", str(tmp_path / "x.pth"), *argv])
    said = capsys.readouterr().out
    loaded = main(
        ["checkpoint", "convert", *argv, str(tmp_path / "x.pth"), "--to", "timm", "--out", str(tmp_path / "t")]
    )
    assert inspected == loaded == (0 if case in ("nan, allowed", "nan beside", "good") else 2)
    assert ("nan or infinite" in said) == (case not in ("whole numbers", "good"))


@pytest.mark.parametrize(
    ("argv", "key", "value"),
    [
        (["--class-token", "false"], "class_token", False),
        (["--global-pool", "avg"], "global_pool", "avg"),
        (["--fc-norm", "true"], "fc_norm", True),
        (["--norm-eps", "1e-5"], "norm_eps", 1e-5),
        (["--num-classes", "0", "--allow", "a", "--allow", "b"], "num_classes", 0),
    ],
    ids=str,
)
def test_all_that_can_be_asked_can_be_asked_on_the_command_line(argv, key, value, tmp_path, capsys):
    torch.save(timm_model().state_dict(), tmp_path / "x.pth")
    assert main(["checkpoint", "inspect", "--num-heads", "4", *argv, str(tmp_path / "x.pth"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["encoder"][key] == value


def test_options_of_the_command_line_are_those_of_load_model():
    import inspect as look
    from dataclasses import fields

    from vit.load_options import LoadOptions

    asked = [field.name for field in fields(LoadOptions)]
    assert sorted(asked) == sorted(set(look.signature(load_model).parameters) - {"source"})


# --- a preprocessor's settings ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("settings", "mean", "interpolation", "said"),
    [
        ({"do_normalize": False, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}, [0.0] * 3, "bilinear", None),
        ({"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 3}, [0.5] * 3, "bicubic", None),
        ({"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 0}, [0.5] * 3, "bilinear", "by 'nearest'"),
        ({"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "resample": 77}, [0.5] * 3, "bilinear", "by 'filter 77'"),
        ({"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "do_rescale": False}, [0.5] * 3, "bilinear", "from 0-255 to 0-1"),
        ({"image_mean": [0.5] * 3, "image_std": [0.5] * 3, "rescale_factor": 1 / 127.5}, [0.5] * 3, "bilinear", "from 0-255"),
    ],
    ids=["no normalising", "bicubic", "nearest", "unknown filter", "no rescaling", "another factor"],
)  # fmt: skip
def test_what_a_preprocessor_says(settings, mean, interpolation, said, tmp_path):
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, image_size=16,
                       patch_size=4)  # fmt: skip
    ViTModel(config).save_pretrained(tmp_path)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    origin = load_model(tmp_path).origin
    assert (origin.normalize.mean, origin.interpolation) == (mean, interpolation)
    notes = [note for note in origin.report.notes if said and said in note]
    assert bool(notes) == bool(said)
