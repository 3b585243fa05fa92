"""Export a checkpoint's encoder to ONNX, and compare: python examples/export_onnx.py CHECKPOINT model.onnx

Needs: pip install onnx onnxscript onnxruntime. The input `images` is float32 (B, C, H, W) for any B, normalised as by
`model.origin.normalize`; the outputs are `tokens` (B, N, D) and `pooled`, logits (B, classes) or, without a head,
features (B, D).
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


checkpoint, out = sys.argv[1:]
encoder = load_model(checkpoint, part="encoder")
set_kernel(encoder, "flash")  # exports as one operation
program = EncoderWithHead(encoder).eval()
images = torch.randn(
    2, encoder.config.channels, *encoder.config.image_size
)  # a batch of 1 would be taken as fixed
names = {
    "input_names": ["images"],
    "output_names": ["tokens", "pooled"],
    "dynamic_shapes": ({0: "batch"},),
}
torch.onnx.export(program, (images,), out, dynamo=True, external_data=False, verbose=False, **names)

images = torch.randn(3, *images.shape[1:])
outputs = onnxruntime.InferenceSession(out).run(None, {"images": images.numpy()})
with torch.no_grad():
    difference = max(
        abs(theirs - ours.numpy()).max()
        for theirs, ours in zip(outputs, program(images), strict=True)
    )
print(f"{out}: differs from the model by at most {difference:.1e}")
