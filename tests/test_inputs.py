"""Image files to pixels: Pillow is the oracle, for every mode, orientation and size."""

import struct
import zlib
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from numpy.testing import assert_array_equal
from PIL import Image, ImageFile
from tiny import encoded

from vit.inputs import Normalization, decode, size_of

RED = (255, 0, 0)
BLUE = (0, 0, 255)
GREY = (100, 100, 100)


def pixels(path: Path, size: tuple[int, int] = (4, 4)) -> np.ndarray:
    """(H, W, 3), the other way round than `decode` has them."""
    content = decode(str(path), size)
    assert isinstance(content, tuple), content
    return np.frombuffer(content[0], np.uint8).reshape(3, *size).transpose(1, 2, 0).astype(int)


def solid(mode: str, colour: object, kind: str = "PNG", **options: object) -> bytes:
    return encoded(Image.new(mode, (4, 4), colour), kind, **options)


def palette() -> bytes:
    """Red, of which a fifth is to be seen."""
    image = Image.new("P", (4, 4), 1)
    image.putpalette([0, 255, 0, *RED, *BLUE])
    return encoded(image, "PNG", transparency=bytes([255, 51]))


def stored(height: int = 4, width: int = 6) -> np.ndarray:
    return np.random.default_rng(0).integers(0, 256, (height, width, 3), dtype=np.uint8)


ANIMATED = dict(save_all=True, append_images=[Image.new("RGB", (4, 4), BLUE)])
MODES = {
    "palette, half clear": (palette(), (255, 204, 204)),
    "half clear": (solid("RGBA", (0, 0, 0, 51)), (204, 204, 204)),
    # Adobe's inverted kind
    "cmyk jpeg": (solid("CMYK", (0, 255, 255, 0), "JPEG", quality=100), RED),
    "grey": (solid("L", 100), GREY),
    "grey16": (solid("I;16", 257 * 100), GREY),
    "grey16 tiff": (solid("I;16", 257 * 100, "TIFF"), GREY),
    # white is zero; up to 8 bits, Pillow itself turns it in both directions
    "negative8 tiff": (solid("L", 100, "TIFF", tiffinfo={262: 0}), GREY),
    "negative16 tiff, turned": (solid("I;16", 257 * 155, "TIFF", tiffinfo={262: 0, 274: 6}), GREY),
    "grey16 pgm": (b"P5 4 4 65535\n" + struct.pack(">H", 257 * 100) * 16, GREY),
    "animated gif": (solid("RGB", RED, "GIF", **ANIMATED), RED),
    "damaged exif": (solid("RGB", RED, "JPEG", exif=b"Exif\0\0II*\0\xff\xff\xff\xff"), RED),
}


@pytest.mark.parametrize("mode", MODES)
def test_every_mode_becomes_rgb(tmp_path, mode):
    content, expected = MODES[mode]
    # Pillow goes by the content, not by the name
    path = tmp_path / "picture.png"
    path.write_bytes(content)
    tolerance = {"cmyk jpeg": 1, "damaged exif": 2}.get(mode, 0)
    assert np.abs(pixels(path) - expected).max() <= tolerance


def test_grey_without_a_known_white_is_refused(tmp_path):
    (tmp_path / "grey.tif").write_bytes(solid("I", 70_000, "TIFF"))
    assert "what is white?" in decode(str(tmp_path / "grey.tif"), (4, 4))


UPRIGHT = {
    3: lambda shown: np.rot90(shown, 2),
    5: lambda shown: shown.swapaxes(0, 1),
    6: lambda shown: np.rot90(shown, -1),
    7: lambda shown: np.rot90(shown, 2).swapaxes(0, 1),
    8: lambda shown: np.rot90(shown, 1),
}


@pytest.mark.parametrize("orientation", UPRIGHT)
@pytest.mark.parametrize("kind", ["png", "tiff"])
def test_exif_orientation(tmp_path, kind, orientation):
    exif = Image.Exif()
    exif[0x0112] = orientation
    path = tmp_path / f"turned.{kind}"
    Image.fromarray(stored()).save(path, exif=exif)
    expected = UPRIGHT[orientation](stored())
    assert_array_equal(pixels(path, expected.shape[:2]), expected)
    assert size_of(str(path)) == expected.shape[1::-1]


def test_a_png_with_long_text_has_its_pixels_and_damaged_ones_stay_damaged(tmp_path):
    data = b"prompt\0\0" + zlib.compress(bytes(3_000_000))
    checksum = zlib.crc32(b"zTXt" + data)
    text = struct.pack(">I", len(data)) + b"zTXt" + data + struct.pack(">I", checksum)
    content = encoded(Image.fromarray(stored()), "PNG")
    path = tmp_path / "long.png"
    for place in (33, -12):  # before the pixels, and after them
        path.write_bytes(content[:place] + text + content[place:])
        assert_array_equal(pixels(path, (4, 6)), stored())
    path.write_bytes(content[:33] + text + content[33:-30])
    assert isinstance(decode(str(path), (4, 6)), str)


def test_a_truncated_photograph_is_refused_whatever_pillows_switch_says(tmp_path, monkeypatch):
    content = encoded(Image.fromarray(stored(64, 64)), "JPEG")
    path = tmp_path / "cut.jpg"
    path.write_bytes(content[: len(content) // 3])
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    # in threads, which begin and end in any order
    with ThreadPoolExecutor(8) as pool:
        found = pool.map(lambda _: decode(str(path), (4, 4)), range(200))
        assert {type(content) for content in found} == {str}
    # what other packages have set, they find again
    assert ImageFile.LOAD_TRUNCATED_IMAGES


def test_centre_is_cut_out(tmp_path):
    wide = stored(4, 12)
    Image.fromarray(wide).save(tmp_path / "wide.png")
    assert_array_equal(pixels(tmp_path / "wide.png"), wide[:, 4:8])
    high = stored(12, 4)
    Image.fromarray(high).save(tmp_path / "high.png")
    assert_array_equal(pixels(tmp_path / "high.png"), high[4:8])


def test_shrinking_is_antialiased_also_of_a_large_jpeg(tmp_path):
    board = (np.indices((64, 64)).sum(0) % 2 * 255).astype(np.uint8)
    Image.fromarray(board).save(tmp_path / "board.png")
    assert np.abs(pixels(tmp_path / "board.png") - 127).max() <= 2
    image = Image.fromarray(stored(60, 80)).resize((800, 600))
    image.save(tmp_path / "photo.jpg", quality=95)
    image.save(tmp_path / "photo.png")
    small = pixels(tmp_path / "photo.jpg", (64, 64))
    assert np.abs(small - pixels(tmp_path / "photo.png", (64, 64))).mean() < 2


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
