#!/bin/sh
# Prints each image of the compose file, and what agents' images are made of, with the digest that its tag has in its
# registry now:
#   sh deploy/pin_images.sh >> .env
# Needs Docker with buildx, and the registry.
set -eu
cd "$(dirname "$0")/.."

sed -n -e 's/.*${\([A-Z_]*_IMAGE\):-\([^}]*\)}.*/\1 \2/p' -e 's/^ARG \([A-Z_]*_IMAGE\)=\(.*\)/\1 \2/p' \
  docker-compose.temporal.yml deploy/kubernetes/agent.Dockerfile | sort -u | while read -r name image; do
  digest=$(docker buildx imagetools inspect "$image" --format '{{.Manifest.Digest}}' </dev/null)
  case $digest in
    sha256:*) echo "$name=$image@$digest" ;;
    *) echo "no digest of $image: $digest" >&2; exit 1 ;;
  esac
done
