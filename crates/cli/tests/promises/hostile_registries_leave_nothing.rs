//! Promise: whatever a registry answers, a command ends with one line and status 125, and keeps nothing that is half made or has another digest.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use serde_json::json;

use crate::support::mounted::unmount;
use crate::support::registry::{Answer, End, Request, Server};
use crate::support::{INARCH, LONG, assert_one_line, assert_status, host, scratch, within};

const MANIFEST: &str = "application/vnd.oci.image.manifest.v1+json";
const INDEX: &str = "application/vnd.oci.image.index.v1+json";
const LAYER: &str = "application/vnd.oci.image.layer.v1.tar";
const ZEROS: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000000";

struct Scene {
    place: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        Scene { place: scratch() }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.place.path().join(path)
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(INARCH);
        command.args(words).current_dir(self.place.path()).env("XDG_CACHE_HOME", self.at("cache"));
        command.env("HOME", self.place.path()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn plan(&self, name: &str) -> Output {
        self.command(&["plan", name]).output().unwrap()
    }

    fn digest(&self, bytes: &[u8]) -> String {
        fs::write(self.at("bytes"), bytes).unwrap();
        let sum = host("sha256sum", &["bytes"], self.place.path());
        format!("sha256:{}", sum.split_whitespace().next().unwrap())
    }

    /// Files in the cache, but its lock.
    fn kept(&self) -> Vec<PathBuf> {
        let mut found = Vec::new();
        let mut left = vec![self.at("cache/inarch/images")];
        while let Some(directory) = left.pop() {
            for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
                match entry.file_type().unwrap().is_dir() {
                    true => left.push(entry.path()),
                    false if entry.file_name() != "lock" => found.push(entry.path()),
                    false => {}
                }
            }
        }
        found
    }

    /// Whether all that is kept has the digest that its name says.
    fn assert_kept_is_good(&self) {
        for path in self.kept().iter().filter(|path| path.to_str().unwrap().contains("/blobs/")) {
            let name = path.file_name().unwrap().to_str().unwrap();
            assert_eq!(self.digest(&fs::read(path).unwrap()), format!("sha256:{name}"));
        }
    }
}

/// An image of one layer.
#[derive(Clone)]
struct Image {
    config: Vec<u8>,
    layer: Vec<u8>,
    of_config: serde_json::Value,
    of_layer: serde_json::Value,
}

impl Image {
    fn new(scene: &Scene) -> Image {
        fs::create_dir_all(scene.at("tree")).unwrap();
        fs::write(scene.at("tree/file"), vec![b'x'; 300_000]).unwrap();
        host("tar", &["-C", "tree", "-cf", "layer.tar", "."], scene.place.path());
        let layer = fs::read(scene.at("layer.tar")).unwrap();
        let config =
            json!({ "architecture": "amd64", "os": "linux", "rootfs": { "diff_ids": [scene.digest(&layer)] } });
        let config = config.to_string().into_bytes();
        let of_config = json!({
            "mediaType": "application/vnd.oci.image.config.v1+json", "digest": scene.digest(&config), "size": config.len()
        });
        let of_layer = json!({ "mediaType": LAYER, "digest": scene.digest(&layer), "size": layer.len() });
        Image { config, layer, of_config, of_layer }
    }

    fn manifest(&self) -> Vec<u8> {
        json!({ "schemaVersion": 2, "config": self.of_config, "layers": [self.of_layer] }).to_string().into_bytes()
    }

    fn answer(&self, request: &Request) -> Answer {
        if request.path.contains("/manifests/") {
            return Answer::of(200, self.manifest()).with("Content-Type", MANIFEST);
        }
        let is = |one: &serde_json::Value| request.path.contains(one["digest"].as_str().unwrap());
        match request.path.contains("/blobs/") {
            true if is(&self.of_config) => Answer::of(200, self.config.clone()),
            true if is(&self.of_layer) => Answer::of(200, self.layer.clone()),
            _ => Answer::of(404, ""),
        }
    }
}

/// Whether a request is for the layer.
fn is_layer(image: &Image, request: &Request) -> bool {
    request.path.contains(image.of_layer["digest"].as_str().unwrap())
}

#[test]
fn what_is_wrong_with_a_layer_is_one_line() {
    let scene = Scene::new();
    let image = Image::new(&scene);
    type Wrong = fn(&Image) -> Answer;
    let wrongs: [(&str, Wrong, &str); 8] = [
        (
            "another byte",
            |image| {
                let mut wrong = image.layer.clone();
                wrong[700] ^= 1;
                Answer::of(200, wrong)
            },
            "is damaged: its digest is",
        ),
        ("longer", |image| Answer::of(200, [&image.layer[..], b"x"].concat()), "the answer is longer than"),
        (
            "endless",
            |image| Answer { end: End::Endless, length: Some(u64::MAX / 4), ..Answer::of(200, image.layer.clone()) },
            "the answer is longer than",
        ),
        ("shorter", |image| Answer::of(200, &image.layer[..1000]), "the answer ends after 1000 of"),
        (
            "cut",
            |image| Answer { length: Some(image.layer.len() as u64), ..Answer::of(200, &image.layer[..1000]) },
            "the connection with the registry fails",
        ),
        (
            "none",
            |_| Answer::of(404, r#"{"errors":[{"code":"BLOB_UNKNOWN","message":"blob \u001b[31munknown"}]}"#),
            "the registry does not have it (blob [31munknown)",
        ),
        (
            "broken",
            |_| Answer::of(500, "broken\u{1b}[31m\n\nand more"),
            "the registry answers 500: broken [31m and more",
        ),
        ("elsewhere", |_| Answer::of(302, "").with("Location", "file:///etc/passwd"), ""),
    ];
    for (what, wrong, line) in wrongs {
        let shared = image.clone();
        let server = Server::of(
            move |_, request| {
                if is_layer(&shared, request) { wrong(&shared) } else { shared.answer(request) }
            },
        );
        let output = scene.plan(&server.name("app"));
        assert_one_line(&output, &[&server.name("app:latest"), line]);
        let layer = image.of_layer["digest"].as_str().unwrap().trim_start_matches("sha256:");
        assert!(!scene.kept().iter().any(|path| path.ends_with(layer)), "{what}: {:?}", scene.kept());
        assert!(!scene.kept().iter().any(|path| path.to_str().unwrap().contains("/names/")), "{what}");
        scene.assert_kept_is_good();
    }
    // The same image of a good registry.
    let server = Server::of(move |_, request| image.answer(request));
    assert_status(&scene.plan(&server.name("app")), 0);
}

#[test]
fn a_connection_that_breaks_is_gone_on_with_where_it_broke() {
    let scene = Scene::new();
    let image = Image::new(&scene);
    let (shared, cuts) = (image.clone(), Arc::new(AtomicU32::new(0)));
    let server = Server::of(move |_, request| {
        if !is_layer(&shared, request) {
            return shared.answer(request);
        }
        let size = shared.layer.len();
        let range = request.headers.get("range").and_then(|range| range.strip_prefix("bytes=")?.strip_suffix('-'));
        let start: usize = range.map_or(0, |text| text.parse().unwrap());
        // It breaks twice; once the next one is asked for a range, and sends all.
        let answer = match cuts.fetch_add(1, Ordering::SeqCst) {
            0 => Answer { length: Some(size as u64), ..Answer::of(200, &shared.layer[..100_000]) },
            1 => {
                Answer { length: Some((size - start) as u64), ..Answer::of(206, &shared.layer[start..start + 50_000]) }
            }
            _ => return Answer::of(200, shared.layer.clone()),
        };
        answer.with("Content-Range", format!("bytes {start}-{}/{size}", size - 1))
    });
    assert_status(&scene.plan(&server.name("app")), 0);
    let layers =
        server.requests().iter().filter(|request| request.contains(image.of_layer["digest"].as_str().unwrap())).count();
    assert_eq!(layers, 3, "{:?}", server.requests());
}

#[test]
fn what_is_wrong_with_a_document_is_one_line() {
    let scene = Scene::new();
    let image = Image::new(&scene);
    let config = image.of_config.clone();
    let with_layer =
        |layer: serde_json::Value| json!({ "schemaVersion": 2, "config": config, "layers": [layer] }).to_string();
    let in_itself =
        |size: usize| json!({ "manifests": [{ "mediaType": INDEX, "digest": ZEROS, "size": size }] }).to_string();
    let many: Vec<_> = (0..2000).map(|_| json!({ "mediaType": LAYER, "digest": ZEROS, "size": 1 })).collect();
    let documents: Vec<(String, &str, &str)> = vec![
        ("{".to_owned(), MANIFEST, "makes no sense"),
        ("[]".to_owned(), INDEX, ""),
        (format!("{{\"x\":\"{}\"}}", "x".repeat(5 << 20)), MANIFEST, "the answer is longer than 4194304 bytes"),
        ("[".repeat(1 << 20), MANIFEST, "makes no sense"),
        (
            with_layer(json!({ "mediaType": LAYER, "digest": "../../x", "size": 1 })),
            MANIFEST,
            "the digest '../../x' has no algorithm",
        ),
        (
            with_layer(json!({ "mediaType": LAYER, "digest": "sha256:../../../../x", "size": 1 })),
            MANIFEST,
            "the digest 'sha256:../../../../x'",
        ),
        (with_layer(json!({ "mediaType": LAYER, "digest": ZEROS, "size": -1 })), MANIFEST, "makes no sense"),
        (
            with_layer(json!({ "mediaType": LAYER, "digest": ZEROS, "size": u64::MAX })),
            MANIFEST,
            "the registry does not have it",
        ),
        (
            with_layer(json!({ "mediaType": "x/\u{1b}[0m", "digest": ZEROS, "size": 1 })),
            MANIFEST,
            "has an unknown type",
        ),
        (json!({ "config": config, "layers": many }).to_string(), MANIFEST, "the image has 2000 layers"),
        (
            json!({ "config": config, "layers": [], "manifests": [] }).to_string(),
            INDEX,
            "is both an index and a manifest",
        ),
        (
            json!({ "mediaType": INDEX, "config": config, "layers": [] }).to_string(),
            MANIFEST,
            "is both an index and a manifest",
        ),
        (
            json!({ "schemaVersion": 1, "fsLayers": [] }).to_string(),
            "application/vnd.docker.distribution.manifest.v1+prettyjws",
            "schema 1",
        ),
        (
            json!({ "schemaVersion": 2, "config": { "mediaType": "x/y", "digest": ZEROS, "size": 2 }, "layers": [] })
                .to_string(),
            MANIFEST,
            "is not a container image",
        ),
        ("<html>sign in</html>".to_owned(), "text/html", "makes no sense"),
        (in_itself(2), INDEX, "is damaged: its digest is"),
        (in_itself(9 << 30), INDEX, "a manifest of 9663676416 bytes"),
    ];
    for (document, kind, line) in documents {
        let text = document.clone();
        let server = Server::of(move |_, request| match request.path.contains("/manifests/") {
            true => Answer::of(200, text.clone()).with("Content-Type", kind),
            false => Answer::of(404, ""),
        });
        let output = scene.plan(&server.name("app"));
        assert_one_line(&output, &[&server.name("app:latest"), line]);
        assert!(!scene.kept().iter().any(|path| path.to_str().unwrap().contains("/names/")), "{line}");
        scene.assert_kept_is_good();
        assert!(!scene.at("cache/x").exists() && !scene.at("cache/inarch/x").exists());
        // Nothing of one document is the next one's.
        fs::remove_dir_all(scene.at("cache")).unwrap();
    }
}

#[test]
fn what_leads_elsewhere_or_nowhere_is_one_line() {
    let scene = Scene::new();
    let image = Image::new(&scene);
    let secret = Server::of(|_, _| Answer::of(200, "secret"));
    let elsewhere = secret.host.clone();
    type Turn = fn(&str, &Request) -> Answer;
    let turns: [(&str, Turn, &str); 6] = [
        (
            "in a circle",
            |own, request| Answer::of(307, "").with("Location", format!("http://{own}{}", request.path)),
            "redirects more than 5 times",
        ),
        (
            "to no TLS",
            |_, _| Answer::of(307, "").with("Location", "http://registry.invalid/x"),
            "redirects to an address without TLS",
        ),
        ("to a file", |_, _| Answer::of(301, "").with("Location", "file:///etc/passwd"), ""),
        (
            "to tokens without TLS",
            |_, _| Answer::of(401, "").with("WWW-Authenticate", "Bearer realm=\"http://registry.invalid/t\""),
            "its tokens are at 'http://registry.invalid/t'",
        ),
        (
            "to strange tokens",
            |own, request| match request.path.starts_with("/t") {
                true => Answer::of(200, "{\"token\":\"a\\nX: y\"}"),
                false => Answer::of(401, "").with("WWW-Authenticate", format!("Bearer realm=\"http://{own}/t\"")),
            },
            "its service for tokens gives none",
        ),
        (
            "to endless tokens",
            |own, request| match request.path.starts_with("/t") {
                true => Answer { end: End::Endless, length: Some(1 << 40), ..Answer::of(200, "{") },
                false => Answer::of(401, "").with("WWW-Authenticate", format!("Bearer realm=\"http://{own}/t\"")),
            },
            "the answer is longer than",
        ),
    ];
    for (what, turn, line) in turns {
        let server = Server::of(turn);
        let output = scene.plan(&server.name("app"));
        assert_one_line(&output, &[&server.name("app:latest"), line]);
        assert!(scene.kept().is_empty(), "{what}");
    }
    // Credentials are the registry's alone.
    let auths = |host: &str| format!(r#"{{ "auths": {{ "{host}": {{ "auth": "dXNlcjpzZWNyZXQ=" }} }} }}"#);
    let server = Server::of(move |_, request| match request.headers.contains_key("authorization") {
        false => Answer::of(401, "").with("WWW-Authenticate", "Basic realm=x"),
        true if is_layer(&image, request) => Answer::of(302, "").with("Location", format!("http://{elsewhere}/layer")),
        true => image.answer(request),
    });
    fs::create_dir_all(scene.at(".docker")).unwrap();
    fs::write(scene.at(".docker/config.json"), auths(&server.host)).unwrap();
    assert_one_line(&scene.plan(&server.name("app")), &["the answer ends after 6 of"]);
    assert!(!secret.requests().is_empty());
    assert!(!secret.any_has("authorization"), "a store that the registry names gets no password");
    // Nor does a service for tokens that such a store names.
    let tokens = Server::of(|_, _| Answer::of(200, "{\"token\":\"x\"}"));
    let realm = format!("Bearer realm=\"http://{}/token\"", tokens.host);
    let store = Server::of(move |_, _| Answer::of(401, "").with("WWW-Authenticate", realm.clone()));
    let (elsewhere, image) = (store.host.clone(), Image::new(&scene));
    let server = Server::of(move |_, request| match is_layer(&image, request) {
        true => Answer::of(307, "").with("Location", format!("http://{elsewhere}/layer")),
        false => image.answer(request),
    });
    fs::write(scene.at(".docker/config.json"), auths(&server.host)).unwrap();
    assert_one_line(&scene.plan(&server.name("other")), &["the registry refuses"]);
    assert!(!store.requests().is_empty() && tokens.requests().is_empty(), "{:?}", tokens.requests());
    assert!(!store.any_has("referer"));
}

#[test]
fn what_is_killed_or_full_leaves_nothing() {
    let scene = Scene::new();
    let image = Image::new(&scene);
    let shared = image.clone();
    let server = Server::of(move |_, request| match is_layer(&shared, request) {
        true => Answer {
            end: End::Silent,
            length: Some(shared.layer.len() as u64),
            ..Answer::of(200, &shared.layer[..5000])
        },
        false => shared.answer(request),
    });
    let mut child = scene.command(&["plan", &server.name("app")]).spawn().unwrap();
    assert!(within(LONG, || server.requests().iter().any(|request| request.contains("/blobs/"))));
    child.kill().unwrap();
    child.wait().unwrap();
    scene.assert_kept_is_good();
    assert!(!scene.kept().iter().any(|path| path.to_str().unwrap().contains("/names/")));

    // Two at once, in a cache that one was killed in.
    let shared = image.clone();
    let server = Server::of(move |_, request| shared.answer(request));
    let children: Vec<_> = (0..2).map(|_| scene.command(&["plan", &server.name("app")]).spawn().unwrap()).collect();
    for child in children {
        assert_status(&child.wait_with_output().unwrap(), 0);
    }
    scene.assert_kept_is_good();

    // A disk with room for half of it.
    let full = scene.at("full");
    fs::create_dir(&full).unwrap();
    host("mount", &["-t", "tmpfs", "-o", "size=200k", "inarch-test", "full"], scene.place.path());
    let output = scene.command(&["plan", &server.name("app")]).env("XDG_CACHE_HOME", &full).output().unwrap();
    let kept = host("find", &["full", "-type", "f", "-path", "*names*"], scene.place.path());
    unmount(&scene.place.path().join("full"));
    assert_one_line(&output, &["cannot keep the image there: No space left on device", "inarch cache prune"]);
    assert_eq!(kept, "");

    // What a disk has damaged is removed, and fetched by the next command.
    let layer = image.of_layer["digest"].as_str().unwrap().replace(':', "/");
    let layer = scene.at("cache/inarch/images/blobs").join(layer);
    let mut bytes = fs::read(&layer).unwrap();
    bytes[4000] ^= 1;
    fs::write(&layer, bytes).unwrap();
    assert_one_line(&scene.plan(&server.name("app")), &["is damaged", "what is damaged was removed"]);
    assert_status(&scene.plan(&server.name("app")), 0);
    scene.assert_kept_is_good();
}

#[test]
fn names_that_are_none_are_one_line() {
    let scene = Scene::new();
    for name in [
        "docker://",
        "docker://../x",
        "docker://UPPER",
        "docker://a@sha256:b",
        "docker://a:b:c",
        "docker://a/\u{1b}[31m",
    ] {
        assert_one_line(&scene.plan(name), &["names no image of a registry", "write docker://"]);
    }
    assert!(!scene.at("cache").exists());
}
