//! What the commands that change a guest's disk have in common: the image, and the appliance that does it.

use std::ffi::OsString;
use std::path::{Path, PathBuf};

use clap::Args;
use inarch_jobs::appliance::{Access, Appliance, ApplianceError, ApplianceEvent, ApplianceRequest, Target, Timeline};
use inarch_jobs::run::{AttachedDisk, RunEvent, fall_back_is_news};
use inarch_jobs::source::ImageFormat;
use inarch_jobs::{Events, shown};
use inarch_vm::accel::AccelChoice;

use crate::arguments::one_of;
use crate::columns::columns;
use crate::output::{complain, introduce};
use crate::size;

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

    /// Print what took how long
    #[arg(long)]
    pub timings: bool,

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
        };
        ApplianceRequest {
            image,
            with: self.with.clone(),
            access,
            kernel: self.kernel.clone(),
            accel: self.accel,
            memory: self.memory,
            ..ApplianceRequest::new(target.image.clone(), target.which.clone())
        }
    }

    /// Starts an appliance.
    pub fn open(&self, target: &Target, access: Access) -> Result<Appliance, ApplianceError> {
        Appliance::open(&self.request(target, access), Events::new(tell))
    }

    /// Ends an appliance, and prints what took how long if that is wanted.
    pub fn close(&self, appliance: Appliance) -> Result<(), ApplianceError> {
        let report = appliance.close()?;
        if self.timings {
            introduce(&told(&report.timeline));
        }
        Ok(())
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

/// A time line as text: a bar for each step.
pub fn told(timeline: &Timeline) -> String {
    const WIDTH: f64 = 40.0;
    let total = timeline.total().as_secs_f64().max(0.001);
    let row = |step: &inarch_jobs::appliance::Step| {
        let (began, took) = (step.began.as_secs_f64(), step.took.as_secs_f64());
        let before = (began / total * WIDTH) as usize;
        let length =
            ((took / total * WIDTH).round() as usize).clamp(1, WIDTH as usize + 1 - before.min(WIDTH as usize));
        let place = if step.in_guest { "guest" } else { "host" };
        let bar = format!("{}{}", " ".repeat(before), "#".repeat(length));
        vec![format!("{began:.3}"), format!("{took:.3}"), place.to_owned(), shown(Path::new(&step.what)), bar]
    };
    let heads = ["AT", "SECONDS", "WHERE", "WHAT", ""].map(str::to_owned).to_vec();
    let rows: Vec<_> = [heads].into_iter().chain(timeline.steps().iter().map(row)).collect();
    columns(&rows, &[0, 1]) + &format!("{total:.3} s in all\n")
}
