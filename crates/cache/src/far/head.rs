//! [`Head`]: which generation of a remote is the current one.

use serde::{Deserialize, Serialize};

use crate::error::Damage;
use crate::stored::is_remote_name;

/// The form of the object.
const FORM: u32 = 1;

/// Which generation of a remote is the current one. Its object is JSON.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Head {
    /// The BLAKE3 digest of the generation's object, in hexadecimal digits.
    pub generation: String,
    /// The length of the object in bytes.
    pub bytes: u64,
    /// Its length when it is unpacked.
    pub plain: u64,
    /// The generation's number, for people.
    pub number: u64,
}

#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct Object {
    inarch: u32,
    generation: String,
    bytes: u64,
    plain: u64,
    number: u64,
}

impl Head {
    /// The most bytes of the object.
    pub const MOST: u64 = 4096;
    /// The most bytes of a generation's object, and of the generation: some million files.
    const MOST_BYTES: u64 = 256 << 20;
    const MOST_PLAIN: u64 = 1 << 30;

    /// The object.
    pub fn encode(&self) -> Vec<u8> {
        let Head { generation, bytes, plain, number } = self.clone();
        // What can fail of writing JSON is the writing, and keys that are no strings.
        serde_json::to_vec(&Object { inarch: FORM, generation, bytes, plain, number }).unwrap_or_default()
    }

    /// Any bytes are safe.
    pub fn decode(bytes: &[u8]) -> Result<Head, Damage> {
        let object: Object = serde_json::from_slice(bytes).map_err(|_| Damage::Head)?;
        let Object { inarch, generation, bytes, plain, number } = object;
        if inarch != FORM {
            return Err(Damage::Version(inarch));
        }
        if !is_remote_name(&generation) || bytes > Head::MOST_BYTES || plain > Head::MOST_PLAIN {
            return Err(Damage::Head);
        }
        Ok(Head { generation, bytes, plain, number })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_written_is_read_and_all_else_is_refused() {
        let head = Head { generation: "0a".repeat(32), bytes: 7, plain: 9, number: 3 };
        let good = head.encode();
        assert_eq!(Head::decode(&good).unwrap(), head);
        let text = String::from_utf8(good).unwrap();
        for (from, to) in [
            ("\"inarch\":1", "\"inarch\":2"),
            ("0a0a", "../x"),
            ("0a0a", "0A0A"),
            ("0a0a", "0a0a0a"),
            (":7", ":300000000"),
            (":9", ":9000000000"),
            (":9", ":-1"),
            (":3", ":3,\"more\":1"),
            ("}", ""),
            ("}", "}}"),
        ] {
            assert!(Head::decode(text.replacen(from, to, 1).as_bytes()).is_err(), "{to}");
        }
        assert!(Head::decode(&[b'['; 4096]).is_err());
    }
}
