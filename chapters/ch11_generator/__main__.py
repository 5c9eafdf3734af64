"""`python -m chapters.ch11_generator`."""

import sys

if __name__ == "__main__":
    try:
        from chapters.ch11_generator.cli import main

        code = main()
    except KeyboardInterrupt:  # before `main` could take care of it
        code = 130
    sys.exit(code)
