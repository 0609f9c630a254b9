//! TCP sockets of the broker's listeners: waits for them, reads them, has their publishes appended, and sends the answers (ADR 54).
//!
//!     wait (epoll) --> next: a socket whose reader may be asked is read here --> all of it appended: the next one, without Python
//!                       |                                                    +-> else Python gets what its session has to see
//!                       +-- any other socket --> Python reads it (`recv`) when it wants to
//!     passed: what this pass appended, one ticket for all of it --> (durable) --> release: their answers, one send a connection
//!
//! The answers of a connection leave in the order of its reads. Once Python has something to answer on a connection, it takes over
//! what is not answered (`unanswered`, `adopted`), and answers all of it by its own slots. It says when reads may be taken here
//! again (`allow`): if it still owes answers then, those of what is read here wait behind them (`Answer::Owed`). What Python sends
//! and what is sent here goes through one queue a connection.
//!
//! Nothing is decided here: no rights, no limits, no protocol. All calls are made by the thread of the loop. None of them waits but
//! `next`, for the disk, if Python lets it write what a read that is alone appended (`alone.rs`): then its answer leaves at once.

use crate::alone::{self, NOTHING, Outcome, Unwritten, Wrote};
use crate::direct::{DirectReader, Taken, Unanswered, Waits};
use crate::{Held, refuse};
use pyo3::prelude::*;
use pyo3::types::{PyBytes, PyList, PySlice};
use std::collections::{HashMap, VecDeque};
use std::io::Error;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};

const EVENTS_MAX: usize = 512; // sockets of one pass
const PASS_BYTES_MAX: usize = 1024 * 1024; // read for readers in one pass: what is more waits for the next
const READS_WAITING_MAX: usize = 256; // of one connection: with more, Python takes over, and stops reading in time
const VECTORS_MAX: usize = 64; // buffers of one send
const SAMPLED: u64 = 16; // one read of so many goes to Python, which measures it: model/histogram.py

// What `next` says of a connection, in place of the bytes that were read.
const READABLE: i64 = -1; // Python reads it
const WRITABLE: i64 = -2; // its output went below the mark, or could not be sent
const FAULT: i64 = -3; // its reader raised: the connection ends

/// Something to send, and how much of it was sent.
enum Piece {
    Buffer(Held, usize),
    Bytes(Vec<u8>, usize),
}

impl Piece {
    fn rest(&self) -> &[u8] {
        match self {
            Piece::Buffer(held, sent) => &held.bytes()[*sent..],
            Piece::Bytes(bytes, sent) => &bytes[*sent..],
        }
    }

    fn skip(&mut self, size: usize) {
        match self {
            Piece::Buffer(_, sent) | Piece::Bytes(_, sent) => *sent += size,
        }
    }
}

/// A read whose answers are not sent: they wait for the disk, or for those before them.
enum Answer {
    Owed,                   // Python answers first; at most one, the first
    Waits(u64, Unanswered), // for this pass
    Made(Vec<u8>),
}

struct Connection {
    handle: i32,
    owner: Py<PyAny>,
    serial: u64,
    reading: bool,
    failed: bool, // it cannot be sent to any more
    armed: u32,   // what epoll looks for
    reader: Option<Py<DirectReader>>,
    epoch: u64,
    answers: VecDeque<Answer>,
    out: VecDeque<Piece>,
    unsent: usize,
    bytes_in: u64, // read for readers, and what they answered
    bytes_out: u64,
}

impl Connection {
    /// Send what waits, as far as the system takes it.
    fn flush(&mut self) {
        while self.unsent != 0 && !self.failed {
            let parts: Vec<libc::iovec> = (self.out.iter().take(VECTORS_MAX))
                .map(|piece| libc::iovec {
                    iov_base: piece.rest().as_ptr().cast_mut().cast(),
                    iov_len: piece.rest().len(),
                })
                .collect();
            // SAFETY: a message of nothing but buffers that live in `out`, which is not touched before the call is over.
            let sent = unsafe {
                let mut message: libc::msghdr = std::mem::zeroed();
                message.msg_iov = parts.as_ptr().cast_mut();
                message.msg_iovlen = parts.len() as _;
                libc::sendmsg(self.handle, &message, libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
            };
            if sent < 0 {
                self.failed = !waits(errno());
                return;
            }
            self.sent(sent as usize);
        }
    }

    fn sent(&mut self, mut size: usize) {
        self.unsent -= size;
        while size != 0 {
            let Some(first) = self.out.front_mut() else { return };
            let left = first.rest().len();
            if size < left {
                first.skip(size);
                return;
            }
            size -= left;
            self.out.pop_front();
        }
        while self.out.front().is_some_and(|first| first.rest().is_empty()) {
            self.out.pop_front();
        }
    }

    /// Send bytes behind what waits already.
    fn send(&mut self, bytes: &[u8]) {
        if self.failed || bytes.is_empty() {
            return;
        }
        let mut begun = 0;
        if self.unsent == 0 {
            // SAFETY: the bytes live until the call is over.
            let sent = unsafe {
                libc::send(self.handle, bytes.as_ptr().cast(), bytes.len(), libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT)
            };
            if sent < 0 {
                self.failed = !waits(errno());
            }
            begun = sent.max(0) as usize;
        }
        if begun < bytes.len() && !self.failed {
            self.unsent += bytes.len() - begun;
            self.out.push_back(Piece::Bytes(bytes[begun..].to_vec(), 0));
        }
    }

    /// Send the answers that wait for nothing any more.
    fn answer(&mut self) {
        while let Some(Answer::Made(bytes)) = self.answers.front() {
            let bytes = bytes.clone();
            self.answers.pop_front();
            self.bytes_out += bytes.len() as u64;
            self.send(&bytes);
        }
    }
}

fn errno() -> i32 {
    Error::last_os_error().raw_os_error().unwrap_or(libc::EIO)
}

fn waits(code: i32) -> bool {
    code == libc::EAGAIN || code == libc::EINTR
}

/// Where a read that waits is: the connection, or its slot, once Python has taken it over.
struct Place {
    id: usize,
    serial: u64,
    ticket: u64,
    slot: Option<Py<PyAny>>,
}

/// What a pass did. `ticket`: the last one of those that it appended to partitions in files.
#[derive(Default)]
struct Pass {
    number: u64,
    bytes: usize,
    reads: usize,
    in_memory: bool,
    ticket: u64,
    ways: u8,
    places: Vec<Place>,
    wrote: Option<Wrote>, // by a read that was alone
    unwritten: Option<Unwritten>,
}

/// See above. One for all listeners of a loop.
#[pyclass(module = "quintet.kernel._native")]
pub struct Sockets {
    epoll: OwnedFd,
    view: Py<PyAny>, // of the bytes that are read into
    buffer: Held,
    high: usize,
    low: usize,
    connections: Vec<Option<Box<Connection>>>,
    free: Vec<usize>,
    serial: u64,
    events: VecDeque<(usize, u64, u32)>, // of this pass: connection, its serial, what epoll says
    pass: Pass,
    passes: HashMap<u64, Vec<Place>>, // those whose reads wait
    reads: u64,
}

fn cause(code: i32) -> PyErr {
    Error::from_raw_os_error(code).into()
}

impl Sockets {
    fn connection(&mut self, id: usize) -> PyResult<&mut Connection> {
        self.connections.get_mut(id).and_then(|one| one.as_deref_mut()).ok_or_else(|| refuse("no such connection"))
    }

    fn found(&mut self, id: usize, serial: u64) -> Option<&mut Connection> {
        let one = self.connections.get_mut(id)?.as_deref_mut()?;
        (one.serial == serial).then_some(one)
    }

    /// Have epoll look for what is wanted now.
    fn arm(&mut self, id: usize) -> PyResult<()> {
        let epoll = self.epoll.as_raw_fd();
        let one = self.connection(id)?;
        let reading = if one.reading { libc::EPOLLIN as u32 } else { 0 };
        let writing = if one.unsent != 0 && !one.failed { libc::EPOLLOUT as u32 } else { 0 };
        let wanted = reading | writing;
        if wanted == one.armed {
            return Ok(());
        }
        let step = match (one.armed, wanted) {
            (0, _) => libc::EPOLL_CTL_ADD,
            (_, 0) => libc::EPOLL_CTL_DEL, // or it would tell of a peer that left, over and over
            _ => libc::EPOLL_CTL_MOD,
        };
        let mut event = libc::epoll_event { events: wanted, u64: id as u64 };
        // SAFETY: both descriptors are open, and the event lives until the call is over.
        if unsafe { libc::epoll_ctl(epoll, step, one.handle, &mut event) } != 0 {
            return Err(cause(errno()));
        }
        one.armed = wanted;
        Ok(())
    }

    /// After a send: how much is unsent.
    fn sent(&mut self, id: usize) -> PyResult<i64> {
        self.arm(id)?;
        self.unsent(id)
    }

    /// Read what is there for a reader. None: this one is Python's to read.
    fn read(&mut self, py: Python<'_>, id: usize, now: i64, epoch: u64) -> Option<(Py<DirectReader>, isize)> {
        let (into, room) = (self.buffer.bytes().as_ptr().cast_mut(), self.buffer.bytes().len());
        let one = self.connections[id].as_deref_mut()?;
        let reader =
            one.reader.as_ref().filter(|reader| one.epoch == epoch && reader.get().is_good(now))?.clone_ref(py);
        if one.answers.len() >= READS_WAITING_MAX || one.unsent != 0 {
            return None; // who does not take its answers is held back by Python
        }
        // SAFETY: the buffer stays exported as long as `self.buffer` lives, and nothing else looks at it during the call.
        let size = unsafe { libc::recv(one.handle, into.cast(), room, libc::MSG_DONTWAIT) };
        self.pass.bytes += size.max(0) as usize;
        Some((reader, size))
    }

    /// What a read that is alone appended to files may be written at once: then nothing waits, and its answers are behind the others.
    fn write_alone<'py>(
        slf: &Bound<'py, Self>,
        reader: &DirectReader,
        answers: Py<PyBytes>,
        held: Waits,
        (may, bytes_max): (i64, usize),
    ) -> PyResult<(Py<PyBytes>, Option<Waits>)> {
        let py = slf.py();
        let outcome = alone::write(reader.tails(py), held.ways, may, bytes_max)?;
        let pass = &mut slf.try_borrow_mut()?.pass;
        match outcome {
            Outcome::Untried => Ok((answers, Some(held))),
            Outcome::Unwritten(why) => {
                pass.unwritten = Some(why);
                Ok((answers, Some(held)))
            }
            Outcome::Written(wrote) => {
                pass.wrote = Some(wrote);
                pass.in_memory |= !reader.tails(py).try_borrow()?.dirty.is_empty();
                let Some(unanswered) = held.unanswered else { return Ok((answers, None)) };
                let mut all = answers.as_bytes(py).to_vec();
                all.extend_from_slice(&unanswered.answers(py));
                Ok((PyBytes::new(py, &all).unbind(), None))
            }
        }
    }

    /// All of a read was appended: its answers leave, or wait for the disk.
    fn took(
        &mut self,
        py: Python<'_>,
        (id, serial): (usize, u64),
        size: usize,
        answers: &Py<PyBytes>,
        held: Option<Waits>,
    ) -> PyResult<()> {
        self.pass.reads += 1;
        self.pass.in_memory |= held.is_none() && self.pass.wrote.is_none();
        let number = self.pass.number;
        if let Some(held) = &held {
            self.pass.ticket = held.ticket;
            self.pass.ways |= held.ways;
        }
        let mut place = None;
        if let Some(one) = self.found(id, serial) {
            one.bytes_in += size as u64;
            let bytes = answers.as_bytes(py);
            if !bytes.is_empty() {
                if one.answers.is_empty() {
                    one.bytes_out += bytes.len() as u64;
                    one.send(bytes);
                } else {
                    one.answers.push_back(Answer::Made(bytes.to_vec()));
                }
            }
            if let Some(Waits { ticket, unanswered: Some(unanswered), .. }) = held {
                one.answers.push_back(Answer::Waits(number, unanswered));
                place = Some(Place { id, serial, ticket, slot: None });
            }
            self.arm(id)?;
        }
        self.pass.places.extend(place);
        Ok(())
    }
}

/// Owner, the bytes that were read or what happened, what its session has to see, whether it is measured.
type Found = (Py<PyAny>, i64, Option<Py<PyAny>>, bool);
/// Number, reads, whether something went to memory, the ticket that stands for what went to files, and its ways; what a read that was
/// alone wrote, or what it could not.
type Passed = (u64, usize, bool, u64, u8, Option<Wrote>, Option<Unwritten>);

#[pymethods]
impl Sockets {
    /// `view`: of the bytes that reads go to. `high`, `low`: the marks of unsent output.
    #[new]
    fn new(view: &Bound<'_, PyAny>, high: usize, low: usize) -> PyResult<Sockets> {
        // SAFETY: a plain system call; a descriptor that it gives is ours.
        let epoll = unsafe { libc::epoll_create1(libc::EPOLL_CLOEXEC) };
        if epoll < 0 {
            return Err(cause(errno()));
        }
        Ok(Sockets {
            // SAFETY: as above.
            epoll: unsafe { OwnedFd::from_raw_fd(epoll) },
            view: view.clone().unbind(),
            buffer: Held::new(view)?,
            high,
            low,
            connections: Vec::new(),
            free: Vec::new(),
            serial: 0,
            events: VecDeque::new(),
            pass: Pass::default(),
            passes: HashMap::new(),
            reads: 0,
        })
    }

    fn fileno(&self) -> i32 {
        self.epoll.as_raw_fd()
    }

    fn add(&mut self, handle: i32, owner: Py<PyAny>) -> PyResult<usize> {
        self.serial += 1;
        let one = Connection {
            handle,
            owner,
            serial: self.serial,
            reading: true,
            failed: false,
            armed: 0,
            reader: None,
            epoch: 0,
            answers: VecDeque::new(),
            out: VecDeque::new(),
            unsent: 0,
            bytes_in: 0,
            bytes_out: 0,
        };
        let id = self.free.pop().unwrap_or_else(|| {
            self.connections.push(None);
            self.connections.len() - 1
        });
        self.connections[id] = Some(Box::new(one));
        self.arm(id)?;
        Ok(id)
    }

    /// Forget it; its descriptor is the caller's to close. What it has appended stays appended.
    fn remove(&mut self, id: usize) -> PyResult<()> {
        let one = self.connection(id)?;
        one.reading = false;
        one.failed = true;
        self.arm(id)?;
        self.connections[id] = None;
        self.free.push(id);
        Ok(())
    }

    fn set_reading(&mut self, id: usize, reading: bool) -> PyResult<()> {
        self.connection(id)?.reading = reading;
        self.arm(id)
    }

    /// Reads may go to this reader as long as the epoch is this one. None: not any more. `owed`: Python has answers to send first; it
    /// calls this again when it has none. Who has much unsent then.
    fn allow(&mut self, id: usize, reader: Option<Py<DirectReader>>, epoch: u64, owed: bool) -> PyResult<bool> {
        let high = self.high;
        let one = self.connection(id)?;
        if owed && reader.is_some() && one.answers.is_empty() {
            one.answers.push_back(Answer::Owed);
        }
        (one.reader, one.epoch) = (reader, epoch);
        if owed || !matches!(one.answers.front(), Some(Answer::Owed)) {
            return Ok(false);
        }
        one.answers.pop_front();
        one.answer();
        let above = one.unsent > high;
        self.arm(id)?;
        Ok(above)
    }

    /// A pass begins: how many sockets have something.
    fn wait(&mut self) -> PyResult<usize> {
        let mut events = [libc::epoll_event { events: 0, u64: 0 }; EVENTS_MAX];
        // SAFETY: as many events as there is room for.
        let count = unsafe { libc::epoll_wait(self.epoll.as_raw_fd(), events.as_mut_ptr(), EVENTS_MAX as i32, 0) };
        if count < 0 && errno() != libc::EINTR {
            return Err(cause(errno()));
        }
        self.events.clear();
        for event in &events[..count.max(0) as usize] {
            let (id, what) = (event.u64 as usize, event.events);
            if let Some(one) = self.connections.get(id).and_then(|one| one.as_deref()) {
                self.events.push_back((id, one.serial, what));
            }
        }
        self.pass = Pass { number: self.pass.number + 1, ..Pass::default() };
        Ok(self.events.len())
    }

    /// The next connection of this pass that Python has something to do for; None: there is none left. `may`: where to what a read
    /// appended may be written here, if it is the only one (`alone.rs`), and has not more than `bytes_max`.
    #[pyo3(signature = (now, epoch, direct, may=NOTHING, bytes_max=0))]
    fn next(
        slf: &Bound<'_, Self>,
        now: i64,
        epoch: u64,
        direct: bool,
        may: i64,
        bytes_max: usize,
    ) -> PyResult<Option<Found>> {
        let py = slf.py();
        loop {
            // Not borrowed while something is appended: Python's collector may run then, and with it Python's code.
            let (id, serial, reader, size, view) = {
                let mut all = slf.try_borrow_mut()?;
                let Some((id, serial, what)) = all.events.pop_front() else { return Ok(None) };
                if all.found(id, serial).is_none() {
                    continue;
                }
                if what & libc::EPOLLOUT as u32 != 0 {
                    let low = all.low;
                    let one = all.connection(id)?;
                    one.flush();
                    let (tell, owner) = (one.failed || one.unsent <= low, one.owner.clone_ref(py));
                    all.arm(id)?;
                    if what & !(libc::EPOLLOUT as u32) != 0 {
                        all.events.push_front((id, serial, what & !(libc::EPOLLOUT as u32)));
                    }
                    if tell {
                        return Ok(Some((owner, WRITABLE, None, false)));
                    }
                    continue;
                }
                if !all.connection(id)?.reading {
                    continue;
                }
                if direct && all.pass.bytes >= PASS_BYTES_MAX {
                    all.events.clear(); // epoll names them again
                    return Ok(None);
                }
                let read = if direct { all.read(py, id, now, epoch) } else { None };
                let one = all.connection(id)?;
                let Some((reader, size)) = read else {
                    one.reader = None;
                    return Ok(Some((one.owner.clone_ref(py), READABLE, None, false)));
                };
                if size <= 0 {
                    if size < 0 && waits(errno()) {
                        continue;
                    }
                    one.reader = None; // the end, or a fault: Python finds it again
                    return Ok(Some((one.owner.clone_ref(py), READABLE, None, false)));
                }
                (id, serial, reader, size as usize, all.view.clone_ref(py))
            };
            let measured = {
                let mut all = slf.try_borrow_mut()?;
                all.reads += 1;
                all.reads % SAMPLED == 1
            };
            let data = view.bind(py).get_item(PySlice::new(py, 0, size as isize, 1))?;
            let taken = reader.get().take(py, &data, size, now, measured).and_then(|taken| match taken {
                Taken::Whole(answers, Some(held)) if may != NOTHING => {
                    let (answers, held) = Sockets::write_alone(slf, reader.get(), answers, held, (may, bytes_max))?;
                    Ok(Taken::Whole(answers, held))
                }
                taken => Ok(taken),
            });
            let mut all = slf.try_borrow_mut()?;
            match taken {
                Ok(Taken::Whole(answers, held)) => all.took(py, (id, serial), size, &answers, held)?,
                Ok(Taken::Out(split)) => {
                    let Some(one) = all.found(id, serial) else { continue };
                    one.reader = None;
                    return Ok(Some((one.owner.clone_ref(py), size as i64, Some(split), measured)));
                }
                Err(fault) => {
                    let Some(one) = all.found(id, serial) else { continue };
                    one.reader = None;
                    let fault = fault.into_value(py).into_any();
                    return Ok(Some((one.owner.clone_ref(py), FAULT, Some(fault), false)));
                }
            }
        }
    }

    /// What was appended without Python since the last call, and before anything else is done. If there is a ticket, `release` must
    /// follow when all of it is durable.
    fn passed(&mut self) -> Passed {
        let next = Pass { number: self.pass.number + 1, bytes: self.pass.bytes, ..Pass::default() };
        let pass = std::mem::replace(&mut self.pass, next);
        if !pass.places.is_empty() {
            self.passes.insert(pass.number, pass.places);
        }
        (pass.number, pass.reads, pass.in_memory, pass.ticket, pass.ways, pass.wrote, pass.unwritten)
    }

    /// What this pass appended is durable: send the answers. The slots of what Python has taken over, and who has much unsent.
    fn release<'py>(&mut self, py: Python<'py>, number: u64) -> PyResult<(Vec<Py<PyAny>>, Vec<Py<PyAny>>)> {
        let (mut slots, mut above) = (Vec::new(), Vec::new());
        for Place { id, serial, slot, .. } in self.passes.remove(&number).unwrap_or_default() {
            if let Some(slot) = slot {
                slots.push(slot);
                continue;
            }
            let high = self.high;
            let Some(one) = self.found(id, serial) else { continue };
            for answer in &mut one.answers {
                if let Answer::Waits(of, unanswered) = answer
                    && *of == number
                {
                    *answer = Answer::Made(unanswered.answers(py));
                    break;
                }
            }
            one.answer();
            if one.unsent > high {
                above.push(one.owner.clone_ref(py));
            }
            self.arm(id)?;
        }
        Ok((slots, above))
    }

    /// Whose read has this ticket, if it waits here.
    fn owner_of(&self, py: Python<'_>, ticket: u64) -> Option<Py<PyAny>> {
        let place = self.passes.values().flatten().find(|place| place.ticket == ticket && place.slot.is_none())?;
        let one = self.connections.get(place.id)?.as_deref()?;
        (one.serial == place.serial).then(|| one.owner.clone_ref(py))
    }

    /// The slot that was made of the read with this ticket.
    fn slot_of(&self, py: Python<'_>, ticket: u64) -> Option<Py<PyAny>> {
        let place = self.passes.values().flatten().find(|place| place.ticket == ticket)?;
        place.slot.as_ref().map(|slot| slot.clone_ref(py))
    }

    /// Python answers from here on: what its reads wait with, in their order, and answers that wait behind them. `adopted` must follow.
    fn unanswered<'py>(&mut self, py: Python<'py>, id: usize) -> PyResult<Bound<'py, PyList>> {
        let found = PyList::empty(py);
        let one = self.connection(id)?;
        one.reader = None;
        for answer in std::mem::take(&mut one.answers) {
            match answer {
                Answer::Owed => {}
                Answer::Made(bytes) => found.append(PyBytes::new(py, &bytes))?,
                Answer::Waits(_, unanswered) => found.append(unanswered.into_python(py)?)?,
            }
        }
        Ok(found)
    }

    /// The slots that were made of what waits, in the same order; None for answers that wait for nothing.
    fn adopted(&mut self, id: usize, slots: Vec<Option<Py<PyAny>>>) -> PyResult<()> {
        let serial = self.connection(id)?.serial;
        let of_it = |place: &Place| place.id == id && place.serial == serial && place.slot.is_none();
        let waiting = self.passes.values_mut().flatten().filter(|place| of_it(place));
        let mut waiting: Vec<&mut Place> = waiting.collect();
        waiting.sort_by_key(|place| place.ticket);
        for (place, slot) in waiting.into_iter().zip(slots.into_iter().flatten()) {
            place.slot = Some(slot);
        }
        Ok(())
    }

    /// Send: how much is unsent then; -1: it cannot be sent to any more.
    fn send(&mut self, id: usize, data: &Bound<'_, PyAny>) -> PyResult<i64> {
        let one = self.connection(id)?;
        if let Ok(bytes) = data.cast::<PyBytes>()
            && one.unsent == 0
        {
            one.send(bytes.as_bytes());
        } else {
            let held = Held::new(data)?;
            one.unsent += held.bytes().len();
            one.out.push_back(Piece::Buffer(held, 0));
            one.flush();
        }
        self.sent(id)
    }

    fn send_all(&mut self, id: usize, pieces: Vec<Bound<'_, PyAny>>) -> PyResult<i64> {
        let one = self.connection(id)?;
        for piece in &pieces {
            let held = Held::new(piece)?;
            one.unsent += held.bytes().len();
            one.out.push_back(Piece::Buffer(held, 0));
        }
        one.flush();
        self.sent(id)
    }

    /// How much is unsent; -1: it cannot be sent to any more.
    fn unsent(&mut self, id: usize) -> PyResult<i64> {
        let one = self.connection(id)?;
        Ok(if one.failed { -1 } else { one.unsent as i64 })
    }

    /// Bytes that were read for readers, and that they answered.
    fn moved(&mut self, id: usize) -> PyResult<(u64, u64)> {
        let one = self.connection(id)?;
        Ok((one.bytes_in, one.bytes_out))
    }

    /// Read into a buffer: how many bytes, 0 at the end, or minus an errno; None: there is nothing now.
    fn recv(&mut self, id: usize, view: &Bound<'_, PyAny>) -> PyResult<Option<i64>> {
        let handle = self.connection(id)?.handle;
        let held = Held::new(view)?;
        if held.0.readonly() {
            return Err(refuse("a read needs a buffer that can be written to"));
        }
        let into = held.bytes();
        // SAFETY: the buffer is exported and writable, and nothing else looks at it during the call.
        let size = unsafe { libc::recv(handle, into.as_ptr().cast_mut().cast(), into.len(), libc::MSG_DONTWAIT) };
        Ok(if size >= 0 {
            Some(size as i64)
        } else if waits(errno()) {
            None
        } else {
            Some(-i64::from(errno()))
        })
    }
}
