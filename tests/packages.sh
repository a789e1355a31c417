# For the get-*.sh beside it. What cannot be had is named; the tests that need it then say so,
# and fail where CI is set.

# root COMMAND...: runs a command as root, if that needs no password.
root() {
	if [ "$(id -u)" = 0 ]; then
		"$@"
	else
		sudo -n "$@" 2>/dev/null
	fi
}

# install_packages WHAT PACKAGE...: installs Debian packages, if that needs no password.
install_packages() {
	what="$1"
	shift
	if [ "$(id -u)" = 0 ]; then
		as_root=""
	elif sudo -n true 2>/dev/null; then
		as_root="sudo -n"
	else
		echo "missing: $what; its tests will be skipped: sudo apt install $*"
		return
	fi
	echo "installing $what"
	export DEBIAN_FRONTEND=noninteractive
	install="$as_root apt-get install --yes --quiet=2 --no-install-recommends $*"
	$install >/dev/null 2>&1 || { $as_root apt-get update --quiet=2 && $install >/dev/null; } ||
		echo "could not be installed, see above: $what; its tests will be skipped"
}
