"""Speculative decoding as vLLM wants it described, from the first seed's variables. Looks for a folder, nothing else.

vLLM refuses keys that it does not know, so nothing is passed on that it has given up.
"""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

from shared.errors import SettingsError
from worker.settings import NGRAM, WITH_DRAFT, EngineSettings

log = logging.getLogger(__name__)


def speculative_config(settings: EngineSettings, root: Path = Path(".")) -> dict[str, Any] | None:
    """vLLM's `speculative_config`; None where nothing is to be guessed, or the draft model is not there.

    A method is passed on as it is written: vLLM has more than the seed knew, and checks the name itself.
    Raises SettingsError for a missing draft model that SPEC_DRAFT_OPTIONAL=0 makes a must.
    """
    if not settings.enable_speculative_decoding:
        return None
    method = settings.spec_method
    config: dict[str, Any] = {
        "method": method,
        "num_speculative_tokens": settings.spec_num_speculative_tokens,
    }
    if method.startswith(NGRAM):
        most = settings.spec_ngram_lookup_max
        config["prompt_lookup_max"] = most
        config["prompt_lookup_min"] = min(settings.spec_ngram_lookup_min, most)
        return config
    folder = _draft_folder(settings, root)
    if folder is None and method not in WITH_DRAFT:
        return config
    if folder is None or not folder.is_dir():
        why = "set SPEC_DRAFT_MODEL_DIR" if folder is None else f"there is no folder {folder}"
        if not settings.spec_draft_optional:
            raise SettingsError(f"SPEC_DRAFT_OPTIONAL=0: {why}")
        log.warning("speculation is off: %s", why)
        return None
    config["model"] = str(folder)
    if settings.spec_draft_max_model_len is not None:
        config["max_model_len"] = settings.spec_draft_max_model_len
    return config


def _draft_folder(settings: EngineSettings, root: Path) -> Path | None:
    if settings.spec_draft_model_dir is not None:
        return settings.spec_draft_model_dir
    model_id = settings.spec_draft_model_id
    return root / "model" / model_id if model_id else None
