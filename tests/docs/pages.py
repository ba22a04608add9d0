"""The pages of the documentation: what stands in their code and which links they hold."""

from __future__ import annotations

import re
from functools import cache

from tests.architecture.source_tree import ROOT, files

NAMES = sorted(path for path in files() if path.endswith(".md"))


@cache
def text(name: str) -> str:
    return (ROOT / name).read_text("utf-8")


def blocks(name: str, language: str = r"\w*") -> list[str]:
    """Fenced blocks of a language."""
    return re.findall(rf"^```{language}\n(.*?)^```$", text(name), re.MULTILINE | re.DOTALL)


def spans(name: str) -> list[str]:
    """Inline code."""
    outside = re.sub(r"^```.*?^```$", "", text(name), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"`([^`\n]+)`", outside)


def code(name: str) -> list[str]:
    return blocks(name) + spans(name)


def links(name: str) -> list[str]:
    outside = re.sub(r"^```.*?^```$", "", text(name), flags=re.MULTILINE | re.DOTALL)
    return re.findall(r"\]\(([^)\s]+)\)", outside)


def anchors(name: str) -> set[str]:
    """What GitHub makes of the headings."""
    heads = re.findall(r"^#+ (.+)$", text(name), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}
