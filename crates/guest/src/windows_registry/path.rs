//! Paths of keys, as people write them.

use std::path::Path;

use inarch_hive::{Hive, HiveError, Shown};

/// The hives below `HKEY_LOCAL_MACHINE` that are files.
const OF_MACHINE: [&str; 4] = ["SYSTEM", "SOFTWARE", "SAM", "SECURITY"];

/// The hive that a path leads into.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Root<'a> {
    /// One below `HKEY_LOCAL_MACHINE`.
    Machine(&'a str),
    /// One below `HKEY_USERS`: `.DEFAULT`, a SID, or a user's name.
    User(&'a str),
}

/// A path of a key.
#[derive(Debug)]
pub struct Wanted {
    parts: Vec<String>,
    /// How many parts lead to the hive.
    above: usize,
}

impl Wanted {
    /// Splits a path at backslashes. Its first name may be an abbreviation.
    pub fn parse(path: &str) -> Wanted {
        let mut parts: Vec<String> = path.split('\\').filter(|part| !part.is_empty()).map(str::to_owned).collect();
        if parts.first().is_some_and(|first| first.eq_ignore_ascii_case("Computer")) && parts.len() > 1 {
            parts.remove(0);
        }
        let full = parts.first().and_then(|first| match &*first.to_ascii_uppercase() {
            "HKLM" | "HKEY_LOCAL_MACHINE" => Some(("HKEY_LOCAL_MACHINE", 2)),
            "HKU" | "HKEY_USERS" => Some(("HKEY_USERS", 2)),
            "HKCU" | "HKEY_CURRENT_USER" => Some(("HKEY_CURRENT_USER", 1)),
            _ => None,
        });
        let above = full.map_or(0, |(_, above)| above.min(parts.len()));
        if let (Some((full, _)), Some(first)) = (full, parts.first_mut()) {
            full.clone_into(first);
        }
        Wanted { parts, above }
    }

    /// The full path of the hive's root, if the path has it.
    pub fn above(&self) -> Option<String> {
        let above = self.parts.get(..self.above)?;
        (!above.is_empty()).then(|| above.join("\\"))
    }

    /// The names below the hive's root.
    pub fn within_hive(&self) -> &[String] {
        self.parts.get(self.above..).unwrap_or_default()
    }

    /// The hive of a machine. `HKEY_CURRENT_USER` is none: nobody is logged in.
    pub fn root(&self) -> Option<Root<'_>> {
        let name = self.parts.get(1).filter(|_| self.above == 2)?;
        match &**self.parts.first()? {
            "HKEY_LOCAL_MACHINE" => Some(Root::Machine(name)),
            _ => Some(Root::User(name)),
        }
    }
}

/// Where a hive belongs, by its file's name.
pub fn usual_root(file: &Path) -> Option<String> {
    let name = file.file_name()?.to_str()?.to_ascii_uppercase();
    match &*name {
        "NTUSER.DAT" => Some("HKEY_CURRENT_USER".to_owned()),
        "DEFAULT" => Some("HKEY_USERS\\.DEFAULT".to_owned()),
        _ => OF_MACHINE.contains(&&*name).then(|| format!("HKEY_LOCAL_MACHINE\\{name}")),
    }
}

/// The path with the control set that `CurrentControlSet` stands for.
pub fn current(hive: &Hive, within: &[String]) -> Result<Vec<String>, HiveError> {
    let mut within = within.to_vec();
    if let Some(first) = within.first_mut().filter(|first| first.eq_ignore_ascii_case("CurrentControlSet"))
        && hive.find([&**first])?.is_none()
        && let Some(current) = hive.current_control_set()?
    {
        *first = current;
    }
    Ok(within)
}

/// The name of the directory of the user with that SID.
pub fn profile(software: &Hive, sid: &str) -> Result<Option<String>, HiveError> {
    let Some(key) = software.find(["Microsoft", "Windows NT", "CurrentVersion", "ProfileList", sid])? else {
        return Ok(None);
    };
    let values = software.values(&key)?;
    let Some(value) = values.iter().find(|value| value.name.is("ProfileImagePath")) else { return Ok(None) };
    let path = Shown::new(value.kind, software.data(value)?).to_string();
    Ok(path.rsplit('\\').next().map(str::to_owned))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_lead_into_hives() {
        let wanted = Wanted::parse(r"hklm\SYSTEM\Select");
        assert_eq!(wanted.above().as_deref(), Some(r"HKEY_LOCAL_MACHINE\SYSTEM"));
        assert_eq!((wanted.root(), wanted.within_hive()), (Some(Root::Machine("SYSTEM")), &["Select".to_owned()][..]));
        let wanted = Wanted::parse(r"Computer\HKEY_USERS\alice\Software");
        assert_eq!((wanted.root(), wanted.within_hive().len()), (Some(Root::User("alice")), 1));
        let wanted = Wanted::parse(r"Select\");
        assert_eq!((wanted.above(), wanted.root(), wanted.within_hive().len()), (None, None, 1));
        assert_eq!(Wanted::parse("HKLM").root(), None);
        assert_eq!(usual_root(Path::new("/mnt/system")).as_deref(), Some(r"HKEY_LOCAL_MACHINE\SYSTEM"));
    }
}
