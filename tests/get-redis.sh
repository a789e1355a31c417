#!/bin/sh
# Gets redis-server from the system's packages.
. "$(dirname "$0")/packages.sh"
install_packages "redis-server" redis-server
