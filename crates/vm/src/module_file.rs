//! A kernel module's file, made quick to load: what is dropped costs an emulated processor most of a module's loading and
//! nothing else. A kernel takes such a file only if it takes modules without a signature.

use crate::kernel::elf::is_x86_64;
use crate::kernel::fields::{le16, le32, le64};

/// What follows a module that carries a signature (`MODULE_SIG_STRING` of the kernel's `include/linux/module_signature.h`).
const SIGNATURE_MAGIC: &[u8] = b"~Module signature appended~\n";
/// `struct module_signature` before the magic; its last 4 bytes are the signature's length, big-endian.
const SIGNATURE_TRAILER: usize = 12;

/// The module without the signature at its end.
///
/// Checking the signatures of a guest's dozen modules takes an emulated processor about 700 million instructions, five
/// times what all else between the agent's start and the command's takes.
fn without_signature(module: &[u8]) -> &[u8] {
    let unsigned = || {
        let (_, length) = module.strip_suffix(SIGNATURE_MAGIC)?.split_last_chunk::<4>()?;
        let signature =
            (u32::from_be_bytes(*length) as usize).checked_add(SIGNATURE_TRAILER + SIGNATURE_MAGIC.len())?;
        module.get(..module.len().checked_sub(signature)?)
    };
    unsigned().unwrap_or(module)
}

/// Lists in a module of places that the kernel patches one by one while it loads the module. What is not listed stays as
/// it was compiled, which works as well:
///
/// - A static call (Linux's `include/linux/static_call.h`) goes to a trampoline, which jumps to where the call leads at the
///   moment. Making hundreds of them direct calls, mostly of `might_sleep()`, takes three steps that interrupt every
///   processor for each: two thirds of the time that ext4 takes to load under TCG (150 of 230 ms).
/// - A return (`.return_sites`) jumps to the return thunk, an indirect call (`.retpoline_sites`) goes to its thunk: as safe
///   as the kernel wants them to be, one jump more. Patching 1,400 places of ext4 takes 10 ms.
/// - `__mcount_loc` is what the function tracer knows of a module; its calls are no-ops from the start.
const DROPPED: [&[u8]; 4] = [b".static_call_sites", b".return_sites", b".retpoline_sites", b"__mcount_loc"];

/// The module's content as it is quickest to load: without its signature and its lists of places to patch.
pub fn quick_to_load(mut module: Vec<u8>) -> Vec<u8> {
    module.truncate(without_signature(&module).len());
    for list in DROPPED {
        if let Some(header) = section_header(&module, list)
            && let Some(header) = module.get_mut(header..header + SECTION_SIZE)
        {
            // A section without SHF_ALLOC is neither loaded nor relocated. Most of the kernel does not find it then (`find_sec`
            // in kernel/module/main.c), but arch/x86/kernel/module.c goes by the name alone, so that goes too.
            header[SECTION_NAME..][..4].fill(0);
            header[SECTION_FLAGS..][..8].fill(0);
        }
    }
    module
}

/// Where an ELF-64 file's header has its section table (`e_shoff`), its size and its entry of names (`e_shnum`,
/// `e_shstrndx`).
const SECTIONS: usize = 0x28;
const SECTION_COUNT: usize = 0x3c;
const NAMES_INDEX: usize = 0x3e;
/// Bytes of an entry of the section table, and where its name, flags and content's offset are (`Elf64_Shdr`).
const SECTION_SIZE: usize = 64;
const SECTION_NAME: usize = 0;
const SECTION_FLAGS: usize = 8;
const SECTION_OFFSET: usize = 24;

/// Where in an ELF file the entry of the section table for the section called `name` is.
fn section_header(file: &[u8], name: &[u8]) -> Option<usize> {
    if !is_x86_64(file) {
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

    /// An ELF file with no content and these sections, all of them to be loaded.
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

    /// Where something other than 0 is in the name and the flags of these sections.
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
