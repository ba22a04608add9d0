"""Keeps Python's cyclic garbage collector from walking again and again over what lives as long as the process.

At its default of 700 allocations the collector takes a tenth of a busy process's time, since every queued request and
every engine's tables are looked through each time. Reference counts free almost all that a request leaves behind.
"""

from __future__ import annotations

import gc

# Young objects until a look at them, and looks until one at the older ones.
THRESHOLDS = (20_000, 20, 50)


def settle() -> None:
    """Once a process has started: what exists now is not looked at again."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
