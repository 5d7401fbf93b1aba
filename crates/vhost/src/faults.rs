//! Survives the loss of shared guest memory: a `SIGBUS` handler that ends one connection instead of the process.
//!
//! A front end shares a file and can truncate it at any time; its file system may also be full or fail. The next access
//! to such a page raises `SIGBUS`, which would end the process and with it the service of other machines. The handler
//! instead maps zeros over the whole region, marks it as lost, and shuts down the front end's socket. The interrupted
//! thread continues with zeros, which are as good as any bytes from a guest, and the connection ends.
//!
//! Only regions with a [`Guard`] are replaced; any other fault goes to the previous handler. A region stays mapped
//! while a thread works with it, so the faulting region cannot be unmapped meanwhile.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A front end's socket, kept open so that the handler can shut it down.
#[derive(Debug)]
pub(crate) struct Control(OwnedFd);

impl Control {
    /// Duplicates `socket`.
    pub(crate) fn new(socket: BorrowedFd<'_>) -> io::Result<Control> {
        Ok(Control(socket.try_clone_to_owned()?))
    }
}

/// A mapped region, as the handler finds it. Slots are never freed: when a region is unmapped, another one reuses its
/// slot.
struct Slot {
    /// Odd while the other fields are being changed.
    version: AtomicUsize,
    address: AtomicUsize,
    /// Bytes; 0 for a free slot.
    length: AtomicUsize,
    socket: AtomicI32,
    is_lost: AtomicBool,
    next: OnceLock<&'static Slot>,
}

static FIRST: Slot = Slot::new();

/// The free slots, and the end of the list of all slots. Locked while slots change.
static FREE: Mutex<Free> = Mutex::new(Free { slots: Vec::new(), last: None });

struct Free {
    slots: Vec<&'static Slot>,
    /// The last slot; `None` before the first region.
    last: Option<&'static Slot>,
}

impl Free {
    /// A slot for a new region.
    fn take(&mut self) -> &'static Slot {
        if let Some(slot) = self.slots.pop() {
            return slot;
        }
        let Some(last) = self.last else {
            self.last = Some(&FIRST);
            return &FIRST;
        };
        // The list has as many slots as there were regions at once, which is bounded: so this is no leak.
        let slot = last.next.get_or_init(|| Box::leak(Box::new(Slot::new())));
        self.last = Some(slot);
        slot
    }
}

impl Slot {
    const fn new() -> Slot {
        Slot {
            version: AtomicUsize::new(0),
            address: AtomicUsize::new(0),
            length: AtomicUsize::new(0),
            socket: AtomicI32::new(-1),
            is_lost: AtomicBool::new(false),
            next: OnceLock::new(),
        }
    }

    /// Changes the slot's fields; only one thread at a time may call this.
    fn set(&self, address: usize, length: usize, socket: i32) {
        self.version.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.address.store(address, Ordering::Relaxed);
        self.length.store(length, Ordering::Relaxed);
        self.socket.store(socket, Ordering::Relaxed);
        self.is_lost.store(false, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The region that contains `address`, and its front end's socket. A slot that is being changed cannot be the
    /// region that the calling thread accesses.
    fn find(&self, address: usize) -> Option<(usize, usize, i32)> {
        let version = self.version.load(Ordering::Acquire);
        let (start, length) = (self.address.load(Ordering::Relaxed), self.length.load(Ordering::Relaxed));
        let socket = self.socket.load(Ordering::Relaxed);
        fence(Ordering::SeqCst);
        let is_stable = version.is_multiple_of(2) && self.version.load(Ordering::Relaxed) == version;
        let is_inside = address.checked_sub(start).is_some_and(|offset| offset < length);
        (is_stable && is_inside).then_some((start, length, socket))
    }
}

/// Registers a mapped region whose pages may disappear.
pub(crate) struct Guard {
    slot: &'static Slot,
    /// Keeps the socket open while the slot names it.
    _control: Arc<Control>,
}

impl Guard {
    /// Registers the region of `length` mapped bytes at `address`, which the front end of `control` shares. It must be
    /// dropped before the region is unmapped.
    ///
    /// # Errors
    /// The signal handler cannot be installed.
    pub(crate) fn new(address: usize, length: usize, control: &Arc<Control>) -> io::Result<Guard> {
        handle_faults()?;
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        let slot = free.take();
        slot.set(address, length, control.0.as_fd().as_raw_fd());
        Ok(Guard { slot, _control: Arc::clone(control) })
    }

    /// Whether the region had to be replaced.
    pub(crate) fn is_lost(&self) -> bool {
        self.slot.is_lost.load(Ordering::Acquire)
    }
}

impl std::fmt::Debug for Guard {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Guard").field("is_lost", &self.is_lost()).finish_non_exhaustive()
    }
}

impl Drop for Guard {
    fn drop(&mut self) {
        let mut free = FREE.lock().unwrap_or_else(PoisonError::into_inner);
        self.slot.set(0, 0, -1);
        free.slots.push(self.slot);
    }
}

/// The previous handler.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Whether our handler is installed; otherwise the error number.
static HANDLED: OnceLock<Result<(), i32>> = OnceLock::new();

fn handle_faults() -> io::Result<()> {
    HANDLED.get_or_init(|| set_handler().map_err(|error| error.raw_os_error().unwrap_or(0))).map_err(|errno| {
        let error = io::Error::from_raw_os_error(errno);
        io::Error::new(error.kind(), format!("faults in shared memory cannot be handled: {error}"))
    })
}

fn set_handler() -> io::Result<()> {
    let check = |result| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: all zeros is a valid `sigaction`: no flags, an empty mask, the default action.
    let (mut before, mut ours): (libc::sigaction, libc::sigaction) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: only writes to `before`.
    check(unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut before) })?;
    // Set before the handler is installed, which may run at once.
    let _ = BEFORE.set(before);
    ours.sa_sigaction = on_fault as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler has the signature that SA_SIGINFO needs, and calls only async-signal-safe functions.
    check(unsafe { libc::sigaction(libc::SIGBUS, &ours, ptr::null_mut()) })
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: this thread's errno, which the interrupted code may be about to read.
    let (errno, kept) = unsafe { (libc::__errno_location(), *libc::__errno_location()) };
    // SAFETY: the kernel passes a valid siginfo; its address field is valid for faults, whose codes are positive.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code <= 0 || !replace(address) {
        pass_on(signal, info, context);
    }
    // SAFETY: as above.
    unsafe { *errno = kept };
}

/// Maps zeros over the region that contains `address`, and ends its connection. Returns false if no region does.
fn replace(address: usize) -> bool {
    let mut slot = Some(&FIRST);
    while let Some(one) = slot {
        if let Some((start, length, socket)) = one.find(address) {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
            // SAFETY: the region is our mapping, which the interrupted thread keeps alive, and is only accessed as
            // volatile memory that others change.
            let replaced = unsafe { libc::mmap(ptr::without_provenance_mut(start), length, access, kind, -1, 0) };
            if replaced == libc::MAP_FAILED {
                return false;
            }
            one.is_lost.store(true, Ordering::Release);
            // SAFETY: a plain system call. The descriptor is the front end's socket, open as long as the region's
            // guard.
            unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
            return true;
        }
        slot = one.next.get().copied();
    }
    false
}

/// Calls the previous handler.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.get().map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    if before == libc::SIG_DFL || before == libc::SIG_IGN {
        // SAFETY: async-signal-safe calls. The signal is raised again when this handler returns, and ends the process.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        return;
    }
    // SAFETY: it is neither of the two special values, so it is a handler. One that was installed without SA_SIGINFO
    // ignores the other arguments.
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
        unsafe { std::mem::transmute(before) };
    handler(signal, info, context);
}
