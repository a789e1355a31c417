#!/bin/sh
# build-recipes.sh DIRECTORY: builds the recipes of examples/clients that take minutes, where their
# tools are there. `make tools` has those that do not.
out=$1
cd "$(dirname "$0")/../examples/clients" || exit 1
mkdir -p "$out"
if command -v mvn >/dev/null && command -v java >/dev/null; then
	echo "building the recipe in Java"
	(cd java && mvn -B -q "-Doutput=$out/java" process-classes) >"$out/java.log" 2>&1 ||
		echo "it could not be built, see $out/java.log"
else
	echo "the recipe in Java is left out: java or mvn is missing"
fi
if command -v cargo >/dev/null; then
	echo "building the recipe in Rust"
	(cd rust && cargo build --locked --target-dir "$out/rust") >"$out/rust.log" 2>&1 ||
		echo "it could not be built, see $out/rust.log"
else
	echo "the recipe in Rust is left out: cargo is missing"
fi
exit 0
