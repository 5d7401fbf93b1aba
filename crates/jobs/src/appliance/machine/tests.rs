//! What an appliance's machine has of this machine's files.

use super::*;

fn names(directory: &Path, selection: &Selection) -> Vec<String> {
    let opened = inarch_source::open(&Source::Directory(directory.to_owned()), selection).unwrap();
    let paths = opened.tree.inodes().map(|(id, _)| String::from_utf8(opened.tree.path(id)).unwrap());
    let mut paths: Vec<_> = paths.filter(|path| !path.is_empty()).collect();
    paths.sort();
    paths
}

#[test]
fn what_lies_beside_the_program_stays_on_the_host() {
    let home = tempfile::tempdir().unwrap();
    let at = |name: &str| home.path().join(name);
    std::fs::create_dir(at(".ssh")).unwrap();
    for name in [".netrc", ".ssh/id_ed25519", "in*[a]rch\n", "in-a-rch", "notes"] {
        std::fs::write(at(name), name).unwrap();
    }
    for name in ["in*[a]rch\n", "in-a-rch"] {
        assert_eq!(names(home.path(), &itself(name.as_ref()).unwrap()), [name]);
    }
}

#[test]
fn of_this_machine_only_programs_and_settings_of_tools_are_there() {
    let selection = root().unwrap();
    let (kept, others): (Vec<_>, Vec<_>) = std::fs::read_dir("/")
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .partition(|name| OF_THE_HOST.contains(&&**name));
    assert!(kept.iter().any(|name| name == "usr") && others.iter().any(|name| name == "root"), "{kept:?}");
    assert!(others.iter().all(|name| selection.leave_out.contains(&name.clone().into_bytes())), "{others:?}");
    let etc = names(Path::new("/"), &Selection { leave_out: but_etc(), ..selection });
    assert!(etc.iter().any(|path| path == "etc/passwd"), "{etc:?}");
    let secret = ["etc/shadow", "etc/gshadow", "etc/ssh", "etc/ssl", "etc/sudoers", "etc/machine-id", "etc/fstab"];
    assert!(!etc.iter().any(|path| secret.iter().any(|secret| path.starts_with(secret))), "{etc:?}");
}

/// All but /etc, which is scanned quickly.
fn but_etc() -> Vec<Vec<u8>> {
    let names = std::fs::read_dir("/").unwrap().map(|entry| entry.unwrap().file_name());
    names.filter(|name| name != "etc").map(OsString::into_encoded_bytes).collect()
}
