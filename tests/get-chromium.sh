#!/bin/sh
# Gets a browser for the tests of pages from the system's packages. CI wants it; `make test` takes
# one that is there, since it is large.
. "$(dirname "$0")/packages.sh"
install_packages "chromium" chromium
