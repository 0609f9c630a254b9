//! What the network thread of a QUIC endpoint and the Python side share: two queues, the counters of streams, figures.
//!
//!     Python side   -- Outbox (commands), waker of the poll -->   network thread
//!     Python side   <-- Inbox (events), one byte in a socket --   network thread
//!
//! Neither side waits for the other: locks are held for a push or a swap only. No protocol and no Python lives here.

use bytes::Bytes;
use quinn_proto::{ClientConfig, ServerConfig};
use std::any::Any;
use std::collections::VecDeque;
use std::io::{Read, Write};
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed, Ordering::SeqCst};
use std::sync::{Arc, Mutex, MutexGuard};

/// Stream data that was read off the connections and not yet taken by Python: above it no stream is read.
pub const INBOX_BYTES_MAX: usize = 8 << 20;
/// Taking goes on reading only when this much room is there again, so that the threads do not wake each other per packet.
pub const INBOX_BYTES_LOW: usize = 4 << 20;
/// What Python held back is sent on its own thread up to so many bytes and commands; more is the network thread's.
const INLINE_BYTES_MAX: usize = 64 << 10;
const INLINE_COMMANDS_MAX: usize = 64;
/// Neighbouring pieces of one stream are handed out as one DATA up to this size.
const MERGE_BYTES_MAX: usize = 256 << 10;

/// Bytes of one stream that were sent by Python and not yet given to QUIC.
#[derive(Default)]
pub struct Gauge {
    pub queued: AtomicUsize,
    /// It was above `write_high`: WRITABLE is owed. Set by Python before the command, taken by the network thread.
    pub above: AtomicBool,
}

pub enum Command {
    Connect {
        number: u64,
        config: Box<ClientConfig>,
        remote: SocketAddr,
        server_name: String,
    },
    Open {
        number: u64,
        stream: u64,
    },
    Send {
        number: u64,
        stream: u64,
        data: Vec<Bytes>,
        end: bool,
        gauge: Arc<Gauge>,
    },
    Pause {
        number: u64,
        stream: u64,
        paused: bool,
    },
    Reset {
        number: u64,
        stream: u64,
        code: u64,
    },
    Stop {
        number: u64,
        stream: u64,
        code: u64,
    },
    Shut {
        number: u64,
        code: u64,
        reason: Bytes,
    },
    Serve(Box<[Arc<ServerConfig>; 2]>),
    Accepting(bool),
    /// The inbox has room again.
    Resume,
    Close,
}

pub enum Event {
    Connected {
        number: u64,
        peer: SocketAddr,
    },
    Data {
        number: u64,
        stream: u64,
        pieces: Vec<Bytes>,
        bytes: usize,
        fin: bool,
    },
    Writable {
        number: u64,
        stream: u64,
    },
    Stopped {
        number: u64,
        stream: u64,
        code: u64,
    },
    Reset {
        number: u64,
        stream: u64,
        code: u64,
    },
    Closed {
        number: u64,
        code: i64,
        reason: String,
    },
    Sent {
        number: u64,
        stream: u64,
    },
    /// Both sides of a stream are done and no event of it follows: the Python side forgets it.
    Gone {
        number: u64,
        stream: u64,
    },
}

#[derive(Default)]
pub struct Figures {
    pub accepted: AtomicU64,
    pub refused: AtomicU64,
    pub retries: AtomicU64,
    pub half_open: AtomicU64,
    pub connections: AtomicU64,
    pub datagrams_in: AtomicU64,
    pub datagrams_out: AtomicU64,
    pub bytes_in: AtomicU64,
    pub bytes_out: AtomicU64,
    pub wakeups: AtomicU64,
}

impl Figures {
    pub fn add(counter: &AtomicU64, by: u64) {
        counter.fetch_add(by, Relaxed);
    }
}

/// Commands in order.
#[derive(Default)]
struct Outbox {
    commands: Vec<Command>,
    /// Bytes of streams in them.
    bytes: usize,
    /// The network thread looks here before it sleeps, so nobody needs to wake it.
    awake: bool,
    /// Python will say `flush`: until then it wakes nobody, unless it becomes much.
    held: bool,
}

impl Outbox {
    fn large(&self) -> bool {
        self.bytes > INLINE_BYTES_MAX || self.commands.len() > INLINE_COMMANDS_MAX
    }
}

/// What there is at the end of a turn of the loop.
pub enum Flush {
    /// No command.
    Nothing,
    /// Commands that the network thread will see without being woken.
    Seen,
    Small,
    Large,
}

#[derive(Default)]
struct Inbox {
    events: VecDeque<Event>,
    signalled: bool,
    /// Why the network thread is no more, if it did not end as asked.
    dead: Option<String>,
}

pub struct Shared {
    outbox: Mutex<Outbox>,
    inbox: Mutex<Inbox>,
    /// Bytes of Data events: those in the inbox and those the network thread has ready.
    inbox_bytes: AtomicUsize,
    /// The network thread left streams unread because the inbox was full.
    pub starved: AtomicBool,
    /// The loop is told of datagrams, not the network thread. Changed under the lock of the core.
    pub loop_watches: AtomicBool,
    /// The loop had a turn since the network thread last asked.
    pub attended: AtomicBool,
    bell: UnixStream,
    ear: UnixStream,
    waker: mio::Waker,
    pub figures: Figures,
}

/// A panic of the other thread while it held the lock leaves a queue that is still whole: every change is one push or swap.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

impl Shared {
    pub fn new(waker: mio::Waker) -> std::io::Result<Shared> {
        let (bell, ear) = UnixStream::pair()?;
        bell.set_nonblocking(true)?;
        ear.set_nonblocking(true)?;
        Ok(Shared {
            outbox: Mutex::default(),
            inbox: Mutex::default(),
            inbox_bytes: AtomicUsize::new(0),
            starved: AtomicBool::new(false),
            loop_watches: AtomicBool::new(false),
            attended: AtomicBool::new(false),
            bell,
            ear,
            waker,
            figures: Figures::default(),
        })
    }

    pub fn ear(&self) -> &UnixStream {
        &self.ear
    }

    // -- the Python side ----------------------------------------------------------------------------------------------

    pub fn command(&self, command: Command) {
        let mut outbox = lock(&self.outbox);
        if let Command::Send { data, .. } = &command {
            outbox.bytes += data.iter().map(Bytes::len).sum::<usize>();
        }
        outbox.held &= !matches!(command, Command::Close);
        outbox.commands.push(command);
        if !outbox.held || outbox.large() {
            self.rouse(outbox);
        }
    }

    pub fn hold(&self) {
        lock(&self.outbox).held = true;
        self.attended.store(true, SeqCst);
    }

    pub fn held(&self) -> bool {
        lock(&self.outbox).held
    }

    /// The end of `hold`: what was held.
    pub fn release(&self) -> Flush {
        let mut outbox = lock(&self.outbox);
        outbox.held = false;
        match (outbox.commands.is_empty(), outbox.awake) {
            (true, _) => Flush::Nothing,
            (false, true) => Flush::Seen,
            (false, false) if outbox.large() => Flush::Large,
            (false, false) => Flush::Small,
        }
    }

    pub fn wake_for_commands(&self) {
        self.rouse(lock(&self.outbox));
    }

    fn rouse(&self, mut outbox: MutexGuard<'_, Outbox>) {
        let asleep = !std::mem::replace(&mut outbox.awake, true);
        drop(outbox);
        if asleep {
            self.wake();
        }
    }

    /// Let the network thread have a turn.
    pub fn wake(&self) {
        // The only failure is a full counter, and then the thread is being woken already.
        let _ = self.waker.wake();
    }

    /// Events in order, until they carry `bytes_max` of data; and why the network thread died, once nothing is left.
    pub fn take(&self, bytes_max: usize) -> (Vec<Event>, Option<String>) {
        let mut inbox = lock(&self.inbox);
        let (mut taken, mut count) = (0, 0);
        for event in &inbox.events {
            if taken >= bytes_max {
                break;
            }
            count += 1;
            if let Event::Data { bytes, .. } = event {
                taken += bytes;
            }
        }
        let events: Vec<Event> = inbox.events.drain(..count).collect();
        let mut dead = None;
        if inbox.events.is_empty() {
            if inbox.events.capacity() > 4096 {
                inbox.events.shrink_to(1024);
            }
            if std::mem::replace(&mut inbox.signalled, false) {
                let _ = (&self.ear).read(&mut [0; 16]);
            }
            dead = inbox.dead.clone();
        } else {
            self.ring(&mut inbox);
        }
        drop(inbox);
        let left = self.inbox_bytes.fetch_sub(taken, SeqCst) - taken;
        if left <= INBOX_BYTES_LOW && self.starved.swap(false, SeqCst) {
            self.command(Command::Resume);
        }
        (events, dead)
    }

    // -- whoever runs a turn ------------------------------------------------------------------------------------------

    /// All commands that wait. The network thread says that from now on nobody needs to wake it.
    pub fn commands(&self, into: &mut Vec<Command>, awake: bool) {
        let mut outbox = lock(&self.outbox);
        outbox.awake |= awake;
        outbox.bytes = 0;
        std::mem::swap(&mut outbox.commands, into);
    }

    /// True if the thread may sleep: no command waits, and the next one wakes it.
    pub fn may_sleep(&self) -> bool {
        let mut outbox = lock(&self.outbox);
        outbox.awake = !outbox.commands.is_empty();
        !outbox.awake
    }

    pub fn inbox_bytes(&self) -> usize {
        self.inbox_bytes.load(SeqCst)
    }

    pub fn data_ready(&self, bytes: usize) {
        self.inbox_bytes.fetch_add(bytes, SeqCst);
    }

    /// Hand over what a turn brought, and ring once if Python was not told yet; or not, if Python takes next.
    pub fn hand_over(&self, events: &mut Vec<Event>, ring: bool) {
        if events.is_empty() {
            return;
        }
        let mut inbox = lock(&self.inbox);
        for event in events.drain(..) {
            if let Some(event) = merged(inbox.events.back_mut(), event) {
                inbox.events.push_back(event);
            }
        }
        if ring {
            self.ring(&mut inbox);
        }
    }

    /// A panic ended the turns.
    pub fn failed(&self, panic: &(dyn Any + Send)) {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no reason given");
        self.died(format!("the QUIC network thread failed: {text}"));
    }

    pub fn died(&self, why: String) {
        let mut inbox = lock(&self.inbox);
        inbox.dead = Some(why);
        self.ring(&mut inbox);
    }

    fn ring(&self, inbox: &mut Inbox) {
        if !std::mem::replace(&mut inbox.signalled, true) {
            Figures::add(&self.figures.wakeups, 1);
            let _ = (&self.bell).write(&[1]);
        }
    }
}

/// Put data behind the data of the same stream, if that is the last event. Gives the event back if it stands alone.
fn merged(last: Option<&mut Event>, event: Event) -> Option<Event> {
    let Event::Data { number, stream, mut pieces, bytes, fin } = event else { return Some(event) };
    if let Some(Event::Data { number: n, stream: s, pieces: all, bytes: total, fin: ended }) = last {
        if (*n, *s) == (number, stream) && !*ended && *total + bytes <= MERGE_BYTES_MAX {
            all.append(&mut pieces);
            *total += bytes;
            *ended = fin;
            return None;
        }
    }
    Some(Event::Data { number, stream, pieces, bytes, fin })
}
