"""Loading: nothing is silent, sizes change when asked, and what cannot be used is said in one line."""

import json
import subprocess
import sys
import textwrap
import warnings

import pytest
import torch
from timm.layers import resample_abs_pos_embed, resample_patch_embed
from timm.models import adapt_input_conv
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from torch import nn

from vit.checkpoints import CheckpointError, load_model, save_model
from vit.checkpoints.native import CONFIG
from vit.config import DecoderConfig, ViTConfig
from vit.data.augment import Normalization
from vit.data.images import DataError
from vit.encoder import VisionTransformer
from vit.mae import MaskedAutoencoder, build_autoencoder

SIZES = dict(image_size=(16, 16), patch_size=(4, 4), embed_dim=32, depth=2, num_heads=4)
NORMALIZE = Normalization([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def timm_state(**settings):
    sizes = dict(img_size=16, patch_size=4, embed_dim=32, depth=2, num_heads=4, num_classes=5)
    model = TimmVisionTransformer(**sizes | settings).eval()
    for name, parameter in model.named_parameters():
        nn.init.normal_(parameter, 1.0 if "norm" in name and name.endswith("weight") else 0.0, 0.2)
    return model.state_dict()


def refused(source, **asked) -> str:
    with pytest.raises(CheckpointError) as error:
        load_model(source, **asked)
    assert error.value.exit_code == 2
    assert "\n" not in str(error.value)
    return str(error.value)


# --- nothing is silent ------------------------------------------------------------------------------------------------


def test_every_key_is_used_or_listed(tmp_path):
    """The sum over the report's parts is the file, for a file with a bit of everything."""
    state = {f"backbone.{k}": v for k, v in timm_state(num_classes=0).items()} | {"head.mlp.0.weight": torch.ones(2, 2)}
    file = {"teacher": state, "student": dict(state), "optimizer": {"state": [torch.ones(3)]}, "queue": torch.ones(4)}
    torch.save(file, tmp_path / "file.pth")
    model = load_model(tmp_path / "file.pth", num_heads=4, allow=["queue"])
    report = model.origin.report
    listed = [*report.used, *(name for names, _ in report.converted.values() for name in names), *report.dropped]
    assert len(listed) == len(set(listed)) == 2 * len(state) + 2
    assert report.dropped["queue"] == "allowed"
    assert "unexpected: queue" in refused(tmp_path / "file.pth", num_heads=4)


@pytest.mark.parametrize("name", ["cls_token", "blocks.1.attn.proj.bias", "norm.weight", "head.bias"])
def test_missing_tensors_raise_unless_allowed(name):
    state = timm_state()
    del state[name]
    if name != "cls_token":  # whose absence makes another architecture
        assert f"missing: {name}; the rest of the model would stay untrained" in refused(state, num_heads=4)
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


def test_nothing_is_warned_about_when_all_is_there():
    with warnings.catch_warnings(action="error"):
        load_model(timm_state(), num_heads=4)


@pytest.mark.parametrize(
    ("name", "shape", "said"),
    [
        (
            "blocks.1.attn.qkv.weight",
            (96, 16),
            "blocks.1.attn.qkv.weight has the shape 96 x 16, where 96 x 32 is expected",
        ),
        ("blocks.1.mlp.fc1.weight", (64, 32), "blocks.1.mlp.fc1.weight has the shape 64 x 32, where 128 x 32"),
        ("blocks.0.mlp.fc1.weight", (100, 32), "has 100 rows, where 128 are expected"),
        ("patch_embed.proj.weight", (32, 48), "4 dimensions are expected"),
        ("head.weight", (5, 31), "head.weight has the shape 5 x 31, where 5 x 32"),
        ("pos_embed", (1, 20, 32), "a position table of 20 rows is of no square grid"),
        ("pos_embed", (17, 32), "3 dimensions are expected"),
        ("norm.weight", (0,), "norm.weight has the shape 0, where 32 is expected"),
    ],
)
def test_a_tensor_that_does_not_fit_is_named_with_both_shapes(name, shape, said):
    assert said in refused(timm_state() | {name: torch.zeros(shape)}, num_heads=4)


@pytest.mark.parametrize("value", [float("nan"), float("inf")])
def test_weights_that_are_not_finite_are_refused_unless_allowed(value):
    state = timm_state()
    state["blocks.1.mlp.fc1.weight"][3, 4] = value
    assert "blocks.1.mlp.fc1.weight holds 1 values that are nan or infinite" in refused(state, num_heads=4)
    load_model(state, num_heads=4, allow=["blocks.1.mlp.fc1.weight"])


def test_whole_numbers_are_no_weights():
    assert "norm.bias holds int64" in refused(
        timm_state() | {"norm.bias": torch.ones(32, dtype=torch.long)}, num_heads=4
    )


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float64])
def test_any_precision_becomes_float32(dtype):
    state = timm_state()
    model = load_model({name: value.to(dtype) for name, value in state.items()}, num_heads=4)
    assert all(torch.equal(value, state[name].to(dtype).float()) for name, value in model.state_dict().items())


def test_heads_are_guessed_by_the_width_and_that_is_said():
    model = load_model(timm_state(embed_dim=128, num_heads=2))
    assert model.config.num_heads == 2
    assert any("2 heads of the encoder are a guess (64 channels a head)" in note for note in model.origin.report.notes)
    assert "there is no config.json that says how many heads its width of 32 has; give num_heads" in refused(
        timm_state()
    )
    assert "5 heads do not divide its width of 32" in refused(timm_state(), num_heads=5)
    # with qk-norm, the size of a head is known
    assert load_model(timm_state(qk_norm=True)).config.num_heads == 4


# --- sizes -----------------------------------------------------------------------------------------------------------


def test_patches_and_positions_are_resized_by_timms_functions():
    state = timm_state()
    model = load_model(state, image_size=(24, 40), patch_size=(8, 4), num_heads=4)
    assert torch.equal(model.patch_embed.proj.weight, resample_patch_embed(state["patch_embed.proj.weight"], [8, 4]))
    assert torch.equal(model.pos_embed, resample_abs_pos_embed(state["pos_embed"], [3, 10], [4, 4]))
    said = model.origin.report.converted
    assert said["patch_embed.proj.weight"][1] == "resized from 4 x 4 pixels"
    assert said["pos_embed"][1] == "resized from a grid of 4 x 4 to 3 x 10, bicubic"
    assert model(torch.randn(2, 3, 24, 40)).shape == (2, 31, 32)


@pytest.mark.parametrize("channels", [1, 2, 4, 7])
def test_channels_are_adapted_by_timms_function(channels):
    state = timm_state()
    model = load_model(state, channels=channels, num_heads=4)
    assert torch.equal(model.patch_embed.proj.weight, adapt_input_conv(channels, state["patch_embed.proj.weight"]))
    assert model.origin.report.converted["patch_embed.proj.weight"][1] == f"3 input channels made {channels}"
    assert len(model.origin.normalize.mean) == len(model.origin.normalize.std) == channels
    images = torch.rand(2, channels, 16, 16)
    assert torch.isfinite(model(model.origin.normalize(images))).all()


def test_grey_images_give_what_they_give_as_colour():
    """Summed kernels on one channel are the kernels on three equal ones."""
    state = timm_state()
    grey = torch.randn(2, 1, 16, 16)
    tokens = load_model(state, num_heads=4)(grey.expand(-1, 3, -1, -1))
    torch.testing.assert_close(load_model(state, channels=1, num_heads=4)(grey), tokens, rtol=0, atol=1e-5)


def test_a_resized_autoencoder_keeps_its_decoder(tmp_path):
    save_model(
        tmp_path, build_autoencoder(ViTConfig(**SIZES), DecoderConfig(dim=24, depth=1, num_heads=3), True), NORMALIZE
    )
    model = load_model(tmp_path, image_size=32)
    assert isinstance(model, MaskedAutoencoder)
    assert model.decoder.pos_embed.shape == (1, 65, 24)
    assert "part encoder" in refused(tmp_path, patch_size=8)
    assert "part encoder" in refused(tmp_path, channels=1)
    assert load_model(tmp_path, patch_size=8, part="encoder").patch_embed.grid_size == (2, 2)


def test_a_new_head_is_begun_and_said():
    state = timm_state()
    with pytest.warns(UserWarning, match="untrained, 330 parameters: head.weight, head.bias"):
        model = load_model(state, num_classes=10, num_heads=4)
    assert model.head.weight.shape == (10, 32)
    assert model.origin.report.dropped["head.weight"] == "10 classes were asked for, this head has 5"
    assert torch.equal(load_model(state, num_classes=5, num_heads=4).head.weight, state["head.weight"])
    assert isinstance(load_model(state, num_classes=0, num_heads=4).head, nn.Identity)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        (dict(part="decoder"), "part: 'decoder' cannot be used"),
        (dict(image_size=0), "image_size: 0 cannot be used"),
        (dict(image_size=(16, 16, 16)), "image_size"),
        (dict(image_size=18), "patches of 4 x 4 do not divide images of 18 x 18"),
        (dict(patch_size=5), "patches of 5 x 5 do not divide images of 16 x 16; give both sizes"),
        (dict(patch_size="4"), "patch_size: '4' cannot be used"),
        (dict(channels=0), "channels: 0 cannot be used"),
        (dict(num_classes=-1), "num_classes: -1"),
        (dict(global_pool="max"), "global_pool: 'max'"),
        (dict(grid_size=(2, 7)), "pos_embed has 17 rows, which is not a grid of 2 x 7"),
        (dict(branch="student"), "no copy of the network is called 'student'; there is: the top level"),
    ],
)
def test_what_cannot_be_asked_is_refused(asked, said):
    assert said in refused(timm_state(), **dict(num_heads=4) | asked)


# --- what travels, and run folders -------------------------------------------------------------------------------------


def test_the_callers_tensors_are_copied():
    state = timm_state()
    model = load_model(state, num_heads=4)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
    assert state["norm.weight"].any()


def test_no_tensors_and_unknown_formats():
    assert "holds no tensors" in refused({})
    assert "of no format that is known here" in refused({"weight": torch.ones(3)})


def test_settings_that_contradict_the_tensors_are_refused(tmp_path):
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=32, num_hidden_layers=2, num_attention_heads=4, intermediate_size=64, image_size=16,
                       patch_size=4)  # fmt: skip
    ViTModel(config).save_pretrained(tmp_path)
    text = (tmp_path / CONFIG).read_text()
    for key, value, said in (
        ("hidden_size", 10**9, "its settings say embed_dim 1000000000, its tensors 32"),
        ("num_hidden_layers", 10**9, "its settings say depth 1000000000, its tensors 2"),
        ("num_attention_heads", 7, "7 heads do not divide"),
        ("num_attention_heads", "many", "num_heads is 'many'"),
        ("num_attention_heads", 4.0, "num_heads is 4.0"),
        ("num_hidden_layers", -1, "depth is -1"),
        ("image_size", "large", "image_size is 'large'"),
        ("image_size", [16, 16, 16], "image_size is [16, 16, 16]"),
        ("patch_size", {"a": 1}, "patch_size is {'a': 1}"),
        ("layer_norm_eps", "small", "norm_eps is 'small'"),
        ("layer_norm_eps", float("nan"), "norm_eps is nan"),
        ("id2label", ["cat"], "its settings cannot be used"),
        ("hidden_act", ["gelu"], "the activation ['gelu']"),
        ("patch_size", 8, "its settings say patch_size 8 x 8, its tensors 4 x 4"),
        ("image_size", 10**9, "pos_embed has 17 rows"),
        ("num_channels", 1, "its settings say channels 1, its tensors 3"),
    ):
        (tmp_path / CONFIG).write_text(json.dumps(json.loads(text) | {key: value}))
        assert said in refused(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"image_mean": "grey"},
        {"image_mean": [0.5, 0.5]},
        {"image_mean": [[1], [2], [3]]},
        {"image_mean": None},
        {"image_mean": 0.5},
        {"image_std": [0.5, 0.5, 0.0]},
        {"image_std": [0.5, 0.5, float("nan")]},
    ],
    ids=str,
)
def test_a_normalisation_that_is_none_is_refused(changes, tmp_path):
    from transformers import ViTConfig, ViTModel

    config = ViTConfig(hidden_size=32, num_hidden_layers=1, num_attention_heads=4, intermediate_size=64, image_size=16,
                       patch_size=4)  # fmt: skip
    ViTModel(config).save_pretrained(tmp_path)
    settings = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.5, 0.5, 0.5]} | changes
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(settings))
    assert "its settings cannot be used" in refused(tmp_path)


@pytest.mark.parametrize("interpolation", ["bicubic", "bilinear"])
def test_images_go_through_what_the_model_was_trained_with(interpolation, tmp_path):
    from PIL import Image
    from torchvision.transforms import v2

    pixels = torch.randint(0, 256, (40, 64, 3), dtype=torch.uint8)
    Image.fromarray(pixels.numpy()).save(tmp_path / "a.png")
    Image.fromarray(pixels.numpy()[:, ::-1]).save(tmp_path / "b.png")
    save_model(tmp_path / "m", VisionTransformer(ViTConfig(**SIZES)), NORMALIZE, interpolation=interpolation)
    origin = load_model(tmp_path / "m").origin
    images = origin.read_images([tmp_path / "a.png", str(tmp_path / "b.png")])
    assert (images.shape, images.dtype) == ((2, 3, 16, 16), torch.uint8)
    mode = v2.InterpolationMode[interpolation.upper()]
    theirs = v2.Compose([v2.CenterCrop(40), v2.Resize(16, interpolation=mode)])(Image.open(tmp_path / "a.png"))
    difference = (v2.functional.pil_to_tensor(theirs).int() - images[0].int()).abs()
    assert difference[..., 2:-2].max() <= 2  # at the cut, Pillow's filter still sees what lies beyond
    assert (images[1].flip(-1).int() - images[0].int()).abs().max() <= 1
    grey = load_model(tmp_path / "m", channels=1).origin.read_images([tmp_path / "a.png"])
    assert grey.shape == (1, 1, 16, 16)
    with pytest.raises(DataError, match="takes 5 channels"):
        load_model(tmp_path / "m", channels=5).origin.read_images([tmp_path / "a.png"])
    (tmp_path / "c.png").write_text("no image")
    with pytest.raises(DataError, match=r"c\.png: its content is no image"):
        origin.read_images([tmp_path / "a.png", tmp_path / "c.png"])


@pytest.mark.slow
def test_memory_peaks_below_the_file_above_the_model(tmp_path):
    """A ViT of 200 MB from a Hugging Face folder and from a pickle, where q, k and v are stacked on the way."""
    program = textwrap.dedent("""
        import sys, torch
        from pathlib import Path
        from vit.checkpoints import load_model
        def peak():
            return int(next(l for l in open("/proc/self/status") if l.startswith("VmHWM")).split()[1]) * 1024
        load_model(sys.argv[1])  # everything imported, every code path warm
        before = peak()
        model = load_model(sys.argv[2])
        own = sum(p.numel() * p.element_size() for p in model.parameters())
        print((peak() - before - own) / float(sys.argv[3]))
    """)
    if sys.platform != "linux":
        pytest.skip("/proc/self/status is Linux's")
    from transformers import ViTConfig, ViTModel

    for width, name in ((32, "small"), (1024, "large")):
        config = ViTConfig(hidden_size=width, num_hidden_layers=4, num_attention_heads=4, intermediate_size=4 * width,
                           image_size=16, patch_size=4)  # fmt: skip
        model = ViTModel(config, add_pooling_layer=False)
        model.save_pretrained(tmp_path / name)
        torch.save(model.state_dict(), tmp_path / f"{name}.pth")
    size = (tmp_path / "large.pth").stat().st_size
    assert size > 190e6
    small = torch.load(tmp_path / "small.pth", weights_only=True)
    torch.save({k: v for k, v in small.items()}, tmp_path / "small.pth")
    for warm, large in (("small", "large"),):
        done = subprocess.run(
            [sys.executable, "-c", program, tmp_path / warm, tmp_path / large, str(size)],
            capture_output=True, text=True, check=True,
        )  # fmt: skip
        assert float(done.stdout) < 1.3


def test_a_state_of_a_run_loads_with_its_settings(tmp_path):
    from vit.checkpoints.native import architecture
    from vit.config import Config, ModelConfig

    config = Config(
        model=ModelConfig(embed_dim=32, depth=2, num_heads=4, decoder_dim=24, decoder_depth=1, decoder_heads=3)
    )
    model = build_autoencoder(config.model.vit_config(), config.model.decoder_config(), True)
    state = {"step": 3, "model": model.state_dict(), "optimizer": {"state": {0: {"exp_avg": torch.ones(2)}}},
             **architecture(model), "mean": [0.5] * 3, "std": [0.5] * 3, "class_names": []}  # fmt: skip
    torch.save(state, tmp_path / "step-00000003.pt")
    loaded = load_model(tmp_path / "step-00000003.pt")
    assert isinstance(loaded, MaskedAutoencoder)
    assert loaded.encoder.config.num_heads == 4
    assert all(torch.equal(value, model.state_dict()[name]) for name, value in loaded.state_dict().items())
    assert isinstance(load_model(tmp_path / "step-00000003.pt", part="encoder"), VisionTransformer)
