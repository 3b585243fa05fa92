"""Every vision transformer of timm and transformers, with random weights: loaded right, with a warning, or refused."""

from __future__ import annotations

import contextlib
import re
import warnings
from collections import Counter
from collections.abc import Callable, Iterable
from functools import partial

import pytest
import timm
import torch
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForImageClassification
from transformers.models.auto import modeling_auto

from vit.checkpoints import load_model
from vit.errors import CheckpointError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
CLOSE = 1e-4  # of activations of order 1, by other orders of summing
WHOLE = """vision_transformer deit eva beit vision_transformer_hybrid vision_transformer_relpos vision_transformer_sam
naflexvit cait xcit volo vitamin hiera""".split()  # noqa: SIM905
"""timm's files of which all names are tried; of the others, convolutions mostly, one."""


@torch.no_grad()
def randomize(model: nn.Module) -> nn.Module:
    """Give a model weights by which everything in it changes what comes out, and activations stay of order 1."""
    torch.manual_seed(0)
    for name, parameter in model.named_parameters():
        about = 1.0 if "norm" in name and name.endswith("weight") else 0.0
        spread = parameter[0].numel() ** -0.5 if parameter.ndim in (2, 4) else 0.2
        parameter.normal_(about, spread)
    return model.eval()


@torch.no_grad()
def outcome(checkpoint: object, expected: Callable[[bool], Tensor], images: Tensor) -> str:
    """Return "right", "warned" (other, and said to be a guess), "refused", or what went wrong."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            ours = load_model(checkpoint)  # type: ignore[arg-type]
        except CheckpointError as error:
            return (
                "refused"
                if len(str(error)) <= 1010 and "\n" not in str(error)
                else f"said at length: {error}"
            )
    encoder = ours.encoder
    tokens = encoder(images)
    headed = encoder.config.num_classes > 0
    values, wanted = encoder.forward_head(tokens) if headed else tokens, expected(headed)
    if values.shape == wanted.shape and (values - wanted).abs().max() < CLOSE * max(
        1, wanted.abs().max()
    ):
        return "right"
    return "warned" if any("guess" in str(one.message) for one in said) else "other, without a word"


Make = Callable[[], nn.Module]


def structure(model: nn.Module) -> tuple:
    """What models that differ but in their sizes have in common."""
    tensors = (re.sub(r"\d+", "", name) for name in model.state_dict())
    modules = list(model.modules())
    values = {
        (key, getattr(module, key))
        for key in ("head_dim", "eps")
        for module in modules
        if hasattr(module, key)
    }
    flags = {key: value for key, value in vars(model).items() if isinstance(value, bool | str)}
    return (
        re.sub(r"\d+", "", repr(model)),
        frozenset(tensors),
        frozenset(values),
        tuple(flags.items()),
    )


def sweep(battery, models: Iterable[tuple[str, Make]], use: Callable[[nn.Module], tuple]) -> None:
    """Load models from their names and shapes alone, and where that is not refused, with weights: bare and whole.

    Of models that differ but in their sizes, the smallest is tried, or all if more tries are asked for.
    """
    chosen: dict[object, tuple[int, str, Make, nn.Module]] = {}
    for name, make in models:
        with torch.device("meta"):
            shapes = make()
        size = sum(value.numel() for value in shapes.parameters())
        kind = name if battery.more else structure(shapes)
        if kind not in chosen or size < chosen[kind][0]:
            chosen[kind] = size, name, make, shapes
    battery.tries, counts = len(chosen), Counter()
    for _, name, make, shapes in chosen.values():
        with warnings.catch_warnings(action="ignore"):
            refused = []
            for checkpoint in (shapes.state_dict(), shapes):
                try:
                    load_model(checkpoint)
                except CheckpointError as error:
                    refused.append("device meta" not in str(error))
        bare = whole = "refused"
        if not all(refused):
            model = randomize(make())
            expected, images = use(model)
            bare, whole = (
                outcome(dict(model.state_dict()), expected, images),
                outcome(model, expected, images),
            )
        counts[f"bare {bare}"] += 1
        counts[f"whole {whole}"] += 1
        if bare not in ("right", "warned", "refused") or whole not in ("right", "refused"):
            battery.failures.append(f"{name}: its weights alone: {bare}; the model: {whole}")
    battery.found = f" ({', '.join(f'{what} {count}' for what, count in sorted(counts.items()))})"


def small_timm(name: str) -> nn.Module:
    """A model of timm's, of two blocks and few patches where its code takes that."""
    patch = next(
        (
            int(word[5:])
            for word in name.split("_")
            if word.startswith("patch") and word[5:].isdigit()
        ),
        16,
    )
    for settings in (
        {"depth": 2, "img_size": 4 * patch, "weight_init": "skip"},
        {"depth": 2, "img_size": 4 * patch},
        {},
    ):
        # its code does not take them, in whatever way it says so
        with contextlib.suppress(Exception):
            return timm.create_model(name, pretrained=False, **settings)
    return timm.create_model(name, pretrained=False)


def use_timm(model: nn.Module) -> tuple:
    images = torch.randn(1, 3, *model.patch_embed.img_size)  # type: ignore[union-attr]
    return lambda headed: model(images) if headed else model.forward_features(images), images  # type: ignore[operator]


def test_all_vision_transformers_of_timm_are_right_or_warned_of_or_refused(battery):
    names = [name for module in WHOLE for name in timm.list_models(module=module)]
    homes = {
        timm.models.model_entrypoint(name).__module__.rpartition(".")[2]: name
        for name in timm.list_models()
    }
    names += [name for home, name in sorted(homes.items()) if home not in WHOLE]
    assert len(names) > 300
    sweep(battery, [(name, partial(small_timm, name)) for name in names], use_timm)


def small_transformers(kind: str, auto: type) -> nn.Module:
    """A model of transformers, of two blocks where its settings have a number of them."""
    config = AutoConfig.for_model(kind)
    for key, value in (("num_hidden_layers", 2), ("num_labels", 3), ("mask_ratio", 0.0)):
        if isinstance(getattr(config, key, None), int | float):
            setattr(config, key, value)
    return auto.from_config(config)  # type: ignore[attr-defined]


def use_transformers(model: nn.Module) -> tuple:
    size = model.config.image_size  # type: ignore[union-attr]
    images = torch.randn(1, 3, *((size, size) if isinstance(size, int) else size))

    # ViTMAE puts patches in an order of its own, which it draws unless it is given.
    order = (
        {"noise": torch.arange(10_000.0)[None, : size**2 // 16**2]}
        if model.config.model_type == "vit_mae"
        else {}
    )

    def expected(headed: bool) -> Tensor:
        return (
            model(images).logits if headed else model.base_model(images, **order).last_hidden_state
        )  # type: ignore[operator]

    return expected, images


def test_all_image_models_of_transformers_are_right_or_warned_of_or_refused(battery):
    def models():
        for auto, mapping in (
            (AutoModel, modeling_auto.MODEL_FOR_IMAGE_MAPPING_NAMES),
            (
                AutoModelForImageClassification,
                modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
            ),
        ):
            for kind in [kind for kind in mapping if kind != "depth_pro"]:  # pictures of many sizes
                try:
                    with torch.device("meta"):
                        small_transformers(kind, auto)
                # needs settings of its own, or another library, or cannot be made on meta
                except Exception:
                    left_out.append(kind)
                else:
                    yield kind, partial(small_transformers, kind, auto)

    left_out: list[str] = []
    sweep(battery, models(), use_transformers)
    battery.found += f"; not made: {', '.join(left_out) or 'none'}"
    assert battery.tries > 30
