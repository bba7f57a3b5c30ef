#!/bin/bash
# Two nodes with two ranks each, on one machine: what `srun` would start once on each node.
#   bash two_nodes.sh SCRIPT RUN
for node in 0 1; do
    trueline run --out "$2" -- torchrun --nnodes 2 --node-rank $node --nproc-per-node 2 \
        --master-addr 127.0.0.1 --master-port 29511 "$1" &
done
wait
