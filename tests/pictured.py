"""What a picture holds, for tests to look into: whatever JSON may hold."""

from typing import Any

from muster.pictures import Picture, Table


def numbers_of(picture: Picture) -> dict[str, Any]:
    """The picture's numbers, by name."""
    return dict(picture.numbers)


def rows_of(picture: Picture, title: str) -> dict[Any, tuple[Any, ...]]:
    """The rows of the table whose title starts so, by their first cell."""
    table = next(
        block for block in picture.blocks if isinstance(block, Table) and block.title.startswith(title)
    )
    return {row[0]: row for row in table.rows}
