//! Promise: a guest's program runs as it is stored, although the memory that it is read into held another program before.

use std::fs;
use std::process::Command;

use crate::support::{assert_status, run_script, scratch, stdout};

/// Programs of the same layout: each has functions at the starts of its pages, which return other numbers in each.
const PAGES: usize = 64;
const PROGRAMS: usize = 4;

fn source(program: usize) -> String {
    let mut source = String::from("#include <stdio.h>\n");
    for page in 0..PAGES {
        source += &format!(
            "__attribute__((aligned(4096), noinline)) int f{page}(int n) {{ return n * {} + {page}; }}\n",
            program + 2
        );
    }
    source += "int main(int count, char **words) { long sum = 0; (void)words;\n";
    for page in 0..PAGES {
        source += &format!("sum += f{page}(count);\n");
    }
    source + "printf(\"%ld\\n\", sum); return 0; }\n"
}

/// A processor that is translated keeps translations of the programs that it ran. The files are read by a server, which
/// QEMU does not see writing into the guest's memory.
#[test]
fn by_every_way_of_a_translated_guest() {
    const WAYS: [&str; 5] = ["ext4", "erofs", "squashfs", "virtiofs", "9p"];
    let dir = scratch();
    let tree = dir.path().join("tree");
    fs::create_dir(&tree).unwrap();
    let mut expected = String::new();
    for program in 0..PROGRAMS {
        let file = dir.path().join(format!("{program}.c"));
        fs::write(&file, source(program)).unwrap();
        let built =
            Command::new("gcc").args(["-O1", "-static", "-o"]).arg(tree.join(program.to_string())).arg(file).status();
        assert!(built.unwrap().success());
        expected += &format!("{}\n", PAGES * (program + 2) + PAGES * (PAGES - 1) / 2);
    }
    let trees = WAYS.map(|way| format!("--tree={}:/trees/{way},via={way}", tree.display()));
    let options: Vec<&str> = trees.iter().map(String::as_str).chain(["-u", "0"]).collect();
    let script = "
        for round in $(seq 6); do for way in ext4 erofs squashfs virtiofs 9p; do
            for program in /trees/$way/[0-9]*; do
                echo 3 > /proc/sys/vm/drop_caches
                $program
            done
        done; done";
    let output = run_script(dir.path(), &options, script, b"");
    assert_status(&output, 0);
    let lines: Vec<&str> = expected.lines().collect();
    for (place, line) in stdout(&output).lines().enumerate() {
        let (way, program) = (WAYS[place / PROGRAMS % WAYS.len()], place % PROGRAMS);
        assert_eq!(line, lines[program], "program {program} by {way}, run {place}");
    }
    assert_eq!(stdout(&output), expected.repeat(6 * WAYS.len()));
}
