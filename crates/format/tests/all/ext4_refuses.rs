//! What ext4 cannot hold is refused by a message that names it.

use std::sync::Arc;

use crate::common::odd::xattr;
use crate::common::*;
use inarch_format::ext4::{Options, plan};
use inarch_tree::{Attributes, Tree, Xattr};

fn refusal(tree: Tree, options: &Options) -> String {
    plan(Arc::new(tree), options).err().expect("this cannot be planned").to_string()
}

fn tree_with(attributes: &Attributes) -> Tree {
    let mut b = builder();
    let dir = b.add(b"dir", &directory()).unwrap();
    b.list(dir).unwrap();
    b.add(b"culprit", attributes).unwrap();
    b.finish().unwrap()
}

fn tree_with_xattrs(set: Vec<Xattr>) -> Tree {
    let mut b = builder();
    let xattrs = b.intern_xattrs(set);
    b.add(b"culprit", &Attributes { xattrs, ..file(0) }).unwrap();
    b.finish().unwrap()
}

#[test]
fn files_and_devices_beyond_the_format() {
    let greatest = (1u64 << 44) - 4096;
    for size in [greatest + 1, u64::MAX] {
        let message = refusal(tree_with(&file(size)), &small());
        assert!(message.starts_with("/dir/culprit: ") && message.contains("17592186040320"), "{message}");
    }
    let device = Attributes { device: (4096, 1), ..attributes(0o060600) };
    assert_eq!(refusal(tree_with(&device), &small()), "/dir/culprit: ext4 cannot store the device number 4096:1");
}

#[test]
fn extended_attributes_beyond_the_format() {
    let many = (0..300).map(|i| xattr(&format!("user.{i:0100}"), b"v")).collect();
    for (set, wanted) in [
        (vec![xattr("system.nfs4_acl", b"x")], "\"system.nfs4_acl\""),
        (vec![xattr("user.", b"x")], "\"user.\""),
        (vec![xattr("system.posix_acl_access", b"nonsense")], "not a POSIX ACL"),
        (vec![xattr("user.long", &[0; 65_537])], "65537 bytes"),
        (many, "its 300 extended attributes do not fit"),
    ] {
        let message = refusal(tree_with_xattrs(set), &small());
        assert!(message.starts_with("/culprit: ") && message.contains(wanted), "{message}");
    }
}

#[test]
fn options_that_make_no_file_system() {
    let empty = || builder().finish().unwrap();
    let refused = |options: Options| refusal(empty(), &options);
    assert!(refused(Options { label: "seventeen letters".into(), ..small() }).contains("seventeen letters"));
    for journal in [0, (4 << 20) - 1, (512 << 20) + 4096, u64::MAX] {
        assert!(refused(Options { journal: Some(journal), ..small() }).contains(&journal.to_string()));
    }
    for free_bytes in [1 << 49, u64::MAX] {
        assert!(refused(Options { free_bytes, ..small() }).contains("ask for less free space"));
    }
    assert!(refused(Options { free_inodes: u32::MAX, ..small() }).contains("ask for fewer free ones"));
}
