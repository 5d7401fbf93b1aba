//! Compiles the guest's agent (`agent/*.c`) into a static program that the library embeds, and the library for a kernel of User-Mode Linux
//! (`src/uml/xsave.c`).
//!
//! `INARCH_AGENT_CC` names the compiler, with options; the default is `musl-gcc`, then `cc`. For guests of other architectures it
//! is compiled by Debian's cross compilers, or what `INARCH_AGENT_CC_RISCV64` and the like name. Without one of them, this
//! program has no agent for that architecture, and says so when it is asked for one.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

const FLAGS: [&str; 6] = ["-Os", "-s", "-std=gnu11", "-D_GNU_SOURCE", "-Wall", "-Wextra"];

/// Flags of the agent.
const PROGRAM: [&str; 4] = ["-static", "-Wno-unused-result", "-ffunction-sections", "-Wl,--gc-sections"];

/// Flags of the library. It takes what it needs from the C library of the program that loads it, be that glibc or musl.
const LIBRARY: [&str; 4] = ["-shared", "-nostdlib", "-fPIC", "-fno-stack-protector"];

fn main() {
    let agent = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../agent");
    println!("cargo::rerun-if-env-changed=INARCH_AGENT_CC");
    println!("cargo::rerun-if-changed={}", agent.display());
    let directory = PathBuf::from(env::var_os("OUT_DIR").expect("Cargo sets OUT_DIR"));
    let out = directory.join("agent");
    let sources = sources(&agent);
    for arch in ["x86_64", "riscv64", "aarch64"] {
        compile_foreign(arch, &sources, &directory.join(format!("agent-{arch}")));
    }
    let xsave = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/uml/xsave.c");
    println!("cargo::rerun-if-changed={}", xsave.display());
    let library = directory.join("xsave.so");
    write_empty(&library);
    let is_x86 = env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|own| own == "x86_64");
    let mut failures = Vec::new();
    for compiler in compilers() {
        let both = compile(&compiler, &PROGRAM, &sources, &out).and_then(|()| match is_x86 {
            true => compile(&compiler, &LIBRARY, std::slice::from_ref(&xsave), &library),
            false => Ok(()),
        });
        match both {
            Ok(()) => return,
            Err(failure) => failures.push(failure),
        }
    }
    println!(
        "cargo::error=no C compiler could build the guest's agent as a static program; install one (Debian: musl-tools, or \
         gcc with libc6-dev) or name one in INARCH_AGENT_CC"
    );
    for line in failures.iter().flat_map(|failure| failure.lines()) {
        println!("cargo::error={line}");
    }
}

/// The agent for guests of another architecture; an empty file if there is no compiler for it, or for this architecture.
fn compile_foreign(arch: &str, sources: &[PathBuf], out: &Path) {
    let variable = format!("INARCH_AGENT_CC_{}", arch.to_uppercase());
    println!("cargo::rerun-if-env-changed={variable}");
    let named = env::var(&variable).ok().filter(|compiler| !compiler.trim().is_empty());
    let is_own = env::var("CARGO_CFG_TARGET_ARCH").is_ok_and(|own| own == arch);
    let compiler = named.clone().unwrap_or_else(|| format!("{arch}-linux-gnu-gcc"));
    let result = if is_own { Err(String::new()) } else { compile(&compiler, &PROGRAM, sources, out) };
    if let Err(failure) = result {
        for line in failure.lines().filter(|_| named.is_some()) {
            println!("cargo::error={line}");
        }
        write_empty(out);
    }
}

/// For what is not compiled: the library embeds a file anyway.
fn write_empty(out: &Path) {
    fs::write(out, b"").unwrap_or_else(|error| panic!("cannot write {}: {error}", out.display()));
}

fn compilers() -> Vec<String> {
    match env::var("INARCH_AGENT_CC") {
        Ok(compiler) if !compiler.trim().is_empty() => vec![compiler],
        _ => vec!["musl-gcc".to_owned(), "cc".to_owned()],
    }
}

fn sources(agent: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(agent).unwrap_or_else(|error| panic!("cannot read {}: {error}", agent.display()));
    let mut sources: Vec<PathBuf> = entries.filter_map(|entry| Some(entry.ok()?.path())).collect();
    sources.retain(|path| path.extension().is_some_and(|extension| extension == "c"));
    sources.sort();
    sources
}

fn compile(compiler: &str, flags: &[&str], sources: &[PathBuf], out: &Path) -> Result<(), String> {
    let mut words = compiler.split_whitespace();
    let program = words.next().unwrap_or_default();
    let mut command = Command::new(program);
    command.args(words).args(FLAGS).args(flags).arg("-o").arg(out).args(sources);
    let output = command.output().map_err(|error| format!("{compiler}: {error}"))?;
    if !output.status.success() {
        return Err(format!("{compiler}: {}", String::from_utf8_lossy(&output.stderr).trim()));
    }
    Ok(())
}
