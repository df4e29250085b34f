"""Start of the program, as `bridgemem` and `python -m bridgemem`: Ctrl-C while it loads ends in one sentence too."""

import sys

from bridgemem import INTERRUPTED


def main() -> None:
    try:
        # imported here and not above, so that an interrupt during the import is caught
        from bridgemem.cli.main import main as run

        run()
    except KeyboardInterrupt:
        sys.stderr.write(f"{INTERRUPTED}\n")
        sys.exit(1)


if __name__ == "__main__":
    main()
