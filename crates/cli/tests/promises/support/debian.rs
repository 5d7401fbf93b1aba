//! Sources of Debian packages.

use std::path::{Path, PathBuf};

use super::host;

/// Unpacks a Debian source package below `dir`, through lists of our own: the machine's apt is not touched.
pub fn source(package: &str, dir: &Path) -> PathBuf {
    let script = r#"
set -eu
work=$PWD/apt; mkdir -p $work/lists/partial $work/archives/partial
if [ -f /etc/apt/sources.list.d/debian.sources ]; then
    sed 's/^Types:.*/Types: deb-src/' /etc/apt/sources.list.d/debian.sources > $work/debian.sources
    list=$work/debian.sources
else
    sed -n 's/^deb /deb-src /p' /etc/apt/sources.list > $work/sources.list
    list=$work/sources.list
fi
set -- -q -o Dir::Etc::sourcelist=$list -o Dir::Etc::sourceparts=- -o Dir::State::lists=$work/lists
[ -f $work/updated ] || { apt-get "$@" update >&2 && touch $work/updated; }
apt-get "$@" source "$0" >&2
ls -d "$PWD"/"$0"-*/
"#;
    let found = host("sh", &["-c", script, package], dir);
    PathBuf::from(found.trim().trim_end_matches('/'))
}
