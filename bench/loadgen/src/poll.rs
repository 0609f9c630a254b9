//! Linux's epoll, bound by hand: a few calls are no reason for a dependency. Nothing here knows of protocols.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::time::Duration;

pub const READABLE: u32 = 0x001;
pub const WRITABLE: u32 = 0x004;
pub const EVENTS_MAX: usize = 256; // taken in one call; the others come with the next one
const CTL_ADD: i32 = 1;
const CTL_MOD: i32 = 3;
const CLOEXEC: i32 = 0o2000000;
const POLLIN: i16 = 1;
const SET_TIMERSLACK: i32 = 29;

/// The kernel's struct epoll_event, which is packed on x86-64 and nowhere else.
#[derive(Clone, Copy, Default)]
#[cfg_attr(target_arch = "x86_64", repr(C, packed))]
#[cfg_attr(not(target_arch = "x86_64"), repr(C))]
pub struct Event {
    pub what: u32,
    pub token: u64,
}

/// The kernel's struct pollfd and struct timespec.
#[repr(C)]
struct Watched {
    fd: i32,
    what: i16,
    found: i16,
}

#[repr(C)]
struct Wait {
    seconds: i64,
    nanoseconds: i64,
}

/// Ask not to be woken up late for the sake of sleep: Linux adds 50 us to every wait of a thread that does not.
pub fn wake_up_precisely() {
    // SAFETY: takes no pointers.
    unsafe { prctl(SET_TIMERSLACK, 1u64) };
}

unsafe extern "C" {
    fn epoll_create1(flags: i32) -> i32;
    fn epoll_ctl(epoll: i32, operation: i32, fd: i32, event: *mut Event) -> i32;
    fn ppoll(sockets: *mut Watched, count: u64, wait: *const Wait, signals: *const u8) -> i32;
    fn prctl(option: i32, ...) -> i32;
    fn epoll_wait(epoll: i32, events: *mut Event, events_max: i32, timeout_ms: i32) -> i32;
}

pub struct Poll {
    epoll: OwnedFd,
    events: [Event; EVENTS_MAX],
}

impl Poll {
    pub fn new() -> io::Result<Poll> {
        // SAFETY: takes no pointers, and a descriptor that is not negative is new and ours alone.
        let fd = unsafe { epoll_create1(CLOEXEC) };
        if fd < 0 {
            return Err(io::Error::last_os_error());
        }
        // SAFETY: as above.
        Ok(Poll { epoll: unsafe { OwnedFd::from_raw_fd(fd) }, events: [Event::default(); EVENTS_MAX] })
    }

    pub fn add(&self, socket: &impl AsRawFd, token: usize, what: u32) -> io::Result<()> {
        self.control(CTL_ADD, socket, token, what)
    }

    pub fn change(&self, socket: &impl AsRawFd, token: usize, what: u32) -> io::Result<()> {
        self.control(CTL_MOD, socket, token, what)
    }

    fn control(&self, operation: i32, socket: &impl AsRawFd, token: usize, what: u32) -> io::Result<()> {
        let mut event = Event { what, token: token as u64 };
        // SAFETY: the event lives through the call, and the kernel copies it.
        let done = unsafe { epoll_ctl(self.epoll.as_raw_fd(), operation, socket.as_raw_fd(), &mut event) };
        if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
    }

    /// As `wait`, but to the nanosecond, which epoll_wait cannot.
    pub fn wait_for(&mut self, wait: Duration) -> io::Result<&[Event]> {
        let mut watched = Watched { fd: self.epoll.as_raw_fd(), what: POLLIN, found: 0 };
        let wait = Wait { seconds: wait.as_secs() as i64, nanoseconds: i64::from(wait.subsec_nanos()) };
        // SAFETY: both live through the call, one descriptor is what is counted, and no signal mask is given.
        let found = unsafe { ppoll(&mut watched, 1, &wait, std::ptr::null()) };
        let error = io::Error::last_os_error();
        if found < 0 && error.kind() != io::ErrorKind::Interrupted {
            return Err(error);
        }
        if found > 0 { self.wait(0) } else { Ok(&[]) }
    }

    /// What happened; empty if nothing did for so long.
    pub fn wait(&mut self, timeout_ms: i32) -> io::Result<&[Event]> {
        loop {
            // SAFETY: the array has room for EVENTS_MAX events and is borrowed for the length of the call.
            let found =
                unsafe { epoll_wait(self.epoll.as_raw_fd(), self.events.as_mut_ptr(), EVENTS_MAX as i32, timeout_ms) };
            if found >= 0 {
                return Ok(&self.events[..found as usize]);
            }
            let error = io::Error::last_os_error();
            if error.kind() != io::ErrorKind::Interrupted {
                return Err(error);
            }
        }
    }
}
