//! Promise: whole trees on a disk are digested, written as archives and compared, as sha256sum, tar and diff would if the disk were mounted.

use serde_json::Value;

use super::a_guests_disk_is_looked_into::{guest, lines, said};
use crate::support::listing::{assert_same, listing};
use crate::support::{assert_one_line, assert_status, copy_command, host, inarch, scratch, stderr, stdout};

#[test]
fn digests_are_those_of_the_usual_tools() {
    let dir = scratch();
    guest(dir.path());
    let image = dir.path().join("guest.img");
    let image = image.to_str().unwrap();
    for (name, tool) in [("sha256", "sha256sum"), ("sha512", "sha512sum"), ("sha1", "sha1sum"), ("md5", "md5sum")] {
        let script =
            format!("cd root && find dir etc -type f | LC_ALL=C sort | xargs -d '\\n' {tool} | sed 's,  ,  /,'");
        let expected = host("sh", &["-c", &script], dir.path());
        assert_eq!(
            said(&["checksum", image, "/dir", "etc/", "--algorithm", name]),
            expected.replace("  /etc", "  etc")
        );
    }
    let one = said(&["checksum", image, "--json", "/etc/motd"]);
    let one: Value = serde_json::from_str(&one).unwrap();
    let motd = host("sh", &["-c", "sha256sum root/etc/motd | cut -d' ' -f1"], dir.path());
    assert_eq!((one["path"].as_str(), one["sha256"].as_str()), (Some("/etc/motd"), Some(motd.trim())));
    // What is there is printed, too. The fstab names a disk that is not there.
    let half = inarch(["disk", "checksum", image, "/etc/none", "/dir/fifo", "/etc/motd"]);
    assert_status(&half, 1);
    assert_eq!(stdout(&half), format!("{}  /etc/motd\n", motd.trim()));
    assert_eq!(stderr(&half).lines().count(), 3, "{}", stderr(&half));
}

#[test]
fn archives_hold_all_of_a_directory() {
    let dir = scratch();
    guest(dir.path());
    let image = dir.path().join("guest.img");
    let image = image.to_str().unwrap();
    let archive = dir.path().join("dir.tar");
    assert_status(&inarch(["disk", "tar-out", image, "/dir", archive.to_str().unwrap()]), 0);
    host("sh", &["-ec", "mkdir out; tar -C out --xattrs --xattrs-include='*' -xpf dir.tar"], dir.path());
    assert_same(&listing(&dir.path().join("out")), &listing(&dir.path().join("root/dir")), "the archive");
    let piped = "$0 disk tar-out guest.img:LABEL=home / - 2>/dev/null | tar t | LC_ALL=C sort";
    let names = host("sh", &["-ec", piped, crate::support::INARCH], dir.path());
    assert_eq!(names.lines().collect::<Vec<_>>(), ["./", "./user/", "./user/notes"]);
    assert_one_line(&inarch(["disk", "tar-out", image, "/none", archive.to_str().unwrap()]), &["/none"]);
    let piped = "$0 disk tar-out dir.tar /below - | tar t | LC_ALL=C sort";
    assert_eq!(host("sh", &["-ec", piped, crate::support::INARCH], dir.path()), "./\n./again\n");
    assert_one_line(
        &inarch(["disk", "tar-out", dir.path().to_str().unwrap(), "/root", "-"]),
        &["only a disk image or an archive"],
    );
    let compressed = dir.path().join("a dir.tgz");
    let compressed = compressed.to_str().unwrap();
    assert_one_line(&inarch(["disk", "tar-out", image, "/dir", compressed]), &[&format!("- | gzip > '{compressed}'")]);
}

#[test]
fn what_a_user_cannot_read_is_named_and_no_difference() {
    if !rustix::process::geteuid().is_root() {
        println!("skipped: what_a_user_cannot_read_is_named_and_no_difference: another user can only be had as root");
        return;
    }
    let dir = scratch();
    copy_command(&dir.path().join("inarch"));
    let script = "chmod 711 .; mkdir -p old/etc new/etc old/sub new/sub; echo a > old/etc/x; echo b > new/etc/y; echo 1 > old/sub/n
        cp -p old/sub/n new/sub/n; echo 2 > new/sub/m; chmod 700 old/etc; chmod 600 new/sub/n; touch -d @1 old new old/sub new/sub";
    host("sh", &["-ec", script], dir.path());
    let words = ["--reuid", "65534", "--regid", "65534", "--clear-groups", "./inarch", "disk"];
    let disk = |more: &[&str]| {
        let mut command = std::process::Command::new("setpriv");
        command.args(words).args(more).current_dir(dir.path()).env("HOME", "/nonexistent").output().unwrap()
    };
    let compared = disk(&["diff", "old", "new"]);
    assert_status(&compared, 125);
    assert_eq!(stdout(&compared), "A  /sub/m\n");
    assert_eq!(
        stderr(&compared),
        "inarch: old: etc: directory not readable, kept empty; it is not compared\n\
         inarch: new: sub/n: file not readable, left out; it is not compared\n"
    );
    let listed = disk(&["ls", "old", "/etc"]);
    assert_eq!(stdout(&listed), "");
    assert_eq!(stderr(&listed), "inarch: old: etc: directory not readable, kept empty\n");
    // Its files are read, as those of an image are.
    let shown = disk(&["cat", "old", "/sub/n"]);
    assert_eq!((stdout(&shown).as_str(), shown.status.code()), ("1\n", Some(0)), "{}", stderr(&shown));
}

#[test]
fn every_difference_is_told_and_nothing_else() {
    let dir = scratch();
    guest(dir.path());
    let image = dir.path().join("guest.img");
    let system = format!("{}:1", image.display());
    let root = dir.path().join("root");
    let root = root.to_str().unwrap();
    assert_eq!(lines(&["diff", &system, root]), [""; 0]);
    assert_status(&inarch(["disk", "diff", "--exit-code", &system, root]), 0);
    // Of another size; of the same size and time; of other attributes alone.
    let change = "
        echo more >> root/etc/hostname
        printf 'HELLO\\n' > root/etc/motd; touch -d @1700000000 root/etc/motd
        chmod 711 root/dir/none; setfattr -n user.note -v other root/dir/large
        rm root/dir/link; mkdir root/new; echo n > root/new/file; rm root/dir/fifo; ln -s /x root/dir/fifo
        touch -d @1700000000 root/dir";
    host("sh", &["-ec", change], dir.path());
    let expected = [
        "P  /  (time)",
        "P  /dir/below/again  (extended attributes)",
        "M  /dir/fifo  (fifo -> symlink)",
        "P  /dir/large  (extended attributes)",
        "D  /dir/link",
        "P  /dir/none  (mode 0644 -> 0711)",
        "M  /etc/hostname",
        "M  /etc/motd",
        "A  /new/",
        "A  /new/file",
    ];
    let told = lines(&["diff", &system, root]);
    // Making the new directory changed the time of the root, which is told with its names.
    let expected: Vec<_> = expected.into_iter().filter(|line| !line.starts_with("P  /  ")).collect();
    assert_eq!(told, expected);
    let back = lines(&["diff", root, &system]);
    assert!(back.contains(&"A  /dir/link".to_owned()) && back.contains(&"D  /new/file".to_owned()), "{back:?}");
    assert_status(&inarch(["disk", "diff", "--exit-code", &system, root]), 1);
    let ignored = lines(&["diff", "--ignore", "mode,xattrs", &system, root]);
    assert_eq!(ignored, expected.iter().filter(|line| !line.starts_with('P')).copied().collect::<Vec<_>>());
    let json: Value =
        serde_json::from_str(&said(&["diff", "--json", &format!("{system}:/etc"), &format!("{root}/etc")])).unwrap();
    let paths: Vec<_> = json.as_array().unwrap().iter().map(|change| change["path"].as_str().unwrap()).collect();
    assert_eq!(paths, ["/hostname", "/motd"]);
    // An archive of the image is the image.
    assert_status(&inarch(["image", &system, "-o", &format!("{root}.tar"), "-q"]), 0);
    assert_eq!(lines(&["diff", &system, &format!("{root}.tar")]), [""; 0]);
}

#[test]
fn what_cannot_be_read_is_named_and_counts_as_different() {
    let dir = scratch();
    let script = "mkdir a; seq 30000 > a/damaged; echo sound > a/sound
        mksquashfs a a.squashfs -quiet -no-progress -comp gzip -no-fragments > /dev/null
        head -c 64 /dev/zero | dd of=a.squashfs bs=1 seek=200 conv=notrunc status=none";
    host("sh", &["-ec", script], dir.path());
    let [directory, image] = ["a", "a.squashfs"].map(|name| dir.path().join(name).to_str().unwrap().to_owned());
    let compared = inarch(["disk", "diff", &directory, &image]);
    assert_status(&compared, 125);
    assert_eq!(stdout(&compared), "M  /damaged\n");
    assert!(stderr(&compared).contains("/damaged: cannot be read, and counts as different"), "{}", stderr(&compared));
    // A squashfs has whole seconds, and nothing that does not count is left out in silence.
    assert!(stderr(&compared).contains(" by less than a second, which does not count"), "{}", stderr(&compared));
    assert_eq!(stderr(&compared).lines().count(), 2);
    let summed = inarch(["disk", "checksum", &image]);
    assert_status(&summed, 1);
    assert!(stdout(&summed).ends_with("  /sound\n") && stdout(&summed).lines().count() == 1, "{}", stdout(&summed));
}
