//! What `inarch disk inspect` found as XML, with the elements of virt-inspector(1).

use inarch_jobs::guest::{Database, Inspection};

use crate::chart::escaped;

/// The operating systems of a disk.
pub fn inspections(all: &[Inspection]) -> String {
    let mut out = Xml(String::from("<?xml version=\"1.0\"?>\n"), 0);
    out.within("operatingsystems", &[], |out| all.iter().for_each(|one| inspection(out, one)));
    out.0
}

fn inspection(out: &mut Xml, found: &Inspection) {
    let system = &found.system;
    // The version before and after its first point.
    let version = system.version.as_deref().map(|version| version.split_once('.').unwrap_or((version, "0")));
    out.within("operatingsystem", &[], |out| {
        out.text("root", Some(&found.root));
        out.text("name", system.kind);
        out.text("arch", system.arch.map(|arch| if arch == "i686" { "i386" } else { arch }));
        out.text("distro", system.distribution.as_deref());
        out.text("product_name", system.name.as_deref());
        out.text("product_variant", system.variant.as_deref());
        out.text("major_version", version.map(|(major, _)| major));
        out.text("minor_version", version.map(|(_, minor)| minor));
        out.text("build_id", system.build.as_deref());
        out.text("package_format", system.packaging.filter(|kind| *kind != Database::Windows).map(Database::name));
        out.text("hostname", system.hostname.as_deref());
        out.within("mountpoints", &[], |out| {
            out.element("mountpoint", &[("dev", &found.root)], "/");
            for (mount, volume) in found.mounts.iter().filter(|(mount, _)| mount.directory != "/") {
                out.element("mountpoint", &[("dev", volume.as_ref().unwrap_or(&mount.device))], &mount.directory);
            }
        });
        out.within("filesystems", &[], |out| {
            for (name, content) in &found.volumes {
                out.within("filesystem", &[("dev", name)], |out| {
                    out.text("type", Some(content.format));
                    out.text("label", content.label.as_deref());
                    out.text("uuid", content.uuid.as_deref());
                });
            }
        });
        if !found.drives.is_empty() {
            out.within("drive_mappings", &[], |out| {
                for (letter, volume) in &found.drives {
                    out.element(
                        "drive_mapping",
                        &[("name", &letter.to_string())],
                        volume.as_deref().unwrap_or_default(),
                    );
                }
            });
        }
        if let Some(packages) = &system.packages {
            out.within("applications", &[], |out| {
                for package in packages {
                    out.within("application", &[], |out| {
                        out.text("name", Some(&package.name));
                        out.text("version", Some(&package.version));
                        out.text("arch", package.arch.as_deref());
                    });
                }
            });
        }
    });
}

/// A document, and how deep the next element lies in it.
struct Xml(String, usize);

impl Xml {
    /// An element with others in it.
    fn within(&mut self, name: &str, attributes: &[(&str, &str)], fill: impl FnOnce(&mut Xml)) {
        self.start(name, attributes);
        self.0 += ">\n";
        self.1 += 1;
        fill(self);
        self.1 -= 1;
        self.indent();
        self.0 += &format!("</{name}>\n");
    }

    /// An element with text; none if there is no text.
    fn text(&mut self, name: &str, text: Option<&str>) {
        if let Some(text) = text {
            self.element(name, &[], text);
        }
    }

    fn element(&mut self, name: &str, attributes: &[(&str, &str)], text: &str) {
        self.start(name, attributes);
        self.0 += &format!(">{}</{name}>\n", escaped(text));
    }

    fn start(&mut self, name: &str, attributes: &[(&str, &str)]) {
        self.indent();
        self.0 += &format!("<{name}");
        for (name, value) in attributes {
            self.0 += &format!(" {name}=\"{}\"", escaped(value));
        }
    }

    fn indent(&mut self) {
        self.0.extend(std::iter::repeat_n("  ", self.1));
    }
}
