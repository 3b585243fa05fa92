"""Learn from a loaded model: the masked patches of a student predict the features it gives them.

    python examples/distil.py vit-tiny-p4-cifar10 --out runs/student
    python examples/distil.py timm/vit_small_patch16_224.dino --config folder --data my_images

The teacher is whatever `vit.load_model` loads; it sees the whole image. Its input, patches and
width may differ from the student's: images are resized to its input, its features to the student's
grid, and a linear map leads from width to width. No labels are used. Further options are those of
`vit train`; with --resume the run continues, with the teacher's weights that it began with.
"""

import math
import sys

import torch
import torch.nn.functional as F
from einops import rearrange
from torch import nn

from vit import Callback, fit, load_model
from vit.cli.parsers import command_of, command_parser
from vit.errors import ConfigError
from vit.inputs import Normalization
from vit.mae import masked_patch_loss
from vit.masking import mask_from_noise
from vit.training.objectives import Reconstruct, register


class Distil(Reconstruct):
    """Reconstruct masked patches, and predict the features that a teacher gives them."""

    source = "vit-tiny-p4-cifar10"  # the teacher, as for `load_model`

    def __init__(self, model, config, data):
        super().__init__(model, config, data)
        if config.model.init or self.compares_images:
            # the first would change the normalisation, the second is not computed here
            raise ConfigError("model.init and reconstruct.contrast cannot be used with a teacher")
        loaded = load_model(self.source, strict=True)
        self.origin = loaded.origin
        self.teacher = loaded.encoder.requires_grad_(False)
        self.normalize = Normalization.measured_on(data.train.images)  # as the run's own

        # from the student's decoder to the teacher's width
        width = self.teacher.config.embed_dim
        self.predict = nn.Linear(model.decoder.config.dim, width)
        self.grid_size = config.model.grid_size
        grid = self.teacher.patch_embed.grid_size
        self.lengths["teacher"] = self.teacher.num_prefix_tokens + math.prod(grid)
        self.notes.append(f"teacher: {self.source}, {grid[0]} x {grid[1]} patches, width {width}")

    def train(self, mode=True):
        super().train(mode)
        self.teacher.eval()  # no stochastic depth: its targets are not random
        return self

    @torch.no_grad()
    def targets_of(self, images):
        """Return the teacher's features of the student's patches: (B, L, width).

        Args:
            images: normalised for the student, (B, C, H, W).
        """
        # the image as the teacher's input
        images = self.normalize.invert(images)
        size = self.teacher.config.image_size
        if images.shape[-2:] != size:
            images = F.interpolate(images, size, mode="bicubic", antialias=True)
        tokens = self.teacher(self.origin.normalize(images))

        # its feature map on the student's grid
        patches = tokens[:, self.teacher.num_prefix_tokens :].float()
        rows, columns = self.teacher.patch_embed.grid_size
        features = rearrange(patches, "b (h w) d -> b d h w", h=rows, w=columns)
        if (rows, columns) != self.grid_size:
            features = F.interpolate(features, self.grid_size, mode="bilinear", antialias=True)
        features = rearrange(features, "b d h w -> b (h w) d")
        return F.layer_norm(features, features.shape[-1:])

    def forward(self, images, targets, draws):
        mask = mask_from_noise(draws.mask_noise, self.keep)
        tokens = self.model.encoder(images, mask, draws.drop_path)
        decoded = self.model.decoder.features(tokens, mask)  # (B, L, E)

        # what stands in the masked patches, in pixels and in the teacher's features
        pixels = self.model.decoder.pred(decoded)  # (B, L, P)
        masked_loss = masked_patch_loss(pixels, self.model.targets(images), mask.mask)
        features = self.predict(decoded)  # (B, L, width)
        feature_loss = masked_patch_loss(features, self.targets_of(images), mask.mask)
        metrics = {"masked_loss": masked_loss, "feature_loss": feature_loss}
        return masked_loss + feature_loss, metrics


class TaughtBy(Callback):
    """Count the teacher's images among those that the student learned from.

    `vit evaluate` names test images that the teacher has seen.
    """

    def on_start(self, run):
        run.seen_before = torch.cat([run.seen_before, run.objective.origin.trained_on]).unique()


if __name__ == "__main__":
    Distil.source, *words = sys.argv[1:]
    register(Distil)  # the name stands in the config.yaml of a run that continues
    one_view = ["--augment.views", "1", "--reconstruct.contrast", "0"]
    command = command_of(command_parser("train", "distil.py").read([*one_view, *words]))
    fit(
        command.config, command.out, callbacks=[TaughtBy()], resume=command.resume, objective=Distil
    )
