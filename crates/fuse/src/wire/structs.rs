//! The structures of the protocol, field by field as in the kernel's header; their names there have the prefix
//! `fuse_`.

#![allow(missing_docs, reason = "the fields are the kernel's, and documented there")]

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// The traits that every structure of the protocol implements.
macro_rules! structures {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, FromBytes, IntoBytes, Immutable, KnownLayout)]
        #[repr(C)]
        pub struct $name {
            $(pub $field: $type,)*
        }
    )*};
}

structures! {
    /// The header of a request.
    InHeader {
        len: u32,
        opcode: u32,
        unique: u64,
        nodeid: u64,
        uid: u32,
        gid: u32,
        pid: u32,
        total_extlen: u16,
        padding: u16,
    }

    /// The header of an answer.
    OutHeader {
        len: u32,
        error: i32,
        unique: u64,
    }

    /// Attributes of a node.
    Attr {
        ino: u64,
        size: u64,
        blocks: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        nlink: u32,
        uid: u32,
        gid: u32,
        rdev: u32,
        blksize: u32,
        flags: u32,
    }

    /// `INIT`: the first request.
    InitIn {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        flags2: u32,
        unused: [u32; 11],
    }

    /// The answer to it.
    InitOut {
        major: u32,
        minor: u32,
        max_readahead: u32,
        flags: u32,
        max_background: u16,
        congestion_threshold: u16,
        max_write: u32,
        time_gran: u32,
        max_pages: u16,
        map_alignment: u16,
        flags2: u32,
        max_stack_depth: u32,
        request_timeout: u16,
        unused: [u16; 11],
    }

    /// The answer to `LOOKUP`.
    EntryOut {
        nodeid: u64,
        generation: u64,
        entry_valid: u64,
        attr_valid: u64,
        entry_valid_nsec: u32,
        attr_valid_nsec: u32,
        attr: Attr,
    }

    /// `FORGET`.
    ForgetIn {
        nlookup: u64,
    }

    /// `BATCH_FORGET`; so many [`ForgetOne`] follow.
    BatchForgetIn {
        count: u32,
        dummy: u32,
    }

    /// One node to forget.
    ForgetOne {
        nodeid: u64,
        nlookup: u64,
    }

    /// `GETATTR`.
    GetAttrIn {
        getattr_flags: u32,
        dummy: u32,
        fh: u64,
    }

    /// The answer to `GETATTR` and `SETATTR`.
    AttrOut {
        attr_valid: u64,
        attr_valid_nsec: u32,
        dummy: u32,
        attr: Attr,
    }

    /// `SETATTR`.
    SetAttrIn {
        valid: u32,
        padding: u32,
        fh: u64,
        size: u64,
        lock_owner: u64,
        atime: u64,
        mtime: u64,
        ctime: u64,
        atimensec: u32,
        mtimensec: u32,
        ctimensec: u32,
        mode: u32,
        unused4: u32,
        uid: u32,
        gid: u32,
        unused5: u32,
    }

    /// `OPEN` and `OPENDIR`.
    OpenIn {
        flags: u32,
        open_flags: u32,
    }

    /// The answer to them.
    OpenOut {
        fh: u64,
        open_flags: u32,
        backing_id: i32,
    }

    /// `CREATE` and `TMPFILE`; the name follows.
    CreateIn {
        flags: u32,
        mode: u32,
        umask: u32,
        open_flags: u32,
    }

    /// `MKNOD`; the name follows.
    MknodIn {
        mode: u32,
        rdev: u32,
        umask: u32,
        padding: u32,
    }

    /// `MKDIR`; the name follows.
    MkdirIn {
        mode: u32,
        umask: u32,
    }

    /// `RENAME`; the old name and the new one follow.
    RenameIn {
        newdir: u64,
    }

    /// `RENAME2`; the old name and the new one follow.
    Rename2In {
        newdir: u64,
        flags: u32,
        padding: u32,
    }

    /// `LINK`; the name follows.
    LinkIn {
        oldnodeid: u64,
    }

    /// `READ`, `READDIR` and `READDIRPLUS`.
    ReadIn {
        fh: u64,
        offset: u64,
        size: u32,
        read_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }

    /// `WRITE`; the data follows.
    WriteIn {
        fh: u64,
        offset: u64,
        size: u32,
        write_flags: u32,
        lock_owner: u64,
        flags: u32,
        padding: u32,
    }

    /// The answer to it.
    WriteOut {
        size: u32,
        padding: u32,
    }

    /// `RELEASE` and `RELEASEDIR`.
    ReleaseIn {
        fh: u64,
        flags: u32,
        release_flags: u32,
        lock_owner: u64,
    }

    /// `FLUSH`.
    FlushIn {
        fh: u64,
        unused: u32,
        padding: u32,
        lock_owner: u64,
    }

    /// `SETXATTR` without the flag `SETXATTR_EXT`; name and value follow.
    SetXattrIn {
        size: u32,
        flags: u32,
    }

    /// With that flag, this follows before name and value.
    SetXattrExtIn {
        setxattr_flags: u32,
        padding: u32,
    }

    /// `GETXATTR`, whose name follows, and `LISTXATTR`.
    GetXattrIn {
        size: u32,
        padding: u32,
    }

    /// The answer to them where only the size is asked for.
    GetXattrOut {
        size: u32,
        padding: u32,
    }

    /// A lock.
    FileLock {
        start: u64,
        end: u64,
        kind: u32,
        pid: u32,
    }

    /// `GETLK`, `SETLK` and `SETLKW`.
    LkIn {
        fh: u64,
        owner: u64,
        lk: FileLock,
        lk_flags: u32,
        padding: u32,
    }

    /// The answer to `GETLK`.
    LkOut {
        lk: FileLock,
    }

    /// `COPY_FILE_RANGE` and `COPY_FILE_RANGE_64`.
    CopyFileRangeIn {
        fh_in: u64,
        off_in: u64,
        nodeid_out: u64,
        fh_out: u64,
        off_out: u64,
        len: u64,
        flags: u64,
    }

    /// The answer to `COPY_FILE_RANGE_64`.
    CopyFileRangeOut {
        bytes_copied: u64,
    }

    /// `STATX`.
    StatxIn {
        getattr_flags: u32,
        reserved: u32,
        fh: u64,
        sx_flags: u32,
        sx_mask: u32,
    }

    /// A time in the answer to `STATX`.
    SxTime {
        tv_sec: i64,
        tv_nsec: u32,
        reserved: i32,
    }

    /// Attributes in the answer to `STATX`.
    Statx {
        mask: u32,
        blksize: u32,
        attributes: u64,
        nlink: u32,
        uid: u32,
        gid: u32,
        mode: u16,
        spare0: u16,
        ino: u64,
        size: u64,
        blocks: u64,
        attributes_mask: u64,
        atime: SxTime,
        btime: SxTime,
        ctime: SxTime,
        mtime: SxTime,
        rdev_major: u32,
        rdev_minor: u32,
        dev_major: u32,
        dev_minor: u32,
        spare2: [u64; 14],
    }

    /// The answer to `STATX`.
    StatxOut {
        attr_valid: u64,
        attr_valid_nsec: u32,
        flags: u32,
        spare: [u64; 2],
        stat: Statx,
    }

    /// The header of an extension at the end of a request.
    ExtHeader {
        size: u32,
        kind: u32,
    }

    /// `FSYNC` and `FSYNCDIR`.
    FsyncIn {
        fh: u64,
        fsync_flags: u32,
        padding: u32,
    }

    /// `INTERRUPT`.
    InterruptIn {
        unique: u64,
    }

    /// A notification, not an answer: the attributes of a node are invalid.
    NotifyInvalInodeOut {
        ino: u64,
        off: i64,
        len: i64,
    }

    /// `FALLOCATE`.
    FallocateIn {
        fh: u64,
        offset: u64,
        length: u64,
        mode: u32,
        padding: u32,
    }

    /// `LSEEK`.
    LseekIn {
        fh: u64,
        offset: u64,
        whence: u32,
        padding: u32,
    }

    /// The answer to it.
    LseekOut {
        offset: u64,
    }

    /// The answer to `STATFS` (`struct fuse_kstatfs`).
    StatFsOut {
        blocks: u64,
        bfree: u64,
        bavail: u64,
        files: u64,
        ffree: u64,
        bsize: u32,
        namelen: u32,
        frsize: u32,
        padding: u32,
        spare: [u32; 6],
    }

    /// An entry of a directory; its name follows, padded with zeros to a multiple of 8 bytes.
    Dirent {
        ino: u64,
        off: u64,
        namelen: u32,
        kind: u32,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sizes as the C compiler gives them for the kernel's header.
    #[test]
    fn structures_are_as_long_as_the_kernels() {
        assert_eq!(size_of::<InHeader>(), 40);
        assert_eq!(size_of::<OutHeader>(), 16);
        assert_eq!(size_of::<Attr>(), 88);
        assert_eq!(size_of::<InitIn>(), 64);
        assert_eq!(size_of::<InitOut>(), 64);
        assert_eq!(size_of::<EntryOut>(), 128);
        assert_eq!(size_of::<ForgetIn>(), 8);
        assert_eq!(size_of::<BatchForgetIn>(), 8);
        assert_eq!(size_of::<ForgetOne>(), 16);
        assert_eq!(size_of::<GetAttrIn>(), 16);
        assert_eq!(size_of::<AttrOut>(), 104);
        assert_eq!(size_of::<SetAttrIn>(), 88);
        assert_eq!(size_of::<OpenIn>(), 8);
        assert_eq!(size_of::<OpenOut>(), 16);
        assert_eq!(size_of::<ReadIn>(), 40);
        assert_eq!(size_of::<WriteIn>(), 40);
        assert_eq!(size_of::<WriteOut>(), 8);
        assert_eq!(size_of::<ReleaseIn>(), 24);
        assert_eq!(size_of::<FsyncIn>(), 16);
        assert_eq!(size_of::<InterruptIn>(), 8);
        assert_eq!(size_of::<FallocateIn>(), 32);
        assert_eq!(size_of::<LseekIn>(), 24);
        assert_eq!(size_of::<LseekOut>(), 8);
        assert_eq!(size_of::<StatFsOut>(), 80);
        assert_eq!(size_of::<Dirent>(), 24);
        assert_eq!(size_of::<CreateIn>(), 16);
        assert_eq!(size_of::<MknodIn>(), 16);
        assert_eq!(size_of::<MkdirIn>(), 8);
        assert_eq!(size_of::<RenameIn>(), 8);
        assert_eq!(size_of::<Rename2In>(), 16);
        assert_eq!(size_of::<LinkIn>(), 8);
        assert_eq!(size_of::<FlushIn>(), 24);
        assert_eq!(size_of::<SetXattrIn>() + size_of::<SetXattrExtIn>(), 16);
        assert_eq!(size_of::<GetXattrIn>(), 8);
        assert_eq!(size_of::<GetXattrOut>(), 8);
        assert_eq!(size_of::<LkIn>(), 48);
        assert_eq!(size_of::<LkOut>(), 24);
        assert_eq!(size_of::<CopyFileRangeIn>(), 56);
        assert_eq!(size_of::<CopyFileRangeOut>(), 8);
        assert_eq!(size_of::<StatxIn>(), 24);
        assert_eq!(size_of::<StatxOut>(), 288);
        assert_eq!(size_of::<ExtHeader>(), 8);
    }
}
