//! Boots a real kernel of this machine in QEMU under TCG.

use std::path::Path;
use std::time::Duration;

use inarch_vm::accel::probe::probe;
use inarch_vm::kernel::cache::Cache;
use inarch_vm::kernel::discover::Boot;
use inarch_vm::kernel::{Entry, Kernel};
use inarch_vm::qemu::Qemu;
use inarch_vm::{Accel, Arch};

/// What a test needs; `None`, with the reason printed, if it is missing.
fn machine(test: &str) -> Option<(Qemu, Kernel, tempfile::TempDir)> {
    let Ok(qemu) = Qemu::find(Arch::host()) else {
        println!("skipped: {test}: no QEMU");
        return None;
    };
    if Boot::of_this_machine().best().is_err() {
        println!("skipped: {test}: no kernel that can be read");
        return None;
    }
    let directory = tempfile::tempdir().unwrap();
    let kernel = Kernel::find(&Cache::at(directory.path())).unwrap();
    Some((qemu, kernel, directory))
}

#[test]
fn probe_tells_a_kernel_that_comes_up_from_one_that_does_not() {
    let Some((qemu, kernel, _directory)) = machine("probe_tells_a_kernel_that_comes_up_from_one_that_does_not") else {
        return;
    };
    assert_eq!(kernel.entry, Entry::Pvh, "{kernel:?}");
    probe(&qemu, &kernel, Accel::Tcg, Duration::from_secs(120)).unwrap();
    let error = probe(&qemu, &kernel, Accel::Tcg, Duration::from_millis(50)).unwrap_err().to_string();
    assert!(error.starts_with("the guest did not answer within 0 s"), "{error}");
}

#[test]
fn kernel_is_unpacked_once_even_by_concurrent_runs() {
    let Some((_, first, directory)) = machine("kernel_is_unpacked_once_even_by_concurrent_runs") else { return };
    let path = directory.path();
    let found: Vec<Kernel> = std::thread::scope(|scope| {
        let finders: Vec<_> = (0..4).map(|_| scope.spawn(|| Kernel::find(&Cache::at(path)).unwrap())).collect();
        finders.into_iter().map(|finder| finder.join().unwrap()).collect()
    });
    assert!(found.iter().all(|kernel| *kernel == first));
    assert_eq!(std::fs::read_dir(path).unwrap().count(), 2);
    // The unpacked file gives the same result.
    let unpacked = Kernel::open(&first.image, Arch::host(), &Cache::at(Path::new("/nonexistent"))).unwrap();
    assert_eq!((unpacked.release, unpacked.modules), (first.release, first.modules));
}
