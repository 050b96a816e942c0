"""`neuralsort`, before anything large is loaded: the process gets its settings first."""

import sys

from neuralsort.runtime.process import restart_with_settings


def main() -> int:
    """Starts again with the settings if need be, then runs the command line."""
    restart_with_settings()
    from .cli import main

    return main()


if __name__ == "__main__":
    sys.exit(main())
