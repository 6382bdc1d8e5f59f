"""The command `tailrace`: becomes the binary."""
import os
import sys

from . import TailraceError, binary


def main():
    try:
        path = str(binary())
        os.execv(path, [path, *sys.argv[1:]])
    except TailraceError as error:
        sys.exit(f"error: {error}")
    except OSError as error:
        sys.exit(f"error: {path} does not start on this machine: {error.strerror}")


if __name__ == "__main__":
    main()
