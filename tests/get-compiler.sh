#!/bin/sh
# Gets a C compiler and Python's headers from the system's packages.
. "$(dirname "$0")/packages.sh"
install_packages "a C compiler" gcc libc6-dev python3-dev
