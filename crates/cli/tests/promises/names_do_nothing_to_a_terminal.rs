//! Promise: whatever the names, labels and descriptions on a guest's disk are, none of them is a control sequence for the terminal that they are shown
//! on.

use std::process::Command;

use crate::support::{INARCH, host, scratch, stdout};

/// Names that a terminal would act on: by ESC, by the C1 control CSI, by a bell, a line break and DEL.
const PREPARE: &str = r#"
    E=$(printf '\033'); C=$(printf '\302\233'); B=$(printf '\007')
    mkdir -p empty root/etc "root/a$E[31mred" root/var/lib/dpkg; touch "root/$C""1m" "root/e$E]0;x$B" "root/d$(printf '\177')" 'root/line
break'
    printf "LABEL=r$E[31m / ext4 x 0 0\nLABEL=zz$E]0;x$B /m$C[2J ext4 x 0 0\n/dev/sda /m$E[2J ext4 subvol=$C 0 0\n" > root/etc/fstab
    printf "ID=deb$E[31m\nPRETTY_NAME=\"Ev$E[2Jil$C""1m\"\nVERSION_ID=\"1$E$C\"\n" > root/etc/os-release
    printf "host$E[31m$C\n" > root/etc/hostname; ln -s "/x$E[31m$C" root/link
    printf "Package: p$E[31m\nStatus: install ok installed\nVersion: 1$C\n\n" > root/var/lib/dpkg/status
    setfattr -n "user.a$E" -v "v$C[31m" root/etc/hostname
    mke2fs -q -t ext4 -L "l$E[31m" -d root img 32M"#;

#[test]
fn of_any_command_that_looks_at_a_disk() {
    let dir = scratch();
    let dir = dir.path();
    host("sh", &["-ec", PREPARE], dir);
    let shell = "shell img -i ls / : ll / : find / : readdir / : readlink /link : getxattrs /etc/hostname : inspect-get-product-name /dev/sda : \
                 inspect-get-hostname /dev/sda : inspect-list-applications /dev/sda : vfs-label /dev/sda : blkid /dev/sda : \
                 inspect-get-mountpoints /dev/sda : glob-expand '/*' : mountpoints : -cat /nothing";
    let commands = [
        "ls img /",
        "ls -l img /",
        "find img",
        "find -l img",
        "stat img /link /etc/hostname",
        "list img",
        "df img",
        "inspect --packages img",
        "inspect --options img",
        "inspect --xml img",
        "checksum img /",
        "diff img empty",
        "cp img / copy",
    ];
    host("sh", &["-ec", &format!("'{INARCH}' trace -q --json trace -- sh -c 'cat root/e*x*'")], dir);
    let others = [shell, "plan img", "trace files trace"];
    for words in commands.map(|words| format!("disk {words}")).iter().map(String::as_str).chain(others) {
        let mut command = Command::new("script");
        command.args(["-qec", &format!("'{INARCH}' {words}"), "/dev/null"]).current_dir(dir);
        let text = stdout(&command.output().unwrap());
        assert!(!text.is_empty() || words.contains("cp "), "{words}");
        let harmless = |letter: char| !letter.is_control() || matches!(letter, '\n' | '\r' | '\t');
        assert!(text.chars().all(harmless), "{words}: {text:?}");
    }
}
