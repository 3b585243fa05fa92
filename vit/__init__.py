"""Pretrain small vision transformers by masked patch reconstruction, and look at what they learned."""

__version__ = "0.1.0"
