//! What a guest starts: the words, variables, user and directory of the request and of a container image.

use std::sync::mpsc::channel;
use std::time::Duration;

use inarch_source::Source;
use inarch_vm::session::{SessionError, Streams};

use super::super::session::Limits;
use super::*;

fn request() -> RunRequest {
    RunRequest {
        root: Root::Source(Source::Oci { path: "app".into(), reference: None, machine: "amd64".to_owned() }),
        ..RunRequest::new(Vec::new(), Streams::of_process().unwrap())
    }
}

fn strings(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

/// The command for an image with this entry point and Cmd, if the user gives those words.
fn command(image: (&[&str], &[&str]), entrypoint: Option<&str>, words: &[&str]) -> Result<Vec<OsString>, String> {
    let config = ImageConfig { entrypoint: strings(image.0), command: strings(image.1), ..Default::default() };
    let command = words.iter().map(OsString::from).collect();
    let request = RunRequest { command, entrypoint: entrypoint.map(Into::into), ..request() };
    Launch::new(&request, None, Some(&config)).map(|launch| launch.command).map_err(|error| error.to_string())
}

fn environment(image: &[&str], asked: &[(&str, &str)]) -> BTreeMap<OsString, OsString> {
    let config = ImageConfig { environment: strings(image), command: strings(&["x"]), ..Default::default() };
    let environment = asked.iter().map(|(name, value)| (name.into(), value.into())).collect();
    let launch = Launch::new(&RunRequest { environment, ..request() }, None, Some(&config)).unwrap();
    let all: BTreeMap<_, _> = launch.environment.iter().cloned().collect();
    assert_eq!(all.len(), launch.environment.len(), "each variable is there once");
    all.into_iter().filter(|(name, _)| !OF_THIS_PROCESS.iter().any(|other| name == *other)).collect()
}

/// Variables that tests may inherit from their environment.
const OF_THIS_PROCESS: [&str; 2] = ["TERM", "COLORTERM"];

fn with(config: ImageConfig) -> Result<Launch, String> {
    let config = ImageConfig { command: strings(&["x"]), ..config };
    Launch::new(&request(), None, Some(&config)).map_err(|error| error.to_string())
}

#[test]
fn the_entry_point_comes_before_the_words() {
    let image: (&[&str], &[&str]) = (&["/entry", "-a"], &["serve", "80"]);
    assert_eq!(command(image, None, &[]).unwrap(), ["/entry", "-a", "serve", "80"]);
    assert_eq!(command(image, None, &["b", "c"]).unwrap(), ["/entry", "-a", "b", "c"]);
    assert_eq!(command(image, Some("sh"), &[]).unwrap(), ["sh"]);
    assert_eq!(command(image, Some("sh"), &["-c", "x"]).unwrap(), ["sh", "-c", "x"]);
    assert_eq!(command(image, Some(""), &["b"]).unwrap(), ["b"]);
    assert_eq!(command((&[], &["serve"]), None, &[]).unwrap(), ["serve"]);
    assert_eq!(command((&[], &["serve"]), None, &["b"]).unwrap(), ["b"]);
    assert_eq!(command((&[""], &["serve"]), None, &[]).unwrap(), ["serve"]);
}

#[test]
fn an_image_without_a_command_needs_one() {
    for (image, entrypoint, part) in [
        ((&[][..], &[][..]), None, "oci:app: the image names no command"),
        ((&[""], &[]), None, "oci:app: the image names no command"),
        ((&["/entry"], &["serve"]), Some(""), "a command is needed"),
        ((&[], &["", "x"]), None, "the first word of the command is empty"),
    ] {
        let error = command(image, entrypoint, &[]).unwrap_err();
        assert!(error.contains(part) && error.lines().count() == 1, "{error}");
    }
}

#[test]
fn an_entry_point_is_only_an_images() {
    let roots = [Root::Host, Root::None, Root::Source(Source::Directory("/srv/tree".into()))];
    for (root, part) in roots.into_iter().zip(["this machine", "nothing", "/srv/tree"]) {
        let request = RunRequest { root, entrypoint: Some("sh".into()), command: vec!["x".into()], ..request() };
        let error = Launch::new(&request, None, None).unwrap_err().to_string();
        assert!(error.contains("--entrypoint is for container images") && error.contains(part), "{error}");
    }
}

#[test]
fn variables_are_the_images_unless_asked_for() {
    let of = |pairs: &[(&str, &str)]| -> BTreeMap<OsString, OsString> {
        pairs.iter().map(|(name, value)| (name.into(), value.into())).collect()
    };
    assert_eq!(environment(&[], &[]), of(&[("PATH", USUAL_PATH)]));
    assert_eq!(environment(&["PATH=/app", "A=1=2", "B="], &[]), of(&[("A", "1=2"), ("B", ""), ("PATH", "/app")]));
    assert_eq!(
        environment(&["PATH=/app", "A=1"], &[("PATH", "/mine"), ("A", "")]),
        of(&[("A", ""), ("PATH", "/mine")])
    );
    // The last one counts; a line without a value unsets the variable; a variable needs a name.
    assert_eq!(environment(&["A=1", "A=2", "B=1", "B", "=x", "", "PATH"], &[]), of(&[("A", "2")]));
}

#[test]
fn the_terminal_of_an_image_is_its_own_affair() {
    let config = ImageConfig { environment: strings(&["TERM=image"]), ..Default::default() };
    let launch = with(config).unwrap();
    assert!(launch.environment.contains(&("TERM".into(), "image".into())), "{:?}", launch.environment);
}

#[test]
fn working_directories_are_absolute() {
    let directory = |text: &str| {
        let launch = with(ImageConfig { working_directory: text.into(), ..Default::default() });
        launch.map(|launch| launch.directory.map(|path| path.display().to_string()))
    };
    assert_eq!(directory(""), Ok(None));
    for (text, path) in
        [("/srv", "/srv"), ("/", "/"), ("/a/./b//c/", "/a/b/c"), ("/a/../b", "/b"), ("/../../../etc", "/etc")]
    {
        assert_eq!(directory(text), Ok(Some(path.to_owned())), "{text}");
    }
    for (text, part) in [
        ("srv", "'srv' is not an absolute path"),
        ("../etc", "not an absolute path"),
        ("a\n\u{1b}[2J", "'a\\n\\u{1b}[2J'"),
        (&*"/a".repeat(1 << 20), "has 2097152 bytes"),
    ] {
        let error = directory(text).unwrap_err();
        assert!(error.starts_with("oci:app: ") && error.contains(part) && error.lines().count() == 1, "{error}");
        assert!(error.len() < 200, "{error}");
    }
    // The request overrides the image's configuration, whatever that is.
    let config = ImageConfig { working_directory: "x".into(), command: strings(&["x"]), ..Default::default() };
    let launch = Launch::new(&request(), Some(Path::new("/mine")), Some(&config)).unwrap();
    assert_eq!((launch.directory.as_deref(), launch.make_directory), (Some(Path::new("/mine")), true));
}

#[test]
fn users_are_the_images_unless_given() {
    let user = |text: &str| with(ImageConfig { user: text.into(), ..Default::default() }).map(|launch| launch.user);
    let name = |text: &str| Ok(Some(User::Name(text.to_owned())));
    assert_eq!(user(""), name("0"));
    for text in ["app", "1000", "1000:100", "app:staff"] {
        assert_eq!(user(text), name(text));
    }
    assert_eq!(user(":staff"), name("0:staff"));
    assert!(user(&"a".repeat(1 << 20)).unwrap_err().contains("1048576 bytes; give another with -u USER"));
    let config = ImageConfig { user: "a".repeat(1 << 20), command: strings(&["x"]), ..Default::default() };
    let request = RunRequest { user: Some("me".into()), ..request() };
    let launch = Launch::new(&request, None, Some(&config)).unwrap();
    assert_eq!(launch.user, Some(User::Name("me".into())));
}

#[test]
fn what_no_program_can_be_started_with_is_refused() {
    let refused = |config: ImageConfig| Launch::new(&request(), None, Some(&config)).unwrap_err().to_string();
    let long = "a".repeat(MOST_OF_A_WORD + 1);
    let error = refused(ImageConfig { command: vec!["x".into(), long.clone()], ..Default::default() });
    assert!(error.contains("oci:app: a word of its command") && error.contains("131072 bytes"), "{error}");
    let command = strings(&["x"]);
    let error = refused(ImageConfig { environment: vec![format!("A={long}")], command, ..Default::default() });
    assert!(error.contains("131074 bytes"), "{error}");
    let error = refused(ImageConfig { command: vec!["x".into(); 1 << 20], ..Default::default() });
    assert!(error.contains("its command and its environment take 10485"), "{error}");
    let environment = (0..1 << 19).map(|number| format!("V{number}=")).collect();
    let error = refused(ImageConfig { environment, command: strings(&["x"]), ..Default::default() });
    assert!(error.contains("its command and its environment take"), "{error}");
    let fits = ImageConfig { command: vec!["a".repeat(MOST_OF_A_WORD)], ..Default::default() };
    assert!(Launch::new(&request(), None, Some(&fits)).is_ok());
}

#[test]
fn the_line_for_people_has_nothing_for_their_terminal() {
    let config = ImageConfig { user: "a\u{1b}".into(), working_directory: "/w\n".into(), ..Default::default() };
    let line = with(config).unwrap().event().to_string();
    assert_eq!(line, "the image runs x (in /w\\n, as a\\u{1b})");
}

#[test]
fn a_root_that_is_not_open_is_waited_for_as_long_as_the_start_may_take() {
    let limits = |start| Limits { start, command: None };
    let config = ImageConfig::default;
    let (sender, receiver) = channel();
    let late = limits(Some(Duration::ZERO)).wait_for(&receiver);
    assert!(matches!(late, Err(SessionError::NotStarted { waited: Duration::ZERO })), "{:?}", late.err());
    let known = with(config()).unwrap();
    let (events, told) = channel();
    known.clone().tell(true, &sender, &Events::new(move |event| drop(events.send(event))));
    assert!(matches!(told.recv(), Ok(RunEvent::Image { .. })));
    let (launch, left) = limits(Some(Duration::MAX)).wait_for(&receiver).unwrap();
    assert!(launch == known && left.start.is_some_and(|left| left > Duration::ZERO) && left.command.is_none());
    drop(sender);
    for start in [None, Some(Duration::from_secs(60))] {
        assert!(matches!(limits(start).wait_for(&receiver), Err(SessionError::Closed)), "{start:?}");
    }
}
