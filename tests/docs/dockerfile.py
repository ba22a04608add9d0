"""Reads a Dockerfile as far as its checks need it: instructions with their words, and what each stage ends with."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path

from tests.architecture.source_tree import ROOT

FOLDER = ROOT / "deploy" / "docker"


@dataclass(frozen=True)
class Instruction:
    word: str
    rest: str

    @property
    def words(self) -> list[str]:
        return self.rest.split()


@dataclass(frozen=True)
class Dockerfile:
    path: Path
    instructions: tuple[Instruction, ...]

    @classmethod
    def read(cls, name: str) -> Dockerfile:
        path = FOLDER / f"{name}.Dockerfile"
        kept = [line for line in path.read_text("utf-8").splitlines() if not line.startswith("#")]
        text = re.sub(r"\\\n", " ", "\n".join(kept))
        found = []
        for line in filter(None, map(str.strip, text.split("\n"))):
            word, _, rest = line.partition(" ")
            found.append(Instruction(word.upper(), rest.strip()))
        return cls(path, tuple(found))

    def all(self, word: str) -> list[Instruction]:
        return [i for i in self.instructions if i.word == word]

    def only(self, word: str) -> str:
        found = self.all(word)
        assert len(found) == 1, f"{self.path.name} has {len(found)} {word}"
        return found[0].rest

    def command(self) -> list[str]:
        words = json.loads(self.only("CMD"))
        assert isinstance(words, list)
        return [str(word) for word in words]

    def env(self) -> dict[str, str]:
        pairs = [word for i in self.all("ENV") for word in i.words]
        return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}

    def args(self) -> dict[str, str]:
        pairs = [i.rest for i in self.all("ARG")]
        return {name: value for name, _, value in (pair.partition("=") for pair in pairs)}

    def copies(self) -> list[str]:
        """Sources of COPY, relative to the root."""
        return [source for i in self.all("COPY") for source in i.words[:-1]]

    def locks(self) -> set[str]:
        """Names of the lock files that RUN installs; one from an ARG is named by its default."""
        found: set[str] = set()
        for run in self.all("RUN"):
            text = run.rest
            for name, value in self.args().items():
                text = text.replace("${" + name + "}", value)
            if "requirements/${set}.txt" in text:
                loop = re.search(r"for set in ([^;]*);", text)
                assert loop is not None
                found |= {word.strip('"') for word in loop.group(1).split()}
            found |= set(re.findall(r"-r requirements/([\w-]+)\.txt", text))
        return found


NAMES = sorted(path.name.removesuffix(".Dockerfile") for path in FOLDER.glob("*.Dockerfile"))
