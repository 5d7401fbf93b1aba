//! Promise: guestfish's verbs and habits work over a guest's disks as the disks are, without a machine being booted, and write nothing where they read.

use std::fs;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::support::{INARCH, LVM, assert_one_line, assert_status, host, inarch, scratch, stderr, stdout};

/// Runs a script on standard input in `dir`.
fn script(dir: &Path, arguments: &[&str], lines: &str) -> Output {
    let mut child = Command::new(INARCH)
        .arg("shell")
        .args(arguments)
        .current_dir(dir)
        .env("HOME", dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("inarch starts");
    child.stdin.take().expect("piped").write_all(lines.as_bytes()).expect("the script is read");
    child.wait_with_output().expect("inarch ends")
}

/// What a script prints that ends well.
#[track_caller]
fn told(dir: &Path, arguments: &[&str], lines: &str) -> String {
    let output = script(dir, arguments, lines);
    assert_status(&output, 0);
    stdout(&output)
}

/// What one verb prints.
#[track_caller]
fn verb(dir: &Path, arguments: &[&str]) -> String {
    let output = Command::new(INARCH).arg("shell").args(arguments).current_dir(dir).stdin(Stdio::null()).output();
    let output = output.expect("inarch starts");
    assert_status(&output, 0);
    stdout(&output)
}

/// A session as libguestfs's author typed it in 2009, in two ways, over the names that disks had then and have now.
#[test]
fn a_session_of_2009_runs_as_typed() {
    let dir = scratch();
    let said = told(
        dir.path(),
        &[],
        "alloc test.img 10M
        !stat -c %b test.img
        run
        sfdiskM /dev/sda ,
        mkfs ext2 /dev/sda1
        blockdev-getsize64 /dev/sda1
        list-filesystems
        mount /dev/vda1 /
        ll /
        echo  done
        help mkfs",
    );
    let lines: Vec<&str> = said.lines().collect();
    // It takes its room.
    assert_eq!(lines[..4], ["20480", "9437184", "/dev/sda1: ext2", "done"], "{said}");
    assert!(lines[4].starts_with("mkfs TYPE DEVICE"), "{said}");
    assert_eq!(dir.path().join("test.img").metadata().unwrap().len(), 10 << 20);
    let table = host("/sbin/sfdisk", &["-d", "test.img"], dir.path());
    assert!(
        table.contains("label: dos") && table.contains("start=        2048, size=       18432, type=83"),
        "{table}"
    );
    host("sh", &["-ec", "dd if=test.img of=part bs=1M skip=1 status=none; /sbin/e2fsck -fn part"], dir.path());

    let said = told(
        dir.path(),
        &[],
        "sparse big.img 1G
        run
        part-disk /dev/hda gpt
        time mkfs ext4 /dev/hda1 label:root blocksize:4096
        vfs-label /dev/sda1
        vfs-type /dev/vda1
        part-get-parttype /dev/sda",
    );
    let lines: Vec<&str> = said.lines().collect();
    assert!(lines[0].starts_with("elapsed time: ") && lines[0].ends_with(" seconds"), "{said}");
    assert_eq!(lines[1..], ["root", "ext4", "gpt"]);
    assert!(dir.path().join("big.img").metadata().unwrap().blocks() < 1 << 16, "sparse takes none");
}

#[test]
fn tables_are_made_part_by_part() {
    let dir = scratch();
    let said = told(
        dir.path(),
        &[],
        "sparse disk.img 100M
        part-init /dev/sda gpt
        part-add /dev/sda p 2048 43007
        mkfs ext4 /dev/sda1 label:one
        part-add /dev/sda primary 43008 -34
        -part-add /dev/sda p 2048 4095
        mkswap-L two /dev/sda2
        list-filesystems
        part-list /dev/sda
        blkid /dev/sda1 | grep LABEL
        disk-create second.qcow2 qcow2 1G
        add second.qcow2
        blockdev-getsize64 /dev/sdb
        -mkfs ext4 /dev/sdb",
    );
    let start = "/dev/sda1: ext4\n/dev/sda2: swap\n[0] = {\n  part_num: 1\n  part_start: 1048576\n  part_end: 22020095\n  part_size: 20971520\n}\n";
    assert!(said.starts_with(start), "{said}");
    assert!(said.ends_with("LABEL: one\n1073741824\n"), "{said}");
    let table = host("sh", &["-c", "/sbin/sgdisk -v disk.img 2>&1 || /sbin/sfdisk -V disk.img 2>&1"], dir.path());
    assert!(table.contains("No problems") || table.contains("No errors"), "{table}");
    assert!(host("/sbin/sfdisk", &["-d", "disk.img"], dir.path()).contains("start=       43008, size=      161759"));
}

/// Makes `guest.img`, a disk with a root and a home, from the directories of that name.
fn guest(dir: &Path) {
    let files = "
        mkdir -p root/etc root/home root/dir/below root/usr/bin home/user
        printf 'ID=debian\\nVERSION_ID=\"12.5\"\\nPRETTY_NAME=\"Debian 12\"\\n' > root/etc/os-release
        printf 'LABEL=root / ext4 x 0 1\\n/dev/sda2 /home ext4 x 0 2\\nUUID=12 /srv ext4 x 0 2\\n' > root/etc/fstab
        echo box > root/etc/hostname; printf 'one two\\nthree\\n\\nfour' > root/dir/lines
        seq 30000 > root/dir/numbers; head -c 100000 /dev/urandom > root/dir/random; cp /bin/true root/usr/bin/bash
        ln -s ../etc/hostname root/dir/link; ln -s /dir root/to; ln root/dir/numbers root/dir/again
        printf 'first' > root/dir/sparse; truncate -s 3M root/dir/sparse; printf 'last' >> root/dir/sparse
        printf x > 'root/dir/a b'; truncate -s 5000 root/zeros; mkfifo root/dir/fifo; setfattr -n user.note -v text root/dir/numbers
        printf 'of the user' > home/user/notes; touch -d @1700000000.25 root/dir/numbers
        /sbin/mke2fs -q -t ext4 -L root -d root root.img 64M 2> /dev/null
        /sbin/mke2fs -q -t ext4 -L home -d home home.img 16M 2> /dev/null
        truncate -s 90M guest.img
        printf 'label: gpt\\nsize=64M,type=L,name=system\\nsize=16M,type=L\\n' | /sbin/sfdisk -q guest.img
        dd if=root.img of=guest.img bs=1M seek=1 conv=notrunc status=none
        dd if=home.img of=guest.img bs=1M seek=65 conv=notrunc status=none";
    host("sh", &["-ec", files], dir);
}

/// What dumpe2fs says of the numbers of `home.img`, as `statvfs`, `df` and `df-h` print them. Parts of a percent count as one, as for df(1).
const NUMBERS: &str = "/sbin/dumpe2fs -h home.img 2> /dev/null | awk -F': *' '{ of[$1] = $2 } END {
    size = of[\"Block size\"]; all = of[\"Block count\"]; free = of[\"Free blocks\"]; used = all - free
    left = free - of[\"Reserved block count\"]; inodes = of[\"Free inodes\"]
    printf \"bsize: %d\\nfrsize: %d\\nblocks: %d\\nbfree: %d\\nbavail: %d\\n\", size, size, all, free, left
    printf \"files: %d\\nffree: %d\\nfavail: %d\\nnamemax: 255\\n\", of[\"Inode count\"], inodes, inodes
    part = used * 100 / (used + left); part = int(part) + (part > int(part)); kib = size / 1024; mib = kib / 1024
    printf \"/dev/sda2 %d %d %d %d%% /home\\n\", all * kib, used * kib, left * kib, part
    printf \"/dev/sda2 %.1f MiB %.1f MiB %.1f MiB %d%% /home\\n\", all * mib, used * mib, left * mib, part }'";

/// What debugfs says of the files in `/dir`, as `readdir` prints them.
const ENTRIES: &str =
    "/sbin/debugfs -R 'ls -p /dir' root.img 2> /dev/null | grep -v '/[.][.]*/[^/]*/$' | sort -t / -k 6 | awk -F / '
    BEGIN { kind[\"10\"] = \"r\"; kind[\"04\"] = \"d\"; kind[\"12\"] = \"l\"; kind[\"01\"] = \"f\" }
    NF { printf \"  ino: %d\\n  ftyp: %s\\n  name: %s\\n\", $2, kind[substr($3, 1, 2)], $6 }'";

/// Each verb beside the program that does so with the files that the guest was made of.
#[test]
fn what_is_read_is_what_the_usual_programs_say() {
    let dir = scratch();
    guest(dir.path());
    let table =
        "truncate -s 8M mbr.img; printf 'label: dos\\nsize=2M,type=c\\nsize=1M,bootable\\n' | /sbin/sfdisk -q mbr.img";
    host("sh", &["-ec", table], dir.path());
    let image = dir.path().join("guest.img");
    let before = (fs::read(&image).unwrap(), image.metadata().unwrap().mtime());
    for (verb, program) in [
        ("ls /", "ls root"),
        ("ls /dir", "ls root/dir"),
        ("ls /to", "ls root/dir"),
        ("find /dir", "cd root/dir; find . -mindepth 1 | sed s,./,, | LC_ALL=C sort"),
        ("find /home", "cd home; find . -mindepth 1 | sed s,./,, | LC_ALL=C sort"),
        ("cat /dir/lines", "cat root/dir/lines"),
        ("cat /dir/random", "cat root/dir/random"),
        ("cat \"/dir/a b\"", "cat 'root/dir/a b'"),
        ("read-lines /dir/lines", "cat root/dir/lines; echo"),
        ("head /dir/numbers", "head root/dir/numbers"),
        ("head-n 3 /dir/numbers", "head -n 3 root/dir/numbers"),
        ("head-n -29990 /dir/numbers", "head -n -29990 root/dir/numbers"),
        ("tail /dir/again", "tail root/dir/numbers"),
        ("tail-n 2 /dir/numbers", "tail -n 2 root/dir/numbers"),
        ("tail-n -29990 /dir/numbers", "tail -n +29990 root/dir/numbers"),
        ("wc-l /dir/lines", "wc -l < root/dir/lines"),
        ("wc-w /dir/lines", "wc -w < root/dir/lines"),
        ("wc-c /dir/sparse", "wc -c < root/dir/sparse"),
        ("checksum crc /dir/random", "cksum < root/dir/random | cut -d' ' -f1"),
        ("checksum sha1 /dir/sparse", "sha1sum < root/dir/sparse | cut -d' ' -f1"),
        ("checksum sha256 /dir/random", "sha256sum < root/dir/random | cut -d' ' -f1"),
        ("checksum sha512 /dir/link", "sha512sum < root/etc/hostname | cut -d' ' -f1"),
        ("checksum-device sha256 /dev/sda2", "sha256sum < home.img | cut -d' ' -f1"),
        ("hexdump /dir/sparse", "hexdump -C root/dir/sparse"),
        ("strings /usr/bin/bash", "strings -a root/usr/bin/bash"),
        ("grep '9\\{4\\}' /dir/numbers", "grep '9\\{4\\}' root/dir/numbers"),
        ("grep 1+ /dir/numbers", "grep 1+ root/dir/numbers || true"),
        ("egrep '^1(2|3)4+$' /dir/numbers", "grep -E '^1(2|3)4+$' root/dir/numbers"),
        ("fgrep TWO /dir/lines", "true"),
        ("fgrepi TWO /dir/lines", "grep -iF TWO root/dir/lines"),
        ("pread /dir/numbers 10 100", "tail -c +101 root/dir/numbers | head -c 10"),
        ("pread-device /dev/sda2 100 1024", "tail -c +1025 home.img | head -c 100"),
        ("readlink /dir/link", "readlink root/dir/link"),
        ("realpath /to/link", "echo /etc/hostname"),
        ("filesize /dir/sparse", "stat -c %s root/dir/sparse"),
        ("exists /dir/none", "echo false"),
        ("is-dir /to", "echo false"),
        ("is-dir /to followsymlinks:true", "echo true"),
        ("is-file /dir/lines", "echo true"),
        ("is-symlink /to", "echo true"),
        ("is-fifo /dir/fifo", "echo true"),
        ("equal /dir/numbers /dir/again", "echo true"),
        ("equal /dir/numbers /dir/random", "echo false"),
        ("getxattr /dir/numbers user.note", "printf text"),
        ("getxattrs /dir/numbers", "printf '[0] = {\\n  attrname: user.note\\n  attrval: text\\n}\\n'"),
        ("glob-expand '/dir/[ln]*'", "printf '/dir/lines\\n/dir/link\\n/dir/numbers\\n'"),
        ("glob-expand '/d*/b*'", "printf '/dir/below/\\n'"),
        ("vfs-uuid /dev/sda1", "/sbin/blkid -o value -s UUID root.img"),
        ("blockdev-getsz /dev/sda2", "echo $((16 << 11))"),
        ("blockdev-getss /dev/sda", "echo 512"),
        ("part-get-name /dev/sda 1", "echo system"),
        ("findfs-label home", "echo /dev/sda2"),
        ("inspect-os", "echo /dev/sda1"),
        ("inspect-get-distro /dev/sda1", "echo debian"),
        ("inspect-get-minor-version /dev/sda1", "echo 5"),
        ("inspect-get-hostname /dev/vda1", "echo box"),
        ("inspect-get-mountpoints /dev/sda1", "printf '/: /dev/sda1\\n/home: /dev/sda2\\n'"),
        ("mountpoints", "printf '/dev/sda1: /\\n/dev/sda2: /home\\n'"),
        (
            "list-devices\nlist-partitions",
            "echo /dev/sda; /sbin/sfdisk -q -l -o device guest.img | sed '1d; s,guest.img,/dev/sda,'",
        ),
        (
            "launch\nrun\nsync\nset-autosync true\nset-memsize 500\nlvm-scan true\nvg-activate-all true\nnr-devices",
            "echo 1",
        ),
        (
            "add-drive home.img readonly:true\nlaunch\nblockdev-getro /dev/sdb\nget-e2label /dev/sdb",
            "echo true; /sbin/e2label home.img",
        ),
        (
            "add-drive-ro mbr.img\npart-get-mbr-id /dev/sdb 1",
            "echo 0x$(/sbin/sfdisk --part-type mbr.img 1 | tr -d ' ')",
        ),
        ("add-ro mbr.img\npart-get-bootable /dev/sdb 1\npart-get-bootable /dev/sdb 2", "echo false; echo true"),
        ("part-get-gpt-type /dev/sda 1", "/sbin/sfdisk --part-type guest.img 1"),
        ("part-get-gpt-guid /dev/sda 2", "/sbin/sfdisk --part-uuid guest.img 2"),
        ("part-get-disk-guid /dev/sda", "/sbin/sfdisk --disk-id guest.img"),
        ("part-to-dev /dev/sda2\npart-to-partnum /dev/sda2", "echo /dev/sda; echo 2"),
        (
            "device-index /dev/sda\ndevice-name 0\ncanonical-device-name /dev/vda1",
            "echo 0; echo /dev/sda; echo /dev/sda1",
        ),
        ("is-whole-device /dev/sda\nis-whole-device /dev/sda1", "echo true; echo false"),
        ("<!echo findfs-uuid $(/sbin/blkid -o value -s UUID home.img)", "echo /dev/sda2"),
        (
            "<!echo findfs-partuuid $(/sbin/sfdisk --part-uuid guest.img 2)\nfindfs-partlabel system",
            "echo /dev/sda2; echo /dev/sda1",
        ),
        (
            "blkid /dev/sda2",
            "for tag in TYPE LABEL UUID; do echo $tag: $(/sbin/blkid -p -o value -s $tag home.img); done",
        ),
        ("get-uuid /dev/sda2\nget-e2uuid /dev/sda2", "for i in 1 2; do /sbin/blkid -o value -s UUID home.img; done"),
        ("statvfs /home/user\ndf | grep /home | tr -s ' '\ndf-h | grep /home | tr -s ' '", NUMBERS),
        (
            "mounts\numount-all\nmount-vfs ro ext4 /dev/sda2 /\nls /\nmounts",
            "echo /dev/sda1; echo /dev/sda2; ls home; echo /dev/sda2",
        ),
        ("readdir /dir | grep '^ '", ENTRIES),
        ("ls0 /dir names\n!tr '\\0' '\\n' < names", "ls root/dir"),
        ("read-file /dir/lines", "cat root/dir/lines"),
        ("setenv PAGER 'tail -n 1'\nmore /dir/lines", "tail -n 1 root/dir/lines"),
        (
            "grepi TWO /dir/lines\negrepi 'T(H|W)' /dir/lines",
            "grep -i TWO root/dir/lines; grep -iE 'T(H|W)' root/dir/lines",
        ),
        ("lgetxattr /dir/numbers user.note", "printf text"),
        ("is-chardev /dir/fifo\nis-blockdev /dir/fifo\nis-socket /dir/fifo", "echo false; echo false; echo false"),
        ("is-zero /zeros\nis-zero /dir/sparse\nis-zero-device /dev/sda2", "echo true; echo false; echo false"),
        (
            "lstat /dir/link | grep -E '^(mode|size|mtime)'",
            "stat -c '%f %s %Y' root/dir/link | { read -r mode size mtime; printf 'mode: %d\\nsize: %d\\nmtime: %d\\n' 0x$mode $size $mtime; }",
        ),
        ("lstatns /dir/link | grep -E 'size|mtime_sec'", "stat -c 'st_size: %s\nst_mtime_sec: %Y' root/dir/link"),
        ("inspect-get-type /dev/sda1\ninspect-get-arch /dev/sda1", "echo linux; uname -m"),
        (
            "inspect-get-product-name /dev/sda1\ninspect-get-major-version /dev/sda1",
            ". root/etc/os-release; echo $PRETTY_NAME; echo ${VERSION_ID%.*}",
        ),
        ("inspect-get-filesystems /dev/sda1", "echo /dev/sda1; echo /dev/sda2"),
        (
            "stat /dir/again | grep -E 'mode|nlink|size|mtime'",
            "stat -c 'mode: %f' root/dir/numbers | python3 -c 'print(\"mode:\", int(input()[6:], 16))'; stat -c 'nlink: %h\nsize: %s\nblksize: 1024\nmtime: %Y' root/dir/numbers",
        ),
    ] {
        let output = script(dir.path(), &["--ro", "guest.img", "-i"], verb);
        assert_status(&output, 0);
        let expected = Command::new("sh").args(["-c", program]).env("LC_ALL", "C").current_dir(dir.path()).output();
        let expected = expected.unwrap();
        assert!(expected.status.success(), "{program}");
        let (found, expected) = (&output.stdout, &expected.stdout);
        assert!(found == expected, "{verb}:\n{}\nand not\n{}", stdout(&output), String::from_utf8_lossy(expected));
    }
    let after = (fs::read(&image).unwrap(), image.metadata().unwrap().mtime());
    assert!(before == after, "the image was changed");

    // The same in containers, and in one that needs another file.
    let convert = "for format in qcow2 vdi vpc vmdk vhdx; do qemu-img convert -O $format guest.img guest.$format; done
        qemu-img create -q -f qcow2 -b guest.qcow2 -F qcow2 above.qcow2; sha256sum < home.img | cut -d' ' -f1";
    let sum = host("sh", &["-ec", convert], dir.path());
    for image in ["guest.qcow2", "guest.vdi", "guest.vpc", "guest.vmdk", "guest.vhdx"] {
        assert_eq!(verb(dir.path(), &[image, "checksum-device", "sha256", "/dev/sda2"]), sum, "{image}");
    }
    assert_eq!(verb(dir.path(), &["above.qcow2", "--with", "guest.qcow2", "-i", "inspect-os"]), "/dev/sda1\n");
    assert_one_line(
        &inarch(["shell", dir.path().join("above.qcow2").to_str().unwrap(), "-i"]),
        &["guest.qcow2", "--with"],
    );
}

#[test]
fn files_are_copied_out() {
    let dir = scratch();
    guest(dir.path());
    fs::create_dir(dir.path().join("out")).unwrap();
    told(
        dir.path(),
        &["guest.img", "-i"],
        "lcd out
        download /dir/sparse sparse
        download /dev/sda2 home.img
        download-offset /dir/numbers part 100 50
        copy-out /dir /etc/fstab .
        find0 /home list
        tar-out /dir dir.tar
        cpio-out /home home.cpio
        -tar-out /none none.tar
        -download /dir .
        -download /dir/none none",
    );
    let same = "cmp out/sparse root/dir/sparse; cmp out/home.img home.img; cmp out/part <(tail -c +101 root/dir/numbers | head -c 50)
        diff -r --no-dereference out/dir root/dir 2>&1 | grep -v fifo || true; cmp out/fstab root/etc/fstab
        test $(du -k out/sparse | cut -f1) -lt 100; cmp out/list <(printf 'user\\0user/notes\\0')
        mkdir tar; tar xf out/dir.tar -C tar; diff -r --no-dereference tar root/dir 2>&1 | grep -v fifo || true
        cpio -t --quiet < out/home.cpio | grep -qx user/notes; ls out";
    let left = host("bash", &["-ec", same], dir.path());
    assert_eq!(left, "dir\ndir.tar\nfstab\nhome.cpio\nhome.img\nlist\npart\nsparse\n");
    // A hole is not read: this one would take an hour.
    let make = "mkdir big; truncate -s 1T big/huge; printf end >> big/huge; truncate -s 16M big.img
        /sbin/mke2fs -q -t ext4 -d big big.img 2> /dev/null";
    host("sh", &["-ec", make], dir.path());
    verb(dir.path(), &["big.img", "-m", "/dev/sda", "download", "/huge", "out/huge"]);
    let huge = host("sh", &["-c", "stat -c %s out/huge; tail -c 3 out/huge"], dir.path());
    assert_eq!(huge, format!("{}\nend", (1u64 << 40) + 3));
}

/// Several disks, with a volume group over two of them, and an array.
#[test]
fn volumes_lie_on_several_disks() {
    let dir = scratch();
    if !rustix::process::geteuid().is_root() {
        println!("skipped: volumes_lie_on_several_disks: only root makes volumes");
        return;
    }
    let made = format!(
        "truncate -s 40M a.img b.img
        first=$(losetup -f --show a.img); second=$(losetup -f --show b.img); trap 'losetup -d $first $second' EXIT
        {LVM}
        lvm pvcreate -y $first $second > said; lvm vgcreate shellvg $first $second > said
        lvm lvcreate -an -Zn -l 16 -n data shellvg > said
        lvm lvs --noheadings -o lv_uuid shellvg"
    );
    let identifier = host("sh", &["-ec", &made], dir.path());
    let lines = "lvs\nvgs\npvs\nlist-devices\nis-lv /dev/mapper/shellvg-data\nlvuuid /dev/shellvg/data";
    let expected = "/dev/shellvg/data\nshellvg\n/dev/sda\n/dev/sdb\n/dev/sda\n/dev/sdb\ntrue\n";
    assert_eq!(told(dir.path(), &["a.img", "b.img"], lines), format!("{expected}{}\n", identifier.trim()));
    assert_eq!(
        verb(dir.path(), &["a.img", "b.img", "blockdev-getsize64", "/dev/shellvg/data"]),
        format!("{}\n", 64 << 20)
    );
    let output = script(dir.path(), &["a.img"], "lvs");
    assert!(stderr(&output).contains("missing"), "{}", stderr(&output));
}

#[test]
fn lines_are_read_as_by_guestfish() {
    let dir = scratch();
    guest(dir.path());
    let said = told(
        dir.path(),
        &["guest.img", "-m", "/dev/sda1", "-m", "LABEL=home:/home"],
        "# a comment
          # another

        echo \"a  b\\x21\\t|\" 'c \"d\"' e
        -cat /nothing
        - rm /none/at/all
        cat /dir/numbers | tail -n 1
        hexdump /dir/random | head -n 1 | wc -l
        !echo from the host
        <!echo echo from a command
        setenv GREETING hello
        !echo $GREETING
        unsetenv GREETING
        !echo ${GREETING-none}
        glob echo /dir/*ers /dev/sda? /no*
        glob wc-c /dir/l*
        not cat /nothing
        cat /home/user/notes
        umount /home
        ls /home
        mount_ro /dev/sda2 /home
        quit
        echo not reached",
    );
    let expected = "a  b!\t| c \"d\" e\n30000\n1\nfrom the host\nfrom a command\nhello\nnone\n/dir/numbers /dev/sda1 /no*\n/dir/numbers /dev/sda2 /no*\n19\n4\nof the user";
    assert_eq!(said, expected);

    for (lines, parts) in [
        ("ls /\ncat /none\necho no", &["line 2: cat: /none", "no such file"][..]),
        ("echo \"a", &["line 1: ", "quote has no end"]),
        ("!exit 3", &["line 1: !exit 3"]),
        ("lss /", &["line 1: lss: there is no such verb; did you mean 'ls'?"]),
        ("pwrite /etc/fstab x 0", &["line 1: pwrite: this shell does not make that change", "mount --rw"]),
        ("command 'ls /'", &["command: no program of the guest is run", "inarch run --root"]),
        ("ls", &["it is used as 'ls DIR'"]),
        ("ls /etc/fstab", &["/etc/fstab", "no directory"]),
        ("cat /etc", &["/etc", "is a directory"]),
        ("mount /dev/sda3 /", &["/dev/sda3", "no such device"]),
        ("mount /dev/sda2 /dir", &["it is mounted"]),
        ("umount /\nls /", &["umount", "is mounted below it"]),
        ("umount-all\nls /", &["line 2: ls: nothing is mounted"]),
        ("mkfs ext4 /dev/sda1", &["mkfs: /dev/sda1", "umount it first"]),
        ("part-disk /dev/sda gpt", &["part-disk: ", "is mounted"]),
        ("mkfs ext5 /dev/sdb", &["ext5"]),
        ("checksum md4 /etc/fstab", &["md4", "sha256"]),
        ("grep '[' /etc/fstab", &["no regular expression"]),
        ("alloc guest.img 1M", &["guest.img", "exists already"]),
        ("alloc new.img many", &["'many' is not a size"]),
        ("add none.img", &["none.img"]),
    ] {
        let output = script(dir.path(), &["guest.img", "-m", "/dev/sda1", "-m", "/dev/sda2:/home"], lines);
        if lines.starts_with("mount /dev/sda2 /dir") {
            // One file system may be mounted twice.
            assert_status(&output, 0);
            continue;
        }
        assert_status(&output, 1);
        let said = stderr(&output);
        assert!(said.trim_end().lines().count() == 1 && said.starts_with("inarch: "), "{lines}: {said}");
        for part in parts {
            assert!(said.contains(part), "{lines}: '{part}' is not in: {said}");
        }
        assert!(!stdout(&output).contains("no\n"), "a script stops");
    }
    // The command line is checked before anything is done.
    let image = dir.path().join("guest.img");
    let image = image.to_str().unwrap();
    for (arguments, parts) in [
        (&["/nothing/there.img"][..], &["/nothing/there.img", "No such file"][..]),
        (&["lss"], &["no such verb", "'ls'"]),
        (&[image, "--bogus"], &["--bogus"]),
        (&[image, "-m", "/dev/sda7"], &["/dev/sda7", "no such device"]),
        (&["-i"], &["there is no drive yet"]),
    ] {
        assert_one_line(&inarch([&["shell"], arguments].concat()), parts);
    }
}

#[test]
fn nothing_is_written_with_ro() {
    let dir = scratch();
    guest(dir.path());
    let before = fs::read(dir.path().join("guest.img")).unwrap();
    for verb in [
        "mkfs ext4 /dev/sda2",
        "part-disk /dev/sda mbr",
        "part-init /dev/sda gpt",
        "sfdiskM /dev/sda ,",
        "mkswap /dev/sda1",
    ] {
        let output = script(dir.path(), &["--ro", "guest.img"], verb);
        assert_status(&output, 1);
        assert!(stderr(&output).contains("for reading only"), "{}", stderr(&output));
    }
    let output = script(dir.path(), &[], "add-ro guest.img\nmkfs ext4 /dev/sda2");
    assert!(stderr(&output).contains("for reading only"), "{}", stderr(&output));
    for lines in ["mount-ro /dev/sda1 /\nwrite /etc/hostname x", "mount-options noatime,ro /dev/sda1 /\nrm-rf /etc"] {
        let output = script(dir.path(), &["guest.img"], lines);
        assert_status(&output, 1);
        assert!(
            stderr(&output).contains("line 2") && stderr(&output).contains("mounted for reading only"),
            "{}",
            stderr(&output)
        );
    }
    let output = script(dir.path(), &["--ro"], "sparse new.img 1M");
    assert_status(&output, 1);
    assert!(fs::read(dir.path().join("guest.img")).unwrap() == before && !dir.path().join("new.img").exists());
    // What a verb makes is seen by the next, and what another program makes is no mixture.
    let said = told(
        dir.path(),
        &["guest.img"],
        "vfs-type /dev/sda2\nmount /dev/sda1 /\nmkfs ext2 /dev/sda2\nvfs-type /dev/sda2\ncat /etc/hostname\n!touch guest.img\n-cat /dir/random | wc -c\nreopen\nadd guest.img\nvfs-type /dev/sda2",
    );
    assert_eq!(said, "ext4\next2\nbox\n0\next2\n");
}

/// A guest chooses the names of its files, labels and volumes.
#[test]
fn hostile_names_do_nothing() {
    let dir = scratch();
    let script_text = "
        mkdir -p 'root/d'; printf 1 > \"root/d/$(printf 'x\\033]0;title\\007\\ny')\"; printf 2 > \"root/d/$(printf '\\377raw')\"
        ln -s \"$(printf 'to\\033[2J')\" root/d/link; ln -s loop root/loop
        /sbin/mke2fs -q -t ext4 -L \"$(printf 'l\\033[1m')\" -d root image 16M 2> /dev/null";
    host("sh", &["-ec", script_text], dir.path());
    let said = told(
        dir.path(),
        &["image", "-m", "/dev/sda"],
        "ls /d\nll /d\nfind /\nreaddir /d\nglob-expand /d/*\nreadlink /d/link\nvfs-label /dev/sda\nblkid /dev/sda\ncat \"/d/x\\x1b]0;title\\x07\\ny\"\ncat \"/d/\\xffraw\"\n-cat /loop\n-cat \"/\\x1b[2J\"\nglob cat /d/*w",
    );
    assert!(said.contains("x\\u{1b}]0;title\\u{7}\\ny") && said.contains("to\\u{1b}[2J"), "{said}");
    assert!(said.ends_with("122"), "{said}");
    assert!(!said.contains('\x1b') && !said.contains('\x07'), "{said:?}");
    let output = script(dir.path(), &["image", "-m", "/dev/sda"], "ls \"/\\x1b[2J\"");
    assert!(!stderr(&output).contains('\x1b'), "{}", stderr(&output));
    assert!(!stderr(&script(dir.path(), &["image"], "mount \"/dev/\\x1b[2J\" /")).contains('\x1b'));
}

/// At a terminal, which script(1) makes: a prompt, completion, history for the user alone, and no end at a failure.
#[test]
fn a_terminal_has_a_prompt() {
    let dir = scratch();
    guest(dir.path());
    let talk = |keys: &str| {
        let command = format!("{INARCH} shell guest.img -i");
        let mut child = Command::new("script")
            .args(["-qec", &command, "/dev/null"])
            .current_dir(dir.path())
            .env("XDG_STATE_HOME", dir.path().join("state"))
            .env("TERM", "xterm")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("script starts");
        child.stdin.take().expect("piped").write_all(keys.as_bytes()).expect("keys are read");
        let output = child.wait_with_output().expect("script ends");
        assert_status(&output, 0);
        stdout(&output)
    };
    let said = talk("cat /none\ncat /dir/li\tes\nhead-n 1 /dir/nu\t\nquit\n");
    for part in ["Operating system: Debian 12", "><fs> ", "inarch: cat: /none: there is no such file", "three"] {
        assert!(said.contains(part), "'{part}' is not in: {said}");
    }
    let history = dir.path().join("state/inarch/shell.history");
    let lines = fs::read_to_string(&history).unwrap();
    assert!(lines.ends_with("cat /none\ncat /dir/lines\nhead-n 1 /dir/numbers \nquit\n"), "{lines}");
    assert_eq!(history.metadata().unwrap().mode() & 0o777, 0o600);
    // Ctrl-D ends; the lines of before are remembered.
    talk("echo again\n\x04");
    assert!(fs::read_to_string(&history).unwrap().ends_with("quit\necho again\n"));
    // A history that another user could have made is not used.
    fs::remove_file(&history).unwrap();
    std::os::unix::fs::symlink("/etc/passwd", &history).unwrap();
    let said = talk("quit\n");
    assert!(said.contains("lines are not remembered"), "{said}");
}

/// Where a path leads follows from what was changed before, and links lead to other devices.
#[test]
fn changes_see_those_before_them() {
    let dir = scratch();
    let make = "PATH=$PATH:/usr/sbin:/sbin
        mkdir -p root/etc root/home user; echo old > root/etc/motd; ln -s etc/motd root/link; ln -s /home/notes root/notes; echo n > user/notes
        mke2fs -q -t ext4 -d root root.part 32M 2> /dev/null; mke2fs -q -t ext4 -d user user.part 16M 2> /dev/null
        truncate -s 60M guest.img; printf 'label: gpt\\nsize=32M\\nsize=16M\\n' | sfdisk -q guest.img
        dd if=root.part of=guest.img bs=1M seek=1 conv=notrunc status=none
        dd if=user.part of=guest.img bs=1M seek=33 conv=notrunc status=none";
    host("sh", &["-ec", make], dir.path());
    let said = told(
        dir.path(),
        &["-a", "guest.img", "-m", "/dev/sda1", "-m", "/dev/sda2:/home"],
        "rm /link
        write /link own
        write /etc/one 1
        write /notes through
        ln-s /home /way
        write /way/new far
        cat /etc/motd
        cat /link
        cat /home/notes
        cat /home/new",
    );
    assert_eq!(said, "old\nownthroughfar");
    let refused = script(dir.path(), &["-a", "guest.img", "-m", "/dev/sda1", "-m", "/dev/sda2:/home"], "rm-rf /\n");
    assert_status(&refused, 1);
    assert!(stderr(&refused).contains("/home is mounted below it"), "{}", stderr(&refused));
    let check = "PATH=$PATH:/usr/sbin:/sbin
        dd if=guest.img of=a bs=1M skip=1 count=32 status=none; dd if=guest.img of=b bs=1M skip=33 count=16 status=none
        e2fsck -fn a > said 2>&1 && e2fsck -fn b >> said 2>&1 || { cat said; exit 1; }
        debugfs -R 'ls -p /home' a 2> /dev/null | grep -c '/new/\\|/notes/' || :; debugfs -R 'cat /notes' b 2> /dev/null";
    assert_eq!(host("sh", &["-ec", check], dir.path()), "0\nthrough");
}

/// One machine serves the verbs that change files; what they changed is read by those that follow, and the file system is clean.
#[test]
fn files_are_changed_by_one_machine() {
    let dir = scratch();
    let make = "PATH=$PATH:/usr/sbin:/sbin
        mkdir -p root/etc root/home user; echo old > root/etc/motd; ln -s /etc/motd root/link; ln -s /home/notes root/notes; echo n > user/notes
        mke2fs -q -t ext4 -d root root.part 32M 2> /dev/null; mke2fs -q -t ext4 -d user user.part 16M 2> /dev/null
        truncate -s 60M guest.img; printf 'label: gpt\\nsize=32M\\nsize=16M\\n' | sfdisk -q guest.img
        dd if=root.part of=guest.img bs=1M seek=1 conv=notrunc status=none
        dd if=user.part of=guest.img bs=1M seek=33 conv=notrunc status=none
        mkdir local local/dir; echo text > local/file; echo deep > local/dir/deep";
    host("sh", &["-ec", make], dir.path());
    let said = told(
        dir.path(),
        &["-a", "guest.img"],
        "mount /dev/sda1 /
        mount /dev/sda2 /home
        write /link new
        mkdir-p /srv/a/b
        upload local/file /srv/a/b/file
        copy-in local /srv
        mv /srv/a/b/file /srv/moved
        ln-s moved /srv/link
        chmod 0640 /srv/moved
        chown 12 34 /srv/moved
        touch /srv/empty
        rm-rf /srv/a
        -rm /srv/none
        rm-f /srv/none
        cat /etc/motd
        find /srv
        cat /srv/link
        write /notes changed
        -mv /etc/motd /home/motd
        cat /home/notes
        stat /srv/moved | grep -E '^(mode|uid|gid)'",
    );
    let lines: Vec<_> = said.lines().collect();
    assert_eq!(lines[0], "newempty", "{said}");
    assert_eq!(lines[1..6], ["link", "local", "local/dir", "local/dir/deep", "local/file"]);
    assert_eq!(lines[6..9], ["moved", "text", "changedmode: 33184"], "{said}");
    assert_eq!(lines[9..], ["uid: 12", "gid: 34"]);
    let check = "PATH=$PATH:/usr/sbin:/sbin
        dd if=guest.img of=a bs=1M skip=1 count=32 status=none; dd if=guest.img of=b bs=1M skip=33 count=16 status=none
        e2fsck -fn a > said 2>&1 && e2fsck -fn b >> said 2>&1 || { cat said; exit 1; }
        debugfs -R 'cat /notes' b 2> /dev/null; debugfs -R 'ls -p /home' a 2> /dev/null | grep -c motd || :";
    let checked = host("sh", &["-ec", check], dir.path());
    assert_eq!(checked, "changed0\n");
    let before = fs::read(dir.path().join("guest.img")).unwrap();
    let refused = script(dir.path(), &["--ro", "-a", "guest.img", "-m", "/dev/sda1"], "write /x y\n");
    assert_status(&refused, 1);
    assert_eq!(stderr(&refused), "inarch: line 1: write: /dev/sda: the drive was added for reading only\n");
    assert!(fs::read(dir.path().join("guest.img")).unwrap() == before);
}
