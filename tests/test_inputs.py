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


def grey16(value: int, byteorder: str) -> Image.Image:
    return Image.fromarray(np.full((4, 4), value, f"{byteorder}u2"))


def palette(**transparency: int | bytes) -> bytes:
    image = Image.new("P", (4, 4), 1)
    image.putpalette([*GREEN, *RED, *BLUE])
    return encoded(image, "PNG", **transparency)


def animation(kind: str) -> bytes:
    first, second = (Image.new("RGB", (4, 4), colour) for colour in (RED, BLUE))
    return encoded(
        first,
        kind,
        save_all=True,
        append_images=[second],
        **({"lossless": True} if kind == "WEBP" else {}),
    )


def pgm16(value: int) -> bytes:
    return b"P5 4 4 65535\n" + struct.pack(">H", value) * 16


@pytest.mark.parametrize(
    ("name", "content", "expected"),
    [
        ("rgb.png", encoded(Image.new("RGB", (4, 4), RED), "PNG"), RED),
        ("grey.png", encoded(Image.new("L", (4, 4), 77), "PNG"), (77, 77, 77)),
        ("bit.tif", encoded(Image.new("1", (4, 4), 0), "TIFF"), BLACK),
        ("palette-index-clear.png", palette(transparency=1), WHITE),
        ("palette-half-clear.png", palette(transparency=bytes([255, 51])), (255, 204, 204)),
        ("rgba-clear.png", encoded(Image.new("RGBA", (4, 4), (*BLUE, 0)), "PNG"), WHITE),
        ("rgba-half.png", encoded(Image.new("RGBA", (4, 4), (*BLACK, 51)), "PNG"), (204, 204, 204)),
        (
            "cmyk-adobe.jpg",
            encoded(Image.new("CMYK", (4, 4), (0, 255, 255, 0)), "JPEG", quality=100),
            RED,
        ),
        ("cmyk.tif", encoded(Image.new("CMYK", (4, 4), (0, 255, 255, 0)), "TIFF"), RED),
        ("grey16.png", encoded(grey16(257 * 100, "<"), "PNG"), (100, 100, 100)),
        ("grey16-big.tif", encoded(grey16(257 * 100, ">"), "TIFF"), (100, 100, 100)),
        ("grey16.pgm", pgm16(257 * 100), (100, 100, 100)),
        ("grey32.tif", encoded(Image.new("I", (4, 4), 257 * 100), "TIFF"), (100, 100, 100)),
        ("animated-gif.png", animation("GIF"), RED),
        ("animated.webp", animation("WEBP"), RED),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_every_mode_becomes_rgb(tmp_path, name, content, expected):
    path = tmp_path / name
    path.write_bytes(content)
    assert np.abs(pixels(path).astype(int) - expected).max() <= (
        1 if content[:2] == b"\xff\xd8" else 0
    )
    assert name != "cmyk-adobe.jpg" or b"Adobe" in content  # the inverted kind


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


def chunk(kind: bytes, data: bytes) -> bytes:
    """A chunk of a PNG."""
    checksum = zlib.crc32(kind + data)
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", checksum)


def exif(orientation: int) -> bytes:
    exif = Image.Exif()
    exif[0x0112] = orientation
    return exif.tobytes().removeprefix(b"Exif\0\0")


LONG = bytes(3_000_000)
TURN = chunk(b"eXIf", exif(6))
# chunks before the pixels; whether the picture is turned
METADATA = {
    "a long compressed text": (chunk(b"zTXt", b"prompt\0\0" + zlib.compress(LONG)), False),
    "a long international text": (chunk(b"iTXt", b"a\0\1\0\0\0" + zlib.compress(LONG)), False),
    "a long profile": (chunk(b"iCCP", b"icc\0\0" + zlib.compress(LONG)), False),
    "EXIF that is none": (chunk(b"eXIf", b"no TIFF header at all"), False),
    "EXIF that is cut": (chunk(b"eXIf", exif(6)[:14]), False),
    "EXIF and a long text": (TURN + chunk(b"zTXt", b"a\0\0" + zlib.compress(LONG)), True),
}


@pytest.mark.parametrize("place", ["before the pixels", "after them"])
@pytest.mark.parametrize("case", METADATA)
def test_a_png_with_odd_metadata_has_its_pixels(tmp_path, case, place):
    metadata, turned = METADATA[case]
    stored = np.random.default_rng(0).integers(0, 256, (4, 6, 3), dtype=np.uint8)
    content = encoded(Image.fromarray(stored), "PNG")
    end = 33  # the signature and the header
    if place == "after them":
        end = len(content) - 12
    path = tmp_path / "odd.png"
    path.write_bytes(content[:end] + metadata + content[end:])
    expected = stored
    if turned:
        expected = np.rot90(stored, -1)
    np.testing.assert_array_equal(pixels(path, expected.shape[:2]), expected)
    # the size is read from the header, if that says how the picture is turned
    if place == "before the pixels":
        assert size_of(str(path)) == expected.shape[1::-1]
    # but damaged pixels stay damaged
    path.write_bytes(content[:33] + metadata + content[33:-30])
    assert isinstance(decode(str(path), (4, 6)), str)


@pytest.mark.parametrize("kind", ["JPEG", "WEBP"])
@pytest.mark.parametrize(
    "exif", [b"Exif\0\0nothing", b"Exif\0\0II*\0\xff\xff\xff\xff", b"Exif\0\0"]
)
def test_damaged_exif_is_no_damaged_picture(tmp_path, kind, exif):
    path = tmp_path / "odd"
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
