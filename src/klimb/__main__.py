"""``python -m klimb`` is the command klimb."""

from klimb.cli import main

if __name__ == "__main__":
    main()
