"""Image files to pixels: Pillow is the oracle, for every mode, orientation and size."""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny import encoded

from vit.inputs import Normalization, decode, size_of

RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)


def pixels(path: Path, size: tuple[int, int] = (4, 4)) -> np.ndarray:
    """(H, W, 3), the other way round than `decode` has them."""
    content = decode(str(path), size)
    assert isinstance(content, bytes), content
    return np.frombuffer(content, np.uint8).reshape(3, *size).transpose(1, 2, 0)


def solid(mode: str, colour: object, kind: str = "PNG", **options: object) -> bytes:
    return encoded(Image.new(mode, (4, 4), colour), kind, **options)


def palette(**transparency: int | bytes) -> bytes:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([*GREEN, *RED, *BLUE])
    return encoded(image, "PNG", **transparency)


def grey16(byteorder: str, kind: str) -> bytes:
    return encoded(Image.fromarray(np.full((4, 4), 257 * 100, f"{byteorder}u2")), kind)


def animation(kind: str, **options: object) -> bytes:
    blue = Image.new("RGB", (4, 4), BLUE)
    return solid("RGB", RED, kind, save_all=True, append_images=[blue], **options)


MODES = {
    "rgb": (solid("RGB", RED), RED),
    "grey": (solid("L", 77), (77, 77, 77)),
    "bit": (solid("1", 0, "TIFF"), BLACK),
    "palette, index clear": (palette(transparency=1), WHITE),
    "palette, half clear": (palette(transparency=bytes([255, 51])), (255, 204, 204)),
    "clear": (solid("RGBA", (*BLUE, 0)), WHITE),
    "half clear": (solid("RGBA", (*BLACK, 51)), (204, 204, 204)),
    # Adobe's inverted kind
    "cmyk jpeg": (solid("CMYK", (0, 255, 255, 0), "JPEG", quality=100), RED),
    "cmyk": (solid("CMYK", (0, 255, 255, 0), "TIFF"), RED),
    "grey16": (grey16("<", "PNG"), (100, 100, 100)),
    "grey16 big": (grey16(">", "TIFF"), (100, 100, 100)),
    "grey16 pgm": (b"P5 4 4 65535\n" + struct.pack(">H", 257 * 100) * 16, (100, 100, 100)),
    "grey32": (solid("I", 257 * 100, "TIFF"), (100, 100, 100)),
    "animated gif": (animation("GIF"), RED),
    "animated webp": (animation("WEBP", lossless=True), RED),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_becomes_rgb(tmp_path, mode):
    content, expected = MODES[mode]
    # Pillow goes by the content, not by the name
    path = tmp_path / "picture.png"
    path.write_bytes(content)
    tolerance = 1 if mode == "cmyk jpeg" else 0
    assert np.abs(pixels(path).astype(int) - expected).max() <= tolerance


UPRIGHT = {
    1: lambda shown: shown,
    2: np.fliplr,
    3: lambda shown: np.rot90(shown, 2),
    4: np.flipud,
    5: lambda shown: shown.swapaxes(0, 1),
    6: lambda shown: np.rot90(shown, -1),
    7: lambda shown: np.rot90(shown, 2).swapaxes(0, 1),
    8: lambda shown: np.rot90(shown, 1),
}


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("kind", ["PNG", "TIFF"])
def test_exif_orientation(tmp_path, kind, orientation):
    stored = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"turned.{kind.lower()}"
    Image.fromarray(stored).save(path, exif=exif)
    expected = UPRIGHT[orientation](stored)
    np.testing.assert_array_equal(pixels(path, expected.shape[:2]), expected)
    assert size_of(str(path)) == expected.shape[1::-1]


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG."""
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


LONG = chunk(b"zTXt", b"prompt\0\0" + zlib.compress(bytes(3_000_000)))
EXIF = Image.Exif()
EXIF[0x0112] = 6
TURN = EXIF.tobytes().removeprefix(b"Exif\0\0")


@pytest.mark.parametrize("place", [33, -12], ids=["before the pixels", "after them"])
@pytest.mark.parametrize(
    ("metadata", "turned"),
    [
        (LONG, False),
        (chunk(b"eXIf", b"no TIFF header at all"), False),
        (chunk(b"eXIf", TURN[:14]), False),
        (chunk(b"eXIf", TURN) + LONG, True),
    ],
    ids=["long text", "no EXIF", "cut EXIF", "EXIF and long text"],
)
def test_a_png_with_odd_metadata_has_its_pixels(tmp_path, metadata, turned, place):
    stored = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    content = encoded(Image.fromarray(stored), "PNG")
    path = tmp_path / "odd.png"
    path.write_bytes(content[:place] + metadata + content[place:])
    expected = np.rot90(stored, -turned)
    np.testing.assert_array_equal(pixels(path, expected.shape[:2]), expected)
    # the size is read from the header, if that says how the picture is turned
    if place == 33:
        assert size_of(str(path)) == expected.shape[1::-1]
    # but damaged pixels stay damaged
    path.write_bytes(content[:33] + metadata + content[33:-30])
    assert isinstance(decode(str(path), (4, 6)), str)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
def test_damaged_exif_is_no_damaged_picture(tmp_path, kind):
    path = tmp_path / "odd"
    exif = b"Exif\0\0II*\0\xff\xff\xff\xff"
    Image.new("RGB", (4, 4), RED).save(path, kind, exif=exif, quality=100)
    assert np.abs(pixels(path).astype(int) - RED).max() <= 2


@pytest.mark.parametrize("size", [(5, 7), (32, 32)])
def test_right_size_is_left_to_the_bit(tmp_path, size):
    content = np.random.default_rng(0).integers(0, 256, (*size, 3), dtype=np.uint8)
    for kind in ("png", "jpg"):
        Image.fromarray(content).save(tmp_path / f"exact.{kind}")
        shown = np.asarray(Image.open(tmp_path / f"exact.{kind}"))
        np.testing.assert_array_equal(pixels(tmp_path / f"exact.{kind}", size), shown)


@pytest.mark.parametrize("wide", [True, False])
@pytest.mark.parametrize("zoom", [1, 3, 16])
def test_centre_is_cut_out(tmp_path, wide, zoom):
    content = np.zeros((4, 12, 3), np.uint8)
    content[:, 4:8] = (10, 100, 200)
    content[:, 8:] = 255
    content = content.repeat(zoom, 0).repeat(zoom, 1)
    Image.fromarray(content if wide else content.swapaxes(0, 1)).save(tmp_path / "wide.png")
    shown = pixels(tmp_path / "wide.png")
    off = np.abs(shown.astype(int) - (10, 100, 200))
    assert off[1:3, 1:3].max() <= 4  # the border is blended with what lies beyond
    if zoom == 1:
        assert off.max() == 0


def test_shrinking_is_antialiased_also_of_a_jpeg_that_is_decoded_small(tmp_path):
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    Image.fromarray(board).save(tmp_path / "board.png")
    assert np.abs(pixels(tmp_path / "board.png").astype(int) - 127).max() <= 2
    rng = np.random.default_rng(0)
    image = Image.fromarray(rng.integers(0, 256, (60, 80, 3), dtype=np.uint8)).resize((800, 600))
    image.save(tmp_path / "photo.jpg", quality=95)
    image.save(tmp_path / "photo.png")
    small, full = pixels(tmp_path / "photo.jpg", (64, 64)), pixels(tmp_path / "photo.png", (64, 64))
    assert np.abs(small.astype(int) - full).mean() < 2


def test_growing_covers_the_size(tmp_path):
    Image.new("RGB", (1, 1), (1, 2, 3)).save(tmp_path / "dot.png")
    np.testing.assert_array_equal(
        pixels(tmp_path / "dot.png", (5, 9)), np.broadcast_to((1, 2, 3), (5, 9, 3))
    )


def test_what_inference_has_normalised_can_have_gradients_later():
    normalize = Normalization([0.1, 0.2, 0.3], [0.4, 0.5, 0.6])
    images = torch.rand(2, 3, 4, 4)
    with torch.inference_mode():
        expected = normalize(images)
    images.requires_grad_()
    inputs = normalize(images)
    inputs.sum().backward()
    assert torch.equal(inputs, expected)
    assert torch.allclose(images.grad[:, 0], torch.tensor(1 / 0.4))
