//! Promise: `docker://NAME` is a source like any other. What comes from a registry is what its digest says, is fetched once, and stays usable without
//! the registry; `inarch push` puts images there that other programs read.

use std::fs;
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use serde_json::{Value, json};

use crate::support::registry::{Answer, PASSWORD, Registry, Server, USER};
use crate::support::{
    INARCH, any_machine, assert_one_line, assert_status, host, scratch, script_program, stderr, stdout,
};

/// A user of registries, with a cache and a home of their own.
struct Scene {
    place: tempfile::TempDir,
}

impl Scene {
    fn new() -> Scene {
        let place = scratch();
        fs::create_dir(place.path().join("home")).unwrap();
        Scene { place }
    }

    fn at(&self, path: &str) -> PathBuf {
        self.place.path().join(path)
    }

    fn text(&self, path: &str) -> String {
        self.at(path).to_str().unwrap().to_owned()
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new(INARCH);
        command
            .args(words)
            .current_dir(self.place.path())
            .env("XDG_CACHE_HOME", self.at("cache"))
            .env("HOME", self.at("home"))
            .stdin(Stdio::null());
        for name in ["REGISTRY_AUTH_FILE", "XDG_RUNTIME_DIR", "XDG_CONFIG_HOME", "DOCKER_CONFIG", "SOURCE_DATE_EPOCH"] {
            command.env_remove(name);
        }
        command
    }

    fn inarch(&self, words: &[&str]) -> Output {
        self.command(words).output().unwrap()
    }

    /// The same, which must succeed.
    fn good(&self, words: &[&str]) -> Output {
        let output = self.inarch(words);
        assert_status(&output, 0);
        output
    }

    /// The tree of a source as a tar archive.
    fn tar(&self, source: &str) -> Vec<u8> {
        let file = self.at("tree.tar");
        let _ = fs::remove_file(&file);
        self.good(&["image", source, "-o", file.to_str().unwrap()]);
        fs::read(file).unwrap()
    }

    /// Runs a script on this machine.
    fn host(&self, script: &str) -> String {
        host("sh", &["-ec", script], self.place.path())
    }

    /// An OCI layout `layout:app` of two layers. The second one removes a file of the first.
    fn layout(&self) {
        self.host(
            "umoci init --layout layout; umoci new --image layout:app; umoci unpack --image layout:app bundle
             mkdir -p bundle/rootfs/etc bundle/rootfs/srv/deep; seq 200000 > bundle/rootfs/srv/numbers; echo gone > bundle/rootfs/etc/gone
             ln bundle/rootfs/srv/numbers bundle/rootfs/srv/deep/same; ln -s ../srv bundle/rootfs/etc/link; chmod 4755 bundle/rootfs/etc/gone
             umoci repack --refresh-bundle --image layout:app bundle
             rm bundle/rootfs/etc/gone; echo new > bundle/rootfs/etc/new; chown 12:34 bundle/rootfs/etc/new
             umoci repack --image layout:app bundle
             umoci config --image layout:app --config.entrypoint /bin/tool --config.env A=b --config.user 12:34 --config.workingdir /srv",
        );
    }

    /// Has another program put `layout:app` into a registry.
    fn pushed(&self, registry: &Registry, image: &str, words: &str) {
        self.layout();
        self.host(&format!(
            "skopeo copy -q --dest-tls-verify=false {words} oci:layout:app docker://{}/{image}",
            registry.host
        ));
    }

    /// Names of files below the directory of images, sorted.
    fn kept(&self) -> Vec<String> {
        let found = self.host("cd cache/inarch/images 2>/dev/null && find . -type f | sort || true");
        found.lines().map(str::to_owned).collect()
    }
}

#[test]
fn what_another_program_pushed_is_a_tree_like_its_layout() {
    let scene = Scene::new();
    let registry = Registry::of(&scene.at("registry"));
    scene.pushed(&registry, "team/app:1", "");
    let name = registry.name("team/app:1");
    let expected = scene.tar("oci:layout:app");
    assert!(!expected.is_empty());
    assert!(scene.tar(&name) == expected);
    // Documents and layers are kept by their digests, and the name by its own.
    let kept = scene.kept();
    assert_eq!(kept.iter().filter(|path| path.starts_with("./blobs/sha256/")).count(), 4, "{kept:?}");
    assert_eq!(kept.len(), 4 + 1 + 1, "{kept:?}");
    let plan: Value = serde_json::from_str(&stdout(&scene.good(&["plan", "--json", &name]))).unwrap();
    assert_eq!(plan["source"], name);

    // A digest needs no registry once it is here; a tag has one line about it, and another name none of its images.
    let digest = scene.host(&format!("skopeo inspect --tls-verify=false --format '{{{{.Digest}}}}' {name}"));
    let by_digest = registry.name(&format!("team/app@{}", digest.trim()));
    assert!(scene.tar(&by_digest) == expected);
    let unknown = scene.inarch(&["plan", &registry.name("team/app:other")]);
    assert_one_line(&unknown, &["team/app:other: the registry does not have it (manifest unknown)"]);
    drop(registry);
    let output = scene.good(&["plan", &by_digest]);
    assert_eq!(stderr(&output), "");
    let output = scene.good(&["plan", &name]);
    let line = stderr(&output);
    assert!(
        line.contains("the connection with the registry fails") && line.contains("the copy here is used"),
        "{line}"
    );
    assert_eq!(line.lines().count(), 1, "{line}");
    let output = scene.inarch(&["plan", &format!("{name}x")]);
    assert_one_line(&output, &["the connection with the registry fails"]);
}

#[test]
fn a_tag_is_asked_for_each_time() {
    let scene = Scene::new();
    let registry = Registry::of(&scene.at("registry"));
    let name = registry.name("app");
    for number in ["1", "2"] {
        scene.host(&format!("mkdir -p tree; echo {number} > tree/number"));
        scene.good(&["push", "tree", &name]);
        let tar = scene.tar(&name);
        assert!(tar == scene.tar("tree"), "{number}");
    }
    // What a name stood for before is freed when nothing needs it.
    let blobs = || scene.kept().iter().filter(|path| path.starts_with("./blobs/")).count();
    assert_eq!(blobs(), 6);
    let listed: Value = serde_json::from_str(&stdout(&scene.good(&["cache", "list", "--json"]))).unwrap();
    let names: Vec<&str> = listed.as_array().unwrap().iter().map(|one| one["name"].as_str().unwrap()).collect();
    assert_eq!(names, [format!("{name}:latest")]);
    scene.good(&["cache", "prune"]);
    assert_eq!(blobs(), 3);
    scene.tar(&name);
    scene.good(&["cache", "prune", "--max-size", "0"]);
    assert_eq!(blobs(), 0);
    assert!(scene.tar(&name) == scene.tar("tree"));
}

#[test]
fn what_is_pushed_other_programs_read() {
    let scene = Scene::new();
    let registry = Registry::of(&scene.at("registry"));
    scene.layout();
    for (compress, arch) in [("gzip", "amd64"), ("zstd", "arm64"), ("none", "riscv64")] {
        let name = registry.name(&format!("copy/{compress}:1"));
        let words = ["push", "oci:layout:app", &name, "--compress", compress, "--arch", arch];
        let output = scene.good(&words);
        assert!(stderr(&output).contains("sent; sha256:"), "{}", stderr(&output));
        // Nothing of it is sent again.
        let output = scene.good(&words);
        assert!(stderr(&output).contains("the registry had the layer; sha256:"), "{}", stderr(&output));
        scene.host(&format!(
            "rm -rf out; skopeo copy -q --src-tls-verify=false --override-arch {arch} {name} oci:out:it"
        ));
        let expected = scene.tar("oci:layout:app");
        assert!(scene.tar("oci:out:it") == expected, "{compress}");
        assert!(scene.tar(&name) == expected, "{compress}");
        let config: Value = serde_json::from_str(&scene.host("skopeo inspect --config --raw oci:out:it")).unwrap();
        assert_eq!(config["architecture"], arch);
        let settings = &config["config"];
        assert_eq!(settings["Entrypoint"], json!(["/bin/tool"]));
        assert_eq!((&settings["User"], &settings["WorkingDir"]), (&json!("12:34"), &json!("/srv")));
        assert!(settings["Env"].as_array().unwrap().contains(&json!("A=b")), "{settings}");
    }
    // A command takes the place of the entry point and its arguments.
    let name = registry.name("copy/command");
    scene.good(&["push", "oci:layout:app", &name, "--cmd", "sh", "--cmd", "-c"]);
    let config: Value =
        serde_json::from_str(&scene.host(&format!("skopeo inspect --tls-verify=false --config --raw {name}"))).unwrap();
    assert_eq!(config["config"]["Cmd"], json!(["sh", "-c"]));
    assert_eq!(config["config"]["Entrypoint"], Value::Null);
    let digest = format!("{}@sha256:{}", registry.name("copy/x"), "0".repeat(64));
    assert_one_line(&scene.inarch(&["push", "layout", &digest]), &["a push needs a tag"]);
}

#[test]
fn an_index_has_an_image_for_each_machine() {
    let scene = Scene::new();
    let registry = Registry::of(&scene.at("registry"));
    let mut manifests = Vec::new();
    for arch in ["amd64", "arm64", "riscv64"] {
        scene.host(&format!("mkdir -p tree; echo {arch} > tree/arch"));
        let name = registry.name(&format!("many:{arch}"));
        let output = scene.good(&["push", "tree", &name, "--arch", arch]);
        let digest = stderr(&output).split_whitespace().last().unwrap().to_owned();
        let size = scene.host(&format!("skopeo inspect --tls-verify=false --raw {name}")).len();
        manifests.push(json!({
            "mediaType": "application/vnd.oci.image.manifest.v1+json", "digest": digest, "size": size,
            "platform": { "os": "linux", "architecture": arch }
        }));
    }
    let kind = "application/vnd.oci.image.index.v1+json";
    let index = json!({ "schemaVersion": 2, "mediaType": kind, "manifests": manifests });
    registry.put_manifest("many", "all", kind, &index.to_string());
    let name = registry.name("many:all");
    let of = |tree: &str| String::from_utf8_lossy(&scene.tar(tree)).into_owned();
    assert!(of(&name).contains("amd64\n"), "this machine's");
    scene.host(&format!("skopeo copy -q --all --src-tls-verify=false {name} oci:all"));
    // An archive of it needs no "oci:".
    scene.host("tar -C all -cf all.tar .");
    for source in ["oci:all", "all.tar"] {
        assert!(of(source).contains("amd64\n"), "this machine's");
    }
    // One that does not say what it is for comes after one that does.
    let mut open = manifests.clone();
    open[0].as_object_mut().unwrap().remove("platform");
    let index = json!({ "schemaVersion": 2, "mediaType": kind, "manifests": open });
    registry.put_manifest("many", "open", kind, &index.to_string());
    let with_open = registry.name("many:open");
    for arch in ["arm64", "riscv64"] {
        let one = registry.name(&format!("one:{arch}"));
        for source in [&*name, "oci:all", "all.tar", &with_open] {
            let output = scene.good(&["push", source, &one, "--arch", arch]);
            assert!(!stderr(&output).contains("not for"), "{}", stderr(&output));
            assert!(of(&one).contains(&format!("{arch}\n")), "{source}, {arch}");
        }
    }
    // An image for none of them.
    let of_one = json!({ "schemaVersion": 2, "mediaType": kind, "manifests": [manifests[1], manifests[2]] });
    registry.put_manifest("many", "others", kind, &of_one.to_string());
    let output = scene.inarch(&["plan", &registry.name("many:others")]);
    assert_one_line(&output, &["there is no image for linux/amd64, only for linux/arm64, linux/riscv64"]);
}

#[test]
fn a_registry_is_shown_the_credentials_that_docker_and_podman_keep() {
    let scene = Scene::new();
    let registry = Registry::of_user(&scene.at("registry"));
    let words = format!("--dest-creds '{USER}:{PASSWORD}'");
    scene.pushed(&registry, "app", &words);
    let name = registry.name("app");
    let refused = scene.inarch(&["plan", &name]);
    assert_one_line(&refused, &["the registry refuses: authentication required", "docker login"]);

    // printf user:pass:word | base64
    let auths = format!(r#"{{ "auths": {{ "{}": {{ "auth": "dXNlcjpwYXNzOndvcmQ=" }} }} }}"#, registry.host);
    let helper = scene.at("bin/docker-credential-tests");
    fs::create_dir_all(scene.at("bin")).unwrap();
    let script = format!(
        "#!/bin/sh\n[ \"$1\" = get ] && [ \"$(cat)\" = {} ] && echo '{{ \"Username\": \"{USER}\", \"Secret\": \"{PASSWORD}\" }}'\n",
        registry.host
    );
    script_program(&helper, &script);
    let path = format!("{}:{}", scene.text("bin"), std::env::var("PATH").unwrap());
    let helped = r#"{ "credsStore": "tests" }"#.to_owned();
    let of_one = format!(r#"{{ "credHelpers": {{ "{}": "tests" }}, "credsStore": "none" }}"#, registry.host);
    let expected = scene.tar("oci:layout:app");
    for (file, variable, value, text) in [
        ("home/.docker/config.json", None, "", &auths),
        ("d/config.json", Some("DOCKER_CONFIG"), "d", &auths),
        ("r/containers/auth.json", Some("XDG_RUNTIME_DIR"), "r", &auths),
        ("some.json", Some("REGISTRY_AUTH_FILE"), "some.json", &auths),
        ("home/.docker/config.json", None, "", &helped),
        ("home/.config/containers/auth.json", None, "", &of_one),
    ] {
        let file = scene.at(file);
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, text).unwrap();
        let _ = fs::remove_dir_all(scene.at("cache"));
        let out = scene.text("out.tar");
        let mut command = scene.command(&["image", &name, "-o", &out]);
        command.env("PATH", &path);
        if let Some(variable) = variable {
            command.env(variable, scene.at(value));
        }
        let output = command.output().unwrap();
        assert_status(&output, 0);
        assert!(fs::read(&out).unwrap() == expected, "{text}");
        fs::remove_file(&file).unwrap();
        fs::remove_file(&out).unwrap();
    }
    // What is wrong with them is said when the registry refuses.
    fs::create_dir_all(scene.at("home/.docker")).unwrap();
    for (text, part) in [
        (auths.replace("dXNl", "eHNl"), "the credentials of 'xser' do not suffice"),
        (helped, "docker-credential-tests: there is no such program"),
        ("{".to_owned(), "home/.docker/config.json: it makes no sense"),
    ] {
        fs::write(scene.at("home/.docker/config.json"), text).unwrap();
        assert_one_line(&scene.inarch(&["image", &name, "-o", "x.tar"]), &["the registry refuses", part]);
    }
    let output = scene.inarch(&["push", "layout", &name]);
    assert_one_line(&output, &["the registry refuses"]);
}

/// The documents of an image without layers.
pub struct Small {
    pub config: String,
    pub manifest: String,
}

/// The digest of a text.
fn digest(scene: &Scene, text: &str) -> String {
    fs::write(scene.at("text"), text).unwrap();
    format!("sha256:{}", scene.host("sha256sum text").split_whitespace().next().unwrap())
}

impl Small {
    fn new(scene: &Scene) -> Small {
        let config = json!({ "architecture": "amd64", "os": "linux", "rootfs": { "type": "layers", "diff_ids": [] } });
        let config = config.to_string();
        let kind = "application/vnd.oci.image.config.v1+json";
        let of_config = json!({ "mediaType": kind, "digest": digest(scene, &config), "size": config.len() });
        let manifest = json!({ "schemaVersion": 2, "config": of_config, "layers": [] }).to_string();
        Small { config, manifest }
    }

    /// The usual answer to a request for it.
    pub fn answer(&self, path: &str) -> Answer {
        if path.contains("/manifests/") {
            return Answer::of(200, self.manifest.clone())
                .with("Content-Type", "application/vnd.oci.image.manifest.v1+json");
        }
        if path.contains("/blobs/") {
            return Answer::of(200, self.config.clone());
        }
        Answer::of(404, "")
    }
}

#[test]
fn a_token_is_had_of_the_service_that_the_registry_names() {
    let scene = Scene::new();
    let small = Small::new(&scene);
    let server = Server::of(move |own, request| {
        let authorization = request.headers.get("authorization").map(String::as_str).unwrap_or_default();
        if request.path.starts_with("/token") {
            let is_right =
                request.path.contains("service=it+self") && request.path.contains("scope=repository%3Aapp%3Apull");
            // printf user:secret | base64
            return match (request.method.as_str(), authorization) {
                ("GET", "Basic dXNlcjpzZWNyZXQ=") if is_right => Answer::of(200, r#"{"token":"good"}"#),
                ("POST", "") if String::from_utf8_lossy(&request.body).contains("refresh_token=a%2Fb") => {
                    Answer::of(200, r#"{"access_token":"good"}"#)
                }
                _ => Answer::of(401, r#"{"errors":[{"code":"UNAUTHORIZED","message":"who are you"}]}"#),
            };
        }
        if authorization != "Bearer good" {
            let challenge =
                format!("Bearer realm=\"http://{own}/token\",service=\"it self\",scope=\"repository:app:pull\"");
            return Answer::of(401, "").with("WWW-Authenticate", challenge);
        }
        small.answer(&request.path)
    });
    let name = server.name("app");
    let output = scene.inarch(&["plan", &name]);
    assert_one_line(&output, &["the registry refuses: who are you"]);
    fs::create_dir(scene.at("home/.docker")).unwrap();
    for auth in [r#""auth": "dXNlcjpzZWNyZXQ=""#, r#""identitytoken": "a/b""#] {
        let text = format!(r#"{{ "auths": {{ "http://{}/v2/": {{ {auth} }} }} }}"#, server.host);
        fs::write(scene.at("home/.docker/config.json"), text).unwrap();
        let _ = fs::remove_dir_all(scene.at("cache"));
        scene.good(&["plan", &name]);
    }
    // What is pushed takes a token that permits it from the beginning.
    let before = server.requests().len();
    scene.host("mkdir tree; echo x > tree/x");
    scene.good(&["push", "tree", &name]);
    let asked = server.requests().into_iter().skip(before).filter(|request| request.contains("/token"));
    let asked: Vec<_> = asked.collect();
    assert!(!asked.is_empty() && asked.iter().all(|request| request.starts_with("POST ")), "{asked:?}");
    assert!(
        server.bodies().iter().any(|body| body.contains("scope=repository%3Aapp%3Apull%2Cpush")),
        "{:?}",
        server.bodies()
    );
    // One token is enough for all requests.
    let tokens = server.requests().iter().filter(|request| request.contains("/token")).count();
    assert_eq!(tokens, 4, "{:?}", server.requests());
}

#[test]
fn a_registry_has_tls_by_an_authority_that_is_trusted() {
    let scene = Scene::new();
    let registry = Registry::of_tls(&scene.at("registry"));
    scene.host("mkdir tree; seq 100000 > tree/x");
    let name = registry.name("app");
    let output = scene.inarch(&["push", "tree", &name]);
    assert_one_line(&output, &["the connection with the registry fails", "certificate"]);
    let authority = scene.at("home/.config/containers/certs.d").join(&registry.host);
    fs::create_dir_all(&authority).unwrap();
    fs::copy(scene.at("registry/ca.crt"), authority.join("ca.crt")).unwrap();
    scene.good(&["push", "tree", &name]);
    assert!(scene.tar(&name) == scene.tar("tree"));
    // By another name, the variable says which authorities are trusted.
    let name = name.replace("127.0.0.1", "localhost");
    assert_one_line(&scene.inarch(&["plan", &name]), &["certificate"]);
    let output = scene.command(&["plan", &name]).env("SSL_CERT_FILE", scene.at("registry/ca.crt")).output().unwrap();
    assert_status(&output, 0);
    // Without TLS it says nothing of use.
    let output = scene.inarch(&["plan", &name.replace("docker://", "docker+http://")]);
    assert_one_line(&output, &["the registry answers 400"]);
    fs::write(authority.join("ca.crt"), "-----BEGIN CERTIFICATE-----\n????\n-----END CERTIFICATE-----\n").unwrap();
    assert_one_line(&scene.inarch(&["plan", &registry.name("app")]), &["ca.crt: "]);
}

#[test]
fn a_guest_runs_what_an_image_of_a_registry_says() {
    let scene = Scene::new();
    let registry = Registry::of(&scene.at("registry"));
    scene.host(
        "mkdir -p root/bin root/dev root/proc root/sys root/run root/tmp tree; cp /bin/busybox root/bin/; echo of the tree > tree/file
         for tool in sh cat echo; do ln -s busybox root/bin/$tool; done",
    );
    let (root, tree) = (registry.name("root:1"), registry.name("tree:1"));
    let words = ["--cmd", "sh", "--cmd", "-c", "--cmd", "echo of the image; cat /srv/file"];
    scene.good(&[&["push", "root", &root][..], &words].concat());
    scene.good(&["push", "tree", &tree]);
    let output = scene.inarch(&[
        "run",
        "-q",
        any_machine(),
        "--root",
        &root,
        "--tree",
        &format!("{tree}:/srv"),
        "--timeout=300",
    ]);
    assert_status(&output, 0);
    assert_eq!(stdout(&output), "of the image\nof the tree\n");
    // Nothing boots if it cannot be fetched.
    let output = scene.inarch(&["run", "--accel=tcg", "--root", &registry.name("none")]);
    assert_one_line(&output, &["the registry does not have it"]);
}
