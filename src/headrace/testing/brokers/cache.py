"""The folder for what is fetched once: `$HEADRACE_CACHE`, else `.cache` of a source checkout, else the user's cache folder."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path:
    """The folder, made if it was not there."""
    if given := os.environ.get("HEADRACE_CACHE"):
        folder = Path(given)
    elif (checkout := Path(__file__).resolve().parents[4]).joinpath("Makefile").is_file():
        folder = checkout / ".cache"
    else:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "headrace"
    folder.mkdir(parents=True, exist_ok=True)
    return folder
