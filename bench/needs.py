"""Prints what an installed package requires here, some packages left out.

`needs.py PACKAGE LEFT_OUT...`, with the Python that the package is installed for.
"""

import re
import sys
from importlib.metadata import requires


def needs(package: str, left_out: set[str]) -> list[str]:
    """Its requirements for this platform, without extras and without what is left out."""
    # pip comes with every environment, and with it the reader of markers.
    from pip._vendor.packaging.requirements import Requirement

    found = [Requirement(text) for text in requires(package) or []]
    here = [need for need in found if need.marker is None or need.marker.evaluate({"extra": ""})]
    return [str(need) for need in here if re.sub(r"[-_.]+", "-", need.name).lower() not in left_out]


if __name__ == "__main__":
    print("\n".join(needs(sys.argv[1], set(sys.argv[2:]))))
