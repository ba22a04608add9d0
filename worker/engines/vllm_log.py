"""Why vLLM failed: its processes write the cause to their log and tell us only that there is one. So
their errors go to a file of ours as well, beside where vLLM shows them.
"""

from __future__ import annotations

import copy
import json
import os
import re
import shutil
import tempfile
from pathlib import Path
from typing import Any

ERRORS = "errors.log"
PREFIX = "sluice-engine-"
LAST_LINE = re.compile(r"^(?:\w+\.)*(\w*(?:Error|Exception|Interrupt)): (.+)$", re.MULTILINE)
# They repeat in the outer process what the inner one has said.
WRAPPERS = ("Worker failed with error", "Engine core initialization", "EngineCore encountered")


class ErrorLog:
    """`config` goes to vLLM and from there to its processes; `cause` reads what they wrote."""

    def __init__(self) -> None:
        self._folder: Path | None = None
        self._seen = 0

    def config(self) -> Any:
        """A vLLM LoggingConfig: vLLM's own, and errors to the file."""
        from vllm.config.logging import LoggingConfig
        from vllm.logger import DEFAULT_LOGGING_CONFIG

        sweep_leftovers()
        self._folder = Path(tempfile.mkdtemp(prefix=f"{PREFIX}{os.getpid()}-"))
        described = copy.deepcopy(DEFAULT_LOGGING_CONFIG)
        described["formatters"]["errors"] = {"format": "%(message)s"}
        described["handlers"]["errors"] = {
            "class": "logging.FileHandler",
            "filename": str(self._folder / ERRORS),
            "level": "ERROR",
            "formatter": "errors",
            "delay": True,
        }
        described["loggers"]["vllm"]["handlers"].append("errors")
        path = self._folder / "logging.json"
        path.write_text(json.dumps(described))
        return LoggingConfig(pylogging_config_file=str(path))

    def forget(self) -> None:
        """What was written so far is no cause of what comes."""
        self._seen = len(self._written())

    def cause(self) -> str | None:
        """The first error since then that is not the echo of another."""
        text = self._written()[self._seen :].decode(errors="replace")
        for found in LAST_LINE.finditer(text):
            kind, said = found.groups()
            if not said.startswith(WRAPPERS):
                return f"{kind}: {said.strip()}"
        return None

    def close(self) -> None:
        if self._folder is not None:
            shutil.rmtree(self._folder, ignore_errors=True)

    def _written(self) -> bytes:
        if self._folder is None or not (self._folder / ERRORS).is_file():
            return b""
        return (self._folder / ERRORS).read_bytes()


def sweep_leftovers() -> None:
    """The folders of processes that are no more: whoever has to exit at once leaves its own behind."""
    import psutil

    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*-*"):
        pid = folder.name.removeprefix(PREFIX).partition("-")[0]
        if pid.isdecimal() and not psutil.pid_exists(int(pid)):
            shutil.rmtree(folder, ignore_errors=True)
