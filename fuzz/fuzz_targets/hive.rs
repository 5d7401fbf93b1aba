//! Any bytes as a hive and its log: they are read or refused, and a walk ends.

#![no_main]

use std::sync::Arc;

use inarch_block::Backing;
use inarch_confine::Parsing;
use inarch_fuzz::image::Memory;
use inarch_hive::{Hive, HiveError, export_key};
use libfuzzer_sys::fuzz_target;

fn read(hive: &[u8], log: &[u8]) -> Result<(), HiveError> {
    let log: Arc<dyn Backing> = Arc::new(Memory(log.to_vec()));
    let hive = Hive::open(Parsing::unconfined(), Arc::new(Memory(hive.to_vec())), &[log])?;
    hive.current_control_set()?;
    let root = hive.root()?;
    hive.subkeys(&root)?;
    let mut walk = hive.walk(root);
    while let Some(visited) = walk.next_key()? {
        export_key("HKEY", &visited, &mut |_| {});
    }
    Ok(())
}

fuzz_target!(|input: (&[u8], &[u8])| drop(read(input.0, input.1)));
