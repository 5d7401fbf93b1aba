#!/bin/bash
# Traces a command, copies what it recorded into an empty root, runs it there, and compares what both runs made, byte for byte.
#
# Usage: replay.sh INARCH DIRECTORY EXCEPT COMMAND...
#
# DIRECTORY, an absolute path, is where the command runs, and all that it makes. EXCEPT is an extended regular expression of paths in it
# that may differ. Needs root. The last line says how many files were compared.
set -euo pipefail
export LC_ALL=C
inarch=$1 directory=$2 except=$3
shift 3
work=$(mktemp -d "${TMPDIR:-/var/tmp}/inarch-replay.XXXXXX")
trap 'rm -rf "$work"' EXIT
cp -a "$directory" "$work/before"
(cd "$directory" && exec "$inarch" trace -q --json "$work/trace.json" -- "$@") >"$work/log" 2>&1 </dev/null ||
    { tail -n 20 "$work/log"; echo "traced: status $?"; exit 1; }
"$inarch" trace files -0 "$work/trace.json" >"$work/files"
mv "$directory" "$work/after"
# Where it was, as it was.
mv "$work/before" "$directory"
mkdir "$work/root"
tar -C / --format=posix --no-recursion --null -T "$work/files" -cf - 2>"$work/log" | tar -C "$work/root" -xpf - ||
    { tail -n 20 "$work/log"; exit 1; }
rm -rf "$directory"
mkdir -p "$work/root$directory"
python3 - "$work/trace.json" >"$work/outside" <<'PYTHON'
import json, sys
for line in map(json.loads, open(sys.argv[1])):
    if 'outside' in line and 'descriptor' not in line:
        print(line['outside'])
PYTHON
unshare --mount --propagation slave bash -euo pipefail -s "$work" "$directory" "$@" >"$work/log" 2>&1 <<'AGAIN' ||
work=$1 directory=$2
shift 2
while read -r path; do
    mkdir -p "$work/root$path"
    mount --rbind "$path" "$work/root$path"
done <"$work/outside"
exec unshare --root="$work/root" --wd="$directory" "$@" </dev/null
AGAIN
    { tail -n 20 "$work/log"; echo "not the same from $(tr -cd '\0' <"$work/files" | wc -c) files: status $?"; exit 1; }
state() {
    (cd "$1" && find . -printf '%P %y %m %l\n' && find . -type f -exec sha256sum {} +) | { grep -vE "$except" || true; } | sort
}
# What was there before and was not used is not in the root.
state "$work/after" >"$work/state-after"
state "$work/root$directory" >"$work/state-again"
cp -a "$work/after" "$directory"
missing=$(comm -13 "$work/state-after" "$work/state-again")
[ -z "$missing" ] || { echo "made or left otherwise:"; head -n 20 <<<"$missing"; exit 1; }
python3 - "$work/trace.json" "$directory" "$work/root" "$except" <<'PYTHON'
import json, os, re, sys
trace, directory, root, exceptions = sys.argv[1:]
count = 0
for line in map(json.loads, open(trace)):
    path = line.get('output')
    if path is None or line['change'] == 'temporary' or not path.startswith(directory + '/'):
        continue
    if re.search(exceptions, os.path.relpath(path, directory)):
        continue
    there, again = os.path.lexists(path), os.path.lexists(root + path)
    if there != again:
        sys.exit(f'{path}: {line["change"]}: {"not made" if there else "still there"} the second time')
    if there and os.path.isfile(path) and not os.path.islink(path):
        count += 1
        if open(path, 'rb').read() != open(root + path, 'rb').read():
            sys.exit(f'{path}: differs')
print(f'{count} files are the same')
if count == 0:
    sys.exit('nothing was made')
PYTHON
