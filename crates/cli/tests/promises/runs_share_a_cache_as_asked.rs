//! Runs share a cache as they ask: one at a time, unmixed, or each branch its own. What guests of other machines write is published, too.

use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::os::unix::process::ExitStatusExt;
use std::process::{Child, Stdio};

use serde_json::Value;

use crate::caches_outlive_the_guest::Scene;
use crate::support::bare_guest::BareGuest;
use crate::support::{LONG, any_machine, assert_one_line, assert_status, host, stderr, stdout, within};

/// Starts a run that has the cache for itself.
fn locked(scene: &Scene, script: &str) -> Child {
    let words = ["run", any_machine(), "--cache", "own=/srv/own,locked", "sh", "-c", script];
    scene.command("one", &words).stderr(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap()
}

/// The first line in which a waiting run says whom it waits for.
fn says_whom(child: &mut Child) -> String {
    let mut lines = BufReader::new(child.stderr.as_mut().unwrap()).lines().map(Result::unwrap);
    lines.find(|line| line.contains("waits for")).unwrap()
}

#[test]
fn a_locked_cache_is_had_by_one_run_at_a_time() {
    let scene = Scene::new();
    let mut holder = locked(&scene, "sleep 1000");
    let turn = || {
        let own = scene.inarch("one", &["cache", "show", "own", "--json"]);
        let report: Value = serde_json::from_slice(&own.stdout).ok()?;
        fs::read_to_string(format!("{}/turn", report["directory"].as_str()?)).ok()
    };
    let whom = format!("process {}, sh -c sleep 1000", holder.id());
    assert!(within(LONG, || turn().is_some_and(|text| text == whom)));
    let mut waits = locked(&scene, "echo mine > /srv/own/file; echo had it");
    let line = says_whom(&mut waits);
    assert!(line.contains(&format!("cache own: it is locked, and this run waits for {whom}")), "{line}");
    // Ctrl-C ends one that waits.
    let mut other = locked(&scene, "true");
    says_whom(&mut other);
    host("kill", &["-INT", &other.id().to_string()], scene.place.path());
    assert_eq!(other.wait().unwrap().signal(), Some(2));
    // Others do not wait, nor those of another project.
    assert_status(&scene.run("two", "own=/srv/own,locked", "true"), 0);
    // The end of the holder, however it ends, frees it.
    holder.kill().unwrap();
    holder.wait().unwrap();
    let output = waits.wait_with_output().unwrap();
    assert_eq!((assert_status(&output, 0), stdout(&output).as_str()), ((), "had it\n"));
    assert_eq!(scene.state("own"), Some((1, 1)));
}

#[test]
fn a_private_cache_is_never_mixed_of_two_runs() {
    let scene = Scene::new();
    scene.files("base", 0..20);
    let base = scene.at("base");
    assert_status(&scene.inarch("one", &["cache", "warm", "own", base.to_str().unwrap()]), 0);
    let report = scene.at("report");
    let words = |mode: &str| {
        let script = "cd /srv/own; cat 00001 00002 > new; echo ready; read go; echo $go";
        let cache = format!("own=/srv/own{mode}");
        ["run", "--report", report.to_str().unwrap(), any_machine(), "--cache", &cache, "sh", "-c", script]
            .map(str::to_owned)
    };
    let run = |mode: &str, between: &dyn Fn()| {
        let words = words(mode);
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let mut command = scene.command("one", &words);
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
        let mut stdout = BufReader::new(child.stdout.take().unwrap());
        let mut line = String::new();
        stdout.read_line(&mut line).unwrap();
        assert_eq!(line, "ready\n");
        between();
        child.stdin.take().unwrap().write_all(b"on\n").unwrap();
        let output = child.wait_with_output().unwrap();
        assert_status(&output, 0);
        let report: Value = serde_json::from_slice(&fs::read(&report).unwrap()).unwrap();
        (stderr(&output), report["caches"][0].clone())
    };
    // Another one publishes meanwhile.
    let (said, of_use) = run(",private", &|| {
        scene.files("more", 100..101);
        assert_status(&scene.inarch("one", &["cache", "warm", "own", scene.at("more").to_str().unwrap()]), 0);
    });
    assert!(said.contains("cache own: 2 files read") && said.contains("nothing published; 1 path stays"), "{said}");
    assert_eq!((&of_use["generation"], &of_use["lost"], &of_use["files_read"]), (&Value::Null, &1.into(), &2.into()));
    assert_eq!(scene.state("own"), Some((21, 2)));
    // No other run publishes meanwhile.
    let (said, of_use) = run(",private", &|| ());
    assert!(!said.contains("cache own"), "{said}");
    assert_eq!(
        (&of_use["generation"], &of_use["files_published"], &of_use["scope"]),
        (&3.into(), &1.into(), &scene.at("one").canonicalize().unwrap().to_str().unwrap().into())
    );
    assert!(of_use["bytes_read"].as_u64() > Some(0) && of_use["seconds"].as_f64() > Some(0.0), "{of_use}");
    assert_eq!(scene.state("own"), Some((22, 3)));
    scene.assert_sound("own");
}

#[test]
fn a_branch_has_a_cache_of_its_own_that_begins_with_the_default_one_s() {
    let scene = Scene::new();
    let head = |branch: &str| fs::write(scene.at("one/.git/HEAD"), format!("ref: refs/heads/{branch}\n")).unwrap();
    fs::create_dir_all(scene.at("one/.git/refs/heads")).unwrap();
    fs::write(scene.at("one/.git/refs/heads/main"), "0\n").unwrap();
    scene.files("base", 0..30);
    let base = scene.at("base");
    head("main");
    assert_status(&scene.inarch("one", &["cache", "warm", "own", base.to_str().unwrap(), "--scope", "branch"]), 0);
    let archive = |branch: &str| {
        let script = format!("$INARCH image cache:branch:{branch}/own -o - --format tar | tar -xO | sha256sum");
        let mut command = scene.command("one", &[]);
        let environment: Vec<_> =
            command.get_envs().map(|(key, value)| (key.to_owned(), value.unwrap().to_owned())).collect();
        command = std::process::Command::new("sh");
        command
            .args(["-c", &script])
            .env("INARCH", crate::support::INARCH)
            .envs(environment)
            .current_dir(scene.at("one"));
        stdout(&command.output().unwrap())
    };
    let before = archive("main");
    head("topic/one");
    let script = "set -e; cd /srv/own; cmp /dev/stdin 00003 <<-. || exit 9\n3\n3\n3\n3\n.\necho evil > 00001; rm 00002; mv 00029 moved; echo new > new";
    let output = scene.run("one", "own=/srv/own,scope=branch", script);
    assert_status(&output, 0);
    assert_eq!(stderr(&output), "");
    assert_eq!(archive("main"), before);
    // The default branch's may go: the copy needs nothing of it.
    assert_status(&scene.inarch("one", &["cache", "remove", "own", "--scope", "branch:main"]), 0);
    let verified = scene.inarch("one", &["cache", "verify", "own", "--scope", "branch"]);
    assert_status(&verified, 0);
    assert!(stdout(&verified).contains("29 files") || stdout(&verified).contains("30 files"), "{}", stdout(&verified));
    let look = "cd /srv/own; cat 00001 new; ls 00002 2>/dev/null; head -n 1 moved";
    let output = scene.run("one", "own=/srv/own,scope=branch,ro", look);
    assert_eq!((assert_status(&output, 0), stdout(&output).as_str()), ((), "evil\nnew\n29\n"));
    // Where there is no branch, one line says so.
    fs::write(scene.at("one/.git/HEAD"), "0123456789\n").unwrap();
    assert_one_line(
        &scene.run("one", "own=/srv/own,scope=branch", "true"),
        &["no branch is checked out", "scope=branch:NAME"],
    );
    let listed = stdout(&scene.inarch("one", &["cache", "list"]));
    assert!(listed.contains("branch topic/one"), "{listed}");
}

#[test]
fn what_a_guest_of_another_machine_wrote_is_published() {
    let name = "what_a_guest_of_another_machine_wrote_is_published";
    let Some(guest) = BareGuest::or_skip(name) else { return };
    let scene = Scene::new();
    scene.files("base", 0..40);
    let base = scene.at("base");
    assert_status(&scene.inarch("one", &["cache", "warm", "own", base.to_str().unwrap()]), 0);
    let (socket, overlay) = (scene.at("disk.sock"), scene.at("overlay"));
    let serve = || {
        let words =
            ["serve", "blk", "cache:own", "--overlay", overlay.to_str().unwrap(), "--socket", socket.to_str().unwrap()];
        let server = scene.command("one", &words).stdout(Stdio::null()).stderr(Stdio::null()).spawn().unwrap();
        assert!(within(LONG, || socket.exists()));
        server
    };
    let mut server = serve();
    // In use: it is refused.
    let publish = || scene.inarch("one", &["cache", "publish", "own", "--from", overlay.to_str().unwrap()]);
    assert!(within(LONG, || overlay.exists()));
    assert_one_line(&publish(), &["overlay", "in use"]);
    let script = "mount -t ext4 /dev/vda /mnt && cd /mnt && sha256sum 00007 && echo changed >> 00001 && rm 00002 && seq 50000 > new
        mkdir -p a/b && mv 00003 a/b/moved && chown 1234:1234 new; cd /; umount /mnt && echo report done";
    let line = format!("-chardev socket,id=c,path={} -device vhost-user-blk-pci,chardev=c", socket.display());
    assert_eq!(guest.run(scene.place.path(), "virtio_pci virtio_blk ext4", script, &line)[0], "done");
    host("kill", &["-TERM", &server.id().to_string()], scene.place.path());
    server.wait().unwrap();
    assert_status(&publish(), 0);
    assert_eq!(scene.state("own"), Some((40, 2)));
    scene.assert_sound("own");
    let look = "cd /srv/own; tail -n 1 00001; ls 00002 2>/dev/null; seq 50000 | cmp - new; stat -c %U new; head -n 1 a/b/moved";
    let output = scene.run("one", "own=/srv/own,ro", look);
    assert_eq!((assert_status(&output, 0), stdout(&output).as_str()), ((), "changed\nroot\n3\n"));
    // The overlay is of the generation before.
    assert_one_line(&publish(), &["overlay"]);
    fs::write(&overlay, "x".repeat(100_000)).unwrap();
    assert_one_line(&publish(), &["overlay"]);
    fs::remove_file(&overlay).unwrap();
    assert_one_line(&publish(), &["overlay", "No such file"]);
    assert!(!overlay.exists());
    assert_eq!(scene.state("own"), Some((40, 2)));
}
