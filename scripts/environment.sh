# Sourced by scripts/demo, scripts/test and .ci/run: a .venv that holds torch and this checkout.
#
#   prepare_environment demo|test|dev    each takes in the one before it
#
# SPECFAST_TORCH   what to install where torch >= 2.10 is missing (default torch==2.13.0); may carry
#                  pip options, e.g. "torch --index-url URL"
# PYTHON           the Python that makes .venv (default python3)

set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

setup_log=build/setup.log

say() { echo "specfast: $*" >&2; }
fail() {
  say "$*"
  exit 2
}

# Runs a command quietly; its output matters only when it fails.
quietly() {
  local purpose=$1
  shift
  mkdir -p build
  if ! "$@" >"$setup_log" 2>&1; then
    tail -n 25 "$setup_log" >&2
    fail "$purpose failed; the whole output is in $setup_log"
  fi
}

pip_install() {
  local purpose=$1
  shift
  say "$purpose"
  quietly "$purpose" .venv/bin/python -m pip --disable-pip-version-check install "$@"
}

# Succeeds if .venv holds the distribution at that version or a later one.
has_version() {
  .venv/bin/python - "$@" <<'PYTHON'
import re
import sys
from importlib.metadata import PackageNotFoundError, version


def numbers(text):
    return [int(part) for part in re.findall(r"\d+", text.partition("+")[0])]


try:
    sys.exit(numbers(version(sys.argv[1])) < numbers(sys.argv[2]))
except PackageNotFoundError:
    sys.exit(1)
PYTHON
}

make_venv() {
  local python=${PYTHON:-python3}
  command -v "$python" >/dev/null || fail "needs Python 3.10 or later, and found no $python"
  "$python" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
    fail "needs Python 3.10 or later, and $python is older; set PYTHON to a newer one"
  if ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
    say "making .venv"
    "$python" -m venv --clear .venv >/dev/null 2>&1 ||
      fail "$python cannot make virtual environments; on Debian and Ubuntu: apt install python3-venv"
  fi
}

# What the installed project depends on. An editable install reads Python sources where they are,
# so only the names of those count.
checkout_hash() {
  {
    find csrc cmake CMakeLists.txt pyproject.toml -type f -print0 | LC_ALL=C sort -z | xargs -0 sha256sum
    find python -name '*.py' | LC_ALL=C sort
    .venv/bin/python -c 'from importlib.metadata import version as v; print(v("torch"))'
    pwd
    command -v nvcc || true
  } | sha256sum | cut -d ' ' -f 1
}

install_project() {
  local level=$1 hash included
  hash=$(checkout_hash)
  if [ "$(cat ".venv/.specfast-$level" 2>/dev/null)" = "$hash" ]; then
    return
  fi
  if ! command -v "${CUDACXX:-nvcc}" >/dev/null; then
    say "no nvcc found, building for the CPU only"
  fi
  if ! has_version scikit-build-core 0.10 || ! has_version cmake 3.25 || ! has_version ninja 1; then
    pip_install "installing the build tools" "scikit-build-core>=0.10" "cmake>=3.25" ninja
  fi
  # Not isolated, so that the build sees the torch of .venv and a second build is incremental.
  PATH="$PWD/.venv/bin:$PATH" pip_install "building and installing specfast with [$level]" \
    --no-build-isolation -e ".[$level]"
  for included in demo test dev; do
    echo "$hash" >".venv/.specfast-$included"
    [ "$included" != "$level" ] || break
  done
}

prepare_environment() {
  command -v "${CXX:-c++}" >/dev/null ||
    fail "needs a C++17 compiler, and found no ${CXX:-c++}; on Debian and Ubuntu: apt install g++"
  make_venv
  if ! has_version torch 2.10; then
    # Word splitting on purpose: it may carry options.
    # shellcheck disable=SC2086
    pip_install "installing ${SPECFAST_TORCH:-torch==2.13.0}" ${SPECFAST_TORCH:-torch==2.13.0}
  fi
  install_project "$1"
}
