"""Law: what a file says of the code that made it is read; what only its form suggests is a warning.

Oracles: timm's transformer with the heads of that code, and what those files hold beside the weights.
"""

import argparse

import pytest
import torch
from small import agree, random_model, under, warned
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

from vit.checkpoints import load_model
from vit.patches import sincos_positions


def theirs(width: int, heads: int, **settings: object) -> VisionTransformer:
    sizes = dict(img_size=16, patch_size=8, depth=1, embed_dim=width, num_heads=heads)
    return random_model(VisionTransformer(**sizes | dict(num_classes=0) | settings))


def moco(state: dict[str, Tensor], arch: str) -> dict:
    heads = {"head.0.weight": torch.ones(8, 8), "head.1.running_mean": torch.ones(8)}
    state = state | heads  # which are no classifier
    file = under("module.base_encoder.", state) | under("module.momentum_encoder.", state)
    return {"arch": arch, "state_dict": file | {"module.predictor.0.weight": torch.ones(8, 8)}}


def dino(state: dict[str, Tensor], **args: object) -> dict:
    head = {"module.head.mlp.0.weight": torch.ones(2, 2), "module.head.last_layer.weight_v": head_v}
    file = under("module.backbone.", state) | head
    return {"teacher": file, "args": argparse.Namespace(norm_last_layer=True, **args)}


head_v = torch.ones(4, 2)


def jepa(state: dict[str, Tensor], **others: object) -> dict:
    context = {name: torch.zeros_like(value) for name, value in state.items()}
    file = {"encoder": under("module.", context), "target_encoder": under("module.", state)}
    return file | others


PREDICTOR = {"module.predictor_blocks.0.norm1.bias": torch.ones(8)}

# the heads of a width in the code, and the file as it writes it
SAYS_ITS_CODE = {
    "MoCo v3, small": (384, 12, lambda state: moco(state, "vit_small")),
    "DINO, without its options": (384, 6, dino),
    "DINO, small": (384, 6, lambda state: dino(state, arch="vit_small")),
    "MSN": (384, 6, lambda state: jepa(state, prototypes=torch.ones(8, 4))),
    "I-JEPA": (192, 3, lambda state: jepa(state, predictor=PREDICTOR)),
    "DINOv2": (384, 6, lambda state: state | {"mask_token": torch.zeros(1, 384)}),
    "MAE, fine-tuned": (
        768,
        12,
        lambda state: {
            "model": state,
            "args": argparse.Namespace(blr=1e-3, model="vit_base_patch16", input_size=16),
        },
    ),
}


# of these, no name of an architecture tells the heads
BY_ITS_FORM = ("DINO, without its options", "MSN", "I-JEPA", "DINOv2")


@torch.no_grad()
@pytest.mark.parametrize("case", SAYS_ITS_CODE)
def test_heads_of_a_file_are_those_of_its_code_and_known_by_an_architectures_name(case, tmp_path):
    width, heads, file = SAYS_ITS_CODE[case]
    settings: dict[str, object] = {}
    if case == "DINOv2":
        settings["init_values"] = 0.1
    if case == "I-JEPA":
        settings |= dict(class_token=False, global_pool="avg", fc_norm=False)
    if case == "MAE, fine-tuned":
        settings |= dict(global_pool="avg", num_classes=3)
    model = theirs(width, heads, **settings)
    torch.save(file(model.state_dict()), tmp_path / "checkpoint.pth")
    with pytest.warns(UserWarning, match="assumed") as caught:
        ours = load_model(tmp_path / "checkpoint.pth")
    assert len(caught) == 1
    said = str(caught[0].message)
    assert ("num_heads" in said) == (case in BY_ITS_FORM)
    # nor does a form tell on which images it was trained
    assert "mean 0.485, 0.456, 0.406 and std 0.229, 0.224, 0.225 of its input" in said
    assert ours.config.num_heads == heads
    # 224 of 256 pixels, as the code evaluates
    is_cropped = case.startswith(("DINO,", "MAE, fine-tuned", "MoCo", "MSN"))
    larger = load_model(tmp_path / "checkpoint.pth", image_size=48).origin
    assert larger.crop_share == (0.875 if is_cropped else 1)
    agree(ours, model)


@pytest.mark.parametrize(("fixed", "heads"), [(True, 12), (False, 6)])
def test_a_classifier_on_moco_is_told_by_its_fixed_positions(fixed, heads):
    """As main_lincls.py saves it: other code writes "arch", too, whose vit_small has 6 heads."""
    model = theirs(384, heads, num_classes=3)
    if fixed:
        table = torch.cat([torch.zeros(1, 384), sincos_positions((2, 2), 384, "moco")])
        model.pos_embed.copy_(table[None])
    file = {"arch": "vit_small", "state_dict": under("module.", model.state_dict())}
    agree(load_model(file), model)
    source = "as in the code of MoCo v3" if fixed else "64 channels per head"
    assert f"{heads} heads of the encoder, {source} (num_heads)" in warned(file)


@pytest.mark.parametrize(
    "file",
    [
        lambda state: dino(state, arch="vit_small_of_mine"),
        lambda state: state | {"mask_token": torch.zeros(1, 384)},
    ],
)
def test_an_architecture_that_is_not_the_codes_is_a_guess_and_options_set_it(file):
    state = file(theirs(384, 12).state_dict())
    assert "6 heads of the encoder, 64 channels per head (num_heads)" in warned(state)
    assert load_model(state, num_heads=12).config.num_heads == 12


def test_retfounds_classifier_is_left_out_by_name():
    """Its code applies the final norm to the mean of the patches, and again in timm's head."""
    model = theirs(1024, 16, num_classes=3, global_pool="avg")
    args = argparse.Namespace(blr=1e-3, model="RETFound_mae", input_size=16)
    file = {"model": model.state_dict(), "args": args}
    with pytest.warns(UserWarning, match=r"its classifier is left out: model\.head is RETFound's"):
        ours = load_model(file)
    assert ours.config.num_classes == 0
