//! Files and directories that are made and removed during a scan neither fail it nor are reported.

use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

use inarch_tree::scan::{ScanOptions, scan};

/// Makes and removes files, symlinks, sparse files and directories until it is told to stop.
fn churn(root: &Path, stop: &AtomicBool) {
    while !stop.load(Ordering::Relaxed) {
        for i in 0..40 {
            let dir = root.join(format!("d{i}"));
            fs::create_dir_all(dir.join("below")).unwrap();
            fs::write(dir.join("below/file"), "x").unwrap();
            std::os::unix::fs::symlink("target", dir.join("link")).unwrap();
            fs::File::create(dir.join("sparse")).unwrap().set_len(1 << 20).unwrap();
        }
        for i in 0..40 {
            let _ = fs::remove_file(root.join(format!("d{i}/link")));
            // A file where a directory was.
            let _ = fs::rename(root.join(format!("d{i}/below/file")), root.join(format!("d{i}/link")));
            fs::remove_dir_all(root.join(format!("d{i}"))).unwrap();
        }
    }
}

#[test]
fn a_hundred_scans_of_a_churning_tree() {
    let root = tempfile::tempdir().unwrap();
    for i in 0..20 {
        fs::write(root.path().join(format!("stays{i}")), "x").unwrap();
    }
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| churn(root.path(), &stop));
        let mut seen = 0;
        let result = std::panic::catch_unwind(|| {
            let mut seen = 0;
            for _ in 0..100 {
                let scan = scan(root.path(), &ScanOptions { threads: 2, ..ScanOptions::default() }).unwrap();
                assert_eq!(scan.report.left_out, []);
                for i in 0..20 {
                    assert!(scan.tree.lookup(format!("stays{i}").as_bytes()).is_some());
                }
                seen += scan.tree.entry_count() - 20;
            }
            seen
        });
        stop.store(true, Ordering::Relaxed);
        match result {
            Ok(count) => seen += count,
            Err(panic) => std::panic::resume_unwind(panic),
        }
        assert!(seen > 0, "nothing changed");
    });
}
