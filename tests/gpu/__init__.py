"""What only a GPU can show, as one command: `python -m tests.gpu` (see __main__.py)."""
