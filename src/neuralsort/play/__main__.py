"""`python -m neuralsort.play`: opens the page, without any extra."""

from . import play

if __name__ == "__main__":
    play()
