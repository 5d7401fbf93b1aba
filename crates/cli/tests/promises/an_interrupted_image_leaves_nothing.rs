//! Promise: an image gets its name when it is complete, and not before; whatever ends inarch, nothing else is left.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::{Command, Stdio};

use crate::support::{INARCH, LONG, assert_status, has_open_in, inarch, scratch, within};

/// A tree whose image takes a while.
fn large_tree(at: &Path) {
    std::fs::create_dir(at).unwrap();
    let chunk: Vec<u8> = (0..8 << 20).map(|i: u32| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    for number in 0..50 {
        std::fs::write(at.join(format!("{number}")), &chunk).unwrap();
    }
}

fn names(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    names.collect()
}

#[test]
fn signals_at_any_time() {
    let dir = scratch();
    let (source, place) = (dir.path().join("source"), dir.path().join("place"));
    large_tree(&source);
    std::fs::create_dir(&place).unwrap();
    let image = place.join("image.erofs");
    let is_interrupted_in_the_midst = |signal: &str| {
        let mut child = Command::new(INARCH)
            .arg("image")
            .arg(&source)
            .arg("-o")
            .arg(&image)
            .stderr(Stdio::null())
            .spawn()
            .expect("inarch starts");
        let is_over = within(LONG, || has_open_in(child.id(), &place) || child.try_wait().unwrap().is_some());
        assert!(is_over, "nothing is written");
        let kill = Command::new("kill").arg(format!("-{signal}")).arg(child.id().to_string()).status().unwrap();
        assert!(kill.success());
        let status = child.wait().unwrap();
        let is_interrupted = status.signal().is_some();
        if is_interrupted {
            assert_eq!(names(&place), [""; 0], "left behind after SIG{signal}");
        } else {
            // It was faster than the signal.
            assert!(status.success(), "{status:?}");
            std::fs::remove_file(&image).unwrap();
        }
        is_interrupted
    };
    for signal in ["INT", "TERM", "KILL"] {
        assert!((0..20).any(|_| is_interrupted_in_the_midst(signal)), "the image is faster than SIG{signal} each time");
    }
}

#[test]
fn what_had_the_name_before_stays_until_the_image_is_whole() {
    let dir = scratch();
    let (source, place) = (dir.path().join("source"), dir.path().join("place"));
    large_tree(&source);
    std::fs::create_dir(&place).unwrap();
    let image = place.join("image.erofs");
    let is_killed_in_the_midst = |_| {
        std::fs::write(&image, "before").unwrap();
        let mut child = Command::new(INARCH)
            .args(["image", "--quiet"])
            .arg(&source)
            .arg("-o")
            .arg(&image)
            .spawn()
            .expect("inarch starts");
        let is_over = within(LONG, || has_open_in(child.id(), &place) || child.try_wait().unwrap().is_some());
        assert!(is_over, "nothing is written");
        child.kill().unwrap();
        let killed = child.wait().unwrap().signal().is_some();
        if killed {
            assert_eq!(std::fs::read(&image).unwrap(), b"before");
            assert_eq!(names(&place), ["image.erofs"]);
        }
        killed
    };
    assert!((0..20).any(is_killed_in_the_midst), "the image is faster each time");
    let made = inarch(["image", "--quiet", source.to_str().unwrap(), "-o", image.to_str().unwrap()]);
    assert_status(&made, 0);
    assert_eq!(names(&place), ["image.erofs"]);
    assert!(std::fs::metadata(&image).unwrap().len() > 400 << 20);
}
