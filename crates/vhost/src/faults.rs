//! Memory that goes away while it is served.
//!
//! A front end shares a file and can cut it at any time; the file system beneath may be full, or fail. The next access to
//! such a page raises `SIGBUS`, which would end the process for the other machines that it serves as well. So the handler of
//! that signal puts zeros in the place of the whole region, marks it as lost, and shuts the socket of its front end down: the
//! thread that was interrupted goes on with zeros, which are as good as any bytes of a guest, and the connection ends.
//!
//! Only regions that a [`Guard`] stands for are replaced; any other fault goes to the handler that was there before. A
//! region stays mapped while a thread works with it, so the region that a fault is in cannot be unmapped meanwhile.

#![allow(unsafe_code)]

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicI32, AtomicUsize, Ordering, fence};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// The socket of a front end, held so that its connection can be ended.
#[derive(Debug)]
pub(crate) struct Control(OwnedFd);

impl Control {
    /// Another descriptor of `socket`.
    pub(crate) fn new(socket: BorrowedFd<'_>) -> io::Result<Control> {
        Ok(Control(socket.try_clone_to_owned()?))
    }
}

/// A mapped region as the handler finds it. There is no end to a slot: when its region is unmapped, another takes it.
struct Slot {
    /// Odd while the other fields change.
    version: AtomicUsize,
    address: AtomicUsize,
    /// Bytes; 0 while nobody has the slot.
    length: AtomicUsize,
    socket: AtomicI32,
    is_lost: AtomicBool,
    next: OnceLock<&'static Slot>,
}

static FIRST: Slot = Slot::new();

/// Slots that nobody has, the first one included once it was made known. Held while slots change.
static FREE: Mutex<Free> = Mutex::new(Free { slots: Vec::new(), last: None });

struct Free {
    slots: Vec<&'static Slot>,
    /// The end of the list; none before the first region.
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
        // As many as there were regions at once, which are bounded: so it is not lost.
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

    /// Changes what the slot says; one thread at a time.
    fn set(&self, address: usize, length: usize, socket: i32) {
        self.version.fetch_add(1, Ordering::Relaxed);
        fence(Ordering::SeqCst);
        self.address.store(address, Ordering::Relaxed);
        self.length.store(length, Ordering::Relaxed);
        self.socket.store(socket, Ordering::Relaxed);
        self.is_lost.store(false, Ordering::Relaxed);
        self.version.fetch_add(1, Ordering::Release);
    }

    /// The region, if `address` lies in it, and its front end's socket. A slot that is changing is another region's than the
    /// one of the thread that asks.
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

/// Stands for a mapped region whose pages may go away.
pub(crate) struct Guard {
    slot: &'static Slot,
    /// Open while the slot names it.
    _control: Arc<Control>,
}

impl Guard {
    /// For the region of `length` mapped bytes at `address`, which the front end of `control` shares. It must end before the
    /// region is unmapped.
    ///
    /// # Errors
    /// The signal's handler cannot be set.
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

/// What handled the signal before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// Whether our handler is set, and if not, the error's number.
static HANDLED: OnceLock<Result<(), i32>> = OnceLock::new();

fn handle_faults() -> io::Result<()> {
    HANDLED.get_or_init(|| set_handler().map_err(|error| error.raw_os_error().unwrap_or(0))).map_err(|errno| {
        let error = io::Error::from_raw_os_error(errno);
        io::Error::new(error.kind(), format!("faults in shared memory cannot be handled: {error}"))
    })
}

fn set_handler() -> io::Result<()> {
    let check = |result| if result == 0 { Ok(()) } else { Err(io::Error::last_os_error()) };
    // SAFETY: all zeros is a `sigaction`: no flags, an empty mask, the default action.
    let (mut before, mut ours): (libc::sigaction, libc::sigaction) =
        unsafe { (std::mem::zeroed(), std::mem::zeroed()) };
    // SAFETY: only the place to be written to is given.
    check(unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &mut before) })?;
    // The handler may run at once, and then wants to know.
    let _ = BEFORE.set(before);
    ours.sa_sigaction = on_fault as *const () as usize;
    ours.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_RESTART;
    // SAFETY: the handler has the form that SA_SIGINFO asks for, and calls nothing that a signal's handler must not call.
    check(unsafe { libc::sigaction(libc::SIGBUS, &ours, ptr::null_mut()) })
}

extern "C" fn on_fault(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    // SAFETY: the place of this thread's errno, which the interrupted code may be about to read.
    let (errno, kept) = unsafe { (libc::__errno_location(), *libc::__errno_location()) };
    // SAFETY: the kernel gives a valid siginfo; the address in it is valid for faults, whose codes are positive.
    let (code, address) = unsafe { ((*info).si_code, (*info).si_addr() as usize) };
    if code <= 0 || !replace(address) {
        pass_on(signal, info, context);
    }
    // SAFETY: as above.
    unsafe { *errno = kept };
}

/// Puts zeros in the place of the region that `address` lies in, and ends its connection. False if it lies in none.
fn replace(address: usize) -> bool {
    let mut slot = Some(&FIRST);
    while let Some(one) = slot {
        if let Some((start, length, socket)) = one.find(address) {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let kind = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
            // SAFETY: the region is a mapping of ours, which the interrupted thread holds, and is only ever accessed as
            // volatile memory that others change.
            let replaced = unsafe { libc::mmap(ptr::without_provenance_mut(start), length, access, kind, -1, 0) };
            if replaced == libc::MAP_FAILED {
                return false;
            }
            one.is_lost.store(true, Ordering::Release);
            // SAFETY: a plain system call. The descriptor is the front end's socket, open as long as the region's guard.
            unsafe { libc::shutdown(socket, libc::SHUT_RDWR) };
            return true;
        }
        slot = one.next.get().copied();
    }
    false
}

/// Has the signal handled as before.
fn pass_on(signal: libc::c_int, info: *mut libc::siginfo_t, context: *mut libc::c_void) {
    let before = BEFORE.get().map_or(libc::SIG_DFL, |before| before.sa_sigaction);
    if before == libc::SIG_DFL || before == libc::SIG_IGN {
        // SAFETY: plain calls that a handler may make. The signal comes again when this one is done, and ends the process.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
        return;
    }
    // SAFETY: neither of the two special values, so a handler. One that was set without SA_SIGINFO ignores the other arguments.
    let handler: extern "C" fn(libc::c_int, *mut libc::siginfo_t, *mut libc::c_void) =
        unsafe { std::mem::transmute(before) };
    handler(signal, info, context);
}
