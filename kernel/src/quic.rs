//! Who runs the turns of a QUIC endpoint: its network thread, or Python's loop on its own thread while traffic is light.
//!
//! All state of the network (`quic_core.rs`) is behind one lock. The thread locks it for a turn and lets go before it sleeps;
//! the loop only ever tries it. Which of them is told of datagrams, the watch, is state too:
//!
//!     watch    reads       sends                         fires timers   begins
//!     Thread   thread      thread                        thread         at first; when turns of the loop are heavy; when something
//!                                                                       is left to send; while handshakes are under way; when a timer
//!                                                                       finds datagrams and a loop that attends to nothing
//!     Loop     loop:       loop: `flush`, at the end     thread         when the thread is about to sleep, had it for 20 ms or more,
//!              `take`      of its turn, if it is small;                 the traffic was light, and the loop attends
//!                          else thread
//!
//! So under load one wake-up of the thread serves many datagrams and one of the loop many events, both side by side; and a
//! single question is read and answered by the loop with one system call each, without a change of thread.
//!
//! No wake-up is lost:
//! - Commands. Outside `hold` .. `flush` a command wakes the thread unless `awake` is set, and the thread clears `awake` only
//!   under the lock of the commands and only if there are none. `flush` obeys what was held itself, or, if it cannot have
//!   the lock or should not, wakes the thread by the same rule.
//! - What a turn of the loop touched. `take` inside `hold` leaves the sending to `flush`. If `flush` finds the lock taken, the
//!   thread is in a turn that began after that `take`, which had the lock; and every turn of the thread sends for all that is
//!   touched, or does not sleep.
//! - Timers. The thread says under the lock until when it sleeps; a turn of the loop that makes an earlier timer wakes it.
//! - Datagrams. The new watcher is registered before the old one is not any more, and registering tells of what is there.
//! - Events. Whoever adds to the inbox rings under its lock, unless Python takes next, and what `take` leaves keeps the bell.
//! - A datagram that the system did not take is the thread's: only it waits for a writable socket.
//!
//! And nobody waits in a circle: the loop never waits for the lock of the core, the thread never for the interpreter, and the
//! locks of the queues are held for a push or a swap only.
//!
//! The loop watches through a poll that is never asked itself: its descriptor is handed out, and an epoll inside another
//! reports what is ready now, as long as it is. Elsewhere than on Linux the thread always has the watch.

use crate::quic_core::{Core, Parts};
use crate::quic_shared::{Command, Event, Flush, Shared};
use mio::unix::SourceFd;
use mio::{Events, Interest, Poll, Token};
use std::io::{ErrorKind, Result};
use std::os::fd::AsRawFd;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering::SeqCst;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

pub const WAKER: Token = Token(0);
const SOCKET: Token = Token(1);
const EAR: Token = Token(2);
/// The loop keeps the socket while so many turns of its own bring no more than so many datagrams and bytes.
const LOOP_TURNS: u32 = 16;
const LOOP_DATAGRAMS_MAX: u64 = 384;
const LOOP_BYTES_MAX: u64 = 512 << 10;
/// The thread keeps the socket so long, twice as long each time the loop finds its first turns heavy, and longer while it
/// carries more than so many bytes per millisecond.
pub const THREAD_MIN: Duration = Duration::from_millis(20);
const THREAD_MAX: Duration = Duration::from_millis(320);
const THREAD_BYTES_PER_MS: u64 = 64 << 10;

/// Who is told that datagrams came, and reads them.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Watch {
    Loop,
    Thread,
}

/// What went through since the last change of the watch, or look at whether it is with the right one.
pub struct Window {
    since: Instant,
    turns: u32,
    pub datagrams: u64,
    pub bytes: u64,
}

impl Window {
    pub fn new() -> Window {
        Window { since: Instant::now(), turns: 0, datagrams: 0, bytes: 0 }
    }
}

/// The poll for the loop, where an epoll inside another is what the loop can wait for.
pub fn poll_of_loop() -> Result<Option<Poll>> {
    if cfg!(target_os = "linux") { Poll::new().map(Some) } else { Ok(None) }
}

pub struct Engine {
    /// None when the thread has ended: the socket is given back then.
    core: Mutex<Option<Core>>,
    shared: Arc<Shared>,
    looped: Option<Poll>,
}

impl Engine {
    pub fn new(parts: Parts, looped: Option<Poll>, shared: Arc<Shared>) -> Result<Engine> {
        if let Some(poll) = &looped {
            poll.registry().register(&mut SourceFd(&shared.ear().as_raw_fd()), EAR, Interest::READABLE)?;
        }
        Ok(Engine { core: Mutex::new(Some(Core::new(parts)?)), shared, looped })
    }

    /// What the loop waits for.
    pub fn fileno(&self) -> i32 {
        self.looped.as_ref().map_or_else(|| self.shared.ear().as_raw_fd(), AsRawFd::as_raw_fd)
    }

    // -- the loop -----------------------------------------------------------------------------------------------------

    /// Events for Python; those of datagrams that only now are read, if the loop has the watch.
    pub fn take(&self, bytes_max: usize) -> (Vec<Event>, Option<String>) {
        if self.shared.loop_watches.load(SeqCst) {
            let held = self.shared.held();
            // If the thread has the lock it is in a turn, and the descriptor stays readable.
            let _ran = self.inline(|core| {
                core.input_turn();
                if !held {
                    core.output_turn();
                }
            });
        }
        self.shared.take(bytes_max)
    }

    /// The end of a turn of the loop: see to it that what it said, and what it read, is answered.
    pub fn flush(&self) {
        let large = match self.shared.release() {
            Flush::Seen => return,
            Flush::Nothing if !self.shared.loop_watches.load(SeqCst) => return,
            Flush::Nothing => {
                let _ran = self.inline(Core::output_turn);
                return;
            }
            Flush::Small => false,
            Flush::Large => true,
        };
        if large || !self.shared.loop_watches.load(SeqCst) || !self.inline(Core::output_turn) {
            self.shared.wake_for_commands();
        }
    }

    /// Run part of a turn on the caller's thread. False if the network thread has the lock, or the turn failed.
    fn inline(&self, part: impl FnOnce(&mut Core)) -> bool {
        let ran = catch_unwind(AssertUnwindSafe(|| {
            let mut core = self.core.try_lock().ok()?;
            core.as_mut().map(part)
        }));
        let ran = ran.map(|done| done.is_some());
        ran.unwrap_or_else(|panic| {
            // The lock is poisoned now, and the thread ends when it finds that.
            self.shared.failed(&*panic);
            self.shared.wake();
            false
        })
    }

    // -- the thread ---------------------------------------------------------------------------------------------------

    /// The life of the thread, until `Command::Close`.
    pub fn run(&self, poll: Poll) {
        match catch_unwind(AssertUnwindSafe(|| self.turns(poll))) {
            Ok(Ok(())) => {}
            Ok(Err(why)) => self.shared.died(format!("the QUIC network thread cannot wait for its socket: {why}")),
            Err(panic) => self.shared.failed(&*panic),
        }
        *self.core.lock().unwrap_or_else(|poisoned| poisoned.into_inner()) = None;
    }

    fn turns(&self, mut poll: Poll) -> Result<()> {
        let mut events = Events::with_capacity(8);
        loop {
            let (mut readable, mut writable) = (false, false);
            for event in events.iter().filter(|event| event.token() == SOCKET) {
                readable |= event.is_readable();
                writable |= event.is_writable();
            }
            events.clear();
            // Poisoned: a turn of the loop failed, and said so.
            let Ok(mut lock) = self.core.lock() else { return Ok(()) };
            let Some(core) = lock.as_mut() else { return Ok(()) };
            if core.thread_turn(readable, writable) {
                return Ok(());
            }
            let sleep = core.before_sleep()?;
            drop(lock);
            if let Some(timeout) = sleep {
                match poll.poll(&mut events, timeout) {
                    Err(why) if why.kind() == ErrorKind::Interrupted => {}
                    other => other?,
                }
            }
        }
    }
}

impl Core {
    /// A whole turn of the thread. True if it was the last.
    fn thread_turn(&mut self, readable: bool, writable: bool) -> bool {
        let now = Instant::now();
        self.readable |= readable;
        if writable {
            self.send_unsent();
        }
        if self.obey_all(now, true) {
            self.goodbye(now);
            return true;
        }
        for (incoming, answer) in std::mem::take(&mut self.knocks) {
            self.knock(incoming, now, answer);
        }
        if self.watch == Watch::Loop && self.timers.first().is_some_and(|(deadline, _)| *deadline <= now) {
            self.read_for_timers(now);
        } else {
            self.receive(now, false);
        }
        self.fire(now);
        self.drive_all();
        self.turn.shared.hand_over(&mut self.turn.events, true);
        self.transmit(Instant::now());
        self.show();
        false
    }

    /// No timer may go off over a datagram that the loop has not come to read. Does it come at all?
    fn read_for_timers(&mut self, now: Instant) {
        let before = self.window.datagrams;
        self.readable = true;
        self.receive(now, false);
        if !self.shared().attended.swap(false, SeqCst) && self.window.datagrams != before {
            self.set_watch(Watch::Thread);
        }
    }

    /// Behind a turn of the thread: None if there is more to do, else how long it may sleep (until it is woken: None).
    fn before_sleep(&mut self) -> Result<Option<Option<Duration>>> {
        let blocked = self.unsent.is_some();
        if blocked || !self.dirty.is_empty() {
            self.set_watch(Watch::Thread);
        } else if !self.readable {
            self.hand_back();
        }
        if !blocked && (self.readable || !self.dirty.is_empty()) {
            return Ok(None);
        }
        self.listen()?;
        // With a datagram that waits, only a look at the socket tells whether it may go.
        if self.readable || !self.shared().may_sleep() {
            return Ok(Some(Some(Duration::ZERO)));
        }
        self.sleeps_until = self.timers.first().map(|(deadline, _)| *deadline);
        Ok(Some(self.sleeps_until.map(|deadline| deadline.saturating_duration_since(Instant::now()))))
    }

    /// The loop's: read what came and hand it to Python, which takes it next. What is to be sent goes with `output_turn`.
    fn input_turn(&mut self) {
        if self.watch != Watch::Loop {
            return;
        }
        self.readable = true;
        self.receive(Instant::now(), true);
        let emptied = !std::mem::replace(&mut self.readable, false);
        self.drive_all();
        self.turn.shared.hand_over(&mut self.turn.events, false);
        self.window.turns += 1;
        if self.window.turns >= LOOP_TURNS || !emptied {
            let window = std::mem::replace(&mut self.window, Window::new());
            if !emptied || window.datagrams > LOOP_DATAGRAMS_MAX || window.bytes > LOOP_BYTES_MAX {
                self.set_watch(Watch::Thread);
            } else {
                self.keeps = THREAD_MIN;
            }
        }
    }

    /// The loop's: obey what Python said, and send. What is left is the thread's.
    fn output_turn(&mut self) {
        let now = Instant::now();
        // `Close` is not among them: it is said when the loop runs no more turns.
        let _close = self.obey_all(now, false);
        self.drive_all();
        self.turn.shared.hand_over(&mut self.turn.events, true);
        self.transmit(now);
        self.show();
        let left = !self.dirty.is_empty() || self.unsent.is_some() || !self.knocks.is_empty();
        if left {
            self.set_watch(Watch::Thread);
        }
        let first = self.timers.first().map(|(deadline, _)| *deadline);
        let sooner = first.is_some_and(|first| self.sleeps_until.is_none_or(|until| first < until));
        if sooner {
            self.sleeps_until = first;
        }
        if left || sooner {
            self.shared().wake();
        }
    }

    /// True if `Close` was among the commands.
    fn obey_all(&mut self, now: Instant, thread: bool) -> bool {
        let mut commands = std::mem::take(&mut self.commands);
        self.turn.shared.commands(&mut commands, thread);
        let mut close = false;
        for command in commands.drain(..) {
            close |= matches!(command, Command::Close);
            self.obey(command, now);
        }
        self.commands = commands;
        close
    }

    fn drive_all(&mut self) {
        for index in 0..self.dirty.len() {
            self.drive(self.dirty[index]);
        }
        if std::mem::take(&mut self.turn.resume) {
            self.resume();
        }
    }

    // -- the watch ----------------------------------------------------------------------------------------------------

    /// The new one is told before the old one is not any more: a datagram in between is seen twice rather than never.
    fn set_watch(&mut self, watch: Watch) {
        if self.watch == watch || self.looped.is_none() {
            return;
        }
        let before = std::mem::replace(&mut self.watch, watch);
        let told = match watch {
            Watch::Loop => self.show_to_loop(true).and_then(|()| self.listen()),
            Watch::Thread => self.listen(),
        };
        if told.is_err() {
            // The system has no room for it: things stay as they were.
            self.watch = before;
            return;
        }
        if watch == Watch::Thread {
            // It fails only for a descriptor that is not there.
            let _ = self.show_to_loop(false);
        }
        self.readable = false;
        self.window = Window::new();
        self.turn.shared.loop_watches.store(watch == Watch::Loop, SeqCst);
    }

    fn show_to_loop(&self, shown: bool) -> Result<()> {
        let descriptor = self.socket.as_raw_fd();
        let mut source = SourceFd(&descriptor);
        match &self.looped {
            Some(looped) if shown => looped.register(&mut source, SOCKET, Interest::READABLE),
            Some(looped) => looped.deregister(&mut source),
            None => Ok(()),
        }
    }

    /// The thread is about to sleep: is the traffic so light that the loop may have the socket?
    fn hand_back(&mut self) {
        let elapsed = self.window.since.elapsed();
        if self.watch == Watch::Loop || elapsed < self.keeps {
            return;
        }
        let light = u128::from(self.window.bytes) <= u128::from(THREAD_BYTES_PER_MS) * elapsed.as_millis();
        self.window = Window::new();
        if self.shared().attended.swap(false, SeqCst) && light && self.half_open == 0 {
            self.keeps = THREAD_MAX.min(self.keeps * 2);
            self.set_watch(Watch::Loop);
        }
    }

    /// Tell the thread's poll what to look for. That the socket is writable is asked only while a datagram waits: else each
    /// one that was sent would wake the thread.
    pub fn listen(&mut self) -> Result<()> {
        let mut wanted = (self.watch == Watch::Thread).then_some(Interest::READABLE);
        if self.unsent.is_some() {
            wanted = Some(wanted.map_or(Interest::WRITABLE, |readable| readable | Interest::WRITABLE));
        }
        if wanted == self.interest {
            return Ok(());
        }
        let descriptor = self.socket.as_raw_fd();
        let mut source = SourceFd(&descriptor);
        match (self.interest, wanted) {
            (None, Some(wanted)) => self.thread.register(&mut source, SOCKET, wanted)?,
            (Some(_), Some(wanted)) => self.thread.reregister(&mut source, SOCKET, wanted)?,
            (Some(_), None) => self.thread.deregister(&mut source)?,
            (None, None) => {}
        }
        self.interest = wanted;
        Ok(())
    }
}
