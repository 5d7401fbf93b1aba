//! [`ImageDisk`]: a disk that lies in an image file or is a block device, which QEMU itself opens.
//!
//! Each node of QEMU's block layer is given by name and by format. So QEMU guesses no format, and opens no file merely
//! because an image names it (`backing` is null unless it is given).

use std::ffi::OsString;
use std::os::fd::{AsRawFd, OwnedFd};
use std::os::unix::ffi::OsStringExt;

use serde_json::{Value, json};

use crate::machine::{CommandLine, Endpoint};

/// How a disk lies in its file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ImageFormat {
    /// As it is.
    Raw,
    /// In QEMU's container, versions 2 and 3.
    Qcow2,
}

impl ImageFormat {
    /// Its name, which is that of QEMU's driver.
    pub fn name(self) -> &'static str {
        match self {
            ImageFormat::Raw => "raw",
            ImageFormat::Qcow2 => "qcow2",
        }
    }
}

/// A file of an image.
#[derive(Debug)]
pub struct ImageFile {
    /// A path, or a descriptor whose file QEMU opens anew: the file cannot be exchanged for another one meanwhile.
    pub file: Endpoint,
    /// How the disk lies in it.
    pub format: ImageFormat,
    /// Whether it is a block device.
    pub is_device: bool,
    /// The file that its clusters lie in, which is raw; of a qcow2 image with an external data file.
    pub data: Option<Endpoint>,
}

/// A disk of a machine.
#[derive(Debug)]
pub struct ImageDisk {
    /// Its serial number, by which the guest finds it, and its name within QEMU: at most 20 (`VIRTIO_BLK_ID_BYTES`) letters,
    /// digits and `-`.
    pub serial: String,
    /// The image, and the images below it, each one the backing file of that before.
    pub chain: Vec<ImageFile>,
    /// Whether the guest's writes are refused.
    pub read_only: bool,
    /// Bytes of a logical sector, by which the guest reads the partition table: 512, 1024, 2048 or 4096.
    pub sector: u32,
}

impl ImageDisk {
    /// The disk for a tool of QEMU's that this process starts. Returns what the tool takes in place of a file's name,
    /// and the files that this refers to, which must stay open. The tool opens no others, whatever the image names.
    pub fn for_tool(self) -> (String, Vec<OwnedFd>) {
        let mut line = CommandLine { arguments: Vec::new(), descriptors: Vec::new() };
        let node = line.image_nodes(self.chain, self.read_only).to_string();
        // The tool inherits no descriptors.
        let node = node.replace(OWN_FILES, &format!("/proc/{}/fd/", std::process::id()));
        (format!("json:{node}"), line.descriptors)
    }
}

/// Where a process has its open files.
const OWN_FILES: &str = "/proc/self/fd/";

impl CommandLine {
    /// Adds a disk that QEMU opens.
    pub(crate) fn image(&mut self, disk: ImageDisk) {
        let ImageDisk { serial, chain, read_only, sector } = disk;
        let mut node = self.image_nodes(chain, read_only);
        if let Some(fields) = node.as_object_mut() {
            fields.insert("node-name".to_owned(), Value::String(serial.clone()));
        }
        self.option("-blockdev", text_of(&node));
        // Without these the machine would stop for ever where the host's disk is full.
        let mut device = format!("virtio-blk-pci,drive={serial},serial={serial},rerror=report,werror=report");
        if sector != 512 {
            device.push_str(&format!(",logical_block_size={sector},physical_block_size={sector}"));
        }
        self.option("-device", device);
    }

    /// The image, with those below it.
    fn image_nodes(&mut self, chain: Vec<ImageFile>, read_only: bool) -> Value {
        let mut node = Value::Null;
        let count = chain.len();
        for (place, file) in chain.into_iter().enumerate().rev() {
            // What is below is only read.
            node = self.image_node(file, read_only || place > 0, (place + 1 < count).then_some(node));
        }
        node
    }

    fn image_node(&mut self, file: ImageFile, read_only: bool, below: Option<Value>) -> Value {
        let ImageFile { file, format, is_device, data } = file;
        let mut node = json!({
            "driver": format.name(),
            "read-only": read_only,
            "file": self.protocol_node(file, is_device, read_only),
        });
        let Some(fields) = node.as_object_mut() else { return node };
        if !read_only {
            fields.insert("discard".to_owned(), "unmap".into());
        }
        if format == ImageFormat::Qcow2 {
            fields.insert("backing".to_owned(), below.unwrap_or(Value::Null));
            if let Some(data) = data {
                fields.insert("data-file".to_owned(), self.protocol_node(data, false, read_only));
            }
        }
        node
    }

    fn protocol_node(&mut self, file: Endpoint, is_device: bool, read_only: bool) -> Value {
        let driver = if is_device { "host_device" } else { "file" };
        let path = match file {
            Endpoint::Path(path) => placeholder(path.into_os_string()),
            Endpoint::Descriptor(descriptor) => {
                let path = format!("{OWN_FILES}{}", descriptor.as_raw_fd());
                self.descriptors.push(descriptor);
                path
            }
        };
        let mut node = json!({ "driver": driver, "filename": path, "read-only": read_only, "auto-read-only": false });
        if let (false, Some(fields)) = (read_only, node.as_object_mut()) {
            fields.insert("discard".to_owned(), "unmap".into());
        }
        node
    }
}

/// A path as JSON has it. Bytes that are not UTF-8 are replaced: such a path is only for people to read, as what runs
/// has descriptors.
fn placeholder(path: OsString) -> String {
    String::from_utf8(path.into_vec()).unwrap_or_else(|error| String::from_utf8_lossy(error.as_bytes()).into_owned())
}

fn text_of(node: &Value) -> OsString {
    OsString::from_vec(node.to_string().as_bytes().to_vec())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::ffi::OsStrExt;
    use std::path::Path;

    fn line(disk: ImageDisk) -> Vec<String> {
        let mut line = CommandLine { arguments: Vec::new(), descriptors: Vec::new() };
        line.image(disk);
        line.arguments.iter().map(|word| String::from_utf8_lossy(word.as_bytes()).into_owned()).collect()
    }

    fn file(path: &str, format: ImageFormat) -> ImageFile {
        ImageFile { file: Endpoint::Path(Path::new(path).to_owned()), format, is_device: false, data: None }
    }

    #[test]
    fn nothing_is_guessed_and_nothing_is_opened_that_an_image_names() {
        let chain = vec![file("/a \"b\".qcow2", ImageFormat::Qcow2)];
        let words = line(ImageDisk { serial: "disk1".to_owned(), chain, read_only: false, sector: 512 });
        let device = "virtio-blk-pci,drive=disk1,serial=disk1,rerror=report,werror=report";
        assert_eq!((&*words[0], &*words[2], &*words[3]), ("-blockdev", "-device", device));
        let node: Value = serde_json::from_str(&words[1]).unwrap();
        assert_eq!(
            (&node["driver"], &node["backing"], &node["node-name"]),
            (&json!("qcow2"), &Value::Null, &json!("disk1"))
        );
        assert!(node.as_object().unwrap().contains_key("backing"));
        assert_eq!((&node["file"]["filename"], &node["file"]["driver"]), (&json!("/a \"b\".qcow2"), &json!("file")));
    }

    #[test]
    fn what_lies_below_is_only_read() {
        let chain = vec![file("/top", ImageFormat::Qcow2), file("/base", ImageFormat::Raw)];
        let words = line(ImageDisk { serial: "disk1".to_owned(), chain, read_only: false, sector: 512 });
        let node: Value = serde_json::from_str(&words[1]).unwrap();
        assert_eq!((&node["read-only"], &node["backing"]["read-only"]), (&json!(false), &json!(true)));
        assert_eq!(node["backing"]["file"]["filename"], json!("/base"));
        assert_eq!(node["backing"]["file"].get("discard"), None);
    }
}
