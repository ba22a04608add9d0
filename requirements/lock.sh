#!/usr/bin/env bash
# Compiles every `*.in` here into a fully pinned lock beside it (`make lock`; needs `uv`). UPGRADE=1 takes newer releases.
# The CPU worker set is the widest, so it is solved first and the others are held to its versions: any of the locks can then
# be installed together with `api`, `cli` and `dev`.
set -eu
cd "$(dirname "$0")"
export UV_CUSTOM_COMPILE_COMMAND="make lock"

compile() { # name, then options
    local name=$1
    shift
    ${UV:-uv} pip compile --quiet --universal --python-version 3.11 --no-emit-index-url --annotation-style line \
        ${UPGRADE:+--upgrade} --override overrides.txt "$@" "$name.in" --output-file "$name.txt"
    echo "$name.txt: $(grep -c == "$name.txt") packages"
}

compile worker-cpu --override overrides-torch.txt
for name in api cli dev; do
    compile "$name" --constraint worker-cpu.txt
done
compile worker-transformers --override overrides-torch.txt --constraint worker-cpu.txt
compile worker-cuda --constraint api.txt --constraint cli.txt --constraint dev.txt
# Never installed with the others: each peer has the versions that it asks for itself.
for name in peer-arq peer-taskiq; do
    compile "$name"
done
