//! Any bytes as what a registry answers: headers, tokens, messages, manifests and indexes; and as a file of credentials. They are refused, or lead to
//! digests, which are no paths.

#![no_main]

use arbitrary::Arbitrary;
use inarch_confine::Parsing;
use inarch_format::oci::{self, Described, Document};
use inarch_remote::registry::{self, ImageName, credentials};
use libfuzzer_sys::fuzz_target;

#[derive(Arbitrary, Debug)]
struct Answers<'a> {
    name: &'a str,
    header: &'a str,
    body: &'a [u8],
    media_type: &'a str,
    /// Which of the known types the body has.
    known: u8,
    machine: bool,
}

fn check(blob: &Described) {
    let path = blob.digest.path();
    assert!(path.starts_with("blobs/sha") && !path.contains("..") && path.matches('/').count() == 2, "{path}");
}

fuzz_target!(|answers: Answers<'_>| {
    let usual = ImageName::parse("docker://localhost:5000/a/b:c").expect("a good name");
    if let Ok(name) = ImageName::parse(&format!("docker://{}", answers.name)) {
        assert_eq!(ImageName::parse(&name.to_string()).as_ref(), Ok(&name));
    }
    let _ = registry::read_answer(answers.header, answers.body);
    let _ = credentials::read_file(answers.body, &usual);
    let parsing = Parsing::unconfined;
    let machine = if answers.machine { "amd64" } else { "arm64" };
    let known = oci::DOCUMENT_TYPES[usize::from(answers.known) % oci::DOCUMENT_TYPES.len()];
    let said = oci::document_type(parsing(), "it", answers.media_type, answers.body);
    for kind in said.iter().map(String::as_str).chain([known]) {
        match oci::read_document(parsing(), "it", kind, answers.body, machine) {
            Ok((Document::Index(next), _)) => check(&next),
            Ok((Document::Manifest { config, layers }, _)) => layers.iter().chain([&config]).for_each(check),
            Err(_) => {}
        }
        let _ = oci::leads_to(parsing(), "it", kind, answers.body);
    }
});
