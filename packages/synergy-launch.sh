#!/bin/sh
# torch is the user's: the launcher runs in the Python that the job's PATH names.
exec python3 /usr/lib/synergy-launch/synergy-launch "$@"
