"""Look into a queue file: `python -m headrace_local queue.db stats`. Exit codes: 0 done, 1 failed, 2 wrong use."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import closing
from pathlib import Path

from headrace import SourceMisconfigured, SourceUnavailable
from headrace_local.queue_file import QueueFile


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="python -m headrace_local", description="Look into a queue file, also while it is in use."
    )
    parser.add_argument("path", type=Path, help="the SQLite file")
    parser.add_argument("command", choices=["stats", "dead", "redrive"], help="figures, dead letters, or publish those again")
    parser.add_argument("--queue", default="default")
    given = parser.parse_args(arguments)
    if not given.path.exists():  # opening would make it
        print(f"there is no file {str(given.path)!r}", file=sys.stderr)
        return 1
    try:
        with closing(QueueFile(str(given.path))) as file:
            if given.command == "stats":
                print(json.dumps(file.stats(given.queue)))
            elif given.command == "redrive":
                print(f"{file.redrive(given.queue)} messages published again")
            else:
                for letter in file.dead_letters(given.queue):
                    print(json.dumps({"id": letter.message.id, "reason": letter.reason, "deliveries": letter.deliveries}))
    except (SourceUnavailable, SourceMisconfigured) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
