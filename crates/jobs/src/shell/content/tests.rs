//! What verbs do with the bytes of files, cut into pieces anywhere.

use super::*;
use inarch_guest::Algorithm;

fn lines(pieces: &[&[u8]], most: usize) -> Vec<String> {
    let mut found = Vec::new();
    let mut take = |line: &[u8]| {
        found.push(String::from_utf8_lossy(line).into_owned());
        Ok(found.len() < most)
    };
    let mut lines = Lines::new(&mut take);
    if pieces.iter().all(|piece| lines.feed(piece).unwrap()) {
        lines.finish().unwrap();
    }
    found
}

#[test]
fn lines_cross_pieces() {
    assert_eq!(lines(&[b"a\nb", b"c\n\n", b"d"], 9), ["a", "bc", "", "d"]);
    assert_eq!(lines(&[b"a\nb\nc\n"], 2), ["a", "b"]);
    assert_eq!(lines(&[b"", b""], 2), [""; 0]);
    let mut take = |_: &[u8]| Ok(true);
    let mut long = Lines::new(&mut take);
    assert!((0..17).any(|_| long.feed(&[b'x'; 1 << 20]).is_err()));
}

/// wc, cksum and sha256sum of `printf 'one two\nthree'`; hexdump -C of 40 zeros and it.
#[test]
fn numbers_are_those_of_the_usual_programs() {
    let pieces: [&[u8]; 2] = [b"one tw", b"o\nthree"];
    let mut counts = Counts::default();
    pieces.iter().for_each(|piece| counts.feed(piece));
    let counts = counts.finish();
    assert_eq!((counts.lines, counts.words, counts.bytes), (1, 3, 13));
    let sum = |kind: &str| {
        let mut sum = kind.parse::<Algorithm>().unwrap().start();
        pieces.iter().for_each(|piece| sum.feed(piece));
        sum.finish()
    };
    assert_eq!(sum("crc"), "1864952245");
    assert_eq!(sum("sha256"), "2e2bf529d7cf77cec165d750c66d6d1617d14adf8e9f4e483864ed0b6c89a221");
    assert_eq!(Algorithm::Crc.start().finish(), "4294967295");
    assert!("md4".parse::<Algorithm>().unwrap_err().contains("md5, sha1"));
    let mut dump = Dump::default();
    let text = dump.feed(&[0; 40]) + &dump.feed(pieces[0]) + &dump.feed(pieces[1]) + &dump.finish();
    let expected = "\
00000000  00 00 00 00 00 00 00 00  00 00 00 00 00 00 00 00  |................|
*
00000020  00 00 00 00 00 00 00 00  6f 6e 65 20 74 77 6f 0a  |........one two.|
00000030  74 68 72 65 65                                    |three|
00000035
";
    assert_eq!(text, expected);
    assert_eq!(Dump::default().finish(), "");
}

/// Where the pieces are cut makes no difference.
#[test]
fn pieces_can_be_cut_anywhere() {
    use proptest::prelude::*;
    let bytes = prop::collection::vec(prop_oneof![any::<u8>(), Just(b'\n'), Just(0), Just(b'a')], 0..200);
    proptest!(|(bytes in bytes, cuts in prop::collection::vec(0..200usize, 0..5))| {
        let mut pieces: Vec<&[u8]> = Vec::new();
        let mut rest = &*bytes;
        for cut in cuts {
            let (piece, after) = rest.split_at(cut.min(rest.len()));
            pieces.push(piece);
            rest = after;
        }
        pieces.push(rest);
        prop_assert_eq!(lines(&pieces, 1000), lines(&[&bytes], 1000));
        let of = |pieces: &[&[u8]]| {
            let (mut counts, mut dump, mut texts) = (Counts::default(), Dump::default(), Texts::default());
            let (mut text, mut out) = (String::new(), Vec::new());
            for piece in pieces {
                counts.feed(piece);
                text += &dump.feed(piece);
                texts.feed(piece, &mut out);
            }
            texts.finish(&mut out);
            (counts.finish(), text + &dump.finish(), out)
        };
        prop_assert_eq!(of(&pieces), of(&[&bytes]));
    });
}

#[test]
fn texts_have_four_letters() {
    let (mut texts, mut out) = (Texts::default(), Vec::new());
    texts.feed(b"abc\0abcd\xffx\ty", &mut out);
    texts.feed(b"z\0ab", &mut out);
    texts.finish(&mut out);
    assert_eq!(out, b"abcd\nx\tyz\n");
}

#[test]
fn basic_expressions_become_extended_ones() {
    for (basic, ours) in [
        ("a+b", "a\\+b"),
        ("a\\+b", "a+b"),
        ("\\(a\\|b\\)*", "(a|b)*"),
        ("(x)", "\\(x\\)"),
        ("[]a(]", "[\\]a(]"),
        ("[^]]x?", "[^\\]]x\\?"),
        ("^*a", "^\\*a"),
        ("a\\.b", "a\\.b"),
        ("a\\{2\\}", "a{2}"),
    ] {
        assert_eq!(extended(basic), ours);
    }
}
