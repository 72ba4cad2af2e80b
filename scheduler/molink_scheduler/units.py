"""Sizes: bytes inside, GB and GiB only where people type or read them.

A GB is 10**9 bytes wherever it is typed or shown. A GiB is 2**30 and is written GiB: the memory of
cards and PCs is sold and reported in it. This module alone knows both numbers, so that no text and
no option can mean the one and say the other.
"""

MB, GB = 10**6, 10**9
GIB = 2**30


def bytes_of_gb(size_gb: float) -> int:
    """Bytes of a size that was typed in GB; the number must be finite."""
    return round(size_gb * GB)


def gb_text(size: float, digits: int = 1) -> str:
    """A size in GB with so many decimals; one that is too small for them has two figures."""
    value = size / GB
    return f"{value:.{digits}f} GB" if not size or value >= 10**-digits else f"{value:.2g} GB"


def gib_text(size: float, digits: int = 1) -> str:
    """A size in GiB with so many decimals."""
    return f"{size / GIB:.{digits}f} GiB"
