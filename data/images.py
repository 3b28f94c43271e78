"""Images as square RGB pixels: decoded, turned upright, converted and resized once, as transformers' pipelines do.

Files are not trusted: only plain raster formats are opened, and no image with more than `MAX_PIXELS` pixels.
"""

import io
import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

CHANNELS = 3  # every pipeline of transformers converts images to RGB
MAX_PIXELS = 100_000_000  # maximum number of pixels of an image: 400 MB in memory
TOO_LARGE = f"it has more than the {MAX_PIXELS // 1_000_000:,} million pixels that are allowed"
FORMATS = {
    "BMP": (".bmp",),
    "GIF": (".gif",),
    "JPEG": (".jpg", ".jpeg"),
    "PNG": (".png",),
    "PPM": (".pbm", ".pgm", ".ppm"),
    "TIFF": (".tif", ".tiff"),
    "WEBP": (".webp",),
}
"""The formats that are read, with the extensions of their files; from an animation, the first picture."""
ENDINGS = tuple(ending for endings in FORMATS.values() for ending in endings)


def pillow() -> Any:
    """Return the module `PIL.Image`; an ImportError says how to install it."""
    try:
        from PIL import Image
    except ImportError as error:
        raise ImportError("images need Pillow: pip install 'vanillaformer[vision]'") from error
    return Image


def read_image(source: bytes | str | os.PathLike[str]) -> Any:
    """Return an image as a `PIL.Image.Image` in RGB; the message of a ValueError follows the name of the file."""
    library = pillow()
    if not isinstance(source, bytes) and not Path(source).is_file():
        raise ValueError("the file does not exist")
    try:
        with (
            warnings.catch_warnings(action="ignore"),  # of palettes, metadata and sizes below the limit
            library.open(io.BytesIO(source) if isinstance(source, bytes) else source, formats=tuple(FORMATS)) as image,
        ):
            if image.width * image.height > MAX_PIXELS:
                raise ValueError(TOO_LARGE)
            return as_rgb(image)
    except library.DecompressionBombError:
        raise ValueError(TOO_LARGE) from None
    except library.UnidentifiedImageError:
        names = ", ".join(FORMATS)
        raise ValueError(f"it is not an image ({names}), or its beginning is damaged") from None
    except Exception as error:  # Pillow raises various errors for damaged files
        raise ValueError(" ".join(str(error).split()) or type(error).__name__) from error


def as_rgb(image: Any) -> Any:
    """Return an image turned upright as its metadata says, in RGB; transparency is left out, 16 bits become 8."""
    import numpy as np
    from PIL import Image, ImageOps

    if image.mode in ("F", "I"):  # the value of white is unknown
        raise ValueError(f"its pixels are 32-bit numbers (mode {image.mode}): save it with 8 or 16 bits per channel")
    image = ImageOps.exif_transpose(image)
    if image.mode.startswith("I;16"):  # the highest 8 bits are kept, where Pillow would clip to white
        image = Image.fromarray((np.asarray(image).astype(np.uint16) >> 8).astype(np.uint8))
    return image.convert("RGB")


def pixels(source: bytes | str | os.PathLike[str], size: int) -> bytes:
    """Return the pixels of an image, `size` rows of `size` columns of red, green and blue; raises as `read_image`."""
    image = read_image(source)
    if image.size != (size, size):  # resized, not cut, as `ViTImageProcessor` does by default
        image = image.resize((size, size), pillow().Resampling.BILINEAR)
    return image.tobytes()


def image_files(folder: Path) -> Iterator[Path]:
    """Yield the images in a folder and its subfolders, sorted, without hidden files but with broken links."""
    for path in sorted(folder.rglob("*")):
        hidden = any(part.startswith(".") for part in path.relative_to(folder).parts)
        if path.suffix.lower() in ENDINGS and not path.is_dir() and not hidden:
            yield path
