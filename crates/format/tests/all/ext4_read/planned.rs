//! Devices of our own planner.

use inarch_format::ext4::Options;

use super::made::scratch;
use super::same::assert_as_mounted;
use crate::common::odd::odd_tree;
use crate::common::*;

#[test]
fn every_odd_thing_is_read() {
    for journal in [None, Some(8 << 20)] {
        let scratch = scratch();
        dump(&planned(odd_tree(), &Options { journal, ..small() }).map, &scratch.path("image"), fill_pattern);
        assert_eq!(assert_as_mounted(&scratch.path("image"), "loop,ro"), [""; 0]);
    }
}
