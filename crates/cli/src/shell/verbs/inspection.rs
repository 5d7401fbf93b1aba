//! Verbs that tell which operating systems are on the drives.

use anyhow::{Context, anyhow};
use inarch_jobs::guest::{Database, Inspection, Package};
use inarch_jobs::shown;

use super::print::{Fields, lines, list};
use super::{Call, Shell, Verb, aliased, verb};

pub const VERBS: &[Verb] = &[
    aliased("inspect-os", &["inspect-get-roots"], "", "list the devices that hold an operating system", roots),
    verb("inspect-get-type", "ROOT", "print linux or windows", kind),
    verb("inspect-get-distro", "ROOT", "print the distribution's short name", distribution),
    verb("inspect-get-product-name", "ROOT", "print the system's name and version", name),
    verb("inspect-get-major-version", "ROOT", "print the first number of its version, or 0", major),
    verb("inspect-get-minor-version", "ROOT", "print the second number of its version, or 0", minor),
    verb("inspect-get-arch", "ROOT", "print its architecture", arch),
    verb("inspect-get-hostname", "ROOT", "print its name in the network", hostname),
    verb(
        "inspect-get-package-format",
        "ROOT",
        "print how its packages are kept: deb, rpm, apk, pacman",
        package_format,
    ),
    verb("inspect-get-package-management", "ROOT", "print what installs them: apt, dnf, apk, pacman", package_tool),
    aliased("inspect-list-applications2", &["inspect-list-applications"], "ROOT", "list its packages", applications),
    verb("inspect-get-mountpoints", "ROOT", "print what it mounts where", mountpoints),
    verb("inspect-get-filesystems", "ROOT", "list the devices that it mounts", filesystems),
];

type Done = anyhow::Result<()>;

/// The system on a device.
fn system(shell: &mut Shell, call: &Call<'_>) -> anyhow::Result<Inspection> {
    let device = shell.session.block(call.text(0)?)?.name;
    let systems = shell.session.systems()?;
    let found = systems.iter().find(|system| system.root == device).cloned();
    found.with_context(|| format!("{device}: it holds no operating system; inspect-os lists those that do"))
}

/// Prints what may not be known.
fn known(call: &mut Call<'_>, text: Option<&str>) -> Done {
    call.line(text.map_or_else(|| "unknown".to_owned(), |text| shown(text.as_ref())))
}

fn roots(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let roots: Vec<String> = shell.session.systems()?.iter().map(|system| shown(system.root.as_ref())).collect();
    lines(call, roots)
}

fn kind(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let found = system(shell, call)?;
    known(call, found.system.kind)
}

fn distribution(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let found = system(shell, call)?.system;
    known(call, found.distribution.as_deref().or(found.kind.filter(|kind| *kind == "windows")))
}

fn name(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let found = system(shell, call)?;
    known(call, found.system.name.as_deref())
}

/// Prints one number of the version, counted from 0: 12 and 5 of 12.5. A missing number is 0.
fn version(shell: &mut Shell, call: &mut Call<'_>, place: usize) -> Done {
    let version = system(shell, call)?.system.version.unwrap_or_default();
    let numbers = version.split(|letter: char| !letter.is_ascii_digit()).filter(|number| !number.is_empty());
    let number: u64 = numbers.skip(place).find_map(|number| number.parse().ok()).unwrap_or(0);
    call.line(number)
}

fn major(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    version(shell, call, 0)
}

fn minor(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    version(shell, call, 1)
}

fn arch(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let found = system(shell, call)?;
    // libguestfs's names for some machines of uname(1).
    known(
        call,
        found.system.arch.map(|arch| match arch {
            "i686" => "i386",
            "armv7l" => "arm",
            other => other,
        }),
    )
}

fn hostname(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let found = system(shell, call)?;
    known(call, found.system.hostname.as_deref())
}

fn package_format(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let found = system(shell, call)?;
    // What Windows lists is of no package format.
    known(call, found.system.packaging.filter(|packaging| *packaging != Database::Windows).map(Database::name))
}

fn package_tool(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let found = system(shell, call)?.system;
    let is_suse = found.distribution.as_deref().is_some_and(|name| name.contains("suse") || name == "sles");
    known(
        call,
        found.packaging.map(|packaging| match packaging {
            Database::Deb => "apt",
            Database::Rpm if is_suse => "zypper",
            Database::Rpm => "dnf",
            Database::Apk => "apk",
            Database::Pacman => "pacman",
            Database::Windows => "unknown",
        }),
    )
}

fn applications(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let found = system(shell, call)?;
    let packages = found.system.packages.ok_or_else(|| anyhow!("{}: its list of packages is not read", found.root))?;
    let fields = |package: &Package| -> Fields {
        let arch = package.arch.as_deref().unwrap_or_default();
        let version = &*package.version;
        let (epoch, version) = version.split_once(':').unwrap_or(("0", version));
        let (version, release) = version.rsplit_once('-').unwrap_or((version, ""));
        let all = [
            ("app2_name", &*package.name),
            ("app2_epoch", epoch),
            ("app2_version", version),
            ("app2_release", release),
            ("app2_arch", arch),
        ];
        all.into_iter().map(|(name, value)| (name, shown(value.as_ref()))).collect()
    };
    list(call, &packages.iter().map(fields).collect::<Vec<_>>())
}

/// What a system mounts: directories and devices, the root first.
fn mounted(shell: &mut Shell, call: &Call<'_>) -> anyhow::Result<Vec<(String, String)>> {
    let found = system(shell, call)?;
    let mut all = vec![("/".to_owned(), found.root)];
    for (mount, volume) in found.mounts {
        if let Some(volume) = volume.filter(|_| mount.directory != "/") {
            all.push((shown(mount.directory.as_ref()), shown(volume.as_ref())));
        }
    }
    Ok(all)
}

fn mountpoints(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let all = mounted(shell, call)?;
    all.iter().try_for_each(|(directory, device)| call.line(format_args!("{directory}: {device}")))
}

fn filesystems(shell: &mut Shell, call: &mut Call<'_>) -> Done {
    let mut devices: Vec<String> = mounted(shell, call)?.into_iter().map(|(_, device)| device).collect();
    devices.sort();
    devices.dedup();
    lines(call, devices)
}
