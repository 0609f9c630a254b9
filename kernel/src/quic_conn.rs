//! One QUIC connection inside the network thread: its streams, what waits to be written on them, and what is read off them.
//!
//! A stream is freed when both its sides are done; Python hears of a stream of the peer only when it carries data or ends, so
//! streams that are opened and reset in a storm cost no event. No socket and no clock lives here: see `quic.rs`.

use crate::quic_shared::{Command, Event, Gauge, INBOX_BYTES_LOW, INBOX_BYTES_MAX, Shared};
use crate::quic_tls::STREAMS_FIRST;
use bytes::Bytes;
use quinn_proto::{
    Connection, ConnectionError, Dir, Event as QuicEvent, ReadError, Side, StreamEvent, StreamId, VarInt,
};
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Instant;

/// The code of CLOSED when no application closed the connection.
const NO_CODE: i64 = -1;
/// Chunks offered to QUIC in one call.
const WRITE_CHUNKS_MAX: usize = 64;

/// What the connections of a turn write to, and what they must know of their endpoint.
pub struct Turn {
    pub shared: Arc<Shared>,
    pub events: Vec<Event>,
    pub write_low: usize,
    /// Streams a peer may have open: bidirectional, unidirectional.
    pub streams_max: [u64; 2],
    pub idle_ms: u64,
    /// The inbox had room again before Python was told that streams wait for it: those are to be read on.
    pub resume: bool,
}

impl Turn {
    /// No stream may be read now. Who hears this comes again after `Command::Resume`.
    fn full(&mut self) -> bool {
        if self.shared.inbox_bytes() < INBOX_BYTES_MAX {
            return false;
        }
        self.shared.starved.store(true, SeqCst);
        // Python may have emptied the inbox in between, before it could see the flag.
        if self.shared.inbox_bytes() <= INBOX_BYTES_LOW && self.shared.starved.swap(false, SeqCst) {
            // The flag may have been that of others, and nobody else will see it now.
            self.resume = true;
            return false;
        }
        true
    }
}

/// One stream. A side that does not exist (unidirectional streams) is done from the beginning.
#[derive(Default)]
struct Stream {
    out: VecDeque<Bytes>,
    gauge: Option<Arc<Gauge>>,
    /// QUIC knows it: the peer opened it, or its limit allowed us to.
    opened: bool,
    /// Python knows it.
    announced: bool,
    /// FIN follows what waits.
    end: bool,
    finished: bool,
    paused: bool,
    /// Something may be read, and was not because the stream is paused.
    readable: bool,
    send_done: bool,
    recv_done: bool,
    /// It stands in `Conn::unread`.
    unread: bool,
    /// STOP_SENDING came before Python knew the stream.
    stopped: Option<u64>,
    /// Our reset and our STOP_SENDING wait until the stream may be opened.
    reset: Option<u64>,
    stop: Option<u64>,
}

pub struct Conn {
    pub number: u64,
    pub quic: Connection,
    pub connected: bool,
    /// CLOSED was handed out, or nobody waits for it: only QUIC's own goodbye goes on.
    pub closed: bool,
    /// The deadline the endpoint's timers have for it; never later than the true one.
    pub armed: Option<Instant>,
    /// The end of patience with its handshake.
    pub handshake_until: Instant,
    pub dirty: bool,
    /// Streams were left unread because the inbox was full.
    pub starved: bool,
    /// It stands in the endpoint's list of those.
    pub listed: bool,
    /// The largest datagram it sent: smaller pieces of data are copied, lest they keep a large buffer alive.
    pub largest_in: usize,
    streams: HashMap<u64, Stream>,
    waiting: [VecDeque<u64>; 2],
    unread: Vec<u64>,
    allowed: [u64; 2],
}

fn number_of(id: StreamId) -> u64 {
    VarInt::from(id).into_inner()
}

fn id_of(stream: u64) -> StreamId {
    StreamId::from(VarInt::from_u64(stream).unwrap_or(VarInt::MAX))
}

fn code_of(code: u64) -> VarInt {
    VarInt::from_u64(code).unwrap_or(VarInt::MAX)
}

impl Conn {
    pub fn new(number: u64, quic: Connection, handshake_until: Instant, turn: &Turn) -> Conn {
        Conn {
            number,
            quic,
            connected: false,
            closed: false,
            armed: None,
            handshake_until,
            dirty: false,
            starved: false,
            listed: false,
            largest_in: 0,
            streams: HashMap::new(),
            waiting: [VecDeque::new(), VecDeque::new()],
            unread: Vec::new(),
            allowed: turn.streams_max.map(|most| most.min(STREAMS_FIRST)),
        }
    }

    fn client(&self) -> bool {
        self.quic.side() == Side::Client
    }

    /// Whether Python has heard of this connection, and must hear of its end.
    fn known(&self) -> bool {
        self.client() || self.connected
    }

    // -- what QUIC says -----------------------------------------------------------------------------------------------

    pub fn drive(&mut self, turn: &mut Turn) {
        while let Some(event) = self.quic.poll() {
            if self.closed {
                continue;
            }
            match event {
                QuicEvent::Connected => {
                    self.connected = true;
                    let mut peer = self.quic.remote_address();
                    peer.set_ip(peer.ip().to_canonical());
                    turn.events.push(Event::Connected { number: self.number, peer });
                    self.open_waiting(Dir::Bi, turn);
                    self.open_waiting(Dir::Uni, turn);
                }
                QuicEvent::ConnectionLost { reason } => {
                    let (code, text) = self.reason(&reason, turn.idle_ms);
                    self.end(code, text, turn);
                }
                QuicEvent::Stream(event) => self.stream_event(event, turn),
                QuicEvent::HandshakeDataReady | QuicEvent::DatagramReceived | QuicEvent::DatagramsUnblocked => {}
            }
        }
    }

    fn stream_event(&mut self, event: StreamEvent, turn: &mut Turn) {
        match event {
            StreamEvent::Opened { dir } => {
                while let Some(id) = self.quic.streams().accept(dir) {
                    let stream = Stream { opened: true, send_done: dir == Dir::Uni, ..Stream::default() };
                    self.streams.insert(number_of(id), stream);
                    self.read(number_of(id), turn);
                }
                self.allow_more(dir, turn);
            }
            StreamEvent::Readable { id } => self.read(number_of(id), turn),
            StreamEvent::Writable { id } => self.write(number_of(id), turn),
            StreamEvent::Finished { id } => self.sent(number_of(id), turn),
            StreamEvent::Stopped { id, error_code } => self.stopped(number_of(id), error_code.into_inner(), turn),
            StreamEvent::Available { dir } => self.open_waiting(dir, turn),
        }
    }

    /// Double what the peer may have open when it uses half of it.
    fn allow_more(&mut self, dir: Dir, turn: &Turn) {
        let (most, now) = (turn.streams_max[dir as usize], self.allowed[dir as usize]);
        if now < most && self.quic.streams().remote_open_streams(dir) * 2 >= now {
            self.allowed[dir as usize] = (now * 2).min(most);
            self.quic.set_max_concurrent_streams(dir, code_of(self.allowed[dir as usize]));
        }
    }

    fn reason(&self, error: &ConnectionError, idle_ms: u64) -> (i64, String) {
        match error {
            ConnectionError::ApplicationClosed(close) => {
                let text = String::from_utf8_lossy(&close.reason);
                (close.error_code.into_inner() as i64, format!("closed by peer: {text}"))
            }
            ConnectionError::TimedOut if self.connected => (NO_CODE, format!("idle for {} s", idle_ms as f64 / 1000.0)),
            ConnectionError::TimedOut => (NO_CODE, "no answer from the peer: the handshake timed out".to_owned()),
            ConnectionError::Reset => (NO_CODE, "the peer does not know this connection any more".to_owned()),
            other => (NO_CODE, other.to_string()),
        }
    }

    /// The connection is over for Python.
    pub fn end(&mut self, code: i64, reason: String, turn: &mut Turn) {
        if std::mem::replace(&mut self.closed, true) {
            return;
        }
        if self.known() {
            turn.events.push(Event::Closed { number: self.number, code, reason });
        }
        self.streams = HashMap::new();
        self.waiting = [VecDeque::new(), VecDeque::new()];
        self.unread = Vec::new();
    }

    // -- reading ------------------------------------------------------------------------------------------------------

    /// The streams that were left unread.
    pub fn read_on(&mut self, turn: &mut Turn) {
        self.starved = false;
        for key in std::mem::take(&mut self.unread) {
            if let Some(stream) = self.streams.get_mut(&key) {
                stream.unread = false;
            }
            self.read(key, turn);
        }
    }

    fn read(&mut self, key: u64, turn: &mut Turn) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        if stream.recv_done {
            return;
        }
        let mut recv = self.quic.recv_stream(id_of(key));
        if stream.paused {
            stream.readable = true;
            if let Ok(Some(code)) = recv.received_reset() {
                self.was_reset(key, code.into_inner(), turn);
            }
            return;
        }
        if turn.full() {
            self.starved = true;
            if !std::mem::replace(&mut stream.unread, true) {
                self.unread.push(key);
            }
            return;
        }
        let Ok(mut chunks) = recv.read(true) else { return };
        let (mut pieces, mut bytes, mut fin, mut reset) = (Vec::new(), 0, false, None);
        loop {
            match chunks.next(usize::MAX) {
                Ok(Some(chunk)) => {
                    bytes += chunk.bytes.len();
                    let whole = chunk.bytes.len() * 2 >= self.largest_in;
                    pieces.push(if whole { chunk.bytes } else { Bytes::copy_from_slice(&chunk.bytes) });
                }
                Ok(None) => {
                    fin = true;
                    break;
                }
                Err(ReadError::Reset(code)) => {
                    reset = Some(code.into_inner());
                    break;
                }
                Err(ReadError::Blocked) => break,
            }
        }
        // What it says, that there is a window to tell the peer, is asked of every connection of a turn anyway.
        let _ = chunks.finalize();
        self.announce(key, pieces, bytes, fin, turn);
        if let Some(code) = reset {
            self.was_reset(key, code, turn);
        }
    }
    /// Hand out what was read. The first time it tells Python of the stream.
    fn announce(&mut self, key: u64, pieces: Vec<Bytes>, bytes: usize, fin: bool, turn: &mut Turn) {
        if bytes == 0 && !fin {
            return;
        }
        let Some(stream) = self.streams.get_mut(&key) else { return };
        stream.announced = true;
        stream.recv_done |= fin;
        turn.shared.data_ready(bytes);
        turn.events.push(Event::Data { number: self.number, stream: key, pieces, bytes, fin });
        if let Some(code) = stream.stopped.take() {
            turn.events.push(Event::Stopped { number: self.number, stream: key, code });
        }
        self.free(key, turn);
    }

    /// The peer reset its side. If Python never knew the stream, ours ends too: nobody else would do it.
    fn was_reset(&mut self, key: u64, code: u64, turn: &mut Turn) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        stream.recv_done = true;
        if stream.announced {
            turn.events.push(Event::Reset { number: self.number, stream: key, code });
        } else if !std::mem::replace(&mut stream.send_done, true) {
            // A side that is closed already needs no reset.
            let _ = self.quic.send_stream(id_of(key)).reset(code_of(code));
        }
        self.free(key, turn);
    }

    fn free(&mut self, key: u64, turn: &mut Turn) {
        let Some(stream) = self.streams.get(&key) else { return };
        if stream.send_done && stream.recv_done {
            if stream.announced {
                turn.events.push(Event::Gone { number: self.number, stream: key });
            }
            self.streams.remove(&key);
        }
    }

    // -- writing ------------------------------------------------------------------------------------------------------

    fn open_waiting(&mut self, dir: Dir, turn: &mut Turn) {
        while let Some(&key) = self.waiting[dir as usize].front() {
            let Some(id) = self.quic.streams().open(dir) else { return };
            debug_assert_eq!(number_of(id), key);
            self.waiting[dir as usize].pop_front();
            let Some(stream) = self.streams.get_mut(&key) else { continue };
            stream.opened = true;
            if let Some(code) = stream.stop.take() {
                // It cannot be over already: the peer has not heard of it.
                let _ = self.quic.recv_stream(id).stop(code_of(code));
            }
            match stream.reset.take() {
                Some(code) => self.reset(key, code, turn),
                None => self.write(key, turn),
            }
        }
    }

    /// Give QUIC what it takes. The rest goes when the stream is writable again.
    fn write(&mut self, key: u64, turn: &mut Turn) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        if stream.send_done || !stream.opened {
            return;
        }
        let mut send = self.quic.send_stream(id_of(key));
        let mut written = 0;
        while !stream.out.is_empty() {
            let chunks = stream.out.make_contiguous();
            let most = chunks.len().min(WRITE_CHUNKS_MAX);
            // Blocked: Writable follows. Stopped: its own event follows. Closed: nothing can be written any more.
            let Ok(done) = send.write_chunks(&mut chunks[..most]) else { break };
            stream.out.drain(..done.chunks);
            written += done.bytes;
        }
        if stream.out.is_empty() && stream.end && !std::mem::replace(&mut stream.finished, true) {
            // It fails when the peer stopped the stream, and that event is on its way.
            let _ = send.finish();
        }
        let Some(gauge) = &stream.gauge else { return };
        let queued = gauge.queued.fetch_sub(written, SeqCst) - written;
        if queued <= turn.write_low && gauge.above.swap(false, SeqCst) {
            turn.events.push(Event::Writable { number: self.number, stream: key });
        }
    }

    fn drop_output(stream: &mut Stream) {
        stream.out = VecDeque::new();
        stream.send_done = true;
        if let Some(gauge) = &stream.gauge {
            gauge.queued.store(0, SeqCst);
            gauge.above.store(false, SeqCst);
        }
    }

    fn sent(&mut self, key: u64, turn: &mut Turn) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        if stream.send_done {
            return;
        }
        Self::drop_output(stream);
        turn.events.push(Event::Sent { number: self.number, stream: key });
        self.free(key, turn);
    }

    fn stopped(&mut self, key: u64, code: u64, turn: &mut Turn) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        if stream.send_done {
            return;
        }
        Self::drop_output(stream);
        // RFC 9000 3.5: the answer to STOP_SENDING is a reset with the same code. One sent before is as good.
        let _ = self.quic.send_stream(id_of(key)).reset(code_of(code));
        if stream.announced {
            turn.events.push(Event::Stopped { number: self.number, stream: key, code });
        } else {
            stream.stopped = Some(code);
        }
        self.free(key, turn);
    }

    fn reset(&mut self, key: u64, code: u64, turn: &mut Turn) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        if stream.send_done {
            return;
        }
        if !stream.opened {
            stream.reset = Some(code);
            return;
        }
        Self::drop_output(stream);
        // Fails only if all of it was acknowledged, which is an end as well.
        let _ = self.quic.send_stream(id_of(key)).reset(code_of(code));
        turn.events.push(Event::Sent { number: self.number, stream: key });
        self.free(key, turn);
    }

    // -- what Python says ---------------------------------------------------------------------------------------------

    /// A command about this connection.
    pub fn obey(&mut self, command: Command, now: Instant, turn: &mut Turn) {
        if self.closed {
            return;
        }
        match command {
            Command::Open { stream, .. } => self.open(stream, turn),
            Command::Send { stream, data, end, gauge, .. } => {
                let Some(known) = self.streams.get_mut(&stream) else { return };
                if known.send_done {
                    gauge.queued.store(0, SeqCst);
                    return;
                }
                known.out.extend(data);
                known.end |= end;
                known.gauge = Some(gauge);
                self.write(stream, turn);
            }
            Command::Pause { stream, paused, .. } => {
                let Some(known) = self.streams.get_mut(&stream) else { return };
                known.paused = paused;
                if !paused && std::mem::replace(&mut known.readable, false) {
                    self.read(stream, turn);
                }
            }
            Command::Reset { stream, code, .. } => self.reset(stream, code, turn),
            Command::Stop { stream, code, .. } => self.stop(stream, code, turn),
            Command::Shut { code, reason, .. } => {
                let text = format!("closed here: {}", String::from_utf8_lossy(&reason));
                self.quic.close(now, code_of(code), reason);
                self.end(code as i64, text, turn);
            }
            Command::Connect { .. } | Command::Serve(_) | Command::Accepting(_) | Command::Resume | Command::Close => {}
        }
    }

    fn open(&mut self, key: u64, turn: &mut Turn) {
        let dir = id_of(key).dir();
        let stream = Stream { announced: true, recv_done: dir == Dir::Uni, ..Stream::default() };
        self.streams.insert(key, stream);
        self.waiting[dir as usize].push_back(key);
        self.open_waiting(dir, turn);
    }

    fn stop(&mut self, key: u64, code: u64, turn: &mut Turn) {
        let Some(stream) = self.streams.get_mut(&key) else { return };
        if std::mem::replace(&mut stream.recv_done, true) {
            return;
        }
        if stream.opened {
            // It fails when the peer's side is over already.
            let _ = self.quic.recv_stream(id_of(key)).stop(code_of(code));
        } else {
            stream.stop = Some(code);
        }
        self.free(key, turn);
    }
}
