//! Promise: after heavy work on the disk its file system is clean, and the host's files are unchanged.

use crate::support::{any_machine, assert_status, host, manifest_program, run_script_in, scratch, stdout};

/// In the guest: works on the tree at /mnt, unmounts it and lets e2fsck judge base and overlay together.
const WORK: &str = r#"
set -eu
dev=$(awk '$2 == "/mnt" {print $1}' /proc/mounts)
cd /mnt
fio --name=verify --directory=/mnt --rw=randwrite --bs=4k-64k --size=48m --numjobs=2 --verify=crc32c --do_verify=1 \
    --group_reporting --minimal > /dev/null
rm -f verify.*
git -c init.defaultBranch=main init -q repository
cp -r /mnt/sources/. repository
cd repository
git add -A && git -c user.name=n -c user.email=e commit -qm all
git clone -q . ../clone && cd ../clone && git gc -q && git fsck --strict
cd /mnt
make -s -C project
project/hello
for i in $(seq 2000); do echo $i > many/new-$i; done
seq -f 'many/file-%g' 1 2 4000 | xargs rm
perl -e 'for (1..500) { rename("many/new-$_", "many/renamed-with-a-longer-name-$_") or die "rename: $!" }'
ls many | wc -l
rm -rf sources/sub-3
truncate -s 0 large; dd if=/dev/urandom of=large bs=64k count=200 status=none
fallocate -p -o 4096 -l 65536 large
cd /
fstrim /mnt
umount /mnt
e2fsck -fn "$dev"
mount -t ext4 "$dev" /mnt
cat /mnt/many/renamed-with-a-longer-name-500
"#;

#[test]
fn fio_git_make_and_many_names() {
    let dir = scratch();
    let tree = dir.path().join("tree");
    std::fs::create_dir(&tree).unwrap();
    let make = r#"
set -eu
mkdir sources many project
for d in $(seq 20); do mkdir sources/sub-$d; for f in $(seq 30); do seq $((d * f * 7)) > sources/sub-$d/$f.txt; done; done
(cd many; seq -f 'file-%g' 4000 | xargs touch)
head -c 5000000 /dev/urandom > large
printf '#include <stdio.h>\nint main(void) { puts("hello from the guest"); return 0; }\n' > project/hello.c
printf 'hello: hello.c\n\tcc -o hello hello.c\n' > project/Makefile
"#;
    host("sh", &["-c", make], &tree);
    let program = manifest_program(dir.path());
    let before = host("python3", &[program.to_str().unwrap(), "."], &tree);
    let output = run_script_in(any_machine(), dir.path(), &["--tree", &format!("{}:/mnt", tree.display())], WORK, b"");
    assert_status(&output, 0);
    let text = stdout(&output);
    assert!(text.contains("hello from the guest\n4000\n"), "{text}");
    assert!(text.contains("Pass 5: Checking group summary information"), "{text}");
    assert!(!text.contains("WARNING") && !text.contains("FIXED"), "{text}");
    assert!(text.ends_with("\n500\n"), "{text}");
    let after = host("python3", &[program.to_str().unwrap(), "."], &tree);
    assert!(before == after, "the host tree changed");
}
