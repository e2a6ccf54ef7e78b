#!/bin/sh
# Steps of docker/Dockerfile on a Debian image with Rust: `setup` installs what TARGETARCH
# needs beside BUILDARCH, `profile FILE` measures which code runs how often, if this machine can run
# the binary, and `build FILE` builds it, for the profile that $PENSTOCK_PROFILE names if that is
# there. BUILDARCH and TARGETARCH are Docker's: amd64 or arm64; absent = this machine's.
set -eu
build_arch=${BUILDARCH:-$(dpkg --print-architecture)}
target_arch=${TARGETARCH:-$build_arch}
case $target_arch in
  amd64) target=x86_64-unknown-linux-gnu gcc=x86-64-linux-gnu cc=x86_64-linux-gnu-gcc ;;
  arm64) target=aarch64-unknown-linux-gnu gcc=aarch64-linux-gnu cc=aarch64-linux-gnu-gcc ;;
  *) echo "cross.sh: no build for $target_arch; there are: amd64, arm64" >&2; exit 1 ;;
esac
# A profile serves only a program that is built in the same way, but for the flags.
build() {
  cargo auditable build --locked --profile dist --target "$target" "$@" -p penstock --bin penstock
}

case ${1:-} in
  setup)
    if [ "$target_arch" != "$build_arch" ]; then
      apt-get update
      apt-get install -y --no-install-recommends "gcc-$gcc" "g++-$gcc" "libc6-dev-$target_arch-cross"
      rm -rf /var/lib/apt/lists/*
      rustup target add "$target"
    fi
    rustup component add llvm-tools
    ;;
  profile)
    if [ "$target_arch" != "$build_arch" ]; then
      echo "cross.sh: no profile: this machine does not run $target_arch" >&2
      exit 0
    fi
    raw=$(mktemp -d)
    RUSTFLAGS="${RUSTFLAGS:+$RUSTFLAGS }-Cprofile-generate=$raw" build --target-dir target/profile
    cargo build --locked --release -p penstock-loadtest
    sh docker/train.sh "target/profile/$target/dist/penstock" target/release/loadtest "$raw"
    mkdir -p "$(dirname "$2")"
    "$(rustc --print sysroot)/lib/rustlib/$target/bin/llvm-profdata" merge -o "$2" "$raw"
    rm -rf "$raw"
    ;;
  build)
    upper=$(echo "$target" | tr 'a-z-' 'A-Z_')
    lower=$(echo "$target" | tr - _)
    if [ "$target_arch" != "$build_arch" ]; then
      export "CARGO_TARGET_${upper}_LINKER=$cc" "CC_$lower=$cc" "CXX_$lower=${cc%gcc}g++"
    fi
    # The same bytes from any folder: in messages, the tree is /src and cargo's folder is /cargo. No step
    # puts a time into the binary; the epoch stops C code that would.
    home=${CARGO_HOME:-${HOME:-/root}/.cargo}
    export RUSTFLAGS="${RUSTFLAGS:+$RUSTFLAGS }--remap-path-prefix=$PWD=/src --remap-path-prefix=$home=/cargo"
    export CFLAGS="${CFLAGS:+$CFLAGS }-ffile-prefix-map=$PWD=/src -ffile-prefix-map=$home=/cargo"
    export CXXFLAGS="${CXXFLAGS:+$CXXFLAGS }-ffile-prefix-map=$PWD=/src -ffile-prefix-map=$home=/cargo"
    export SOURCE_DATE_EPOCH="${SOURCE_DATE_EPOCH:-0}"
    if [ -f "${PENSTOCK_PROFILE:-}" ]; then
      export RUSTFLAGS="$RUSTFLAGS -Cprofile-use=$PENSTOCK_PROFILE"
    fi
    build
    install -D "target/$target/dist/penstock" "$2"
    ;;
  *) echo "usage: cross.sh setup | profile FILE | build FILE" >&2; exit 2 ;;
esac
