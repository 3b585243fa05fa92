"""The recorder: every quantity against a plain computation; it leaves no trace in the training."""

from pathlib import Path

import pytest
import torch
from tiny import RECONSTRUCT, begin, same
from torch import Tensor

from vit.config import Config, changed
from vit.errors import RunError
from vit.training.dynamics import DynamicsRecorder, read_dynamics
from vit.training.loop import save, train_steps
from vit.training.run import Run
from vit.training.step import Callback, Step, restore

STEPS = 9  # 3 epochs of 20 images in batches of 8, 8 and 4
CONFIG = changed(
    RECONSTRUCT,
    {
        "model.depth": 3,
        "model.decoder_dim": 12,
        "model.decoder_heads": 3,
        "model.pos_embed": "learned",
        "optim.warmup_epochs": 1,
        "optim.clip_grad": 0.01,
        "optim.weight_decay": 0.5,
        "train.epochs": 3,
        "run.grad_accum_steps": 2,
        "model.freeze": ["W_Q", "patch_embed"],
        "run.dynamics_every": 5,
    },
)
MUON = {"train.objective": "classify", "optim.name": "muon", "optim.ema": 0.9}
# where a matrix stands in the model, written down by hand
OUTSIDE = {
    "W_E": "patch_embed.proj.weight",
    "pos_embed": "pos_embed",
    "head": "head.weight",
    "embed": "embed.weight",
    "pred": "pred.weight",
}
THIRDS = ("W_Q", "W_K", "W_V")
LAYER = {
    "W_O": "blocks.{}.attn.proj.weight",
    "fc1": "blocks.{}.mlp.fc1.weight",
    "fc2": "blocks.{}.mlp.fc2.weight",
    **dict.fromkeys(THIRDS, "blocks.{}.attn.qkv.weight"),
}


class Witness(Callback):
    """Keeps all gradients and weights of each step, and the first weights at step 0."""

    def __init__(self, model: torch.nn.Module):
        self.model = model
        self.gradients: list[dict[str, Tensor]] = [{}]
        self.weights = [self.copies()]

    def copies(self) -> dict[str, Tensor]:
        return {name: value.detach().double() for name, value in self.model.named_parameters()}

    def on_gradient(self, step: int) -> None:
        parameters = self.model.named_parameters()
        self.gradients.append(
            {name: value.grad.double() for name, value in parameters if value.grad is not None}
        )

    def on_step(self, run: Run, done: Step) -> None:
        self.weights.append(self.copies())


def recording(
    config: Config, path: Path, states: Path | None = None
) -> tuple[Run, DynamicsRecorder]:
    """A run that is recorded into `path`, and its recorder; with `states`, from the last one."""
    run = begin(config, states)
    recorder = DynamicsRecorder(path, run)
    restore([recorder], run.callback_states)
    return run, recorder


@pytest.mark.parametrize(
    ("config", "encoder", "decoder"),
    [
        (CONFIG, {"W_E", "pos_embed"}, {"embed", "pred"}),
        (changed(CONFIG, MUON), {"W_E", "pos_embed", "head"}, None),
    ],
    ids=["reconstruct", "classify by muon"],
)
def test_every_quantity_is_what_it_says_and_a_training_that_is_watched_is_the_same(
    config, encoder, decoder, tmp_path
):
    run, recorder = recording(config, tmp_path / "dynamics.jsonl")
    witness = Witness(run.model)
    losses = [step.loss for step in train_steps(run, [recorder, witness])]
    recorder.on_save()
    steps, recorded = read_dynamics(tmp_path / "dynamics.jsonl")
    assert steps.tolist() == [1, 2, 4, 5, 9]
    names = {f"encoder.{name}" for name in encoder | LAYER.keys()}
    if decoder is not None:
        names |= {f"decoder.{name}" for name in decoder | LAYER.keys()}
    assert recorded["drift"].keys() == names

    for matrix in names:
        part, name = matrix.split(".")
        prefix = "" if decoder is None else f"{part}."
        depth = {"encoder": 3, "decoder": 1}[part]
        for layer in range(depth if name in LAYER else 1):
            key = prefix + (LAYER | OUTSIDE)[name].format(layer)
            rows = slice(None)
            if name in THIRDS:
                third = len(witness.weights[0][key]) // 3
                rows = slice(third * THIRDS.index(name), third * (THIRDS.index(name) + 1))
            first = witness.weights[0][key][rows]
            for record, step in enumerate(steps.tolist()):
                drift = (witness.weights[step][key][rows] - first).norm() / first.norm()
                # what is frozen as a whole has none
                gradient = witness.gradients[step].get(key, torch.zeros(1))
                norm = gradient[rows].norm()
                for quantity, value in (("gradient_norm", norm), ("drift", drift)):
                    assert (value == 0) == (name in ("W_Q", "W_E"))
                    seen = recorded[quantity][matrix][record, layer].item()
                    assert seen == pytest.approx(value.item(), rel=1e-4), (quantity, key, step)

    alone = begin(config)
    assert [step.loss for step in train_steps(alone)] == losses
    same(run.result, alone.result)


def test_resumed_recording_is_the_one_that_was_not_interrupted(tmp_path):
    for name, cuts in (("whole", [STEPS]), ("resumed", [1, 3, 4, STEPS])):
        run, recorder = recording(CONFIG, tmp_path / name)
        for cut in cuts:  # within and outside of records
            for done in train_steps(run, [recorder]):
                if done.step == cut:
                    break
            save(run, [recorder], tmp_path / f"states of {name}")
            run, recorder = recording(CONFIG, tmp_path / name, tmp_path / f"states of {name}")
    # of a run that is at its end
    with (tmp_path / "resumed").open("ab") as file:
        file.write(b"{}\n")
    recorder.on_start(run)
    same = (tmp_path / "resumed").read_bytes() == (tmp_path / "whole").read_bytes()
    assert same  # by itself: pytest would take minutes to tell how they differ

    # a run that began without it has no first weights
    run.callback_states = {}
    with pytest.raises(RunError, match=r"^run\.dynamics_every: [^\n]+ leave it out$"):
        restore([recorder], run.callback_states)
