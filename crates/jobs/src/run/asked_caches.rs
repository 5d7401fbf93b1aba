//! [`AskedCaches`]: the caches that a user asks for by name, and what that means for a run: places, owner, variables.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::{Path, PathBuf};

use inarch_cache::{CachePlace, CacheRemote, Location, Scope, Tool, tool};

use super::RunError;
use super::request::{Mode, Publish, Root, RunCache, RunRequest};
use crate::JobError;

/// Caches that a user asks for.
#[derive(Clone, Debug)]
pub struct AskedCaches {
    /// Their names, each with the guest's path if that is given.
    pub names: Vec<(String, Option<PathBuf>)>,
    /// Whose they are.
    pub scope: Scope,
    /// When they are published.
    pub publish: Publish,
    /// How runs share them.
    pub mode: Mode,
    /// Whether they are directories that are shared live.
    pub live: bool,
    /// The remote of all of them.
    pub remote: Option<Location>,
}

/// The user of a guest's command.
struct Account {
    name: String,
    owner: (u32, u32),
    home: Option<PathBuf>,
}

impl AskedCaches {
    /// Adds them to a run, whose root, user and variables are known.
    ///
    /// # Errors
    /// A name is no tool's and has no path, or it is not known where a tool keeps its cache there.
    pub fn add_to(&self, request: &mut RunRequest) -> Result<(), JobError> {
        let account = account(request)?;
        for (name, destination) in &self.names {
            let tools = tool(name);
            match (tools.as_slice(), destination) {
                ([], None) => return Err(RunError::UnknownCache { name: name.clone(), known: known() }.into()),
                ([], Some(destination)) => self.add(request, name, destination.clone(), &account)?,
                ([tool], Some(destination)) => {
                    set_variables(request, tool, destination);
                    self.add(request, tool.name, destination.clone(), &account)?;
                }
                ([_, ..], Some(_)) => {
                    let names = tools.iter().map(|tool| tool.name).collect::<Vec<_>>().join(" and ");
                    return Err(RunError::SeveralCaches { name: name.clone(), names }.into());
                }
                (tools, None) => {
                    for tool in tools {
                        let destination = account.place(tool)?;
                        set_variables(request, tool, &destination);
                        self.add(request, tool.name, destination, &account)?;
                    }
                }
            }
        }
        Ok(())
    }

    fn add(
        &self,
        request: &mut RunRequest,
        name: &str,
        destination: PathBuf,
        account: &Account,
    ) -> Result<(), JobError> {
        let place = CachePlace::of_user(self.scope.clone(), name)?;
        if request.caches.iter().any(|other| other.place == place) {
            return Err(RunError::CacheTwice { name: name.to_owned() }.into());
        }
        let puts = self.publish != Publish::Never;
        let remote = self.remote.as_ref().map(|location| CacheRemote::of(location, &place, puts)).transpose()?;
        request.caches.push(RunCache {
            place,
            destination,
            owner: account.owner,
            publish: self.publish,
            mode: self.mode,
            live: self.live,
            remote,
        });
        Ok(())
    }
}

/// The names of all tools, for a message.
fn known() -> String {
    let mut names: Vec<&str> = inarch_cache::TOOLS.iter().map(|tool| tool.name).collect();
    names.sort_unstable();
    names.join(", ")
}

/// Variables that the user sets stay.
fn set_variables(request: &mut RunRequest, tool: &Tool, destination: &Path) {
    let of_place = tool.variable.map(|name| (OsString::from(name), destination.as_os_str().to_owned()));
    let others = tool.settings.iter().map(|(name, value)| (OsString::from(name), OsString::from(value)));
    for (name, value) in of_place.into_iter().chain(others) {
        if !request.environment.iter().any(|(other, _)| *other == name) {
            request.environment.push((name, value));
        }
    }
}

impl Account {
    /// Where a tool keeps its cache.
    fn place(&self, tool: &Tool) -> Result<PathBuf, RunError> {
        let place = tool.place.replace("{user}", &self.name);
        if place.starts_with('/') {
            return Ok(PathBuf::from(place));
        }
        let home = self.home.as_ref().filter(|home| home.is_absolute());
        let home = home.ok_or_else(|| RunError::NoHome { name: tool.name, user: self.name.clone() })?;
        Ok(home.join(place))
    }
}

/// The user of the command, as far as this is known before the guest runs.
fn account(request: &RunRequest) -> Result<Account, RunError> {
    let given =
        request.environment.iter().rev().find(|(name, _)| name == "HOME").map(|(_, value)| PathBuf::from(value));
    let is_host = matches!(request.root, Root::Host | Root::None);
    let mut account = match &request.user {
        None if is_host => {
            let owner = (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
            let name = user_of(|line| line.uid == owner.0).map_or_else(|| owner.0.to_string(), |line| line.name);
            Account { name, owner, home: std::env::var_os("HOME").map(PathBuf::from) }
        }
        None => Account { name: "root".to_owned(), owner: (0, 0), home: Some("/root".into()) },
        Some(text) => {
            let (user, group) = text.split_once(':').map_or((&text[..], None), |(user, group)| (user, Some(group)));
            let known = match user.parse() {
                Ok(uid) if is_host => user_of(|line| line.uid == uid),
                Ok(0) => Some(Line { name: "root".to_owned(), uid: 0, gid: 0, home: "/root".into() }),
                Ok(uid) => Some(Line { name: user.to_owned(), uid, gid: uid, home: PathBuf::new() }),
                Err(_) if is_host => user_of(|line| line.name == user),
                Err(_) if user == "root" => {
                    Some(Line { name: "root".to_owned(), uid: 0, gid: 0, home: "/root".into() })
                }
                Err(_) => None,
            };
            let known = known.ok_or_else(|| RunError::UnknownUser { user: user.to_owned() })?;
            let gid = group.and_then(|group| group.parse().ok()).unwrap_or(known.gid);
            let home = Some(known.home).filter(|home| !home.as_os_str().is_empty());
            Account { name: known.name, owner: (known.uid, gid), home }
        }
    };
    account.home = given.or(account.home);
    Ok(account)
}

/// What is needed of a line of passwd(5).
struct Line {
    name: String,
    uid: u32,
    gid: u32,
    home: PathBuf,
}

fn user_of(is: impl Fn(&Line) -> bool) -> Option<Line> {
    let text = std::fs::read("/etc/passwd").ok()?;
    let parse = |line: &[u8]| {
        let mut fields = line.split(|byte| *byte == b':');
        let name = String::from_utf8(fields.next()?.to_vec()).ok()?;
        let mut number = |skip: usize| std::str::from_utf8(fields.nth(skip)?).ok()?.parse().ok();
        let (uid, gid) = (number(1)?, number(0)?);
        let home = PathBuf::from(OsString::from_vec(fields.nth(1)?.to_vec()));
        Some(Line { name, uid, gid, home })
    };
    text.split(|byte| *byte == b'\n').filter_map(parse).find(is)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::Streams;

    fn asked(names: &[(&str, Option<&str>)]) -> AskedCaches {
        let names = names.iter().map(|(name, place)| ((*name).to_owned(), place.map(PathBuf::from))).collect();
        AskedCaches {
            names,
            scope: Scope::Named("test".to_owned()),
            publish: Publish::OnSuccess,
            mode: Mode::Shared,
            live: false,
            remote: None,
        }
    }

    fn request(user: Option<&str>) -> RunRequest {
        let streams = Streams::of_process().unwrap();
        RunRequest { user: user.map(str::to_owned), ..RunRequest::new(vec!["true".into()], streams) }
    }

    #[test]
    fn a_tool_is_given_its_place_and_its_variable() {
        let mut run = request(Some("root"));
        asked(&[("go", None), ("apt", None), ("own", Some("/srv/own"))]).add_to(&mut run).unwrap();
        let places: Vec<_> =
            run.caches.iter().map(|cache| (&*cache.place.name, cache.destination.to_str().unwrap())).collect();
        assert_eq!(
            places,
            [
                ("go-build", "/root/.cache/go-build"),
                ("go-mod", "/root/go/pkg/mod"),
                ("apt", "/var/cache/apt/archives"),
                ("own", "/srv/own")
            ]
        );
        assert!(run.caches.iter().all(|cache| cache.owner == (0, 0)));
        assert!(run.environment.contains(&("GOCACHE".into(), "/root/.cache/go-build".into())));
        // What the user sets stays.
        let mut run = request(Some("root"));
        run.environment = vec![("GOCACHE".into(), "/elsewhere".into()), ("HOME".into(), "/h".into())];
        asked(&[("go-build", None)]).add_to(&mut run).unwrap();
        assert_eq!(run.environment.len(), 2);
        assert_eq!(run.caches[0].destination, Path::new("/h/.cache/go-build"));
    }

    #[test]
    fn what_is_not_known_is_an_error_of_one_line() {
        let refused = |user: Option<&str>, names: &[(&str, Option<&str>)]| {
            let mut run = request(user);
            run.root = Root::Source(inarch_source::Source::Empty);
            let line = asked(names).add_to(&mut run).unwrap_err().to_string();
            assert_eq!(line.lines().count(), 1);
            line
        };
        assert!(refused(None, &[("mavn", None)]).contains("maven"));
        assert!(refused(None, &[("go", Some("/x"))]).contains("go-build and go-mod"));
        assert!(refused(None, &[("apt", None), ("apt", None)]).contains("twice"));
        assert!(refused(Some("someone"), &[("maven", None)]).contains("someone"));
        assert!(refused(Some("1000"), &[("maven", None)]).contains("=PATH"));
    }
}
