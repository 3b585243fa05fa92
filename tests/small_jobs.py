"""A small job, which tests of the benchmark vary."""

from bench.job import Job

MICRO = Job(
    preset="micro",
    patch=8,
    batch=8,
    precision="fp32",
    images=64,
    device="cpu",
    threads=1,
    decoder_dim=24,
    decoder_depth=1,
    decoder_heads=2,
)
