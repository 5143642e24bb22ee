"""How `glyphs.npz` was made: `python tools/embed_glyphs.py SOURCE.npz TARGET.npz`.

SOURCE holds `images` uint8 (n, 32, 32), `labels`, `font`, `font_names` and `font_licence`: handwriting fonts of the
npm packages @fontsource/<name>, rendered. Fonts whose package names its licence in full are kept (SIL Open Font
License 1.1 or Apache License 2.0), in 16 grey levels, two pixels a byte.
"""

import sys
from pathlib import Path

import numpy as np

LICENCES = ("SIL Open Font License, 1.1", "Apache License, Version 2.0")


def pack(source: Path, target: Path) -> None:
    """Write the packed glyphs of a source, with the name and licence of each font."""
    with np.load(source, allow_pickle=False) as archive:
        images, labels, font = archive["images"], archive["labels"], archive["font"]
        names, licences = archive["font_names"], archive["font_licence"]
    kept = np.flatnonzero(np.isin(licences, LICENCES))
    rows = np.isin(font, kept)
    levels = np.round(images[rows] / 17).astype(np.uint8)
    np.savez_compressed(
        target,
        packed=levels[:, :, ::2] << 4 | levels[:, :, 1::2],
        labels=labels[rows].astype(np.uint8),
        font=np.searchsorted(kept, font[rows]).astype(np.uint8),
        font_names=names[kept],
        font_licence=licences[kept],
        provenance=np.array(
            "Rendered at 32x32 from the handwriting fonts named in font_names (npm packages @fontsource/<name>), "
            "each under the licence in font_licence; 62 glyphs a font in the order 0-9 A-Z a-z; 16 grey levels."
        ),
    )


if __name__ == "__main__":
    pack(Path(sys.argv[1]), Path(sys.argv[2]))
