#!/bin/sh
# Prints the path of a redis-server 7.0, the oldest release that will do: Debian's packages, unpacked into build/redis7. Nothing is
# installed and no service is set up, so it needs no root.
set -eu
cd "$(dirname "$0")/.."
folder=$PWD/build/redis7
server=$folder/redis-server

if [ ! -x "$server" ]; then
    mkdir -p "$folder/lists/partial" "$folder/archives/partial" && cd "$folder"
    packages="redis-server redis-tools liblzf1 libjemalloc2 libatomic1"
    if ! apt-get download $packages >&2; then
        # No lists of packages are there, as in slim images: fetched into a folder of our own.
        own="-o Dir::State::lists=$folder/lists -o Dir::Cache=$folder -o Debug::NoLocking=1"
        apt-get $own update >&2 && apt-get $own download $packages >&2
    fi
    for package in ./*.deb; do
        dpkg -x "$package" unpacked
    done
    libraries=$(dirname "$(find "$PWD/unpacked" -name 'liblzf.so.1')")
    # The wrapper becomes the server, so that a signal to it is one to the server.
    printf '#!/bin/sh\nLD_LIBRARY_PATH=%s exec %s "$@"\n' "$libraries" "$PWD/unpacked/usr/bin/redis-server" >"$server"
    chmod +x "$server"
fi
case "$("$server" --version)" in
*v=7.0.*) echo "$server" ;;
*)
    echo "wanted is redis-server 7.0, as Debian 12 has it; this is $("$server" --version)" >&2
    exit 1
    ;;
esac
