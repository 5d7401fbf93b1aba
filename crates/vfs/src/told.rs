//! The permissions of a node that a client saw last, by which its kernel may decide.

use crate::host::Permissions;

/// See the module.
#[derive(Clone, Copy, Debug, Default)]
pub struct Told {
    /// `None` before the first time.
    permissions: Option<Permissions>,
    is_contested: bool,
}

impl Told {
    /// Records permissions that the client sees.
    pub fn tell(&mut self, now: Permissions) {
        self.is_contested |= self.permissions.is_some_and(|before| before != now);
        self.permissions = Some(now);
    }

    /// Records permissions that the client has changed, and sees now.
    pub fn tell_changed(&mut self, now: Permissions) {
        self.permissions = Some(now);
    }

    /// Records that the client has changed them by an ACL. Its kernel need not notice: unless it enforces ACLs, it goes
    /// on to decide by what it has cached (`fuse_setxattr` of Linux's fs/fuse/xattr.c).
    pub fn list_changed(&mut self) {
        self.is_contested = true;
    }

    /// What the client saw last; `None` if nothing yet.
    pub fn permissions(&self) -> Option<Permissions> {
        self.permissions
    }

    /// Whether they changed behind the back of the client's kernel; see
    /// [`FileSystem::is_contested`](crate::FileSystem::is_contested).
    pub fn is_contested(&self) -> bool {
        self.is_contested
    }
}
