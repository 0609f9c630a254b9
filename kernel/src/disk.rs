//! Threads that write and sync files for the log without ever touching the interpreter (ADR 30). Linux only.
//!
//!     submit (loop thread) -> jobs -> a thread: pwritevs, fdatasync -> done, eventfd -> take (loop thread)
//!
//! No decision lives here: what failed comes back with its errno, and a sync is never tried again. Buffers stay exported from
//! `submit` to `take`, so that nobody can resize them; they are let go where the interpreter's lock is held.

use crate::Held;
use pyo3::prelude::*;
use std::collections::VecDeque;
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

const VECTORS_MAX: usize = 1024; // buffers per pwritev: IOV_MAX of Linux

/// Buffers that go one behind the other to one place of a file.
pub struct Place {
    handle: i32,
    buffers: Vec<Held>,
    position: i64,
}

struct Job {
    ticket: u64,
    places: Vec<Place>, // all are written, the last one's file is synced
    step: usize,
    code: i32,
}

impl Place {
    pub fn new(handle: i32, buffers: &[Bound<'_, PyAny>], position: i64) -> PyResult<Place> {
        Ok(Place { handle, buffers: buffers.iter().map(Held::new).collect::<PyResult<_>>()?, position })
    }

    pub fn write(&self) -> Result<(), i32> {
        let parts: Vec<&[u8]> = self.buffers.iter().map(Held::bytes).collect();
        write(self.handle, &parts, self.position)
    }

    pub fn sync(&self) -> Result<(), i32> {
        sync(self.handle)
    }
}

impl Job {
    /// Writes all places in their order and syncs the last; stops at the first step that fails.
    fn run(&mut self) -> Result<(), i32> {
        for place in &self.places {
            place.write()?;
            self.step += 1;
        }
        self.places.last().map_or(Ok(()), Place::sync)
    }
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

struct Shared {
    queue: Mutex<Queue>,
    wake: Condvar,
    done: Mutex<Vec<Job>>,
    event: OwnedFd,
}

/// A thread that panicked left both lists whole: they are only pushed to and popped from.
fn locked<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn code() -> i32 {
    Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

/// All of the buffers one behind the other, or the errno: then any part of them may be there.
fn write(handle: i32, buffers: &[&[u8]], mut position: i64) -> Result<(), i32> {
    let (mut first, mut skip) = (0, 0);
    while first < buffers.len() {
        if skip >= buffers[first].len() {
            skip -= buffers[first].len();
            first += 1;
            continue;
        }
        let vectors: Vec<libc::iovec> = buffers[first..]
            .iter()
            .take(VECTORS_MAX)
            .enumerate()
            .map(|(number, bytes)| {
                let rest = if number == 0 { &bytes[skip..] } else { bytes };
                libc::iovec { iov_base: rest.as_ptr().cast_mut().cast(), iov_len: rest.len() }
            })
            .collect();
        // SAFETY: the vectors point into slices that outlive the call, and pwritev only reads them.
        let written = unsafe { libc::pwritev(handle, vectors.as_ptr(), vectors.len() as i32, position) };
        match written {
            0 => return Err(libc::EIO), // the file system accepted no bytes
            more if more > 0 => {
                skip += more as usize;
                position += more as i64;
            }
            _ => match code() {
                libc::EINTR => {}
                failed => return Err(failed),
            },
        }
    }
    Ok(())
}

fn sync(handle: i32) -> Result<(), i32> {
    loop {
        // SAFETY: a system call on a number; one that is no open file is an error and nothing worse.
        if unsafe { libc::fdatasync(handle) } == 0 {
            return Ok(());
        }
        match code() {
            libc::EINTR => {}
            failed => return Err(failed),
        }
    }
}

fn work(shared: &Shared) {
    loop {
        let mut queue = locked(&shared.queue);
        let mut job = loop {
            if let Some(job) = queue.jobs.pop_front() {
                break job;
            }
            if queue.closed {
                return;
            }
            queue = shared.wake.wait(queue).unwrap_or_else(|poisoned| poisoned.into_inner());
        };
        drop(queue);
        job.code = job.run().err().unwrap_or(0);
        locked(&shared.done).push(job);
        let one = 1u64;
        // SAFETY: eight bytes of a local. It cannot fail: the counter would have to reach 2^64.
        unsafe { libc::write(shared.event.as_raw_fd(), (&raw const one).cast(), 8) };
    }
}

#[pyclass(module = "quintet.kernel._native")]
pub struct DiskThreads {
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

#[pymethods]
impl DiskThreads {
    #[new]
    fn new(threads: usize) -> PyResult<DiskThreads> {
        // SAFETY: no pointers; the number is checked before it is owned.
        let event = unsafe { libc::eventfd(0, libc::EFD_CLOEXEC | libc::EFD_NONBLOCK) };
        if event < 0 {
            return Err(Error::last_os_error().into());
        }
        // SAFETY: just made, and owned by nobody else.
        let event = unsafe { OwnedFd::from_raw_fd(event) };
        let shared = Arc::new(Shared { queue: Mutex::default(), wake: Condvar::new(), done: Mutex::default(), event });
        let threads = (0..threads)
            .map(|number| {
                let shared = shared.clone();
                std::thread::Builder::new().name(format!("quintet-sync-{number}")).spawn(move || work(&shared))
            })
            .collect::<Result<_, _>>()?;
        Ok(DiskThreads { shared, threads })
    }

    fn fileno(&self) -> i32 {
        self.shared.event.as_raw_fd()
    }

    fn submit(
        &self,
        ticket: u64,
        before: Vec<(i32, Vec<Bound<'_, PyAny>>, i64)>,
        handle: i32,
        buffers: Vec<Bound<'_, PyAny>>,
        position: i64,
    ) -> PyResult<()> {
        let mut places = Vec::with_capacity(before.len() + 1);
        for (handle, buffers, position) in &before {
            places.push(Place::new(*handle, buffers, *position)?);
        }
        places.push(Place::new(handle, &buffers, position)?);
        locked(&self.shared.queue).jobs.push_back(Job { ticket, places, step: 0, code: 0 });
        self.shared.wake.notify_one();
        Ok(())
    }

    fn take(&self) -> Vec<(u64, usize, i32)> {
        let mut count = 0u64;
        // SAFETY: eight bytes into a local; if there is nothing to read it stays as it is.
        unsafe { libc::read(self.shared.event.as_raw_fd(), (&raw mut count).cast(), 8) };
        let done = std::mem::take(&mut *locked(&self.shared.done));
        done.into_iter().map(|job| (job.ticket, job.step, job.code)).collect()
    }

    fn close(&mut self, py: Python<'_>) {
        locked(&self.shared.queue).closed = true;
        self.shared.wake.notify_all();
        let threads = std::mem::take(&mut self.threads);
        py.detach(|| {
            for thread in threads {
                let _ = thread.join(); // one that panicked has nothing to tell
            }
        });
    }
}

impl Drop for DiskThreads {
    fn drop(&mut self) {
        locked(&self.shared.queue).closed = true;
        self.shared.wake.notify_all();
    }
}
