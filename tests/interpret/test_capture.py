"""Law: captured weights are those that a layer mixes its values by; the model is left as it was.

Oracles: the layers' own outputs, torch's need_weights, torch's fused kernel.
"""

import copy
import sys
from collections import OrderedDict
from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest
import torch
import torch.nn.functional as F
import torchvision
import transformers as hf
from small import close
from timm.layers import HybridEmbed
from timm.models.vision_transformer import VisionTransformer as TimmVisionTransformer
from timm.models.xcit import Xcit
from tiny import WIDE, autoencoder, captured, encoder, randomize, seeded
from torch import Tensor, nn
from torch.nn.functional import scaled_dot_product_attention as sdpa
from torch.optim.swa_utils import AveragedModel
from torch.overrides import _get_current_function_mode_stack

from vit.errors import AttentionError, TrainingError
from vit.interpret import (
    AttentionMaps,
    Geometry,
    attention_statistics,
    geometry_of,
    head_ablation,
    in_grid_order,
)
from vit.masking import make_mask

TIMM = dict(img_size=(8, 12), patch_size=(4, 2), embed_dim=16, depth=3, num_heads=4, num_classes=2)
HF = dict(hidden_size=16, num_hidden_layers=3, num_attention_heads=4, intermediate_size=32)
OBLONG, SQUARE = dict(image_size=(8, 12), patch_size=(4, 2)), dict(image_size=16, patch_size=4)
MAE = {f"decoder_{key}": value for key, value in HF.items()}


def ours(**settings: object) -> nn.Module:
    return encoder(**WIDE | settings)


def timms(**settings: object) -> nn.Module:
    return TimmVisionTransformer(**TIMM | settings)


def theirs(kind: str, model: str = "Model", **settings: object) -> nn.Module:
    """One of transformers, by what its classes are called."""
    config = getattr(hf, f"{kind}Config")(**HF | SQUARE | settings)
    return getattr(hf, f"{kind}{model}")(config)


STEM = partial(HybridEmbed, nn.Conv2d(3, 4, 2, stride=2))
MODELS = {
    "ours": ours,
    "ours, registers": partial(ours, registers=3),
    "ours, no class token": partial(ours, class_token=False),
    "ours, qk-norm": partial(ours, qk_norm=True),
    "ours, identity": partial(ours, qkv="identity"),
    "timm": timms,
    "timm, registers": partial(timms, reg_tokens=4),
    "timm, qk-norm": partial(timms, qk_norm=True),
    "timm, no class token": partial(timms, class_token=False, global_pool="avg"),
    "timm, hybrid": partial(timms, patch_size=(2, 1), embed_layer=STEM),
    "transformers ViT": partial(theirs, "ViT", **OBLONG),
    "transformers Dinov2": partial(theirs, "Dinov2"),
    "transformers Dinov2, registers": partial(theirs, "Dinov2WithRegisters", num_register_tokens=2),
    "transformers DeiT": partial(theirs, "DeiT"),
    "transformers IJepa": partial(theirs, "IJepa"),
    "transformers CLIP": partial(theirs, "CLIPVision"),
    "transformers SigLIP": partial(theirs, "SiglipVision", vision_use_head=False),
    "transformers ViTMAE": partial(theirs, "ViTMAE", "ForPreTraining", **MAE),
}


def model_named(name: str) -> nn.Module:
    torch.manual_seed(0)
    model = MODELS[name]()
    for key, parameter in model.named_parameters():
        if any(part in key for part in ("attn", "attention", "embed")):
            nn.init.normal_(parameter, std=0.4)  # far from uniform attention
    return model.eval()


def images_for(model: nn.Module, batch: int = 2) -> Tensor:
    torch.manual_seed(1)
    square = getattr(getattr(model, "config", None), "image_size", None) == 16
    return torch.randn(batch, 3, 16, 16) if square else torch.randn(batch, 3, 8, 12)


def run(model: nn.Module, images: Tensor) -> object:
    if isinstance(model, hf.ViTMAEForPreTraining):
        torch.manual_seed(2)
        return model(images, noise=torch.rand(len(images), 16)).logits
    result = model(images)
    return getattr(result, "last_hidden_state", result)


@torch.no_grad()
def maps_of(model: nn.Module, images: Tensor) -> list[Tensor]:
    with AttentionMaps(model) as maps:
        run(model, images)
    return [maps.weights[layer] for layer in maps.layers]


def by_hand(module: nn.Module, weights: Tensor, x: Tensor) -> Tensor:
    """An attention layer's output from its input, the captured weights, and its own W_V and W_O."""
    if hasattr(module, "v_proj"):
        values = module.v_proj(x)
    elif module.qkv is None:
        values = x
    else:
        values = module.qkv(x).chunk(3, dim=-1)[2]
    heads = weights.shape[1]
    values = values.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, h, N, d)
    mixed = (weights @ values).transpose(1, 2).flatten(2)
    name = next(name for name in ("o_proj", "out_proj", "proj") if hasattr(module, name))
    return module.get_submodule(name)(mixed)


def state_of(model: nn.Module) -> object:
    """All that looking into a model could leave behind, in it and in torch."""
    names = ("training", "kernel", "fused_attn", "_forward_hooks", "_forward_pre_hooks")
    parts = {}
    for key, part in model.named_modules():
        attributes = copy.copy(vars(part))
        implementation = getattr(getattr(part, "config", None), "_attn_implementation", None)
        values = [copy.copy(attributes.get(name)) for name in names]
        parts[key] = (attributes.keys(), values, implementation)
    fastpath = torch.backends.mha.get_fastpath_enabled()
    return parts, F.scaled_dot_product_attention, fastpath, _get_current_function_mode_stack()


UNFUSED = ("ours", "timm", "transformers ViT")  # of all, one of each kind


@torch.no_grad()
@pytest.mark.parametrize(
    ("name", "fused"), [*((name, True) for name in MODELS), *((name, False) for name in UNFUSED)]
)
def test_weights_reproduce_every_layers_output_and_the_model_is_left_as_it_was(name, fused):
    model = model_named(name)
    for module in model.modules():
        if isinstance(getattr(module, "fused_attn", None), bool):
            module.fused_attn = fused
        if hasattr(module, "kernel"):
            module.kernel = "flash" if fused else "math"
    if hasattr(model, "set_attn_implementation"):
        model.set_attn_implementation("sdpa" if fused else "eager")
    maps = AttentionMaps(model)
    assert len(maps.names) == (6 if "ViTMAE" in name else 3)
    passed = {}  # layer -> its input and its output

    def keep(module, inputs, kwargs, output):
        tokens = inputs[0] if inputs else kwargs["hidden_states"]
        mixed = output[0] if isinstance(output, tuple) else output
        passed[module] = (tokens, mixed)

    for layer in maps.names:
        model.get_submodule(layer).register_forward_hook(keep, with_kwargs=True)
    images = images_for(model)
    output, before = run(model, images), state_of(model)
    with maps:
        run(model, images)
    assert state_of(model) == before
    for number, layer in enumerate(maps.names):
        weights = maps.weights[number]
        tokens, mixed = passed[model.get_submodule(layer)]
        close(weights.sum(-1), torch.ones(weights.shape[:-1]))
        assert weights.var(-1).max() > 1e-5
        close(by_hand(model.get_submodule(layer), weights, tokens), mixed)
    with pytest.raises(KeyError, match="something else"), AttentionMaps(model):  # noqa: PT012
        run(model, images)
        raise KeyError("something else")
    assert state_of(model) == before
    assert torch.equal(run(model, images), output)


@torch.no_grad()
def test_torchvisions_attention_is_captured_too():
    sizes = dict(image_size=8, patch_size=4, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=8)
    model, images = torchvision.models.VisionTransformer(**sizes).eval(), torch.randn(2, 3, 8, 8)
    expected = model(images)
    with AttentionMaps(model) as maps:
        close(model(images), expected)
    first, second = model.encoder.layers
    x = torch.cat([model.class_token.expand(2, -1, -1), model._process_input(images)], dim=1)
    x = second.ln_1(first(model.encoder.dropout(x + model.encoder.pos_embedding)))
    _, weights = second.self_attention(x, x, x, need_weights=True, average_attn_weights=False)
    close(maps.weights[1], weights)


def test_fewer_maps_than_layers_raise():
    model = model_named("ours")
    maps = AttentionMaps(model)
    with maps:
        model(images_for(model))
    with pytest.raises(AttentionError, match="3 of 3 attention layers gave no maps"), maps:
        pass
    assert not maps.weights


@pytest.mark.slow
def test_a_compiled_model_has_the_same_maps():
    model = randomize(ours(depth=1)).eval()
    images = images_for(model)
    (expected,) = maps_of(model, images)
    whole, part, old, wrapped = (copy.deepcopy(model) for _ in range(4))
    whole.compile(backend="eager")
    old.compile(backend="eager")
    old(images)
    part.blocks[0].attn.forward = torch.compile(part.blocks[0].attn.forward, backend="eager")
    for compiled in (whole, part, old, torch.compile(wrapped, backend="eager")):
        for _ in range(2):
            (weights,) = maps_of(compiled, images)
            close(weights, expected)


# --- Where the call stands -----------------------------------------------------------------------


class Mixer(nn.Module):
    """A layer of one's own that calls the fused kernel by a name of its own, without an axis of heads."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(8, 24)

    def forward(self, x: Tensor) -> Tensor:
        return sdpa(*self.qkv(x).chunk(3, dim=-1))


class AttentionNorm(nn.LayerNorm):
    """Called attention, but none."""


class Normed(Mixer):
    """What attends holds what is called attention."""

    def __init__(self):
        super().__init__()
        self.norm = AttentionNorm(8)

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(self.norm(x))


class AttentionNet(nn.Sequential):
    """The name of the whole says nothing of its layers."""


@torch.no_grad()
@pytest.mark.parametrize("kind", [Mixer, Normed])
@pytest.mark.parametrize("chosen", [None, [-2], [0, -1]])
def test_a_layer_is_where_the_call_happens(kind, chosen):
    model, x = AttentionNet(*(kind() for _ in range(3))), torch.randn(3, 5, 8)
    inputs = [x, model[0](x), model[:2](x)]
    expected, consumed = model(x), {}
    with AttentionMaps(model, chosen) as maps:
        close(model(x), expected, 1e-6)
    with AttentionMaps(model, chosen, consume=consumed.__setitem__) as handed_out:
        model(x)
    assert not handed_out.weights
    wanted = sorted({number % 3 for number in (range(3) if chosen is None else chosen)})
    assert list(maps.weights) == maps.layers == wanted
    assert maps.steps == [[number] for number in wanted]
    for number in wanted:
        layer, given = model[number], inputs[number]
        q, k, _ = layer.qkv(layer.norm(given) if kind is Normed else given).chunk(3, dim=-1)
        weights = (q @ k.mT / q.shape[-1] ** 0.5).softmax(-1)
        close(maps.weights[number], weights[:, None], 1e-6)
        assert torch.equal(consumed[number], maps.weights[number])


class Backwards(nn.Sequential):
    def forward(self, x: Tensor) -> Tensor:
        for part in reversed(self):
            x = part(x)
        return x


@torch.no_grad()
def test_steps_are_in_the_order_of_the_pass():
    model = Backwards(Mixer(), Mixer())
    assert captured(model, torch.randn(3, 5, 8)).steps == [[1], [0]]


def test_a_measure_belongs_to_its_layer_though_numbers_change_as_others_are_found():
    model = Backwards(Mixer(), Mixer())
    images = torch.randn(3, 4, 8)
    measured = attention_statistics(model, [images], geometry=Geometry((2, 2), (1, 1), 0, False))
    assert (measured.images, measured.layers.tolist()) == (3, [0, 1])
    assert head_ablation(model, lambda: model(images).square().mean()).isfinite().all()


def test_what_has_no_attention_or_an_unknown_layout_is_refused():
    nothing = nn.Sequential(nn.Conv2d(3, 4, 1))
    refusal = pytest.raises(AttentionError, match="Sequential has no attention layers")
    with refusal, AttentionMaps(nothing):
        nothing(torch.randn(1, 3, 4, 4))
    model = model_named("transformers DeiT")
    model.config.model_type = "something new"
    with pytest.raises(AttentionError, match="pass geometry=Geometry"):
        geometry_of(model)
    with pytest.raises(AttentionError, match="shuffles its patches"):
        geometry_of(model_named("transformers ViTMAE"))


@torch.no_grad()
def test_unknown_attention_is_not_left_out_unless_layers_are_chosen():
    """XCiT attends from channel to channel, and ends in a layer whose only query is the class token."""
    model = Xcit(img_size=16, patch_size=8, embed_dim=16, depth=1, num_heads=4).eval()
    images = torch.randn(2, 3, 16, 16)
    refusal = pytest.raises(AttentionError, match=r"1 of 3 .* gave no maps: blocks\.0\.attn; ")
    with refusal, AttentionMaps(model):
        model(images)
    geometry = Geometry((2, 2), (8, 8), 1, True)
    with AttentionMaps(model, layers=[-1], geometry=geometry) as maps:
        model(images)
    assert maps.layer_weights(-1).shape == (2, 4, 1, 5)
    with pytest.raises(AttentionError, match="1 queries and 5 keys"):
        maps.to_grid(-1, (1, 1))


# --- Layouts of tokens ---------------------------------------------------------------------------


# Where it is not one, the class token
# Those of transformers that are not among MODELS, before "VisionModel"; and torchvision's
OTHER_LAYOUTS = (
    "torchvision Yolos ChineseCLIP AltCLIP CLIPSeg MetaClip2 OwlViT Owlv2 Blip2 InstructBlip Git "
    "MLCD InternVL Janus"
)


def model_of_layout(name: str) -> nn.Module:
    if name == "torchvision":
        return torchvision.models.VisionTransformer(16, 4, 2, 4, 16, 32).eval()
    if name == "Yolos":
        return theirs(name, image_size=[16, 16]).eval()
    return theirs(f"{name}Vision").eval()


@torch.no_grad()
@pytest.mark.parametrize("name", OTHER_LAYOUTS.split())
def test_grids_of_other_models_lie_where_a_change_of_one_patch_is_seen(name):
    """Without position and class embeddings, equal patches have equal weights, but for one."""
    model = model_of_layout(name)
    for key, parameter in model.named_parameters():
        if "pos" in key or "rot" in key:
            nn.init.zeros_(parameter)
        elif parameter.ndim > 1:
            nn.init.normal_(parameter, std=0.3)  # far from uniform attention
    images = torch.ones(1, 3, 16, 16)
    images[:, :, 4:8, 8:12] = torch.randn(3, 4, 4)
    with AttentionMaps(model, layers=[0]) as maps:
        model(images)
    grid, mass = maps.to_grid(0, (2, 3))
    close(grid.sum((2, 3)) + mass, torch.ones(1, 4))
    others = grid.flatten(2)[..., [i for i in range(16) if i != 6]]
    # MLCD turns queries and keys by their positions
    if name != "MLCD":
        close(others, others[..., :1].expand_as(others), 1e-6)
    assert ((grid[0, :, 1, 2] - others[0, :, 0]).abs() > 1e-4).any()


@torch.no_grad()
@pytest.mark.parametrize("name", ["ours, registers", "ours, no class token"])
def test_grids_and_the_mass_beside_them(name):
    model = model_named(name)
    maps = captured(model, images_for(model))
    prefix = maps.geometry.num_prefix_tokens
    weights = maps.weights[1]
    grid, mass = maps.to_grid(1, query=(1, 4))
    assert torch.equal(grid.flatten(2), weights[:, :, prefix + 10, prefix:])
    close(grid.sum((2, 3)) + mass, torch.ones(2, 4))
    mean, _ = maps.to_grid(1, query="mean")
    expected = weights[:, :, prefix:, prefix:].mean(2)
    close(mean.flatten(2), expected, 1e-6)
    # of half a row would be a patch of another
    absent = [(2, 0), (0.5, 0), "register 9", "register x"]
    if prefix:
        for token, query in enumerate(("cls", "register 0")):
            assert torch.equal(maps.to_grid(1, query)[0].flatten(2), weights[:, :, token, prefix:])
    else:
        absent.append("cls")
    for query in absent:
        with pytest.raises((AttentionError, TypeError)):
            maps.to_grid(1, query)


@torch.no_grad()
@pytest.mark.parametrize(
    "wrap", [nn.DataParallel, lambda model: nn.Sequential(AveragedModel(model))]
)
def test_a_wrapped_models_tokens_lie_as_its_own(wrap):
    model = model_named("ours, registers")
    with AttentionMaps(wrap(model)) as maps:
        maps._model(images_for(model))
    assert maps.geometry == geometry_of(model)


# --- Masked models -------------------------------------------------------------------------------


@torch.no_grad()
def test_a_masked_encoders_maps_are_put_back_on_the_grid():
    model = autoencoder(**WIDE, registers=2).eval()
    mask = make_mask("random", 3, (2, 6), 0.5, seeded(3))
    maps = captured(model.encoder, images_for(model, 3), mask, run=model)
    grid, mass = maps.to_grid(1, "cls", mask=mask)
    assert torch.equal(grid.isnan()[:, 0].flatten(1), mask.mask.bool())
    total = grid.nan_to_num().sum((2, 3)) + mass
    close(total, torch.ones(3, 4))
    prefix, weights = 3, maps.weights[1]
    in_order = in_grid_order(weights, mask, prefix)
    # A query patch stands at its own place in each image's order
    seen = [divmod(int(kept[2]), 6) for kept in mask.ids_keep]
    asked, _ = maps.to_grid(1, seen, mask=mask)
    for image, kept in enumerate(mask.ids_keep):
        assert torch.equal(grid[image, 1].flatten()[kept], weights[image, 1, 0, prefix:])
        assert torch.equal(asked[image, 3].flatten()[kept], weights[image, 3, prefix + 2, prefix:])
        order = [*range(prefix), *(prefix + kept.argsort()).tolist()]
        assert torch.equal(in_order[image], weights[image][:, order][:, :, order])
    masked = int(mask.mask[0].nonzero()[0])
    with pytest.raises(AttentionError, match="is masked in image 0"):
        maps.to_grid(1, divmod(masked, 6), mask=mask)
    with pytest.raises(AttentionError, match="give it as mask="):
        maps.to_grid(1, "cls")


# --- Maps that would be wrong, and nobody would notice -------------------------------------------


def test_a_layer_that_attends_more_than_once_in_a_pass_has_no_one_map():
    block = ours().blocks[0]
    twice = nn.Sequential(OrderedDict(block=block, again=block))
    with pytest.raises(AttentionError, match="attends more than once"), AttentionMaps(twice):
        twice(torch.randn(2, 5, 16))


@torch.no_grad()
def test_several_passes_and_parts_run_by_themselves_are_no_repetition():
    model, images, tokens = model_named("ours"), torch.randn(2, 3, 8, 12), torch.randn(2, 13, 16)
    with AttentionMaps(model) as maps:
        for _ in range(2):
            model(images)
        for _ in range(2):
            model.blocks(tokens)
    with AttentionMaps(model.blocks) as again:
        model.blocks(tokens)
    assert all(torch.equal(maps.weights[layer], again.weights[layer]) for layer in range(3))


@torch.no_grad()
def test_of_two_blocks_in_one_model_the_outer_says_so():
    model, mask = autoencoder().eval(), make_mask("random", 2, (4, 4), 0.5, seeded())
    images = torch.randn(2, 3, 16, 16)
    with AttentionMaps(model.encoder) as outer, AttentionMaps(model.decoder) as inner:
        model(images, mask)
    twice = pytest.raises(AttentionError, match="3 of 3 attention layers gave no maps")
    with twice, AttentionMaps(model), AttentionMaps(model) as whole:
        model(images, mask)
    parts = [*outer.weights.values(), *inner.weights.values()]
    assert all(map(torch.equal, parts, whole.weights.values()))


# What reaches the kernel besides queries, keys and values; how many of 25 weights are then 0
LAST = torch.tensor([4])
NEIGHBOURS = torch.eye(5).roll(1, 0).bool() | torch.eye(5).bool()
ADDED = torch.linspace(-3, 3, 25).view(5, 5).index_fill(0, LAST, float("-inf"))
KERNEL_OPTIONS = {
    "no key, allowed": (dict(attn_mask=NEIGHBOURS.index_fill(0, LAST, False)), 17),
    "no key, added": (dict(attn_mask=ADDED), 5),
    "causal": (dict(is_causal=True), 10),
    "dropout": (dict(dropout_p=0.5), None),
}


class Kernel(nn.MultiheadAttention):
    """The fused kernel alone, with options."""

    def __init__(self, **options: object):
        super().__init__(8, 2)
        self.options = options

    def forward(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, **self.options)


@pytest.mark.parametrize("kind", KERNEL_OPTIONS)
def test_masks_and_dropout_of_attention_are_in_the_weights(kind):
    """Compared with the kernel's own output and gradient."""
    options, zeros = KERNEL_OPTIONS[kind]
    layer, x = Kernel(**options), torch.randn(3, 2, 5, 8, requires_grad=True)
    expected = layer(x, x, x)
    with AttentionMaps(layer, gradients=True) as maps:
        mixed = layer(x, x, x)
    weights = maps.weights[0]
    close(weights @ x, mixed)
    if kind == "dropout":  # which draw it is is torch's own affair
        assert ((weights == 0).float().mean() - 0.5).abs() < 0.2
        assert not torch.allclose(weights.sum(-1), torch.ones(3, 2, 5))
    else:
        close(mixed, expected)
        assert int((weights[0, 0] == 0).sum()) == zeros
    if kind.startswith("no key"):  # a query without a key has no gradient either
        ours, theirs = (torch.autograd.grad(y.square().sum(), x)[0] for y in (mixed, expected))
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-5)


def test_heads_that_share_keys_have_maps_of_their_own():
    layer = Kernel(enable_gqa=True)
    q, k, v = torch.randn(3, 4, 5, 8), torch.randn(3, 2, 7, 8), torch.randn(3, 2, 7, 8)
    expected = layer(q, k, v)
    with AttentionMaps(layer) as maps:
        close(layer(q, k, v), expected)
    assert maps.weights[0].shape == (3, 4, 5, 7)


# How torch's own layer may be made, and called
CAUSAL = torch.full((5, 5), float("-inf")).triu(1)
PADDED = torch.tensor([[0.0] * 3 + [float("-inf")] * 2, [0.0] * 5])
CALLS = {
    "mean": ({}, {}),
    "each head, with a key of its own": (dict(add_bias_kv=True), dict(average_attn_weights=False)),
    "causal, none": ({}, dict(attn_mask=CAUSAL, is_causal=True, need_weights=False)),
    "padded and causal": ({}, dict(key_padding_mask=PADDED, attn_mask=CAUSAL, is_causal=True)),
    "with a key of zeros": (dict(add_zero_attn=True), dict(attn_mask=CAUSAL)),
}


@torch.no_grad()
@pytest.mark.parametrize("call", CALLS)
def test_torchs_own_layer_returns_within_the_block_what_it_returns_outside(call):
    """The oracle of the maps are the weights that torch's layer computes itself."""
    made, options = CALLS[call]
    layer = nn.MultiheadAttention(8, 2, batch_first=True, **made).eval()
    x = torch.randn(2, 5, 8)
    expected = layer(x, x, x, **options)
    by_head = dict(need_weights=True, average_attn_weights=False)
    _, weights = layer(x, x, x, **options | by_head)
    with AttentionMaps(layer) as maps:
        result = layer(x, x, x, **options)
    close(maps.weights[0], weights, 1e-6)
    close(result, expected, 1e-6)

    # One image by itself, under another mode of torch
    if "key_padding_mask" not in options:
        expected = layer(x[0], x[0], x[0], **options)
        with torch.device("cpu"), AttentionMaps(layer) as maps, torch.device("cpu"):
            result = layer(x[0], x[0], x[0], **options)
        close(result, expected, 1e-6)
        close(maps.weights[0], weights[:1], 1e-6)


def test_maps_lie_on_the_grid_of_the_images_that_ran():
    dynamic = timms(dynamic_img_size=True).eval()
    maps = captured(dynamic, torch.randn(2, 3, 16, 20), run=dynamic.forward_features)
    assert maps.geometry.grid_size == (4, 10)
    assert maps.to_grid(-1, (3, 9)).maps.shape == (2, 4, 4, 10)


def test_layers_that_the_last_pass_skipped_keep_nothing_of_the_pass_before():
    model, mask = autoencoder(), make_mask("random", 2, (4, 4), 0.5, seeded())
    with torch.no_grad(), AttentionMaps(model) as maps:
        model(torch.randn(2, 3, 16, 16), mask)
        assert len(maps.weights) == len(maps.names)
        model(torch.randn(3, 3, 16, 16))
    assert list(maps.weights) == list(range(len(model.encoder.blocks)))


def test_attention_that_is_nan_raises():
    model = autoencoder().encoder
    with torch.no_grad():
        model.patch_embed.proj.weight.mul_(1e30)
        with (
            pytest.raises(TrainingError, match="its attention weights are nan"),
            AttentionMaps(model),
        ):
            model(torch.randn(2, 3, 16, 16))


# --- Threads and other blocks at the same time ---------------------------------------------------


@pytest.mark.parametrize("name", ["timm", "transformers ViT"])
def test_each_thread_gets_the_maps_of_its_own_passes_and_a_model_runs_as_ever(name):
    model = model_named(name)
    if name != "timm":
        model.set_attn_implementation("eager")  # whose sums differ from fused attention's
    images = [images_for(model), images_for(model) + 1]
    expected = [maps_of(model, one) for one in images]
    with torch.no_grad():
        output = run(model, images[0])

    @torch.no_grad()
    def work(number: int) -> None:
        for _ in range(10):
            assert all(map(torch.equal, maps_of(model, images[number]), expected[number]))
            if number:
                assert torch.equal(run(model, images[0]), output)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        with ThreadPoolExecutor(2) as pool:
            list(pool.map(work, (0, 1)))
    finally:
        sys.setswitchinterval(interval)


@torch.no_grad()
@pytest.mark.parametrize("name", [name for name in MODELS if name.startswith("transformers")])
def test_transformers_returns_its_attention_within_the_block_as_outside(name):
    model = model_named(name)
    options = {"output_attentions": True}
    if "ViTMAE" in name:
        options["noise"] = torch.rand(2, 16)
    for implementation, count in (("eager", 3), ("sdpa", 0)):
        model.set_attn_implementation(implementation)
        outside = model(images_for(model), **options).attentions
        with AttentionMaps(model) as maps:
            inside = model(images_for(model), **options).attentions
        assert len(inside) == len(outside) == count
        for layer, weights in enumerate(inside):
            close(weights, outside[layer], 1e-6)
            assert torch.equal(weights, maps.weights[layer])


@torch.no_grad()
def test_a_signal_may_stop_a_layer():
    class Stopped(BaseException):
        """As KeyboardInterrupt: torch calls no hook after it."""

    def stop(*_: object) -> None:
        raise Stopped

    model = model_named("ours")
    hook = model.blocks[1].attn.register_forward_hook(stop)
    with AttentionMaps(model) as maps:
        with pytest.raises(Stopped):
            model(images_for(model))
        hook.remove()
        model(images_for(model))
    assert len(maps.weights) == 3
    assert not _get_current_function_mode_stack()
