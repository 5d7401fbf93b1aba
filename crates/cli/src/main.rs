//! The `inarch` command.
fn main() {}
