#!/usr/bin/env bash
# One part of a build for each task of a SLURM array. The value of -o is a folder of parts on a shared disk.
#
#   PARTS=16 sbatch --array=1-16 scripts/slurm.sh index.json -o parts --tier lmdb
#   chordcache merge parts/* -o cache --move             # when the array has ended
#   PARTS=16 sbatch --array=2,7 scripts/slurm.sh ...     # the parts that are missing, as merge prints them
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

number=$((SLURM_ARRAY_TASK_ID + ${OFFSET:-0}))
arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    -o | --output) folder=${2:?is missing. Name the folder of the parts: -o parts}; shift 2 ;;
    *) arguments+=("$1"); shift ;;
  esac
done
: "${folder:?is not set. Name the folder of the parts: -o parts}"

# One process and no srun: srun would start the same part once for each of its tasks
exec chordcache build "${arguments[@]}" -o "$folder/$number" --part "$number/$PARTS" --jobs "${SLURM_CPUS_PER_TASK:-1}"
