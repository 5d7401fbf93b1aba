//! [`TOOLS`]: the tools whose caches are known by name, and which files of each are taken.
//!
//! For most tools, two guests that write under one name at once write the same: an artifact's name has its version, or
//! the digest of its bytes. Then the first publication wins. Indexes and lists change: there the last one wins. Locks
//! and files that are being downloaded are never taken.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use globset::{GlobBuilder, GlobSet, GlobSetBuilder};

/// A cache of a tool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tool {
    /// Its name. `go` means `go-mod` and `go-build`: all whose name begins with it.
    pub name: &'static str,
    /// Where the tool keeps it: an absolute path, or one from the home directory. `{user}` stands for the user's name.
    pub place: &'static str,
    /// A variable that the guest's command gets, with the directory as its value.
    pub variable: Option<&'static str>,
    /// Other variables.
    pub settings: &'static [(&'static str, &'static str)],
    /// What is never taken: globs of paths from the cache's root. `*` matches within a name, `**` also across.
    pub never: &'static [&'static str],
    /// Where the last publication wins.
    pub last_wins: &'static [&'static str],
    /// Whether a file that a guest deletes is deleted.
    pub deletes: bool,
    /// What one has to know, for people.
    pub note: &'static str,
}

const PLAIN: Tool =
    Tool { name: "", place: "", variable: None, settings: &[], never: &[], last_wins: &[], deletes: false, note: "" };

/// All of them, by name.
pub const TOOLS: &[Tool] = &[
    Tool {
        name: "apt",
        place: "/var/cache/apt/archives",
        never: &["lock", "partial/**"],
        note: "packages only; an image whose docker-clean removes them after each command keeps them in the cache",
        ..PLAIN
    },
    Tool {
        name: "bazel",
        place: ".cache/bazel/_bazel_{user}/cache/repos/v1",
        never: &["**/tmp*/**", "**/*.lock"],
        note: "the repository cache: what Bazel downloads, not what it builds",
        ..PLAIN
    },
    Tool {
        name: "cargo-git",
        place: ".cargo/git",
        never: &["**/*.lock", "**/.cargo-lock*"],
        last_wins: &["db/**"],
        note: "dependencies by git",
        ..PLAIN
    },
    Tool {
        name: "cargo-registry",
        place: ".cargo/registry",
        never: &["**/*.lock", "**/.package-cache*"],
        last_wins: &["index/**"],
        note: "crates and the index; not the directory 'target'",
        ..PLAIN
    },
    Tool {
        name: "ccache",
        place: ".cache/ccache",
        variable: Some("CCACHE_DIR"),
        never: &["**/*.lock", "tmp/**", "**/*.tmp.*", "lock/**"],
        last_wins: &["**/stats", "**"],
        deletes: true,
        note: "ccache removes what exceeds its max_size",
        ..PLAIN
    },
    Tool {
        name: "composer",
        place: ".cache/composer",
        variable: Some("COMPOSER_CACHE_DIR"),
        last_wins: &["repo/**"],
        ..PLAIN
    },
    Tool {
        name: "go-build",
        place: ".cache/go-build",
        variable: Some("GOCACHE"),
        never: &["**/*.lock"],
        last_wins: &["**/*-a", "trim.txt", "testexpire.txt"],
        deletes: true,
        note: "what Go has compiled; Go removes what is not used for days",
        ..PLAIN
    },
    Tool {
        name: "go-mod",
        place: "go/pkg/mod",
        variable: Some("GOMODCACHE"),
        never: &["cache/lock", "**/*.lock", "**/*.partial", "**/*.tmp*"],
        last_wins: &["cache/download/sumdb/**", "cache/vcs/**", "cache/download/**/list"],
        note: "modules",
        ..PLAIN
    },
    Tool {
        name: "gradle",
        place: ".gradle/caches",
        never: &["**/*.lock", "**/*.lck", "**/*.part", "**/.tmp/**"],
        last_wins: &["**/*.bin", "**/*.properties", "journal-1/**"],
        note: "stop the daemon at the end of the command (--no-daemon)",
        ..PLAIN
    },
    Tool {
        name: "gradle-wrapper",
        place: ".gradle/wrapper",
        never: &["**/*.lck", "**/*.part"],
        note: "Gradle itself, as the wrapper downloads it",
        ..PLAIN
    },
    Tool {
        name: "maven",
        place: ".m2/repository",
        never: &["**/*.lastUpdated", "**/*.part", "**/*.part.lock", "**/*.lock", "**/*.tmp", ".locks/**", ".meta/**"],
        last_wins: &[
            "**/maven-metadata*",
            "**/resolver-status.properties",
            "**/_remote.repositories",
            "**/*-SNAPSHOT/**",
        ],
        note: "failed look-ups are not taken, so they are tried again",
        ..PLAIN
    },
    Tool {
        name: "npm",
        place: ".npm",
        variable: Some("npm_config_cache"),
        never: &["_logs/**", "_locks/**", "_cacache/tmp/**", "_update-notifier-last-checked"],
        last_wins: &["_cacache/index-v5/**"],
        note: "downloads; node_modules is the project's",
        ..PLAIN
    },
    Tool {
        name: "pip",
        place: ".cache/pip",
        variable: Some("PIP_CACHE_DIR"),
        never: &["selfcheck/**", "**/*.lock"],
        last_wins: &["http*/**"],
        note: "downloads, and wheels that pip has built",
        ..PLAIN
    },
    Tool {
        name: "pnpm",
        place: ".local/share/pnpm/store",
        variable: Some("npm_config_store_dir"),
        never: &["**/tmp/**", "**/*.lock"],
        last_wins: &["**/index/**", "**/*.db*", "**/projects/**"],
        note: "pnpm copies from it: a hard link cannot lead to another disk",
        ..PLAIN
    },
    Tool {
        name: "sccache",
        place: ".cache/sccache",
        variable: Some("SCCACHE_DIR"),
        never: &["**/.sccache*", "**/.tmp*"],
        deletes: true,
        note: "stop the server at the end of the command (sccache --stop-server)",
        ..PLAIN
    },
    Tool {
        name: "uv",
        place: ".cache/uv",
        variable: Some("UV_CACHE_DIR"),
        settings: &[("UV_LINK_MODE", "copy")],
        never: &["**/.lock", "**/*.lock", "**/.tmp*/**", "**/.tmp*"],
        last_wins: &["simple-*/**", "interpreter-*/**", "**/*.rev", "**/*.msgpack"],
        note: "uv copies from it: a hard link cannot lead to another disk",
        ..PLAIN
    },
    Tool {
        name: "yarn",
        place: ".cache/yarn",
        variable: Some("YARN_CACHE_FOLDER"),
        never: &["**/.tmp/**", "**/*.lock"],
        note: "",
        ..PLAIN
    },
];

/// The tools that a name means; empty if it is none of theirs.
pub fn tool(name: &str) -> Vec<&'static Tool> {
    let means =
        |tool: &&Tool| tool.name == name || tool.name.strip_prefix(name).is_some_and(|rest| rest.starts_with('-'));
    TOOLS.iter().filter(means).collect()
}

/// What is taken of a guest's changes to a cache.
#[derive(Clone, Debug)]
pub struct Rules {
    never: GlobSet,
    last_wins: GlobSet,
    deletes: bool,
    mixes: bool,
}

impl Rules {
    /// Those of the cache with this name: a tool's, or, for any other name, that all is taken and the last publication wins.
    pub fn of(name: &str) -> Rules {
        let known = TOOLS.iter().find(|tool| tool.name == name);
        let (never, last_wins, deletes) =
            known.map_or((&[][..], &["**"][..], true), |tool| (tool.never, tool.last_wins, tool.deletes));
        Rules { never: globs(never), last_wins: globs(last_wins), deletes, mixes: true }
    }

    /// The same, but nothing is published over another generation than the one that was read.
    pub fn unmixed(self) -> Rules {
        Rules { mixes: false, ..self }
    }

    /// Whether changes are merged with what others have published meanwhile.
    pub fn mixes(&self) -> bool {
        self.mixes
    }

    /// Whether a path is never taken.
    pub fn leaves_out(&self, path: &[u8]) -> bool {
        self.never.is_match(path_of(path))
    }

    /// Whether the last publication of a path wins.
    pub fn last_wins(&self, path: &[u8]) -> bool {
        self.last_wins.is_match(path_of(path))
    }

    /// Whether files that a guest deleted are deleted.
    pub fn deletes(&self) -> bool {
        self.deletes
    }
}

fn path_of(path: &[u8]) -> &Path {
    Path::new(OsStr::from_bytes(path))
}

fn globs(patterns: &[&str]) -> GlobSet {
    let mut set = GlobSetBuilder::new();
    // A test compiles all of them.
    for glob in patterns.iter().filter_map(|text| GlobBuilder::new(text).literal_separator(true).build().ok()) {
        set.add(glob);
    }
    set.build().unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_sorted_and_its_patterns_are_globs() {
        assert!(TOOLS.windows(2).all(|pair| pair[0].name < pair[1].name));
        for tool in TOOLS {
            for text in tool.never.iter().chain(tool.last_wins) {
                assert!(GlobBuilder::new(text).literal_separator(true).build().is_ok(), "{}: {text}", tool.name);
            }
        }
    }

    /// The table in docs/cache.md; with `INARCH_WRITE_PAGES=1` it is written.
    #[test]
    fn the_page_has_the_table() {
        const PAGE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/cache.md");
        let code = |globs: &[&str]| globs.iter().map(|glob| format!("`{glob}`")).collect::<Vec<_>>().join(" ");
        let row = |tool: &Tool| {
            let variable = tool.variable.map(|name| format!(" (`{name}`)")).unwrap_or_default();
            let deletes = if tool.deletes { "yes" } else { "" };
            let (never, last) = (code(tool.never), code(tool.last_wins));
            format!("| `{}` | `{}`{variable} | {never} | {last} | {deletes} | {} |\n", tool.name, tool.place, tool.note)
        };
        let rows: String = TOOLS.iter().map(row).collect();
        let table =
            format!("| name | place | never taken | last | deletes | note |\n|---|---|---|---|---|---|\n{rows}");
        let page = std::fs::read_to_string(PAGE).unwrap();
        let (before, rest) = page.split_once("<!-- tools: made of the program's own table -->\n").unwrap();
        let (found, after) = rest.split_once("<!-- end -->").unwrap();
        if std::env::var_os("INARCH_WRITE_PAGES").is_some() {
            let head = "<!-- tools: made of the program's own table -->\n";
            std::fs::write(PAGE, format!("{before}{head}{table}<!-- end -->{after}")).unwrap();
        } else {
            assert_eq!(found, table, "INARCH_WRITE_PAGES=1 cargo test -p inarch-jobs --lib the_page_has_the_table");
        }
    }

    #[test]
    fn a_name_means_one_cache_or_several() {
        let names = |name: &str| tool(name).iter().map(|tool| tool.name).collect::<Vec<_>>();
        assert_eq!(names("go"), ["go-build", "go-mod"]);
        assert_eq!(names("go-mod"), ["go-mod"]);
        assert_eq!(names("gradle"), ["gradle", "gradle-wrapper"]);
        assert_eq!(names("g"), [""; 0]);
        assert_eq!(names("maven"), ["maven"]);
    }

    #[test]
    fn locks_and_halves_are_not_taken() {
        let maven = Rules::of("maven");
        for (path, out, last) in [
            ("org/a/1/a-1.jar", false, false),
            ("org/a/1/a-1.jar.lastUpdated", true, false),
            ("org/a/1/a-1.jar.part", true, false),
            ("org/a/maven-metadata-central.xml", false, true),
            ("org/a/2-SNAPSHOT/a-2-SNAPSHOT.jar", false, true),
        ] {
            assert_eq!((maven.leaves_out(path.as_bytes()), maven.last_wins(path.as_bytes())), (out, last), "{path}");
        }
        let own = Rules::of("something");
        assert!(!own.leaves_out(b"x.lock") && own.last_wins(b"a/b") && own.deletes());
    }
}
