"""Start of the program, as `bridgemem` and `python -m bridgemem`: Ctrl-C while it loads ends in one sentence too."""

import os
import sys

from bridgemem import INTERRUPTED

# threads that have nothing to do leave the processor to others: as fast, a quarter fewer processor seconds, and no
# stall on a busy machine; read when torch is loaded
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")


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
