"""Law: a classifier is loaded however its users replaced it, or a warning names it.

Oracles: the models that the heads were trained in.
"""

import warnings
from collections import OrderedDict

import pytest
import torch
import torchvision
import transformers as hf
from small import (
    HUGGINGFACE,
    agree,
    close,
    random_model,
    refused,
    timm_model,
    transformers_model,
    under,
    warned,
)
from torch import Tensor, nn

from vit.checkpoints import load_model
from vit.errors import CheckpointError
from vit.look.predict import require_head

WIDTH = 32
SIZES = dict(num_heads=4, norm_eps=1e-6)


def linear(**settings: bool) -> nn.Linear:
    return nn.Linear(WIDTH, 7, **settings)


def dropout() -> nn.Sequential:
    return nn.Sequential(nn.Dropout(0.1), linear())


def probe(affine: bool, **settings: bool) -> nn.Sequential:
    # without scale, MAE's, whose code has this eps
    norm = nn.BatchNorm1d(WIDTH, affine=affine, eps=1e-5 if affine else 1e-6)
    norm.running_mean.normal_()
    norm.running_var.uniform_(0.05, 0.5)  # small: its eps matters
    return nn.Sequential(norm, linear(**settings))


def of_torchvision(heads: nn.Module) -> nn.Module:
    sizes = dict(image_size=16, patch_size=4, num_layers=2, num_heads=4, hidden_dim=32, mlp_dim=48)
    model = torchvision.models.VisionTransformer(**sizes)
    model.heads = heads
    return random_model(model)


def of_timm(head: nn.Module) -> nn.Module:
    model = timm_model()
    model.head = head
    return random_model(model)


def of_transformers(head: nn.Module) -> nn.Module:
    model = transformers_model(hf.ViTForImageClassification, layer_norm_eps=1e-6)
    model.classifier = head
    return random_model(model)


class Net(nn.Module):
    """As people write it: a backbone and a classifier of their own."""

    def __init__(self, name: str, head: nn.Module, backbone: nn.Module | None = None):
        super().__init__()
        self.backbone = backbone or timm_model(num_classes=0)
        self.name = name
        setattr(self, name, head)
        random_model(self)

    def forward(self, images: Tensor) -> Tensor:
        return getattr(self, self.name)(self.backbone(images))


# heads that load
HEADS = {
    "linear": linear,
    "dropout": dropout,
    "batch norm": lambda: probe(affine=True),
    "batch norm, no bias": lambda: probe(affine=True, bias=False),
    "batch norm without scale": lambda: probe(affine=False),
}
# that are more than one linear layer
COMPUTES_MORE = {
    "two layers": lambda: nn.Sequential(nn.Linear(WIDTH, 16), nn.ReLU(), nn.Linear(16, 7)),
    "layer norm": lambda: nn.Sequential(nn.LayerNorm(WIDTH), linear()),
}
# where a head is replaced
MODELS = {
    "torchvision: heads": of_torchvision,
    "timm: head": of_timm,
    "transformers: classifier": of_transformers,
    "own: classifier": lambda head: Net("classifier", head),
}


class Cosine(nn.Linear):
    """A linear layer by its tensors, which computes something else."""

    def forward(self, tokens: Tensor) -> Tensor:
        return super().forward(nn.functional.normalize(tokens))


class MeanOfPatches(Net):
    """A classifier that reads something else than the library's own."""

    def forward(self, images: Tensor) -> Tensor:
        tokens = self.backbone.forward_features(images)
        return getattr(self, self.name)(tokens[:, 1:].mean(dim=1))


def load(source: object, **options: object):
    with warnings.catch_warnings(action="ignore"):
        return load_model(source, **SIZES | options)


@pytest.mark.parametrize("head", HEADS)
@pytest.mark.parametrize("place", MODELS)
def test_a_replaced_head_gives_the_models_own_logits(place, head):
    theirs = MODELS[place](HEADS[head]())
    agree(load({"state_dict": under("module.", theirs.state_dict())}), theirs)

    # in memory, all but what a module of one's own reads is known
    if "torchvision" in place:
        assert "pass its state_dict()" in refused(theirs)
        return
    known = dict(mean=(0.5,) * 3, std=(0.5,) * 3)
    agree(load_model(theirs, **known), theirs)
    said = warned(theirs, **known)
    assert said.startswith("a ") and "its head reads" in said if "own" in place else said == ""


@pytest.mark.parametrize("head", COMPUTES_MORE)
@pytest.mark.parametrize("place", MODELS)
def test_a_lost_classifier_is_a_warning_that_names_it(place, head):
    theirs = MODELS[place](COMPUTES_MORE[head]())
    with pytest.warns(UserWarning, match="its classifier is left out: .*(head|classifier|fc)"):
        ours = load_model(theirs.state_dict(), **SIZES)
    with pytest.raises(CheckpointError, match="no classification head"):
        require_head(ours)
    assert "classifier" not in warned(theirs.state_dict(), num_classes=0, **SIZES)


def test_an_option_names_the_head():
    theirs = Net("answer", linear())
    state = under("net.", theirs.state_dict())
    assert "nothing says what it is: answer (allow; classifier if it is" in warned(state, **SIZES)
    assert load(state).config.num_classes == 0
    for name in ("answer", "net.answer"):
        agree(load(state, classifier=name), theirs)
    assert "no module 'reply'" in refused(state, classifier="reply", **SIZES)
    more = under("net.", Net("answer", COMPUTES_MORE["two layers"]()).state_dict())
    refusal = refused(more, classifier="answer", **SIZES)
    assert "net.answer computes more than one linear layer" in refusal


def test_of_several_classifiers_one_is_named(images):
    """A classifier of one's own may read the library's head, or stand in its place."""
    theirs = Net("classifier", linear(), timm_model(num_classes=WIDTH))
    state = theirs.state_dict()
    message = refused(state, **SIZES)
    assert "(backbone.head, classifier); classifier names the one to load" in message
    ours = load(state, classifier="backbone.head")
    close(ours.forward_head(ours(images)), theirs.backbone(images))
    ours = load(state, classifier="classifier")
    assert torch.equal(ours.head.weight, state["classifier.weight"])
    assert load(state, num_classes=0).config.num_classes == 0


@pytest.mark.parametrize(
    ("head", "words"),
    [
        (dropout, "what precedes head.1 in its list is dropout"),
        (lambda: linear(bias=False), "head is a linear layer without a bias, not a cosine"),
    ],
)
def test_what_no_tensor_of_a_head_shows_is_a_guess_unless_its_module_is_named(head, words):
    state = of_timm(head()).state_dict()
    assert words in warned(state, **SIZES)
    assert words not in warned(state, classifier="head", **SIZES)


def test_what_a_head_of_ones_own_reads_is_a_guess():
    on_pooler = under("vit.", transformers_model().state_dict())
    on_pooler |= under("classifier.", linear().state_dict())
    for state in (Net("classifier", linear()).state_dict(), on_pooler):
        assert "its head reads" in warned(state, **SIZES)


def test_heads_of_a_pretraining_are_no_classifiers():
    state = under("model.backbone.", timm_model(num_classes=0).state_dict())
    online = {"model.online_classifier.weight": torch.ones(7, 32)}
    with pytest.warns(UserWarning, match="nothing says what it is: online_classifier"):
        assert load_model(state | online, **SIZES).config.num_classes == 0
    head = {"mlp.0.weight": torch.ones(8, 32), "last_layer.weight": torch.ones(9, 8)}
    assert "classifier" not in warned(state | under("model.head.", head), **SIZES)


def test_heads_beside_a_copy_are_the_copys():
    file = {}
    for name, classes in (("model", 7), ("ema", 5)):
        backbone = timm_model(num_classes=0).state_dict()
        file |= under(f"{name}.backbone.", backbone)
        file |= under(f"{name}.classifier.", nn.Linear(WIDTH, classes).state_dict())
    for branch, classes, other in ((None, 5, "model"), ("model", 7, "ema")):
        ours = load(file, branch=branch)
        assert ours.config.num_classes == classes
        reason = ours.origin.report.dropped[f"{other}.classifier.bias"]
        assert reason == f"of another network; branch {other} takes it"


# --- a model in memory, whose modules show what they compute --------------------------------------


class Doubled(nn.Sequential):
    """A list by its tensors, which computes something else."""

    def forward(self, tokens: Tensor) -> Tensor:
        return 2 * super().forward(tokens)


@pytest.mark.parametrize("head", [lambda: Doubled(linear()), lambda: Cosine(WIDTH, 7)])
def test_a_head_that_computes_more_is_left_out_wherever_it_is(head):
    for theirs in (nn.Sequential(of_timm(head())), Net("head", head()), of_transformers(head())):
        with pytest.warns(UserWarning, match="its classifier is left out: .* computes more"):
            assert load_model(theirs).config.num_classes == 0


def test_what_a_classifier_around_a_model_in_memory_reads_is_a_guess():
    theirs = MeanOfPatches("head", linear())
    # where transformers' own class has them
    vit = hf.ViTModel(hf.ViTConfig(**HUGGINGFACE), add_pooling_layer=False)
    vit = nn.ModuleDict({"vit": vit, "classifier": linear()})
    for source in (theirs, vit):
        assert "its head reads the class token (global_pool)" in warned(source)
    ours = load_model(theirs, global_pool="avg")
    agree(ours, theirs)

    # the pooling of the library's model is the better guess
    theirs = Net("head", linear(), timm_model(num_classes=0, global_pool="avg", fc_norm=False))
    with pytest.warns(UserWarning, match="its head reads the mean"):
        ours = load_model(theirs)
    agree(ours, theirs)


# --- what stands between the network and its head -------------------------------------------------


def test_a_batch_norm_is_before_the_layer_only_if_their_numbers_say_so():
    before = nn.Sequential(OrderedDict(norm=nn.BatchNorm1d(WIDTH, eps=0.1), fc=linear()))
    after = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH))
    for head in (before, after):
        said = warned(of_timm(head).state_dict(), **SIZES)
        assert "its classifier is left out: head " in said

    # a module in memory shows the order, and its eps
    theirs = of_timm(before)
    agree(load_model(theirs), theirs)
