"""`python -m bridgemem`: the program where its script is not on the path."""

from bridgemem.cli.main import main

if __name__ == "__main__":
    main()
