"""Known files: the names that the folder of a backbone or a run may hold, and no link or special file among them.

A folder may come from an untrusted source. A symbolic link in it could lead to any file of this machine, and what a run
holds is copied, read and sent to a hub.
"""

from __future__ import annotations

import os
import re
import stat
from pathlib import Path

from bridgemem.errors import RunError

_BACKBONE = r"config\.toml|weights\.safetensors|(?:trained|tuning)\.json|scores-[0-9]{5,9}\.(?:safetensors|npy)"
_SPLIT = r"(?:train|valid|test)"
_RUN = "|".join(
    (
        r"README\.md|config\.toml|entities\.txt|relations\.txt|aliases\.csv|data\.npz|(?:model|merged)\.safetensors",
        r"(?:epochs|heads|refresh|continues|updates|selection|calibration)\.json",
        r"metrics(?:\.horizon[0-9]{1,9}|\.what|\.whether|\.strata)?\.json",
        rf"ranks(?:\.{_SPLIT})?\.(?:parquet|npz)",
        rf"(?:backbone|renewed)/(?:{_BACKBONE})",
        rf"shards/{_SPLIT}-[0-9]{{5,9}}-of-[0-9]{{5,9}}\.(?:json|parquet|npz)",
    )
)
BACKBONE_FILE, RUN_FILE = re.compile(_BACKBONE), re.compile(_RUN)


def refuse_links(folder: Path) -> None:
    """Refuse a folder with anything in it, at any depth, that is neither a plain file nor a folder."""
    for at, folders, files in os.walk(folder):
        for name in (*folders, *files):
            path = Path(at) / name
            try:
                mode = path.lstat().st_mode
            except FileNotFoundError:  # a temporary file of a process that writes into the folder
                continue
            if stat.S_ISLNK(mode):
                raise RunError(
                    f"{path} is a symbolic link, which may lead to any file of this machine; put the file itself there "
                    "if you trust the folder."
                )
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode)):
                raise RunError(f"{path} is a special file, which no saved model has; remove it.")


def backbone_files(folder: Path) -> list[Path]:
    """The files that make a saved backbone, without other files of the folder."""
    refuse_links(folder)
    return sorted(path for path in Path(folder).iterdir() if BACKBONE_FILE.fullmatch(path.name) and path.is_file())
