"""Train with an objective of your own: reconstruct masked patches, and predict features of them.

    python examples/objective.py runs/teach

An averaged copy of the encoder sees the whole image; the decoder also predicts this copy's features
of the masked patches, as in data2vec (Baevski et al. 2022). The same command with --resume
continues.
"""

import sys

import torch.nn.functional as F
from torch import nn
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn

from vit import fit
from vit.config import Config
from vit.mae import masked_patch_loss
from vit.masking import mask_from_noise
from vit.training.objectives import Reconstruct


class Teach(Reconstruct):
    """Reconstruct masked patches, and predict their features from an averaged encoder."""

    def __init__(self, model, config, data):
        super().__init__(model, config, data)
        average = get_ema_multi_avg_fn(0.99)
        self.teacher = AveragedModel(model.encoder, multi_avg_fn=average).requires_grad_(False)
        self.predict = nn.Linear(model.decoder.config.dim, model.encoder.config.embed_dim)

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()  # no stochastic depth: its targets are not random
        return self

    def forward(self, images, targets, draws):
        mask = mask_from_noise(draws.mask_noise, self.keep)
        loss, tokens = self.model.loss(images, mask, draws.drop_path)
        prefix = self.model.encoder.num_prefix_tokens
        patches = self.teacher(images)[:, prefix:]  # (B, L, D), of the whole image; no gradient
        target = F.layer_norm(patches, patches.shape[-1:])
        predicted = self.predict(self.model.decoder.features(tokens, mask))  # (B, L, D)
        feature_loss = masked_patch_loss(predicted, target, mask.mask)
        return loss + 0.1 * feature_loss, {"masked_loss": loss, "feature_loss": feature_loss}

    def after_step(self, step):
        self.teacher.update_parameters(self.model.encoder)


if __name__ == "__main__":
    small = {"data.source": "scenes", "data.limit": 200, "model.preset": "micro"}
    small |= {"train.epochs": 2, "reconstruct.contrast": 0}  # the second loss of `Reconstruct`
    config = Config.read("quickstart", small)
    fit(config, sys.argv[1], objective=Teach, resume="--resume" in sys.argv)
