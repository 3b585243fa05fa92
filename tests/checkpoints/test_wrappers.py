"""Law: a network that is whole loads, whatever its training has put beside it, and the report names it.

What may belong to the network is refused, or a warning names it.
"""

import pytest
import torch
from small import agree, refused, timm_model, under, warned
from torch import nn

from vit.checkpoints import load_model

head = torch.ones(2, 2)
DECODER = {"decoder.mask_token": torch.zeros(1, 24), "decoder.embed.weight": torch.ones(24, 32)}
SALIENCY = {"decoder.upconv1.weight": torch.ones(8, 32, 3, 3), "decoder.out.bias": torch.ones(2)}
CLASSIFIER = {"criterion.weight": torch.ones(5), "train_acc.tp": torch.ones(5, dtype=torch.long)}
# the prefix of a network, and tensors beside it
BESIDE = {
    "Lightning classifier": ("model.", CLASSIFIER),
    "lightly MAE": ("backbone.vit.", {"backbone.mask_token": torch.zeros(1, 32)} | DECODER),
    "segmentation": ("encoder.", {"segmentation_head.0.weight": torch.ones(3, 8)}),
}


def right(source: object, theirs: nn.Module, **options: object):
    ours = load_model(source, **{"num_heads": 4} | options)
    agree(ours, theirs)
    return ours


@pytest.mark.parametrize("case", BESIDE)
def test_what_is_beside_a_whole_network_is_left_out_and_named(case):
    prefix, others = BESIDE[case]
    theirs = timm_model(num_classes=0)
    report = right(under(prefix, theirs.state_dict()) | others, theirs).origin.report
    assert report.dropped.keys() == others.keys()
    (note,) = [note for note in report.notes if note.startswith("left out")]
    # a token for masked patches says by itself what it is
    beside = [key for key, reason in report.dropped.items() if "beside" in reason]
    assert beside
    assert all(key.removeprefix(prefix).split(".")[0] in note for key in beside)


@pytest.mark.parametrize("prefix", ["", "model.encoder."])
def test_the_encoder_alone_is_taken_from_any_whole_network(prefix):
    theirs = timm_model(num_classes=0)
    for others in (SALIENCY, {"lateral.weight": torch.ones(8, 32)}):
        state = under(prefix, theirs.state_dict()) | others
        right(state, theirs, part="encoder")

    # unless it is not whole, or what is beside it may be a part of it
    state = under(prefix, theirs.state_dict())
    part = {"part": "encoder", "num_heads": 4}
    for name in ("blocks.0.attn.gate.weight", "norm_pre.weight", "patch_embed.stem.weight"):
        refused(state | {prefix + name: torch.ones(32)}, **part)
    del state[f"{prefix}norm.bias"]
    assert "missing: norm.bias" in refused(state | SALIENCY, **part)


def test_what_may_be_anything_is_a_warning():
    state = under("backbone.", timm_model().state_dict()) | {"prompts": torch.ones(4, 32)}
    assert "nothing says what it is: prompts (allow" in warned(state, num_heads=4)
    assert "prompts" not in warned(state, num_heads=4, allow="[pq]rompts")


def test_a_branch_by_its_plain_name():
    """As lightly's DINO has them, and its MoCo and BYOL."""
    student, teacher = timm_model(num_classes=0), timm_model(num_classes=0)
    file = under("student_backbone.vit.", student.state_dict())
    file |= under("teacher_backbone.vit.", teacher.state_dict())
    file |= {
        "student_head.layers.0.weight": torch.ones(4, 32),
        "teacher_head.last_layer.weight_v": torch.ones(1),
    }
    file = {"state_dict": file}
    for branch, theirs in (("teacher", teacher), ("student", student), (None, teacher)):
        right(file, theirs, branch=branch)
    right(file, student, branch="student_backbone")
    assert "no copy of the network is called 'pupil'" in refused(file, branch="pupil")


@pytest.mark.parametrize(
    ("first", "second"),
    [("student.", "teacher."), ("net.", "net.frozen_reference."), ("", "reference.")],
)
def test_a_distilled_student_is_no_copy_of_its_teacher(first, second):
    """A larger one, or one of its size whose name does not say that it is an average."""
    student = timm_model(num_classes=0)
    for width in (32, 64):
        teacher = timm_model(num_classes=0, embed_dim=width)
        names = {first.rstrip(".") or ".": student, second.rstrip("."): teacher}
        file = under(second, teacher.state_dict()) | under(first, student.state_dict())
        if width == 32:
            right(file, student)
            assert "of the copies of the network" in warned(file, num_heads=4)
        else:
            message = refused(file, num_heads=4)
            assert "different shapes" in message
            assert all(name in message for name in (*names, "branch"))
        for branch, theirs in names.items():
            right(file, theirs, branch=branch)


# how a writer's files are: the copy that it evaluates, the other, and what it puts beside them
WRITERS = {
    "DINO": ("teacher.backbone.", "student.backbone.", {"teacher.head.mlp.0.weight": head}),
    "DINO's options": ("teacher.", "student.", {"args.teacher_temp": 0.04}),
    "I-JEPA": ("target_encoder.", "encoder.", {"predictor.predictor_blocks.0.norm1.bias": head}),
    "BYOL of lightly": ("backbone.", "backbone_momentum.", {}),
    "timm": ("state_dict_ema.", "state_dict.", {}),
    "torch": ("average.module.", "model.", {"average.n_averaged": torch.tensor(3)}),
    "Lightning": (
        "state_dict.model.", "current_model_state.model.",
        {"averaging_state.n_averaged": torch.tensor(3)},
    ),
    "Lightning, stochastic": (
        "callbacks.SWA.average_model_state.model.", "state_dict.model.", {},
    ),
    "mmengine": (
        "state_dict.", "ema_state_dict.module.", {"ema_state_dict.steps": torch.tensor(3)},
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRITERS)
def test_the_writers_rule_says_which_copy_and_no_order_of_keys(case):
    place, other, beside = WRITERS[case]
    theirs = timm_model(num_classes=0)
    file = under(place, theirs.state_dict()) | under(other, timm_model(num_classes=0).state_dict())
    file |= beside
    reports = set()
    for order in (list(file), sorted(file), sorted(file, reverse=True)):
        shuffled = {name: file[name] for name in order}
        ours = right(shuffled, theirs)
        assert "copies of the network" not in warned(shuffled, num_heads=4)
        reports.add(str(ours.origin.report))
    assert len(reports) == 1


# the initial weights have the shorter name; a copy is more nested, or the network at the top
@pytest.mark.parametrize(
    ("place", "other"), [("state_dict.", "init."), ("trained_model.", "swa.module."), ("", "copy.")]
)
def test_of_copies_that_no_rule_tells_apart_one_is_assumed(place, other):
    theirs, copy = timm_model(num_classes=0), timm_model(num_classes=0)
    file = under(other, copy.state_dict()) | under(place, theirs.state_dict())
    right(file, theirs)
    assert "copies of the network" in warned(file, num_heads=4)
    branch = place.rstrip(".") or "."
    right(file, theirs, branch=branch)
    assert "copies of the network" not in warned(file, num_heads=4, branch=branch)
