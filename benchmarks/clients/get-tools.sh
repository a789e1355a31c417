#!/bin/sh
# Gets the clients that come from the system's packages. Compilers and package managers of other
# languages are not installed: `make clients` says which it misses.
. "$(dirname "$0")/../../tests/packages.sh"
command -v h2load >/dev/null || install_packages "h2load" nghttp2-client
command -v curl >/dev/null || install_packages "curl" curl
exit 0
