//! Parses `--cache NAME[=PATH][,NAME[=PATH]]...[,OPT]...`: caches of a run.

use std::path::PathBuf;

use anyhow::Context;
use inarch_jobs::cache::{Location, Scope};
use inarch_jobs::run::{AskedCaches, Mode, Publish};
use inarch_jobs::source::REMOTE;

/// The remote that an option or else the environment names, if one does.
pub fn remote(option: Option<&str>) -> anyhow::Result<Option<Location>> {
    let (url, from) = match (option, std::env::var(REMOTE)) {
        (Some(url), _) => (url.to_owned(), "the remote"),
        (None, Ok(url)) if !url.is_empty() => (url, REMOTE),
        _ => return Ok(None),
    };
    Ok(Some(Location::parse(&url).map_err(|error| anyhow::anyhow!("{from} {error}"))?))
}

/// Parses it. The project of `scope=project`, the default, is that of the current directory.
pub fn parse(text: &str) -> anyhow::Result<AskedCaches> {
    let here = std::env::current_dir().context("the current directory cannot be found")?;
    let mut asked = AskedCaches {
        names: Vec::new(),
        scope: Scope::of_project(&here),
        publish: Publish::OnSuccess,
        mode: Mode::Shared,
        live: false,
        remote: None,
    };
    for word in text.split(',') {
        match word.split_once('=') {
            None if word == "ro" || word == "read-only" => asked.publish = Publish::Never,
            None if word == "always" => asked.publish = Publish::Always,
            None if word == "shared" => asked.mode = Mode::Shared,
            None if word == "private" => asked.mode = Mode::Private,
            None if word == "locked" => asked.mode = Mode::Locked,
            None if word.is_empty() => anyhow::bail!("--cache '{text}': a name is missing; write NAME or NAME=PATH"),
            None => asked.names.push((word.to_owned(), None)),
            Some(("via", "virtiofs")) => asked.live = true,
            Some(("via", "ext4")) => asked.live = false,
            Some(("via", other)) => {
                anyhow::bail!(
                    "--cache {text}: '{other}' is not a way of a cache: via=ext4 (a snapshot, the default), via=virtiofs (live)"
                )
            }
            Some(("scope", scope)) => {
                let scope = Scope::parse(scope, &here);
                asked.scope = scope.map_err(|error| anyhow::anyhow!("--cache {text}: {error}"))?;
            }
            Some((name, path)) => {
                let path = PathBuf::from(path);
                anyhow::ensure!(path.is_absolute(), "--cache {word}: '{}' is not an absolute path", path.display());
                asked.names.push((name.to_owned(), Some(path)));
            }
        }
    }
    anyhow::ensure!(
        !asked.live || (asked.publish != Publish::Always && asked.mode != Mode::Private),
        "--cache {text}: with via=virtiofs nothing is published, as all is shared at once; leave always and private out"
    );
    anyhow::ensure!(!asked.names.is_empty(), "--cache '{text}': it names no cache; 'inarch cache tools' lists some");
    Ok(asked)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_places_and_options_stand_in_any_order() {
        let asked = parse("maven,ro,own=/srv/x,scope=user").unwrap();
        let names: Vec<_> = asked.names.iter().map(|(name, path)| (&name[..], path.clone())).collect();
        assert_eq!(names, [("maven", None), ("own", Some(PathBuf::from("/srv/x")))]);
        assert_eq!((asked.publish, asked.scope), (Publish::Never, Scope::User));
        assert_eq!(parse("npm,always,scope=team").unwrap().scope, Scope::Named("team".to_owned()));
        assert_eq!(parse("npm,read-only").unwrap().publish, Publish::Never);
        assert_eq!(parse("npm,locked").unwrap().mode, Mode::Locked);
        assert_eq!(parse("npm,private").unwrap().mode, Mode::Private);
        assert!(parse("npm,via=virtiofs,locked").unwrap().live && !parse("npm,via=ext4").unwrap().live);
        for wrong in [
            "",
            "ro",
            "locked",
            "npm,via=9p",
            "npm,via=virtiofs,private",
            "maven,,npm",
            "own=x",
            "x,scope=../y",
            "scope=user",
        ] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }
}
