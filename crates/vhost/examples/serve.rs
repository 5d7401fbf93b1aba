//! Serves a raw file as a vhost-user-blk disk: `serve SOCKET FILE [QUEUES]`.

use std::error::Error;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixListener;
use std::sync::Arc;

use inarch_vhost::Pending;
use inarch_vhost::blk::{BlkOptions, BlkServer, BlockDevice, StopHandle};
use vm_memory::{Bytes, VolatileSlice};

/// A raw disk image.
struct RawFile {
    file: File,
    capacity: u64,
}

impl BlockDevice for RawFile {
    fn capacity(&self) -> u64 {
        self.capacity
    }

    fn read_only(&self) -> bool {
        false
    }

    fn read_at(&self, mut offset: u64, out: &[VolatileSlice<'_>]) -> io::Result<()> {
        let mut buffer = Vec::new();
        for slice in out {
            buffer.resize(slice.len(), 0);
            self.file.read_exact_at(&mut buffer, offset)?;
            slice.write_slice(&buffer, 0).map_err(io::Error::other)?;
            offset += slice.len() as u64;
        }
        Ok(())
    }

    fn write_at(&self, mut offset: u64, data: &[VolatileSlice<'_>]) -> io::Result<()> {
        let mut buffer = Vec::new();
        for slice in data {
            buffer.resize(slice.len(), 0);
            slice.read_slice(&mut buffer, 0).map_err(io::Error::other)?;
            self.file.write_all_at(&buffer, offset)?;
            offset += slice.len() as u64;
        }
        Ok(())
    }

    fn discard(&self, _offset: u64, _length: u64) -> io::Result<()> {
        Ok(())
    }

    fn write_zeroes(&self, offset: u64, length: u64, _unmap: bool) -> io::Result<()> {
        static ZEROS: [u8; 1 << 16] = [0; 1 << 16];
        let mut done = 0;
        while done < length {
            let count = (length - done).min(ZEROS.len() as u64);
            self.file.write_all_at(&ZEROS[..count as usize], offset + done)?;
            done += count;
        }
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

fn main() -> Result<(), Box<dyn Error>> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [socket, image, rest @ ..] = arguments.as_slice() else {
        return Err("usage: serve SOCKET FILE [QUEUES]".into());
    };
    let queues = rest.first().map_or(Ok(1), |queues| queues.parse())?;
    let file = File::options().read(true).write(true).open(image)?;
    let capacity = file.metadata()?.len();
    let device = Arc::new(Pending::ready(Arc::new(RawFile { file, capacity })));
    let options = BlkOptions { queues, capacity, serial: "raw".into(), ..BlkOptions::default() };
    let server = BlkServer::new(device, options).on_event(|event| eprintln!("{event}"));
    let listener = UnixListener::bind(socket)?;
    Ok(server.serve_listener(listener, &StopHandle::new()?)?)
}
