#!/bin/sh
# Puts the digests of images into files that name them: `FROM name:tag` and `image: name:tag` become
# name:tag@sha256:… as the registry has them now. What has a digest already gets the present one.
# It needs docker with buildx, and a registry:
#
#   docker/pin.sh docker/Dockerfile docker/compose.yaml docker/compose.ring.yaml deploy/kustomize/redis/*.yaml
set -eu

for file in "$@"; do
	images=$(sed -n -E 's/^(FROM|[[:space:]]*(- )?image:)[[:space:]]+"?([a-z0-9./_-]+:[A-Za-z0-9._-]+).*/\3/p' "$file")
	for image in $(printf '%s\n' "$images" | sort -u); do
		digest=$(docker buildx imagetools inspect --format '{{.Manifest.Digest}}' "$image")
		case "$digest" in
		sha256:*) ;;
		*)
			echo "$image: the registry says no digest, but: $digest" >&2
			exit 1
			;;
		esac
		pattern=$(printf '%s' "$image" | sed 's/[.]/[.]/g')
		sed -i -E "s#^((FROM|[[:space:]]*(- )?image:)[[:space:]]+\"?$pattern)(@sha256:[0-9a-f]+)?([[:space:]\"]|\$)#\\1@$digest\\5#" "$file"
		echo "$file: $image@$digest"
	done
done
