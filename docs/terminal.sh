#!/usr/bin/env bash
# What docs/img/terminal.svg shows. Made in a copy of docs/walkthroughs, with asciinema (PyPI) and svg-term-cli (npm):
#   asciinema rec --cols 100 --rows 30 --idle-time-limit 1.5 -c "bash terminal.sh" terminal.cast
#   svg-term --in terminal.cast --out terminal.svg --window --no-cursor --width 100 --height 30
type_and_run() {
    printf '\033[1;32m$\033[0m '
    for ((at = 0; at < ${#1}; at++)); do printf '%s' "${1:at:1}"; sleep 0.03; done
    printf '\n'
    eval "$1"
    sleep 2.5
}
type_and_run 'trueline run --out runs/job -- torchrun --nproc-per-node 4 bad_rank.py 2>/dev/null'
type_and_run 'trueline check runs/job | head -n 24'
