//! Frames between host and agent: each type, hostile ones, and streams that are cut anywhere.

use proptest::prelude::*;

use super::*;

fn guest_frame(kind: u8, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    frame(&mut out, kind, payload);
    out
}

fn decode_all(decoder: &mut Decoder) -> Result<Vec<GuestFrame>, ProtocolError> {
    std::iter::from_fn(|| decoder.next().transpose()).collect()
}

#[test]
fn every_frame_of_the_agent_is_understood() {
    let stream = [
        guest_frame(0x01, &[1, 0, 0, 0]),
        guest_frame(0x02, &[1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0]),
        guest_frame(0x03, b"out"),
        guest_frame(0x04, b"err"),
        guest_frame(0x05, &[0, 0, 4, 0]),
        guest_frame(0x06, &[]),
        guest_frame(0x07, &[&[3, 0, 0, 0, 9, 0, 0, 0][..], &[5u64, 6, 7, 8].map(u64::to_le_bytes).concat()].concat()),
        guest_frame(0x08, b"\x7f\0\0\0x: not\x1b[31m found\n"),
        guest_frame(0x09, b"careful"),
        guest_frame(0x0a, &[]),
    ]
    .concat();
    let mut decoder = Decoder::new();
    decoder.push(&stream);
    let micros = Duration::from_micros;
    let cpu = CpuTime { user: micros(5), system: micros(6), idle: micros(7), waiting: micros(8) };
    let expected = vec![
        GuestFrame::Hello { version: 1 },
        GuestFrame::Started { agent: micros(1), command: micros(2) },
        GuestFrame::Output(OutputStream::Stdout, b"out".to_vec()),
        GuestFrame::Output(OutputStream::Stderr, b"err".to_vec()),
        GuestFrame::StdinCredit(0x40000),
        GuestFrame::StdinClosed,
        GuestFrame::Exit { status: 3, signal: 9, cpu },
        GuestFrame::Error { status: 127, text: "x: not [31m found ".to_owned() },
        GuestFrame::Warning("careful".to_owned()),
        GuestFrame::Unmounted,
    ];
    assert_eq!(decode_all(&mut decoder), Ok(expected));
}

#[test]
fn a_frame_of_four_gigabytes_is_refused_before_it_is_held() {
    let mut decoder = Decoder::new();
    decoder.push(&[3, 0xff, 0xff, 0xff, 0xff]);
    assert_eq!(decoder.next(), Err(ProtocolError::TooLong { kind: 3, length: u32::MAX }));
}

#[test]
fn a_payload_of_the_wrong_size_is_refused() {
    for (kind, payload) in [
        (1, &[0; 3][..]),
        (2, &[0; 17]),
        (5, &[]),
        (6, &[1]),
        (7, &[0; 7]),
        (7, &[0; 8]),
        (7, &[0; 24]),
        (7, &[0; 39]),
        (7, &[0; 41]),
        (7, &[&[0, 1, 0, 0, 0, 0, 0, 0][..], &[0; 32]].concat()),
        (7, &[&[0, 0, 0, 0, 65, 0, 0, 0][..], &[0; 32]].concat()),
        (8, &[0, 1, 0, 0]),
        (8, &[0; 3]),
        (0xff, &[]),
    ] {
        let mut decoder = Decoder::new();
        decoder.push(&guest_frame(kind, payload));
        assert_eq!(decoder.next(), Err(ProtocolError::Unknown { kind, length: payload.len() }));
    }
}

#[test]
fn the_agents_header_has_the_same_types() {
    let header = include_str!("../../../../agent/protocol.h");
    let theirs: Vec<(&str, u8)> = header
        .lines()
        .filter_map(|line| {
            let (name, rest) = line.trim().strip_prefix("FRAME_")?.split_once(" = 0x")?;
            Some((name, u8::from_str_radix(rest.get(..2)?, 16).ok()?))
        })
        .collect();
    let ours = [
        ("HELLO", kind::HELLO),
        ("STARTED", kind::STARTED),
        ("STDOUT", kind::STDOUT),
        ("STDERR", kind::STDERR),
        ("STDIN_CREDIT", kind::STDIN_CREDIT),
        ("STDIN_CLOSED", kind::STDIN_CLOSED),
        ("EXIT", kind::EXIT),
        ("ERROR", kind::ERROR),
        ("WARNING", kind::WARNING),
        ("UNMOUNTED", kind::UNMOUNTED),
        ("READY", kind::READY),
        ("PROCESSES", kind::PROCESSES),
        ("ARGUMENT", kind::ARGUMENT),
        ("ENVIRONMENT", kind::ENVIRONMENT),
        ("DIRECTORY", kind::DIRECTORY),
        ("USER_NAME", kind::USER_NAME),
        ("USER_IDS", kind::USER_IDS),
        ("HOSTNAME", kind::HOSTNAME),
        ("CLOCK", kind::CLOCK),
        ("NETWORK", kind::NETWORK),
        ("MOUNT", kind::MOUNT),
        ("TERMINAL", kind::TERMINAL),
        ("OPEN_FILES", kind::OPEN_FILES),
        ("UMASK", kind::UMASK),
        ("CLEAN_SHUTDOWN", kind::CLEAN_SHUTDOWN),
        ("SCRATCH", kind::SCRATCH),
        ("MAKE_DIRECTORY", kind::MAKE_DIRECTORY),
        ("RUN", kind::RUN),
        ("DISK", kind::DISK),
        ("OBSERVE", kind::OBSERVE),
        ("STDIN", kind::STDIN),
        ("STDIN_END", kind::STDIN_END),
        ("OUTPUT_CREDIT", kind::OUTPUT_CREDIT),
        ("OUTPUT_CLOSED", kind::OUTPUT_CLOSED),
        ("SIGNAL", kind::SIGNAL),
        ("WINDOW", kind::WINDOW),
        ("BYE", kind::BYE),
    ];
    assert_eq!(theirs, ours);
}

#[test]
fn a_request_that_cannot_be_said_is_refused() {
    let long = SessionRequest { command: vec!["a".repeat(PAYLOAD_MAX + 1).into()], ..Default::default() };
    assert!(matches!(long.encode(), Err(RequestError::TooLong { .. })));
    let nul = SessionRequest { environment: vec![("A".into(), "b\0c".into())], ..Default::default() };
    assert!(matches!(nul.encode(), Err(RequestError::Nul { .. })));
    let mount = Mount { options: "a\0b".to_owned(), ..Mount::tmpfs("/tmp") };
    assert!(matches!(
        SessionRequest { mounts: vec![mount], ..Default::default() }.encode(),
        Err(RequestError::Nul { .. })
    ));
}

#[test]
fn the_clock_is_taken_when_the_session_is_described() {
    let request = SessionRequest { set_clock: true, ..Default::default() };
    let nanoseconds = || SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap().as_nanos() as u64;
    let before = nanoseconds();
    let frames = request.encode().unwrap();
    assert_eq!(frames[..5], [0x86, 8, 0, 0, 0]);
    let said = u64::from_le_bytes(frames[5..13].try_into().unwrap());
    assert!((before..=nanoseconds()).contains(&said));
    assert_eq!(SessionRequest::default().encode().unwrap()[0], 0x8f);
}

proptest! {
    #[test]
    fn frames_do_not_depend_on_how_the_stream_is_cut(
        payloads in prop::collection::vec((3u8..=4, prop::collection::vec(any::<u8>(), 0..300)), 0..20),
        cuts in prop::collection::vec(1usize..200, 1..50),
    ) {
        let stream: Vec<u8> = payloads.iter().flat_map(|(kind, payload)| guest_frame(*kind, payload)).collect();
        let mut decoder = Decoder::new();
        let (mut rest, mut cuts, mut frames) = (&stream[..], cuts.iter().cycle(), Vec::new());
        while !rest.is_empty() {
            let (piece, after) = rest.split_at((*cuts.next().unwrap()).min(rest.len()));
            decoder.push(piece);
            frames.extend(decode_all(&mut decoder).unwrap());
            rest = after;
        }
        let expected: Vec<GuestFrame> = payloads
            .into_iter()
            .map(|(kind, bytes)| GuestFrame::Output(if kind == 3 { OutputStream::Stdout } else { OutputStream::Stderr }, bytes))
            .collect();
        prop_assert_eq!(frames, expected);
    }

    #[test]
    fn no_stream_makes_the_decoder_panic_or_hold_much(bytes in prop::collection::vec(any::<u8>(), 0..4000)) {
        let mut decoder = Decoder::new();
        for piece in bytes.chunks(97) {
            decoder.push(piece);
            if decode_all(&mut decoder).is_err() {
                break;
            }
            prop_assert!(decoder.buffer.len() <= bytes.len());
        }
    }
}
