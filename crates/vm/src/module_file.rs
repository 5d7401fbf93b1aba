//! Strips a kernel module's file so that it loads faster. It drops data that costs an emulated processor most of the
//! loading time and nothing needs. Only a kernel that accepts unsigned modules loads the result.

use crate::kernel::elf::{is_elf64, is_x86_64};
use crate::kernel::fields::{le16, le32, le64};

/// The magic that follows a module's signature (`MODULE_SIG_STRING` of the kernel's
/// `include/linux/module_signature.h`).
const SIGNATURE_MAGIC: &[u8] = b"~Module signature appended~\n";
/// `struct module_signature` before the magic; its last 4 bytes are the signature's length, big-endian.
const SIGNATURE_TRAILER: usize = 12;

/// The module without the signature at its end.
///
/// Checking the signatures of a guest's dozen modules takes an emulated processor about 700 million instructions, five
/// times everything else between the agent's start and the command's.
fn without_signature(module: &[u8]) -> &[u8] {
    let unsigned = || {
        let (_, length) = module.strip_suffix(SIGNATURE_MAGIC)?.split_last_chunk::<4>()?;
        let signature =
            (u32::from_be_bytes(*length) as usize).checked_add(SIGNATURE_TRAILER + SIGNATURE_MAGIC.len())?;
        module.get(..module.len().checked_sub(signature)?)
    };
    unsigned().unwrap_or(module)
}

/// Sections that list places which the kernel patches one by one when it loads the module. Places that are not listed
/// stay as compiled, which works too:
///
/// - A static call (Linux's `include/linux/static_call.h`) goes to a trampoline that jumps to the current target.
///   Patching hundreds of them into direct calls, mostly of `might_sleep()`, takes three steps for each, and each step
///   interrupts every processor: two thirds of ext4's loading time under TCG (150 of 230 ms).
/// - A return (`.return_sites`) jumps to the return thunk, and an indirect call (`.retpoline_sites`) to its thunk: as
///   safe as the kernel requires, and one jump more. Patching 1,400 places of ext4 takes 10 ms.
/// - `__mcount_loc` lists a module's function-tracer calls, which are no-ops from the start.
const DROPPED: [&[u8]; 4] = [b".static_call_sites", b".return_sites", b".retpoline_sites", b"__mcount_loc"];

/// Returns the module without its signature and its lists of places to patch.
pub fn quick_to_load(mut module: Vec<u8>) -> Vec<u8> {
    module.truncate(without_signature(&module).len());
    // Other architectures patch other places.
    for list in if is_x86_64(&module) { DROPPED.as_slice() } else { &[] } {
        if let Some(header) = section_header(&module, list)
            && let Some(header) = module.get_mut(header..header + SECTION_SIZE)
        {
            // A section without SHF_ALLOC is neither loaded nor relocated. Most of the kernel then ignores it
            // (`find_sec` in kernel/module/main.c), but arch/x86/kernel/module.c looks for the name alone, so the name
            // is cleared too.
            header[SECTION_NAME..][..4].fill(0);
            header[SECTION_FLAGS..][..8].fill(0);
        }
    }
    module
}

/// Offsets in an ELF-64 header of the section table's position (`e_shoff`), its length and its string table (`e_shnum`,
/// `e_shstrndx`).
const SECTIONS: usize = 0x28;
const SECTION_COUNT: usize = 0x3c;
const NAMES_INDEX: usize = 0x3e;
/// Size of a section header, and the offsets of its name, flags, content offset and content size (`Elf64_Shdr`).
const SECTION_SIZE: usize = 64;
const SECTION_NAME: usize = 0;
const SECTION_FLAGS: usize = 8;
const SECTION_OFFSET: usize = 24;
const SECTION_LENGTH: usize = 32;

/// What a module says of itself: `NAME=VALUE`, each ended by a NUL (`MODULE_INFO` of the kernel's
/// `include/linux/moduleparam.h`).
pub fn statements(module: &[u8]) -> impl Iterator<Item = (&str, &str)> {
    let section = || {
        let header = section_header(module, b".modinfo")?;
        let field = |field: usize| usize::try_from(le64(module, header.checked_add(field)?)?).ok();
        let start = field(SECTION_OFFSET)?;
        module.get(start..start.checked_add(field(SECTION_LENGTH)?)?)
    };
    let statements = section().unwrap_or_default().split(|byte| *byte == 0);
    statements.filter_map(|statement| std::str::from_utf8(statement).ok()?.split_once('='))
}

/// The offset in an ELF file of the section header for the section `name`.
fn section_header(file: &[u8], name: &[u8]) -> Option<usize> {
    if !is_elf64(file) {
        return None;
    }
    let table = usize::try_from(le64(file, SECTIONS)?).ok()?;
    let header = |index: u16| table.checked_add(usize::from(index).checked_mul(SECTION_SIZE)?);
    let names = le64(file, header(le16(file, NAMES_INDEX)?)?.checked_add(SECTION_OFFSET)?)?;
    let names = file.get(usize::try_from(names).ok()?..)?;
    (0..le16(file, SECTION_COUNT)?).find_map(|index| {
        let header = header(index)?;
        let at = usize::try_from(le32(file, header.checked_add(SECTION_NAME)?)?).ok()?;
        let found = names.get(at..)?.strip_prefix(name)?.first() == Some(&0);
        (found && file.len() - header >= SECTION_SIZE).then_some(header)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_signature_is_cut_off_and_nonsense_is_left_alone() {
        let signed = [&b"module"[..], b"12345", &[0; 8], &5u32.to_be_bytes(), SIGNATURE_MAGIC].concat();
        assert_eq!(without_signature(&signed), b"module");
        assert_eq!(without_signature(b"module"), b"module");
        let too_long = [&b"module"[..], &[0; 8], &u32::MAX.to_be_bytes(), SIGNATURE_MAGIC].concat();
        assert_eq!(without_signature(&too_long), too_long);
        assert_eq!(without_signature(SIGNATURE_MAGIC), SIGNATURE_MAGIC);
    }

    /// An ELF file with these empty sections, all of them loadable.
    fn elf(sections: &[&str]) -> Vec<u8> {
        let mut names = vec![0];
        let mut headers = vec![[0u8; SECTION_SIZE]; sections.len() + 1];
        for (header, name) in headers.iter_mut().zip(sections) {
            header[..4].copy_from_slice(&(names.len() as u32).to_le_bytes());
            header[SECTION_FLAGS] = 2;
            names.extend([name.as_bytes(), b"\0"].concat());
        }
        let mut file = vec![0; SECTION_SIZE];
        file[..6].copy_from_slice(b"\x7fELF\x02\x01");
        file[18..20].copy_from_slice(&62u16.to_le_bytes());
        file[SECTIONS] = SECTION_SIZE as u8;
        file[SECTION_COUNT] = headers.len() as u8;
        file[NAMES_INDEX] = sections.len() as u8;
        let offset = (SECTION_SIZE * (headers.len() + 1)) as u64;
        headers.last_mut().unwrap()[SECTION_OFFSET..][..8].copy_from_slice(&offset.to_le_bytes());
        file.extend(headers.concat());
        file.extend(names);
        file
    }

    fn changed(before: &[u8], after: &[u8]) -> Vec<usize> {
        (0..before.len()).filter(|at| before[*at] != after[*at]).collect()
    }

    /// The sections whose name or flags are not 0.
    fn dropped(sections: &[usize]) -> Vec<usize> {
        sections.iter().flat_map(|at| [SECTION_NAME, SECTION_FLAGS].map(|field| SECTION_SIZE * at + field)).collect()
    }

    #[test]
    fn only_the_lists_of_places_to_patch_are_no_longer_loaded() {
        let file = elf(&[".text", ".static_call_sites_x", ".rela.static_call_sites", ".static_call_sites", ".data"]);
        let quick = quick_to_load(file.clone());
        assert_eq!(changed(&file, &quick), dropped(&[4]));
        assert!(changed(&file, &quick).iter().all(|at| quick[*at] == 0));
        let other = elf(&[".text", ".data"]);
        assert_eq!(quick_to_load(other.clone()), other);
        let file = elf(&["__mcount_loc", ".text", ".return_sites", ".retpoline_sites", ".orc_unwind"]);
        let quick = quick_to_load(file.clone());
        assert_eq!(changed(&file, &quick), dropped(&[1, 3, 4]));
    }

    #[test]
    fn nonsense_is_left_alone() {
        let file = elf(&[".text", ".static_call_sites"]);
        for end in 0..file.len() {
            assert_eq!(quick_to_load(file[..end].to_vec()).len(), end);
        }
        for at in 0..file.len() {
            let mut broken = file.clone();
            broken[at] ^= 0xff;
            assert_eq!(quick_to_load(broken).len(), file.len());
        }
    }
}
