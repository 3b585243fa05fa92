"""Write an untrained model whose attention begins near the identity, to train a classifier from.

    python examples/near_identity.py --config scratch_cifar10_tiny_p4 --out runs/near-identity
    vit train --config scratch_cifar10_tiny_p4 --model.init runs/near-identity --out runs/scratch

In every head, W_Q W_K^T begins near the identity, so a token first attends to tokens like it. In
every layer, W_V W_O begins near minus the identity. Trockman and Kolter (2023, arXiv 2305.09828)
found trained vision transformers so, and that small ones learn faster from there.
Options are those of `vit train`; model, data and seed are read.
"""

import sys

import torch

from vit.cli.parsers import command_of, command_parser
from vit.data.draws import seeded_weights
from vit.data.sources import load_data
from vit.encoder import VisionTransformer
from vit.inputs import Normalization
from vit.training.run_folder import RunFolder
from vit.weights import Origin, save_model


def factors(identity, noise, width, rank):
    """Return A (rank, width) and B (rank, width), with A^T B nearest to the noisy identity."""
    matrix = identity * torch.eye(width) + noise * torch.randn(width, width) / width**0.5
    left, strengths, right = torch.linalg.svd(matrix)
    root = strengths[:rank, None].sqrt()  # (rank, 1)
    return root * left.T[:rank], root * right[:rank]


def begin_near_identity(encoder):
    """Draw W_Q, W_K, W_V and W_O of an encoder anew, with the factors of the paper."""
    width = encoder.config.embed_dim
    heads = encoder.config.num_heads
    for block in encoder.blocks:
        queries, keys, values = block.attn.qkv.weight.data.chunk(3)  # each (D, D)
        for of_head in zip(queries.chunk(heads), keys.chunk(heads), strict=True):
            drawn = factors(0.7, 0.7, width, width // heads)
            for rows, factor in zip(of_head, drawn, strict=True):
                rows.copy_(factor)
        # with rows of tokens, what is added is x W_V W_O
        into, out_of = factors(-0.4, 0.4, width, width)
        values.copy_(into)
        block.attn.proj.weight.data.copy_(out_of.T)


parser = command_parser("train", "examples/near_identity.py")
command = command_of(parser.read(sys.argv[1:]))
config = command.config
RunFolder(command.out).refuse_if_taken()
data = load_data(config.data, config.model.image_size)
with seeded_weights(config.train.seed):
    encoder = VisionTransformer(config.model.vit_config())
    begin_near_identity(encoder)
origin = Origin(
    normalize=Normalization.measured_on(data.train.images),
    image_size=encoder.config.image_size,
    channels=encoder.config.channels,
    class_names=data.train.class_names,
)
save_model(command.out, encoder, origin)
print(f"untrained model: {command.out}")
