#!/usr/bin/env bash
# The wheel in a clean environment without extras, as a person who types `pip install profl` has it.
#     tests/smoke_wheel.sh DIST      DIST holds one wheel and one sdist
# It holds every file of src/profl and papers/profl_papers, and the sdist every file of the repository; `profl` says its version, runs a case,
# and where an extra is missing it says which, in one line and with exit status 2.
set -euo pipefail
cd "$(dirname "$0")/.."
dist=$(realpath "$1")
root=$PWD
place=$(mktemp -d)
trap 'rm -rf "$place"' EXIT

"${PYTHON:-python3}" -m venv "$place/venv"
"$place/venv/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt "$dist"/*.whl
tar -tzf "$dist"/*.tar.gz | sed 's|^[^/]*/||' | sort >"$place/sdist"
cd "$place" # not in the repository: what is imported is what was installed
export PATH="$place/venv/bin:$PATH"

installed=$(python -c 'import profl, pathlib; print(pathlib.Path(profl.__file__).parent)')
case $installed in "$place"/*) ;; *) echo "profl was imported from $installed, not from the wheel" >&2 && exit 1 ;; esac
diff -rq --exclude=__pycache__ "$root/src/profl" "$installed"
diff -rq --exclude=__pycache__ "$root/papers/profl_papers" "$(dirname "$installed")/profl_papers"

if git -C "$root" rev-parse --quiet --verify HEAD >/dev/null 2>&1; then
  missing=$(git -C "$root" ls-files | grep -vE '^\.(ci|github|pre-commit)' | sort | comm -23 - "$place/sdist")
  [ -z "$missing" ] || { echo "not in the sdist: $missing" >&2 && exit 1; }
fi

version=$(python -c 'import profl; print(profl.__version__)')
[ "$(profl --version)" = "profl $version" ] || { echo "profl --version: $(profl --version)" >&2 && exit 1; }

small=(--rounds 3 --local-steps 1 --samples 20 --clients 2 --seeds 0)
profl run housing "${small[@]}" --json run.json
python -c 'import json, math; assert math.isfinite(json.load(open("run.json"))["runs"][0]["tail_excess"]["mean"])'
profl reproduce --list >papers
grep -q table1 papers || { cat papers && echo "profl reproduce finds no papers" >&2 && exit 1; }

status=0
profl run housing "${small[@]}" --quiet --plot run.png 2>error || status=$?
[ "$status" = 2 ] || { cat error && echo "without matplotlib --plot ended with $status, expected 2" >&2 && exit 1; }
[ "$(wc -l <error)" = 1 ] || { cat error && echo "expected one line" >&2 && exit 1; }
grep -q "pip install 'profl\[report\]'" error || { cat error && echo "expected the extra's name" >&2 && exit 1; }
echo "the wheel of profl $version works"
