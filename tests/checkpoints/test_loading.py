"""Laws of loading: every tensor is accounted for, every guess is told, every option works.

What contradicts itself is refused in one line. Oracles: timm's resizing, transformers' models.
"""

import argparse
import json
import subprocess
import sys
import textwrap
import warnings

import pytest
import torch
from safetensors.torch import load_file, save_file
from small import (
    agree,
    autoencoder,
    change,
    mae_state,
    random_model,
    refused,
    timm_folder,
    timm_model,
    timm_state,
    transformers_model,
    under,
    warned,
)
from timm.layers import resample_abs_pos_embed, resample_patch_embed
from timm.models import adapt_input_conv
from tiny import Payload, save
from torch import nn

from vit.checkpoints import load_model
from vit.cli import main

NORMAL = dict(mean=(0.5,) * 3, std=(0.5,) * 3)
SIZES = dict(img_size=32, depth=1, num_classes=3)


# --- every tensor is accounted for ----------------------------------------------------------------


def test_every_key_is_used_or_listed():
    """The sum over the report's parts is the file, for a file with a bit of everything."""
    copy = under("backbone.", timm_state(num_classes=0)) | {"head.mlp.0.weight": torch.ones(2, 2)}
    training = {"optimizer": [torch.ones(3)], "cuda_rng_state_all": [torch.ones(2)]}
    file = {"teacher": copy, "student": dict(copy), "queue": torch.ones(4), **training}
    report = load_model(file, num_heads=4, allow=["queue"]).origin.report
    converted = [name for names, _ in report.converted.values() for name in names]
    listed = [*report.used, *converted, *report.dropped]
    assert len(listed) == len(set(listed)) == 2 * len(copy) + 3
    assert report.dropped["queue"] == "allowed"


def test_missing_tensors_raise_unless_allowed():
    name = "norm.bias"
    state = timm_state()
    del state[name]
    assert f"missing: {name}" in refused(state, num_heads=4)
    with pytest.warns(UserWarning, match=rf"untrained, \d+ parameters: {name}"):
        model = load_model(state, num_heads=4, allow=[name])
    assert list(model.origin.report.missing) == [name]
    assert torch.isfinite(model.get_parameter(name)).all()


@pytest.mark.parametrize(
    ("name", "value"),
    [
        # a shape that contradicts the rest of the model
        ("pos_embed", torch.zeros(1, 17, 16)),
        # values that are no weights
        ("norm.bias", torch.ones(32, dtype=torch.long)),
        ("norm.bias", torch.full((32,), 1e300, dtype=torch.float64)),
    ],
)
def test_a_tensor_that_cannot_be_used_is_named(name, value):
    assert name in refused(timm_state() | {name: value}, num_heads=4)


# a name of ours for which the model has no place; another's, in a layer: no part of the training
@pytest.mark.parametrize("name", ["blocks.1.ls1.gamma", "blocks.1.attn.predictor.weight"])
def test_an_unknown_tensor_is_allowed_with_or_without_its_wrapping(name):
    state = under("module.", timm_state() | {name: torch.ones(32)})
    assert f"unexpected: module.{name}" in refused(state, num_heads=4)
    for allow in (name, f"module.{name}"):
        report = load_model(state, num_heads=4, allow=allow).origin.report
        assert report.dropped == {f"module.{name}": "allowed"}


# --- what settings say ----------------------------------------------------------------------------


def test_settings_cannot_make_timm_read_another_file(tmp_path):
    """timm.create_model takes the path of a checkpoint, which it unpickles."""
    torch.save({"state_dict": Payload(tmp_path / "ran")}, tmp_path / "evil.pth")
    timm_folder(tmp_path, **SIZES)
    change(tmp_path, "model_args", checkpoint_path=str(tmp_path / "evil.pth"))
    assert "which is not a setting of the architecture" in refused(tmp_path)
    assert not (tmp_path / "ran").exists()


def test_timms_names_of_classes_and_its_older_layout(tmp_path):
    timm_folder(tmp_path, **SIZES)
    change(tmp_path, label_names=["cat", "dog", "crane"])
    assert load_model(tmp_path).origin.class_names == ("cat", "dog", "crane")
    change(tmp_path, label_names=["LABEL_0", "LABEL_1", "LABEL_2"])  # made up by transformers
    assert load_model(tmp_path).origin.class_names == ()
    change(tmp_path, without="pretrained_cfg", mean=[0.1, 0.2, 0.3], std=[0.5] * 3)
    assert load_model(tmp_path).origin.normalize.mean == [0.1, 0.2, 0.3]


def test_a_head_that_only_the_settings_name_is_missing(tmp_path):
    timm_folder(tmp_path, **SIZES)
    state = load_file(tmp_path / "model.safetensors")
    del state["head.bias"], state["head.weight"]
    save_file(state, tmp_path / "model.safetensors")
    assert "missing: head.weight, head.bias" in refused(tmp_path)
    assert load_model(tmp_path, num_classes=0).config.num_classes == 0


WRITERS = {
    "ours": lambda folder: save(folder, autoencoder(layer_scale=0.1)),
    "transformers": lambda folder: transformers_model().save_pretrained(folder),
}


@pytest.mark.parametrize(
    ("writer", "section", "key", "value", "named"),
    [
        # they contradict the tensors
        ("ours", "decoder", "dim", 12, "dim"),
        ("transformers", "", "hidden_size", 10**9, "embed_dim"),
        # nothing can have these values
        ("ours", "", "encoder", [1, 2], "encoder"),
        ("ours", "", "crop_share", float("nan"), "crop_share"),
        # they may change what is computed, and nobody here knows them
        ("ours", "encoder", "rope", True, "rope: no such setting"),
        ("ours", "decoder", "rope", True, "rope: no such setting"),
        ("transformers", "", "num_attention_heads", 7, "heads"),
        # they are of another version
        ("ours", "", "format", "vit-patch-trainer/2", "vit-patch-trainer/1"),
    ],
)
def test_settings_that_cannot_be_used_are_refused(writer, section, key, value, named, tmp_path):
    WRITERS[writer](tmp_path)
    change(tmp_path, section, **{key: value})
    message = refused(tmp_path)
    assert named in message
    assert str(tmp_path) in message


def test_what_contradicts_the_settings_or_cannot_be_used_is_refused(tmp_path):
    transformers_model().save_pretrained(tmp_path)
    assert "its settings say num_heads 4, not 2" in refused(tmp_path, num_heads=2)
    (tmp_path / "preprocessor_config.json").write_text(json.dumps({"image_std": [1, 1, 0]}))
    assert "std" in refused(tmp_path)


# --- a model in memory, other versions ------------------------------------------------------------


def test_a_model_in_memory_needs_no_guess():
    timms = timm_model(num_heads=2, global_pool="avg", class_token=False, init_values=0.1)
    whole = random_model(transformers_model(num_attention_heads=2, layer_norm_eps=1e-5))
    for theirs in (timms, whole):
        with warnings.catch_warnings(action="error"):  # nothing is a guess
            agree(load_model(theirs, **NORMAL), theirs)
    assert "'relu' is not computed" in refused(transformers_model(hidden_act="relu"))


# --- every guess is told --------------------------------------------------------------------------


# the file, an option that settles what nothing in it says, and words for that
ASSUMED = {
    "heads": (timm_state, dict(num_heads=4), "1 heads of the encoder"),
    "eps": (timm_state, dict(norm_eps=1e-6), "an eps of 1e-06"),
    "input": (lambda: timm_state(init_values=0.1) | {"mask_token": torch.ones(1, 32)}, NORMAL, "mean"),
    "grid": (timm_state, dict(grid_size=(4, 4)), "a square grid of 4 x 4 patches"),
    "one head": (
        lambda: timm_state(num_heads=1, qk_norm=True), dict(num_heads=1), "one head of the encoder",
    ),
    # 24 patches, whose prefix has another row than the registers leave
    "rows": (
        lambda: timm_state(img_size=(16, 24), reg_tokens=1), dict(grid_size=(4, 6)),
        "25 of the 26 rows of its position table are 5 x 5",
    ),
    "pooling": (timm_state, dict(global_pool="token"), "its head reads the class token"),
    # an fc_norm may stand after any pooling
    "fc_norm": (lambda: timm_state(fc_norm=True), dict(global_pool="avg"), "reads the mean"),
    "no class token": (
        lambda: timm_state(class_token=False, global_pool="avg"), dict(global_pool="avg"), "reads",
    ),
    "decoder": (lambda: mae_file(), dict(decoder_heads=3), "1 heads of the decoder"),
    "targets": (lambda: mae_file(), dict(norm_pix_loss=False), "predicts pixels, not normalised"),
}  # fmt: skip


def mae_file():
    return {"model": mae_state(autoencoder()), "args": argparse.Namespace(blr=1e-3)}


@pytest.mark.parametrize("case", ASSUMED)
def test_all_that_nothing_says_is_one_warning_that_names_the_options(case):
    file, option, words = ASSUMED[case]
    state = file()
    before = warned(state)
    assert before.count("the state dict: ") == before.count("assumed") == 1
    assert words in before
    assert f"({next(iter(option))}" in before
    assert words not in warned(state, **option)
    report = load_model(state).origin.report
    assert any(words in line for line in str(report).splitlines() if line.startswith("assumed: "))


@pytest.mark.parametrize(("kind", "place", "scale"), [("memory", "", 1), ("file", "net", 255)])
def test_buffers_of_a_mean_and_a_deviation_are_those_of_the_input(kind, place, scale):
    theirs = nn.ModuleDict({"net": timm_model()})
    theirs["net"].pretrained_cfg = NORMAL
    for name, values in {"mean": [0.1, 0.2, 0.3], "std": [0.4, 0.5, 0.6]}.items():
        buffer = torch.tensor(values).view(3, 1, 1) * scale
        theirs.get_submodule(place).register_buffer(name, buffer)
    source = theirs if kind == "memory" else theirs.state_dict()
    if kind == "file":  # another pair is of what stands farther away, or of a loss
        source |= {"loss.mean": torch.zeros(3), "loss.std": torch.ones(3)}
    assert "mean 0.1, 0.2, 0.3 and std 0.4, 0.5, 0.6 of its input" in warned(source)
    origin = load_model(source).origin
    torch.testing.assert_close(origin.normalize.mean, [0.1, 0.2, 0.3])
    assert list(origin.report.dropped.values()).count("how its input is normalised") == 2
    assert load_model(source, **NORMAL).origin.normalize.mean == [0.5] * 3


# --- which network in a file, and what stands beside it -------------------------------------------


def test_first_which_copy_then_its_format():
    """An average may be of the encoder alone."""
    teacher = timm_state(num_classes=0)
    whole = autoencoder()
    file = under("model.", whole.state_dict()) | under("model_ema.", teacher)
    ours = load_model(file, num_heads=4)
    assert torch.equal(ours.norm.weight, teacher["norm.weight"])
    again = load_model(file, num_heads=4, decoder_heads=3, norm_pix_loss=True, branch="model")
    assert torch.equal(again.decoder.pred.weight, whole.decoder.pred.weight)


@pytest.mark.parametrize(
    "source", [None, nn.Linear(2, 2), "", {}, {"weight": torch.ones(3)}], ids=str
)
def test_what_holds_no_vision_transformer_is_refused(source):
    refused(source)


# --- every option does what it says ---------------------------------------------------------------


def test_patches_and_positions_are_resized_by_timms_functions():
    state = timm_state(reg_tokens=2)
    model = load_model(state, image_size=(24, 40), patch_size=(8, 4), num_heads=4)
    kernels = resample_patch_embed(state["patch_embed.proj.weight"], [8, 4])
    assert torch.equal(model.patch_embed.proj.weight, kernels)
    expected = resample_abs_pos_embed(state["pos_embed"], [3, 10], [4, 4], num_prefix_tokens=3)
    assert torch.equal(model.pos_embed, expected)
    assert model(torch.randn(2, 3, 24, 40)).shape == (2, 33, 32)


@pytest.mark.parametrize("channels", [1, 4])
def test_channels_are_adapted_by_timms_function(channels):
    state = timm_state()
    model = load_model(state, channels=channels, num_heads=4)
    expected = adapt_input_conv(channels, state["patch_embed.proj.weight"])
    assert torch.equal(model.patch_embed.proj.weight, expected)
    images = torch.rand(2, channels, 16, 16)
    assert torch.isfinite(model(model.origin.normalize(images))).all()


def test_a_resized_autoencoder_keeps_its_decoder(tmp_path):
    save(tmp_path, autoencoder())
    model = load_model(tmp_path, image_size=32)
    assert model.decoder.pos_embed.shape == (1, 65, 24)
    assert "decoder.pred." in refused(tmp_path, patch_size=8)
    assert load_model(tmp_path, patch_size=8, part="encoder").patch_embed.grid_size == (2, 2)


def test_a_new_head_is_untrained_and_told():
    state = timm_state()
    with pytest.warns(UserWarning, match="untrained, 330 parameters: head.weight, head.bias"):
        model = load_model(state, num_classes=10, num_heads=4)
    assert model.head.weight.shape == (10, 32)

    # float32 on the CPU, whatever the caller's defaults are
    default = torch.get_default_dtype()
    torch.set_default_dtype(torch.float64)
    try:
        with torch.device("meta"), pytest.warns(UserWarning, match="untrained"):
            model = load_model(state, num_classes=10, num_heads=4)
    finally:
        torch.set_default_dtype(default)
    kinds = {(str(weight.device), weight.dtype) for weight in model.parameters()}
    assert kinds == {("cpu", torch.float32)}

    # the same number keeps the head, 0 leaves it out
    same = load_model(state, num_classes=5, num_heads=4)
    assert torch.equal(same.head.weight, state["head.weight"])
    assert isinstance(load_model(state, num_classes=0, num_heads=4).head, nn.Identity)


@pytest.mark.parametrize(("name", "code"), [("model.norm.bias", 2), ("opt.state", 0)])
def test_inspect_and_load_agree_on_what_is_not_finite(name, code, tmp_path):
    state = under("model.", timm_state()) | {name: torch.full((32,), float("nan"))}
    torch.save(state, tmp_path / "x.pth")
    argv = [str(tmp_path / "x.pth"), "--num-heads", "4"]
    assert main(["checkpoint", "inspect", *argv]) == code
    assert main(["checkpoint", "inspect", *argv, "--allow", "norm.bias"]) == 0
    argv += ["--to", "timm", "--out", str(tmp_path / "timm")]
    assert main(["checkpoint", "convert", *argv]) == code


# --- what travels, and at what cost ---------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="/proc/self/status is Linux's")
def test_memory_peaks_below_the_file(tmp_path):
    """Above the model itself, for a Hugging Face folder, whose q, k and v are stacked.

    Reading alone takes no more.
    """
    program = textwrap.dedent("""
        import sys
        from pathlib import Path
        from vit.checkpoints import load_model
        from vit.checkpoints.reading import read_checkpoint
        def memory(kind):
            for line in open("/proc/self/status"):
                if line.startswith(kind):
                    return int(line.split()[1]) * 1024
        place = Path(sys.argv[1])
        load_model(place / "small")  # everything imported, every code path warm
        for name in ("zip", "safetensors"):
            read_checkpoint(place / f"small.{name}")
        before = memory("VmHWM")
        for name in ("zip", "safetensors"):
            tensors = read_checkpoint(place / f"large.{name}").tensors
            total = sum(float(t.sum()) for t in tensors.values())
            del tensors
        print((memory("VmHWM") - before) / (place / "large.zip").stat().st_size)
        before = memory("VmRSS")
        model = load_model(place / "large")
        size = sum(p.numel() * p.element_size() for p in model.parameters())
        file = place / "large" / "model.safetensors"
        print((memory("VmHWM") - before - size) / file.stat().st_size)
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
