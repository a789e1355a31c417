#!/bin/sh
# get-promtool.sh PROGRAM: gets promtool out of Debian's package `prometheus`. Nothing is installed:
# the package would start a server.
. "$(dirname "$0")/packages.sh"
program="$1"
directory="$program.parts"
echo "getting promtool"
rm -rf "$directory"
mkdir -p "$directory"
download() { (cd "$directory" && apt-get download --quiet=2 prometheus) >"$program.log" 2>&1; }
if command -v apt-get >/dev/null && { download || { root apt-get update --quiet=2 >/dev/null && download; }; } &&
	dpkg -x "$directory"/prometheus_*.deb "$directory" >>"$program.log" 2>&1; then
	mv "$directory/usr/bin/promtool" "$program"
else
	echo "promtool could not be had, see $program.log; its tests will be skipped: Debian's package prometheus has it"
fi
rm -rf "$directory"
exit 0
