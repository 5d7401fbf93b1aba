//! What the commands that change a guest's disk have in common: the image, and the appliance that does it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use inarch_jobs::Events;
use inarch_jobs::appliance::{Access, Appliance, ApplianceEvent, ApplianceRequest, Isolation, Target};
use inarch_jobs::run::{AttachedDisk, RunEvent, fall_back_is_news};
use inarch_jobs::source::ImageFormat;
use inarch_vm::accel::AccelChoice;

use crate::arguments::one_of;
use crate::output::complain;
use crate::size;
use crate::timings;

/// What IMAGE may be, for the commands that change one.
const IMAGE_HELP: &str = "\
A raw or qcow2 image or a block device, or IMAGE:VOLUME, a volume of one: its number (2), device (/dev/sda2, /dev/vg/root), LABEL=, UUID=, PARTLABEL= \
or PARTUUID=. Without a volume, the whole guest as its fstab has it. A path in it may follow (guest.img:/etc/hosts).";

/// Which image, and the appliance.
#[derive(Args, Debug)]
pub struct WrittenArguments {
    /// The image, raw or qcow2; or a volume of it, or a path in that
    #[arg(value_name = "IMAGE[:VOLUME][:/PATH]", help = IMAGE_HELP)]
    pub image: OsString,

    #[command(flatten)]
    pub machine: ApplianceArguments,
}

/// The appliance.
#[derive(Args, Debug)]
pub struct ApplianceArguments {
    /// Format of the image: raw, or qcow2, which is the default for a name that ends in .qcow2
    #[arg(long, value_name = "raw|qcow2", hide_possible_values = true, value_parser = one_of::<ImageFormat>(["raw", "qcow2"]))]
    pub format: Option<ImageFormat>,

    /// A file that the image asks for: its backing file or data file. No others are opened
    #[arg(long, value_name = "FILE")]
    pub with: Vec<PathBuf>,

    /// Print what took how long; with a FILE, also draw it as an SVG picture
    #[arg(long, value_name = "FILE.svg", num_args = 0..=1, require_equals = true)]
    pub timings: Option<Option<PathBuf>>,

    /// What stands between the image's file systems and this machine: a process (User-Mode Linux), which starts faster, or a
    /// virtual machine (QEMU). By default a process where one can do it
    #[arg(long, value_name = "auto|process|vm", default_value = "auto", hide_possible_values = true, help_heading = "The appliance",
        value_parser = isolation())]
    pub isolate: Isolation,

    /// The appliance's kernel; by default the newest in /boot
    #[arg(long, value_name = "FILE", help_heading = "The appliance")]
    pub kernel: Option<PathBuf>,

    /// Its accelerator
    #[arg(long, value_name = "auto|kvm|tcg", default_value = "auto", hide_possible_values = true, help_heading = "The appliance",
        value_parser = one_of::<AccelChoice>(["auto", "kvm", "tcg"]))]
    pub accel: AccelChoice,

    /// Its memory; by default 512 MiB
    #[arg(short, long, value_name = "SIZE", value_parser = size::parse, help_heading = "The appliance")]
    pub memory: Option<u64>,
}

impl ApplianceArguments {
    /// The request of an appliance.
    pub fn request(&self, target: &Target, access: Access) -> ApplianceRequest {
        let image = AttachedDisk {
            path: target.image.clone(),
            read_only: access.is_read_only(),
            format: self.format,
            sector: None,
            seen: None,
        };
        ApplianceRequest {
            image,
            with: self.with.clone(),
            access,
            isolation: self.isolate,
            kernel: self.kernel.clone(),
            accel: self.accel,
            memory: self.memory,
            ..ApplianceRequest::new(target.image.clone(), target.which.clone())
        }
    }

    /// Starts an appliance.
    pub fn open(&self, target: &Target, access: Access) -> anyhow::Result<Appliance> {
        timings::check(&self.timings)?;
        Ok(Appliance::open(&self.request(target, access), Events::new(tell))?)
    }

    /// Ends an appliance, and prints what took how long if that is wanted.
    pub fn close(&self, appliance: Appliance) -> anyhow::Result<()> {
        let report = appliance.close()?;
        timings::tell(&self.timings, report.timeline.steps())
    }
}

impl WrittenArguments {
    /// The image and the paths in it: those that are given, below the path of the image's word.
    pub fn target(&self, paths: &[PathBuf]) -> anyhow::Result<(Target, Vec<PathBuf>)> {
        let target = Target::parse(&self.image)?;
        let base = Path::new("/").join(&target.path);
        let within = |path: &PathBuf| base.join(path.strip_prefix("/").unwrap_or(path));
        let paths = match (paths, target.path.as_os_str().is_empty()) {
            ([], false) => vec![target.path.clone()],
            (paths, _) => paths.iter().map(within).collect(),
        };
        Ok((target, paths))
    }
}

/// What `--isolate` takes.
pub fn isolation() -> impl TypedValueParser<Value = Isolation> {
    PossibleValuesParser::new(["auto", "process", "vm"]).map(|word| match &*word {
        "process" => Isolation::Process,
        "vm" => Isolation::Vm,
        _ => Isolation::Auto,
    })
}

/// Tells what happens in an appliance.
pub fn tell(event: ApplianceEvent) {
    match event {
        ApplianceEvent::Machine(RunEvent::Acceleration { fall_back: Some(_), .. }) => {
            if fall_back_is_news() {
                complain(
                    "the appliance runs under TCG, which is slower than KVM (inarch doctor says why; this is said once)",
                );
            }
        }
        ApplianceEvent::Machine(event @ (RunEvent::Fault(_) | RunEvent::StartedAgain(_) | RunEvent::Guest(_))) => {
            complain(event);
        }
        ApplianceEvent::Machine(_) | ApplianceEvent::Ended(_) => {}
        ApplianceEvent::Note(line) => complain(line),
    }
}
