"""Names that a model gives, which may have any characters, on a terminal."""


def printable(text: str) -> str:
    """`text` on one line: characters without a glyph, such as line breaks and controls, as Python writes them."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)
