"""The waiting process: `python -P -u -m synergy_launch.warm_start FD MODULE...`; see client.py, which starts it."""

import sys

from synergy_launch.warm_start import server

if __name__ == "__main__":
    server.main(sys.argv[1:])
