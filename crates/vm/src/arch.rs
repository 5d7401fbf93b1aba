//! [`Arch`]: the architecture of a guest, and what depends on it alone: names, packages, QEMU's binary.

use std::fmt;
use std::str::FromStr;

/// The architecture of a guest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Arch {
    /// 64-bit x86.
    X86_64,
    /// 64-bit RISC-V, little-endian.
    Riscv64,
    /// 64-bit ARM, little-endian.
    Aarch64,
}

impl Arch {
    /// All of them.
    pub const ALL: [Arch; 3] = [Arch::X86_64, Arch::Riscv64, Arch::Aarch64];

    /// The architecture that this program was built for. On any other than [`Arch::ALL`], that is x86-64: guests of it run
    /// everywhere, translated.
    pub const fn host() -> Arch {
        if cfg!(target_arch = "riscv64") {
            Arch::Riscv64
        } else if cfg!(target_arch = "aarch64") {
            Arch::Aarch64
        } else {
            Arch::X86_64
        }
    }

    /// Its name, as `uname -m` prints it.
    pub const fn name(self) -> &'static str {
        match self {
            Arch::X86_64 => "x86_64",
            Arch::Riscv64 => "riscv64",
            Arch::Aarch64 => "aarch64",
        }
    }

    /// Its name in Debian, as `dpkg --print-architecture` prints it. Container images have the same names for these.
    pub const fn debian(self) -> &'static str {
        match self {
            Arch::X86_64 => "amd64",
            Arch::Riscv64 => "riscv64",
            Arch::Aarch64 => "arm64",
        }
    }

    /// QEMU's binary for it.
    pub const fn qemu(self) -> &'static str {
        match self {
            Arch::X86_64 => "qemu-system-x86_64",
            Arch::Riscv64 => "qemu-system-riscv64",
            Arch::Aarch64 => "qemu-system-aarch64",
        }
    }

    /// The package of Debian 12 that has [`Arch::qemu`].
    pub const fn qemu_package(self) -> &'static str {
        match self {
            Arch::X86_64 => "qemu-system-x86",
            Arch::Riscv64 => "qemu-system-misc",
            Arch::Aarch64 => "qemu-system-arm",
        }
    }

    /// The environment variable that names another binary of QEMU: `INARCH_QEMU` for this machine's own architecture.
    pub const fn qemu_variable(self) -> &'static str {
        match self {
            _ if self as u8 == Arch::host() as u8 => "INARCH_QEMU",
            Arch::X86_64 => "INARCH_QEMU_X86_64",
            Arch::Riscv64 => "INARCH_QEMU_RISCV64",
            Arch::Aarch64 => "INARCH_QEMU_AARCH64",
        }
    }

    /// The Debian packages with which this program's build makes an agent for it.
    pub const fn compiler_packages(self) -> &'static str {
        match self {
            Arch::X86_64 => "gcc-x86-64-linux-gnu libc6-dev-amd64-cross",
            Arch::Riscv64 => "gcc-riscv64-linux-gnu libc6-dev-riscv64-cross",
            Arch::Aarch64 => "gcc-aarch64-linux-gnu libc6-dev-arm64-cross",
        }
    }

    /// Debian's package of its kernel.
    pub const fn kernel_package(self) -> &'static str {
        match self {
            Arch::X86_64 => "linux-image-amd64",
            Arch::Riscv64 => "linux-image-riscv64",
            Arch::Aarch64 => "linux-image-arm64",
        }
    }
}

impl fmt::Display for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Arch {
    type Err = String;

    /// Takes the name of `uname -m` and Debian's.
    fn from_str(text: &str) -> Result<Arch, String> {
        let found = Arch::ALL.into_iter().find(|arch| text == arch.name() || text == arch.debian());
        found.ok_or_else(|| format!("{text}: not one of x86_64 (amd64), riscv64, aarch64 (arm64)"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_names_are_understood() {
        for arch in Arch::ALL {
            assert_eq!([arch.name().parse(), arch.debian().parse()], [Ok(arch), Ok(arch)]);
        }
        assert!("mips".parse::<Arch>().unwrap_err().contains("riscv64"));
        assert_eq!(Arch::host().qemu_variable(), "INARCH_QEMU");
    }
}
