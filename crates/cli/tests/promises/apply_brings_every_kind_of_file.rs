//! Promise: `apply` brings every kind of file and every attribute that a guest can make; what the caller may not make
//! is named, and the rest is applied.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::process::Command;

use crate::support::kept::Scene;
use crate::support::{assert_one_line, assert_status, copy_command, host, stderr, stdout};

/// Tools for attributes, with their libraries, and one that makes a socket.
const TOOLS: &str = r#"
for tool in setfattr setfacl setcap touch stat; do
    path=$(PATH=/usr/bin:/bin:/usr/sbin:/sbin command -v $tool); cp -L $path root/bin/g$tool
    for library in $(ldd $path | grep -o '/[^ ]*'); do mkdir -p root${library%/*}; cp -L $library root$library; done
done
cat > socket.c <<'END'
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
int main(int count, char **words)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	strncpy(address.sun_path, words[count - 1], sizeof address.sun_path - 1);
	return bind(socket(AF_UNIX, SOCK_STREAM, 0), (struct sockaddr *)&address, sizeof address) != 0;
}
END
musl-gcc -static -o root/bin/socket socket.c
"#;

/// What the tree has before.
const BASE: &str = r#"cd root/data
echo x > attrs; setfattr -n user.keep -v 1 attrs; setfattr -n user.gone -v 2 attrs
echo x > only-attrs
echo a > acl; setfacl -m u:12:rw acl
echo a > acl-gone; setfacl -m u:12:rw acl-gone
echo c > cap-gone; setcap cap_net_raw+ep cap-gone
mkdir gives; setfacl -d -m u:13:rwx gives
echo s > set-user; echo o > owner; ln -s elsewhere link
echo l > link1; ln link1 link2; ln link1 link3; echo k > alone
mkdir -p renamed/deep/er; for i in 1 2 3; do echo $i > renamed/$i; echo $i > renamed/deep/er/$i; done
echo t > file-to-directory; mkdir directory-to-link directory-to-fifo; echo in > directory-to-link/in
ln -s f1 link-to-file
"#;

/// What the guest does.
const SCRIPT: &str = r#"set -e; cd /data
gsetfattr -n user.new -v two attrs; gsetfattr -x user.gone attrs
gsetfattr -n user.only -v x only-attrs
echo x > attrs2; gsetfattr -n user.a -v 'b c' attrs2; gsetfattr -n trusted.t -v 1 attrs2; mkdir attrs3; gsetfattr -n user.d -v 1 attrs3
gsetfacl -m u:34:rwx,g:56:r acl; gsetfacl -b acl-gone; echo a > acl2; gsetfacl -m u:77:r,m::rx acl2
mkdir acl3; gsetfacl -d -m u:88:rw acl3; echo in > acl3/inherits; mkdir acl3/sub; echo in > gives/inherits
echo plain > gives/plain; gsetfacl -b gives/plain
echo p > cap; gsetcap cap_net_admin=ep cap; gsetcap -r cap-gone
mknod block b 7 200; mknod char c 1 3; chmod 640 block; mkfifo fifo; socket sock; chown 3:4 fifo sock
echo h > n1; ln n1 n2; ln n1 acl3/n3; ln alone alone2; echo more >> link1; rm link2; ln link3 link4
chown 1234:5678 owner; chown -h 9:9 link; chmod 4711 set-user; echo s > set-both; chown 12:34 set-both; chmod 6755 set-both; mkdir set-group; chmod 3777 set-group
echo t > time; gtouch -d '2001-02-03 04:05:06.123456789' time; mkdir time-dir; echo x > time-dir/x; gtouch -d '1965-02-03 04:05:06.5' time-dir
truncate -s 64M sparse; echo middle | dd of=sparse bs=1 seek=33554432 conv=notrunc 2>dd-says; rm dd-says; truncate -s 70M sparse
printf x > "$(printf 'not\377utf8')"; mkdir "$(printf 'dir\376')"; echo in > "$(printf 'dir\376/\375')"; echo l > "$(printf 'a\nline')"
rm file-to-directory; mkdir file-to-directory; echo in > file-to-directory/in
rm -r directory-to-link directory-to-fifo; ln -s elsewhere directory-to-link; mkfifo directory-to-fifo
rm link-to-file; echo file > link-to-file
mv renamed moved
"#;

/// Path and time of everything below `/data`.
const TIMES: &str = "cd /data; /bin/busybox find . | while read -r path; do gstat -c '%n %.9Y' \"$path\" || :; done";

fn chroot(scene: &Scene, root: &str, script: &str) -> String {
    host("chroot", &[&scene.path().join(root).display().to_string(), "/bin/sh", "-c", script], scene.path())
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<&str> = text.lines().collect();
    lines.sort_unstable();
    lines
}

fn prepared() -> Scene {
    let scene = Scene::new();
    host("sh", &["-ec", TOOLS], scene.path());
    scene
}

#[test]
fn everything_arrives() {
    let scene = prepared();
    host("sh", &["-ec", BASE], scene.path());
    host("cp", &["-a", "root", "expected"], scene.path());
    chroot(&scene, "expected", SCRIPT);
    let output = scene.run("run", &format!("{SCRIPT}{TIMES}"));
    assert_status(&output, 0);

    let listed = stdout(&scene.call(["diff", "run"]));
    for line in [
        "R  /data/renamed/ -> /data/moved/\n",
        "P  /data/only-attrs  (extended attributes)\n",
        "A  /data/acl3/n3\n",
        "A  /data/n2  (link to /data/acl3/n3)\n",
        "A  /data/alone2  (link to /data/alone)\n",
    ] {
        assert!(listed.contains(line), "{line}{listed}");
    }
    assert_eq!(listed.matches("moved/").count(), 1, "what moved along is not listed: {listed}");

    assert_status(&scene.call(["apply", "run", "-q"]), 0);
    let without_times = |root: &str| {
        let lines = scene.manifest(&scene.path().join(root));
        let fields = |line: &str| {
            line.split(' ').enumerate().filter(|(i, _)| *i != 4).map(|(_, field)| field.to_owned()).collect::<Vec<_>>()
        };
        lines.lines().map(fields).collect::<Vec<_>>()
    };
    for (is, wanted) in without_times("root").into_iter().zip(without_times("expected")) {
        assert_eq!(is, wanted);
    }
    assert_eq!(without_times("root").len(), without_times("expected").len());
    // Times are the guest's to the nanosecond, those of directories too.
    assert_eq!(sorted(&chroot(&scene, "root", TIMES)), sorted(&stdout(&output)));
    let sparse = fs::metadata(scene.host("data/sparse")).unwrap();
    assert!(sparse.len() == 70 << 20 && sparse.blocks() * 512 < 1 << 20, "{} blocks", sparse.blocks());
    // A second look finds everything done, attributes that the first look does not read included.
    assert_eq!(stdout(&scene.call(["apply", "run"])), "nothing to do\n");
}

#[test]
fn what_a_user_may_not_make_is_named() {
    const USER: u32 = 4321;
    let scene = prepared();
    let owner = format!("{USER}:{USER}");
    host("chown", &["-R", &owner, "root"], scene.path());
    let script = "cd /data; echo new > new; chown 12:34 new; mknod char c 1 3; echo mine > mine; chown 4321:4321 mine";
    assert_status(&scene.run("run", script), 0);
    host("chown", &["-R", &owner, "state"], scene.path());
    fs::set_permissions(scene.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let program = scene.path().join("inarch");
    copy_command(&program);
    let output = Command::new("setpriv")
        .args([&format!("--reuid={USER}"), &format!("--regid={USER}"), "--clear-groups"])
        .arg(&program)
        .args(["apply", "run"])
        .env("XDG_STATE_HOME", scene.path().join("state"))
        .current_dir(scene.path())
        .output()
        .unwrap();
    assert_status(&output, 1);
    let text = stderr(&output);
    assert!(text.contains("the owners of 1 file could not be set, for want of privilege\n"), "{text}");
    assert!(text.contains("data/char: cannot make it: Operation not permitted"), "{text}");
    assert_eq!(text.lines().count(), 2, "{text}");
    assert_eq!(fs::read(scene.host("data/new")).unwrap(), b"new\n");
    assert_eq!(fs::metadata(scene.host("data/new")).unwrap().uid(), USER);
    // The run still holds what this user could not apply. Root does not trust a run that a user can write to.
    assert_one_line(&scene.call(["apply", "run"]), &["state", "another user's"]);
    host("chown", &["-R", "0:0", "state"], scene.path());
    assert!(stdout(&scene.call(["diff", "run"])).contains("A  /data/char\n"));
    let again = scene.call(["apply", "run", "--force"]);
    assert_status(&again, 0);
    assert!(scene.host("data/char").exists());
}
