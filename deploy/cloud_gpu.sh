#!/usr/bin/env bash
# Starts a training run in a container on a rented machine with one NVIDIA GPU (docs/deployment.md).
#   deploy/cloud_gpu.sh CONFIG RUN_NAME [--set KEY=VALUE ...]
# Runs are kept in DESKHAND_RUNS (default: ./runs) of the machine, models in DESKHAND_MODELS (default: ./models). The
# same line resumes a run. DESKHAND_IMAGE (default: deskhand) is the image of deploy/Dockerfile.
set -euo pipefail

if [ $# -lt 2 ]; then
    echo "usage: deploy/cloud_gpu.sh CONFIG RUN_NAME [--set KEY=VALUE ...]" >&2
    exit 2
fi
config=$1 name=$2
shift 2
case $name in */* | .* | "") echo "error: $name: must be a name, not a path" >&2 && exit 2 ;; esac
runs=$(realpath -m "${DESKHAND_RUNS:-runs}") models=$(realpath -m "${DESKHAND_MODELS:-models}")
mkdir -p "$runs" "$models"

# The container's user is the caller, who thus owns the runs. Desktops need shared memory; tokens come from the
# environment by name, so no value is on the command line.
docker=(docker run --rm --init --gpus all --shm-size 8g --user "$(id -u):$(id -g)" --env HOME=/models --env HF_HOME=/models
    --env HF_TOKEN --env WANDB_API_KEY --volume "$runs:/runs" --volume "$models:/models" "${DESKHAND_IMAGE:-deskhand}")
[ -t 0 ] && docker=("${docker[@]:0:2}" -it "${docker[@]:2}")
if [ -e "$runs/$name/run.sqlite" ]; then
    exec "${docker[@]}" train --resume "/runs/$name"
fi
"${docker[@]}" doctor
exec "${docker[@]}" train "$config" "/runs/$name" "$@"
