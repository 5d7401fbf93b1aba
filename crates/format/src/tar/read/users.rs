//! [`Users`]: the host's user and group ids by name, because access control lists in archives may contain names only.

use std::collections::HashMap;

use crate::tar::spec::acl::Who;
use crate::{Accounts, Host};

/// Ids by name, from the host's lists, which are asked for on the first request, as for unpacking.
pub(super) struct Users<'h> {
    host: &'h dyn Host,
    users: Option<HashMap<String, u32>>,
    groups: Option<HashMap<String, u32>>,
}

impl<'h> Users<'h> {
    pub(super) fn new(host: &'h dyn Host) -> Users<'h> {
        Users { host, users: None, groups: None }
    }

    pub(super) fn id(&mut self, who: Who, name: &str) -> Option<u32> {
        let (list, accounts) = match who {
            Who::User => (&mut self.users, Accounts::Users),
            Who::Group => (&mut self.groups, Accounts::Groups),
        };
        let read = || parse(&self.host.accounts(accounts));
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
