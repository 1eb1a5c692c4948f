#!/usr/bin/env bash
# Breaks one line after the other of what must not break, each in a copy of the tree, and shows which test notices:
# tests/mutations/run.py says how, tests/mutations/table says what.
#
#     tests/mutations.sh            all of them
#     tests/mutations.sh NAME…      some
#     tests/mutations.sh --list     what there is
#     tests/mutations.sh --check    whether the table still fits the code
exec python3 "$(dirname "$0")/mutations/run.py" "$@"
