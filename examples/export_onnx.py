"""Export a checkpoint's encoder to ONNX, and compare what both compute.

    pip install onnx onnxscript onnxruntime
    python examples/export_onnx.py CHECKPOINT model.onnx

The input `images` is float32 (B, C, H, W) for any B, normalised as by `model.origin.normalize`.
The outputs are `tokens` (B, N, D) and `pooled`: logits (B, classes) or, without a head, features
(B, D).
"""

import sys

import onnxruntime
import torch
from torch import Tensor, nn

from vit import load_model
from vit.attention import set_kernel


class EncoderWithHead(nn.Module):
    def __init__(self, encoder: nn.Module):
        super().__init__()
        self.encoder = encoder

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.encoder(images)
        return tokens, self.encoder.forward_head(tokens)


# the model; flash attention is exported as one operation
checkpoint, out = sys.argv[1:]
encoder = load_model(checkpoint, part="encoder")
set_kernel(encoder, "flash")
program = EncoderWithHead(encoder).eval()

# export it with two images, because a batch of one would be taken as fixed
shape = (encoder.config.channels, *encoder.config.image_size)
torch.onnx.export(
    program,
    (torch.randn(2, *shape),),
    out,
    input_names=["images"],
    output_names=["tokens", "pooled"],
    dynamic_shapes=({0: "batch"},),
    dynamo=True,
    external_data=False,
    verbose=False,
)

# compare on a batch of another size
images = torch.randn(3, *shape)
outputs = onnxruntime.InferenceSession(out).run(None, {"images": images.numpy()})
with torch.no_grad():
    expected = program(images)
difference = 0.0
for theirs, ours in zip(outputs, expected, strict=True):
    difference = max(difference, abs(theirs - ours.numpy()).max())
print(f"{out}: differs from the model by at most {difference:.1e}")
