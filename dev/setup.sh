#!/bin/sh
# Installs what development needs into .dev/ of this checkout: a Python environment that carries the
# services, and protoc. Does nothing when the environment already fits requirements.txt.
set -eu

root=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
venv="$root/.dev/venv"
stamp="$root/.dev/venv.stamp"
requirements="$root/dev/requirements.txt"
python=${PYTHON:-python3}

"$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' || {
    echo "setup: Python 3.11 or newer is needed ($python); set PYTHON to one" >&2
    exit 1
}

# The stamp names the folder too, since a moved checkout needs a new venv.
wanted="$(sha256sum <"$requirements" | cut -d' ' -f1) $venv"

venv_works() {
    "$venv/bin/python" -c 'import chdb, duckdb, moto, pyarrow, sys; sys.exit(sys.prefix == sys.base_prefix)' >/dev/null 2>&1
}

# Programs in a venv name its interpreter by path, so a moved venv can't be brought up to date.
made_here() {
    [ -f "$venv/bin/pip" ] && head -n 1 "$venv/bin/pip" | grep -qF "#!$venv/bin/python" &&
        "$venv/bin/python" -m pip --version >/dev/null 2>&1
}

new_venv() {
    "$python" -m venv --clear "$venv" || {
        echo "setup: python -m venv failed; on Debian it comes with the package python3-venv" >&2
        exit 1
    }
}

install_packages() {
    "$venv/bin/python" -m pip install --quiet --disable-pip-version-check --require-hashes -r "$requirements"
}

link_protoc() {
    data=$("$venv/bin/python" -c 'import pathlib, protoc; print(pathlib.Path(protoc.__file__).parent / "data")')
    # A relative link survives a move of the checkout.
    ln -sfn "${data#"$root/.dev/"}" "$root/.dev/protoc"
    chmod +x "$data/bin/protoc"
}

if [ -f "$stamp" ] && [ "$(cat "$stamp")" = "$wanted" ] && [ -x "$root/.dev/protoc/bin/protoc" ] && venv_works; then
    exit 0
fi

echo "setup: installing Python packages into .dev/venv" >&2
rm -f "$stamp"
mkdir -p "$root/.dev"
made_here || new_venv
install_packages
if ! venv_works; then
    # Files were lost that pip believes to be there.
    new_venv
    install_packages
    venv_works || { echo "setup: the packages in .dev/venv don't work" >&2; exit 1; }
fi
link_protoc
printf '%s\n' "$wanted" >"$stamp"
echo "setup: done" >&2
