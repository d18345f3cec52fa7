"""Seeds for generators, from what the random numbers are for."""

from __future__ import annotations

import hashlib


def seed_for(*purpose: object) -> int:
    """A 63-bit seed that depends on the purpose alone: the same on any machine, unrelated for any other purpose.

    Numbers that are keyed in this way need no stream that is passed around, saved and restored, and none of them moves
    when something else is drawn before it.
    """
    digest = hashlib.sha256("/".join(map(str, purpose)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1
