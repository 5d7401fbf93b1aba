//! A library that lets a kernel of User-Mode Linux run on processors with AMX: see `xsave.c`.

use std::fs::File;
use std::io::{self, Write};
use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, memfd_create};

/// `xsave.c`, compiled; empty unless this program was built for x86-64.
const LIBRARY: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/xsave.so"));

/// Environment variable by which the dynamic linker loads it (ld.so(8)). A static program has none: such a kernel must know AMX itself.
pub(super) const VARIABLE: &str = "LD_PRELOAD";

/// The library as a file without a name.
///
/// # Errors
/// There is no memory for it.
pub(super) fn library() -> io::Result<OwnedFd> {
    let mut file = File::from(memfd_create("xsave.so", MemfdFlags::CLOEXEC)?);
    file.write_all(LIBRARY)?;
    Ok(file.into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsRawFd;
    use std::process::Command;

    /// Traces a process: sets its registers from a part of an XSAVE area, which fails on every processor whose area is
    /// longer, and reads its memory.
    const TRACER: &str = r#"
import ctypes, os, signal
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.restype = ctypes.c_long
libc.ptrace.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
class Iovec(ctypes.Structure):
    _fields_ = [('base', ctypes.c_void_p), ('length', ctypes.c_size_t)]
word = ctypes.c_long(0x123456789abcdef)
pid = os.fork()
if pid == 0:
    libc.ptrace(0, 0, None, None)
    os.kill(os.getpid(), signal.SIGSTOP)
    os._exit(7)
os.waitpid(pid, 0)
def area(request, buffer, length):
    part = Iovec(ctypes.addressof(buffer), length)
    result = libc.ptrace(request, pid, 0x202, ctypes.addressof(part))
    return result, part.length
GET, SET = 0x4204, 0x4205
before, after = ctypes.create_string_buffer(65536), ctypes.create_string_buffer(65536)
result, length = area(GET, before, 65536)
assert result == 0 and length > 576, (result, length)
# The first register for vectors, and that it is in use.
before[160:176] = b'sixteen bytes...'
before[512] = bytes([before.raw[512] | 2])
print('part', area(SET, before, 576)[0], ctypes.get_errno())
assert area(GET, after, 65536) == (0, length)
print('register', after.raw[160:176].decode())
print('rest', set(after.raw[832:length]) <= {0})
print('word', libc.ptrace(2, pid, ctypes.addressof(word), None) == word.value)
print('nowhere', libc.ptrace(2, pid, 8, None), ctypes.get_errno() != 0)
print('ended', libc.ptrace(7, pid, None, None), os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"#;

    #[test]
    fn a_part_of_the_registers_can_be_set() {
        let library = library().unwrap();
        let (process, number) = (std::process::id(), library.as_raw_fd());
        let traced = Command::new("/usr/bin/python3")
            .args(["-c", TRACER])
            .env(VARIABLE, format!("/proc/{process}/fd/{number}"))
            .output()
            .unwrap();
        let (said, errors) = (String::from_utf8_lossy(&traced.stdout), String::from_utf8_lossy(&traced.stderr));
        let expected = "part 0 0\nregister sixteen bytes...\nrest True\nword True\nnowhere -1 True\nended 0 7\n";
        assert_eq!((&*said, &*errors), (expected, ""));
    }
}
