"""What tells the functions that the front ends return from others, in rooms below them."""

from __future__ import annotations


class FrontEndFunction:
    """A function that `shard_map`, `xmap` or `pmap` returned: the user says what it splits."""
