//! The verbs of guestfish (libguestfs 1.60, internal ones aside) that the shell does not have, and why.

/// Verbs with one reason.
pub struct Elsewhere {
    /// The title of their group, in docs/shell.md.
    pub group: &'static str,
    /// Why they are not here.
    pub why: Why,
    /// Their names, separated by spaces.
    pub names: &'static str,
}

/// Why the shell does not have a verb.
pub enum Why {
    /// It changes a disk in a way that this shell does not.
    Changes,
    /// It is not here for this reason, or something else does it.
    Not(&'static str),
}

impl Elsewhere {
    /// The entry of a verb of that name.
    pub fn named(name: &str) -> Option<&'static Elsewhere> {
        let name = name.replace('_', "-");
        ELSEWHERE.iter().find(|one| one.names.split(' ').any(|known| known == name))
    }
}

const fn not(group: &'static str, why: &'static str, names: &'static str) -> Elsewhere {
    Elsewhere { group, why: Why::Not(why), names }
}

const fn changes(group: &'static str, names: &'static str) -> Elsewhere {
    Elsewhere { group, why: Why::Changes, names }
}

/// The groups that libguestfs calls optional, and how far this shell has their verbs.
pub static GROUPS_OF_GUESTFS: [(&str, Option<&str>); 37] = [
    ("acl", None),
    ("blkdiscard", None),
    ("blkdiscardzeroes", None),
    ("btrfs", None),
    ("clevisluks", None),
    ("extlinux", None),
    ("f2fs", None),
    ("fstrim", None),
    ("gdisk", None),
    ("grub", None),
    ("hivex", None),
    ("inotify", None),
    ("journal", None),
    ("ldm", None),
    ("libtsk", None),
    ("libyara", None),
    ("linuxcaps", None),
    ("linuxfsuuid", None),
    ("linuxmodules", None),
    ("linuxxattrs", Some("reading")),
    ("luks", None),
    ("lvm2", Some("reading")),
    ("mdadm", Some("listing")),
    ("mknod", None),
    ("ntfs3g", None),
    ("ntfsprogs", None),
    ("rsync", None),
    ("scrub", None),
    ("selinux", None),
    ("selinuxrelabel", None),
    ("sleuthkit", None),
    ("squashfs", None),
    ("syslinux", None),
    ("wipefs", None),
    ("xfs", None),
    ("xz", None),
    ("zerofree", None),
];

/// All of them, by groups.
pub static ELSEWHERE: &[Elsewhere] = &[
    not("Drives", "a drive is an image on this machine; 'sparse' makes one", "add-drive-scratch scratch"),
    not("Drives", "'inarch disk list' tells it", "disk-format disk-virtual-size disk-has-backing-file"),
    not(
        "Devices",
        "the readers do not tell it; 'statvfs' and 'inarch disk list' have the main numbers",
        "tune2fs-l ntfsclone-out isoinfo-device isoinfo get-e2attrs get-e2generation btrfs-subvolume-list \
         btrfs-subvolume-get-default btrfs-subvolume-show btrfs-qgroup-show btrfs-balance-status btrfs-scrub-status btrfs-image \
         ntfscat-i btrfs-filesystem-show xfs-info2 xfs-info",
    ),
    not(
        "Devices",
        "what holds file systems is listed by 'list-filesystems'",
        "mountable-device mountable-subvolume list-dm-devices",
    ),
    not(
        "Devices",
        "'inarch disk list' shows it",
        "pvs-full vgs-full lvs-full sfdisk-kernel-geometry sfdisk-disk-geometry pvuuid vguuid vgpvuuids vglvuuids md-detail vgmeta \
         md-stat part-get-gpt-attributes part-get-mbr-part-type vfs-minimum-size sfdisk-l",
    ),
    not("Devices", "one name is enough: that of 'list-filesystems'", "lvm-canonical-lv-name"),
    not(
        "Devices",
        "it is a property of a running machine",
        "blockdev-setro blockdev-setrw blockdev-getbsz blockdev-setra blockdev-setbsz",
    ),
    not("Devices", "no driver is needed: what is read is in docs/sources.md", "ntfs-3g-probe filesystem-available"),
    not("Mounts", "'inarch mount IMAGE:VOLUME DIR' mounts on this machine", "mount-local mount-local-run umount-local"),
    not("Mounts", "the first file system is mounted on /; others on directories of it", "mkmountpoint rmmountpoint"),
    not("Mounts", "image files within a guest are not opened; 'download' gives them to this machine", "mount-loop"),
    not("Mounts", "'umount' and 'mount' do it", "remount"),
    not("Files", "'ll' has no SELinux labels; 'getxattr PATH security.selinux' prints one", "llz"),
    not("Files", "'tar-out' writes an archive, and gzip or xz compress it", "tgz-out txz-out"),
    not("Files", "a picture is shown by a program of this machine, after 'download'", "display"),
    not(
        "What files are",
        "it would need libmagic; 'download' or a pipe gives file(1) the bytes: cat PATH | file -",
        "file zfile",
    ),
    not("What files are", "'inspect-get-arch' tells that of the system", "file-architecture"),
    not(
        "What files are",
        "'getxattr PATH system.posix_acl_access' and 'getxattr PATH security.capability' print the bytes",
        "acl-get-file cap-get-file",
    ),
    not(
        "What files are",
        "'glob lstatns PATTERN' and the like ask for many files",
        "lstatnslist lxattrlist readlinklist lstatlist",
    ),
    not(
        "What files are",
        "names are those that the file system has; NTFS, FAT and exFAT find them whatever the case of letters",
        "case-sensitive-path",
    ),
    not(
        "Content",
        "use a pipe: cat PATH | COMMAND",
        "strings-e initrd-list initrd-cat base64-out checksums-out compress-out zgrep zegrep zfgrep zgrepi zegrepi zfgrepi",
    ),
    not("Content", "use a pipe or 'download'", "compress-device-out"),
    not(
        "Inspection",
        "it is not told",
        "inspect-get-windows-systemroot inspect-get-product-variant inspect-get-windows-software-hive \
         inspect-get-windows-system-hive inspect-get-windows-group-policy inspect-get-build-id inspect-get-icon inspect-get-osinfo \
         inspect-get-format inspect-is-live inspect-is-netinst inspect-is-multipart",
    ),
    not(
        "Making disks",
        "tables are written as a whole: part-disk, part-init with part-add, sfdiskM, or 'inarch disk partition'",
        "part-set-bootable part-set-name part-del part-set-mbr-id part-set-gpt-type part-set-gpt-attributes part-set-gpt-guid \
         part-set-disk-guid part-set-disk-guid-random part-expand-gpt part-resize sfdisk sfdisk-N",
    ),
    not(
        "Making disks",
        "'mkfs' makes the usual ones, and 'inarch disk format' takes any option of the tool",
        "mkfs-btrfs mke2fs mkswap-U mke2journal mke2journal-L mke2journal-U mke2fs-J mke2fs-JL mke2fs-JU",
    ),
    not("Making disks", "'inarch image SRC -o FILE.squashfs' makes one", "mksquashfs"),
    changes(
        "Making disks",
        "pvcreate vgcreate lvcreate lvm-remove-all lvremove vgremove pvremove pvresize lvresize lvrename vgrename lvresize-free \
         pvresize-size md-create md-stop lvcreate-free pvchange-uuid pvchange-uuid-all vgchange-uuid vgchange-uuid-all",
    ),
    not("The shell", "'help VERB' and docs/shell.md explain the verbs", "man manual"),
    changes(
        "Files, changed",
        "write-append tar-in cp cp-a scrub-file \
         scrub-freespace mkdtemp mknod mkfifo mknod-b mknod-c setxattr lsetxattr removexattr lremovexattr ln ln-f ln-sf \
         mkswap-file truncate truncate-size utimens lchown fill base64-in fill-pattern pwrite fallocate64 upload-offset \
         copy-file-to-file fill-dir mktemp mklost-and-found acl-set-file acl-delete-def-file cap-set-file cp-r \
         copy-attributes setfiles tgz-in fallocate txz-in write-file selinux-relabel edit vi emacs hexedit",
    ),
    changes(
        "Devices, changed",
        "zero scrub-device zero-device pwrite-device copy-device-to-device copy-device-to-file copy-file-to-device wipefs \
         set-label set-uuid blkdiscard blkdiscardzeroes set-uuid-random dd copy-size",
    ),
    changes(
        "Btrfs, XFS, NTFS, ext and F2FS",
        "fsck zerofree resize2fs resize2fs-size resize2fs-M ntfsresize btrfs-filesystem-resize tune2fs e2fsck ntfsfix ntfsclone-in \
         ntfs-chmod zero-free-space set-e2attrs set-e2generation btrfs-subvolume-snapshot btrfs-subvolume-delete \
         btrfs-subvolume-create btrfs-subvolume-set-default btrfs-filesystem-sync btrfs-filesystem-balance btrfs-balance \
         btrfs-device-add btrfs-device-delete btrfs-set-seeding fstrim xfs-growfs xfs-admin xfs-repair btrfs-quota-enable \
         btrfs-quota-rescan btrfs-qgroup-limit btrfs-qgroup-create btrfs-qgroup-destroy btrfs-qgroup-assign btrfs-qgroup-remove \
         btrfs-scrub-start btrfs-scrub-cancel btrfs-scrub-resume btrfs-balance-pause btrfs-balance-cancel btrfs-balance-resume \
         btrfs-filesystem-defragment btrfs-rescue-chunk-recover btrfs-rescue-super-recover btrfs-scrub-full btrfstune-seeding \
         btrfstune-enable-extended-inode-refs btrfstune-enable-skinny-metadata-extent-refs btrfs-replace f2fs-expand set-e2label \
         set-e2uuid e2fsck-f ntfsresize-size btrfs-fsck",
    ),
    not(
        "Registry hives",
        "'inarch disk reg IMAGE KEY' reads the registry, with logs and by the names of Windows",
        "inspect-get-windows-current-control-set inspect-get-drive-mappings hivex-open hivex-close hivex-root hivex-node-name \
         hivex-node-children hivex-node-get-child hivex-node-parent hivex-node-values hivex-node-get-value hivex-value-key \
         hivex-value-type hivex-value-value hivex-value-string hivex-value-utf8",
    ),
    not(
        "Registry hives",
        "hives are only read, by 'inarch disk reg'",
        "hivex-commit hivex-node-add-child hivex-node-delete-child hivex-node-set-value",
    ),
    not(
        "Augeas",
        "files are read as they are; Augeas is no part of inarch",
        "aug-setm aug-label aug-init aug-close aug-defvar aug-defnode aug-get aug-set aug-insert aug-rm aug-mv aug-match aug-save \
         aug-load aug-ls aug-clear aug-transform",
    ),
    not(
        "Sleuth Kit and YARA",
        "The Sleuth Kit and YARA are no part of inarch; 'copy-out' or a mount gives their programs the files",
        "filesystem-walk find-inode download-inode download-blocks yara-scan yara-load yara-destroy",
    ),
    not(
        "Running programs",
        "no program of the guest is run on this machine; 'inarch run --root IMAGE' runs it in a virtual machine",
        "command command-lines command-out sh sh-lines sh-out rsync rsync-in rsync-out",
    ),
    changes("Boot loaders", "grub-install syslinux extlinux"),
    not(
        "Journal",
        "'copy-out /var/log/journal DIR' and 'journalctl -D DIR' show a journal",
        "journal-get journal-open journal-close journal-next journal-skip journal-get-data-threshold journal-set-data-threshold \
         journal-get-realtime-usec",
    ),
    not(
        "inotify",
        "nothing changes in what is read, so there is nothing to watch",
        "inotify-init inotify-add-watch inotify-rm-watch inotify-read inotify-files inotify-close",
    ),
    not(
        "LUKS",
        "'--key' at the start of the shell opens encrypted volumes; none is made or changed",
        "luks-format luks-format-cipher luks-add-key luks-kill-slot cryptsetup-open cryptsetup-close clevis-luks-unlock luks-open \
         luks-open-ro luks-close",
    ),
    not("LUKS", "'vfs-uuid' prints it", "luks-uuid"),
    not(
        "Windows' dynamic disks",
        "dynamic disks of Windows are not read",
        "list-ldm-volumes list-ldm-partitions ldmtool-create-all ldmtool-remove-all ldmtool-scan ldmtool-scan-devices \
         ldmtool-diskgroup-name ldmtool-diskgroup-volumes ldmtool-diskgroup-disks ldmtool-volume-type ldmtool-volume-hint \
         ldmtool-volume-partitions",
    ),
    not(
        "Machinery of libguestfs",
        "there is no machine that would need it",
        "config is-ready is-config add-domain domain add-libvirt-dom set-libvirt-supported-credentials \
         get-libvirt-requested-credentials get-libvirt-requested-credential-prompt get-libvirt-requested-credential-challenge \
         get-libvirt-requested-credential-defresult set-libvirt-requested-credential parse-environment parse-environment-list \
         user-cancel c-pointer drop-caches dmesg ping-daemon sleep umask swapon-device swapoff-device swapon-file swapoff-file \
         swapon-label swapoff-label swapon-uuid swapoff-uuid modprobe echo-daemon get-umask lvm-set-filter lvm-clear-filter \
         utsname list-disk-labels wait-ready kill-subprocess add-drive-with-if add-drive-ro-with-if remove-drive setcon getcon \
         list-9p mount-9p set-hv hv get-hv set-path path get-path set-append append get-append get-autosync get-verbose \
         get-memsize get-pid pid set-trace trace get-trace set-recovery-proc recovery-proc get-recovery-proc get-network \
         set-backend backend get-backend set-pgroup pgroup get-pgroup set-smp smp get-smp set-tmpdir tmpdir get-tmpdir \
         set-cachedir cachedir get-cachedir set-program program get-program get-backend-settings set-backend-settings \
         get-backend-setting set-backend-setting clear-backend-setting set-identifier identifier get-identifier get-sockdir \
         set-qemu qemu get-qemu set-selinux selinux get-selinux set-attach-method attach-method get-attach-method set-direct \
         direct get-direct debug-drives debug debug-upload delete-event event list-events",
    ),
];
