//! Paths of a tree: bytes, relative to its root, whose own path is empty.

/// The path of a name in the directory at a path.
pub(super) fn joined(directory: &[u8], name: &[u8]) -> Vec<u8> {
    if directory.is_empty() { name.to_owned() } else { [directory, name].join(&b'/') }
}

/// A path whose parent is the directory at a path.
pub(super) fn inside(directory: &[u8]) -> Vec<u8> {
    joined(directory, b".")
}

/// The path of the directory that a path is in.
pub(super) fn parent(path: &[u8]) -> &[u8] {
    &path[..path.iter().rposition(|byte| *byte == b'/').unwrap_or(0)]
}

/// Whether `path` is `top` or below it.
pub(super) fn is_beneath(path: &[u8], top: &[u8]) -> bool {
    top.is_empty() || path.strip_prefix(top).is_some_and(|rest| rest.is_empty() || rest.starts_with(b"/"))
}
