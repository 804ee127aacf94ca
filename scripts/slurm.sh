#!/usr/bin/env bash
# One part of a build for each task of a SLURM array. All parts build one cache on a shared disk.
#
#   PARTS=16 sbatch --array=1-16 scripts/slurm.sh index.json -o cache --tier lmdb
#   chordcache finish cache                              # when the array has ended
#   PARTS=16 sbatch --array=2,7 scripts/slurm.sh ...     # the parts that finish misses, as it prints them
#
# SLURM limits the numbers of an array (MaxArraySize, 1001 by default). OFFSET is added to them, for more parts:
#
#   PARTS=3000 OFFSET=1000 sbatch --array=1-1000 scripts/slurm.sh ...     # parts 1001 to 2000
#
#SBATCH --job-name=chordcache
#SBATCH --ntasks=1
#SBATCH --cpus-per-task=8
#SBATCH --requeue
#SBATCH --output=chordcache-%A_%a.log

set -euo pipefail

: "${PARTS:?is not set. Set it to the number of all parts, for example: PARTS=16 sbatch --array=1-16 scripts/slurm.sh ...}"
: "${SLURM_ARRAY_TASK_ID:?is not set. Submit this script with sbatch --array=1-$PARTS.}"

# One process and no srun: srun would start the same part once for each of its tasks
exec chordcache build "$@" --part "$((SLURM_ARRAY_TASK_ID + ${OFFSET:-0}))/$PARTS" --jobs "${SLURM_CPUS_PER_TASK:-1}"
