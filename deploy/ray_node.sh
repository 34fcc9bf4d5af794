#!/usr/bin/env bash
# A node of the Ray cluster that AReaL uses (docs/areal-cluster.md). It runs until it is ended.
#   deploy/ray_node.sh head           [options of ray start]    on the first node
#   deploy/ray_node.sh HOST:6379      [options of ray start]    on every other one, with the first node's address
# Set before: the variables that workers need (the desktop server's key, HF_HOME), because Ray's workers inherit them
# from here. DESKHAND_AREAL_PYTHON names the Python with AReaL, if it is not the one that scripts/environment made.
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)

if [ $# = 0 ]; then
    echo "usage: deploy/ray_node.sh head|HOST:PORT [options of ray start]" >&2
    exit 2
fi
role=$1
shift
python=${DESKHAND_AREAL_PYTHON:-$("$root/scripts/environment" areal)/bin/python}
if ! "$python" -c 'import importlib.util, sys; sys.exit(importlib.util.find_spec("ray") is None)'; then
    echo "error: $python: has no Ray; set DESKHAND_AREAL_PYTHON to the Python of AReaL's environment" >&2
    exit 2
fi
PATH=$(dirname "$python"):$PATH
export PATH
export PYTHONPATH="$root${PYTHONPATH:+:$PYTHONPATH}"
export RAY_worker_niceness=0 # AReaL's workers are no background work

if [ "$role" = head ]; then
    set -- --head --port=6379 "$@"
else
    set -- --address="$role" "$@"
fi
exec "$python" -m ray.scripts.scripts start --block --disable-usage-stats "$@"
