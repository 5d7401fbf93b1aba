//! Tests of which user the command runs as, by the guest's /etc/passwd and /etc/group.

use super::*;

#[test]
fn users_and_groups_go_by_name_or_number() {
    let who = |user: &str| {
        let user = Some(User::Name(user.to_owned()));
        let wanted = SessionRequest { user, ..request(&["sh", "-c", "id -u; id -g; id -G; echo $HOME"]) };
        let finished = run_with(&wanted, None, &SessionOptions::default());
        match finished.outcome() {
            Outcome::Exited(0) => String::from_utf8_lossy(&finished.stdout).replace('\n', " ").trim_end().to_owned(),
            Outcome::Failed { message, .. } => message,
            other => panic!("{user:?}: {other:?}", user = wanted.user),
        }
    };
    // As on every Debian: daemon is user and group 1, bin is group 2 and its home is /bin.
    for (user, is) in [
        ("daemon", "1 1 1 /usr/sbin"),
        ("daemon:bin", "1 2 2 /usr/sbin"),
        ("daemon:77", "1 77 77 /usr/sbin"),
        ("2", "2 2 2 /bin"),
        ("2:daemon", "2 1 1 /bin"),
        ("2:", "2 2 2 /bin"),
        ("4242", "4242 0 0 /"),
        ("4242:daemon", "4242 1 1 /"),
        ("4242:4343", "4242 4343 4343 /"),
    ] {
        assert_eq!(who(user), is, "{user}");
    }
    for (user, wrong) in [
        ("absent", "has no user 'absent'"),
        ("absent:daemon", "has no user 'absent'"),
        ("daemon:absent", "has no group 'absent'"),
        ("-1", "has no user '-1'"),
        ("4294967295", "has no user '4294967295'"),
        ("18446744073709551616", "has no user '18446744073709551616'"),
        ("0:4294967295", "has no group '4294967295'"),
        ("a:b:c", "has no user 'a'"),
    ] {
        assert!(who(user).contains(wrong), "{user}: {}", who(user));
    }
}

/// The output of `script`, run as `user` with these databases.
fn printed_among(passwd: &[u8], group: &[u8], user: &str, script: &str) -> String {
    let files = [passwd, group].map(|bytes| {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(bytes).unwrap();
        file.flush().unwrap();
        file
    });
    let user = Some(User::Name(user.to_owned()));
    let wanted = SessionRequest { user, ..request(&["sh", "-c", script]) };
    let agent = Agent::start_among(files[0].path(), files[1].path());
    let finished = run_by(agent, &wanted, None, &SessionOptions::default());
    match finished.outcome() {
        Outcome::Exited(0) => String::from_utf8_lossy(&finished.stdout).trim_end().to_owned(),
        Outcome::Failed { message, .. } => message,
        other => panic!("{other:?}"),
    }
}

/// fgetpwent(3) takes minutes for such a line.
#[test]
fn a_user_behind_a_long_line_is_found() {
    let long = vec![b'a'; 30 << 20];
    let passwd = [&long, &b":x:7:7::/long:/bin/sh\nme:x:5001:5002::/home/me:/bin/sh"[..]].concat();
    let group = [&b"many:x:5003:"[..], &long, b",me\nmine:x:5004:you,me,us\n"].concat();
    let who = "id -u; id -g; id -G; echo $HOME $USER";
    assert_eq!(printed_among(&passwd, &group, "me", who), "5001\n5002\n5002 5004\n/home/me me");
    assert_eq!(printed_among(&passwd, &group, "me:mine", "id -g; id -G"), "5004\n5004");
    assert!(printed_among(&passwd, &group, "me:many", who).contains("no group 'many'"));
}

#[test]
fn many_groups_are_read_once() {
    let mut group: Vec<u8> =
        (0..1_000_000).flat_map(|number| format!("g{number}:x:{number}:a,b\n").into_bytes()).collect();
    group.extend(b"last:x:1000000:b,me");
    let passwd = b"me:x:5001:5002::/home/me:/bin/sh\n";
    assert_eq!(printed_among(passwd, &group, "me", "id -G"), "5002 1000000");
    assert_eq!(printed_among(passwd, &group, "me:last", "id -G"), "1000000");
}

#[test]
fn lines_that_are_no_entries_are_passed_over() {
    let passwd = b"\n:\n#me:x:1:1::/:\nme\nme:x:5\nme:x::0::/:\nme:x:0:-1::/:\nme:x:0x0:0::/:\nme:x:4294967295:0::/:\n\
        me:x:4294967296:0::/:\nme:x:18446744073709551616:0::/:\nme:x:0 :0::/:\nme:x:0:0::/\nme\0:x:0:0::/:\n\
        me:x:0:0::/\0:\nme:x:5001:5002::/home/me:";
    let group = b"g\ng:x\ng:x:1\ng:x::me\ng:x:-1:me\ng:x:4294967296:me\ng:x:3:me\0\ng:x:4:not me\ng:x:5:,me,me";
    let who = "id -u; id -g; id -G; echo $HOME $SHELL";
    assert_eq!(printed_among(passwd, group, "me", who), "5001\n5002\n5002 5\n/home/me /bin/sh");
    assert_eq!(printed_among(passwd, group, "me:g", "id -G"), "4");
}
