"""Vision transformers of timm and transformers, with random weights: loaded right, with a warning, or refused."""

import contextlib
import re
import warnings
from collections import Counter
from collections.abc import Callable
from functools import partial

import pytest
import timm
import torch
from tiny import randomize
from torch import Tensor, nn
from transformers import AutoConfig, AutoModel, AutoModelForImageClassification
from transformers.models.auto import modeling_auto

from vit.checkpoints import load_model
from vit.errors import CheckpointError

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore")]
CLOSE = 1e-4  # of activations of order 1, by other orders of summing
WHOLE = """vision_transformer deit eva beit vision_transformer_hybrid vision_transformer_relpos vision_transformer_sam
naflexvit cait xcit volo vitamin hiera""".split()  # noqa: SIM905
"""timm's files of which all families are tried; of the others, convolutions mostly, one model."""
SIZES = ("tiny", "small", "nano", "medium", "base", "large", "huge", "giant", "gigantic")


@torch.no_grad()
def outcome(checkpoint: object, expected: Callable[[bool], Tensor], images: Tensor) -> str:
    """Return "right", "warned" (other, and said to be assumed), "refused" or "wrong"."""
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        try:
            encoder = load_model(checkpoint).encoder  # type: ignore[arg-type]
        except CheckpointError:
            return "refused"
    values = encoder(images)
    headed = encoder.config.num_classes > 0
    if headed:
        values = encoder.forward_head(values)
    wanted = expected(headed)
    most = CLOSE * max(1, wanted.abs().max())
    if values.shape == wanted.shape and (values - wanted).abs().max() < most:
        return "right"
    return "warned" if any("assumed" in str(one.message) for one in said) else "wrong"


def is_refused(checkpoint: object) -> bool:
    """Return whether names and shapes alone are refused: then there is nothing to compute."""
    try:
        load_model(checkpoint)  # type: ignore[arg-type]
    except CheckpointError as error:
        return "device meta" not in str(error)
    return False


def sweep(models: dict[str, Callable[[], nn.Module]], use: Callable[[nn.Module], tuple]) -> Counter:
    """Load models, their weights alone and as a whole; return how often what came out."""
    counts, wrong = Counter(), []
    for name, make in models.items():
        with torch.device("meta"):
            shapes = make()
        if is_refused(shapes.state_dict()) and is_refused(shapes):
            counts["refused"] += 1
            continue
        model = randomize(make()).eval()
        expected, images = use(model)
        bare = outcome(dict(model.state_dict()), expected, images)
        whole = outcome(model, expected, images)
        counts[bare] += 1
        if bare == "wrong" or whole not in ("right", "refused"):
            wrong.append(f"{name}: its weights alone: {bare}; the model: {whole}")
    assert not wrong
    return counts


# ---- timm ------------------------------------------------------------------------------------------------------------


def family(name: str) -> str:
    """The name of a model of timm's without what says how large it is."""
    words = re.split(r"[_\d]+", name)
    return " ".join(word for word in words if word not in SIZES)


def small_timm(name: str) -> nn.Module:
    """A model of timm's, of two blocks and few patches where its code takes that."""
    found = re.search(r"patch(\d+)", name)
    size = 4 * int(found[1] if found else 16)
    few = {"depth": 2, "img_size": size}
    for settings in (few | {"weight_init": "skip"}, few):
        # its code does not take them, in whatever way it says so
        with contextlib.suppress(Exception):
            return timm.create_model(name, pretrained=False, **settings)
    return timm.create_model(name, pretrained=False)


def use_timm(model: nn.Module) -> tuple:
    images = torch.randn(1, 3, *model.patch_embed.img_size)  # type: ignore[union-attr]
    return lambda headed: model(images) if headed else model.forward_features(images), images  # type: ignore[operator]


def test_vision_transformers_of_timm_are_right_or_warned_of_or_refused(request):
    """One of each family, or all where more tries are asked for."""
    every = request.config.getoption("--battery-tries") > 1
    chosen = {}
    for name in timm.list_models():
        home = timm.models.model_entrypoint(name).__module__.rpartition(".")[2]
        kind = home
        if home in WHOLE:
            kind = name if every else family(name)
        chosen.setdefault(kind, []).append(name)
    models = {}
    for names in chosen.values():
        smallest = min(names, key=lambda name: [size not in name for size in SIZES])
        models[smallest] = partial(small_timm, smallest)
    counts = sweep(models, use_timm)
    assert counts["right"] > 10
    assert counts["refused"] > 30


# ---- transformers ----------------------------------------------------------------------------------------------------

AUTO = {
    AutoModel: modeling_auto.MODEL_FOR_IMAGE_MAPPING_NAMES,
    AutoModelForImageClassification: modeling_auto.MODEL_FOR_IMAGE_CLASSIFICATION_MAPPING_NAMES,
}


def small_transformers(kind: str, auto: type) -> nn.Module:
    """A model of transformers, of two blocks where its settings have a number of them."""
    config = AutoConfig.for_model(kind)
    for key, value in (("num_hidden_layers", 2), ("num_labels", 3), ("mask_ratio", 0.0)):
        if isinstance(getattr(config, key, None), int | float):
            setattr(config, key, value)
    return auto.from_config(config)  # type: ignore[attr-defined]


def use_transformers(model: nn.Module) -> tuple:
    size = model.config.image_size  # type: ignore[union-attr]
    if isinstance(size, int):
        size = (size, size)
    images = torch.randn(1, 3, *size)

    # ViTMAE puts patches in an order of its own, which it draws unless it is given.
    order = {}
    if model.config.model_type == "vit_mae":  # type: ignore[union-attr]
        order["noise"] = torch.arange(10_000.0)[None, : size[0] * size[1] // 16**2]

    def expected(headed: bool) -> Tensor:
        if headed:
            return model(images).logits
        return model.base_model(images, **order).last_hidden_state  # type: ignore[operator]

    return expected, images


def test_all_image_models_of_transformers_are_right_or_warned_of_or_refused():
    models = {}
    for auto, mapping in AUTO.items():
        for kind in mapping:
            make = partial(small_transformers, kind, auto)
            # it may need settings of its own, or another library, or cannot be made on meta
            with contextlib.suppress(Exception), torch.device("meta"):
                make()
                models[f"{kind} {auto.__name__}"] = make
    models.pop("depth_pro AutoModel", None)  # pictures of many sizes
    counts = sweep(models, use_transformers)
    assert counts["right"] > 5
    assert counts["refused"] > 20
