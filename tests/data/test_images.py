"""Images of every mode become RGB pixels, and what cannot be read is an error of one line."""

import io
import struct
import zlib

import numpy as np
from PIL import Image
from refusals import refused

from vanillaformer.data import images
from vanillaformer.data.images import as_rgb, image_files, pixels, read_image
from vanillaformer.data.preprocessing.images import image_processor

RAMP = np.arange(0, 256, 4, dtype=np.uint8).reshape(8, 8)


def png(image, **options):
    stream = io.BytesIO()
    image.save(stream, options.pop("format", "PNG"), **options)
    return stream.getvalue()


def array(data, size=8):
    return np.frombuffer(data, np.uint8).reshape(size, size, 3)


def test_every_mode_becomes_rgb():
    for mode in ("L", "RGB", "RGBA", "P", "LA"):
        found = array(pixels(png(Image.fromarray(RAMP).convert(mode)), 8))
        assert (found == RAMP[:, :, None]).all(), mode
    cmyk = png(Image.fromarray(RAMP).convert("RGB").convert("CMYK"), format="TIFF")
    assert np.abs(array(pixels(cmyk, 8)).astype(int) - RAMP[:, :, None]).max() <= 1
    bits = png(Image.fromarray(RAMP).point(lambda value: 255 * (value > 100), mode="1"))
    assert set(array(pixels(bits, 8)).ravel().tolist()) == {0, 255}
    deep = Image.fromarray(RAMP.astype(np.uint16) * 257)
    assert deep.mode.startswith("I;16")
    assert (array(pixels(png(deep), 8)) == RAMP[:, :, None]).all(), "not clipped to white"


def test_an_image_is_turned_as_its_metadata_says():
    for image in (Image.fromarray(RAMP), Image.fromarray(RAMP.astype(np.uint16) * 257)):
        exif = image.getexif()
        exif[0x0112] = 6  # to be turned clockwise
        assert (array(pixels(png(image, exif=exif), 8))[..., 0] == np.rot90(RAMP, -1)).all()


def test_another_size_is_resized_as_the_processor_does():
    colors = np.random.default_rng(0).integers(0, 256, (11, 17, 3), dtype=np.uint8)
    ours = array(pixels(png(Image.fromarray(colors)), 8)) / 255
    processor = image_processor(8, [0.0] * 3, [1.0] * 3)
    theirs = processor(Image.fromarray(colors), return_tensors="np")["pixel_values"][0]
    np.testing.assert_allclose(ours.transpose(2, 0, 1), theirs, atol=1e-6)


def test_what_cannot_be_read_is_an_error(tmp_path, monkeypatch):
    whole = png(Image.fromarray(np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)))
    program = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\nshowpage\n"  # which is not run
    messages = dict.fromkeys((b"", b"GIF8 text", program), "not an image")
    messages |= {whole[: len(whole) // 2]: "truncated", whole.replace(b"IDAT", b"IDOT"): "."}
    for data, message in messages.items():
        refused(message, pixels, data, 8)
        (tmp_path / "a.png").write_bytes(data)
        refused(message, pixels, tmp_path / "a.png", 8)
    refused("does not exist", pixels, tmp_path / "missing.png", 8)
    refused("32-bit numbers", as_rgb, Image.fromarray(RAMP.astype(np.float32)))
    monkeypatch.setattr(images, "MAX_PIXELS", 1_000)
    refused("it has more than", pixels, whole, 8)


def test_a_decompression_bomb_takes_no_memory():
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    for side in (12_000, 100_000):  # the second is refused by Pillow itself
        header = struct.pack(">IIBBBBB", side, side, 8, 2, 0, 0, 0)
        bomb = b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(bytes(1_000)))
        refused("it has more than the 100 million pixels that are allowed", read_image, bomb)


def test_images_of_a_folder(tmp_path):
    for name in ("b/2.PNG", "b/1.jpg", "a/x.webp", "a/.hidden.png", ".git/y.png", "notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    found = [path.relative_to(tmp_path).as_posix() for path in image_files(tmp_path)]
    assert found == ["a/x.webp", "b/1.jpg", "b/2.PNG"]
