#!/bin/sh
# Installs the Debian packages of the light desktop that are missing: as root, or by sudo. Where neither is there, or no
# apt, it names them and stops.
set -eu
list="$(dirname "$0")/guest/packages.txt"

missing=""
for package in $(grep -v '^#' "$list"); do
    if ! dpkg-query --show --showformat '${db:Status-Status}' "$package" 2>/dev/null | grep -q '^installed$'; then
        missing="$missing $package"
    fi
done
if [ -z "$missing" ]; then
    exit 0
fi

if ! command -v apt-get >/dev/null; then
    echo "The light desktop needs these Debian packages, or what your system calls them:$missing" >&2
    echo "On a system without apt, host environments on a Debian or Ubuntu machine: arpo env-host --help" >&2
    exit 2
fi
if [ "$(id -u)" = 0 ]; then
    root=""
elif command -v sudo >/dev/null; then
    root="sudo"
else
    echo "Ask an administrator to install:$missing" >&2
    exit 2
fi
echo "Installing Debian packages:$missing"
$root apt-get update -qq
$root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
