//! [`Users`]: the host's user and group ids by name, because access control lists in archives may contain names only.

use std::collections::HashMap;

use crate::tar::spec::acl::Who;

/// Ids by name, read from `/etc/passwd` and `/etc/group` on the first request, as for unpacking.
#[derive(Default)]
pub(super) struct Users {
    users: Option<HashMap<String, u32>>,
    groups: Option<HashMap<String, u32>>,
}

impl Users {
    pub(super) fn id(&mut self, who: Who, name: &str) -> Option<u32> {
        let (list, path) = match who {
            Who::User => (&mut self.users, "/etc/passwd"),
            Who::Group => (&mut self.groups, "/etc/group"),
        };
        let read = || parse(&std::fs::read_to_string(path).unwrap_or_default());
        list.get_or_insert_with(read).get(name).copied()
    }
}

/// Parses lines of `NAME:PASSWORD:NUMBER:...`.
fn parse(text: &str) -> HashMap<String, u32> {
    let line = |line: &str| {
        let mut fields = line.split(':');
        Some((fields.next()?.to_owned(), fields.nth(1)?.parse().ok()?))
    };
    text.lines().filter_map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_have_numbers() {
        let list = parse("root:x:0:0:root:/root:/bin/sh\nbad\njoe:x:1000:1000::/:/bin/sh\nodd:x:y:0\n");
        assert_eq!((list.len(), list["root"], list["joe"]), (2, 0, 1000));
    }
}
