#!/bin/sh
# Installs the missing Debian packages of the light desktop, as root or with sudo. Without apt, root and sudo, it prints
# the missing packages and exits with status 2.
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
    echo "The light desktop needs these Debian packages, or their equivalents on your system:$missing" >&2
    echo "apt-get is not available here. Run the environments on a Debian or Ubuntu machine instead: arpo env-host --help" >&2
    exit 2
fi
if [ "$(id -u)" = 0 ]; then
    root=""
elif command -v sudo >/dev/null; then
    root="sudo"
else
    echo "Installing Debian packages needs root or sudo. Ask an administrator to install:$missing" >&2
    exit 2
fi
echo "Installing Debian packages:$missing"
$root apt-get update -qq
$root env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing >/dev/null
