//! Any bytes as what a remote answers: a head, and a generation with chunks. They are refused, or a generation whose every file has a place.

#![no_main]

use arbitrary::Arbitrary;
use inarch_jobs::cache::read_remote;
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Answers<'a> {
    head: &'a [u8],
    /// Whether the head is a good one.
    good: bool,
    body: &'a str,
    packs: u8,
    tables: &'a [u8],
    tree: &'a [u8],
}

fuzz_target!(|answers: Answers<'_>| {
    let good = format!(r#"{{"inarch":1,"generation":"{}","bytes":1,"plain":1,"number":1}}"#, "0a".repeat(32));
    let head = if answers.good { good.as_bytes() } else { answers.head };
    // Right digests, so that inputs get past them.
    let mut tree = b"INARCHTR\x01\0\0\0".to_vec();
    tree.extend_from_slice(&crc32c::crc32c(answers.tree).to_le_bytes());
    tree.extend_from_slice(answers.tree);
    let packs: Vec<String> = (0..answers.packs % 4).map(|number| format!("{number:064x}")).collect();
    let body = serde_json::json!({ "number": 1, "time": 2, "made_by": answers.body, "packs": packs }).to_string();
    let mut hashed = (body.len() as u64).to_le_bytes().to_vec();
    hashed.extend_from_slice(body.as_bytes());
    hashed.extend_from_slice(answers.tables);
    hashed.extend_from_slice(&tree);
    let mut generation = b"INARCHGN\x02\0\0\0".to_vec();
    generation.extend_from_slice(blake3::hash(&hashed).as_bytes());
    generation.extend_from_slice(&hashed);
    let _ = read_remote(head, &generation);
    let _ = read_remote(good.as_bytes(), answers.tables);
});
