"""The limit of open files: every waiting caller and every connection is one. Touches nothing else."""

from __future__ import annotations

import resource
import sys

MAC_OPEN_FILES = 10_240  # macOS says "unlimited" and means this


def raise_open_files() -> int:
    """Lifts the limit of open files to the hard one; children inherit it. Returns the limit."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = hard
    if hard == resource.RLIM_INFINITY and sys.platform == "darwin":
        wanted = MAC_OPEN_FILES
    if soft != wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
        except (OSError, ValueError):
            return soft  # a container may forbid it; what is there will do
    return wanted
